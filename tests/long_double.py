"""Objectives in extended precision, and points near their optima: what no certificate may be below."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adfs.problem import Loss, Multinomial
from adfs.problem.line_losses import EpsilonInsensitive, LineLoss
from adfs.problem.tweedie import Tweedie

LONG = np.longdouble
_KINKED = ("hinge", "absolute", "quantile", "epsilon_insensitive")


def _pieces(loss: Loss, u: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ℓ, ℓ' and ℓ'' at margins (N,), all in extended precision."""
    if isinstance(loss, EpsilonInsensitive):
        beyond = np.abs(u - y) - LONG(loss.epsilon)
        return np.maximum(beyond, 0), np.sign(u - y) * (beyond > 0), 0 * u
    if isinstance(loss, LineLoss):
        lines = np.array([type(loss).line(loss, float(b)) for b in y.astype(np.float64)]).astype(LONG)
        turn, constant, width, low, high = lines.T
        r = turn * u + (constant if loss.task == "classification" else -y)
        if not width[0]:
            a = np.where(r > 0, high, low)
            return a * r, turn * np.where(r == 0, 0, a), 0 * r
        a = np.clip(r / width, low, high)
        return a * r - width * a * a / 2, turn * a, ((a > low) & (a < high)) / width
    if loss.name == "logistic":
        p = 1 / (1 + np.exp(np.minimum(y * u, 11_000)))
        return np.log1p(np.exp(-np.abs(u))) + np.maximum(-y * u, 0), -y * p, p * (1 - p)
    log_y = np.log(np.where(y > 0, y, 1))
    if loss.name == "poisson":
        m, t = np.exp(u), u - log_y
        return np.where(y > 0, y * (np.expm1(t) - t), m), m - y, m
    if isinstance(loss, Tweedie):
        a, c = LONG(loss.power) - 1, 2 - LONG(loss.power)
        rising, falling = np.exp(c * u), y * np.exp(-a * u)
        # Without cancellation for y > 0: b to the power c times e⁻ᵃᵗ/a + eᶜᵗ/c, less its least value.
        t, scale = u - log_y, np.where(y > 0, y, 0) ** c
        value = np.where(y > 0, scale * (np.expm1(-a * t) / a + np.expm1(c * t) / c), rising / c)
        return value, rising - falling, c * rising + a * falling
    assert loss.name == "gamma"
    t = log_y - u
    return np.expm1(t) - t, 1 - np.exp(t), np.exp(t)


@dataclass
class Reference:
    """Σ wℓ(xᵀθ + b + o; y) + (α/2)‖θ‖² + λ‖θ‖₁; a point is θ, with b at the end where there is one.

    With several outputs a point is the matrix of them, (K, p) or (K, p + 1).
    """

    loss: Loss
    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    offset: np.ndarray
    alpha: float
    l1: float = 0.0
    intercept: bool = False
    spread: np.ndarray | None = None  # what coefficients are multiplied by in the penalty

    def __post_init__(self) -> None:
        self.rows = self.X.astype(LONG)
        if self.intercept:
            self.rows = np.column_stack([self.rows, np.ones(len(self.y), LONG)])
        self.y, self.weights, self.offset = (
            np.asarray(one).astype(LONG) for one in (self.y, self.weights, self.offset)
        )
        self.free = np.ones(self.rows.shape[1], LONG)  # how much of each entry the penalty counts
        if self.spread is not None:
            self.free[: len(self.spread)] = self.spread
        if self.intercept:
            self.free[-1] = 0
        self.several = isinstance(self.loss, Multinomial)

    def _placed(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return margins, (N,) or (N, K), targets for them, (N,), and what the margins are sums of.

        An intercept that has the size of the targets is taken from them first, which costs no digits.
        """
        if self.loss.translates and self.intercept:
            rows, theta = self.rows[:, :-1], point[:-1]
            target = (self.y - point[-1]) - self.offset
            return rows @ theta, target, np.abs(rows) @ np.abs(theta) + np.abs(target) + np.abs(self.offset)
        sizes = np.abs(self.rows) @ np.abs(point).T + np.abs(self.offset)
        return self.rows @ point.T + self.offset, self.y, sizes

    def _looked(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return margins, wℓ and wℓ', (N,), or (N, K) but for wℓ."""
        u, target, _ = self._placed(point)
        if not self.several:
            values, slopes, _ = _pieces(self.loss, u, target)
            return u, self.weights * values, self.weights * slopes
        label = np.eye(point.shape[0], dtype=LONG)[self.y.astype(int)]
        top = u.max(axis=1, keepdims=True)
        e = np.exp(u - top)
        values = np.log(e.sum(axis=1)) + (top - u)[label > 0]
        return u, self.weights * values, self.weights[:, None] * (e / e.sum(axis=1, keepdims=True) - label)

    def value(self, point: np.ndarray) -> LONG:
        """Return F."""
        point = point.astype(LONG)
        own = self.free * point
        return LONG(
            self._looked(point)[1].sum()
            + LONG(self.alpha) * (own * own).sum() / 2
            + LONG(self.l1) * np.abs(own).sum()
        )

    def rounding(self, point: np.ndarray) -> LONG:
        """Return what extended precision itself can do to F."""
        point = point.astype(LONG)
        _, values, slopes = self._looked(point)
        _, target, sizes = self._placed(point)
        # The slope of a kink may be that of either side.
        steep = np.maximum(np.abs(slopes), self.weights if slopes.ndim == 1 else self.weights[:, None])
        if self.loss.link == "log":
            sizes = sizes + 1 + np.abs(np.log(np.maximum(target, LONG(1e-300))))
        elif not self.several:
            sizes = sizes + np.abs(target)
        total = (steep * sizes).sum() + 8 * np.abs(values).sum() + self.value(point)
        return LONG((self.rows.shape[1] + 8) * np.finfo(LONG).eps * total)

    # ------------------------------------------------------------------ better points

    def better(self, point: np.ndarray) -> np.ndarray:
        """Return a point at least as good: by Newton's method, or on the kinks that the point is near."""
        best = point.astype(LONG)
        for _ in range(6):
            with np.errstate(all="ignore"):
                try:
                    moved = self._on_kinks(best) if self.loss.name in _KINKED else self._newton(best)
                except np.linalg.LinAlgError:
                    break
            if not np.isfinite(moved).all() or not self.value(moved) < self.value(best):
                break
            best = moved
        return best

    def _newton(self, point: np.ndarray) -> np.ndarray:
        """Return Newton's point among those whose zeros are the same, where there is an ℓ1 term."""
        outputs = point.reshape(-1, self.rows.shape[1])
        u, _, slopes = self._looked(point)
        gradient = (slopes.reshape(len(self.y), -1).T @ self.rows).astype(LONG)
        gradient += LONG(self.alpha) * self.free**2 * outputs + LONG(self.l1) * self.free * np.sign(outputs)
        count, width = outputs.shape
        hessian = np.zeros((count, width, count, width))
        if self.several:
            p = (slopes / self.weights[:, None]).astype(np.float64)
            p += np.eye(count)[self.y.astype(int)]
            bends = np.einsum("jk,kl->jkl", p, np.eye(count)) - p[:, :, None] * p[:, None, :]
        else:
            bends = _pieces(self.loss, u, self._placed(point)[1])[2].astype(np.float64)[:, None, None]
        rows = self.rows.astype(np.float64)
        weighted = self.weights.astype(np.float64)[:, None, None] * bends
        hessian += np.einsum("jkl,jm,jn->kmln", weighted, rows, rows)
        square = hessian.reshape(count * width, count * width)
        square += np.diag(np.tile(self.alpha * self.free.astype(np.float64) ** 2, count))
        kept = np.flatnonzero((outputs != 0).ravel() | (self.l1 == 0.0) | (np.tile(self.free, count) == 0))
        scale = 1.0 / np.sqrt(np.maximum(np.diag(square)[kept], 1e-300))
        own = scale[:, None] * square[np.ix_(kept, kept)] * scale
        step = np.linalg.lstsq(own, scale * gradient.ravel()[kept].astype(np.float64), rcond=None)[0]
        moved = outputs.ravel().copy()
        moved[kept] -= scale * step
        return np.asarray(moved.reshape(point.shape))

    def _on_kinks(self, point: np.ndarray) -> np.ndarray:
        """Return the best point on the kinks that this one is near; other samples stay on their sides."""
        u, labels, _ = self._placed(point)
        target = labels
        if isinstance(self.loss, EpsilonInsensitive):
            target = labels + np.sign(u - labels) * LONG(self.loss.epsilon)
        away = np.abs(u - target)
        near = away <= 1e-7 * (1 + np.median(away)) + 1e-13 * np.abs(u)
        order = np.argsort(np.where(near, away, np.inf))[: min(int(near.sum()), self.rows.shape[1])]
        slopes = self._looked(point)[2]
        slopes[order] = 0
        rows, width = self.rows[order], self.rows.shape[1]
        matrix = np.zeros((width + len(order), width + len(order)), LONG)
        matrix[:width, :width] = np.diag(LONG(self.alpha) * self.free**2)
        matrix[:width, width:], matrix[width:, :width] = rows.T, rows
        # For the step to that point and the slopes of the samples there.
        right = np.concatenate(
            [-(slopes @ self.rows) - LONG(self.alpha) * self.free**2 * point, (target - u)[order]]
        )
        found = np.zeros(len(right), LONG)
        scale = 1.0 / np.maximum(np.abs(matrix.astype(np.float64)).max(axis=1), 1e-300)
        for _ in range(8):  # refined: the residual is what decides where it ends
            miss = (right - matrix @ found).astype(np.float64)
            scaled = scale[:, None] * matrix.astype(np.float64) * scale
            found = found + (scale * np.linalg.lstsq(scaled, scale * miss, rcond=None)[0]).astype(LONG)
        return np.asarray(point + found[:width])
