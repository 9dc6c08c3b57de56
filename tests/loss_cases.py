"""The losses the tests of this room run on, one of them written here the way a user would write it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from adfs.problem.losses import LOSSES, Loss, get_loss


class Expectile(NamedTuple("ExpectileConstants", [("level", float)]), Loss):
    """Asymmetric squared loss ½c(u − b)², c = 1 − level above the target and level below; β = max c."""

    __slots__ = ()
    name = "expectile"
    task = "regression"

    @property
    def beta(self) -> float:
        return max(self.level, 1.0 - self.level)

    @staticmethod
    def value(loss: Expectile, u: float, b: float) -> float:
        c = 1.0 - loss.level if u > b else loss.level
        return 0.5 * c * (u - b) * (u - b)

    @staticmethod
    def derivative(loss: Expectile, u: float, b: float) -> float:
        return (1.0 - loss.level if u > b else loss.level) * (u - b)

    @staticmethod
    def curvature(loss: Expectile, u: float, b: float) -> float:
        return 1.0 - loss.level if u > b else loss.level

    @staticmethod
    def conjugate(loss: Expectile, s: float, b: float) -> float:
        return 0.5 * s * s / (1.0 - loss.level if s > 0.0 else loss.level) + b * s

    @staticmethod
    def domain(loss: Expectile, b: float) -> tuple[float, float]:
        return -math.inf, math.inf

    @staticmethod
    def dual_prox(loss: Expectile, zeta: float, h: float, b: float, start: float) -> float:
        s = zeta - h * b
        c = 1.0 - loss.level if s > 0.0 else loss.level
        return s / (1.0 + h * (1.0 / c - 1.0 / max(loss.level, 1.0 - loss.level)))


# Losses with a log link take other targets: tests/problem/test_problem_log_link.py.
ONE_OUTPUT = [name for name, cls in LOSSES.items() if not cls.several_outputs and cls.link != "log"]
CASES: list[Loss] = [
    *(get_loss(name) for name in ONE_OUTPUT),
    get_loss("smoothed_hinge", width=2.0),
    get_loss("huber", delta=0.3),
    get_loss("quantile", quantile=0.9),
    get_loss("smoothed_quantile", quantile=0.2, width=0.01),
    get_loss("epsilon_insensitive", epsilon=0.0),
    get_loss("epsilon_insensitive", epsilon=1.5),
    Expectile(0.8),
]
SMOOTH = [loss for loss in CASES if loss.smooth]
# Every loss with every kind of rows is another set of kernels to compile, and what walks over rows does not
# know the loss: sparse rows are tried with a few.
FEW = frozenset({"logistic", "squared", "hinge"})
ON_SPARSE_ROWS = [loss for loss in CASES if loss.name in FEW]


def few_of(losses: Iterable[str], *quick: str) -> list[Any]:
    """Return the losses, all but a few for the long tests: each is another kernel to compile."""
    kept = quick or FEW
    return [name if name in kept else pytest.param(name, marks=pytest.mark.soak) for name in losses]


def with_rows(losses: list[Loss]) -> list[Any]:
    """Return the cases (loss, whether rows are sparse)."""
    cases = [(loss, sparse) for sparse in (False, True) for loss in losses]
    return [
        pytest.param(loss, sparse, id=f"{'csr' if sparse else 'dense'}-{case_id(loss)}")
        for loss, sparse in cases
        if loss.name in FEW or not sparse
    ]


def constants_of(loss: Loss) -> dict[str, float]:
    assert isinstance(loss, tuple)
    return dict(loss._asdict())  # type: ignore[attr-defined]


def case_id(loss: Loss) -> str:
    return "-".join([loss.name, *(format(number, "g") for number in constants_of(loss).values())])
