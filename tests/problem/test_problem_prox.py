"""Every dual prox is the argmin it is, to rounding, over inputs that include extreme ones."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from adfs.problem import losses
from adfs.problem.exponential_losses import logistic_dual_prox
from adfs.problem.losses import Loss, get_loss
from loss_cases import CASES, SMOOTH, case_id, constants_of

every = pytest.mark.parametrize("loss", CASES, ids=case_id)


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda exponent: 10.0**exponent)


def signed(low: float, high: float) -> st.SearchStrategy[float]:
    return st.tuples(st.sampled_from([-1.0, 1.0]), powers(low, high)).map(lambda pair: pair[0] * pair[1])


zetas = st.one_of(st.just(0.0), st.floats(-2.0, 2.0), signed(-6.0, 6.0))
steps = powers(-8.0, 8.0)
weights = st.one_of(st.just(1.0), powers(-3.0, 3.0))
starts = st.one_of(st.sampled_from([0.0, -1e6, 1e6, math.inf, -math.inf]), signed(-3.0, 6.0))
labels = st.sampled_from([-1.0, 1.0])
regression_targets = st.one_of(st.just(0.0), signed(-3.0, 3.0))


def reduced_slopes(loss: Loss, s: Fraction, b: Fraction) -> list[Fraction | None]:
    """Return the ends of ∂ℓ*(s; b) − s/β in exact arithmetic, None for an infinite one.

    ∂ℓ*(s) holds the margins at which s is a slope of the loss. At an end of its domain, to rounding, it
    reaches to infinity.
    """
    near = Fraction(1, 2**51)
    constants = {name: Fraction(number) for name, number in constants_of(loss).items()}
    low, high = losses.domain(loss, float(b))
    epsilon = constants.get("epsilon", Fraction(0))
    # In every class but one ℓ* has the curvature 1/β throughout: s/β takes it away.
    if loss.name == "expectile":
        level = constants["level"]
        c = 1 - level if s > 0 else level
        ends: list[Fraction | None] = [b + s / c - s / max(level, 1 - level)] * 2
    else:
        ends = [b - epsilon if s <= near else b + epsilon, b + epsilon if s >= -near else b - epsilon]
    if math.isfinite(low):
        assert s >= Fraction(low) - near
        ends[0] = None if s <= Fraction(low) + near else ends[0]
    if math.isfinite(high):
        assert s <= Fraction(high) + near
        ends[1] = None if s >= Fraction(high) - near else ends[1]
    return ends


@every
@settings(max_examples=100, deadline=None)
@given(zeta=zetas, h=steps, weight=weights, label=labels, target=regression_targets, start=starts)
def test_dual_prox_meets_its_optimality_condition(
    loss: Loss, zeta: float, h: float, weight: float, label: float, target: float, start: float
) -> None:
    """0 ∈ s − ζ + h(∂ℓ*(s/w) − s/(wβ)), to 1e-12 of 1 + |ζ| + h|b|."""
    b = label if loss.task == "classification" else target
    s = losses.weighted_dual_prox(loss, zeta, h, b, weight, start)
    tol = 1e-12 * (1.0 + abs(zeta) + h * abs(b))
    if loss.name == "logistic":
        assert_logistic_condition(s, zeta, h, b, weight, tol)
        return
    least, most = reduced_slopes(loss, Fraction(s) / Fraction(weight), Fraction(b))
    moved = Fraction(s) - Fraction(zeta)
    assert least is None or moved + Fraction(h) * least <= tol
    assert most is None or moved + Fraction(h) * most >= -tol


def assert_logistic_condition(s: float, zeta: float, h: float, b: float, weight: float, tol: float) -> None:
    """Evaluate s − ζ + h(u − 4s/w), s = wℓ'(u), in sixty digits, at s or between its neighbours.

    Near p = 1 one unit in the last place of s moves u by more than the tolerance; no double does better.
    """
    assert 0.0 <= -b * s <= weight

    def residual(p: Decimal) -> Decimal:
        t = ((1 - p) / p).ln()
        return -Decimal(weight) * p - Decimal(b) * Decimal(zeta) + Decimal(h) * (t + 4 * p)

    with localcontext() as context:
        context.prec = 60
        context.Emin = -100_000
        p = Decimal(-b * s) / Decimal(weight)
        unit = Decimal(2.0**-52)
        if 0 < p < 1 and abs(residual(p)) <= Decimal(tol):
            return
        under, over = p * (1 - 4 * unit), max(p * (1 + 4 * unit), Decimal("1e-300"))
        assert under == 0 or residual(under) >= -Decimal(tol)  # the residual falls as p grows
        assert over >= 1 or residual(over) <= Decimal(tol)


@settings(max_examples=600, deadline=None)
@given(zeta=zetas, h=steps, weight=weights, b=labels, start=starts)
def test_logistic_dual_prox_is_right_from_any_start(
    zeta: float, h: float, weight: float, b: float, start: float
) -> None:
    s = losses.weighted_dual_prox(get_loss("logistic"), zeta, h, b, weight, start)
    assert_logistic_condition(s, zeta, h, b, weight, 1e-12 * (1.0 + abs(zeta) + h))


@settings(max_examples=300, deadline=None)
@given(offset=signed(-9.0, 0.0), h=powers(2.0, 8.0), start=starts)
def test_logistic_dual_prox_is_right_where_the_equation_is_nearly_flat(
    offset: float, h: float, start: float
) -> None:
    # ζ/h = 2 and a large h: G, G' and G'' all but vanish at the root, and Newton alone converges linearly.
    zeta = 2.0 * h * (1.0 + offset)
    s = losses.weighted_dual_prox(get_loss("logistic"), zeta, h, 1.0, 1.0, start)
    assert_logistic_condition(s, zeta, h, 1.0, 1.0, 1e-12 * (1.0 + abs(zeta) + h))


class CountedExponentials:
    """The logistic equation interpreted, with the number of its exponentials."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._solve = logistic_dual_prox.py_func  # type: ignore[attr-defined]
        names = self._solve.__globals__
        monkeypatch.setitem(names, "bracketed_root", names["bracketed_root"].py_func)
        monkeypatch.setitem(names, "math", self)

    def exp(self, x: float) -> float:
        self.count += 1
        return math.exp(x)

    def __getattr__(self, name: str) -> Any:
        return getattr(math, name)

    def __call__(self, r: float, c: float, start: float) -> float:
        self.count = 0
        return float(self._solve(r, c, start))


def test_logistic_dual_prox_takes_few_exponentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few exponentials over hard inputs, bisections included."""
    solve = CountedExponentials(monkeypatch)
    rng = np.random.default_rng(1)
    most = 0
    for _ in range(4000):
        r = float(rng.normal() * 10.0 ** rng.uniform(-3, 14))
        c = 10.0 ** float(rng.uniform(-8, 11)) - 4.0
        start = float(rng.choice([-1e6, 0.0, 1e6, r]))
        assert 0.0 <= solve(r, c, start) <= 1.0
        most = max(most, solve.count)
    assert most <= 35


@pytest.mark.parametrize(("distance", "most"), [(1e-5, 1), (0.2, 2), (0.5, 3)])
def test_logistic_dual_prox_is_faster_from_a_warm_start(
    monkeypatch: pytest.MonkeyPatch, distance: float, most: int
) -> None:
    solve = CountedExponentials(monkeypatch)
    for c in (1e-3, 1.0, 1e3, 1e6):
        for t in (-3.0, 0.2, 5.0):
            p = 1.0 / (1.0 + math.exp(t))
            assert solve(t - c * p, c, t + distance) == pytest.approx(p, rel=1e-12 * max(1.0, c / 1e3))
            assert solve.count <= most
    p = 1.0 / (1.0 + math.exp(0.2))
    assert solve(0.2 + 3.9 * p, -3.9, 0.2 + 1e-5) == pytest.approx(p, rel=1e-12)
    assert solve.count <= 3


def objective(loss: Loss, s: float, zeta: float, h: float, b: float, weight: float) -> float:
    low, high = losses.domain(loss, b)
    conjugate = weight * losses.conjugate(loss, min(max(s / weight, low), high), b)
    return (s - zeta) ** 2 / (2 * h) + conjugate - s * s / (2 * weight * loss.beta)


@every
def test_dual_prox_is_the_numerical_argmin(loss: Loss) -> None:
    rng = np.random.default_rng(7)
    for b in (-1.0, 1.0):
        for _ in range(25):
            zeta, h, weight = rng.normal(), 10.0 ** rng.uniform(-1, 1), 10.0 ** rng.uniform(-0.5, 0.5)
            low, high = losses.domain(loss, b)
            low, high = max(weight * low, -20.0), min(weight * high, 20.0)
            s = losses.weighted_dual_prox(loss, zeta, h, b, weight, 0.0)
            arguments = (zeta, h, b, weight)
            found = minimize_scalar(
                lambda t, a=arguments: objective(loss, t, *a),
                bounds=(low, high),
                method="bounded",
                options={"xatol": 1e-9},
            )
            reached = objective(loss, s, *arguments)
            assert reached <= found.fun + 1e-13 * (1.0 + abs(found.fun))
            assert s == pytest.approx(found.x, abs=1e-4 * (1.0 + abs(s)))


@pytest.mark.parametrize("loss", SMOOTH, ids=case_id)
def test_dual_prox_stays_at_a_solution(loss: Loss) -> None:
    """With ζ = s + h(u − s/β) and s = ℓ'(u), the prox is s: the tips of a solution stay where they are."""
    rng = np.random.default_rng(9)
    for b in (-1.0, 1.0):
        for _ in range(100):
            u, h = rng.normal(scale=2.0), 10.0 ** rng.uniform(-3, 1)
            s = losses.derivative(loss, u, b)
            zeta = s + h * (u - s / loss.beta)
            assert losses.dual_prox(loss, zeta, h, b, u) == pytest.approx(s, abs=1e-13 * (1.0 + abs(zeta)))


@every
@settings(max_examples=50, deadline=None)
@given(zeta=st.floats(-5.0, 5.0), h=powers(-2.0, 2.0), weight=powers(-1.0, 1.0), b=labels)
def test_weighted_conjugate_prox_meets_the_identity_of_moreau(
    loss: Loss, zeta: float, h: float, weight: float, b: float
) -> None:
    """argmin (s − ζ)²/(2h) + wℓ*(s/w) is s = wℓ'(u) with u = (ζ − s)/h: Moreau's identity."""
    s = losses.weighted_conjugate_prox(loss, loss.beta, zeta, h, b, weight, 0.0)
    margin = (zeta - s) / h
    if loss.smooth:
        assert s == pytest.approx(weight * losses.derivative(loss, margin, b), abs=2e-12 * (1.0 + 1.0 / h))
    low, high = losses.domain(loss, b)
    conjugate = weight * losses.conjugate(loss, min(max(s / weight, low), high), b)
    young = weight * losses.value(loss, margin, b) + conjugate - s * margin
    assert abs(young) <= 1e-10 * (1.0 + margin**2) * weight
