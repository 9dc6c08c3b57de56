"""The rounds of the prototypes of `benchmarks.block_forms`, with their idealised clock."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from adfs.compilation import compiled


class Constants(NamedTuple):
    """The constants of a stage: the step and the mixing of a gossip, χ of each sample, and its h."""

    rho: float
    p_comm: float
    gossip_step: float
    gossip_mixing: float
    mixing: np.ndarray
    steps: np.ndarray
    cumulated: np.ndarray


class Terms(NamedTuple):
    """Rows times labels, and the certain and the remaining curvature of each sample on its interval."""

    X: np.ndarray
    certain: np.ndarray
    rest: np.ndarray
    low: np.ndarray
    high: np.ndarray
    starts: np.ndarray


class State(NamedTuple):
    """The means and the lags of the centres and of the tips, the time of a tip's last event, and T_i."""

    mean: np.ndarray
    lag: np.ndarray
    tip_mean: np.ndarray
    tip_lag: np.ndarray
    tip_time: np.ndarray
    times: np.ndarray


class Links(NamedTuple):
    """The ends of the edges, the matching of each (−1: every gossip), and the products per gossip."""

    ends: np.ndarray
    owner: np.ndarray
    products: int


@compiled
def slope(u: float, certain: float) -> float:
    """Return the derivative of the logistic loss less the certain quadratic."""
    shrunk = -1.0 / (1.0 + math.exp(u)) if u < 0.0 else -math.exp(-u) / (1.0 + math.exp(-u))
    return shrunk - certain * u


@compiled
def tip_step(target: float, factor: float, certain: float, low: float, high: float) -> float:
    """Return g'(u) at the root of u + factor·g'(u) = target; g is a line outside the interval."""
    # Without an interval the slope lies in (−1, 0), which bounds the root.
    if low == -math.inf:
        low, high = min(target, target + factor), max(target, target + factor)
    if low + factor * slope(low, certain) >= target:
        return slope(low, certain)
    if high + factor * slope(high, certain) <= target:
        return slope(high, certain)
    u = 0.5 * (low + high)
    for _ in range(100):
        at = slope(u, certain)
        excess = u + factor * at - target
        if excess > 0.0:
            high = u
        else:
            low = u
        s = at + certain * u
        bend = 1.0 + factor * (-s * (1.0 + s) - certain)
        following = u - excess / bend if bend > 1e-12 else 0.5 * (low + high)
        if not low < following < high:
            following = 0.5 * (low + high)
        if abs(following - u) <= 1e-14 * (1.0 + abs(u)):
            break
        u = following
    return slope(u, certain)


@compiled
def gossip(
    constants: Constants, state: State, inverse_sigma: float, matrix: np.ndarray, iterates: np.ndarray
) -> None:
    """Move all centres by the product of a gossip matrix with their iterates."""
    n, d = state.mean.shape
    for i in range(n):
        for k in range(d):
            iterates[i, k] = (state.mean[i, k] - 0.5 * state.lag[i, k]) * inverse_sigma
    pulls = matrix @ iterates
    for i in range(n):
        for k in range(d):
            moved = -constants.gossip_step * pulls[i, k]
            state.mean[i, k] += 0.5 * (1.0 + constants.gossip_mixing) * moved
            state.lag[i, k] += (1.0 - constants.gossip_mixing) * moved


@compiled
def sample(terms: Terms, constants: Constants, state: State, i: int, j: int, inverse_sigma: float) -> float:
    """Take the step of sample j at node i; return the change of its dual variable."""
    margin = 0.0
    for k in range(state.mean.shape[1]):
        margin += terms.X[j, k] * (state.mean[i, k] - 0.5 * state.lag[i, k])
    at_y = state.tip_mean[j] - 0.5 * state.tip_lag[j]
    at_w = state.tip_mean[j] + 0.5 * state.tip_lag[j]
    h, chi = constants.steps[j], constants.mixing[j]
    # A tip without curvature does not move.
    if terms.rest[j] <= 1e-13:
        return 0.0
    target = at_w / h + margin * inverse_sigma - at_y / terms.rest[j]
    factor = 1.0 / h - 1.0 / terms.rest[j]
    moved = tip_step(target, factor, terms.certain[j], terms.low[j], terms.high[j]) - at_w
    state.tip_mean[j] += 0.5 * (1.0 + chi) * moved
    state.tip_lag[j] += (1.0 - chi) * moved
    return moved


@compiled
def all_samples(
    terms: Terms,
    constants: Constants,
    state: State,
    inverse_sigma: float,
    batch: int,
    time: float,
    change: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Take a sample at every node by its probability, or several that are equally likely."""
    n, d = state.mean.shape
    log_decay = math.log((1.0 - constants.rho) / (1.0 + constants.rho))
    for i in range(n):
        begin, end = terms.starts[i], terms.starts[i + 1]
        change[:] = 0.0
        j = begin
        for drawn in range(batch):
            j = begin + np.searchsorted(
                constants.cumulated[begin:end], rng.random() * constants.cumulated[end - 1]
            )
            while drawn and state.tip_time[j] == time:
                j = begin + np.searchsorted(
                    constants.cumulated[begin:end], rng.random() * constants.cumulated[end - 1]
                )
            state.tip_lag[j] *= math.exp(log_decay * (time - state.tip_time[j]))
            state.tip_time[j] = time
            moved = sample(terms, constants, state, i, j, inverse_sigma)
            for k in range(d):
                change[k] += moved * terms.X[j, k]
        # The samples of a batch have the same χ.
        chi = constants.mixing[j]
        for k in range(d):
            state.mean[i, k] -= 0.5 * (1.0 + chi) * change[k]
            state.lag[i, k] -= (1.0 - chi) * change[k]


@compiled
def run_rounds(
    terms: Terms,
    constants: Constants,
    state: State,
    inverse_sigma: float,
    gossips: np.ndarray,
    links: Links,
    batch: int,
    tau: float,
    work: float,
    first: int,
    last: int,
    rng: np.random.Generator,
) -> None:
    """Go through steps first … last − 1: a sample (or several) at every node, or a gossip."""
    n, d = state.mean.shape
    decay = (1.0 - constants.rho) / (1.0 + constants.rho)
    iterates, sent, change = np.empty((n, d)), np.empty(n), np.empty(d)
    for t in range(first, last):
        state.lag[:] *= decay
        if rng.random() >= constants.p_comm:
            all_samples(terms, constants, state, inverse_sigma, batch, t + 1.0, change, rng)
            for i in range(n):
                for _ in range(batch):
                    state.times[i] += work * rng.exponential(1.0)
            continue
        which = rng.integers(0, gossips.shape[0])
        gossip(constants, state, inverse_sigma, gossips[which], iterates)
        # The idealised clock: a node waits for the messages of its neighbours.
        for _ in range(links.products):
            sent[:] = state.times
            for e in range(links.ends.shape[0]):
                if links.owner[e] < 0 or links.owner[e] == which:
                    i, j = links.ends[e, 0], links.ends[e, 1]
                    state.times[i] = max(state.times[i], sent[j] + tau * rng.exponential(1.0))
                    state.times[j] = max(state.times[j], sent[i] + tau * rng.exponential(1.0))
