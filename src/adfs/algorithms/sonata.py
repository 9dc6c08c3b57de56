"""SONATA: every node minimises its own objective plus a model of the others', and accelerated SONATA."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np

from adfs.algorithms.base import Method, Options, Setting, Source, without_tau
from adfs.algorithms.chebyshev import chebyshev_coefficients, chebyshev_gossip
from adfs.algorithms.costs import RoundEffort
from adfs.algorithms.dual_gradient import dual_gradients, make_solver
from adfs.algorithms.gradient_methods import curvature_products
from adfs.algorithms.method_kernels import node_gradients
from adfs.algorithms.opapc import summarize_gossip
from adfs.algorithms.round_process import Gossip, RoundProcess
from adfs.errors import InputError
from adfs.network import Network
from adfs.problem import FiniteSum
from adfs.theory import NodeSizes
from adfs.theory.baselines import node_smoothness
from adfs.theory.records import ParameterRecord, shown
from adfs.threads import single_threaded

_MOST_NUMBERS = 1e7  # in the matrices of second derivatives of all nodes, from which β is computed
_POWER = 32  # of the norm that stands for a maximum over the nodes


@dataclass(frozen=True, eq=False)
class SonataParameters(ParameterRecord):
    """SONATA: μ is the mean of σ_i, β bounds ‖∇²f_i − ∇²F/n‖, and K Chebyshev rounds contract differences.

    The plain form has K = ⌊1/√γ⌋ and ``contraction`` ½ min(μ/(μ + 2β), 1 − the contraction of K rounds). The
    accelerated form adds (β − μ)/2‖θ − z‖² for T = ⌈log(β/μ)⌉ rounds and then moves z with the momentum of
    √(μ/β). Its K is so large that K rounds contract to √(μ/β)/2 at least, and its ``contraction`` is
    √(μ/β)/(2T). With β ≤ μ both forms are the plain one.
    """

    _title: ClassVar[str] = "Parameters of SONATA"
    contraction: float = field(metadata=shown("contraction", ""))
    similarity: float = field(metadata=shown("similarity of the nodes", "β"))
    curvature: float = field(metadata=shown("strong convexity", "μ"))
    single: float = field(metadata=shown("contraction of a Chebyshev round", "c1"))
    rounds: int = field(metadata=shown("gossip rounds per exchange", "K"))
    added: float = field(metadata=shown("added curvature", "β − μ"))
    inner: int = field(metadata=shown("rounds per step of z", "T"))
    momentum: float = field(metadata=shown("momentum of z", ""))
    fewest: int = 1
    accelerated: bool = False

    @classmethod
    def theory(cls, problem: Source, network: Network, *, accelerated: bool = False) -> SonataParameters:
        """Return the constants for the β that bounds all problems, max M_i − min σ_i; see `Sonata.refine`."""
        summary, chebyshev = summarize_gossip("sonata", problem, network), chebyshev_coefficients(network)
        mu, single = float(summary.sigma.mean()), chebyshev.contraction
        beta = float(node_smoothness(summary).max() - summary.sigma.min())
        return cls._assemble(beta, mu, single, chebyshev.rounds, accelerated)

    def with_similarity(self, similarity: float) -> SonataParameters:
        """Return the constants for another β."""
        if not 0.0 <= similarity < math.inf:
            raise InputError(f"similarity must be finite and at least 0, got {similarity!r}")
        known = (self.curvature, self.single, self.fewest, self.accelerated)
        return self._assemble(float(similarity), *known)

    @classmethod
    def _assemble(
        cls, beta: float, mu: float, single: float, fewest: int, accelerated: bool
    ) -> SonataParameters:
        """Compute the constants from β, μ, c1 and the smallest K."""

        def mixing(k: int) -> float:
            return 2.0 * single**k / (1.0 + single ** (2 * k))

        rounds, added, inner, momentum, rate = fewest, 0.0, 1, 0.0, mu / (mu + 2.0 * beta)
        if accelerated and beta > mu:
            root, added = math.sqrt(mu / beta), beta - mu
            inner, momentum = math.ceil(math.log(beta / mu)), (1.0 - root) / (1.0 + root)
            rate = root / inner
            # Momentum carries on differences between the nodes, too: an exchange has to shrink them more.
            while mixing(rounds) > 0.5 * root:
                rounds += 1
        rate = 0.5 * min(rate, 1.0 - mixing(rounds))
        return cls(rate, beta, mu, single, rounds, added, inner, momentum, fewest, accelerated)


class SonataProcess(RoundProcess):
    """SONATA in progress over a block of nodes.

    Attributes
    ----------
    x, center, last : ndarray of shape (k, d)
        The iterate, z, and the iterate when z moved last.
    correction : ndarray of shape (k, d)
        ∇f_i(x_i) − y_i, with y the tracked mean of the gradients. Moves of z change both by the same vector.
    """

    def __init__(self, setting: Setting[SonataParameters]) -> None:
        super().__init__(setting, setting.network.laplacian())
        self.parameters = setting.parameters
        known = chebyshev_coefficients(setting.network)
        self.chebyshev = dataclasses.replace(known, rounds=self.parameters.rounds)
        self.x, self.center, self.last, self.correction = (np.zeros(self.message_shape) for _ in range(4))
        # A solve and a gradient both go through all samples.
        self.samples_per_round *= 2
        self.solver = make_solver(setting.problem)
        self.local_curvature = self.problem.sigma + (self.parameters.similarity + self.parameters.added)

    def round(self, gossip: Gossip) -> None:
        p, x = self.parameters, self.x
        # The minimiser of f_i(θ) + ⟨y − ∇f_i(x), θ⟩ + (β/2)‖θ − x‖² + (added/2)‖θ − z‖².
        self.solver.wanted[...] = self.correction + p.similarity * x + p.added * self.center
        dual_gradients(self.samples, self.local_curvature, self.solver)
        x[...] = self.solver.theta - chebyshev_gossip(gossip, self.solver.theta, self.chebyshev)
        # The tracked mean of the gradients follows: y + ∇f(x⁺) − ∇f(x), mixed.
        gradient = np.empty(self.message_shape)
        node_gradients(self.samples, self.problem.sigma, x, gradient)
        gradient += p.added * (x - self.center)
        # The correction is ∇f(x) − y, so that it changes by what gossip takes from y + ∇f(x⁺) − ∇f(x).
        self.correction += chebyshev_gossip(gossip, gradient - self.correction, self.chebyshev)
        self.position += 1.0
        self.count(1, 2 * p.rounds)
        if p.added > 0.0 and int(self.position) % p.inner == 0:
            self.center[...] = x + p.momentum * (x - self.last)
            self.last[...] = x

    def primal(self, read: str = "x") -> np.ndarray:
        return self.x.copy()

    def arrays(self) -> dict[str, np.ndarray]:
        names = ("x", "center", "last", "correction")
        solved = {"theta": self.solver.theta, "solved": self.solver.solved}
        return {name: getattr(self, name) for name in names} | solved


class Sonata(Method[SonataParameters]):
    """SONATA: it benefits when the shards are alike.

    Problem
        min_θ Σ_i f_i(θ), each f_i smooth and strongly convex, the second derivatives alike up to β.
    Algorithm
        v_i = argmin f_i + ⟨y_i − ∇f_i(x_i), ·⟩ + (β/2)‖· − x_i‖²; x⁺ = Pv; y⁺ = P(y + ∇f(x⁺) − ∇f(x)), P the
        mean by K Chebyshev rounds. ``parameters="accelerated"`` adds (β − μ)/2‖· − z_i‖² and moves z after
        every T rounds: z = x + ((1 − a)/(1 + a))(x − x of the last move), a = √(μ/β).
    Guarantee
        With exact means F − F* shrinks by 1 − μ/(μ + 2β) per round, as F/n is strongly convex relative to
        f_i + (β/2)‖·‖². The papers prove O((β/μ) log(1/ε)) rounds for the plain form and, up to logarithms,
        √(β/μ) log(1/ε) for the accelerated one, if K is large enough, of order log(β/μ)/√γ.
        β is computed from the data with the loss's largest curvature at every sample, where all nodes
        together have at most 10⁷ second derivatives. That is exact for the squared loss and usual for others.
        The option ``similarity`` gives another β.

    References
    ----------
        Sun, Scutari, Daneshmand, "Distributed optimization based on gradient tracking revisited: enhancing
        convergence rate via surrogation", SIAM Journal on Optimization, 2022, arXiv 1905.02637.
        Tian, Scutari, Cao, Gasnikov, "Acceleration in distributed optimization under similarity",
        AISTATS 2022, arXiv 2110.12347.
    """

    name = "sonata"
    label = "SONATA"
    needs_network = True
    solves_locally = True
    observed_factor = 0.05
    kind = "rounds"
    baseline = True
    options = ("similarity",)

    record, process = SonataParameters, SonataProcess
    choices = without_tau(
        {
            "theory": SonataParameters.theory,
            "accelerated": partial(SonataParameters.theory, accelerated=True),
        }
    )

    @single_threaded
    def refine(
        self,
        parameters: SonataParameters,
        problem: FiniteSum,
        total: Callable[[np.ndarray], np.ndarray],
    ) -> SonataParameters:
        """Take the β of the nodes' own matrices βX_iᵀW_iX_i + σ_iI, if these are not too many numbers."""
        k, d = problem.n_nodes, problem.n_features
        n = float(total(np.ones((k, 1)))[0])
        if n * d * d > _MOST_NUMBERS:
            return parameters
        samples, own, column = problem.samples, np.empty((k, d, d)), np.empty((k, d))
        # One product with a unit vector gives a column of the matrices of all nodes.
        for j, unit in enumerate(np.eye(d)):
            curvature_products(samples, samples.loss.beta, unit, column)
            own[:, :, j] = column + problem.sigma[:, None] * unit
        mean = total(own.reshape(k, d * d)).reshape(d, d) / n
        sizes = np.array([[np.abs(np.linalg.eigvalsh(each - mean)).max()] for each in own])
        # Nodes can only add: this norm is at least the largest size, and at most n^(1/32) times that.
        scale = float(total(sizes)[0])
        largest = scale * float(total((sizes / scale) ** _POWER)[0]) ** (1.0 / _POWER) if scale > 0.0 else 0.0
        return parameters.with_similarity(min(largest, parameters.similarity))

    def adapt(self, parameters: SonataParameters, options: Options) -> SonataParameters:
        return parameters.with_similarity(options["similarity"]) if "similarity" in options else parameters

    def position_of(self, parameters: SonataParameters, sizes: NodeSizes, passes: float) -> float:
        # A round goes through the samples twice, for the solve and for the gradient.
        return 0.5 * passes

    def effort(self, parameters: SonataParameters, sizes: NodeSizes, network: Network) -> RoundEffort:
        return RoundEffort(2 * sizes.n_samples, exchanges=2 * parameters.rounds)
