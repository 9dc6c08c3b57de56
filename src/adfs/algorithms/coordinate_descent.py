"""The quadratic model of a proximal Newton step: coordinate descent, and Newton steps over the non-zeros.

The model of F around θ is gᵀ(z − θ) + ½(z − θ)ᵀH(z − θ) + Σ_k λ_k|z_k|. Coordinate descent finds the entries
of z that are 0, and a Newton step finds the values of the others, however close to collinear the columns are.
"""

from __future__ import annotations

import math

import numpy as np

from adfs.algorithms.newton import newton_move
from adfs.compilation import kernel
from adfs.threads import single_threaded

_MOST_ROUNDS = 500  # of coordinate descent and a Newton step
_MOST_IDLE = 3  # rounds in which rounding hides the decrease of the model, after which it is solved
_MOST_SWEEPS = 20  # over the non-zero entries, between two sweeps over all
_REST = 0.05  # a sweep that moves z by this share of the first one's movement ends them
_ROUNDING = 1e-13  # of a diagonal entry, relative to it, from which a multiple of a column was subtracted


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
                # The minimiser in one entry is a soft threshold.
                free, threshold = z[k] - r[k] / h, lam[k] / h
                new = 0.0
                if free > threshold:
                    new = free - threshold
                elif free < -threshold:
                    new = free + threshold
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
    """Move the non-zero entries of z by a Newton step of the model with their signs held, in place.

    Entries that would change their signs become 0 if the model falls then; otherwise the step ends at the
    first of them.
    """
    face = np.flatnonzero((z != 0.0) | (lam == 0.0))
    if not face.size:
        return
    # With its signs held the model is a parabola in these entries.
    own, old, bounds = hessian[np.ix_(face, face)], z[face], lam[face]
    step = newton_move(own, r[face] + bounds * np.sign(old))
    if not np.isfinite(step).all():
        return

    def change(new: np.ndarray) -> float:
        move = new - old
        return float(r[face] @ move + 0.5 * move @ (own @ move) + bounds @ (np.abs(new) - np.abs(old)))

    # Beyond a change of sign the parabola is no longer the model.
    new = old + step
    crossing = (bounds > 0.0) & (new * old < 0.0)
    if crossing.any():
        cut = np.where(crossing, 0.0, new)
        if change(cut) < 0.0:
            new = cut
        else:
            lengths = np.where(crossing, -old / np.where(crossing, step, 1.0), np.inf)
            new = np.where(lengths <= lengths.min(), 0.0, old + lengths.min() * step)
    if change(new) < 0.0:
        z[face] = new


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
    z, r, idle, least = theta.copy(), g.copy(), 0, 0.0
    for _ in range(_MOST_ROUNDS):
        # As much coordinate descent as a Newton step costs, or a few sweeps.
        size = int(np.count_nonzero(z))
        budget = max(size**3 / 12.0, 20.0 * z.size * max(size, 5))
        gap = descend(hessian, r, z, lam, sigma, value, target, budget)
        if gap <= target:
            break
        face_step(hessian, r, z, lam)
        r = g + hessian @ (z - theta)  # no rounding is carried on
        # The value of the model decides about progress: near its end the gap may rise by rounding.
        now = float(0.5 * (z - theta) @ (g + r) + lam @ (np.abs(z) - np.abs(theta)))
        idle = 0 if now < least - 1e-15 * abs(least) else idle + 1
        least = min(least, now)
        if idle == _MOST_IDLE:
            break
    return z, gap
