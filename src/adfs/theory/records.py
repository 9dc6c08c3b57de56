"""What all records of parameters share: their base classes, and the constants that depend on the network.

σ_A = λ_min⁺(AᵀΣ⁻¹A) is the strong convexity of the dual. It follows from sparse eigenproblems of at most 2n
rows. Call the sample at the end of a virtual edge a tip. With μ_ij² = α_i L_ij on virtual edges, the tips of
node i differ in their mass L_ij only, so there are two kinds of eigenvectors of (AAᵀ, Σ). In the first kind,
tips of one node move against each other and everything else rests: that takes two tips, and the eigenvalue is
α_i. In the second kind, all tips of a node move by α_i/(α_i − λ) times the value u_i of its centre, and

    Lap u = λ N(λ) u,        N(λ) = diag(σ_i(1 + κ_i α_i/(α_i − λ))).

N grows with λ up to the smallest α_i, so the smallest positive solution below it, if there is one, is the
fixed point of λ ↦ λ_2(Lap, N(λ)), which decreases. If there is none, that α_i is σ_A if its node has two
tips. If the node has one tip, the search continues above α_i with that tip as a node of mass κ_iσ_i on an
edge of weight α_iκ_iσ_i.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import scipy.sparse

from adfs.errors import InputError
from adfs.network import Network, hop_distances, second_eigenpair
from adfs.network.distances import EXACT_NODES
from adfs.network.spectrum import ACCEPTED_ERROR, DENSE_NODES, ROUNDING, largest_or_bound
from adfs.problem import FiniteSum
from adfs.threads import single_threaded


def shown(what: str, symbol: str) -> Mapping[str, tuple[str, str]]:
    """Return the metadata of a field that is printed: its description and its symbol."""
    return {"shown": (what, symbol)}


def _as_text(value: object) -> str:
    """Return a number, or the range of an array, with six digits."""
    if not isinstance(value, np.ndarray):
        return f"{value:.6g}" if isinstance(value, float) else str(value)
    if value.size == 0:
        return "none"
    low, high = float(value.min()), float(value.max())
    return f"{low:.6g}" if math.isclose(low, high, rel_tol=1e-12) else f"{low:.6g} … {high:.6g}"


class ParameterRecord(ABC):
    """The parameters of one method, a frozen dataclass; `str` of it is a table.

    Arrays become read-only float64. Those whose name begins with ``edge_`` have one number per edge, all
    others one per node. No number may be negative, and a ``contraction`` must lie in (0, 1]. A number that
    does not apply is nan, and is not printed. The table has the fields that are `shown`, then the properties
    in ``_derived``.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    _title: ClassVar[str]
    _derived: ClassVar[dict[str, tuple[str, str]]] = {}
    contraction: float
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        sizes: dict[str, set[int]] = {"nodes": set(), "edges": set()}
        for one in dataclasses.fields(self):
            value = getattr(self, one.name)
            # Annotations are strings here. A copy keeps the caller's array writable if it is.
            if one.type == "np.ndarray":
                value = np.asarray(value, dtype=np.float64)
                value = value.copy() if value.flags.writeable else value
                if value.ndim != 1 or not np.all(np.isfinite(value)) or np.any(value < 0.0):
                    self._refuse(f"{one.name} must be one finite number of at least 0 per node or edge")
                value.setflags(write=False)
                object.__setattr__(self, one.name, value)
                sizes["edges" if one.name.startswith("edge_") else "nodes"].add(value.size)
            elif one.name == "contraction" and not 0.0 < value <= 1.0:
                self._refuse(f"the contraction must lie in (0, 1], got {value!r}")
            # A comparison with nan is False, so numbers that do not apply pass.
            elif isinstance(value, float | int) and value < 0:
                self._refuse(f"{one.name} must be at least 0, got {value!r}")
        for kind, found in sizes.items():
            if len(found) > 1:
                self._refuse(f"the arrays of the {kind} have different lengths")

    def _refuse(self, sentence: str) -> None:
        raise InputError(f"{self._title}: {sentence}")

    @property
    def log_decay(self) -> float:
        """Log of (1 − ρ)/(1 + ρ) for the contraction ρ, without cancellation when ρ is small.

        At ρ = 1 it is finite, and its exponential is 0: −∞ times an idle time of 0 would be nan.
        """
        return -2.0 * math.atanh(self.contraction) if self.contraction < 1.0 else -1e5

    def __str__(self) -> str:
        names = {
            one.name: one.metadata["shown"] for one in dataclasses.fields(self) if one.metadata
        } | self._derived
        values = [(*labels, getattr(self, name)) for name, labels in names.items()]
        # Leave out the numbers that do not apply.
        rows = [row for row in values if not (isinstance(row[2], float) and math.isnan(row[2]))]
        # Single numbers come first, then the arrays.
        rows.sort(key=lambda row: isinstance(row[2], np.ndarray))
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines = [
            f"  {what:<{widths[0]}}  {symbol:<{widths[1]}}  {_as_text(value)}" for what, symbol, value in rows
        ]
        return "\n".join([self._title, *lines, *(f"  note: {note}" for note in self.notes)])


class EventParameters(ParameterRecord):
    """The parameters of a method whose events are drawn at random: a schedule is made from them.

    ``node_probability`` is p_i, ``edge_probability`` p_e, ``edge_weights`` the μ_e² of communication edges,
    ``sigma`` σ_i. ``_sums_of_weights`` names the field with the sum of the `sample_weights` of each node.
    """

    _sums_of_weights: ClassVar[str]
    sigma: np.ndarray
    node_probability: np.ndarray
    edge_weights: np.ndarray
    edge_probability: np.ndarray
    _derived: ClassVar[dict[str, tuple[str, str]]] = {
        "p_comm": ("P(communication)", "p_comm"),
        "p_comp": ("P(computation)", "p_comp"),
        "sizes": ("nodes, edges", "n, |E|"),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        # The probabilities of all events sum to 1, up to rounding.
        total = float(self.node_probability.sum()) + float(self.edge_probability.sum())
        if not math.isclose(total, 1.0, rel_tol=0.0, abs_tol=1e-9):
            self._refuse(f"the probabilities sum to {total:.12g}, not 1")
        if np.any(self.edge_probability <= 0.0):
            self._refuse("every edge needs a probability above 0, or the nodes never agree")
        if np.any((self.node_probability > 0.0) != (getattr(self, self._sums_of_weights) > 0.0)):
            self._refuse("exactly the nodes that hold samples need a probability above 0")

    @abstractmethod
    def sample_weights(self, problem: FiniteSum) -> np.ndarray:
        """Return the numbers to which p_ij is proportional in a node, 0 on inactive rows; shape (N,)."""

    def sample_probability(self, problem: FiniteSum) -> np.ndarray:
        """Return p_ij, shape (N,)."""
        node, sums = problem.node_of_row, getattr(self, self._sums_of_weights)
        # A node without active samples has no weight to divide.
        sums = np.where(sums > 0.0, sums, 1.0)
        return np.asarray(self.node_probability[node] * self.sample_weights(problem) / sums[node])

    @property
    def n_nodes(self) -> int:
        """The number n of nodes."""
        return int(self.sigma.size)

    @property
    def sizes(self) -> str:
        """The numbers of nodes and edges, for the printed table."""
        return f"{self.n_nodes}, {self.edge_weights.size}"

    @property
    def p_comm(self) -> float:
        """Probability that an event is a communication."""
        return float(self.edge_probability.sum())

    @property
    def p_comp(self) -> float:
        """Probability that an event is a computation."""
        return float(self.node_probability.sum())


# --------------------------------------------------------------------------- the constants of a network


def network_constant(network: Network, resistance: np.ndarray) -> float:
    """Return γ̃ = min_e λ_min⁺(Lap)·n²/(R_e|E|²) (a minimum: erratum 10); infinite for one node.

    The paper's weights are 1/2. For other weights 2μ_e²R_e replaces R_e: this is the same number for weights
    of 1/2, and it does not depend on their scale.
    """
    if network.n_nodes == 1:
        return math.inf
    largest = float(np.max(2.0 * network.weights * resistance))
    return network.algebraic_connectivity * network.n_nodes**2 / (largest * network.n_edges**2)


def inverse_sigma(network: Network, sigma: np.ndarray) -> np.ndarray:
    """Return 1/σ_i + 1/σ_j for each edge, shape (|E|,)."""
    return np.asarray(1.0 / sigma[network.edges[:, 0]] + 1.0 / sigma[network.edges[:, 1]])


def edge_roots(network: Network, sigma: np.ndarray) -> np.ndarray:
    """Return k_e = √(μ_e²R_e(1/σ_i + 1/σ_j)) for each edge, shape (|E|,)."""
    inverse = inverse_sigma(network, sigma)
    return np.asarray(np.sqrt(network.weights * network.resistances.values * inverse))


def tree_depth(network: Network) -> int:
    """Return the depth of the lowest breadth-first tree; above 2,000 nodes, of a low one."""
    if network.n_nodes <= EXACT_NODES:
        return min(int(hop_distances(network, root).max()) for root in range(network.n_nodes))
    # Trying every root would take too long: the node with the most neighbours is a good one.
    return min(network.diameter, int(hop_distances(network, int(np.argmax(network.degrees))).max()))


@single_threaded
def largest_scaled_laplacian(network: Network, sigma: np.ndarray) -> float:
    """Return an upper bound of λ_max(D^{-1/2} Lap D^{-1/2}), D = diag(σ), usually exact up to rounding."""
    # Every result is raised by the error that rounding or the iteration may have.
    if network.n_nodes > DENSE_NODES:
        return largest_or_bound(network, sigma) * (1.0 + 1e-7)
    root = scipy.sparse.diags_array(1.0 / np.sqrt(sigma))
    exact = np.linalg.eigvalsh((root @ network.laplacian() @ root).toarray())[-1]
    return float(exact * (1.0 + 4.0 * network.n_nodes * np.finfo(np.float64).eps))


# --------------------------------------------------------------------------- the strong convexity of the dual


def dual_curvature_of_split(network: Network, sigma: np.ndarray, kappa: np.ndarray, split: float) -> float:
    """Return σ_A = λ_2(Lap, N_r), N_r = diag(σ_i(1 + κ_i/(1 − r))), for one α = σ_A/r at every node.

    The value is below σ_A by the eigensolver's bound of its error, usually less than 1e-8 of it, and never
    above. On networks of many thousand nodes that bound is up to a hundredth, since ρ goes by the root of σ_A
    and the digits would take several times as long.

    Parameters
    ----------
    network : Network
        At least two nodes.
    sigma, kappa : ndarray of shape (n,)
        σ_i and κ_i; λ_max(K_i) in place of κ_i gives a larger number that is still valid in the linear case.
    split : float
        r in (0, 1).
    """
    return second_eigenpair(network, sigma * (1.0 + kappa / (1.0 - split)), ACCEPTED_ERROR).lower


def dual_curvature(
    network: Network, sigma: np.ndarray, kappa: np.ndarray, n_tips: np.ndarray, virtual_weight: np.ndarray
) -> float:
    """Return σ_A for any α_i, the ``virtual_weight`` of node i (μ_ij² = α_i L_ij).

    The value is below σ_A by the eigensolver's bound of its error, usually less than 1e-8 of it, and never
    above.

    Parameters
    ----------
    network, sigma, kappa
    n_tips : ndarray of shape (n,)
        Numbers of tips, that is of samples that are more than constants.
    virtual_weight : ndarray of shape (n,)
        α_i; those of nodes without tips do not count.
    """
    alpha = np.where(n_tips > 0, virtual_weight, np.inf)
    # Together the tips of a node have the mass κ_iσ_i = Σ_j L_ij.
    masses = kappa * sigma
    smallest_eigenvalue_of_tips = float(np.min(alpha[n_tips > 1], initial=np.inf))
    explicit = np.zeros(network.n_nodes, dtype=bool)  # nodes whose tip is a node of the eigenproblem
    value = 0.0
    while True:
        implicit_alpha = np.where(explicit, np.inf, alpha)
        limit = float(implicit_alpha.min())
        extended, all_masses = _with_tips(network, sigma, masses, np.flatnonzero(explicit), alpha)
        value = _solution_below(limit, extended, all_masses, masses, implicit_alpha, value)
        if value < _just_below(limit) or limit == smallest_eigenvalue_of_tips:
            return value
        # There is no solution up to the limit, and the node there has a single tip: make its tip a node, and
        # the tips of the nodes whose turn would come next.
        explicit |= (n_tips == 1) & (alpha <= 1.25 * limit)


def _just_below(limit: float) -> float:
    return limit * (1.0 - ROUNDING)


def _with_tips(
    network: Network, sigma: np.ndarray, masses: np.ndarray, nodes: np.ndarray, alpha: np.ndarray
) -> tuple[Network, np.ndarray]:
    """Return the network with the tips of some nodes as additional nodes, and the masses of all nodes."""
    if nodes.size == 0:
        return network, sigma
    size = network.n_nodes + nodes.size
    ends = np.concatenate([network.edges, np.stack([nodes, np.arange(network.n_nodes, size)], axis=1)])
    weights = np.concatenate([network.weights, alpha[nodes] * masses[nodes]])
    one_way = scipy.sparse.coo_array((weights, (ends[:, 0], ends[:, 1])), shape=(size, size))
    return Network(one_way + one_way.T), np.concatenate([sigma, masses[nodes]])


def _solution_below(
    limit: float, network: Network, node_masses: np.ndarray, masses: np.ndarray, alpha: np.ndarray, low: float
) -> float:
    """Solve λ = λ_2(Lap, N(λ)) between ``low`` and ``limit``, or return a number just below the limit.

    ``node_masses`` are the masses of all nodes; ``masses`` and ``alpha`` belong to the tips that are not
    nodes (α is infinite where there are none).
    """
    implicit = np.flatnonzero(np.isfinite(alpha))
    if implicit.size == 0:
        return second_eigenpair(network, node_masses).lower
    masses, alpha = masses[implicit], alpha[implicit]
    # Newton's method inside a bracket. The paper's α_i have their solution in the upper half of (0, limit).
    high, value = limit, max(low, 0.5 * limit)
    for _ in range(60):
        diagonal = node_masses.copy()
        diagonal[implicit] += masses * alpha / (alpha - value)
        pair = second_eigenpair(network, diagonal)
        difference = pair.value - value
        # λ_2 decreases, so the solution lies between any λ and λ_2 there: the smaller one is not too large.
        if abs(difference) <= pair.error * value or (difference > 0.0 and value >= _just_below(limit)):
            return min(value, pair.lower)
        low, high = (value, high) if difference > 0.0 else (low, value)
        # The derivative of λ_2(Lap, N(λ)) follows from its eigenvector and the derivative of N.
        bend = masses * alpha / (alpha - value) ** 2
        slope = -pair.value * float(np.sum(bend * pair.vector[implicit] ** 2))
        value = min(value + difference / (1.0 - slope), _just_below(limit))
        # Bisect where Newton's step leaves the bracket.
        if not low < value < high:
            value = 0.5 * (low + high)
    return low
