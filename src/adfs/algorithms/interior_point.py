"""Interior points for losses with kinks: Mehrotra's method, every node summing what its own samples say.

The dual of such a loss is a quadratic program with bounds (`adfs.problem.piecewise`), one or two pieces per
sample. A step solves σθ + Xᵀs = 0 and the conditions of the pieces together, which comes down to a matrix of
d × d numbers: the sum over the nodes of XᵀD⁻¹X, as in Newton's method.
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from adfs.algorithms.base import Setting, register_method
from adfs.algorithms.newton import HessianMethod, HessianRounds
from adfs.algorithms.round_process import Gossip
from adfs.compilation import kernel
from adfs.errors import InputError
from adfs.problem.evaluation import node_sums
from adfs.problem.piecewise import Walls, quadratic_pieces
from adfs.problem.samples import Rows, row_column, row_entry, row_span
from adfs.theory.baselines import InteriorPointParameters

_SHARE = 0.995  # of the way to the first bound met
_SHORTEST, _SMALLEST = 1e-10, 1e-200  # steps and distances below which rounding is all there is
_BEGUN, _STUCK = range(2)
_PASSES = 6  # over the rows per round, besides the products of the Hessian


@kernel
def fill_products(rows: Rows, vector: np.ndarray, out: np.ndarray) -> None:
    """Write x_jᵀv of each row, (N,)."""
    for j in range(out.size):
        start, stop = row_span(rows, j)
        total = 0.0
        for k in range(start, stop):
            total += row_entry(rows, j, k) * vector[row_column(rows, j, k)]
        out[j] = total


class InteriorPointProcess(HessianRounds):
    """Interior points in progress over a block of nodes, which all hold the same θ.

    Attributes
    ----------
    theta : ndarray of shape (d,)
    margins : ndarray of shape (N,)
        x_jᵀθ.
    walls : ndarray of shape (4, p, N)
        Of p pieces per sample; those that a sample does not have are at distance 1 without a force.
    state : ndarray of shape (2,)
        Whether the first round has begun; and whether rounding lets it go no further.
    """

    at_iterate = True

    def __init__(self, setting: Setting[InteriorPointParameters]) -> None:
        super().__init__(setting)
        problem = setting.problem
        pieces = quadratic_pieces(problem)
        if pieces is None:
            raise InputError(
                "method 'interior-point' is for losses made of lines and parabolas with bounded slopes "
                f"(hinge, absolute, quantile …), and {problem.loss_name!r} is not; use 'newton' or 'adfs'"
            )
        # An entry for each active row comes first, then one for the lower side of those with a kink at 0.
        first = int(np.count_nonzero(problem.active))
        shape = (1 if pieces.row.size == first else 2, problem.n_samples)
        side = (np.arange(pieces.row.size) >= first).astype(np.int64)

        def spread(values: np.ndarray) -> np.ndarray:
            out = np.zeros(shape)
            out[side, pieces.row] = values
            return out

        self.present = spread(np.ones(pieces.row.size)) > 0.0
        self.slope, self.curvature = spread(pieces.slope), spread(pieces.curvature)
        self.low, self.high = spread(pieces.low), spread(pieces.high)
        half = np.where(self.present, 0.5 * (self.high - self.low), 1.0)
        self.theta, self.margins = np.zeros(problem.n_features), np.zeros(problem.n_samples)
        self.walls = np.stack([half, half, np.zeros(shape), np.zeros(shape)])
        self.state = np.zeros(2)
        self._given: np.ndarray | None = None

    def place(self, duals: np.ndarray, centers: np.ndarray) -> bool:
        # They may be good enough; if not, the first round starts anew, as far from all bounds as it can.
        self._given = duals.copy()
        self.theta[:] = centers[0] / self.problem.sigma[0]
        return True

    def primal(self, read: str = "x") -> np.ndarray:
        return np.tile(self.theta, (self.problem.n_nodes, 1))

    def dual(self) -> np.ndarray | None:
        if self._given is not None:
            return self._given.copy()
        return np.asarray(self._duals().sum(axis=0))

    def arrays(self) -> dict[str, np.ndarray]:
        return {"theta": self.theta, "margins": self.margins, "walls": self.walls, "state": self.state}

    @property
    def stuck(self) -> bool:
        return bool(self.state[_STUCK])

    def _duals(self) -> np.ndarray:
        """Return the tip of each piece, from the end it is nearer to."""
        below, above = self.walls[:2]
        nearer = np.where(below < above, self.low + below, self.high - above)
        return np.where(self.present, nearer, 0.0)

    def round(self, gossip: Gossip) -> None:
        if not self.state[_BEGUN]:
            self.state[_BEGUN] = 1.0
            self._given, self.theta[:] = None, 0.0
            steepest = -gossip.least(-float(np.abs(self.slope).max(initial=0.0)))
            self.walls[2:, self.present] = 1.0 + steepest
        if not self.stuck:
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # where only rounding is left
                self._step(gossip)
        self.position += 1.0

    def _step(self, gossip: Gossip) -> None:
        """Go towards where all conditions are met: as if there were no bounds, then with what that says."""
        at, s, present = Walls(*self.walls), self._duals(), self.present
        stationary = self.slope + self.curvature * s - self.margins - at.to_low + at.to_high
        stiffness = self.curvature + at.to_low / at.below + at.to_high / at.above
        inverse = np.where(present, 1.0 / np.where(present, stiffness, 1.0), 0.0)
        hessian, d = self._hessian(gossip, inverse.sum(axis=0)), self.theta.size
        self._count_sum(d * (d + 1) // 2, 0)
        own = self.problem.row_sums(s.sum(axis=0)) + self.problem.sigma[:, None] * self.mask * self.theta
        counts = present.sum(axis=0).astype(np.float64)
        *tied, total, count = self._sum(gossip, own, at.products().sum(axis=0), counts)
        mean = total / max(2.0 * count, 1.0)

        def toward(low: np.ndarray, high: np.ndarray) -> tuple[Walls, np.ndarray, np.ndarray]:
            """Return the direction in which forces become ``low`` and ``high``, those of θ and of margins."""
            right = -stationary + low - at.to_low - high + at.to_high
            pull = self._sum(gossip, self.problem.row_sums((inverse * right).sum(axis=0)))
            turn = self._solved(gossip, hessian, np.asarray(tied) + pull)
            along = np.empty_like(self.margins)
            fill_products(self.samples.rows, turn, along)
            move = inverse * (right + along)
            d_low = low - at.to_low - at.to_low / at.below * move
            d_high = high - at.to_high + at.to_high / at.above * move
            return (
                Walls(move, -move, np.where(present, d_low, 0.0), np.where(present, d_high, 0.0)),
                turn,
                along,
            )

        guess, _, _ = toward(np.zeros_like(s), np.zeros_like(s))
        ahead = at.along(guess, self._longest(gossip, at, guess))
        (left,) = self._sum(gossip, np.empty((self.problem.n_nodes, 0)), ahead.products().sum(axis=0))
        target = mean * (left / total) ** 3 if total > 0.0 else 0.0
        direction, turn, along = toward(
            (target - guess.below * guess.to_low) / at.below,
            (target - guess.above * guess.to_high) / at.above,
        )
        size = _SHARE * self._longest(gossip, at, direction)
        after = at.along(direction, size)
        smallest = gossip.least(min(float(part.min(where=present, initial=np.inf)) for part in after))
        self.work = self.work._replace(computations=self.work.computations + _PASSES * self.problem.n_samples)
        if not (size > _SHORTEST and smallest > _SMALLEST and np.isfinite(turn).all()):
            self.state[_STUCK] = 1.0
            return
        self.walls[:] = after
        self.theta += size * turn
        self.margins += size * along

    def _sum(self, gossip: Gossip, vectors: np.ndarray, *numbers: np.ndarray) -> np.ndarray:
        """Return sums over all nodes of one vector per node (k, d) and of numbers per sample (N,)."""
        columns = [node_sums(each, self.problem.node_starts) for each in numbers]
        values = np.column_stack([vectors, *columns])
        self._count_sum(values.shape[1], values.shape[1])
        return np.asarray(gossip.total(np.ascontiguousarray(values)))

    def _longest(self, gossip: Gossip, at: Walls, direction: Walls) -> float:
        """Return how far one may go along a direction before a part vanishes, at most 1."""
        self._count_sum(1, 1)
        return gossip.least(at.longest_step(direction))


class InteriorPoint(HessianMethod[InteriorPointParameters]):
    """Interior points: Mehrotra's predictor and corrector on the dual, for kinked losses and few features.

    Problem
        min_θ F(θ) with a loss whose conjugate is a line or a parabola on each side of 0, between two ends:
        hinge, absolute, quantile, ε-insensitive, and their smoothed forms.
    Algorithm
        s is kept strictly between its ends; every step is one of Newton's on the conditions of the optimum,
        in which what should vanish is a third power of what a step without bounds would leave.
    Guarantee
        s is feasible at every step, so every step has a certificate; 15 to 40 steps are what is seen,
        whatever the units of features.

    References
    ----------
        Mehrotra, "On the implementation of a primal-dual interior point method", 1992.
    """

    name = "interior-point"
    smooth_only = False

    record, process = InteriorPointParameters, InteriorPointProcess
    choices = MappingProxyType(
        {"theory": lambda problem, network, tau: InteriorPointParameters.theory(problem, network)}
    )


register_method(InteriorPoint())
