"""What can be tested without several processes: placement, the launcher's variables, the order of events."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import adfs
from adfs.algorithms import METHODS, Setting
from adfs.algorithms.base import EventProcess
from adfs.errors import InputError
from adfs.runtimes import RunOptions, run_method
from adfs.runtimes.cluster import OneProcess, Parcels, RefusalError
from adfs.runtimes.exchange import split_events
from adfs.runtimes.execution import ProcessTimes
from adfs.runtimes.joint_problem import join_shards
from adfs.runtimes.mpi import (
    draw_timeline,
    edge_table,
    launch_of,
    launched_by_mpi,
    place,
    rank_table,
)
from adfs.runtimes.mpi.faults import Watch, as_one_program
from adfs.runtimes.timing import bench_network, message_seconds
from adfs.schedule import make_schedule
from memory_cluster import Threads, on_threads
from mpi_cases import Case, stamp


@pytest.mark.parametrize(
    ("graph", "ranks", "most_cut"),
    [
        ("path:12", 3, 2),
        ("cycle:12", 4, 4),
        ("grid:4x4", 4, 8),
        ("grid:7x7", 7, 42),
        ("star:9", 2, 5),
        ("barbell:6,0", 2, 1),
        ("hypercube:4", 4, 16),
        ("complete:6", 2, 9),
    ],
)
def test_place_balances_nodes_and_cuts_few_edges(graph: str, ranks: int, most_cut: int) -> None:
    network = adfs.Network(graph)
    found = place(network, ranks)
    sizes = [found.block(rank).size for rank in range(ranks)]
    assert max(sizes) - min(sizes) <= 1
    assert np.array_equal(
        np.sort(np.concatenate([found.block(rank) for rank in range(ranks)])), np.arange(network.n_nodes)
    )
    assert int(found.cut.sum()) <= most_cut
    assert f"{int(found.cut.sum())} of {network.n_edges} edges cut" in str(found)


def test_place_gives_each_rank_a_node_and_refuses_too_many_ranks() -> None:
    network = adfs.Network("grid:3x3")
    assert sorted(place(network, 9).rank_of_node.tolist()) == list(range(9))
    with pytest.raises(InputError, match="9 nodes cannot be placed on 10 ranks"):
        place(network, 10)


def test_launch_of_knows_the_launcher_by_its_variables() -> None:
    assert launch_of({"PMI_SIZE": "3", "PMI_RANK": "1"}) == (3, 1)
    assert launch_of({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}) is None  # a batch script
    step = {"SLURM_NTASKS": "8", "SLURM_PROCID": "5", "PMIX_RANK": "5"}
    assert launch_of(step) == (8, 5)
    assert launched_by_mpi(step)
    assert not launched_by_mpi({})


@given(
    seed=st.integers(0, 2**32),
    ahead=st.integers(1, 40),
    graph=st.sampled_from(["grid:3x3", "star:6", "complete:5"]),
)
def test_split_events_keeps_the_order_of_every_node_whatever_waits(seed: int, ahead: int, graph: str) -> None:
    """Execute a window whose messages come late at random: no node may see its events in another order."""
    rng = np.random.default_rng(seed)
    network = adfs.Network(graph)
    n, edges = network.n_nodes, network.n_edges
    block = np.sort(rng.choice(n, rng.integers(1, n), replace=False))
    slot = np.full(n, -1, dtype=np.int32)
    slot[block] = np.arange(block.size)
    schedule = make_schedule(
        "iid",
        seed=seed,
        n_nodes=n,
        edges=network.edges,
        node_probability=np.full(n, 0.5 / n),
        edge_probability=np.full(edges, 0.5 / edges),
    )
    actors = schedule.block(0, 300, block).actor
    ends = network.edges.astype(np.int32)
    blocked = np.zeros(block.size, dtype=np.uint8)
    waiting, ready = np.zeros(2 * ahead + 2, dtype=np.int32), np.zeros(2 * ahead + 2, dtype=np.int32)
    pending: list[int] = []
    executed: list[int] = []
    done = n_waiting = 0
    while done < actors.size or n_waiting or pending:
        blocked[:] = 0
        for t in pending:
            pair = slot[ends[actors[t] - n]]
            blocked[pair.max()] = 1
        last = min(actors.size, done + max(0, ahead - n_waiting))
        n_ready, n_waiting = split_events(actors, done, last, ends, slot, blocked, waiting, n_waiting, ready)
        done = last
        for t in ready[:n_ready].tolist():
            executed.append(t)
            if actors[t] >= n and (slot[ends[actors[t] - n]] < 0).any():
                pending.append(t)
        if pending and (rng.random() < 0.5 or n_ready == 0):
            pending.pop(rng.integers(len(pending)))
    assert sorted(executed) == list(range(actors.size))
    for node in block:
        takes_part = [
            t for t in executed if actors[t] == node or (actors[t] >= n and node in ends[actors[t] - n])
        ]
        assert takes_part == sorted(takes_part)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.kind == "events"])
def test_exchange_in_two_halves_has_the_bits_of_the_whole(name: str) -> None:
    """One process with both nodes, and two with one each that hand over their vectors."""
    rng = np.random.default_rng(0)
    loss = "logistic" if METHODS[name].needs_smooth else "hinge"
    shards = [(rng.standard_normal((6, 5)), np.where(rng.random(6) < 0.5, 1.0, -1.0)) for _ in range(2)]
    problem, network = adfs.Problem.from_shards(shards, loss, [0.5, 0.7]), adfs.Network("path:2")
    parameters = METHODS[name].parameters(problem, network)
    whole = METHODS[name].start(Setting(problem, network, parameters, 5))
    halves = []
    for node in (0, 1):
        own = adfs.Problem.from_shards([shards[node]], loss, problem.sigma[[node]])
        halves.append(METHODS[name].start(Setting(own, network, parameters, 5, nodes=np.array([node]))))
    assert isinstance(whole, EventProcess)
    stop = 400.0
    events = whole.schedule.block(0, stop)
    whole.run(events, 0, events.time.size)
    streams = [half.schedule.block(0, stop, [node]) for node, half in enumerate(halves)]
    places, exchanges = [0, 0], 0
    while True:
        for node, half in enumerate(halves):
            places[node] = half.run(streams[node], places[node], streams[node].time.size)
        if places[0] == streams[0].time.size:
            break
        moments = [float(streams[node].time[places[node]]) for node in (0, 1)]
        assert moments[0] == moments[1]
        sent = [half.outgoing(0, moments[0]).copy() for half in halves]
        for node, half in enumerate(halves):
            half.incoming(0, moments[0], sent[node], sent[1 - node])
            places[node] += 1
        exchanges += 1
    assert exchanges > 10
    assert places[1] == streams[1].time.size
    for process in (whole, *halves):
        process.position = stop
    together = np.concatenate([half.primal() for half in halves])
    assert together.tobytes() == whole.primal().tobytes()


def account() -> dict[str, object]:
    times = ProcessTimes()
    times.computing, times.communicating = 1.0, 0.25
    times.waited(times.start + 0.5, times.start + 0.75, 1)
    rank = times.report() | {"nodes": [0, 1], "messages": 7, "bytes": 560}
    return {"ranks": [rank, rank | {"waited_for": {}, "waits": []}], "edges": [[3, 0, 2, 5]]}


def test_process_times_are_shown_as_tables_and_as_a_picture() -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    details = account()
    table = rank_table(details)
    assert table.loc[0, "waiting"] == pytest.approx(0.25)
    assert table["waited most for"].tolist() == ["1", ""]
    assert edge_table(details).loc[3, "exchanges"] == 5
    axes = draw_timeline(details)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["rank 1"]
    plt.close(axes.figure)


def test_process_times_keep_the_longest_of_many_waits() -> None:
    times = ProcessTimes()
    for number in range(10_000):
        begin = times.start + number
        times.waited(begin, begin + (0.5 if number % 100 == 0 else 0.001), number % 3)
    report = times.report()
    assert len(report["waits"]) <= 2000
    assert sum(1 for a, b, _ in report["waits"] if b - a > 0.4) == 100
    assert report["waiting"] == pytest.approx(sum(report["waited_for"].values()))


def test_draw_timeline_does_not_let_short_waits_fill_the_line() -> None:
    """Hundredths of a second of waiting in thousands of pieces look like hundredths of a second."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    waits = [[k * 7.24 / 2000, k * 7.24 / 2000 + 1e-5, 1] for k in range(2000)]
    rank = {"total": 7.24, "waits": waits}
    axes = draw_timeline({"ranks": [rank, rank | {"waits": []}]})
    axes.get_legend().remove()
    axes.figure.canvas.draw()
    picture = np.asarray(axes.figure.canvas.buffer_rgba()).astype(int)[..., :3]
    coloured = np.ptp(picture, axis=2) > 60
    plt.close(axes.figure)
    assert coloured.mean() < 0.01


def test_board_counts_all_waits_and_keeps_the_longest() -> None:
    """More waits than the log of a window has room for."""
    from adfs.runtimes.mpi import compiled_exchange as compiled

    count = 4 * compiled._LOG
    fields = dict.fromkeys(compiled.Board._fields, np.zeros(1))
    fields |= {"counts": np.zeros(4, dtype=np.int64), "waited": np.zeros(2)}
    board = compiled.Board(**fields | {"log": np.zeros((compiled._LOG, 3))})
    lengths = np.random.default_rng(0).permutation(count) + 1.0
    note = compiled._note_wait.py_func  # type: ignore[attr-defined]
    for k, length in enumerate(lengths):
        note(board, 0.0, length, k % 2)
    assert board.waited.sum() == lengths.sum()
    assert sorted(board.log[:, 1]) == sorted(lengths)[-compiled._LOG :]


@pytest.mark.parametrize("tau", [3.0, 5000.0])
def test_exchange_far_ahead_of_its_messages_has_the_same_bits(tau: float) -> None:
    case = Case(max_passes=3.0)
    network, expected = adfs.Network(case.network), stamp(case.simulate(tau=tau))
    assert {stamp(run) for run in on_threads(2, lambda team: run_case(team, case, network, tau))} == {
        expected
    }


def run_case(team: Threads, case: Case, network: adfs.Network, tau: float | None = None) -> adfs.Run:
    with team:
        settings = case.options() | {"gather": True, "tau": tau}
        joint = join_shards(
            team, case.shard, network, nodes=None, loss=case.loss, sigma=case.sigma(), n_features=None
        )
        method, place = settings.pop("method"), joint.placement
        return run_method(
            method, joint.problem, network, RunOptions(**settings), cluster=team, placement=place
        )


def test_join_shards_agrees_on_one_form_for_dense_and_sparse_shards() -> None:
    case = Case(max_passes=3.0, sparse="mixed", width=40)
    network = adfs.Network(case.network)
    runs = on_threads(3, lambda team: run_case(team, case, network))
    assert {stamp(run) for run in runs} == {stamp(case.simulate())}


def test_message_seconds_are_half_of_a_round_trip() -> None:
    """With 5 ms each way, and an answer that is there at once, a message takes 5 ms."""

    class Late(OneProcess):
        """An answer takes both ways."""

        def sendrecv(self, outgoing: Parcels, incoming: Parcels) -> None:
            if incoming:
                time.sleep(0.01)

    assert message_seconds(Late(), (0, 1), 3, 0.1) == pytest.approx(0.005, rel=0.3)


def test_bench_network_does_not_take_short_messages_for_the_bandwidth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a message takes 10 µs and 1 ns a number, 124 numbers tell neither."""

    class Alone(OneProcess):
        def __init__(self, *_: object, **__: object) -> None: ...

    def measured(_: object, widths: tuple[int, ...]) -> tuple[list[tuple[int, int]], np.ndarray]:
        return [(0, 1)], np.array([[1e-5 + 1e-9 * width for width in widths]])

    monkeypatch.setattr("adfs.runtimes.mpi.ranks.MpiRanks", Alone)
    monkeypatch.setattr("adfs.runtimes.timing.measure_messages", measured)
    found = bench_network(None, (124,))  # type: ignore[arg-type]
    assert found.exchange.shape == (1, 1)
    assert found.latency == pytest.approx(1e-5, rel=1e-3)
    assert found.bandwidth == pytest.approx(8e9, rel=0.1)


def test_watch_does_not_count_an_own_pause_as_waiting_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts neither for the deadline nor in the account."""
    clock, sleeps = [0.0], iter([0.001, 50.0, 0.001])  # stopped for 50 s in the second rest

    def sleep(_: float) -> None:
        clock[0] += next(sleeps)

    fake = SimpleNamespace(perf_counter=lambda: clock[0], sleep=sleep)
    for module in ("adfs.runtimes.waiting", "adfs.runtimes.mpi.faults"):
        monkeypatch.setattr(f"{module}.time", fake)
    cluster = OneProcess()
    watch = Watch(cluster, deadline=3.0)
    watch.crowded = True
    looks = iter([False, False, False, False, True])
    watch.until(lambda: next(looks), lambda: [1], "for a message")
    assert cluster.suspended == 50.0


def test_classifier_tells_its_placement_once(capsys: pytest.CaptureFixture[str]) -> None:
    """However many rounds its intercept takes, and whatever else is shown."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 3)), rng.integers(0, 2, 40)

    def fit(team: Threads) -> object:
        own = slice(20 * team.rank, 20 * team.rank + 20)
        return adfs.ADFSClassifier(method="adfs", cluster=team, verbose=1, tol=1e-8).fit(X[own], y[own])

    on_threads(2, fit)
    told = capsys.readouterr().err
    assert told.count("2 nodes on 2 ranks") == told.count("rank 1: nodes 1") == 1
    assert told.count("adfs: adfs: gap") >= 1  # a line per second, so a fast fit has only one
    assert " 0 % of the way" not in told


@pytest.mark.parametrize(("given", "code"), [((), 130), ((15,), 143)])
def test_as_one_program_tells_the_signal_of_an_interruption(
    given: tuple[int, ...], code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A second Ctrl-C within a run, or one outside: nothing is said about where it was."""
    codes: list[int] = []
    monkeypatch.setattr("adfs.runtimes.mpi.faults.abort", lambda _, code: codes.append(code))
    monkeypatch.setattr("adfs.runtimes.mpi.faults._end_mpi", lambda _: None)
    comm = SimpleNamespace(Get_rank=lambda: 1, Get_size=lambda: 2)
    with as_one_program(comm, 60.0):  # type: ignore[arg-type]
        raise KeyboardInterrupt(*given)
    assert codes == [code]
    assert capfd.readouterr().err == (
        "adfs: rank 1 was interrupted and ends at once; a checkpoint that was written is intact\n"
    )


def test_as_one_program_says_what_one_rank_alone_was_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The others only know that it failed, and "its own message says more"."""

    def check(team: Threads) -> RefusalError:
        def action() -> None:
            if team.rank == 1:
                raise ValueError("X contains NaN")

        with pytest.raises(RefusalError) as caught:
            team.attempt("to check the data", action)
        return caught.value

    monkeypatch.setattr("adfs.runtimes.mpi.faults._end_mpi", lambda _: None)
    common, own = on_threads(2, check)
    assert "its own message says more" in str(common)
    for number, error in enumerate((common, own)):
        comm = SimpleNamespace(Get_rank=lambda number=number: number, Get_size=lambda: 2)
        # A program with `adfs fit`: the command says what is raised on rank 0.
        with pytest.raises((RefusalError, SystemExit)), as_one_program(comm, 60.0):  # type: ignore[arg-type]
            raise error
        assert capfd.readouterr().err == ("" if number == 0 else "adfs: rank 1: X contains NaN\n")
        # A program of somebody's own.
        before, watch = sys.excepthook, Watch(OneProcess(), 60.0)
        watch.install_hooks(comm)  # type: ignore[arg-type]
        sys.excepthook(type(error), error, None)
        watch.restore_hooks()
        assert sys.excepthook is before
        assert capfd.readouterr().err == f"adfs: {error}\n"
