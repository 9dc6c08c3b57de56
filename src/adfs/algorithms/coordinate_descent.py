"""The quadratic model of a proximal Newton step: coordinate descent, and Newton steps over the non-zeros.

The model of F around θ is gᵀ(z − θ) + ½(z − θ)ᵀH(z − θ) + Σ_k λ_k|z_k|. Coordinate descent finds the entries
of z that are 0, and a Newton step finds the values of the others, however close to collinear the columns are.
`minimise_model` has H. `minimise_on_rows` has a factor of H instead, the columns of the samples: many sparse
ones are far smaller than H. Conjugate gradients take the place of a Newton step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, cg

from adfs.algorithms.method_kernels import add_row, row_margin
from adfs.algorithms.newton import newton_move
from adfs.compilation import inlined, kernel
from adfs.problem.samples import Rows, rows_of
from adfs.threads import single_threaded

_MOST_ROUNDS = 500  # of coordinate descent and a Newton step
_MOST_IDLE = 3  # rounds without progress, after which a model is solved as well as it can be
_MOST_SWEEPS = 20  # over the non-zero entries, between two sweeps over all
_REST = 0.05  # a sweep that moves z by this share of the first one's movement ends them
# Over the rows, a round that lowers the model by less than this share of what it fell before makes no
# progress: the next model, at a better point, gains more in the same time.
_SLOW = 0.01
_ROUNDING = 1e-13  # of a diagonal entry, relative to it, from which a multiple of a column was subtracted


Square = Callable[[np.ndarray], float]  # vᵀHv


@kernel
def model_gap(r: np.ndarray, z: np.ndarray, lam: np.ndarray, sigma: np.ndarray, value: float) -> float:
    """Return about the duality gap at z, where the gradient of the smooth part is r; all arrays (k,).

    The dual variables are those of z, or scaled towards 0 until they satisfy |x_kᵀs| ≤ λ_k, which costs about
    the largest excess times ``value``, F at θ. The better of the two counts.
    """
    slack, soft, hard, excess = 0.0, 0.0, 0.0, 0.0
    for k in range(z.size):
        if lam[k] > 0.0:
            # What the samples contribute to the stationarity of entry k, cut off at ±λ_k.
            v = sigma[k] * z[k] - r[k]
            cut = min(max(v, -lam[k]), lam[k])
            slack += abs(z[k]) * lam[k] - cut * z[k]
            excess = max(excess, abs(v) / lam[k] - 1.0)
            # The ℓ2 term pays for what is beyond λ; without one nothing does.
            rest = sigma[k] * z[k] - (v - cut)
            if rest != 0.0:
                soft += 0.5 * rest * rest / sigma[k] if sigma[k] > 0.0 else math.inf
            hard += 0.5 * sigma[k] * z[k] * z[k]
    return slack + min(soft, hard + excess * value)


@inlined
def _threshold(free: float, threshold: float) -> float:
    """Return the minimiser of the model in one entry, a soft threshold."""
    if free > threshold:
        return free - threshold
    return free + threshold if free < -threshold else 0.0


@kernel
def descend(
    hessian: np.ndarray,
    r: np.ndarray,
    z: np.ndarray,
    lam: np.ndarray,
    sigma: np.ndarray,
    value: float,
    target: float,
    budget: float,
) -> float:
    """Do cyclic coordinate descent on the model; return its gap, by `model_gap`.

    ``z`` and r = g + H(z − θ) are overwritten. After a sweep over all entries come sweeps over the non-zeros.
    It ends at a gap of ``target`` or after about ``budget`` multiplications.
    """
    work, gap = 0.0, model_gap(r, z, lam, sigma, value)
    while gap > target and work < budget:
        # One sweep over all entries finds the non-zeros; cheaper sweeps over these follow.
        first = 0.0
        for sweep in range(_MOST_SWEEPS):
            moved = 0.0
            for k in range(z.size):
                h = hessian[k, k]
                if h <= 0.0 or (sweep > 0 and z[k] == 0.0):
                    continue
                new = _threshold(z[k] - r[k] / h, lam[k] / h)
                change = new - z[k]
                # One row of H brings the gradient up to date.
                if change != 0.0:
                    z[k] = new
                    for m in range(z.size):
                        r[m] += change * hessian[k, m]
                    moved += h * change * change
                    work += z.size
            work += z.size
            if sweep == 0:
                first = moved
            if moved <= _REST * first or work >= budget:
                break
        gap = model_gap(r, z, lam, sigma, value)
        # Nothing moves any more: the rest of the gap is rounding.
        if first == 0.0:
            break
    return gap


def face_step(hessian: np.ndarray, r: np.ndarray, z: np.ndarray, lam: np.ndarray) -> None:
    """Move the non-zero entries of z by a Newton step of the model with their signs held, in place."""
    face = np.flatnonzero((z != 0.0) | (lam == 0.0))
    if face.size:
        # With its signs held the model is a parabola in these entries.
        own = hessian[np.ix_(face, face)]
        step = newton_move(own, r[face] + lam[face] * np.sign(z[face]))
        z[face] += _within_signs(r[face], z[face], lam[face], step, lambda v: float(v @ own @ v))


def _within_signs(
    r: np.ndarray, old: np.ndarray, lam: np.ndarray, step: np.ndarray, square: Square
) -> np.ndarray:
    """Return how far to move entries along a step, so that the model falls.

    Entries that would change their signs become 0: beyond, the parabola is no longer the model. The step is
    halved until the model falls, at the latest where the first entry is 0.
    """
    if not np.isfinite(step).all():
        return np.zeros_like(old)
    # The length at which each entry is 0; those that keep their signs never are.
    lengths = np.full_like(old, np.inf)
    np.divide(-old, step, out=lengths, where=(lam > 0.0) & (old * step < 0.0))
    first, length = lengths.min(initial=1.0), 1.0
    while True:
        move = np.where(lengths <= length, -old, length * step)
        change = r @ move + 0.5 * square(move) + lam @ (np.abs(old + move) - np.abs(old))
        if change < 0.0:
            return move
        if length == first:  # rounding
            return np.zeros_like(old)
        length = max(first, 0.5 * length)


class _Progress:
    """The value of a model from round to round, which decides about progress: its gap may rise by rounding.

    Attributes
    ----------
    idle : int
        Rounds since the value last fell by more than a share of its whole fall.
    """

    def __init__(self, g: np.ndarray, theta: np.ndarray, lam: np.ndarray, share: float) -> None:
        self._model, self._share, self._least, self.idle = (g, theta, lam), share, 0.0, 0

    def note(self, z: np.ndarray, r: np.ndarray) -> None:
        """Note the value at z, where the gradient of the smooth part is r."""
        g, theta, lam = self._model
        value = float(0.5 * (z - theta) @ (g + r) + lam @ (np.abs(z) - np.abs(theta)))
        self.idle = 0 if value < self._least - self._share * abs(self._least) else self.idle + 1
        self._least = min(self._least, value)


@single_threaded
def minimise_model(
    hessian: np.ndarray,
    g: np.ndarray,
    theta: np.ndarray,
    lam: np.ndarray,
    sigma: np.ndarray,
    value: float,
    target: float,
) -> tuple[np.ndarray, float]:
    """Return the minimiser z of the model, (k,), and its gap, at most ``target`` unless rounding prevents it.

    ``sigma`` (k,) is the part of the diagonal of H (k, k) that comes from the ℓ2 term. A last entry without
    an ℓ1 term, an intercept, is eliminated first: it has its best value for all values of the others.
    """
    if lam.size and lam[-1] == 0.0 and hessian[-1, -1] > 0.0:
        across, last = hessian[:-1, -1].copy(), hessian[-1, -1]
        rest, slopes = hessian[:-1, :-1] - np.outer(across, across / last), g[:-1] - across * (g[-1] / last)
        # Only rounding is left of the curvature of a constant column, which the intercept replaces.
        before = np.diagonal(hessian)[:-1]
        constant = np.diagonal(rest) <= _ROUNDING * before
        rest[constant], rest[:, constant], slopes[constant] = 0.0, 0.0, 0.0
        rest[constant, constant] = before[constant]
        z, gap = minimise_model(rest, slopes, theta[:-1], lam[:-1], sigma[:-1], value, target)
        return np.append(z, theta[-1] - (g[-1] + across @ (z - theta[:-1])) / last), gap
    z, r, progress = theta.copy(), g.copy(), _Progress(g, theta, lam, 1e-15)
    for _ in range(_MOST_ROUNDS):
        # As much coordinate descent as a Newton step costs, or a few sweeps.
        size = int(np.count_nonzero(z))
        budget = max(size**3 / 12.0, 20.0 * z.size * max(size, 5))
        gap = descend(hessian, r, z, lam, sigma, value, target, budget)
        if gap <= target:
            break
        face_step(hessian, r, z, lam)
        r = g + hessian @ (z - theta)  # no rounding is carried on
        progress.note(z, r)
        if progress.idle == _MOST_IDLE:
            break
    return z, gap


# --------------------------------------------------------------------------- without a matrix


class RowModel(NamedTuple):
    """A model at z (k,), for H = AAᵀ + diag(σ).

    Row k of ``columns`` is that of A, and ``diagonal`` (k,) is that of H. ``start`` (k,) is g − σθ, and
    ``along`` (N,) is Aᵀ(z − θ), which changes with z.
    """

    columns: Rows
    diagonal: np.ndarray
    lam: np.ndarray
    sigma: np.ndarray
    start: np.ndarray
    z: np.ndarray
    along: np.ndarray


@kernel
def sweep_rows(model: RowModel, whole: bool) -> float:
    """Do a sweep of coordinate descent over all entries of z, or its non-zeros; return how far it moved."""
    z, moved = model.z, 0.0
    for k in range(z.size):
        h = model.diagonal[k]
        if h <= 0.0 or not (whole or z[k] != 0.0):
            continue
        r = model.start[k] + row_margin(model.columns, k, model.along) + model.sigma[k] * z[k]
        change = _threshold(z[k] - r / h, model.lam[k] / h) - z[k]
        if change != 0.0:
            z[k] += change
            add_row(model.columns, k, change, model.along)
            moved += h * change * change
    return moved


def _face_step_on_rows(columns: sp.csr_array, model: RowModel) -> None:
    """Do `face_step` by conjugate gradients, which see what single entries move too slowly; in place."""
    face = np.flatnonzero(((model.z != 0.0) | (model.lam == 0.0)) & (model.diagonal > 0.0))
    # In units in which the diagonal of H is 1.
    scale, own = 1.0 / np.sqrt(model.diagonal[face]), columns[face]
    own.data *= np.repeat(scale, np.diff(own.indptr))
    turned, sigma = own.T, model.sigma[face] * scale * scale
    z, lam = model.z[face] / scale, model.lam[face] * scale
    r = own @ model.along + model.start[face] * scale + sigma * z

    def multiply(v: np.ndarray) -> np.ndarray:
        return np.asarray(own @ (turned @ v) + sigma * v)

    hessian = LinearOperator((z.size, z.size), matvec=multiply, dtype=np.float64)
    with np.errstate(all="ignore"):  # a step that is not finite is not taken
        # As many products at most as sweeps, which take the same time.
        step, _ = cg(hessian, -r - lam * np.sign(z), rtol=_REST, maxiter=_MOST_SWEEPS)

    # A product with the columns alone is half of one with H.
    def square(v: np.ndarray) -> float:
        along = turned @ v
        return float(along @ along + sigma @ (v * v))

    move = _within_signs(r, z, lam, step, square)
    model.z[face] += scale * move
    model.along[:] += turned @ move


@single_threaded
def minimise_on_rows(
    columns: sp.csr_array,
    g: np.ndarray,
    theta: np.ndarray,
    lam: np.ndarray,
    sigma: np.ndarray,
    value: float,
    target: float,
) -> tuple[np.ndarray, float]:
    """Return what `minimise_model` returns, for H = AAᵀ + diag(σ): ``columns`` (k, N) is A.

    It ends earlier where the model hardly falls any more.
    """
    z, along, progress = theta.copy(), np.zeros(columns.shape[1]), _Progress(g, theta, lam, _SLOW)
    diagonal, start = columns.power(2).sum(axis=1) + sigma, g - sigma * theta
    model = RowModel(rows_of(columns), diagonal, lam, sigma, start, z, along)
    for _ in range(_MOST_ROUNDS):
        # The last entry of a sweep is the intercept, which has its best value then.
        first = sweep_rows(model, True)
        r = start + columns @ along + sigma * z
        gap = model_gap(r, z, lam, sigma, value)
        progress.note(z, r)
        if gap <= target or first == 0.0 or progress.idle > _MOST_IDLE:
            break
        for _ in range(_MOST_SWEEPS):
            if sweep_rows(model, False) <= _REST * first:
                break
        _face_step_on_rows(columns, model)
    return z, gap
