"""Views of a problem that a method runs on in its place; certificates are of the problem itself.

- *Boxes*: each sample's margin in an interval, its dual variable in a box. Where the optimal margin of a
  sample is known to lie in an interval I, its loss may be replaced outside I by the tangents at its ends. The
  optimum stays the same, the loss is smooth with β_j = max ℓ'' over I in place of β, and its conjugate is ℓ*
  on the box wℓ'(I) and infinite outside. A sample with β_j = 0 is a line: its dual variable is known, and it
  is left out of the schedule.
- *Assumed curvatures*, for losses whose curvature has no bound. A sample's β_j is twice the larger of its
  curvature where it would be fitted exactly and where all samples have the same mean (adjusted for exposure).
  Its box has the margins at which ℓ'' ≤ β_j: every theorem holds of the view, and certificates tell where the
  optimum lies beyond.
- *Smoothing*, for losses with kinks: each is rounded over a width, the dual variables stay the same.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from adfs.compilation import compiled
from adfs.errors import InputError
from adfs.problem.finite_sum import FiniteSum
from adfs.problem.losses import Loss, derivative, prox_in_box, weighted_dual_prox
from adfs.problem.problem import Parts, Problem
from adfs.problem.samples import Label, Samples, batch_smoothness, by_class, plain_label


class Boxed(
    NamedTuple("BoxedParts", [("loss", Loss), ("curvature", np.ndarray), ("ends", np.ndarray)]), Loss
):
    """A loss with an interval of its own for every sample.

    Attributes
    ----------
    loss : Loss
    curvature : ndarray of shape (N,)
        β_j.
    ends : ndarray of shape (N, 4)
        The ends of the interval of margins, and the slopes ℓ' there, the lower one first.
    """

    @property
    def beta(self) -> float:
        """β of the loss itself, which no β_j is above."""
        return self.loss.beta

    def sample_curvature(self, beta: float, j: Any) -> float:
        """Return β_j."""
        return self.curvature[j]  # type: ignore[no-any-return]

    def sample_dual_prox(self, j: Any, zeta: float, h: float, b: Any, weight: float, start: float) -> float:
        """Return the dual prox of row j's term inside its box."""
        inverse = 1.0 / weight
        ends = (self.ends[j, 0], self.ends[j, 1], self.ends[j, 2], self.ends[j, 3])
        return weight * prox_in_box(self.loss, zeta * inverse, h * inverse, b, start, self.curvature[j], ends)


# --------------------------------------------------------------------------- what kernels call


@by_class
def sample_curvature(loss: Loss, beta: float, j: int | np.uint64) -> float:
    """Return the smoothness of row j's loss: β, or β_j where it has an interval."""
    return beta


@by_class
def sample_dual_prox(
    loss: Loss, j: int | np.uint64, zeta: float, h: float, b: Label, weight: float, start: float
) -> float:
    """Return the dual prox of row j's term, inside its box where it has one."""
    return weighted_dual_prox(loss, zeta, h, b, weight, start)


@by_class
def curvature_over(loss: Loss, low: float, high: float, b: float) -> float:
    """Return the largest ℓ'' over an interval of margins."""
    raise NotImplementedError


@compiled
def _fill_boxes(samples: Samples, margins: np.ndarray, curvature: np.ndarray, ends: np.ndarray) -> None:
    for j in range(curvature.size):
        low, high, b = margins[j, 0], margins[j, 1], plain_label(samples.y, j)
        curvature[j] = curvature_over(samples.loss, low, high, b)
        ends[j, 0], ends[j, 1] = low, high
        ends[j, 2], ends[j, 3] = derivative(samples.loss, low, b), derivative(samples.loss, high, b)


# --------------------------------------------------------------------------- the view


class BoxedProblem(Problem):
    """A problem whose samples' margins lie in intervals, as a method runs on it.

    It is evaluated and certified as the problem that it was made from, never as itself. ``margins`` (N, 2)
    are the ends of the intervals, of margins as the loss takes them: with offsets.
    """

    def __init__(self, problem: FiniteSum, margins: np.ndarray) -> None:
        if problem.loss.curvature_over is None:
            raise InputError(f"the loss {problem.loss.name!r} does not tell its curvature over an interval")
        own = problem.sigma, problem.l1, problem.l1_columns
        self._set(Parts(problem.loss, problem.data, problem.node_starts, *own))
        self.whole, self.margins = problem, margins
        # The curvature over the interval, and the slopes at its ends, which bound the dual variable.
        curvature, ends = np.empty(problem.n_samples), np.empty((problem.n_samples, 4))
        _fill_boxes(problem.samples, margins, curvature, ends)
        self.boxed = Boxed(problem.loss, curvature, ends)
        # Kernels see the intervals, and draw the samples that are neither constants nor known.
        self.samples = self.samples._replace(loss=self.boxed)
        self.active = np.asarray(problem.active & (curvature > 0.0))
        self.smoothness = np.asarray(self.weights * curvature * self.row_norms_squared)

    @cached_property
    def batch_smoothness(self) -> np.ndarray:
        """λ_max(X_iᵀ W_i diag(β_j) X_i), shape (n,)."""
        return batch_smoothness(self.X, self.weights * self.boxed.curvature, self.node_starts, 1.0)

    def clip_to_domain(self, duals: np.ndarray, *, in_place: bool = False) -> np.ndarray:
        """Move dual variables (N,) into their boxes; constants have 0."""
        low, high = self.weights * self.boxed.ends[:, 2], self.weights * self.boxed.ends[:, 3]
        moved = np.where(self.whole.active, np.clip(duals, low, high), 0.0)
        if in_place:
            duals[...] = moved
            return duals
        return moved

    def first_samples(self) -> BoxedProblem | None:
        small = self.whole.first_samples()
        if small is None:
            return None
        rows = self.node_starts[:-1][np.diff(self.node_starts) > 0]
        boxed = BoxedProblem(small, self.margins[rows])
        return boxed if boxed.active.any() else None


# --------------------------------------------------------------------------- assumed curvatures


def common_margin(over: float, under: float) -> float:
    """Return the margin, without offsets, of the model that has nothing but an intercept.

    From the sums over all samples of w times each of `Loss.level_parts`.
    """
    if not under > 0.0:
        return 0.0  # no sample has any weight
    if not over > 0.0:
        raise InputError(
            "all targets are 0 (or have weight 0), and no mean is small enough for them; "
            "there is nothing to fit"
        )
    return float(np.log(over) - np.log(under))


# --------------------------------------------------------------------------- smoothing


def smoothed(problem: FiniteSum, width: float) -> Problem:
    """Return the problem with kinks rounded over a width; dual variables keep their domains."""
    form = problem.loss.smoothed(width)
    assert form is not None
    found, factor = form
    weights = problem.weights if factor == 1.0 else factor * problem.weights
    return Problem.stacked(
        problem.X, problem.y, weights, problem.node_starts, found, problem.sigma, problem.offset
    )
