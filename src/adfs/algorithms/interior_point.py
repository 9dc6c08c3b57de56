"""Interior points for losses with kinks: Mehrotra's method, every node summing over its own samples.

The dual minimises Σ w ℓ*(s_j/w) + ‖Σ s_j x_j‖²/(2σ), σ = Σ σ_i. Losses with kinks have conjugates that are a
line or a parabola on each side of 0 inside an interval, which makes it a quadratic program with bounds:
cᵀs + sᵀBs/2 + ‖Xᵀs‖²/(2σ) over low ≤ s ≤ high, with the slopes c and the curvatures B, diagonal.
A step solves σθ + Xᵀs = 0 and the conditions of the pieces together, which comes down to a matrix of d × d
numbers: the sum over the nodes of XᵀD⁻¹X, as in Newton's method.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from adfs.algorithms.base import Setting
from adfs.algorithms.newton import HessianMethod, HessianRounds
from adfs.algorithms.round_process import Gossip
from adfs.compilation import compiled
from adfs.problem import FiniteSum
from adfs.problem.evaluation import bare_margins, loss_domains, node_sums
from adfs.problem.losses import Loss, conjugate
from adfs.problem.samples import Labels, label_at, label_rows
from adfs.theory import Facts, NoParameters

_SHARE = 0.995  # of the way to the first bound that a step meets
_SHORTEST, _SMALLEST = 1e-10, 1e-200  # steps and distances below which only rounding is left
_BEGUN, _EXHAUSTED = range(2)


class Pieces(NamedTuple):
    """The pieces on which the conjugates wℓ*(·/w) are slope·s + curvature·s²/2 + constant, one entry each.

    ``row`` is the sample, ``low`` and ``high`` are the ends of the piece.
    """

    row: np.ndarray
    slope: np.ndarray
    curvature: np.ndarray
    low: np.ndarray
    high: np.ndarray


@compiled
def _conjugates(loss: Loss, s: np.ndarray, y: Labels) -> np.ndarray:
    """Return ℓ* of each sample, (N,)."""
    out = np.empty(s.size)
    for j in range(s.size):
        out[j] = conjugate(loss, s[j], label_at(y, j))
    return out


def quadratic_pieces(problem: FiniteSum) -> Pieces | None:
    """Return the pieces of conjugates that are a parabola or a line on each side of 0; None for others.

    A conjugate with a kink at 0 has two pieces. Its minimiser needs at most one of them away from 0.
    """
    if not problem.linear or problem.n_outputs > 1:
        return None
    # Constant terms have no dual variable.
    rows = np.flatnonzero(problem.active)
    y, weights = label_rows(problem.samples.y, rows), problem.samples.weights[rows]
    loss = problem.samples.loss
    low, high = loss_domains(loss, y, rows.size)
    if not np.all(np.isfinite(low) & np.isfinite(high) & (low <= 0.0) & (high >= 0.0)):
        return None
    left, right = _fit_side(loss, y, low), _fit_side(loss, y, high)
    if left is None or right is None:
        return None
    # A kink at 0 shows in different slopes or curvatures on its two sides.
    slopes, curvatures = np.array([left[0], right[0]]), np.array([left[1], right[1]]) / weights
    rounding = 1e-12 * (1.0 + np.abs(slopes).sum(axis=0))
    differ = (np.abs(slopes[1] - slopes[0]) > rounding) | (np.abs(curvatures[1] - curvatures[0]) > rounding)
    kinked = differ & (low < 0.0) & (high > 0.0)
    # An entry per sample, fitted on the upper side unless it has none; another for the lower side of a kink.
    side = (high > 0.0).astype(np.int64)
    every = np.arange(rows.size)
    low, high = weights * low, weights * high
    return Pieces(
        np.append(rows, rows[kinked]),
        np.append(slopes[side, every], slopes[0, kinked]),
        np.append(curvatures[side, every], curvatures[0, kinked]),
        np.append(np.where(kinked, 0.0, low), low[kinked]),
        np.append(high, np.zeros(int(kinked.sum()))),
    )


def _fit_side(loss: Loss, y: Labels, end: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the slope at 0 and the curvature of ℓ* between 0 and ``end``, or None when it is no parabola."""
    # Second differences of four equidistant values give the curvature; a third difference refutes it.
    points = [_conjugates(loss, share * end, y) for share in (0.25, 0.5, 0.75, 1.0)]
    length = np.where(end == 0.0, 1.0, end)
    rounding = 1e-14 * (sum(np.abs(point) for point in points) + np.abs(end))
    second = points[0] - 2.0 * points[1] + points[2]
    second = np.where(np.abs(second) > rounding, second, 0.0)
    third = points[3] - 3.0 * points[2] + 3.0 * points[1] - points[0]
    if not np.all(np.abs(third) <= 8.0 * rounding):
        return None
    curvature = second / (0.25 * length) ** 2
    return (points[2] - points[0]) / (0.5 * length) - 0.5 * curvature * length, curvature


class Walls(NamedTuple):
    """Distances s − low and high − s, and the multipliers ("forces") of the two bounds.

    The distances are variables of their own: computed from s they would lose their digits near a bound.
    """

    below: np.ndarray
    above: np.ndarray
    to_low: np.ndarray
    to_high: np.ndarray

    def products(self) -> np.ndarray:
        """Return distance times multiplier, summed over the two bounds of each piece: 0 at the optimum."""
        return np.asarray(self.below * self.to_low + self.above * self.to_high)

    def along(self, direction: Walls, size: float) -> Walls:
        """Return where a step in a direction ends."""
        return Walls(*(part + size * change for part, change in zip(self, direction, strict=True)))

    def longest_step(self, direction: Walls) -> float:
        """Return the longest step along a direction, at most 1, until a distance or multiplier is 0."""
        size = 1.0
        for part, change in zip(self, direction, strict=True):
            shrinking = change < 0.0
            if shrinking.any():
                size = min(size, float(np.min(-part[shrinking] / change[shrinking])))
        return size


class InteriorPointProcess(HessianRounds):
    """Interior points in progress over a block of nodes, which all hold the same θ.

    Attributes
    ----------
    theta : ndarray of shape (d,)
    margins : ndarray of shape (N,)
        x_jᵀθ.
    walls : ndarray of shape (4, p, N)
        `Walls` of p pieces per sample; pieces that a sample does not have are at distance 1, multiplier 0.
    state : ndarray of shape (2,)
        Whether the first round has begun; whether rounding prevents any further progress.
    """

    certify_iterate = True
    passes_per_round = 6  # over the rows, besides the products of the Hessian

    def __init__(self, setting: Setting[NoParameters]) -> None:
        super().__init__(setting)
        problem, pieces = setting.problem, quadratic_pieces(setting.problem)
        assert pieces is not None, "`check` has refused other losses"
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
        # Start in the middle between the bounds, at θ = 0.
        half = np.where(self.present, 0.5 * (self.high - self.low), 1.0)
        self.ridge = np.asarray(problem.sigma[:, None] * problem.ridge_mask)
        self.theta, self.margins = np.zeros(problem.n_features), np.zeros(problem.n_samples)
        self.walls = np.stack([half, half, np.zeros(shape), np.zeros(shape)])
        self.state = np.zeros(2)
        self._given: np.ndarray | None = None

    def place(self, duals: np.ndarray, centers: np.ndarray) -> bool:
        # These duals may be good enough. If they are not, the first round starts anew between the bounds:
        # from a point at the bounds, steps would be too short.
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
    def exhausted(self) -> bool:
        return bool(self.state[_EXHAUSTED])

    def _duals(self) -> np.ndarray:
        """Return the dual variable of each piece, computed from the bound that is nearer."""
        below, above = self.walls[:2]
        nearer = np.where(below < above, self.low + below, self.high - above)
        return np.where(self.present, nearer, 0.0)

    def round(self, gossip: Gossip) -> None:
        if not self.state[_BEGUN]:
            self.state[_BEGUN] = 1.0
            self._given, self.theta[:] = None, 0.0
            # The same first multipliers everywhere, of the size of the steepest slope of all nodes.
            steepest = -gossip.least(-float(np.abs(self.slope).max(initial=0.0)))
            self.walls[2:, self.present] = 1.0 + steepest
        if not self.exhausted:
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # where only rounding is left
                self._step(gossip)
        self.position += 1.0

    def _step(self, gossip: Gossip) -> None:
        """Do Mehrotra's two solves: a predictor without a barrier, then the step that corrects it."""
        at, s, present = Walls(*self.walls), self._duals(), self.present
        # Eliminating the distances and multipliers leaves a diagonal system for s, and eliminating s leaves
        # the matrix σI + XᵀD⁻¹X for θ, with D the stiffness of the pieces.
        stationary = self.slope + self.curvature * s - self.margins - at.to_low + at.to_high
        stiffness = self.curvature + at.to_low / at.below + at.to_high / at.above
        inverse = np.where(present, 1.0 / np.where(present, stiffness, 1.0), 0.0)
        hessian, d = self.sum_hessian(gossip, inverse.sum(axis=0)), self.theta.size
        self.count_sum(d * (d + 1) // 2, 0)
        # The residual of σθ + Xᵀs = 0, and the mean of distance times multiplier over all nodes.
        own = self.problem.row_sums(s.sum(axis=0)) + self.ridge * self.theta
        counts = present.sum(axis=0).astype(np.float64)
        *tied, total, count = self._sum(gossip, own, at.products().sum(axis=0), counts)
        mean = total / max(2.0 * count, 1.0)

        def toward(low: np.ndarray, high: np.ndarray) -> tuple[Walls, np.ndarray, np.ndarray]:
            """Return the directions of the walls, of θ and of the margins for given new multipliers."""
            right = -stationary + low - at.to_low - high + at.to_high
            pull = self._sum(gossip, self.problem.row_sums((inverse * right).sum(axis=0)))
            turn = self.solve(gossip, hessian, np.asarray(tied) + pull)
            along = bare_margins(self.samples, turn)[:, 0]
            move = inverse * (right + along)
            d_low = low - at.to_low - at.to_low / at.below * move
            d_high = high - at.to_high + at.to_high / at.above * move
            return (
                Walls(move, -move, np.where(present, d_low, 0.0), np.where(present, d_high, 0.0)),
                turn,
                along,
            )

        # The predictor shows how much of the products a step without a barrier would leave; the third power
        # of that share is the target of the corrector, which also takes the predictor's second-order terms.
        guess, _, _ = toward(np.zeros_like(s), np.zeros_like(s))
        ahead = at.along(guess, self._longest(gossip, at, guess))
        (left,) = self._sum(gossip, np.empty((self.problem.n_nodes, 0)), ahead.products().sum(axis=0))
        target = mean * (left / total) ** 3 if total > 0.0 else 0.0
        direction, turn, along = toward(
            (target - guess.below * guess.to_low) / at.below,
            (target - guess.above * guess.to_high) / at.above,
        )
        # Stay strictly inside the bounds.
        size = _SHARE * self._longest(gossip, at, direction)
        after = at.along(direction, size)
        smallest = gossip.least(min(float(part.min(where=present, initial=np.inf)) for part in after))
        computations = self.work.computations + self.passes_per_round * self.problem.n_samples
        self.work = self.work._replace(computations=computations)
        if not (size > _SHORTEST and smallest > _SMALLEST and np.isfinite(turn).all()):
            self.state[_EXHAUSTED] = 1.0
            return
        self.walls[:] = after
        self.theta += size * turn
        self.margins += size * along

    def _sum(self, gossip: Gossip, vectors: np.ndarray, *numbers: np.ndarray) -> np.ndarray:
        """Return sums over all nodes of one vector per node (k, d) and of numbers per sample (N,)."""
        columns = [node_sums(each, self.problem.node_starts) for each in numbers]
        values = np.column_stack([vectors, *columns])
        self.count_sum(values.shape[1], values.shape[1])
        return np.asarray(gossip.total(np.ascontiguousarray(values)))

    def _longest(self, gossip: Gossip, at: Walls, direction: Walls) -> float:
        """Return the longest step along a direction that all nodes permit, at most 1."""
        self.count_sum(1, 1)
        return gossip.least(at.longest_step(direction))


class InteriorPoint(HessianMethod):
    """Interior points: Mehrotra's predictor and corrector on the dual, for kinked losses and few features.

    Problem
        min_θ F(θ) with a loss whose conjugate is a line or a parabola on each side of 0, between two ends:
        hinge, absolute, quantile, ε-insensitive, and their smoothed forms.
    Algorithm
        s is kept strictly between its ends; every step is one of Newton's on the conditions of the optimum,
        whose barrier shrinks with the third power of what a step without a barrier would leave.
    Guarantee
        s is feasible at every step, so every step has a certificate; 15 to 40 steps are usual, whatever the
        units of features.

    References
    ----------
        Mehrotra, "On the implementation of a primal-dual interior point method", 1992.
    """

    name = "interior-point"
    label = "Interior point"
    needs_smooth = False
    reference_order = 2

    # The sums are those of the matrix, two solutions and two step lengths.
    sums_per_round = 5
    passes_per_round = InteriorPointProcess.passes_per_round
    # A pass goes once through the d entries of a row.
    effort_per_pass = 0.5

    process = InteriorPointProcess

    def rounds_to(self, tol: float, facts: Facts) -> float:
        # A few, then seven for four digits.
        return 3.5 + 1.75 * math.log10(1.0 / tol)

    def obstacle(self, problem: FiniteSum) -> str:
        trouble = super().obstacle(problem)
        if trouble or quadratic_pieces(problem) is not None:
            return trouble
        return (
            "is for losses made of lines and parabolas with bounded slopes (hinge, absolute, quantile …) "
            f"and {problem.loss.name!r} is not"
        )
