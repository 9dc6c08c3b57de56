"""Newton's method: Hessians and gradients summed over the nodes, steps shortened where F asks for it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import numpy as np
from scipy.linalg import lapack

from adfs.algorithms.base import (
    Method,
    OnePoint,
    RoundEffort,
    Setting,
    Work,
    register_method,
)
from adfs.algorithms.costs import matrix_work
from adfs.algorithms.hessian_kernels import fill_hessian, fill_values, inner_product, small_newton_move
from adfs.algorithms.round_process import Gossip, RoundProcess, no_gossip
from adfs.errors import InputError
from adfs.network import Network
from adfs.problem import FiniteSum, get_loss
from adfs.problem.evaluation import loss_slopes
from adfs.theory import Facts, NewtonParameters, NodeSizes, NodeSummary
from adfs.threads import single_threaded

MOST_FEATURES = 5000
_BAND_NUMBERS = 2**22  # of all nodes' Hessians at once: a band of rows after the other
_ARMIJO = 1e-4
_FLAT = 2.0**-48  # changes of F below this, relative to F, are rounding
_FEW_FEATURES = 64
_FEW_TRIES, _MOST_TRIES = 4, 40
_RIDGES = (0.0, 1e-14, 1e-12, 1e-10, 1e-8, 1e-4, 1.0)
_VALUE, _KNOWN, _STUCK = range(3)
_SQUARED = get_loss("squared")


def newton_move(hessian: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Return −H⁻¹∇F from the upper triangle of H (d, d), whatever the units of the features; shape (d,).

    H is scaled to a diagonal of ones, which no choice of units changes. Where it is not positive definite to
    rounding, a small multiple of the identity is added: the step is then shorter, and the next one goes on.
    """
    if gradient.size <= _FEW_FEATURES:
        return small_newton_move(hessian, gradient, _RIDGES)
    return lapack_newton_move(hessian, gradient)


@single_threaded
def lapack_newton_move(hessian: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Return the same for any number of features."""
    diagonal = np.diagonal(hessian)
    scale = 1.0 / np.sqrt(np.where(diagonal > 0.0, diagonal, 1.0))
    scaled = scale[:, None] * hessian * scale
    for ridge in _RIDGES:
        ridged = scaled + ridge * np.eye(gradient.size) if ridge > 0.0 else scaled
        factor, failed = lapack.dpotrf(ridged, lower=0, clean=0)
        if not failed:
            solved, _ = lapack.dpotrs(factor, scale * gradient, lower=0)
            return np.asarray(-scale * solved)
    return np.asarray(-scale * scale * gradient)


def literal_newton(problem: FiniteSum, rounds: int) -> np.ndarray:
    """Return θ after some rounds on one machine where whole steps are taken, (d,)."""
    theta = np.zeros(problem.n_features)
    for _ in range(rounds):
        theta = theta - np.linalg.solve(problem.hessian(theta), problem.gradient(theta))
    return theta


class HessianRounds(RoundProcess):
    """Rounds in which a matrix of d × d numbers is summed over the nodes, and one process solves with it."""

    def __init__(self, setting: Setting[NewtonParameters]) -> None:
        super().__init__()
        self.problem, self.samples = setting.problem, setting.problem.samples
        self.mask = self.problem.ridge_mask
        n, d = setting.network.n_nodes, self.problem.n_features
        self.gossip_matrix = no_gossip(n)
        block = setting.block
        # One process solves for the direction of all: another machine's last digits may differ.
        self.leader = int(np.argmin(block)) if block.min() == 0 else None
        self.others = int(np.count_nonzero(block))
        self._bands = hessian_bands(d, max(d, _BAND_NUMBERS // n))
        self._upper = [np.arange(d) >= np.arange(first, last)[:, None] for first, last in self._bands]

    def _count_sum(self, up: int, down: int) -> None:
        """Add a sum over all nodes, up a spanning tree and down again: numbers that all but its root send."""
        work = self.work
        numbers = work.numbers + self.others * (up + down)
        self.work = Work(work.computations, work.messages + 2 * self.others, numbers)

    def _hessian(self, gossip: Gossip, curves: np.ndarray) -> np.ndarray:
        """Return Σ_i (σ_iI + Σ_j c_j x_j x_jᵀ) from its diagonal on, where the leader is; (d, d)."""
        d, k = self.problem.n_features, self.problem.n_nodes
        hessian = np.zeros((d, d) if self.leader is not None else (0, 0))
        for (first, last), upper in zip(self._bands, self._upper, strict=True):
            out = np.empty((k, (last - first) * (2 * d - first - last + 1) // 2))
            room = np.empty((last - first, d))
            fill_hessian(self.samples, self.problem.sigma, self.mask, curves, first, last, room, out)
            band = gossip.total(out)
            if self.leader is not None:
                hessian[first:last][upper] = band
        return hessian

    def _solved(self, gossip: Gossip, hessian: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return −H⁻¹·gradient, which the leader finds, everywhere; (d,)."""
        news = np.zeros((self.problem.n_nodes, gradient.size))
        if self.leader is not None:
            news[self.leader] = newton_move(hessian, gradient)
        return np.asarray(gossip.total(news))


class NewtonProcess(OnePoint, HessianRounds):
    """Newton's method in progress over a block of nodes, which all hold the same iterate.

    Attributes
    ----------
    theta, gradient : ndarray of shape (d,)
        The iterate, and ∇F there.
    curves : ndarray of shape (N,)
        wℓ'' of the samples there.
    state : ndarray of shape (3,)
        F there; whether that and the above are known; and whether rounding lets it go no further.
    """

    problem: FiniteSum

    def __init__(self, setting: Setting[NewtonParameters]) -> None:
        super().__init__(setting)
        self.theta, self.gradient = np.zeros(self.problem.n_features), np.zeros(self.problem.n_features)
        self.curves = np.zeros(self.problem.n_samples)
        self.state = np.zeros(3)

    @property
    def point(self) -> np.ndarray:
        return self.theta

    def arrays(self) -> dict[str, np.ndarray]:
        return {"theta": self.theta, "gradient": self.gradient, "curves": self.curves, "state": self.state}

    @property
    def seen(self) -> tuple[float, np.ndarray]:
        return float(self.state[_VALUE]), self.gradient

    @property
    def stuck(self) -> bool:
        return bool(self.state[_STUCK])

    def round(self, gossip: Gossip) -> None:
        if not self.state[_KNOWN] or self.stuck:
            self.state[_VALUE], self.gradient[:] = self._look(gossip, self.theta)
            self.state[_KNOWN] = 1.0
        beta = float(self.samples.loss.beta)
        bounded = math.isfinite(beta)
        tries = _FEW_TRIES if bounded else _MOST_TRIES
        found = self.stuck or self._step(gossip, self._direction(gossip), tries)
        if not found and bounded:
            # Where few samples bend, Newton's step is far too long.
            self.curves[:] = self._parabolas(beta)
            found = self._step(gossip, self._direction(gossip), _MOST_TRIES)
        if not found:
            self.state[_STUCK] = 1.0
        self.position += 1.0

    def _parabolas(self, beta: float) -> np.ndarray:
        """Return the curvatures (N,) of parabolas that touch the losses at θ and lie above: no step too long.

        Those of a loss of residuals r are ℓ'(r)/r, as in iterated least squares, or β, which is never less.
        """
        samples = self.samples
        widest = beta * samples.weights
        if not samples.loss.translates:
            return widest
        slopes = loss_slopes(samples, self.theta).ravel()
        residuals = loss_slopes(samples._replace(loss=_SQUARED), self.theta).ravel()
        ratio = np.divide(slopes, residuals, out=np.full_like(slopes, beta), where=residuals != 0.0)
        return np.asarray(np.clip(samples.weights * ratio, 0.0, widest))

    def _look(self, gossip: Gossip, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Return F and ∇F at a point, and keep the curvatures there."""
        problem, d = self.problem, point.size
        head = np.empty((problem.n_nodes, d + 1))
        fill_values(self.samples, problem.sigma, self.mask, point, self.curves, head)
        total = np.asarray(gossip.total(head))
        self.work = self.work._replace(computations=self.work.computations + problem.n_samples)
        return float(total[d]), np.ascontiguousarray(total[:d])

    def _step(self, gossip: Gossip, move: np.ndarray, tries: int) -> bool:
        """Go along a direction as far as F falls enough; return whether it was found to within some tries.

        What is tried after a whole step is where a parabola through what is known of F has its least value.
        """
        before, square = float(self.state[_VALUE]), inner_product(self.gradient, self.gradient)
        slope, part = inner_product(self.gradient, move), 1.0
        for _ in range(tries):
            point = self.theta + part * move
            value, gradient = self._look(gossip, point)
            flat = not -part * slope > _FLAT * abs(before)
            # Where F no longer tells points apart, the gradient, which certificates are made of, still does.
            if (
                inner_product(gradient, gradient) < square
                if flat
                else value <= before + _ARMIJO * part * slope
            ):
                self.state[_VALUE], self.gradient[:], self.theta[:] = value, gradient, point
                return True
            if flat:
                self.state[_STUCK] = 1.0
                return True
            self._count_sum(point.size + 1, 1)
            above = value - before - part * slope
            least = -0.5 * part * part * slope / above if math.isfinite(above) and above > 0.0 else 0.0
            part = min(max(least, 0.01 * part), 0.5 * part)
        return False

    def _direction(self, gossip: Gossip) -> np.ndarray:
        """Return the direction that the leader finds from the Hessian of all nodes, (d,)."""
        d = self.theta.size
        # F and ∇F go up along with the Hessian at the same point.
        self._count_sum(d * (d + 1) // 2 + d + 1, d)
        return self._solved(gossip, self._hessian(gossip, self.curves), self.gradient)


def hessian_bands(d: int, numbers: int) -> list[tuple[int, int]]:
    """Return the rows of each band of a Hessian's upper triangle, of about so many numbers at most.

    Examples
    --------
    >>> hessian_bands(5, 9)
    [(0, 2), (2, 5)]
    """
    bands, first, size = [], 0, 0
    for row in range(d):
        if size and size + d - row > numbers:
            bands.append((first, row))
            first, size = row, 0
        size += d - row
    return [*bands, (first, d)]


Constants = TypeVar("Constants", bound=NewtonParameters)


class HessianMethod(Method[Constants]):
    """A method in rounds that sum a matrix of d × d numbers over the nodes."""

    kind: ClassVar[str] = "rounds"
    checks_every_round = True
    unpenalised_columns = True
    warm_starts = True
    second_order = True
    by_gradients = True

    def can_solve(self, facts: Facts, n_nodes: int) -> bool:
        return super().can_solve(facts, n_nodes) and facts.n_features <= MOST_FEATURES

    def extra_work(self, facts: Facts, position: float, network: Network) -> float:
        return position * matrix_work(facts, network.n_nodes)

    def predicted_position(
        self, parameters: Constants, facts: Facts, summary: NodeSummary, tol: float
    ) -> float:
        # One Newton step solves a quadratic problem.
        return 1.0 if facts.quadratic else parameters.rounds_to(tol)

    def check(self, problem: FiniteSum, options: Mapping[str, Any]) -> None:
        super().check(problem, options)
        if problem.n_features > MOST_FEATURES:
            others = "'lbfgs' or 'adfs'" if problem.smooth else "'ns-adfs'"
            raise InputError(
                f"method {self.name!r} forms a matrix of {problem.n_features} × {problem.n_features} numbers "
                f"here, and takes at most {MOST_FEATURES} features; use {others}"
            )

    def refine(
        self, parameters: Constants, problem: FiniteSum, total: Callable[[np.ndarray], np.ndarray]
    ) -> Constants:
        """Put in d, which the summary of the nodes does not tell."""
        return dataclasses.replace(parameters, n_features=problem.n_features)

    def position_of(self, parameters: Constants, sizes: NodeSizes, passes: float) -> float:
        return passes / parameters.passes_per_round

    def effort(self, parameters: Constants, sizes: NodeSizes, network: Network) -> RoundEffort:
        samples = np.ceil(parameters.row_effort * sizes.n_samples).astype(np.int64)
        return RoundEffort(samples, exchanges=0, hops=parameters.hops)


class Newton(HessianMethod[NewtonParameters]):
    """Newton: damped Newton steps, every node summing the Hessian of its own samples.

    Problem
        min_θ F(θ), twice differentiable (or with a derivative made of lines), strongly convex.
    Algorithm
        θ ← θ − t·H⁻¹∇F, t = 1 or what a line search on F finds; H is scaled to a diagonal of ones.
    Guarantee
        F decreases at every step, to rounding; near the optimum the digits double. Units of features do not
        matter.
    """

    name = "newton"
    assumes_curvature = True  # it asks for none

    record, process = NewtonParameters, NewtonProcess
    choices = MappingProxyType(
        {"theory": lambda problem, network, tau: NewtonParameters.theory(problem, network)}
    )


register_method(Newton())
