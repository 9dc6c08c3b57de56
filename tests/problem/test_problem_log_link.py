"""Losses with a log link: their functions fit each other, proxes solve what they say, certificates hold."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

import adfs
from adfs.algorithms import METHODS, Setting
from adfs.problem import losses
from adfs.problem.exponential_losses import exponential_root
from adfs.problem.losses import Loss, get_loss
from adfs.problem.samples import ShiftedLabel
from adfs.stages.boxes import first_curvatures, with_curvatures
from adfs.theory import AugmentedGraph, Parameters
from literal_adfs import MeanLagAdfs
from literal_methods import BoxedTerms

POISSON, GAMMA, TWEEDIE = get_loss("poisson"), get_loss("gamma"), get_loss("tweedie", power=1.5)
CASES = [
    *((POISSON, b) for b in (0.0, 3.0, 250.0)),
    *((GAMMA, b) for b in (0.02, 7.0)),
    *((get_loss("tweedie", power=power), b) for power in (1.05, 1.5, 1.98) for b in (0.0, 0.02, 40.0)),
]
every = pytest.mark.parametrize(("loss", "b"), CASES, ids=lambda one: str(one))


@every
def test_log_link_functions_fit_each_other(loss: Loss, b: float) -> None:
    for u in np.linspace(-6.0, 6.0, 41):
        step = 1e-6
        scale = 1.0 + losses.curvature(loss, u + step, b)
        slope = (losses.value(loss, u + step, b) - losses.value(loss, u - step, b)) / (2 * step)
        assert slope == pytest.approx(losses.derivative(loss, u, b), abs=1e-8 * scale + 1e-8 * b)
        bend = (losses.derivative(loss, u + step, b) - losses.derivative(loss, u - step, b)) / (2 * step)
        assert bend == pytest.approx(losses.curvature(loss, u, b), abs=1e-7 * scale + 1e-7 * b)
        s = losses.derivative(loss, u, b)
        size = 1.0 + abs(s * u) + losses.value(loss, u, b) + b
        assert losses.value(loss, u, b) + losses.conjugate(loss, s, b) == pytest.approx(
            s * u, abs=1e-13 * size
        )
        lowest, highest = losses.domain(loss, b)
        for other in (s + 0.1 * scale, s - 0.1 * scale):
            if not lowest <= other <= highest:
                assert losses.divergence(loss, u, other, b) == losses.conjugate(loss, other, b) == math.inf
                continue
            plain = losses.value(loss, u, b) + losses.conjugate(loss, other, b) - u * other
            assert losses.divergence(loss, u, other, b) == pytest.approx(plain, rel=1e-9, abs=1e-12 * size)
        first, last = type(loss).margins_of(loss, s, s, b)  # type: ignore[attr-defined]
        assert first == last == pytest.approx(u, abs=1e-12 * (1.0 + b / losses.curvature(loss, u, b)))


@pytest.mark.parametrize("name", ["poisson", "gamma"])
def test_log_link_divergence_keeps_its_digits_near_equality(name: str) -> None:
    loss, rng = get_loss(name), np.random.default_rng(2)
    with localcontext() as context:
        context.prec = 120
        for _ in range(100):
            b = float(rng.integers(1, 20)) if name == "poisson" else float(rng.gamma(1.0))
            u = float(rng.normal() * 2.0)
            away = losses.curvature(loss, u, b) * float(rng.uniform(-1.0, 1.0) * 10.0 ** rng.uniform(-14, 0))
            s = losses.derivative(loss, u, b) + away
            mean = Decimal(u).exp() if name == "poisson" else Decimal(b) * Decimal(-u).exp()
            own = Decimal(s) + Decimal(b) if name == "poisson" else 1 - Decimal(s)
            true = float(own * (own / mean).ln() - own + mean)
            slack = 16.0 * np.finfo(float).eps * math.sqrt(float(mean)) * (1.0 + b)
            found = losses.divergence(loss, u, s, b)
            assert math.sqrt(true) <= math.sqrt(found) * (1.0 + 1e-13) + slack
            assert math.sqrt(found) <= math.sqrt(true) * (1.0 + 1e-13) + slack


def _tweedie_in_decimals(power: float, u: float, s: float, b: float) -> Decimal:
    """Return ℓ(u; b) + ℓ*(s; b) − us, b > 0; the margin of s by bisection."""
    p, here, dual, target = (Decimal(number) for number in (power, u, s, b))
    a, c = p - 1, 2 - p

    def value(t: Decimal) -> Decimal:
        return (c * t).exp() / c + target * (-a * t).exp() / a

    low, high = Decimal(-100_000), Decimal(100_000)
    for _ in range(180):
        middle = (low + high) / 2
        rises = (c * middle).exp() - target * (-a * middle).exp() > dual
        low, high = (low, middle) if rises else (middle, high)
    return value(here) - value(low) - dual * (here - low)


def test_tweedie_divergence_is_never_below_the_exact_one() -> None:
    rng = np.random.default_rng(4)
    with localcontext() as context:
        context.prec = 50
        for _ in range(60):
            power = float(rng.choice([1.001, 1.2, 1.5, 1.9, 1.999]))
            loss = get_loss("tweedie", power=power)
            b = float(rng.gamma(1.0) * rng.choice([1e-8, 1.0, 1e5]))
            u = math.log(b) + float(rng.normal() * 4.0)
            bend = losses.curvature(loss, u, b)
            s = losses.derivative(loss, u, b) + bend * float(
                rng.uniform(-1.0, 1.0) * 10.0 ** rng.uniform(-15, 1)
            )
            true = float(_tweedie_in_decimals(power, u, s, b))
            found = losses.divergence(loss, u, s, b)
            slack = 64.0 * np.finfo(float).eps * math.sqrt(bend) * (3.0 + abs(u))
            assert found >= true * (1.0 - 1e-13)
            slack /= min(power - 1.0, 2.0 - power)
            assert math.sqrt(found) <= math.sqrt(true) * (1.0 + 1e-13) + slack


@given(
    power=st.floats(1.01, 1.99),
    log_b=st.floats(-30.0, 30.0),
    s=st.floats(-1e6, 1e6),
    start=st.floats(-1e3, 1e3),
)
@settings(max_examples=200, deadline=None)
def test_tweedie_roots_are_found_from_anywhere(power: float, log_b: float, s: float, start: float) -> None:
    loss, b = get_loss("tweedie", power=power), math.exp(log_b)
    margin = type(loss).margins_of(loss, s, s, b)[0]  # type: ignore[attr-defined]
    size = losses.curvature(loss, margin, b) * (1.0 + abs(margin)) / min(power - 1.0, 2.0 - power)
    assert losses.derivative(loss, margin, b) == pytest.approx(s, abs=1e-14 * (size + abs(s)))
    # The bound of the error is part of the divergence at the margin itself.
    assert losses.divergence(loss, margin, s, b) <= 1e-24 * size * (1.0 + abs(margin))
    # The dual prox, and the margins with a curvature of at most β.
    found = losses.dual_prox(loss, s, 0.7, b, start)
    first, last = type(loss).margins_of(loss, found, found, b)  # type: ignore[attr-defined]
    size = losses.curvature(loss, first, b) / min(power - 1.0, 2.0 - power)
    assert first == last
    assert found + 0.7 * first == pytest.approx(s, abs=1e-13 * (size + 1.0) * (1.0 + abs(first)))
    beta = 2.0 * b ** (2.0 - power)
    for end in type(loss).flatter(loss, beta, b):  # type: ignore[attr-defined]
        assert losses.curvature(loss, end, b) == pytest.approx(beta, rel=1e-11)


@given(
    r=st.floats(-600.0, 600.0),
    log_c=st.floats(-300.0, 300.0),
    start=st.floats(-1e3, 1e3),
)
@settings(max_examples=300, deadline=None)
def test_exponential_root_is_found_from_anywhere(r: float, log_c: float, start: float) -> None:
    c = math.exp(log_c)
    m = exponential_root(r, c, start)
    rounding = 16.0 * np.finfo(float).eps * (1.0 + abs(r) + abs(log_c))
    if m > 1e-250:
        # In logarithms, where nothing overflows: w + log w = r + log c for w = c·m.
        w = math.exp(log_c + math.log(m)) if log_c + math.log(m) < 700.0 else math.inf
        assert w + math.log(m) - r == pytest.approx(0.0, abs=rounding * (1.0 + w))
    if r <= -log_c - 1.5:
        m = exponential_root(r, -c, start)
        if m > 1e-250:
            assert math.log(m) - c * m - r == pytest.approx(0.0, abs=rounding)


@every
def test_log_link_prox_solves_its_condition(loss: Loss, b: float) -> None:
    offset, weight = 0.3, 1.7
    for h in (0.01, 1.0, 30.0):
        for zeta in (-3.0, -0.2, 0.4, 5.0):

            def slope(u: float, h: float = h, zeta: float = zeta) -> float:
                """Of the step's objective, at the tip whose margin is u."""
                return (weight * losses.derivative(loss, u, b) - zeta) / h + u - offset

            best = brentq(slope, -600.0, 600.0, xtol=1e-13)
            found = losses.weighted_dual_prox(loss, zeta, h, ShiftedLabel(b, offset), weight, 0.0)
            assert found == pytest.approx(weight * losses.derivative(loss, best, b), rel=1e-9, abs=1e-9)


def test_adfs_kernels_have_the_prox_of_the_terms() -> None:
    """One computation of ADFS and of its literal twin, on boxed samples with offsets."""
    rng = np.random.default_rng(5)
    for name in ("poisson", "gamma", "tweedie"):
        X, y = rng.standard_normal((12, 3)), rng.gamma(2.0, 1.0, 12)
        plain = adfs.Problem(X, y, loss=name, sigma=0.5, n_nodes=3, offset=rng.normal(size=12))
        beta = first_curvatures(plain, None, lambda values: values.sum(axis=0))
        view = with_curvatures(plain, beta)
        network = adfs.Network("path:3")
        parameters = Parameters.tuned(view, network)
        process = METHODS["adfs"].start(Setting(view, network, parameters, seed=0))
        graph = AugmentedGraph(BoxedTerms(plain, view.margins), network, parameters)
        twin = MeanLagAdfs(graph)
        state = twin.start()
        dual_of_row = np.full(12, -1)
        dual_of_row[graph.tip_rows] = np.arange(graph.n_tips)
        for end, events in process.schedule.windows(0.0, 400.0):
            process.run(events, 0, events.time.size)
            process.position = end
            for time, actor, sample in zip(*(array.tolist() for array in events), strict=True):
                edge = actor - 3 if actor >= 3 else graph.n_communication + dual_of_row[sample]
                state = twin.step(state, edge, time)
        expected = twin.iterates(state, 400.0).x[:3]
        assert process.primal() * 0.5 == pytest.approx(expected, rel=1e-9, abs=1e-11)


@given(
    seed=st.integers(0, 2**32 - 1),
    name=st.sampled_from(["poisson", "gamma", "tweedie"]),
    spread=st.floats(-2.0, 1.0),
)
@settings(max_examples=30, deadline=None)
def test_log_link_certificate_is_never_below_the_true_error(seed: int, name: str, spread: float) -> None:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((12, 3)) * 10.0 ** (spread * rng.uniform(size=3))
    offset = rng.normal(size=12)
    mean = np.exp(np.clip(X @ rng.normal(size=3) + offset, -3.0, 4.0))
    y = rng.poisson(mean).astype(float) if name == "poisson" else mean * rng.gamma(1.0, 1.0, 12) + 1e-9
    if name == "tweedie":
        y[::3] = 0.0
    if not y.any():
        y[0] = 1.0
    problem = adfs.Problem(X, y, loss=name, sigma=float(10.0 ** rng.uniform(-4, 1)), n_nodes=3, offset=offset)
    best = problem.optimum()
    assert best.gap <= 1e-11
    for tol in (1e-2, 1e-5, 1e-9):
        run = adfs.simulate("adfs", problem, "path:3", tol=tol, max_passes=200)
        error = (problem.objective(run.coef) - best.value) / problem.value_at_zero
        assert error <= run.gap + 1e-13
