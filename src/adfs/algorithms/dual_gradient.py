"""Dual gradients ∇f_i*(x) = argmin_θ f_i(θ) − xᵀθ of whole nodes, by a warm-started Newton method.

f_i(θ) = Σ_j w_ij ℓ(x_ijᵀθ; y_ij) + (σ_i/2)‖θ‖². A solve starts from the node's last solution and ends
when ‖∇f_i(θ) − x‖ is below a small part of the distance that x has moved since: as a run converges, x
moves less and less, and the solves follow it down to rounding. Everything a solve reads belongs to its
node, so its bits do not depend on which nodes share a process.

This is not `adfs.algorithms.newton`, which sums over the nodes of all processes: a solve here is a call
inside the compiled event of a node. Its linear systems are solved by conjugate gradients.
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

_GRADIENT, _MOVE, _TRIAL, _RESIDUAL, _DIRECTION, _PRODUCT, _DIAGONAL = range(7)


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
    vectors : (7, d)
        Working memory: the gradient, the move and others, by the names above.
    curvatures : (most samples of a node,)
        Working memory: wℓ'' of the samples.
    """

    theta: np.ndarray
    solved: np.ndarray
    wanted: np.ndarray
    beta: float
    vectors: np.ndarray
    curvatures: np.ndarray


def make_solver(problem: FiniteSum) -> DualSolver:
    """Return the solver of a problem's nodes, at θ = 0."""
    theta, solved, wanted = np.zeros((3, problem.n_nodes, problem.n_features))
    most = int(np.diff(problem.node_starts).max(initial=0))
    beta, vectors = problem.samples.loss.beta, np.zeros((7, problem.n_features))
    return DualSolver(theta, solved, wanted, beta, vectors, np.zeros(most))


@kernel
def _slope(samples: Samples, sigma: float, solver: DualSolver, i: int, theta: np.ndarray) -> float:
    """Fill the curvatures wℓ'' and ∇f(θ) − x; return the size of the terms that were summed."""
    rows, first, last = samples.rows, samples.node_starts[i], samples.node_starts[i + 1]
    point, gradient = solver.wanted[i], solver.vectors[_GRADIENT]
    # The ℓ2 term less x first, then the samples, one after another.
    for k in range(theta.size):
        gradient[k] = sigma * theta[k] - point[k]
    size = _norm(point) + sigma * _norm(theta)
    for j in range(first, last):
        start, stop = row_span(rows, j)
        margin = 0.0
        norm = 0.0
        for k in range(start, stop):
            entry = row_entry(rows, j, k)
            margin += entry * theta[row_column(rows, j, k)]
            norm += entry * entry
        label, weight = label_at(samples.y, j), samples.weights[j]
        solver.curvatures[j - first] = weight * curvature(samples.loss, margin, label)
        pull = weight * derivative(samples.loss, margin, label)
        size += abs(pull) * math.sqrt(norm)
        add_row(rows, j, pull, gradient)
    return size


@kernel
def _norm(vector: np.ndarray) -> float:
    return math.sqrt(inner_product(vector, vector))


@kernel
def _hessian_product(
    samples: Samples, sigma: float, i: int, curvatures: np.ndarray, vector: np.ndarray, out: np.ndarray
) -> None:
    """Write Hv, H = Σ b_j x_j x_jᵀ + σI with the curvatures b."""
    rows, first, last = samples.rows, samples.node_starts[i], samples.node_starts[i + 1]
    for k in range(vector.size):
        out[k] = sigma * vector[k]
    for j in range(first, last):
        weight = curvatures[j - first]
        if weight > 0.0:
            add_row(rows, j, row_margin(rows, j, vector) * weight, out)


@kernel
def _newton_move(samples: Samples, sigma: float, solver: DualSolver, i: int, accuracy: float) -> None:
    """Write −H⁻¹g by conjugate gradients with the diagonal of H, to a residual of ``accuracy``·‖g‖."""
    rows, first, last = samples.rows, samples.node_starts[i], samples.node_starts[i + 1]
    vectors, curvatures = solver.vectors, solver.curvatures
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
def dual_gradient(samples: Samples, sigma: np.ndarray, solver: DualSolver, i: int) -> None:
    """Bring ``solver.theta[i]`` to ∇f_i*(``solver.wanted[i]``)."""
    first, last = samples.node_starts[i], samples.node_starts[i + 1]
    point, theta, solved = solver.wanted[i], solver.theta[i], solver.solved[i]
    gradient, move, trial = solver.vectors[_GRADIENT], solver.vectors[_MOVE], solver.vectors[_TRIAL]
    moved = 0.0
    for k in range(theta.size):
        moved += (point[k] - solved[k]) ** 2
        solved[k] = point[k]
    size = _slope(samples, sigma[i], solver, i, theta)
    goal = max(_ACCURACY * math.sqrt(moved), _ROUNDING * size)
    error = _norm(gradient)
    steepest = error
    record = error
    cautious = False
    for _ in range(_MOST_STEPS):
        if error <= goal:
            return
        if cautious:
            for j in range(first, last):
                solver.curvatures[j - first] = solver.beta * samples.weights[j]
        # The system is solved the more accurately the nearer the end is.
        accuracy = min(0.1, max(error / steepest, 0.1 * goal / error))
        _newton_move(samples, sigma[i], solver, i, accuracy)
        # Halve the step until it is not too long.
        length = 1.0
        while True:
            for k in range(theta.size):
                trial[k] = theta[k] + length * move[k]
            size = _slope(samples, sigma[i], solver, i, trial)
            following = _norm(gradient)
            if following > 0.5 * error and error <= _NEAR_ROUNDING * size:
                return
            # A slope that is still negative at the end of the step means a decrease, by convexity. Near the
            # minimum rounding decides its sign, and a shorter gradient counts instead; shorter than all
            # before, so that the two rules cannot undo each other's work.
            if inner_product(gradient, move) <= 0.0 or following <= 0.5 * record or length < _SHORT_STEP:
                break
            length *= 0.5
        cautious = length < _SHORT_STEP
        record = min(record, following)
        error = following
        for k in range(theta.size):
            theta[k] = trial[k]


@kernel
def dual_gradients(samples: Samples, sigma: np.ndarray, solver: DualSolver) -> None:
    """Bring every node of the block to ∇f_i*(``solver.wanted[i]``)."""
    for i in range(solver.theta.shape[0]):
        dual_gradient(samples, sigma, solver, i)
