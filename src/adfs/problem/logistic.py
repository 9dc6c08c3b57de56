"""The logistic loss of two classes, and the multinomial one of K margins per sample and labels 0 … K − 1.

The multinomial loss is ℓ(u; b) = log Σ_k exp(u_k) − u_b, with the gradient p − e_b for p = softmax(u). The
dual variable of a sample is s = w·(p − e_b): its entries are at least 0, except that of the label, and sum to
0. The entry of the label is always computed as minus the sum of the others, which loses no digits where p_b
is near 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from adfs.compilation import inlined, kernel
from adfs.errors import InputError
from adfs.problem.evaluation import two_sum
from adfs.problem.exponential_losses import (
    MOST_STEPS,
    ExponentialLoss,
    LogisticEquation,
    bracketed_root,
    log_one_plus,
    logistic_dual_prox,
    sigmoid,
)
from adfs.problem.losses import Ends, Loss, clip, entropy_part, register_loss

OUTSIDE = 1e-12  # how far outside the simplex s/w may be by rounding
_EPS = float(np.finfo(np.float64).eps)
_SHORT_MOVE = 1e-9  # its square is below rounding
#: Rows of K numbers that the prox works in.
ROOM_ROWS = 5


@register_loss
class Logistic(NamedTuple("LogisticParameters", []), ExponentialLoss):
    """Logistic loss log(1 + exp(−b·u)), labels ±1; β = 1/4."""

    name = "logistic"
    task = "classification"
    label = "two or more classes, with probabilities"
    link = "logit"
    scoring = "neg_log_loss"
    curvature_type = "continuous"
    beta = 0.25

    def multiclass(self, n_classes: int) -> Multinomial:
        return Multinomial(n_classes)

    def value(self, u: float, b: float) -> float:
        t = b * u
        return log_one_plus(math.exp(-abs(t))) + max(-t, 0.0)

    def derivative(self, u: float, b: float) -> float:
        return -b * sigmoid(-b * u)

    def curvature(self, u: float, b: float) -> float:
        return sigmoid(u) * sigmoid(-u)

    def conjugate(self, s: float, b: float) -> float:
        a = -b * s
        if a < 0.0 or a > 1.0:
            return math.inf
        entropy = 0.0
        if a > 0.0:
            entropy += a * math.log(a)
        if a < 1.0:
            entropy += (1.0 - a) * math.log1p(-a)
        return entropy

    def divergence(self, u: float, s: float, b: float) -> float:
        # Of the probabilities of the wrong label, −b·s against sigmoid(−b·u). The smaller of the latter and
        # its complement has all its digits, and so have the differences: they are one another's negative.
        t, a = b * u, -b * s
        if a < 0.0 or a > 1.0:
            return math.inf
        small = math.exp(-abs(t))
        p = small / (1.0 + small)
        chance = a if t >= 0.0 else 1.0 - a
        other = 1.0 - a if t >= 0.0 else a
        away = chance - p
        # Logarithms are needed only where the probabilities differ much.
        log_one = log_one_plus(small) if 8.0 * abs(away) > min(chance, other) else 0.0
        first = entropy_part(chance, p, away, -abs(t) - log_one)
        return first + entropy_part(other, 1.0 / (1.0 + small), -away, -log_one)

    def domain(self, b: float) -> tuple[float, float]:
        return (-1.0, 0.0) if b > 0.0 else (0.0, 1.0)

    def dual_prox(self, zeta: float, h: float, b: float, start: float) -> float:
        inverse = 1.0 / h
        return -b * logistic_dual_prox(b * zeta * inverse, inverse - 4.0, b * start)

    def curvature_over(self, low: float, high: float, b: float) -> float:
        nearest = clip(0.0, low, high)
        return sigmoid(nearest) * sigmoid(-nearest)

    def margins_of(self, low: float, high: float, b: float) -> tuple[float, float]:
        # ℓ' is the probability of +1, less 1 where that is the label.
        shift = 1.0 if b > 0.0 else 0.0
        first, last = -math.inf, math.inf
        if low + shift > 0.0:
            first = math.log((low + shift) / (1.0 - shift - low)) if low + shift < 1.0 else math.inf
        if high + shift < 1.0:
            last = math.log((high + shift) / (1.0 - shift - high)) if high + shift > 0.0 else -math.inf
        return first, last

    def slope_at_root(self, target: float, c: float, b: float, start: float, ends: Ends) -> float:
        # c may be below −4 where the sigmoid is flat: the box says where G rises.
        r = b * target
        low, high = (ends[0], ends[1]) if b > 0.0 else (-ends[1], -ends[0])
        low, high = max(low, min(r, r + c)), min(high, max(r, r + c))
        return -b * bracketed_root(LogisticEquation(c, r), b * start, low, high, False)


# --------------------------------------------------------------------------- several classes


@inlined
def _largest(u: np.ndarray) -> int:
    """Return the place of the largest entry, the first of several."""
    top = 0
    for k in range(u.size):
        if u[k] > u[top]:
            top = k
    return top


@kernel
def _probabilities(u: np.ndarray, p: np.ndarray) -> int:
    """Write softmax(u) to ``p``, which may be u itself, and return the place of its largest entry."""
    top = _largest(u)
    largest = u[top]
    total = 0.0
    for k in range(u.size):
        p[k] = math.exp(u[k] - largest)
        total += p[k]
    for k in range(u.size):
        p[k] /= total
    return top


@register_loss
class Multinomial(NamedTuple("MultinomialParameters", [("n_classes", int)]), Loss):
    """Multinomial logistic loss of K margins, labels 0 … K − 1; β = 1/2.

    Parameters
    ----------
    n_classes : int
        K; 0 for as many as a problem's labels ask for.
    """

    name = "multinomial"
    task = "multiclass"
    label = "several classes, with probabilities"
    several_outputs = True
    link = "softmax"
    advice = "number your classes first"
    curvature_type = "continuous"
    likelihood = True
    beta = 0.5  # the largest eigenvalue that diag(p) − ppᵀ can have

    def __new__(cls, n_classes: int = 0) -> Multinomial:
        if n_classes != int(n_classes) or n_classes < 0:
            raise InputError(
                f"multinomial: n_classes must be a whole number of at least 1, got {n_classes!r}"
            )
        return super().__new__(cls, int(n_classes))

    @property
    def n_outputs(self) -> int:  # type: ignore[override]
        return self.n_classes

    def multiclass(self, n_classes: int) -> Multinomial:
        return Multinomial(n_classes)

    def valid_targets(self, y: np.ndarray) -> np.ndarray:
        return np.asarray((y == np.floor(y)) & (y >= 0.0) & (y < (self.n_classes or math.inf)))

    @property
    def wanted_targets(self) -> str:
        last = f" to {self.n_classes - 1}" if self.n_classes else ""
        return f"labels that are whole numbers from 0{last}"

    def outputs(self) -> int:
        return self.n_classes

    def point_of(self, numbers: np.ndarray) -> np.ndarray:
        return numbers

    def value(self, u: np.ndarray, b: float) -> float:
        label = int(b)
        top = _largest(u)
        others = 0.0
        for k in range(u.size):
            if k != top:
                others += math.exp(u[k] - u[top])
        return float(math.log1p(others) + (u[top] - u[label]))

    def conjugate(self, s: np.ndarray, b: float) -> float:
        # Σ p log p for p = s + e_label in the simplex.
        label = int(b)
        entropy = 0.0
        total = 0.0
        for k in range(s.size):
            if k != label:
                if s[k] < 0.0:
                    return math.inf
                total += s[k]
                if s[k] > 0.0:
                    entropy += s[k] * math.log(s[k])
        # Not a comparison with 1 + s, whose digits are gone where s is small.
        if not abs(total + s[label]) <= OUTSIDE or total > 1.0 + OUTSIDE:
            return math.inf
        if s[label] > -1.0:
            entropy += (1.0 + s[label]) * math.log1p(s[label])
        return entropy

    def divergence(self, u: np.ndarray, s: np.ndarray, b: float) -> float:
        # Σ a log(a/p) for a = s + e_label in the simplex and p = softmax(u).
        label = int(b)
        top = _largest(u)
        # What the other entries leave of 1 is the label's, with all its digits: a sum with its own rounding.
        left, carry, others = 1.0, 0.0, 0.0
        total = 0.0
        for k in range(u.size):
            if k != top:
                total += math.exp(u[k] - u[top])
            if k != label:
                if s[k] < 0.0:
                    return math.inf
                left, error = two_sum(left, -s[k])
                carry += error
                others += s[k]
        left += carry
        if left < -OUTSIDE or not abs(others + s[label]) <= OUTSIDE:
            return math.inf
        left = max(left, 0.0)
        log_total = math.log1p(total)
        total += 1.0
        out = 0.0
        away_top = 0.0  # the largest probability is 1 less the others
        for k in range(u.size):
            if k != top:
                a = s[k] if k != label else left
                p = math.exp(u[k] - u[top]) / total
                away_top -= a - p
                out += entropy_part(a, p, a - p, u[k] - u[top] - log_total)
        return out + entropy_part(s[top] if top != label else left, 1.0 / total, away_top, -log_total)

    def write_slope(self, margins: np.ndarray, b: float, weight: float) -> None:
        label = int(b)
        _probabilities(margins, margins)
        total = 0.0
        for k in range(margins.size):
            if k != label:
                margins[k] *= weight
                total += margins[k]
        margins[label] = -total

    def curvature_parts(self, slopes: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
        # w(diag(p) − ppᵀ) from w(p − e_label).
        parts = np.stack([slopes, np.zeros_like(slopes)])
        parts[0, np.arange(y.size), y.astype(np.int64)] += weights
        np.maximum(parts[0], 0.0, out=parts[0])
        roots = np.sqrt(weights)[:, None]
        np.divide(parts[0], roots, out=parts[1], where=roots > 0.0)
        return parts

    def clip_dual(self, dual: np.ndarray, b: float, weight: float) -> None:
        # s/w + e_label goes to the nearest point of the simplex.
        label = int(b)
        total = 0.0
        inside = True
        for k in range(dual.size):
            if k != label:
                inside = inside and dual[k] >= 0.0
                total += dual[k]
        if math.isnan(total + dual[label]):
            return  # of a run that diverged: nothing is made of it
        # Below w by more than the sum's rounding: what is certified lies inside, not a digit outside.
        slack = 2.0 * _EPS * dual.size
        most = weight * (1.0 - slack)
        if inside and total <= most and abs(total + dual[label]) <= OUTSIDE * weight:
            dual[label] = -total
            return
        # The nearest point is a shift that leaves the positive entries a sum of 1. Entries that a shift makes
        # negative stay so under the next, which is larger.
        shift = -math.inf
        counted = dual.size + 1
        while True:
            excess = -1.0
            count = 0
            for k in range(dual.size):
                if dual[k] / weight + (1.0 if k == label else 0.0) > shift:
                    excess += dual[k] / weight + (1.0 if k == label else 0.0)
                    count += 1
            if count == counted:
                break
            counted = count
            shift = excess / count
        total = 0.0
        for k in range(dual.size):
            if k != label:
                dual[k] = weight * max(dual[k] / weight - shift, 0.0)
                total += dual[k]
        if total > most:
            shrink, total = (most - weight * slack) / total, 0.0
            for k in range(dual.size):
                if k != label:
                    dual[k] *= shrink
                    total += dual[k]
        dual[label] = -total


@kernel
def _residual(
    u: np.ndarray, p: np.ndarray, target: np.ndarray, label: int, scale: float, out: np.ndarray
) -> float:
    """Write u + scale·(p − e_label) − target to ``out`` and return the sum of its squares."""
    others = 0.0
    for k in range(u.size):
        if k != label:
            others += p[k]
    total = 0.0
    for k in range(u.size):
        slope = p[k] if k != label else -others
        out[k] = u[k] + scale * slope - target[k]
        total += out[k] * out[k]
    return total


@kernel
def _newton_move(p: np.ndarray, top: int, scale: float, residual: np.ndarray, move: np.ndarray) -> float:
    """Write x with (I + scale·(diag p − ppᵀ))x = −residual to ``move``; return its largest entry.

    All entries but that of the largest probability are eliminated by D_k = 1 + scale·p_k, which is above 0
    because p_k ≤ 1/2 and scale > −2. A 2 × 2 system in x_top and τ = p·x is left, whose determinant p_top +
    D_top Σ' p_k/D_k is written without the difference that it is for a positive scale.
    """
    shares = 0.0
    pulls = 0.0
    for k in range(p.size):
        if k != top:
            weight = p[k] / (1.0 + scale * p[k])
            shares += weight
            pulls -= weight * residual[k]
    own = 1.0 + scale * p[top]
    determinant = p[top] + own * shares
    at_top = -residual[top]
    move[top] = (at_top * (p[top] + shares) + scale * p[top] * pulls) / determinant
    mean = (own * pulls + p[top] * at_top) / determinant
    largest = abs(move[top])
    for k in range(p.size):
        if k != top:
            move[k] = (scale * p[k] * mean - residual[k]) / (1.0 + scale * p[k])
            largest = max(largest, abs(move[k]))
    return float(largest)


@kernel
def multinomial_dual_prox(dual: np.ndarray, h: float, label: int, weight: float, room: np.ndarray) -> None:
    """Replace ζ by argmin_s ‖s − ζ‖²/(2h) + wℓ*(s/w) − ‖s‖²/w, for any h > 0.

    With s = w∇ℓ(u) that is u + C∇ℓ(u) = ζ/h for C = w/h − 2, which may be negative but is above −2: the
    gradient of a strictly convex function of u. Newton's steps decrease the sum of its squares.

    ``dual`` (K,) is ζ, and on return s. ``room`` (ROOM_ROWS, K) is memory to work in, whose first row holds a
    guess of u.
    """
    u, p, residual, move, trial = room[0], room[1], room[2], room[3], room[4]
    scale = weight / h - 2.0
    for k in range(dual.size):
        dual[k] /= h
    top = _probabilities(u, p)
    error = _residual(u, p, dual, label, scale, residual)
    largest = _newton_move(p, top, scale, residual, move)
    for _ in range(MOST_STEPS):
        if largest <= _SHORT_MOVE:
            break
        size = 1.0
        following = math.inf
        while size > _EPS:
            for k in range(u.size):
                trial[k] = u[k] + size * move[k]
            top = _probabilities(trial, p)
            following = _residual(trial, p, dual, label, scale, residual)
            if following < error:
                break
            size *= 0.5
        if not following < error:
            # No step is shorter: rounding. Back to where p was the best.
            top = _probabilities(u, p)
            _residual(u, p, dual, label, scale, residual)
            _newton_move(p, top, scale, residual, move)
            break
        error = following
        for k in range(u.size):
            u[k] = trial[k]
        largest = _newton_move(p, top, scale, residual, move)
    # The last move to first order in p itself: added to u it would be rounded away, and C may be large.
    mean = 0.0
    for k in range(p.size):
        mean += p[k] * move[k]
    total = 0.0
    for k in range(p.size):
        if k != label:
            dual[k] = weight * max(0.0, p[k] * (1.0 + (move[k] - mean)))
            total += dual[k]
    dual[label] = -total
