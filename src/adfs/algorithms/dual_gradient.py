"""Dual gradients ∇f_i*(x) = argmin_θ f_i(θ) − xᵀθ of whole nodes, by a warm-started Newton method.

f_i(θ) = Σ_j w_ij ℓ(x_ijᵀθ; y_ij) + (σ_i/2)‖θ‖². A solve starts from the node's last solution and ends
when ‖∇f_i(θ) − x‖ is below a small part of the distance that x has moved since: as a run converges, x
moves less and less, and the solves follow it down to rounding. Everything a solve reads belongs to its
node, so its bits do not depend on which nodes share a process.

Up to a hundred features the Hessian is formed and factorised; with more, conjugate gradients use products
with it. This is not `adfs.algorithms.newton`, which sums over the nodes of all processes: a solve here is a
call inside the compiled event of a node.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from adfs.algorithms.method_kernels import add_row, row_margin
from adfs.compilation import kernel
from adfs.problem import FiniteSum, Samples
from adfs.problem.evaluation import inner_product
from adfs.problem.losses import curvature, derivative
from adfs.problem.samples import label_at, row_column, row_entry, row_span

#: The largest number of features for which the Hessian is formed.
DENSE_FEATURES = 100
# The error of a solve, relative to the distance that x has moved: an accelerated method tolerates errors far
# smaller than its steps.
_ACCURACY = 1e-10
# Gradients relative to the size of the terms they sum: below the first they are rounding, below the second a
# step that does not halve the gradient is.
_ROUNDING = 1e-15
_NEAR_ROUNDING = 1e-9
# Where few samples have curvature, Newton's step can be far too long. After a step that was cut to less than
# this share, the next one uses the largest curvature of all samples, with which no step is too long.
_SHORT_STEP = 2.0**-20
_MOST_STEPS = 1000
_MOST_HALVINGS = 60

_GRADIENT, _MOVE, _TRIAL, _RESIDUAL, _DIRECTION, _PRODUCT, _DIAGONAL = range(7)
_MARGINS, _TURNS, _CURVATURES, _TRIAL_MARGINS = range(4)


class DualSolver(NamedTuple):
    """The dual gradients of a block of k nodes.

    Attributes
    ----------
    theta : (k, d)
        Each node's last solution, the start of the next.
    solved : (k, d)
        The points x of these solutions.
    wanted : (k, d)
        The points x of the next ones.
    beta : float
        The loss's smoothness.
    hessian : (d, d)
        Working memory for a Hessian, (0, 0) when d is large.
    vectors : (7, d)
        Working memory: the gradient, the move and others, by the names above.
    room : (4, most samples of a node)
        Working memory per sample: margins, their changes, curvatures.
    """

    theta: np.ndarray
    solved: np.ndarray
    wanted: np.ndarray
    beta: float
    hessian: np.ndarray
    vectors: np.ndarray
    room: np.ndarray


def make_solver(problem: FiniteSum, dense_features: int = DENSE_FEATURES) -> DualSolver:
    """Return the solver of a problem's nodes, at θ = 0."""
    k, d = problem.n_nodes, problem.n_features
    order = d if d <= dense_features else 0
    most = int(np.diff(problem.node_starts).max(initial=0))
    return DualSolver(
        np.zeros((k, d)),
        np.zeros((k, d)),
        np.zeros((k, d)),
        problem.samples.loss.beta,
        np.zeros((order, order)),
        np.zeros((7, d)),
        np.zeros((4, most)),
    )


# --------------------------------------------------------------------------- one node


@kernel
def _slope(
    samples: Samples, sigma: float, solver: DualSolver, i: int, theta: np.ndarray, margins: np.ndarray
) -> float:
    """Fill margins, curvatures wℓ'' and ∇f(θ) − x; return the size of the terms that were summed."""
    rows, first, last = samples.rows, samples.node_starts[i], samples.node_starts[i + 1]
    point, gradient, curvatures = solver.wanted[i], solver.vectors[_GRADIENT], solver.room[_CURVATURES]
    # The ℓ2 term less x first, then the samples, one after another.
    point_size = 0.0
    theta_size = 0.0
    for k in range(theta.size):
        gradient[k] = sigma * theta[k] - point[k]
        point_size += point[k] * point[k]
        theta_size += theta[k] * theta[k]
    size = math.sqrt(point_size) + sigma * math.sqrt(theta_size)
    for j in range(first, last):
        start, stop = row_span(rows, j)
        margin = 0.0
        norm = 0.0
        for k in range(start, stop):
            entry = row_entry(rows, j, k)
            margin += entry * theta[row_column(rows, j, k)]
            norm += entry * entry
        margins[j - first] = margin
        curvatures[j - first] = samples.weights[j] * curvature(samples.loss, margin, label_at(samples.y, j))
        pull = samples.weights[j] * derivative(samples.loss, margin, label_at(samples.y, j))
        size += abs(pull) * math.sqrt(norm)
        add_row(rows, j, pull, gradient)
    return size


@kernel
def _norm(vector: np.ndarray) -> float:
    return math.sqrt(inner_product(vector, vector))


@kernel
def _copy(source: np.ndarray, target: np.ndarray) -> None:
    for k in range(source.size):
        target[k] = source[k]


@kernel
def _factorised_move(samples: Samples, sigma: float, solver: DualSolver, i: int) -> None:
    """Write −H⁻¹g, H = Σ b_j x_j x_jᵀ + σI, by a Cholesky factorisation in place."""
    rows, first, last = samples.rows, samples.node_starts[i], samples.node_starts[i + 1]
    gradient, move, curvatures = solver.vectors[_GRADIENT], solver.vectors[_MOVE], solver.room[_CURVATURES]
    # The lower triangle of H, summed over the node's samples in their order.
    hessian = solver.hessian
    d = move.size
    for a in range(d):
        for b in range(a + 1):
            hessian[a, b] = 0.0
        hessian[a, a] = sigma
    for j in range(first, last):
        weight = curvatures[j - first]
        if weight > 0.0:
            start, stop = row_span(rows, j)
            for p in range(start, stop):
                a = row_column(rows, j, p)
                scaled = weight * row_entry(rows, j, p)
                for q in range(start, p + 1):
                    hessian[a, row_column(rows, j, q)] += scaled * row_entry(rows, j, q)
    # Its Cholesky factor takes its place.
    for a in range(d):
        for b in range(a + 1):
            total = hessian[a, b]
            for c in range(b):
                total -= hessian[a, c] * hessian[b, c]
            if a == b:
                # σ > 0 keeps the pivots positive but for rounding.
                hessian[a, a] = math.sqrt(max(total, 1e-300))
            else:
                hessian[a, b] = total / hessian[b, b]
    # Forward and backward substitution.
    for a in range(d):
        total = -gradient[a]
        for b in range(a):
            total -= hessian[a, b] * move[b]
        move[a] = total / hessian[a, a]
    for back in range(d):
        a = d - 1 - back
        total = move[a]
        for b in range(a + 1, d):
            total -= hessian[b, a] * move[b]
        move[a] = total / hessian[a, a]


@kernel
def _hessian_product(
    samples: Samples, sigma: float, i: int, curvatures: np.ndarray, vector: np.ndarray, out: np.ndarray
) -> None:
    """Write Hv."""
    rows, first, last = samples.rows, samples.node_starts[i], samples.node_starts[i + 1]
    for k in range(vector.size):
        out[k] = sigma * vector[k]
    for j in range(first, last):
        weight = curvatures[j - first]
        if weight > 0.0:
            add_row(rows, j, row_margin(rows, j, vector) * weight, out)


@kernel
def _conjugate_move(samples: Samples, sigma: float, solver: DualSolver, i: int, accuracy: float) -> None:
    """Write −H⁻¹g by conjugate gradients with the diagonal of H, to a residual of ``accuracy``·‖g‖."""
    rows, first, last = samples.rows, samples.node_starts[i], samples.node_starts[i + 1]
    vectors, curvatures = solver.vectors, solver.room[_CURVATURES]
    gradient, move = vectors[_GRADIENT], vectors[_MOVE]
    residual, direction = vectors[_RESIDUAL], vectors[_DIRECTION]
    product, diagonal = vectors[_PRODUCT], vectors[_DIAGONAL]
    d = move.size
    # The preconditioner is the diagonal of H.
    for k in range(d):
        diagonal[k] = sigma
        move[k] = 0.0
        residual[k] = -gradient[k]
    for j in range(first, last):
        start, stop = row_span(rows, j)
        for k in range(start, stop):
            entry = row_entry(rows, j, k)
            diagonal[row_column(rows, j, k)] += curvatures[j - first] * entry * entry
    energy = 0.0
    for k in range(d):
        direction[k] = residual[k] / diagonal[k]
        energy += residual[k] * direction[k]
    # At most about twice as many steps as exact arithmetic would need.
    goal = accuracy * _norm(gradient)
    for _ in range(2 * d + 50):
        if _norm(residual) <= goal or energy <= 0.0:
            return
        _hessian_product(samples, sigma, i, curvatures, direction, product)
        step = energy / inner_product(direction, product)
        following = 0.0
        for k in range(d):
            move[k] += step * direction[k]
            residual[k] -= step * product[k]
            following += residual[k] * residual[k] / diagonal[k]
        for k in range(d):
            direction[k] = residual[k] / diagonal[k] + following / energy * direction[k]
        energy = following


@kernel
def _step_length(samples: Samples, i: int, room: np.ndarray, fixed: float, growing: float) -> float:
    """Return the step t in (0, 1) to the minimum along the line, from below.

    The derivative is fixed + t·growing + Σ wℓ'(u + tv)v: its values need no difference of nearly equal
    numbers.
    """
    first, last = samples.node_starts[i], samples.node_starts[i + 1]
    margins, turns = room[_MARGINS], room[_TURNS]
    low, high = 0.0, 1.0
    for _ in range(_MOST_HALVINGS):
        t = 0.5 * (low + high)
        # The slope of the objective along the line at t decides which half the minimum is in.
        at = fixed + t * growing
        for j in range(first, last):
            turn = turns[j - first]
            slope = derivative(samples.loss, margins[j - first] + t * turn, label_at(samples.y, j))
            at += samples.weights[j] * slope * turn
        if at > 0.0:
            high = t
        else:
            low = t
        if high - low <= 1e-3 * low:
            break
    return low


@kernel
def dual_gradient(samples: Samples, sigma: np.ndarray, solver: DualSolver, i: int) -> None:
    """Bring ``solver.theta[i]`` to ∇f_i*(``solver.wanted[i]``)."""
    first, last = samples.node_starts[i], samples.node_starts[i + 1]
    point, theta, solved = solver.wanted[i], solver.theta[i], solver.solved[i]
    room, gradient = solver.room, solver.vectors[_GRADIENT]
    move, trial = solver.vectors[_MOVE], solver.vectors[_TRIAL]
    d = theta.size
    moved = 0.0
    for k in range(d):
        moved += (point[k] - solved[k]) ** 2
        solved[k] = point[k]
    goal = _ACCURACY * math.sqrt(moved)
    size = _slope(samples, sigma[i], solver, i, theta, room[_MARGINS])
    error = _norm(gradient)
    steepest = error
    record = error
    largest = False
    for _ in range(_MOST_STEPS):
        if error <= max(goal, _ROUNDING * size):
            return
        # The direction: Newton's, or with the largest curvatures after a step that was cut very short.
        if largest:
            for j in range(first, last):
                room[_CURVATURES, j - first] = solver.beta * samples.weights[j]
        if solver.hessian.shape[0] == d:
            _factorised_move(samples, sigma[i], solver, i)
        else:
            accuracy = min(0.1, max(error / steepest, 0.1 * max(goal, _ROUNDING * size) / error))
            _conjugate_move(samples, sigma[i], solver, i, accuracy)
        # Try the full step first; near rounding, stop where it no longer halves the gradient.
        for k in range(d):
            trial[k] = theta[k] + move[k]
        size = _slope(samples, sigma[i], solver, i, trial, room[_TRIAL_MARGINS])
        at_trial = inner_product(gradient, move)
        following = _norm(gradient)
        if following > 0.5 * error and error <= _NEAR_ROUNDING * size:
            if following < error:
                _copy(trial, theta)
            return
        # A slope that is still negative at the end of the step means a decrease, by convexity. Near the
        # minimum rounding decides its sign, and a shorter gradient counts instead; shorter than all before,
        # so that the two rules cannot undo each other's work.
        if at_trial <= 0.0 or following <= 0.5 * record:
            record = min(record, following)
            _copy(trial, theta)
            _copy(room[_TRIAL_MARGINS], room[_MARGINS])
            error = following
            largest = False
            continue
        # The step is too long: go to the minimum along it.
        fixed = 0.0
        growing = 0.0
        for k in range(d):
            fixed += (sigma[i] * theta[k] - point[k]) * move[k]
            growing += sigma[i] * move[k] * move[k]
        for j in range(first, last):
            room[_TURNS, j - first] = room[_TRIAL_MARGINS, j - first] - room[_MARGINS, j - first]
        t = _step_length(samples, i, room, fixed, growing)
        largest = t < _SHORT_STEP
        for k in range(d):
            theta[k] += t * move[k]
        size = _slope(samples, sigma[i], solver, i, theta, room[_MARGINS])
        error = _norm(gradient)


@kernel
def dual_gradients(samples: Samples, sigma: np.ndarray, solver: DualSolver) -> None:
    """Bring every node of the block to ∇f_i*(``solver.wanted[i]``)."""
    for i in range(solver.theta.shape[0]):
        dual_gradient(samples, sigma, solver, i)
