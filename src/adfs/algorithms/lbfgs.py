"""L-BFGS: one gradient, summed over the nodes, per step; and the line search that Newton's method shares."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import numpy as np

from adfs.algorithms.base import Method, Setting
from adfs.algorithms.costs import Cost, RoundEffort, gradient_work
from adfs.algorithms.round_process import Gossip, PrimalProcess, RoundProcess
from adfs.compilation import kernel
from adfs.network import Network
from adfs.problem import Samples
from adfs.problem.evaluation import (
    add_diagonals,
    fill_margins,
    fill_table,
    inner_product,
    read_table,
    table_strides,
)
from adfs.problem.losses import point_of, value, write_slope
from adfs.problem.samples import add_shift, plain_label, row_column, row_entry, row_span
from adfs.theory import Facts, NodeSizes, NoParameters, tree_depth

MEMORY = 20  # steps whose changes of the gradient are kept
_ARMIJO = 1e-4  # the share of the predicted decrease of F that a step must reach
_WOLFE = 0.9  # the share of the slope along a direction that may be left after a step
_FLAT = 2.0**-48  # changes of F below this, relative to F, are rounding
MOST_TRIALS = 40  # per line search
FEW_TRIALS = 4  # where rounding hides the changes of F, and where there is a safer direction
_MOST_IDLE = 100  # steps within rounding that find no smaller gradient, after which a run ends
VALUE, _KNOWN, _EXHAUSTED, LEAST, _IDLE = range(5)  # in DescentProcess.numbers


@kernel
def node_values(
    samples: Samples,
    ridge: np.ndarray,
    theta: np.ndarray,
    margins: np.ndarray,
    tables: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write ∇f_i(θ) and f_i(θ) for each node, ``out`` (k, d + 1).

    ``ridge`` (k, d) has σ_i, or 0 in columns without a penalty. ``margins`` (K,) has room for the margins of
    a sample, ``tables`` (2, d) for θ and the gradient in the order in which the rows read them fastest.
    """
    width, rows = theta.size, samples.rows
    feature, output = table_strides(rows, width // margins.size, margins.size)
    # Several outputs of a feature lie side by side in the table, if rows read them faster so.
    table, gradient = tables[0], tables[1]
    fill_table(rows, theta, margins.size, table)
    for i in range(out.shape[0]):
        for k in range(width):
            gradient[k] = 0.0
        total, carry = 0.0, 0.0
        for j in range(samples.node_starts[i], samples.node_starts[i + 1]):
            label, weight = plain_label(samples.y, j), samples.weights[j]
            fill_margins(rows, j, table, margins)
            add_shift(samples.y, j, 1.0, margins)
            # Compensated summation: near the optimum F changes in its last digits only.
            term = weight * value(samples.loss, point_of(samples.loss, margins), label) - carry
            following = total + term
            carry = (following - total) - term
            total = following
            # The multiples of the row, one per output, add to the gradient.
            write_slope(samples.loss, margins, label, weight)
            start, stop = row_span(rows, j)
            for number in range(margins.size):
                first, factor = np.uint64(number) * output, margins[number]
                for k in range(start, stop):
                    gradient[first + row_column(rows, j, k) * feature] += factor * row_entry(rows, j, k)
        read_table(rows, gradient, margins.size, out[i])
        # The ℓ2 term comes last.
        square = 0.0
        for k in range(width):
            out[i, k] += ridge[i, k] * theta[k]
            square += ridge[i, k] * theta[k] * theta[k]
        out[i, width] = total + 0.5 * square


class DescentProcess(PrimalProcess, RoundProcess):
    """A method that moves θ along descent directions, as far as a line search on F finds.

    Attributes
    ----------
    numbers : ndarray of shape (5,)
        F at θ; whether it and the gradient are known; whether rounding prevents any further progress; the
        smallest ‖∇F‖² so far; the steps since then in which rounding hid the change of F.
    ridge : ndarray of shape (k, d)
        σ_i in every column, 0 in columns without a penalty.
    quasi_newton : bool
        Whether directions come from gradients alone. Their steps must then also change the slope along the
        direction enough (Wolfe's condition), which Newton's steps do anyway.
    """

    quasi_newton: ClassVar[bool] = True

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        d = self.problem.n_features
        self.point, self.gradient = np.zeros(d), np.zeros(d)
        self.ridge = np.asarray(self.problem.sigma[:, None] * self.problem.ridge_mask)
        self.numbers = np.array([0.0, 0.0, 0.0, np.inf, 0.0])
        # Working memory of the evaluations.
        self._evaluations = 0
        self._room = np.empty(self.problem.n_outputs), np.empty((2, d))

    @property
    def value(self) -> float:
        return float(self.numbers[VALUE])

    @property
    def exhausted(self) -> bool:
        return bool(self.numbers[_EXHAUSTED] or self.numbers[_IDLE] >= _MOST_IDLE)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"point": self.point, "gradient": self.gradient, "numbers": self.numbers}

    def round(self, gossip: Gossip) -> None:
        self._evaluations = 0
        first = not self.numbers[_KNOWN]
        if first:
            self.numbers[VALUE], self.gradient[:] = self.evaluate(gossip, self.point)
            self.numbers[_KNOWN] = 1.0
        if not self.exhausted:
            self.step(gossip, first)
        # Each evaluation is a pass. A round of an exhausted run is a pass of the budget, without any effect.
        passes = max(1, self._evaluations)
        computations = self.work.computations + passes * self.samples_per_round
        self.work = self.work._replace(computations=computations)
        # A quasi-Newton method is as far as it has evaluated F; most steps take one evaluation.
        self.position += passes if self.quasi_newton else 1.0

    @abstractmethod
    def step(self, gossip: Gossip, first: bool) -> None:
        """Do one round: find a direction, and search along it; ``first`` says that it is the first round."""

    def evaluate(self, gossip: Gossip, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Return F and ∇F at a point, summed over the nodes of all processes."""
        out = np.empty((self.problem.n_nodes, point.size + 1))
        node_values(self.samples, self.ridge, point, *self._room, out)
        total = np.asarray(gossip.total(out))
        self._evaluations += 1
        return float(total[-1]), np.ascontiguousarray(total[:-1])

    def predicted_change(self, move: np.ndarray) -> float:
        """Return the change of F over a step that its slope predicts."""
        return inner_product(self.gradient, move)

    def residual_square(self, point: np.ndarray, gradient: np.ndarray) -> float:
        """Return a square that is 0 where a point is optimal: ‖∇F‖²."""
        return inner_product(gradient, gradient)

    def search(self, gossip: Gossip, move: np.ndarray, most_trials: int = MOST_TRIALS) -> bool:
        """Move θ along a direction until F has fallen enough; return whether a step was found.

        The first trial is the full step. After a trial that was too long comes the minimiser of the parabola
        through F and its slope at θ and F at the trial, kept between a hundredth and a half of it; after one
        that was too short, four times its length; between two known bounds, their middle.
        """
        before = float(self.numbers[VALUE])
        square = self.residual_square(self.point, self.gradient)
        slope, length = self.predicted_change(move), 1.0
        short, long = 0.0, math.inf
        for trial in range(most_trials if slope < 0.0 else 0):
            point = self.point + length * move
            value, gradient = self.evaluate(gossip, point)
            after, square_after = inner_product(gradient, move), self.residual_square(point, gradient)
            # Where rounding hides the changes of F, its slope along the direction still shows them. Newton's
            # method takes the gradient, which certificates are made of: it ends where that shrinks no more.
            flat = not -length * slope > _FLAT * abs(before)
            if not flat:
                too_long = not value <= before + _ARMIJO * length * slope
            elif self.quasi_newton:
                too_long = not after <= -_WOLFE * slope
            elif square_after < square:
                too_long = False
            else:
                return False
            too_short = self.quasi_newton and not too_long and after < _WOLFE * slope
            if not (too_long or too_short):
                self.numbers[VALUE], self.gradient[:], self.point[:] = value, gradient, point
                idle = flat and square_after >= self.numbers[LEAST]
                self.numbers[_IDLE] = self.numbers[_IDLE] + 1.0 if idle else 0.0
                self.numbers[LEAST] = min(self.numbers[LEAST], square_after)
                return True
            if flat and trial + 1 >= FEW_TRIALS:
                return False
            # F and ∇F went up the tree, and the next length comes down.
            self.count_sum(point.size + 1, 1)
            short, long = (short, length) if too_long else (length, long)
            if short > 0.0:
                length = 4.0 * length if long == math.inf else 0.5 * (short + long)
            else:
                excess = value - before - length * slope
                known = math.isfinite(excess) and excess > 0.0
                parabola = -0.5 * length * length * slope / excess if known else 0.0
                length = min(max(parabola, 0.01 * length), 0.5 * length)
        return False

    def stop(self) -> None:
        """Note that rounding prevents any further progress."""
        self.numbers[_EXHAUSTED] = 1.0


class CurvaturePairs:
    """The last steps and the changes of the gradient over them: the inverse Hessian of L-BFGS.

    Attributes
    ----------
    pairs : ndarray of shape (2, memory, d)
        The steps and the changes, each new pair in the place of the oldest.
    products : ndarray of shape (memory,)
        Step times change.
    count : ndarray of shape (1,), int64
        The pairs that were added so far.
    """

    def __init__(self, memory: int, d: int) -> None:
        self.pairs, self.products = np.zeros((2, memory, d)), np.zeros(memory)
        self.count = np.zeros(1, dtype=np.int64)

    def __len__(self) -> int:
        return min(int(self.count[0]), self.products.size)

    def clear(self) -> None:
        """Forget all pairs."""
        self.count[0] = 0

    def add(self, step: np.ndarray, change: np.ndarray, noise: float = 0.0) -> None:
        """Keep a pair, unless its curvature is below the noise, relative to its lengths."""
        product = inner_product(step, change)
        if product > noise * math.sqrt(inner_product(step, step) * inner_product(change, change)):
            place = self.count[0] % self.products.size
            self.pairs[0, place], self.pairs[1, place], self.products[place] = step, change, product
            self.count += 1

    def multiply(self, vector: np.ndarray, diagonal: np.ndarray) -> np.ndarray:
        """Return the inverse Hessian times a vector; without pairs it is the diagonal (d,)."""
        newest_first = (self.count[0] - 1 - np.arange(len(self))) % self.products.size
        out, factors = vector.copy(), np.empty(self.products.size)
        _two_loops(self.pairs, self.products, newest_first, diagonal, factors, out)
        return out

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state as named arrays, not copies."""
        return {"pairs": self.pairs, "products": self.products, "count": self.count}


@kernel
def _two_loops(
    pairs: np.ndarray,
    products: np.ndarray,
    newest_first: np.ndarray,
    diagonal: np.ndarray,
    factors: np.ndarray,
    out: np.ndarray,
) -> None:
    """Multiply ``out`` by the inverse Hessian, in place: from the newest pair to the oldest, and back.

    ``factors`` (memory,) is working memory.
    """
    steps, changes = pairs[0], pairs[1]
    for place in newest_first:
        factors[place] = inner_product(steps[place], out) / products[place]
        for k in range(out.size):
            out[k] -= factors[place] * changes[place, k]
    # Between the loops the diagonal, scaled so that it has the curvature of the newest pair.
    squares = 0.0
    for place in newest_first[:1]:
        for k in range(out.size):
            squares += changes[place, k] * changes[place, k] * diagonal[k]
    scale = products[newest_first[0]] / squares if squares > 0.0 else 1.0
    for k in range(out.size):
        out[k] *= scale * diagonal[k]
    for place in newest_first[::-1]:
        factor = factors[place] - inner_product(changes[place], out) / products[place]
        for k in range(out.size):
            out[k] += factor * steps[place, k]


class LbfgsProcess(DescentProcess):
    """L-BFGS in progress over a block of nodes, which all hold the same iterate.

    Attributes
    ----------
    diagonal : ndarray of shape (d,)
        The inverse of the diagonal of the largest Hessian: the inverse Hessian before there are pairs.
    """

    def __init__(self, setting: Setting[NoParameters]) -> None:
        super().__init__(setting)
        self.pairs = CurvaturePairs(MEMORY, self.problem.n_features)
        self.diagonal = np.ones(self.problem.n_features)

    def arrays(self) -> dict[str, np.ndarray]:
        return super().arrays() | self.pairs.arrays() | {"diagonal": self.diagonal}

    def step(self, gossip: Gossip, first: bool) -> None:
        # F and its gradient go up a tree to the root, and down again.
        self.count_sum(self.point.size + 1, self.point.size + 1)
        if first:
            # One more sum over the nodes, once per run.
            out = self.ridge.copy()
            rows, beta = self.samples.rows, float(self.samples.loss.beta)
            weights, node_starts = self.samples.weights, self.samples.node_starts
            add_diagonals(rows, weights, node_starts, beta, self.problem.n_outputs, out)
            diagonal = gossip.total(out)
            # An unpenalised column of zeros has no curvature.
            self.diagonal[:] = 1.0 / np.where(diagonal > 0.0, diagonal, 1.0)
            return
        # The pair needs the point and the gradient before the step.
        point, gradient = self.point.copy(), self.gradient.copy()
        while not self.search(gossip, self.pairs.multiply(-gradient, self.diagonal)):
            # The pairs may lead nowhere. Without any, the direction is as good as rounding permits.
            if not len(self.pairs):
                self.stop()
                return
            self.pairs.clear()
        self.pairs.add(self.point - point, self.gradient - gradient)


class Lbfgs(Method[NoParameters]):
    """L-BFGS: quasi-Newton steps from the last 20 gradients, summed over the nodes; for many features.

    Problem
        min_θ F(θ), smooth and strongly convex, with one output or several.
    Algorithm
        θ ← θ − t·B∇F, B from the last 20 steps by BFGS, starting from the diagonal of the largest Hessian;
        t by a line search on F, most often 1. A round is one evaluation of F and its gradient.
    Guarantee
        F decreases at every step; what theory promises of the rate is far below what is seen.

    References
    ----------
        Liu and Nocedal, "On the limited memory BFGS method for large scale optimization", 1989.
    """

    name = "lbfgs"
    label = "L-BFGS"
    warm_starts = True
    kind: ClassVar[str] = "rounds"
    needs_sums = True
    primal = True
    several_outputs = True
    unpenalised_columns = True
    checks_every_round = True
    reference_order = 3

    process = LbfgsProcess

    def cost(self, facts: Facts, network: Network, tol: float, tau: float = 1.0) -> Cost:
        # Scaled to a diagonal of ones, the Hessian has λ_max at most the entries of a row, and its penalty is
        # about 1/(1 + κ_s/d) in the mean column. Rounds lie between the root of the condition number and its
        # logarithm: with a cube root predictions were within a factor of three of ten runs. As for
        # Newton's method, second derivatives first fall by a factor of e per round.
        near, entries = facts.near_optimum, facts.entries_per_row or facts.n_features
        condition = min(near.kappa_b, entries * (1.0 + near.kappa_s / facts.n_features))
        rounds = 0.3 * math.log(1.0 / tol) * math.cbrt(condition) - math.log(facts.curvature or 1.0)
        work = rounds * facts.n_samples * gradient_work(facts)
        return Cost(rounds, rounds, work, rounds * 2.0 * (network.n_nodes - 1))

    def effort(self, parameters: NoParameters, sizes: NodeSizes, network: Network) -> RoundEffort:
        return RoundEffort(sizes.n_samples, exchanges=0, hops=2 * tree_depth(network))
