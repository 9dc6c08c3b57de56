"""The reference optimum: the minimiser of the whole problem on one machine, with a certificate."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.linalg
from scipy.sparse.linalg import LinearOperator, cg

from adfs.compilation import compiled
from adfs.errors import InputError
from adfs.problem import evaluation
from adfs.problem.piecewise import dual_ascent, interior_point, polish
from adfs.threads import single_threaded

if TYPE_CHECKING:
    from adfs.problem.problem import Problem

_DENSE_DIMENSION = 1500  # up to here the Hessian is formed and factorised
_FIRST_STEPS, _MORE_STEPS = 50, 300
_SHORT_STEP = 2.0**-20
_SHORTEST_STEP = 2.0**-80
_DUAL_ROUNDS = 40
_MODEL_ROUNDS = 2000
_WORTH_POLISHING = 1e-4  # a gap below which the pieces of most tips are known


class Optimum(NamedTuple):
    """A minimiser and its certificate.

    Attributes
    ----------
    theta : ndarray of shape (d,)
        The minimiser.
    value : float
        F(theta).
    gap : float
        (F(theta) − D(dual))/F(0), at least (F(theta) − F*)/F(0); not divided where F(0) = 0.
    dual : ndarray of shape (N,)
        The tips' scalars that certify it.
    method : str
        What found it.
    """

    theta: np.ndarray
    value: float
    gap: float
    dual: np.ndarray
    method: str


@single_threaded
def find_optimum(problem: Problem, tol: float) -> Optimum:
    """Minimise to a relative duality gap of ``tol``, or as far as rounding lets it; warn if that is more."""
    found = _certified(problem, np.zeros((problem.n_samples, *problem.dual_shape)), "zero")
    if problem.active.any():
        if problem.l1 is not None:
            found = _proximal_newton(problem, found, tol)
        elif problem.loss.several_outputs:
            found = _several_outputs(problem, found, tol)
        else:
            curved = problem.loss.smooth or problem.assumes_curvature
            found = _smooth(problem, found, tol) if curved else _nonsmooth(problem, found, tol)
    if not found.gap <= tol:
        warnings.warn(
            f"the reference optimum reached a relative duality gap of {found.gap:.1e}, not {tol:.1e}; "
            "rescale the features or take a larger sigma",
            RuntimeWarning,
            stacklevel=3,
        )
    return found


def _certified(problem: Problem, s: np.ndarray, method: str, theta: np.ndarray | None = None) -> Optimum:
    """Certify the better of θ(s) and of the ``theta`` that s came from.

    At s = wℓ'(Xθ) the gap of θ itself is ‖∇F(θ)‖²/(2σ); that of θ(s) = θ − ∇F(θ)/σ can be κ times larger.
    """
    s = problem.clip_to_domain(s)
    total = problem.row_total(s)
    point = problem.whole_penalty.minimizer(total)
    found = problem.gap_at(s, total, point)
    if theta is not None:
        other = problem.gap_at(s, total, theta)
        if not other.gap > found.gap:
            point, found = theta, other
    scale = problem.value_at_zero if problem.value_at_zero > 0.0 else 1.0
    return Optimum(point, found.value, found.gap / scale, s, method)


# --------------------------------------------------------------------------- smooth losses: Newton


def _smooth(problem: Problem, best: Optimum, tol: float) -> Optimum:
    """Newton; where it is slow (losses with pieces, σ small) interior points, then Newton from there."""
    best = _newton(problem, best, tol, _FIRST_STEPS)
    if best.gap > tol:
        best = _interior(problem, best, tol) if problem.loss.smooth else best
        best = _newton(problem, best, tol, _MORE_STEPS)
    return best


def _newton(problem: Problem, best: Optimum, tol: float, steps: int) -> Optimum:
    dense = problem.n_features <= _DENSE_DIMENSION
    method = "newton" if dense else "newton-cg"
    theta, value = best.theta, best.value
    careful = False
    steepest, least = 0.0, np.inf
    for _ in range(steps):
        gradient = problem.gradient(theta)
        margins, labels = problem.X @ theta, problem.labels
        slopes = problem.weights * evaluation.loss_derivatives(problem.loss, margins, labels)
        found = _certified(problem, slopes, method, theta)
        norm = float(np.linalg.norm(gradient))
        if best.gap <= tol and norm >= 0.5 * least:
            break  # certified, and the gradient is down to rounding too: the gap alone is so well before θ
        if found.gap < best.gap or (found.gap <= tol and norm < least):
            best = found
        least = min(least, norm)
        if norm == 0.0:
            break
        curvatures = problem.weights * evaluation.loss_curvatures(problem.loss, margins, labels)
        steepest = steepest or norm
        # Solved about as well as the step deserves: the last ones to many digits, the first to two.
        accuracy = min(1e-2, norm / steepest)
        move = _newton_move(problem, curvatures, gradient, dense, careful, accuracy)
        size, trial, trial_value = _line_search(problem, theta, value, gradient, move)
        if size < _SHORT_STEP and problem.loss.smooth:
            # Where few samples bend, Newton's step is far too long. The largest curvature never is.
            largest = problem.loss.beta * problem.weights
            move = _newton_move(problem, largest, gradient, dense, careful, accuracy)
            other = _line_search(problem, theta, value, gradient, move)
            if size == 0.0 or (other[0] > 0.0 and other[2] < trial_value):
                size, trial, trial_value = other
        if size == 0.0:
            if careful or not dense or best.gap <= tol:
                break
            careful = True  # the direction itself may be all rounding
            continue
        theta, value = trial, trial_value
    return best


def _line_search(
    problem: Problem, theta: np.ndarray, value: float, gradient: np.ndarray, move: np.ndarray
) -> tuple[float, np.ndarray, float]:
    """Return a step size that decreases F (0 when none was found), the point there and its value.

    The whole step when it decreases F enough, otherwise the minimum along it by bisection of the derivative:
    the losses with pieces need it, whose quadratic model may hold over a small part of the step only.
    """
    slope = float(gradient @ move)
    trial = theta + move
    trial_value = problem.objective(trial)
    # Near the optimum F no longer resolves the decrease; the gradient still does.
    if trial_value <= value + 0.1 * slope or (
        trial_value <= value + 1e-14 * abs(value)
        and np.linalg.norm(problem.gradient(trial)) < np.linalg.norm(gradient)
    ):
        return 1.0, trial, trial_value
    margins, turns = problem.X @ theta, problem.X @ move
    inner, curve = problem.total_sigma * float(theta @ move), problem.total_sigma * float(move @ move)
    low, high = 0.0, 1.0
    while high - low > 1e-3 * high and high > _SHORTEST_STEP:
        middle = 0.5 * (low + high) if low > 0.0 else 0.25 * high
        slopes = evaluation.loss_derivatives(problem.loss, margins + middle * turns, problem.labels)
        if inner + middle * curve + float((problem.weights * slopes) @ turns) > 0.0:
            high = middle
        else:
            low = middle
    trial = theta + low * move
    trial_value = problem.objective(trial)
    return (low, trial, trial_value) if trial_value < value else (0.0, theta, value)


def _newton_move(
    problem: Problem,
    curvatures: np.ndarray,
    gradient: np.ndarray,
    dense: bool,
    careful: bool,
    accuracy: float,
) -> np.ndarray:
    """Return −(XᵀBX + σI)⁻¹∇F for the curvatures B of the samples, shape (d,)."""
    X, sigma = problem.X, problem.total_sigma
    if dense:
        if not careful:
            try:
                factor = scipy.linalg.cho_factor(problem.curvature_matrix(curvatures), lower=True)
                return np.asarray(-scipy.linalg.cho_solve(factor, gradient))
            except scipy.linalg.LinAlgError:  # σ is below the rounding of the data's part
                pass
        return -_solve_by_factors(problem, curvatures, gradient)
    squared = X.multiply(X) if problem.sparse else X * X
    diagonal = np.asarray(squared.T @ curvatures).ravel() + sigma
    shape = (problem.n_features, problem.n_features)
    product = LinearOperator(
        shape, matvec=lambda v: X.T @ (curvatures * (X @ v)) + sigma * v, dtype=np.float64
    )
    inverse = LinearOperator(shape, matvec=lambda v: v / diagonal, dtype=np.float64)
    move, _ = cg(product, gradient, rtol=max(accuracy, 1e-10), atol=0.0, maxiter=5000, M=inverse)
    return np.asarray(-move)


def _solve_by_factors(problem: Problem, curvatures: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve (XᵀBX + σI)x = right by a triangle of the scaled rows, which does not square their condition."""
    bent, order = curvatures > 0.0, right.size
    rows = problem.X[bent].toarray() if problem.sparse else problem.X[bent]
    scaled = np.sqrt(curvatures[bent])[:, None] * rows
    stacked = np.vstack([scaled, np.sqrt(problem.total_sigma) * np.eye(order)])
    triangle = scipy.linalg.qr(stacked, mode="r", overwrite_a=True)[0][:order]
    first = scipy.linalg.solve_triangular(triangle, right, trans="T")
    return np.asarray(scipy.linalg.solve_triangular(triangle, first))


# --------------------------------------------------------------------------- with an ℓ1 term


def _proximal_newton(problem: Problem, best: Optimum, tol: float) -> Optimum:
    """Newton's method with an ℓ1 term in its model, which is minimised by coordinates and on its support."""
    curved = problem.loss.smooth or problem.assumes_curvature
    if problem.loss.several_outputs or not curved or problem.n_features > _DENSE_DIMENSION:
        raise InputError(
            "the optimum of a problem with an l1 term is computed for smooth losses of one output and up to "
            f"{_DENSE_DIMENSION} features; record the gap instead"
        )
    whole = problem.whole_penalty
    assert whole.l1 is not None
    theta, value = best.theta, best.value
    for _ in range(_MORE_STEPS):
        found = _certified(problem, problem.slopes(theta), "proximal-newton", theta)
        if found.gap >= best.gap and best.gap <= tol and best.method != "zero":
            break
        best = found if found.gap < best.gap or best.method == "zero" else best
        margins, labels = problem.X @ theta, problem.labels
        slopes = problem.weights * evaluation.loss_derivatives(problem.loss, margins, labels)
        gradient = np.asarray(problem.X.T @ slopes + whole.sigma * theta)
        bends = problem.weights * evaluation.loss_curvatures(problem.loss, margins, labels)
        model = problem.curvature_matrix(bends)
        move = _minimized_model(model, gradient, theta, whole.l1) - theta
        slope = float(gradient @ move) + whole.sizes(theta + move) - whole.sizes(theta)
        size = 1.0
        while size > _SHORT_STEP:
            trial_value = problem.objective(theta + size * move)
            # Near the optimum F no longer resolves the decrease.
            if trial_value <= value + 0.1 * size * slope + 1e-14 * abs(value):
                break
            size *= 0.5
        else:
            break
        theta, value = theta + size * move, trial_value
    return best


def _minimized_model(
    model: np.ndarray, gradient: np.ndarray, theta: np.ndarray, l1: np.ndarray
) -> np.ndarray:
    """Return the minimiser of gᵀ(t − θ) + ½(t − θ)ᵀM(t − θ) + Σ Λ_k|t_k|, shape (d,)."""
    point, slopes = theta.copy(), gradient.copy()
    for _ in range(_MODEL_ROUNDS):
        if _sweep(model, point, slopes, l1) <= 1e-12 * (1e-300 + np.abs(point).max()):
            break
        # On the support that coordinates found the model is a plain one.
        support = np.flatnonzero((point != 0.0) | (l1 == 0.0))
        signs = np.sign(point[support])
        own = gradient[support] - model[np.ix_(support, np.arange(theta.size))] @ theta
        exact = np.zeros_like(point)
        exact[support] = scipy.linalg.solve(
            model[np.ix_(support, support)], -(own + l1[support] * signs), assume_a="pos"
        )
        at_exact = gradient + model @ (exact - theta)
        kept = (np.sign(exact[support]) == signs) | (l1[support] == 0.0)
        if kept.all() and np.all(np.abs(at_exact) <= l1 * (1.0 + 1e-12) + 1e-12 * np.abs(gradient).max()):
            return exact
    return point


@compiled
def _sweep(model: np.ndarray, point: np.ndarray, slopes: np.ndarray, l1: np.ndarray) -> float:
    """Minimise over each coordinate once, in place, the model's slopes following; return the longest move."""
    longest = 0.0
    for k in range(point.size):
        middle = point[k] - slopes[k] / model[k, k]
        threshold = l1[k] / model[k, k]
        moved = max(abs(middle) - threshold, 0.0)
        moved = moved if middle > 0.0 else -moved
        change = moved - point[k]
        if change != 0.0:
            longest = max(longest, abs(change))
            point[k] = moved
            for m in range(point.size):
                slopes[m] += change * model[k, m]
    return longest


# --------------------------------------------------------------------------- several outputs: Newton-CG


def _several_outputs(problem: Problem, best: Optimum, tol: float) -> Optimum:
    """Newton's method with conjugate gradients on the multinomial loss, θ a (K, p) matrix."""
    theta, value = best.theta, best.value
    steepest, least = 0.0, np.inf
    for _ in range(_MORE_STEPS):
        slopes = problem.slopes(theta)
        gradient = problem.gradient(theta)
        norm = float(np.linalg.norm(gradient))
        found = _certified(problem, slopes, "newton-cg", theta)
        if best.gap <= tol and norm >= 0.5 * least:
            break  # certified, and the gradient is down to rounding too
        if found.gap < best.gap or (found.gap <= tol and norm < least):
            best = found
        least = min(least, norm)
        if norm == 0.0:
            break
        steepest = steepest or norm
        move = _several_outputs_move(problem, slopes, gradient, min(1e-1, norm / steepest))
        slope, size = float(gradient @ move), 1.0
        while size > _SHORT_STEP:
            trial = theta + size * move
            trial_value = float(problem.objective(trial))
            # Near the optimum F no longer resolves the decrease; the gradient still does.
            if trial_value <= value + 0.1 * size * slope or (
                trial_value <= value + 1e-14 * abs(value) and np.linalg.norm(problem.gradient(trial)) < norm
            ):
                break
            size *= 0.5
        else:
            break
        theta, value = trial, trial_value
    return best


def _several_outputs_move(
    problem: Problem, slopes: np.ndarray, gradient: np.ndarray, accuracy: float
) -> np.ndarray:
    """Return −H⁻¹∇F, H the Hessian at the point whose slopes w(p − e_label) are given; shape (K·p,)."""
    X, sigma, shape = problem.X, problem.total_sigma, (problem.n_outputs, problem.X.shape[1])
    weights = problem.weights[:, None]
    mass = slopes.copy()  # w·p
    mass[np.arange(problem.n_samples), problem.y.astype(np.int64)] += problem.weights
    share = np.divide(mass, weights, out=np.zeros_like(mass), where=weights > 0.0)

    def product(v: np.ndarray) -> np.ndarray:
        turns = X @ v.reshape(shape).T
        bent = mass * turns - mass * np.sum(share * turns, axis=1, keepdims=True)
        return np.asarray((X.T @ bent).T.ravel() + sigma * v)

    squared = X.multiply(X) if problem.sparse else X * X
    diagonal = np.asarray(squared.T @ (mass * (1.0 - share))).T.ravel() + sigma
    whole = (gradient.size, gradient.size)
    hessian = LinearOperator(whole, matvec=product, dtype=np.float64)
    inverse = LinearOperator(whole, matvec=lambda v: v / diagonal, dtype=np.float64)
    move, _ = cg(hessian, gradient, rtol=max(accuracy, 1e-10), atol=0.0, maxiter=2000, M=inverse)
    return np.asarray(-move)


# --------------------------------------------------------------------------- other losses: the dual


def _interior(problem: Problem, best: Optimum, tol: float) -> Optimum:
    idle = 0
    for s, theta in interior_point(problem):
        found = _certified(problem, s, "interior-point", theta)
        idle = 0 if found.gap < 0.5 * best.gap else idle + 1
        best = found if found.gap < best.gap else best
        if best.gap <= 0.01 * tol or idle > 10:
            break
    return best


def _nonsmooth(problem: Problem, best: Optimum, tol: float) -> Optimum:
    """Interior point where a factorisation is affordable, then coordinate ascent; each is polished."""
    best = _interior(problem, best, tol)
    best = _polished(problem, best)
    s = best.dual
    passes = 10
    for _ in range(_DUAL_ROUNDS):
        if best.gap <= tol:
            break
        s = dual_ascent(problem, s, passes)
        passes = min(2 * passes, 640)
        found = _polished(problem, _certified(problem, s, "dual-ascent"))
        best = found if found.gap < best.gap else best
    return best


def _polished(problem: Problem, found: Optimum) -> Optimum:
    exact = polish(problem, found.dual) if found.gap <= _WORTH_POLISHING else None
    if exact is None:
        return found
    better = _certified(problem, exact[0], found.method, exact[1])
    return better if better.gap < found.gap else found
