"""How long things take on the idealised clock: the record of delays, and the draws behind them.

Time 1 is the computation of one sample at a node of speed 1; τ is the time of a message. A draw is a
function of (seed, whose, which one): the k-th computation of a node and the k-th exchange on an edge
take as long in every walk, whatever the method, its parameters, or τ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from adfs.compilation import inlined, kernel
from adfs.errors import InputError, unknown_name
from adfs.network import Network
from adfs.schedule.sampling import Domain, check_seed, philox

#: τ where nobody gives one: the time of a message in the paper's experiments.
DEFAULT_TAU = 5.0

_LAWS = ("exponential", "fixed")
_BATCHES = ("gamma", "scaled")

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_11 = np.uint64(11)
_ONE = np.uint64(1)
_COMPUTATION = np.uint64(Domain.COMPUTATION_TIME)
_MESSAGE = np.uint64(Domain.MESSAGE_TIME)


class Straggler(NamedTuple):
    """A node that is slow for some of the time.

    Attributes
    ----------
    node : int
    factor : float
        By how much its computations are longer then.
    share : float
        The share of the time for which it is slow, in [0, 1].
    period : float
        It is slow at the beginning of each stretch of this length. A computation is as slow as its beginning.
    """

    node: int
    factor: float
    share: float = 1.0
    period: float = 1000.0


class Pace(NamedTuple):
    """Delays made out for one network, for the kernels: arrays by node (n,) and by edge (|E|,)."""

    key: np.uint64
    exponential: bool
    scaled: bool
    blocking: bool
    tau: np.ndarray
    speed: np.ndarray
    slow_factor: np.ndarray
    slow_share: np.ndarray
    slow_period: np.ndarray


class ClockState(NamedTuple):
    """Every node's time (n,), its computations so far (n,), and each edge's exchanges so far (|E| + 1,).

    The last of the exchanges counts the messages of sums over all nodes.
    """

    time: np.ndarray
    computed: np.ndarray
    exchanged: np.ndarray


@dataclass(frozen=True, eq=False)
class Delays:
    """How long computations and messages take.

    Parameters
    ----------
    tau : float or array of shape (|E|,)
        Time of a message, one for all edges or one per edge; the paper's 5 by default.
    law : str
        ``"exponential"``: a sample takes Exp(1) and a message τ·Exp(1); ``"fixed"``: 1 and τ.
    speed : float or array of shape (n,)
        Samples a node computes in time 1, in the mean. A method that runs on one machine has the
        fastest of them.
    stragglers : sequence of Straggler
        At most one per node; none on the one machine of a method that has no network.
    batch : str
        What m samples at once take under exponential delays: ``"gamma"``, the sum of m draws, or
        ``"scaled"``, m times one draw.
    blocking : bool
        Theorem 4's clock: the two ends of an exchange wait for each other and for the message (both ←
        max + τ), instead of sending and going on.
    seed : int, optional
        Seed of the draws; that of the run when None.

    Examples
    --------
    >>> Delays(tau=5.0, law="fixed")
    Delays(tau=5, law='fixed')
    """

    tau: Any = DEFAULT_TAU
    law: str = "exponential"
    speed: Any = 1.0
    stragglers: tuple[Straggler, ...] = ()
    batch: str = "gamma"
    blocking: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.law not in _LAWS:
            raise unknown_name("law of delays", self.law, _LAWS)
        if self.batch not in _BATCHES:
            raise unknown_name("kind of batch", self.batch, _BATCHES)
        # A speed of 0 would never end; a message may take no time.
        for name, least in (("tau", 0.0), ("speed", math.ulp(0.0))):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            if values.ndim > 1 or not np.all(np.isfinite(values) & (values >= least)):
                raise InputError(
                    f"delays: {name} must be finite and {'at least' if least == 0 else 'above'} 0"
                )
        if self.seed is not None:
            check_seed(self.seed)
        # Stragglers may be given as plain tuples.
        slow = tuple(Straggler(*one) for one in self.stragglers)
        for one in slow:
            if not (one.factor > 0.0 and 0.0 <= one.share <= 1.0 and one.period > 0.0):
                raise InputError(
                    "delays: a straggler needs a factor above 0, a share from 0 to 1 and a period above 0; "
                    f"node {one.node} has {one.factor:g}, {one.share:g} and {one.period:g}"
                )
        if len({one.node for one in slow}) < len(slow):
            raise InputError("delays: a node can be a straggler once only")
        object.__setattr__(self, "stragglers", slow)

    def pace(self, network: Network, seed: int, *, single: bool = False) -> Pace:
        """Make the delays out for a network; ``single`` for a method that runs on one machine."""
        n, edges = network.n_nodes, network.n_edges
        tau, speed = np.asarray(self.tau, dtype=np.float64), np.asarray(self.speed, dtype=np.float64)
        # The one machine is the fastest, and sends nothing.
        if single:
            tau, speed = np.zeros(edges), np.full(n, float(speed.max()))
        for name, values, size, what in (("tau", tau, edges, "edge"), ("speed", speed, n, "node")):
            if values.ndim and values.shape != (size,):
                raise InputError(
                    f"delays: {name} must be one number or one per {what} ({size}), got {values.shape}"
                )
        # Nodes that are not stragglers are slow for a share of 0 of the time.
        slow = np.ones(n), np.zeros(n), np.ones(n)
        for one in () if single else self.stragglers:
            if not 0 <= one.node < n:
                raise InputError(
                    f"delays: there is no node {one.node} to be a straggler, nodes are 0 to {n - 1}"
                )
            for values, value in zip(slow, (one.factor, one.share, one.period), strict=True):
                values[one.node] = value
        return Pace(
            np.uint64(seed if self.seed is None else self.seed),
            self.law == "exponential",
            self.batch == "scaled",
            self.blocking,
            np.array(np.broadcast_to(tau, (edges,))),
            np.array(np.broadcast_to(speed, (n,))),
            *slow,
        )

    def __repr__(self) -> str:
        # Only what differs from the defaults, as one would write it.
        parts = [f"tau={_short(self.tau)}", f"law={self.law!r}"]
        if np.any(np.asarray(self.speed) != 1.0):
            parts.append(f"speed={_short(self.speed)}")
        parts += [f"stragglers={self.stragglers}"] * bool(self.stragglers)
        parts += [f"batch={self.batch!r}"] * (self.batch != Delays.batch)
        parts += ["blocking=True"] * self.blocking
        parts += [f"seed={self.seed}"] * (self.seed is not None)
        return f"Delays({', '.join(parts)})"


def _short(values: ArrayLike) -> str:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 1 or array.min() == array.max():
        return f"{float(array.flat[0]):g}"
    return f"{array.min():g}..{array.max():g}"


# --------------------------------------------------------------------------- draws


@inlined
def _uniform(high: np.uint64, low: np.uint64) -> float:
    """Return a number in (0, 1] from two words."""
    return float((((high << _32) | low) >> _11) + _ONE) * 2.0**-53


@kernel
def _gamma(key: np.uint64, node: int, k: np.uint64, shape: float) -> float:
    """Return a Gamma(shape, 1) draw, shape ≥ 1, by Marsaglia and Tsang's method: two counters an attempt."""
    # A normal draw gives a candidate, and a uniform one decides whether it is taken.
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    name = np.uint64(node)
    attempt = _COMPUTATION
    while True:
        w0, w1, w2, w3 = philox(k & _LOW, k >> _32, name, attempt, key & _LOW, key >> _32)
        normal = math.sqrt(-2.0 * math.log(_uniform(w0, w1))) * math.cos(2.0 * math.pi * _uniform(w2, w3))
        w0, w1, w2, w3 = philox(k & _LOW, k >> _32, name, attempt + _ONE, key & _LOW, key >> _32)
        attempt += _ONE + _ONE
        v = (1.0 + c * normal) ** 3
        if v > 0.0 and math.log(_uniform(w0, w1)) < 0.5 * normal * normal + d - d * v + d * math.log(v):
            return d * v


@inlined
def computation_time(pace: Pace, state: ClockState, i: int, samples: int) -> float:
    """Return how long node i takes for its next computation of some samples, begun at its time."""
    if samples == 0:
        return 0.0
    # The k-th computation of a node has the same draw in every walk.
    k = np.uint64(state.computed[i])
    state.computed[i] += 1
    amount = float(samples)
    if pace.exponential:
        if samples == 1 or pace.scaled:
            w0, w1, _, _ = philox(
                k & _LOW, k >> _32, np.uint64(i), _COMPUTATION, pace.key & _LOW, pace.key >> _32
            )
            amount *= -math.log(_uniform(w0, w1))
        else:
            amount = _gamma(pace.key, i, k, amount)
    amount /= float(pace.speed[i])
    # A computation is as slow as its beginning.
    if pace.slow_share[i] > 0.0:
        phase = state.time[i] / pace.slow_period[i]
        if phase - math.floor(phase) < pace.slow_share[i]:
            amount *= float(pace.slow_factor[i])
    return amount


@inlined
def message_times(pace: Pace, state: ClockState, edge: int, tau: float) -> tuple[float, float]:
    """Return how long the two messages of an edge's next exchange take, from its first and its second end."""
    if not pace.exponential:
        return tau, tau
    # One counter gives both messages of an exchange.
    k = np.uint64(state.exchanged[edge])
    state.exchanged[edge] += 1
    w0, w1, w2, w3 = philox(k & _LOW, k >> _32, np.uint64(edge), _MESSAGE, pace.key & _LOW, pace.key >> _32)
    return -tau * math.log(_uniform(w0, w1)), -tau * math.log(_uniform(w2, w3))
