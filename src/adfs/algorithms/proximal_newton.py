"""Newton's method with an ℓ1 term: quadratic models over working sets of columns, however many there are."""

from __future__ import annotations

import math

import numpy as np

from adfs.algorithms.base import Setting
from adfs.algorithms.coordinate_descent import minimise_model, minimise_on_rows, model_gap
from adfs.algorithms.lbfgs import LEAST, VALUE
from adfs.algorithms.newton import WORKING_SET, HessianMethod, NewtonProcess
from adfs.algorithms.round_process import Gossip
from adfs.compilation import compiled
from adfs.problem import Samples
from adfs.problem.evaluation import (
    inner_product,
    loss_curvatures,
    loss_derivatives,
    loss_slopes,
    sum_in_order,
)
from adfs.problem.gaps import DIVERGENCE, soft
from adfs.problem.losses import divergence
from adfs.problem.samples import label_at
from adfs.theory import NoParameters

_SHARE = 1e-3  # of the gap, and of the last decrease of F, to which a model is minimised
_SHARE_ON_ROWS = 0.1  # without a matrix, where the last digits of a model cost as much as the next model
_FIRST_DAMPING = 1e-3  # after a step that was too long; ten times more after the next one
_NEXT_LAMBDA = 0.1  # of the largest slope of a column that is 0: the λ of the next round
_GAP, _DECREASE, _LINEAR, _DAMPING, _LAMBDA = range(5)


@compiled
def divergence_sums(
    samples: Samples, active: np.ndarray, margins: np.ndarray, duals: np.ndarray
) -> np.ndarray:
    """Return each node's Σ wℓ(u) + wℓ*(s/w) − us at margins and dual variables (N,), shape (n,)."""
    out = np.zeros(samples.node_starts.size - 1)
    for i in range(out.size):
        for j in range(samples.node_starts[i], samples.node_starts[i + 1]):
            w = samples.weights[j]
            if active[j]:
                out[i] += w * divergence(samples.loss, margins[j], duals[j] / w, label_at(samples.y, j))
    return out


class ProximalNewtonProcess(NewtonProcess):
    """Newton's method with an ℓ1 term in progress over a block of nodes, which all hold the same iterate.

    The *working set* of a round has the columns where θ is not 0, and those whose slopes exceed λ most. Only
    its Hessian is summed. After a full step the slopes of the model, which are linear in the margins, are
    better dual variables than those of the losses: they satisfy |x_kᵀs| ≤ λ as well as the model is solved.
    One node alone needs no Hessian once its rows are smaller.

    The first rounds have a larger λ, as on the path of glmnet: few columns enter before θ is near enough for
    the model to tell which ones belong to the solution.

    Attributes
    ----------
    squares : ndarray of shape (d,)
        Σ w x_k² over all nodes.
    totals : ndarray of shape (2,)
        Σσ_i and Σλ_i over all nodes.
    before : ndarray of shape (d,)
        θ before the last step.
    entered : ndarray of shape (d,)
        When each column entered the Hessian that is kept where curvatures are constant, counted from 1; 0 for
        the columns that are not in it.
    prospects : ndarray of shape (5,)
        The expected gap, the last decrease of F, whether the dual variables are those of the model, how far
        the next model's curvatures are on the way from those of the losses to safe ones, and Σλ_i of the
        round.
    """

    def __init__(self, setting: Setting[NoParameters]) -> None:
        super().__init__(setting)
        d = self.problem.n_features
        self.squares, self.totals, self.before, self.entered = (
            np.zeros(d),
            np.zeros(2),
            np.zeros(d),
            np.zeros(d),
        )
        self.prospects = np.array([np.inf, np.inf, 0.0, 0.0, 0.0])
        self._constant = self.samples.loss.curvature_type == "constant"
        # What follows from the state: the Hessian of the columns in this order, margins, the model's slopes.
        self._order, self._hessian = np.zeros(0, dtype=np.int64), np.zeros((0, 0))
        self._margins: np.ndarray | None = None
        self._slopes: np.ndarray | None = None
        # The last direction, the gap of its model, and how many directions the round has tried.
        self._move, self._model_gap, self._tried = np.zeros(d), math.inf, 0
        # The columns of that model, and how many entries the samples have: sparse ones too.
        self._chosen = np.zeros(0, dtype=np.int64)
        alone = setting.network.n_nodes == 1 and not self.samples.loss.several_outputs
        self._entries = self.problem.X.size if alone else math.inf

    def arrays(self) -> dict[str, np.ndarray]:
        names = ("squares", "totals", "before", "entered", "prospects")
        return super().arrays() | {name: getattr(self, name) for name in names}

    @property
    def _columns(self) -> np.ndarray:
        columns = self.problem.l1_columns
        assert columns is not None
        return columns

    @property
    def _penalties(self) -> tuple[np.ndarray, np.ndarray]:
        """λ of the round and σ, of each column, (d,)."""
        return self.prospects[_LAMBDA] * self._columns, self.totals[0] * self.problem.ridge_mask

    @property
    def value(self) -> float:
        # With the λ of the problem, which may not be that of the round.
        excess = self.prospects[_LAMBDA] - self.totals[1]
        return float(self.numbers[VALUE] - excess * inner_product(self._columns, np.abs(self.point)))

    # ------------------------------------------------------------------ F with its ℓ1 term

    def round(self, gossip: Gossip) -> None:
        if not self.totals.any():
            # One more sum over the nodes, once per run.
            problem = self.problem
            assert problem.l1 is not None
            total = gossip.total(np.column_stack([problem.column_squares, problem.sigma, problem.l1]))
            self.squares[:], self.totals[:] = total[:-2], total[-2:]
            self.prospects[_LAMBDA] = self.totals[1]
            self.count_sum(self.point.size + 2, self.point.size + 2)
        super().round(gossip)

    def evaluate(self, gossip: Gossip, point: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = super().evaluate(gossip, point)
        return value + inner_product(self._penalties[0], np.abs(point)), gradient

    def predicted_change(self, move: np.ndarray) -> float:
        sizes = np.abs(self.point + move) - np.abs(self.point)
        return super().predicted_change(move) + inner_product(self._penalties[0], sizes)

    def residual_square(self, point: np.ndarray, gradient: np.ndarray) -> float:
        return float(self._promises(point, gradient).sum())

    def _promises(self, point: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return the square of the smallest subgradient of F in each column over Σwx², whatever the units."""
        lam, _ = self._penalties
        least = np.where(point == 0.0, soft(gradient, lam), gradient + lam * np.sign(point))
        out = np.zeros_like(least)
        return np.asarray(np.divide(least * least, self.squares, out=out, where=self.squares > 0.0))

    def _gradient_gap(self, columns: np.ndarray | slice, total_lambda: float) -> float:
        """Return about what some columns contribute to the gap of θ."""
        lam, sigma = total_lambda * self._columns, self._penalties[1]
        return model_gap(
            self.gradient[columns], self.point[columns], lam[columns], sigma[columns], self.value
        )

    # ------------------------------------------------------------------ a round

    def _lower_lambda(self, first: bool) -> None:
        """Choose the λ of a round."""
        lam, zero = self.totals[1], (self.point == 0.0) & (self._columns > 0.0)
        # Where all columns can enter at once, no time is saved.
        if self.point.size > WORKING_SET and zero.any():
            slopes = np.abs(self.gradient[zero]) / self._columns[zero]
            lam = max(lam, min(_NEXT_LAMBDA * slopes.max(), np.inf if first else self.prospects[_LAMBDA]))
        self._set_lambda(lam)

    def _set_lambda(self, lam: float) -> None:
        if lam != self.prospects[_LAMBDA]:
            excess = lam - self.prospects[_LAMBDA]
            self.numbers[VALUE] += excess * inner_product(self._columns, np.abs(self.point))
            self.numbers[LEAST], self.prospects[_LAMBDA] = np.inf, lam

    def stop(self) -> None:
        # Rounding that ends a round with a larger λ does not end the run.
        if self.prospects[_LAMBDA] > self.totals[1]:
            self._set_lambda(self.totals[1])
        else:
            super().stop()

    def step(self, gossip: Gossip, first: bool) -> None:
        self._lower_lambda(first)
        # Where no column can enter, the start may be the solution, which the next check finds out.
        if first and not (self._columns * self._promises(self.point, self.gradient)).any():
            self.prospects[_GAP] = self._gradient_gap(slice(None), self.totals[1])
            return
        before, margins, value, self._tried = self.point.copy(), self.margins(), self.numbers[VALUE], 0
        evaluations, damping = self._evaluations, self.prospects[_DAMPING]
        super().step(gossip, first)
        # A weak penalty leaves columns almost without curvature, and their steps are far too long. As in the
        # method of Levenberg and Marquardt, models are damped until a full step is accepted.
        if self._evaluations > evaluations + 1:
            self.prospects[_DAMPING] = min(1.0, max(10.0 * damping, _FIRST_DAMPING))
        else:
            self.prospects[_DAMPING] = 0.1 * damping if damping > _FIRST_DAMPING else 0.0
        if np.array_equal(before, self.point):
            self.prospects[_GAP] = min(self.prospects[_GAP], self._gradient_gap(slice(None), self.totals[1]))
            return
        self._margins = None
        self.prospects[:_DAMPING] = (
            self._gradient_gap(slice(None), self.totals[1]),
            value - self.numbers[VALUE],
            0.0,
        )
        full = self._tried == 1 and np.array_equal(self.point, before + self._move)
        if self.prospects[_LAMBDA] > self.totals[1] or damping or self._constant or not full:
            return
        # A full step: the model's slopes are dual variables, and the gap of the model is most of their gap.
        slopes, problem = self._linear_slopes(before, margins), self.problem
        # Sums of several outputs compute their margins again, which is little beside the Hessian.
        if problem.loss.several_outputs:
            sums = problem.gap_parts(slopes, self.point)[:, DIVERGENCE]
        else:
            sums = divergence_sums(self.samples, problem.active, self.margins(), slopes)
        apart = float(gossip.total(sums[:, None])[0])
        self.count_sum(1, 1)
        outside = np.ones(self.point.size, dtype=np.bool_)
        outside[self._chosen] = False
        expected = self._model_gap + apart + self._gradient_gap(outside, self.totals[1])
        if expected < self.prospects[_GAP]:
            self.before[:], self._slopes = before, slopes
            self.prospects[_GAP], self.prospects[_LINEAR] = expected, 1.0

    def curvatures(self) -> np.ndarray:
        found, beta, damping = super().curvatures(), float(self.samples.loss.beta), self.prospects[_DAMPING]
        if damping and math.isfinite(beta):
            found += damping * (self._safe_curvatures(beta) - found)
        return found

    def margins(self) -> np.ndarray:
        if self._margins is None:
            self._margins = super().margins()
        return self._margins

    def direction(self, gossip: Gossip, curvatures: np.ndarray) -> np.ndarray:
        columns, (lam, sigma) = self._working_set(), self._penalties
        self._tried += 1
        columns = columns[np.argsort(lam[columns] == 0.0, kind="stable")]  # the intercepts are the last
        self._chosen = columns
        gap = self._gradient_gap(slice(None), self.prospects[_LAMBDA])
        on_rows = columns.size**2 > self._entries
        target = (_SHARE_ON_ROWS if on_rows else _SHARE) * min(self.prospects[_DECREASE], gap)
        if on_rows:  # two more digits of the certificate are enough for a round
            target = max(target, _SHARE_ON_ROWS**2 * gap)
        given = self.gradient[columns], self.point[columns], lam[columns], sigma[columns], self.value, target
        self._move[:] = 0.0
        if on_rows:
            factor = self.by_column[columns]
            factor.data *= np.sqrt(curvatures)[factor.indices]
            z, self._model_gap = minimise_on_rows(factor, *given)
            self._move[columns] = z - self.point[columns]
            return self._move
        self._sum_columns(gossip, curvatures, np.sort(columns))

        def solve() -> np.ndarray:
            place = np.empty(self.point.size, dtype=np.int64)
            place[self._order] = np.arange(self._order.size)
            chosen = place[columns]
            hessian = np.ascontiguousarray(self._hessian[np.ix_(chosen, chosen)])
            z, gap = minimise_model(hessian, *given)
            return np.append(z - self.point[columns], gap)

        found = self.send(gossip, columns.size + 1, solve)
        self._move[columns], self._model_gap = found[:-1], float(found[-1])
        return self._move

    def _working_set(self) -> np.ndarray:
        """Return the columns of a step, in increasing order: at most as many new ones as there are others."""
        lam, _ = self._penalties
        promises = self._promises(self.point, self.gradient)
        support = (self.point != 0.0) | ((lam == 0.0) & (self.squares > 0.0))
        count = np.count_nonzero(support)
        # Sorting is stable, so that all processes choose alike where promises are equal.
        new = np.flatnonzero((promises > 0.0) & ~support)
        new = new[np.argsort(-promises[new], kind="stable")[: max(WORKING_SET, count)]]
        columns = np.append(np.flatnonzero(support), new)
        if columns.size**2 > self._entries:
            # The model of a squared loss is exact, and all columns cost little more.
            return np.flatnonzero(self.squares > 0.0) if self._constant else np.sort(columns)
        if columns.size > HessianMethod.most_features:
            # A matrix of all of them would be too large. Columns without an ℓ1 term stay.
            order = np.argsort(np.where(lam[columns] > 0.0, -promises[columns], -np.inf), kind="stable")
            columns = columns[order[: int(HessianMethod.most_features)]]
        return np.sort(columns)

    def _sum_columns(self, gossip: Gossip, curvatures: np.ndarray, columns: np.ndarray) -> None:
        """Sum the Hessian of some columns; constant curvatures keep it, and only new columns are summed."""
        if not self._constant:
            self._order, self._hessian = self._order[:0], self._hessian[:0, :0]
        elif not self._order.size:  # a resumed run sums its Hessian again, in the same order
            for number in range(1, int(self.entered.max()) + 1):
                self._grow(gossip, curvatures, np.flatnonzero(self.entered == number))
        new = columns[self.entered[columns] == 0.0]
        self._grow(gossip, curvatures, new)
        if self._constant:
            self.entered[new] = self.entered.max() + 1.0
        # F and ∇F go up the tree along with the new rows of the Hessian.
        size, height = self._order.size, new.size
        self.count_sum(height * (2 * size - height + 1) // 2 + self.point.size + 1, columns.size)

    def _grow(self, gossip: Gossip, curvatures: np.ndarray, new: np.ndarray) -> None:
        """Put new columns before those of the Hessian."""
        if not new.size:
            return
        self._order = np.append(new, self._order)
        rows, old = self.sum_hessian(gossip, curvatures, self._order, new.size), self._hessian
        if self.leader is not None:
            self._hessian = np.empty((self._order.size, self._order.size))
            self._hessian[: new.size], self._hessian[new.size :, new.size :] = rows, old
            self._hessian[new.size :, : new.size] = rows[:, new.size :].T
            self._hessian[: new.size, : new.size] += np.triu(rows[:, : new.size], 1).T

    # ------------------------------------------------------------------ certificates

    def expected_gap(self, total_sigma: float, lengths: np.ndarray | None = None) -> float:
        return float(self.prospects[_GAP])

    def dual(self) -> np.ndarray | None:
        if not self.prospects[_LINEAR]:
            return super().dual()
        if self._slopes is None:  # of a resumed run
            self._slopes = self._linear_slopes(self.before, self.margins_at(self.before))
        return self._slopes.copy()

    def _linear_slopes(self, before: np.ndarray, margins: np.ndarray) -> np.ndarray:
        """Return wℓ'(u) + wℓ''(u)(v − u) in the dual domains, (N,) or (N, K).

        The margins at the point ``before`` are u, ``margins``, and those at θ are v.
        """
        samples, moved = self.samples, self.margins() - margins
        if samples.loss.several_outputs:
            slopes = loss_slopes(samples, before)
            diagonals, factors = samples.loss.curvature_parts(slopes, self.problem.y, samples.weights)
            along = sum_in_order((factors * moved).T, np.zeros(len(moved)))
            slopes += diagonals * moved - factors * along[:, None]
        else:
            slopes = loss_derivatives(samples.loss, margins, samples.y)
            slopes += loss_curvatures(samples.loss, margins, samples.y) * moved
            slopes *= samples.weights
        return self.problem.clip_to_domain(slopes, in_place=True)
