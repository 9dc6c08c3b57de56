"""DADAO: Poisson clocks for gradients at nodes and for exchanges on edges, and a linear flow between them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from adfs.algorithms.base import EventProcess, Method, Setting, Source, without_tau
from adfs.algorithms.costs import EventEffort
from adfs.algorithms.method_kernels import (
    EventKernels,
    add_gradient,
    exchange_messages,
    register_kernels,
)
from adfs.algorithms.opapc import summarize_gossip
from adfs.compilation import kernel
from adfs.errors import InputError
from adfs.network import Network, phases
from adfs.problem import Samples
from adfs.theory import NodeSizes
from adfs.theory.baselines import node_smoothness
from adfs.theory.records import ParameterRecord, shown

# The variables of a node. The last four are divided by ν, so that all of them have the units of θ.
_X, _X_TILDE, _Y, _Y_TILDE, _Z, _Z_TILDE = range(6)


@dataclass(frozen=True, eq=False)
class DadaoParameters(ParameterRecord):
    """DADAO: μ = min σ_i, L = max M_i, ν = μ/2, q = √(ν/L); nodes act at rate 1, edges at rates sμ_e².

    s is √(max_e r_e/λ_2), r_e the effective resistances: then χ1 = 1/(sλ_2) and χ2 = max r_e/(2s) have
    χ1χ2 = 1/2. On a network that changes they are those of its worst graphs, or of the mean of all graphs if
    one is not connected. Events happen at the rate n + sΣμ_e², and ``contraction`` is that of q/8 in the mean
    time between two of them.
    """

    _title: ClassVar[str] = "Parameters of DADAO"
    contraction: float = field(metadata=shown("contraction", ""))
    smoothness: float = field(metadata=shown("smoothness", "L"))
    curvature: float = field(metadata=shown("half the strong convexity", "ν"))
    inverse_gap: float = field(metadata=shown("inverse of the mixing rate", "χ1"))
    event_rate: float = field(metadata=shown("events per unit of time", "n + sΣμ_e²"))
    node_probability: np.ndarray = field(metadata=shown("node probability", "p_i"))
    edge_probability: np.ndarray = field(metadata=shown("edge probability", "p_e"))

    @classmethod
    def theory(cls, problem: Source, network: Network) -> DadaoParameters:
        """Return the constants of Nabli and Oyallon for the network's own weights."""
        summary = summarize_gossip("dadao", problem, network)
        if not summary.n_samples.all():
            raise InputError("dadao computes gradients at every node: each node needs at least one row")
        largest, nu = float(node_smoothness(summary).max()), 0.5 * float(summary.sigma.min())
        graphs = phases(network)
        connectivity = min(graph.algebraic_connectivity for graph in graphs)
        # A resistance of `Network` has the factor μ_e².
        resistance = max(float((graph.resistances.values / graph.weights).max()) for graph in graphs)
        # With this scale χ1χ2 = 1/2, the most that the theorem allows: exchanges are as rare as can be.
        scale = math.sqrt(resistance / connectivity)
        rates = scale * network.weights
        total = network.n_nodes + float(rates.sum())
        contraction = -math.expm1(-0.125 * math.sqrt(nu / largest) / total)
        nodes = np.full(network.n_nodes, 1.0 / total)
        return cls(contraction, largest, nu, 1.0 / (scale * connectivity), total, nodes, rates / total)

    def flow(self) -> np.ndarray:
        """Return the generator of the flow of a node's six variables, per event, (6, 6)."""
        q = math.sqrt(self.curvature / self.smoothness)
        generator = np.zeros((6, 6))
        for first, second, there, back in ((_X, _X_TILDE, q / 8, q / 8), (_Z, _Z_TILDE, q / 4, q / 8)):
            generator[first, [first, second]] = -there, there
            generator[second, [first, second]] = back, -back
        generator[_Y, [_Y, _Y_TILDE]] = -q / 4, q / 4
        generator[_Y_TILDE, [_X_TILDE, _Y, _Z]] = -0.5 / q
        return generator / self.event_rate


class DadaoState(NamedTuple):
    """The six variables of each node, (k, 6, d), as of its ``time``, (k,)."""

    vectors: np.ndarray
    time: np.ndarray


class DadaoParts(NamedTuple):
    """The arguments of the kernels.

    Attributes
    ----------
    constants : (6,)
        ν; the jumps of x, x̃ and ỹ at a gradient and of z and z̃ at an exchange.
    generator : (6, 6)
    norm : float
        The largest sum of absolute entries of its rows.
    ends, slot : (|E|, 2), (n,)
        The nodes of each edge, and their places in the block.
    room, messages : (3, 6, 6), (2, d)
        Working memory.
    further : (1,)
        Counts the samples of a computation after the first.
    """

    samples: Samples
    sigma: np.ndarray
    constants: np.ndarray
    generator: np.ndarray
    norm: float
    ends: np.ndarray
    slot: np.ndarray
    state: DadaoState
    room: np.ndarray
    messages: np.ndarray
    further: np.ndarray


@kernel
def _multiply(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    for i in range(6):
        for j in range(6):
            total = 0.0
            for k in range(6):
                total += a[i, k] * b[k, j]
            out[i, j] = total


@kernel
def _bring(parts: DadaoParts, i: int, time: float) -> None:
    """Let the flow of node i run up to a time."""
    vectors, found, product = parts.state.vectors, parts.room[0], parts.room[1]
    # A node is brought forward only when it acts: between its events nothing but the flow changes it.
    elapsed = time - parts.state.time[i]
    if elapsed <= 0.0:
        return
    parts.state.time[i] = time
    # The exponential by its series for a short time, which is then doubled. At norms up to a quarter, what
    # comes after 12 terms is below rounding.
    terms, largest_norm, doublings = 12, 0.25, 0
    while parts.norm * elapsed > largest_norm:
        elapsed *= 0.5
        doublings += 1
    for a in range(6):
        for b in range(6):
            found[a, b] = 1.0 if a == b else 0.0
    for term in range(terms, 0, -1):
        _multiply(parts.generator, found, product)
        for a in range(6):
            for b in range(6):
                found[a, b] = product[a, b] * (elapsed / term) + (1.0 if a == b else 0.0)
    for _ in range(doublings):
        _multiply(found, found, product)
        found, product = product, found
    # All coordinates of the node have the same flow.
    before = parts.room[2, 0]
    for k in range(vectors.shape[2]):
        for a in range(6):
            before[a] = vectors[i, a, k]
        for a in range(6):
            total = 0.0
            for b in range(6):
                total += found[a, b] * before[b]
            vectors[i, a, k] = total


@kernel
def _bring_all(parts: DadaoParts, time: float) -> None:
    for i in range(parts.state.time.size):
        _bring(parts, i, time)


@kernel
def _compute(parts: DadaoParts, i: int, time: float) -> None:
    """Let node i jump along its gradient at x."""
    _bring(parts, i, time)
    samples, gradient, vectors = parts.samples, parts.messages[0], parts.state.vectors
    jumps = parts.constants
    nu, of_x, of_x_tilde, of_y_tilde = jumps[0], jumps[1], jumps[2], jumps[3]
    x = vectors[i, _X]
    for k in range(x.size):
        gradient[k] = (parts.sigma[i] - nu) * x[k] - nu * vectors[i, _Y_TILDE, k]
    add_gradient(samples, i, x, gradient)
    for k in range(x.size):
        vectors[i, _X, k] -= of_x * gradient[k]
        vectors[i, _X_TILDE, k] -= of_x_tilde * gradient[k]
        vectors[i, _Y_TILDE, k] += of_y_tilde * gradient[k]
    parts.further[0] += samples.node_starts[i + 1] - samples.node_starts[i] - 1


@kernel
def _outgoing(parts: DadaoParts, i: int, time: float, out: np.ndarray) -> None:
    """Write y + z of node i at an exchange; ``out`` (d,)."""
    _bring(parts, i, time)
    for k in range(out.size):
        out[k] = parts.state.vectors[i, _Y, k] + parts.state.vectors[i, _Z, k]


@kernel
def _incoming(parts: DadaoParts, edge: int, i: int, time: float, own: np.ndarray, other: np.ndarray) -> None:
    """Finish an exchange at node i, from what both ends have sent."""
    vectors = parts.state.vectors
    for k in range(own.size):
        half = 0.5 * (own[k] - other[k])
        vectors[i, _Z, k] -= parts.constants[4] * half
        vectors[i, _Z_TILDE, k] -= parts.constants[5] * half


@kernel
def _run(
    parts: DadaoParts, times: np.ndarray, actors: np.ndarray, drawn: np.ndarray, first: int, last: int
) -> int:
    """Execute events first … last − 1; stop before one with a node of another block, and return its index."""
    n = parts.slot.size
    for t in range(first, last):
        if actors[t] < n:
            _compute(parts, parts.slot[actors[t]], times[t])
        # The other end is in another process: the runtime does this event by messages.
        elif not exchange_messages(parts, actors[t] - n, times[t]):
            return t
    return last


class DadaoProcess(EventProcess):
    """DADAO in progress over a block of nodes."""

    parts: DadaoParts
    kernels = register_kernels(DadaoParts, EventKernels(_run, _outgoing, _incoming))

    def __init__(self, setting: Setting[DadaoParameters]) -> None:
        problem, p = setting.problem, setting.parameters
        # Which row an event draws does not matter: a computation goes through all of them.
        super().__init__(setting, np.ones(problem.n_samples))
        self.parameters, nu = p, p.curvature
        k, d = problem.n_nodes, problem.n_features
        self.state = DadaoState(np.zeros((k, 6, d)), np.zeros(k))
        q, generator = math.sqrt(nu / p.smoothness), p.flow()
        of_gradient = (0.25 / p.smoothness, 0.25 * q / nu, (1.0 + 0.25 * q) / nu)
        constants = np.array([nu, *of_gradient, 0.5, 2.0 * p.inverse_gap / q])
        norm = float(np.abs(generator).sum(axis=1).max())
        self.parts = DadaoParts(
            *(problem.samples, problem.sigma, constants, generator, norm, self.ends, self.slot, self.state),
            *(np.empty((3, 6, 6)), np.empty((2, d)), self.further),
        )

    def primal(self, read: str = "x") -> np.ndarray:
        # On a copy: reading the iterate does not change the run.
        state = DadaoState(self.state.vectors.copy(), self.state.time.copy())
        _bring_all(self.parts._replace(state=state), float(self.position))
        return state.vectors[:, _X if read == "x" else _X_TILDE].copy()


class Dadao(Method[DadaoParameters]):
    """DADAO: accelerated gradients and accelerated gossip, each at the ticks of Poisson clocks.

    Problem
        min_θ Σ_i f_i(θ), each f_i smooth and strongly convex.
    Algorithm
        Between its events a node follows x' = η(x̃ − x), x̃' = η(x − x̃), y' = α(ỹ − y), ỹ' = −θ(y + z + νx̃),
        z' = α(z̃ − z), z̃' = α̃(z − z̃). At a gradient g = ∇f_i(x) − νx − ỹ: x −= γg, x̃ −= γ̃g, ỹ += (δ + δ̃)g.
        At an exchange with h = (y + z − that of the neighbour)/2: z −= βh, z̃ −= β̃h. Gradients and exchanges
        need not alternate, and no node needs to know the number of events elsewhere (``schedule="poisson"``).
    Guarantee
        With χ1χ2 ≤ 1/2 the mean-squared error shrinks by exp(−t√(μ/L)/(8√2)) in expectation, where each node
        computes one gradient per unit of time t. The theorem is for Poisson clocks. The network may change as
        long as each of its graphs is connected; otherwise nothing is proven, and the windows must be short.

    References
    ----------
        Nabli, Oyallon, "DADAO: decoupled accelerated decentralized asynchronous optimization", ICML 2023,
        arXiv 2208.00779; its first version is for networks that change.
    """

    name = "dadao"
    label = "DADAO"
    needs_network = True
    observed_factor = 0.3
    kind = "events"
    baseline = True
    lost_exchanges = changing_networks = True

    record, process = DadaoParameters, DadaoProcess
    choices = without_tau({"theory": DadaoParameters.theory})

    def position_of(self, parameters: DadaoParameters, sizes: NodeSizes, passes: float) -> float:
        # A computation goes through all samples of its node.
        counts = sizes.n_samples.astype(np.float64)
        return passes * float(counts.sum()) / float(parameters.node_probability @ counts)

    def effort(self, parameters: DadaoParameters, sizes: NodeSizes, network: Network) -> EventEffort:
        none = np.zeros(network.n_nodes, dtype=np.int64)
        return EventEffort(none, per_computation=np.asarray(sizes.n_samples, dtype=np.int64))
