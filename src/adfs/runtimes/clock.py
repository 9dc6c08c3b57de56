"""The idealised clock: when things happen, apart from the numbers.

Iterates depend on the schedule and never on delays; times depend on the schedule and the delays and
never on iterates. So a finished run is timed by walking through its schedule once more, and timed again
for another τ without running anything:

- a computation of k samples adds k draws to its node's time T_i;
- in an exchange both ends send at their own time and go on: T_i ← max(T_i, T_j + d_ji), and the same
  for j with the old values on the right;
- in a gossip round every node waits for its neighbours' messages of that round; there is no other
  barrier;
- a sum over all nodes waits for the slowest, then for its messages one after another;
- an exchange that is lost takes its time as any other;
- a check of a run in stages is a pass over each node's samples and sums up and down a spanning tree, and so
  is the work of its decision.

The time of a position is the time by which every event up to it has happened, max_i T_i.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from adfs.algorithms.base import Method, get_method
from adfs.algorithms.costs import EventEffort
from adfs.algorithms.round_process import round_coin
from adfs.compilation import inlined, kernel
from adfs.errors import InputError
from adfs.network import Network
from adfs.problem.finite_sum import FiniteSum
from adfs.runtimes.delays import ClockState, Delays, Pace, computation_time, message_times
from adfs.runtimes.result import History, Run, StageCheck
from adfs.schedule import Schedule, make_schedule
from adfs.schedule.sampling import stage_seed
from adfs.theory import NodeSizes, node_sizes, tree_depth

_LONGEST_WALK = 2.0**48


class Times(NamedTuple):
    """Times of some positions, (P,) each.

    ``latest`` is max_i T_i, by when everything up to the position has happened; ``mean`` is the mean of T_i.
    """

    latest: np.ndarray
    mean: np.ndarray


# --------------------------------------------------------------------------- the walks


@inlined
def _exchange(pace: Pace, state: ClockState, edge: int, i: int, j: int, at_i: float, at_j: float) -> None:
    """Let the ends of an edge exchange messages sent at ``at_i`` and ``at_j``."""
    # Both messages leave at once; a blocking exchange ends when the later one has arrived.
    to_j, to_i = message_times(pace, state, edge, pace.tau[edge])
    if pace.blocking:
        together = max(at_i, at_j) + to_j
        state.time[i] = max(state.time[i], together)
        state.time[j] = max(state.time[j], together)
    else:
        state.time[i] = max(state.time[i], at_j + to_i)
        state.time[j] = max(state.time[j], at_i + to_j)


@kernel
def _walk_events(
    pace: Pace,
    state: ClockState,
    ends: np.ndarray,
    work: np.ndarray,
    before: np.ndarray,
    actors: np.ndarray,
) -> None:
    """Go through events: ``work`` (n,) samples per computation, ``before`` (n,) at an end of an exchange."""
    n = state.time.size
    for t in range(actors.size):
        actor = actors[t]
        # A computation concerns one node, an exchange the two ends of an edge.
        if actor < n:
            state.time[actor] += computation_time(pace, state, actor, work[actor])
        else:
            edge = actor - n
            i, j = ends[edge, 0], ends[edge, 1]
            state.time[i] += computation_time(pace, state, i, before[i])
            state.time[j] += computation_time(pace, state, j, before[j])
            _exchange(pace, state, edge, i, j, state.time[i], state.time[j])


@kernel
def _all_compute(pace: Pace, state: ClockState, samples: np.ndarray) -> None:
    for i in range(samples.size):
        state.time[i] += computation_time(pace, state, i, samples[i])


@kernel
def _all_exchange(pace: Pace, state: ClockState, ends: np.ndarray, rounds: int, sent: np.ndarray) -> None:
    # All nodes send at the time that they have before any message of the round arrives.
    for _ in range(rounds):
        for i in range(sent.size):
            sent[i] = state.time[i]
        for edge in range(ends.shape[0]):
            i, j = ends[edge, 0], ends[edge, 1]
            _exchange(pace, state, edge, i, j, sent[i], sent[j])


@kernel
def _sum_over_all(pace: Pace, state: ClockState, hops: int, tau: float) -> None:
    # Nobody has the sum before the slowest node has sent, and the messages follow one after another.
    latest = 0.0
    for i in range(state.time.size):
        latest = max(latest, state.time[i])
    for _ in range(hops):
        latest += message_times(pace, state, state.exchanged.size - 1, tau)[0]
    for i in range(state.time.size):
        state.time[i] = latest


class RoundWalk(NamedTuple):
    """The work of a round, see `RoundEffort`, and an array for the times of sending.

    A ``chance`` of at least 0 is that of a round of exchanges alone, by the coin of ``coins`` that all nodes
    share.
    """

    samples: np.ndarray
    exchanges: int
    hops: int
    hop_tau: float
    gossip_first: bool
    chance: float
    coins: np.uint64
    sent: np.ndarray


@kernel
def _walk_rounds(
    pace: Pace, state: ClockState, ends: np.ndarray, plan: RoundWalk, first: int, last: int
) -> None:
    """Go through rounds first … last − 1."""
    for t in range(first, last):
        if plan.chance >= 0.0:
            # The shared coin says which rounds are exchanges alone and which are samples alone.
            if round_coin(plan.coins, np.uint64(t)) < plan.chance:
                _all_exchange(pace, state, ends, plan.exchanges, plan.sent)
            else:
                _all_compute(pace, state, plan.samples)
            continue
        if plan.gossip_first:
            _all_exchange(pace, state, ends, plan.exchanges, plan.sent)
        _all_compute(pace, state, plan.samples)
        if not plan.gossip_first:
            _all_exchange(pace, state, ends, plan.exchanges, plan.sent)
        if plan.hops > 0:
            _sum_over_all(pace, state, plan.hops, plan.hop_tau)


# --------------------------------------------------------------------------- the clock


class Clock:
    """Every node's time as a method goes from position to position.

    Parameters
    ----------
    method, network, delays
    parameters : object
        The method's constants, as in ``run.parameters``.
    problem : Problem, GeneralProblem or NodeSizes
        Only its nodes' numbers of samples matter.
    seed : int
        Of the run: it decides the schedule, and the delays unless they have a seed of their own.
    schedule : str
        Of the run.

    Examples
    --------
    >>> import numpy as np, adfs
    >>> problem = adfs.Problem(np.eye(4), [1, -1, 1, -1], n_nodes=1)
    >>> parameters = adfs.Parameters.tuned(problem, adfs.Network("path:1"))
    >>> clock = Clock("adfs", parameters, problem, adfs.Network("path:1"), Delays(law="fixed"))
    >>> clock.advance(10)
    >>> clock.latest
    10.0
    """

    def __init__(
        self,
        method: str | Method,
        parameters: Any,
        problem: FiniteSum | NodeSizes,
        network: Network,
        delays: Delays,
        *,
        seed: int = 0,
        schedule: str = "iid",
    ) -> None:
        chosen = get_method(method)
        single = chosen.kind == "single"
        sizes = node_sizes(problem)
        self._method, self._kind = chosen, schedule or "iid"
        # One machine has all samples and no messages.
        if single:
            network = Network("path:1")
            sizes = NodeSizes(
                sizes.n_samples.sum(keepdims=True), sizes.n_active.sum(keepdims=True), sizes.n_features[:1]
            )
        if sizes.n_samples.size != network.n_nodes:
            raise InputError(
                f"the problem has {sizes.n_samples.size} nodes and the network {network.n_nodes}; "
                "they must be the same"
            )
        self.network = network
        self.position = self._base = 0.0
        self.stage = -1
        self._tree_depth: int | None = None
        self._seed, self._samples = seed, np.ascontiguousarray(sizes.n_samples, dtype=np.int64)
        self._pace = delays.pace(network, seed, single=single)
        # A message of a sum over all nodes goes over some edge.
        self._mean_tau = float(self._pace.tau.mean()) if network.n_edges else 0.0
        n, counts = network.n_nodes, np.zeros(network.n_edges + 1, dtype=np.int64)
        self._state = ClockState(np.zeros(n), np.zeros(n, dtype=np.int64), counts)
        self._ends = network.edges.astype(np.int64)
        self._sent = np.empty(network.n_nodes)
        self.begin_stage(parameters, sizes)
        _all_compute(self._pace, self._state, np.full(network.n_nodes, self._effort.at_start, dtype=np.int64))

    def begin_stage(self, parameters: Any, sizes: NodeSizes) -> None:
        """Go on in the next stage of a run, with its own parameters and its own draws."""
        self.stage += 1
        self._base = self.position
        seed, network = stage_seed(self._seed, self.stage), self.network
        # The same draws as those of the run: a stage has a seed of its own.
        self._effort = self._method.effort(parameters, sizes, network)
        self._coins = np.uint64(seed)
        self.schedule: Schedule | None = None
        if isinstance(self._effort, EventEffort):
            self.schedule = make_schedule(
                self._kind,
                seed=seed,
                n_nodes=network.n_nodes,
                edges=network.ends,
                node_probability=parameters.node_probability,
                edge_probability=parameters.edge_probability,
                faults=network.faults,
            )

    def charge(self, passes: float, sums: float) -> None:
        """Let every node go through its samples some times, and all nodes sum up and down a tree."""
        # A check is computed by all nodes at once, and its sums go up and down a tree.
        _all_compute(self._pace, self._state, np.ceil(passes * self._samples).astype(np.int64))
        if self._tree_depth is None:
            self._tree_depth = tree_depth(self.network)
        _sum_over_all(self._pace, self._state, 2 * self._tree_depth * int(sums), self._mean_tau)

    @property
    def times(self) -> np.ndarray:
        """T_i, shape (n,)."""
        return self._state.time.copy()

    @property
    def latest(self) -> float:
        """max_i T_i: by then everything up to the position has happened."""
        return float(self._state.time.max())

    @property
    def mean(self) -> float:
        """The mean of T_i."""
        return min(float(self._state.time.mean()), self.latest)  # rounding

    def advance(self, position: float) -> None:
        """Go on to a position, not before the current one."""
        if not position >= self.position:
            raise InputError(f"the clock is at position {self.position!r} and cannot go back to {position!r}")
        effort = self._effort
        # Events are drawn again from the seed; rounds follow from their numbers.
        if isinstance(effort, EventEffort):
            assert self.schedule is not None
            each = np.ones(self._samples.size) if effort.per_computation is None else effort.per_computation
            work, before = each.astype(np.int64), np.asarray(effort.before_exchange).astype(np.int64)
            for _, events in self.schedule.windows(self.position - self._base, position - self._base):
                _walk_events(self._pace, self._state, self._ends, work, before, events.actor)
        else:
            plan = RoundWalk(
                np.ascontiguousarray(effort.samples, dtype=np.int64),
                int(effort.exchanges),
                int(effort.hops),
                self._mean_tau,
                bool(effort.gossip_first),
                -1.0 if effort.gossip_probability is None else float(effort.gossip_probability),
                self._coins,
                self._sent,
            )
            # Positions of a stage are counted from its beginning.
            first, last = int(self.position - self._base), int(position - self._base)
            _walk_rounds(self._pace, self._state, self._ends, plan, first, last)
        self.position = float(position)

    def mark(self) -> tuple[float, ClockState]:
        """Return a copy of where the clock is in its stage, for :meth:`back`."""
        return self.position, ClockState(*(array.copy() for array in self._state))

    def back(self, mark: tuple[float, ClockState]) -> None:
        """Go back to where a mark was made."""
        self.position = mark[0]
        for array, kept in zip(self._state, mark[1], strict=True):
            array[...] = kept


def retime(
    method: str | Method,
    parameters: Any,
    problem: FiniteSum | NodeSizes,
    network: Network,
    delays: Delays,
    positions: ArrayLike,
    *,
    seed: int = 0,
    schedule: str = "iid",
    history: History | None = None,
    stages: ArrayLike | None = None,
) -> Times:
    """Return the times of some positions of a run, without running it.

    Parameters
    ----------
    method, parameters, problem, network, delays, seed, schedule
        As for :class:`Clock`.
    positions : array_like of shape (P,)
        Not decreasing; ``run.columns["position"]`` for instance.
    history : History, optional
        Of a run in stages; ``parameters`` are then those of its stage 0.
    stages : array_like of shape (P,), optional
        The stage of each position, ``run.columns["stage"]``: a stage begins after the row at its position.

    Returns
    -------
    Times
    """
    wanted = np.asarray(positions, dtype=np.float64)
    if wanted.ndim != 1 or np.any(np.diff(wanted) < 0.0) or np.any(wanted < 0.0):
        raise InputError("positions must be numbers of at least 0 that do not decrease")
    clock = Clock(method, parameters, problem, network, delays, seed=seed, schedule=schedule)
    latest, mean = np.empty(wanted.size), np.empty(wanted.size)
    stage_of = np.zeros(wanted.size) if stages is None else np.asarray(stages)
    checks = [] if history is None else list(reversed(history.checks))
    # A check of the stages that lies before a position, or begins its stage, comes first.
    for number, position in enumerate(wanted):
        while checks and (checks[-1].position, clock.stage) < (position, stage_of[number]):
            assert history is not None
            follow(clock, history, checks.pop())
        clock.advance(float(position))
        latest[number], mean[number] = clock.latest, clock.mean
    return Times(latest, mean)


def follow(clock: Clock, history: History, check: StageCheck) -> None:
    """Let a clock go through a check of a run in stages, and into the stage that began there."""
    clock.advance(check.position)
    clock.charge(check.passes, check.sums)
    if check.began:
        following = history.stages[clock.stage + 1]
        clock.begin_stage(following.parameters, following.sizes)


def with_times(run: Run, problem: FiniteSum | NodeSizes, network: Network, delays: Delays) -> Run:
    """Return a run whose frame has the columns ``time`` (max_i T_i) and ``time_mean``, new or replaced.

    Parameters
    ----------
    run, network, delays
    problem : Problem, GeneralProblem or NodeSizes
        Of the run.
    """
    history, network = run.history, network.losing(run.details.get("lost", network.lost))
    times = retime(
        run.method,
        run.parameters if history is None else history.stages[0].parameters,
        problem,
        network,
        delays,
        run.columns["position"],
        seed=run.seed,
        schedule=run.schedule,
        history=history,
        stages=run.columns.get("stage"),
    )
    columns = run.recorded() | {"time": times.latest, "time_mean": times.mean}
    return dataclasses.replace(run, columns=columns, details=run.details | {"delays": repr(delays)})


def position_at(clock: Clock, time: float) -> float:
    """Advance a clock to the last position that is reached within a finite time, and return it.

    So a budget of idealised time becomes one of events or rounds.
    """
    if not np.isfinite(time) or clock.latest > time:
        raise InputError(
            f"a budget of time must be finite and not before the clock's {clock.latest:g}, got {time!r}"
        )
    schedule = clock.schedule
    in_whole_steps = schedule is None or schedule.kind == "iid"
    stride = 4096.0
    # Double the stride until the time is passed, then bisect between the last two positions.
    while True:
        mark = clock.mark()
        clock.advance(clock.position + stride)
        if clock.latest > time:
            break
        stride *= 2.0
        if stride > _LONGEST_WALK:
            raise InputError(
                "nothing seems to take any time on this clock, so this budget of time never ends"
            )
    low, high = mark[0], clock.position
    for _ in range(64):
        middle = float(np.floor(0.5 * (low + high))) if in_whole_steps else 0.5 * (low + high)
        # The two positions are neighbours.
        if not low < middle < high:
            break
        clock.back(mark)
        clock.advance(middle)
        if clock.latest > time:
            high = middle
        else:
            low, mark = middle, clock.mark()
    clock.back(mark)
    return low
