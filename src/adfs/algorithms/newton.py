"""Newton's method: Hessians and gradients summed over the nodes, steps shortened where F asks for it."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property, partial
from typing import ClassVar

import numpy as np
import scipy.sparse as sp
from scipy.linalg import lapack

from adfs.algorithms.base import Method, Setting
from adfs.algorithms.costs import Cost, RoundEffort, gradient_work, matrix_work
from adfs.algorithms.hessians import (
    OutputCurvatures,
    fill_hessian,
    hessian_bands,
)
from adfs.algorithms.lbfgs import FEW_TRIALS, DescentProcess
from adfs.algorithms.round_process import Gossip, RoundProcess
from adfs.network import Network
from adfs.problem import FiniteSum, get_loss
from adfs.problem.evaluation import bare_margins, loss_curvatures, loss_slopes
from adfs.problem.samples import Rows, rows_of, sparse
from adfs.theory import Facts, NodeSizes, NoParameters, tree_depth
from adfs.threads import single_threaded

_BAND_NUMBERS = 2**22  # in the bands of all nodes' Hessians that are summed at once
_FIRST_RIDGE = 1e-14  # relative to a diagonal of ones; a hundred times more after each failure
WORKING_SET = 100  # columns that may enter a step with an ℓ1 term, or as many as θ has non-zero entries
_SQUARED = get_loss("squared")


@single_threaded
def newton_move(hessian: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Return −H⁻¹∇F from the upper triangle of H (d, d), whatever the units of the features; shape (d,).

    H is scaled to a diagonal of ones, which no choice of units changes. Where it is not positive definite to
    rounding, a small multiple of the identity is added: the step is then shorter, and the next one goes on.
    """
    # Columns without curvature keep their units.
    diagonal = np.diagonal(hessian)
    scale = 1.0 / np.sqrt(np.where(diagonal > 0.0, diagonal, 1.0))
    scaled = scale[:, None] * hessian * scale
    ridge = 0.0
    while ridge <= 1.0:
        ridged = scaled + ridge * np.eye(gradient.size) if ridge > 0.0 else scaled
        factor, failed = lapack.dpotrf(ridged, lower=0, clean=0)
        if not failed:
            solved, _ = lapack.dpotrs(factor, scale * gradient, lower=0)
            return np.asarray(-scale * solved)
        ridge = max(_FIRST_RIDGE, 100.0 * ridge)
    # No ridge helps where entries are not finite: a scaled gradient step.
    return np.asarray(-scale * scale * gradient)


class HessianRounds(RoundProcess):
    """Rounds in which a matrix of d × d numbers is summed over the nodes, and one process solves with it.

    ``ridge`` (k, d) has σ_i in every column, 0 in columns without a penalty.
    """

    ridge: np.ndarray

    def __init__(self, setting: Setting[NoParameters]) -> None:
        super().__init__(setting)
        # The process of node 0 solves for all: the last digits of another machine may differ.
        self.leader = int(np.argmin(setting.block)) if setting.block.min() == 0 else None
        self._most_numbers = _BAND_NUMBERS // setting.network.n_nodes

    def sum_hessian(
        self,
        gossip: Gossip,
        curvatures: np.ndarray,
        columns: np.ndarray | None = None,
        height: int | None = None,
    ) -> np.ndarray:
        """Return the upper triangle of Σ_i (σ_iI + Σ_j c_j x_j x_jᵀ), (d, d), where node 0 is.

        ``curvatures`` (N,) are the c_j; with several outputs they are D and o of `OutputCurvatures`, (2, N,
        K). With ``columns`` (d,) only these entries of θ count, in this order; with ``height`` the first so
        many rows of the matrix are returned.
        """
        rows, ridge, k = self.samples.rows, self.ridge, self.problem.n_nodes
        own: np.ndarray | OutputCurvatures = curvatures
        # θ is laid out output by output: entry k belongs to column k mod p of the rows.
        if curvatures.ndim == 3:
            assert columns is not None
            outputs = columns // self.problem.X.shape[1]
            own = OutputCurvatures(curvatures[0], curvatures[1], outputs, np.empty(columns.size))
        if columns is not None:
            rows = self._column_rows(columns % self.problem.X.shape[1])
            ridge = np.take(ridge, columns, axis=1)  # in the same memory order, for the same kernel
        d = ridge.shape[1]
        height = d if height is None else height
        hessian = np.zeros((height, d) if self.leader is not None else (0, 0))
        # One band of rows after another, so that the Hessians of many nodes need not fit in memory.
        for first, end in hessian_bands(d, max(d, self._most_numbers)):
            last = min(end, height)
            if first >= last:
                break
            out = np.empty((k, (last - first) * (2 * d - first - last + 1) // 2))
            band = np.empty((last - first, d))
            fill_hessian(rows, self.samples.node_starts, ridge, own, first, last, band, out)
            total = gossip.total(out)
            if self.leader is not None:
                hessian[first:last][np.arange(d) >= np.arange(first, last)[:, None]] = total
        return hessian

    @cached_property
    def by_column(self) -> sp.csr_array:
        """The samples by columns, (p, N)."""
        return sp.csr_array(self.problem.X.T)

    def _column_rows(self, columns: np.ndarray) -> Rows:
        """Return some columns of the rows, (k,), in the order given; all in their order are not copied."""
        X, width = self.problem.X, self.problem.X.shape[1]
        if np.array_equal(columns, np.arange(width)):
            return rows_of(X)
        if not sparse(X):
            return rows_of(np.take(X, columns, axis=1))
        # A few columns are taken without going through all rows.
        chosen = X[:, columns] if 10 * columns.size > width else sp.csr_array(self.by_column[columns].T)
        chosen.sort_indices()
        return rows_of(chosen)

    def send(self, gossip: Gossip, size: int, compute: Callable[[], np.ndarray]) -> np.ndarray:
        """Return numbers (size,) in every process, which the process of node 0 computes."""
        # A sum in which all other rows are 0 sends them to all processes.
        numbers = np.zeros((self.problem.n_nodes, size))
        if self.leader is not None:
            numbers[self.leader] = compute()
        return np.asarray(gossip.total(numbers))

    def solve(self, gossip: Gossip, hessian: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return −H⁻¹·gradient in every process, (d,)."""
        return self.send(gossip, gradient.size, partial(newton_move, hessian, gradient))


class NewtonProcess(DescentProcess, HessianRounds):
    """Newton's method in progress over a block of nodes, which all hold the same iterate."""

    quasi_newton = False

    def step(self, gossip: Gossip, first: bool) -> None:
        beta, curvatures = float(self.samples.loss.beta), self.curvatures()
        if not math.isfinite(beta):
            found = self.search(gossip, self.direction(gossip, curvatures))
        else:
            found = self.search(gossip, self.direction(gossip, curvatures), FEW_TRIALS)
            # Where the curvature of few samples is not 0, Newton's step can be far too long.
            found = found or self.search(gossip, self.direction(gossip, self._safe_curvatures(beta)))
        if not found:
            self.stop()

    def curvatures(self) -> np.ndarray:
        """Return the curvatures wℓ'' of the samples at θ, (N,): one pass, little beside the Hessian.

        With several outputs they are those of `OutputCurvatures`, (2, N, K).
        """
        samples = self.samples
        if samples.loss.several_outputs:
            slopes = loss_slopes(samples, self.point)
            return samples.loss.curvature_parts(slopes, self.problem.y, samples.weights)
        return np.asarray(samples.weights * loss_curvatures(samples.loss, self.margins(), samples.y))

    def margins(self) -> np.ndarray:
        """Return the margins x_jᵀθ without their offsets, (N,), or (N, K)."""
        return self.margins_at(self.point)

    def margins_at(self, point: np.ndarray) -> np.ndarray:
        """Return the margins at another point."""
        out = bare_margins(self.samples, point)
        return out if self.samples.loss.several_outputs else out[:, 0]

    def _safe_curvatures(self, beta: float) -> np.ndarray:
        """Return the curvatures (N,) of parabolas that touch the losses at θ and lie above them.

        With them no step is too long. For a loss of residuals r they are ℓ'(r)/r, as in iterated least
        squares; for others β, which is never less.
        """
        samples = self.samples
        widest = beta * samples.weights
        if samples.loss.several_outputs:
            # No second derivative exceeds β times the identity.
            diagonals = np.repeat(widest[:, None], self.problem.n_outputs, axis=1)
            return np.stack([diagonals, np.zeros_like(diagonals)])
        if not samples.loss.translates:
            return widest
        # The slope of the squared loss is the residual, whatever the form of the labels.
        slopes = loss_slopes(samples, self.point).ravel()
        residuals = loss_slopes(samples._replace(loss=_SQUARED), self.point).ravel()
        ratio = np.divide(slopes, residuals, out=np.full_like(slopes, beta), where=residuals != 0.0)
        return np.asarray(np.clip(samples.weights * ratio, 0.0, widest))

    def direction(self, gossip: Gossip, curvatures: np.ndarray) -> np.ndarray:
        """Return −H⁻¹∇F for the Hessian with these curvatures of the samples, (d,)."""
        d = self.point.size
        # F and ∇F go up the tree along with the Hessian at the same point.
        self.count_sum(d * (d + 1) // 2 + d + 1, d)
        return self.solve(gossip, self.sum_hessian(gossip, curvatures), self.gradient)


class HessianMethod(Method[NoParameters]):
    """A method in rounds that sum a matrix of d × d numbers over the nodes.

    Attributes
    ----------
    sums_per_round : int
        Sums over all nodes, one after another. (A rejected step takes another one, which is not counted.)
    passes_per_round, effort_per_pass : float
        How often a round goes through the rows, apart from the matrix, and what a row costs each time.
    """

    kind: ClassVar[str] = "rounds"
    needs_sums = True
    invariant_to_units = True
    primal = True
    unpenalised_columns = True
    warm_starts = True
    checks_every_round = True
    most_features = 5000
    sums_per_round: ClassVar[int] = 1
    passes_per_round: ClassVar[float] = 1.0
    effort_per_pass: ClassVar[float] = 1.0

    @abstractmethod
    def rounds_to(self, tol: float, facts: Facts) -> float:
        """Return the expected number of rounds to a relative error."""

    def cost(self, facts: Facts, network: Network, tol: float, tau: float = 1.0) -> Cost:
        # One Newton step solves a quadratic problem; with an ℓ1 term the working set takes some to find.
        constant = facts.curvature_type == "constant"
        rounds = 1.0 if constant and not facts.l1 else self.rounds_to(tol, facts)
        width = min(facts.n_features, WORKING_SET) if facts.l1 else facts.n_features
        matrices = (1.0 if constant else rounds) * matrix_work(facts, network.n_nodes, width)
        passes = rounds * self.passes_per_round
        work = passes * facts.n_samples * gradient_work(facts) + matrices
        return Cost(rounds, passes, work, rounds * 2.0 * (network.n_nodes - 1))

    def position_of(self, parameters: NoParameters, sizes: NodeSizes, passes: float) -> float:
        return passes / self.passes_per_round

    def effort(self, parameters: NoParameters, sizes: NodeSizes, network: Network) -> RoundEffort:
        # A sample's step goes through d entries twice; the d(d + 1)/2 products of a row cost (d + 1)/2.
        row = 0.5 * (sizes.n_features + 1.0) + self.effort_per_pass * self.passes_per_round
        samples = np.ceil(row * sizes.n_samples).astype(np.int64)
        return RoundEffort(samples, exchanges=0, hops=2 * self.sums_per_round * tree_depth(network))


class Newton(HessianMethod):
    """Newton: damped Newton steps, every node summing the Hessian of its own samples.

    Problem
        min_θ F(θ), twice differentiable (or with a derivative made of lines), strongly convex; or with an ℓ1
        term, and then any number of features and no need of an ℓ2 term (the lasso).
    Algorithm
        θ ← θ − t·H⁻¹∇F, t = 1 or what a line search on F finds; H is scaled to a diagonal of ones. With an ℓ1
        term a step minimises the quadratic model plus that term over a working set of columns.
    Guarantee
        F decreases at every step, to rounding; near the optimum the digits double. Units of features do not
        matter.

    References
    ----------
        Yuan, Ho and Lin, "An improved GLMNET for l1-regularized logistic regression", 2012.
    """

    name = "newton"
    label = "Newton"
    unbounded_curvature = True
    several_outputs = True
    l1 = True
    needs_ridge = False
    reference_order = 1

    process = NewtonProcess

    def can_solve(self, facts: Facts, n_nodes: int) -> bool:
        return (facts.n_outputs == 1 or facts.l1) and super().can_solve(facts, n_nodes)

    def obstacle(self, problem: FiniteSum) -> str:
        # L-BFGS is faster there.
        if problem.n_outputs > 1 and problem.l1 is None:
            return f"takes the loss {problem.loss.name!r} with an l1 term only"
        return super().obstacle(problem)

    def start(self, setting: Setting[NoParameters]) -> RoundProcess:
        # That module is made of parts of this one.
        from adfs.algorithms.proximal_newton import ProximalNewtonProcess

        return NewtonProcess(setting) if setting.problem.l1 is None else ProximalNewtonProcess(setting)

    def rounds_to(self, tol: float, facts: Facts) -> float:
        # Where losses are flat at the optimum, their second derivatives fall by about a factor of e per step
        # on the way there. Then the number of correct digits doubles.
        flat = 3.0 if facts.curvature is None else math.log(1.0 / facts.curvature)
        return flat + math.log2(1.0 + math.log(1.0 / tol))
