"""Every loss: its functions fit each other, are finite at the tails, and compile to the same bits."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from adfs.compilation import compiled
from adfs.errors import InputError
from adfs.problem import Problem, losses
from adfs.problem.exponential_losses import logistic_dual_prox, sigmoid
from adfs.problem.line_losses import Huber
from adfs.problem.losses import LOSSES, Loss, get_loss, register_loss
from loss_cases import CASES, SMOOTH, Expectile, case_id, constants_of

every = pytest.mark.parametrize("loss", CASES, ids=case_id)


def targets(loss: Loss) -> tuple[float, ...]:
    return (-1.0, 1.0) if loss.task == "classification" else (-2.3, 0.0, 1.7)


def kinks(loss: Loss, b: float) -> list[float]:
    """Where a derivative jumps or a curvature does; both are compared away from these only."""
    constants = constants_of(loss)
    width = constants.get("width", 0.0)
    if loss.task == "classification":
        return [b * 1.0, b * (1.0 - width)]
    quantile = constants.get("quantile", 0.5)
    shifts = [0.0, constants.get("delta", 0.0), constants.get("epsilon", 0.0)]
    shifts += [width * quantile, width * (1.0 - quantile)]
    return [b + sign * shift for shift in shifts for sign in (-1.0, 1.0)]


def margins(loss: Loss, b: float, count: int = 200) -> list[float]:
    rng = np.random.default_rng(3)
    drawn = b + rng.standard_normal(count) * rng.choice([0.01, 1.0, 5.0], count)
    return [float(u) for u in drawn if min(abs(u - kink) for kink in kinks(loss, b)) > 1e-3]


@every
def test_loss_derivative_is_the_slope_of_the_value(loss: Loss) -> None:
    for b in targets(loss):
        for u in margins(loss, b):
            step = 1e-5
            slope = (losses.value(loss, u + step, b) - losses.value(loss, u - step, b)) / (2 * step)
            assert slope == pytest.approx(losses.derivative(loss, u, b), abs=2e-9 * (1 + abs(u)))


@every
def test_loss_curvature_is_the_slope_of_the_derivative(loss: Loss) -> None:
    for b in targets(loss):
        for u in margins(loss, b):
            step = 1e-5
            slope = (losses.derivative(loss, u + step, b) - losses.derivative(loss, u - step, b)) / (2 * step)
            assert slope == pytest.approx(losses.curvature(loss, u, b), abs=1e-8)


@every
def test_loss_value_is_convex_and_least_at_the_label(loss: Loss) -> None:
    for b in targets(loss):
        grid = np.linspace(-8.0, 8.0, 401)
        values = np.array([losses.value(loss, u, b) for u in grid])
        slopes = np.array([losses.derivative(loss, u, b) for u in grid])
        assert np.all(values >= 0.0)
        assert np.all(np.diff(slopes) >= 0.0)
        if loss.task == "regression":
            assert losses.value(loss, b, b) == 0.0


@pytest.mark.parametrize("loss", SMOOTH, ids=case_id)
def test_loss_beta_is_the_largest_curvature(loss: Loss) -> None:
    for b in targets(loss):
        centre = b * (1.0 - 1e-9) if loss.name != "logistic" else 0.0
        grid = np.concatenate([np.linspace(-5.0, 5.0, 2001), b + np.linspace(-1e-3, 1e-3, 11), [centre]])
        bends = [losses.curvature(loss, float(u), b) for u in grid]
        assert max(bends) == pytest.approx(loss.beta, rel=1e-15)


@every
def test_loss_conjugate_meets_fenchel_young_exactly_at_the_derivative(loss: Loss) -> None:
    for b in targets(loss):
        for u in margins(loss, b):
            s = losses.derivative(loss, u, b)
            left = losses.value(loss, u, b) + losses.conjugate(loss, s, b)
            assert left == pytest.approx(s * u, abs=4e-15 * (1 + u * u))


@every
def test_loss_conjugate_meets_fenchel_young_elsewhere(loss: Loss) -> None:
    rng = np.random.default_rng(5)
    for b in targets(loss):
        low, high = losses.domain(loss, b)
        low, high = max(low, -6.0), min(high, 6.0)
        for u, share in zip(rng.normal(scale=4.0, size=300), rng.uniform(size=300), strict=True):
            s = low + share * (high - low)
            excess = losses.value(loss, u, b) + losses.conjugate(loss, s, b) - s * u
            assert excess >= -1e-13


@every
def test_loss_conjugate_is_the_supremum_on_a_grid(loss: Loss) -> None:
    grid = np.linspace(-30.0, 30.0, 60_001)
    for b in targets(loss):
        values = np.array([losses.value(loss, u, b) for u in grid])
        low, high = losses.domain(loss, b)
        low, high = max(low, -4.0), min(high, 4.0)
        for share in (0.0, 0.02, 0.3, 0.5, 0.9, 0.98, 1.0):
            s = low + share * (high - low)
            found = float(np.max(s * grid - values))
            assert found <= losses.conjugate(loss, s, b) + 1e-12
            assert found >= losses.conjugate(loss, s, b) - 1e-3  # half a grid step times the slope


@every
def test_loss_conjugate_is_infinite_outside_the_domain_alone(loss: Loss) -> None:
    for b in targets(loss):
        low, high = losses.domain(loss, b)
        assert low <= 0.0 <= high
        for end, out in ((low, -math.inf), (high, math.inf)):
            if math.isfinite(end):
                assert math.isfinite(losses.conjugate(loss, end, b))
                assert losses.conjugate(loss, math.nextafter(end, out), b) == math.inf
                assert losses.conjugate(loss, end + math.copysign(1.0, out), b) == math.inf
            else:
                assert math.isfinite(losses.conjugate(loss, math.copysign(1e100, end), b))


@every
@pytest.mark.parametrize("size", [1e3, 1e6, 1e100, 1e300])
def test_loss_tails_are_finite_and_right(loss: Loss, size: float) -> None:
    grows_as_square = loss.name in {"squared", "squared_hinge", "expectile"}
    for b in targets(loss):
        low, high = losses.domain(loss, b)
        for u in (-size, size):
            s, curvature = losses.derivative(loss, u, b), losses.curvature(loss, u, b)
            assert math.isfinite(s)
            assert low <= s <= high
            assert 0.0 <= curvature <= loss.beta
            value = losses.value(loss, u, b)
            if grows_as_square and size > 1e100:
                continue  # the square itself leaves the range of doubles
            assert math.isfinite(value)
            if not grows_as_square:
                slope = low if u < 0.0 else high
                assert value == pytest.approx(slope * (u - b), rel=1e-2 if size < 1e4 else 1e-5)


def test_logistic_loss_tails_keep_their_relative_precision() -> None:
    loss = get_loss("logistic")
    for t in (40.0, 200.0, 700.0):
        assert losses.value(loss, t, 1.0) == pytest.approx(math.exp(-t), rel=1e-15)
        assert losses.derivative(loss, t, 1.0) == pytest.approx(-math.exp(-t), rel=1e-15)
        assert losses.curvature(loss, -t, 1.0) == pytest.approx(math.exp(-t), rel=1e-15)
        assert losses.value(loss, -t, 1.0) == pytest.approx(t, rel=1e-15)
        assert losses.derivative(loss, -t, 1.0) == -1.0


def bits(number: float) -> str:
    return float(number).hex()


@compiled
def all_functions(loss: Loss, u: float, s: float, zeta: float, h: float, b: float) -> np.ndarray:
    low, high = losses.domain(loss, b)
    return np.array(
        [
            losses.value(loss, u, b),
            losses.derivative(loss, u, b),
            losses.curvature(loss, u, b),
            losses.conjugate(loss, s, b),
            low,
            high,
            losses.dual_prox(loss, zeta, h, b, u),
        ]
    )


@every
def test_loss_functions_have_the_same_bits_interpreted_and_compiled(loss: Loss) -> None:
    rng = np.random.default_rng(11)
    for b in targets(loss):
        low, high = losses.domain(loss, b)
        for _ in range(60):
            u, zeta = rng.normal(scale=10.0 ** rng.uniform(-3, 3), size=2)
            h = 10.0 ** rng.uniform(-8, 8)
            s = float(np.clip(rng.normal(), low, high))
            kernel = all_functions(loss, float(u), s, float(zeta), h, b)
            python = [
                losses.value(loss, u, b),
                losses.derivative(loss, u, b),
                losses.curvature(loss, u, b),
                losses.conjugate(loss, s, b),
                *losses.domain(loss, b),
                type(loss).dual_prox(loss, float(zeta), h, b, float(u)),  # type: ignore[attr-defined]
            ]
            assert [bits(number) for number in kernel] == [bits(number) for number in python]


def test_logistic_dual_prox_has_the_same_bits_interpreted() -> None:
    interpreted = logistic_dual_prox.py_func  # type: ignore[attr-defined]
    rng = np.random.default_rng(0)
    for _ in range(2000):
        r = float(rng.normal() * 10.0 ** rng.uniform(-3, 8))
        c = 10.0 ** float(rng.uniform(-8, 8)) - 4.0
        start = float(rng.normal() * 10.0 ** rng.uniform(-3, 6))
        assert bits(logistic_dual_prox(r, c, start)) == bits(interpreted(r, c, start))
        assert bits(sigmoid(r)) == bits(sigmoid.py_func(r))  # type: ignore[attr-defined]


# --------------------------------------------------------------------------- names and constants


def test_get_loss_takes_a_name_with_constants() -> None:
    assert get_loss("huber", delta=1.35) == Huber(1.35)
    assert get_loss("squared_hinge").name == "squared_hinge"
    assert get_loss(Huber(2.0)) == Huber(2.0)
    assert all(get_loss(name).name == name for name in LOSSES)
    assert repr(get_loss("smoothed_quantile", quantile=0.1)) == "SmoothedQuantile(quantile=0.1, width=0.5)"


@pytest.mark.parametrize(
    ("name", "constants", "sentence"),
    [
        ("logstic", {}, "unknown loss 'logstic': did you mean 'logistic'?"),
        ("huber", {"detla": 1.0}, "unknown parameter of the loss 'huber' 'detla': did you mean 'delta'?"),
        ("logistic", {"delta": 1.0}, "unknown parameter of the loss 'logistic' 'delta'"),
        ("huber", {"delta": 0.0}, "huber: delta must be finite and above 0, got 0.0"),
        ("huber", {"delta": math.nan}, "huber: delta must be finite and above 0, got nan"),
        ("smoothed_hinge", {"width": -1.0}, "smoothed_hinge: width must be finite and above 0"),
        ("quantile", {"quantile": 1.0}, "quantile: quantile must lie strictly between 0 and 1, got 1.0"),
        ("smoothed_quantile", {"quantile": math.nan}, "quantile must lie strictly between 0 and 1, got nan"),
        ("epsilon_insensitive", {"epsilon": -0.1}, "epsilon must be finite and at least 0, got -0.1"),
        (Huber(1.0), {"delta": 2.0}, "parameters ['delta'] were given beside a loss that already has its"),
        (3, {}, "loss must be a name or a Loss, got int"),
    ],
)
def test_get_loss_refuses_bad_names_and_constants(
    name: str, constants: dict[str, float], sentence: str
) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        get_loss(name, **constants)


def test_register_loss_makes_a_loss_work_in_a_problem_and_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(LOSSES, "expectile", raising=False)
    monkeypatch.setitem(LOSSES, "squared", LOSSES["squared"])  # so that the registry is put back as it was
    register_loss(Expectile)
    try:
        loss = get_loss("expectile", level=0.7)
    finally:
        del LOSSES["expectile"]
    assert loss == Expectile(0.7)
    rng = np.random.default_rng(2)
    X, y = rng.standard_normal((30, 4)), rng.standard_normal(30)
    problem = Problem(X, y, loss, sigma=0.3, n_nodes=3)
    theta = rng.standard_normal(4)
    residual = X @ theta - y
    scale = np.where(residual > 0.0, 0.3, 0.7)
    expected = 0.5 * (scale * residual**2).sum() + 0.45 * theta @ theta
    assert problem.objective(theta) == pytest.approx(expected, rel=1e-14)
    found = problem.optimum()
    assert found.gap <= 1e-12
    weighted = np.where(X @ found.theta - y > 0.0, 0.3, 0.7)
    solved = np.linalg.solve(X.T @ (weighted[:, None] * X) + 0.9 * np.eye(4), X.T @ (weighted * y))
    np.testing.assert_allclose(found.theta, solved, rtol=0, atol=1e-12)


def test_register_loss_refuses_what_is_not_a_loss() -> None:
    class Bare(Loss):
        name = "bare"

    with pytest.raises(InputError, match="Bare must derive from a NamedTuple of its constants"):
        register_loss(Bare)
    with pytest.raises(NotImplementedError, match="define `beta`"):
        _ = Bare().beta
