"""Faults over TCP: each is one sentence in time, and a stranger ends no run."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adfs
from adfs.errors import InputError
from adfs.runtimes.cluster import Placement, RefusalError
from adfs.runtimes.tcp import meeting, peers
from adfs.runtimes.tcp.frames import HEADER, MAGIC, Kind
from adfs.runtimes.waiting import RankLostError
from tcp_launch import addresses_of, certificates, free_addresses, listeners, on_peers, tls_files

Peers = adfs.TcpPeers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with certificates: good ones, one that has expired, one of a stranger."""
    found = tmp_path_factory.mktemp("tls")
    certificates(found, ["0", "1", "2", "3"])
    certificates(found, ["expired"], days=-1)
    certificates(found, ["stranger"], authority="other")
    return found


def sums(cluster: Peers) -> list[float]:
    """Return a few sums and agreements of a cluster with three nodes per process."""
    with cluster:
        rank_of_node = np.arange(3 * cluster.size) % cluster.size
        edges = np.array([(k, k + 1) for k in range(3 * cluster.size - 1)])
        placement = Placement(rank_of_node, edges, cluster.size)
        values = np.random.default_rng(0).standard_normal((3 * cluster.size, 4))
        total = cluster.allreduce(values[rank_of_node == cluster.rank], placement)
        assert total.tobytes() == peers.sum_in_order(values, np.zeros(4)).tobytes()
        everyone = cluster.allgather({"rank": cluster.rank})
        assert [one["rank"] for one in everyone] == list(range(cluster.size))
        found: list[float] = total.tolist()
        return found


def told(found: list[Any], kind: type[Exception] = RankLostError) -> list[str]:
    """Return the sentences of errors of one kind."""
    for error in found:
        if not isinstance(error, kind):
            raise AssertionError(f"not a {kind.__name__}: {error!r}") from error
    return [str(error) for error in found]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_tcp_peers_add_and_agree_in_trees_of_any_size(size: int) -> None:
    found = on_peers(size, sums)
    assert len({tuple(one) for one in found if isinstance(one, list)}) == 1, found
    assert all(isinstance(one, list) for one in found), found


def test_tcp_peers_use_tls_with_certificates_on_both_ends(folder: Path) -> None:
    found = on_peers(3, sums, tls=tls_files(folder))
    assert all(isinstance(one, list) for one in found), found


def test_tcp_peers_meet_and_part_again_and_again() -> None:
    """A refusal on all of them ends in order, too."""

    def act(cluster: Peers) -> str:
        for _ in range(5):
            sums(cluster)
        with pytest.raises(RefusalError), cluster:
            cluster.same(lambda: {"the seed": cluster.rank})
        sums(cluster)
        return repr(cluster.__reduce__()[1])

    first, second = on_peers(2, act)
    assert first.endswith("], 0)")  # type: ignore[union-attr]
    assert second.endswith("], 1)")  # type: ignore[union-attr]


@pytest.mark.parametrize("tls", [False, True])
def test_tcp_peers_exchange_long_messages_both_ways_at_once(tls: bool, folder: Path) -> None:
    """Longer than all buffers: nobody may wait for the other to read."""
    many = 1_000_000

    def act(cluster: Peers) -> int:
        with cluster:
            other, into = 1 - cluster.rank, np.zeros(many)
            placement = Placement(np.array([0, 1]), np.array([[0, 1]]), 2)
            cluster.sendrecv([(other, np.arange(many, dtype=float) + cluster.rank)], [(other, into)])
            assert into[-1] == many - 1 + other
            links = cluster.links(placement, many)
            for turn in range(3):
                links.out[0] = cluster.rank + turn
                links.send(0)
                assert links.arrived([0], "for a test") == [0]
                assert (links.into[0] == other + turn).all()
            links.close()
            rows = np.full((1, many), 1.0 + cluster.rank)
            assert (cluster.allreduce(rows, placement) == 3.0).all()
            return len(cluster.allgather("x" * many)[other])

    assert on_peers(2, act, tls=tls_files(folder) if tls else None) == [many, many]


# --------------------------------------------------------------------------- strangers, and wrong peers


@contextlib.contextmanager
def visited(action: Callable[[tuple[str, int]], None], address: str) -> Iterator[None]:
    """Let somebody call an address again and again."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                action(meeting.read_address(address))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join(20.0)


def say_nothing(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=1.0):
        time.sleep(0.1)


def say(words: bytes) -> Callable[[tuple[str, int]], None]:
    def action(address: tuple[str, int]) -> None:
        with socket.create_connection(address, timeout=1.0) as sock:
            sock.sendall(words)
            with contextlib.suppress(OSError):
                sock.recv(100)

    return action


STRANGERS = {
    "silent": say_nothing,
    "a browser": say(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "noise": say(bytes(range(256)) * 20),
    "a long hello": say(HEADER.pack(MAGIC, Kind.HELLO, 0, 0, 1 << 40)),
    "no JSON": say(HEADER.pack(MAGIC, Kind.HELLO, 0, 0, 4) + b"{{{{"),
    "a list": say(HEADER.pack(MAGIC, Kind.HELLO, 0, 0, 2) + b"[]"),
    "a rank of text": say(HEADER.pack(MAGIC, Kind.HELLO, 0, 0, 26) + b'{"rank":"1","process":"a"}'),
    "links": say(b"".join(HEADER.pack(MAGIC, Kind.LINK, 0, k, 4000) + bytes(4000) for k in range(20))),
    "half a hello": say(HEADER.pack(MAGIC, Kind.HELLO, 0, 0, 400) + b"{"),
}


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("stranger", STRANGERS)
def test_strangers_end_no_run(stranger: str, tls: bool, folder: Path) -> None:
    sockets = listeners(2)
    addresses, found = addresses_of(sockets), list[Any]([None, None])
    settings: dict[str, Any] = {"deadline": 20.0, "tls": tls_files(folder) if tls else None}

    def work(rank: int) -> None:
        cluster = Peers(addresses, rank, listener=sockets[rank], **settings)
        if rank:
            time.sleep(0.3)  # the strangers are first
        found[rank] = [sums(cluster) for _ in range(3)]

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    with visited(STRANGERS[stranger], addresses[0]):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
    assert found[0] is not None
    assert found[0] == found[1]


def different(change: dict[str, Any]) -> Callable[[Peers], object]:
    """Return what lets rank 1 say something else about itself."""

    def action(cluster: Peers) -> object:
        if cluster.rank == 1:
            own = cluster._card
            cluster._card = lambda rank: own(rank) | change  # type: ignore[method-assign]
        return sums(cluster)

    return action


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "adfs 0.1"}, f"the version is adfs 0.1 on rank 1 and adfs {adfs.__version__} on rank 0"),
        ({"number of processes": 3}, "the number of processes is 3 on rank 1 and 2 on rank 0"),
        ({"list of addresses": "x"}, "the list of addresses is x on rank 1 and"),
        ({"to": 1}, "rank 0 answers at the address of rank 1"),
    ],
)
def test_peer_that_was_started_otherwise_is_refused(change: dict[str, Any], words: str) -> None:
    waiting, refused = on_peers(2, different(change), deadline=1.0)
    (sentence,) = told([refused], InputError)
    assert words in sentence
    # The other one says whom it turned away.
    (other,) = told([waiting])
    assert "rank 0 waited 1 s for rank 1 at the start" in other
    assert f"a caller from 127.0.0.1 was turned away: {words}" in other


def test_second_process_of_a_rank_is_told() -> None:
    """The first two do not notice."""
    sockets = listeners(2)
    addresses, found, met = addresses_of(sockets), dict[str, Any](), threading.Event()

    def work(name: str, rank: int, listener: socket.socket) -> None:
        if name == "second":
            met.wait(10.0)
        cluster = Peers(addresses, rank, deadline=1.0 if name == "second" else 20.0, listener=listener)
        try:
            with cluster:
                met.set()
                for _ in range(100):
                    cluster.allgather(None)
                    time.sleep(0.02)
            found[name] = "done"
        except RankLostError as error:
            found[name] = str(error)

    extra = listeners(1)[0]
    named = [("root", 0, sockets[0]), ("first", 1, sockets[1]), ("second", 1, extra)]
    threads = [threading.Thread(target=work, args=each) for each in named]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert found["root"] == found["first"] == "done"
    assert "rank 1 waited 1 s for rank 0 at 127.0.0.1:" in found["second"]
    assert "another process is rank 1 already; start each rank once" in found["second"]


def test_port_in_use_is_told() -> None:
    sockets = listeners(2)
    with (
        sockets[0],
        sockets[1],
        pytest.raises(InputError, match=r"rank 1 cannot listen at port \d+: Address already in use"),
    ):
        Peers(addresses_of(sockets), 1).__enter__()


def alone(addresses: list[str], rank: int = 1, **settings: Any) -> str:
    """Return what a process says that finds nobody."""
    begun = time.monotonic()
    with pytest.raises((RankLostError, InputError)) as caught:
        Peers(addresses, rank, deadline=1.0, **settings).__enter__()
    assert time.monotonic() - begun < 4.0
    return str(caught.value)


def test_name_that_does_not_resolve_is_told() -> None:
    port = free_addresses(1)[0]
    sentence = alone(["no-such-host.invalid:1234", port])
    assert "for rank 0 at no-such-host.invalid:1234 at the start and gave up: its name does not" in sentence


def test_host_where_nothing_listens_is_told() -> None:
    sentence = alone(free_addresses(2))
    assert "gave up: nothing listens there; start all processes, and let the ports through" in sentence


@pytest.mark.parametrize("tls", [False, True])
def test_firewall_that_drops_packets_is_told(tls: bool, folder: Path) -> None:
    """A socket whose queue is full answers as little as one behind such a firewall."""
    with socket.socket() as deaf, contextlib.ExitStack() as held:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        for _ in range(4):
            sock = held.enter_context(socket.socket())
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect(deaf.getsockname())
        time.sleep(0.1)
        settings = {"tls": tls_files(folder)} if tls else {}
        sentence = alone([address, free_addresses(1)[0]], **settings)
    assert "it does not answer; a firewall may be in between" in sentence


@pytest.mark.parametrize("tls", [False, True])
def test_host_that_accepts_and_says_nothing_is_told(tls: bool, folder: Path) -> None:
    settings = {"tls": tls_files(folder)} if tls else {}
    with listeners(1)[0] as silent:
        sentence = alone([addresses_of([silent])[0], free_addresses(1)[0]], **settings)
    assert "it does not answer" in sentence


def test_missing_process_is_named() -> None:
    def act(cluster: Peers) -> object:
        if cluster.rank == 2:
            return None
        return sums(cluster)

    found = on_peers(3, act, deadline=1.0)
    first, second = told(found[:2])
    # The root says it, and the other one passes it on.
    assert first == second
    assert first.startswith("rank 0 waited 1 s for rank 2 at the start and gave up; see what happened there")


# --------------------------------------------------------------------------- certificates


def with_files(folder: Path, changed: dict[int, dict[str, str] | None]) -> list[Any]:
    """Return what two processes find that have different TLS files, or none."""
    sockets = listeners(2)
    addresses, found = addresses_of(sockets), list[Any]([None, None])

    def work(rank: int) -> None:
        files = changed.get(rank, tls_files(folder))
        try:
            found[rank] = sums(Peers(addresses, rank, deadline=1.5, tls=files, listener=sockets[rank]))
        except (RankLostError, InputError) as error:
            found[rank] = str(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    for sock in sockets:
        sock.close()
    assert time.monotonic() - begun < 8.0
    assert all(isinstance(one, str) for one in found), found
    return found


def test_expired_certificate_is_told(folder: Path) -> None:
    waiting, calling = with_files(folder, {1: tls_files(folder, "expired")})
    assert "rank 0 waited 1.5 s for rank 1" in waiting
    assert "turned away: its certificate is not valid here (certificate has expired)" in waiting
    assert "rank 1 cannot use TLS with rank 0" in calling
    assert "certificate expired" in calling
    waiting, calling = with_files(folder, {0: tls_files(folder, "expired")})
    assert "its certificate is not valid here (certificate has expired)" in calling
    assert "certificate expired" in waiting


def test_certificate_of_another_authority_is_told(folder: Path) -> None:
    waiting, calling = with_files(folder, {1: tls_files(folder, "stranger")})
    assert "turned away: its certificate is not valid here (unable to get local issuer" in waiting
    assert "rank 1 cannot use TLS with rank 0" in calling
    assert "unknown ca" in calling
    _, calling = with_files(folder, {1: tls_files(folder, authority="other")})
    assert "its certificate is not valid here (self-signed certificate in cert" in calling


def test_tls_on_one_side_only_is_told(folder: Path) -> None:
    waiting, calling = with_files(folder, {1: None})
    assert "turned away: it sent a message without TLS, which this process uses" in waiting
    assert "gave up: it sent a message without TLS, which this process uses" in calling
    waiting, calling = with_files(folder, {0: None})
    assert "turned away: it sent bytes of TLS, which this process does not use" in waiting
    assert "rank 1 cannot use TLS with rank 0" in calling


def test_tls_files_that_cannot_be_used_are_told(folder: Path) -> None:
    addresses = free_addresses(2)
    with pytest.raises(InputError, match="tls takes the files certificate, key, authority, got key"):
        Peers(addresses, 0, tls={"key": "x"}).__enter__()
    with pytest.raises(InputError, match=r"none\.pem.* cannot be used: No such file or directory; give a"):
        Peers(addresses, 0, tls=tls_files(folder, "none")).__enter__()
    mixed = tls_files(folder, "0") | {"key": str(folder / "1.key")}
    with pytest.raises(InputError, match="cannot be used: key values mismatch"):
        Peers(addresses, 0, tls=mixed).__enter__()


@pytest.mark.parametrize(
    ("addresses", "rank", "words"),
    [
        (["a"], 0, "an address is a host and a port, such as node-1:47001, got 'a'"),
        (["a:0"], 0, "an address is a host and a port"),
        (["a:99999"], 0, "an address is a host and a port"),
        (["a:1", "a:1"], 0, "addresses must be one host:port per process, each of them once"),
        ([], 0, "addresses must be one host:port per process"),
        (["a:1"], 1, "rank must be from 0 to 0, got 1"),
        (["a:1"], -1, "rank must be from 0 to 0"),
    ],
)
def test_tcp_peers_refuse_wrong_arguments(addresses: list[str], rank: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Peers(addresses, rank)


# --------------------------------------------------------------------------- while they work


def test_ended_process_is_named_at_once() -> None:
    """By its neighbours in the tree, which tell the others."""

    def act(cluster: Peers) -> object:
        with cluster:
            cluster.activity = "to test"
            if cluster.rank == 1:
                time.sleep(0.5)
                for connection in cluster._connections.values():
                    meeting.close_socket(connection.socket)
                return None
            begun = time.monotonic()
            try:
                cluster.allgather(None)
            finally:
                assert time.monotonic() - begun < 5.0
        return None

    found = on_peers(4, act, deadline=30.0)
    sentences = told([found[rank] for rank in (0, 2, 3)])
    assert all("lost rank 1 to test: its process has ended" in sentence for sentence in sentences), sentences


def test_silent_process_is_named_after_the_deadline() -> None:
    """By all others, although only its neighbours in the tree wait for it."""

    def act(cluster: Peers) -> object:
        with cluster:
            cluster.activity = "to test"
            if cluster.rank == 4:
                time.sleep(3.0)
            cluster.allgather(None)
        return None

    found = on_peers(5, act, deadline=1.0)
    sentences = set(told([found[rank] for rank in (0, 1, 2, 3)]))
    assert len(sentences) == 1, sentences
    assert sentences.pop().startswith("rank 1 waited 1 s for rank 4 to test and gave up")


def test_busy_process_is_waited_for() -> None:
    def act(cluster: Peers) -> object:
        with cluster:
            if cluster.rank == 4:
                with cluster.busy():
                    time.sleep(3.0)
            return cluster.allgather(cluster.rank)

    found = on_peers(5, act, deadline=1.0)
    assert found == [[0, 1, 2, 3, 4]] * 5


def test_processes_that_wait_for_each_other_end() -> None:
    def act(cluster: Peers) -> object:
        with cluster:
            # Rank 0 waits for what rank 1 never sends, and the other way round.
            cluster._receive(1 - cluster.rank, lambda connection: connection.take(Kind.ROWS))

    begun = time.monotonic()
    told(on_peers(2, act, deadline=1.0))
    assert time.monotonic() - begun < 5.0


def test_error_of_one_process_is_told_to_the_others_without_its_words() -> None:
    def act(cluster: Peers) -> object:
        with cluster:
            cluster.activity = "to test"
            if cluster.rank == 2:
                raise ValueError("x = 734.5125")
            return cluster.allgather(None)

    found = on_peers(3, act)
    assert isinstance(found[2], ValueError)
    assert set(told(found[:2])) == {"rank 2 failed to test (ValueError), its own message says more"}


def frame(kind: int, number: int, body: bytes = b"", length: int | None = None) -> bytes:
    return HEADER.pack(MAGIC, kind, 0, number, len(body) if length is None else length) + body


# Rank 1 has said who it is and where it runs: its next message is number 2.
BROKEN = {
    "random": (b"\x00" * 64, "bytes that are no message of adfs"),
    "TLS": (b"\x16\x03" + bytes(64), "bytes of TLS, which this process does not use"),
    "repeated": (frame(Kind.SIGN_OF_LIFE, 2) * 2, "message 2 where message 3 is next"),
    "skipped": (frame(Kind.SIGN_OF_LIFE, 7), "message 7 where message 2 is next"),
    "unknown kind": (frame(99, 2), "a message of the unknown kind 99"),
    "too long": (frame(Kind.ITEMS, 2, length=1 << 50), "a message of 1125899906842624 bytes, and 1073741824"),
    "another kind": (frame(Kind.ROWS, 2, bytes(16)), "a message of the kind ROWS where ITEMS is next"),
    "half a number": (frame(Kind.ITEMS, 2, b"[]\nx"), "items that cannot be read"),
    "not JSON": (frame(Kind.ITEMS, 2, b"x"), "items that cannot be read"),
    "truncated": (frame(Kind.ITEMS, 2, b"x", length=50), "the beginning of a message, and closed the"),
    "a link": (frame(Kind.LINK, 2, b"x" * 8), "rank 0 "),
}


@pytest.mark.parametrize("tls", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize("fault", BROKEN)
def test_broken_frames_of_a_peer_are_told(fault: str, tls: bool, folder: Path) -> None:
    """They are named; the process that sent them is told why the run ends."""
    words, sentence = BROKEN[fault]

    def act(cluster: Peers) -> object:
        with cluster:
            if cluster.rank == 1:
                connection = cluster._connections[0]
                connection.socket.setblocking(True)
                connection.socket.sendall(words)
                if fault != "truncated":
                    time.sleep(0.3)
                meeting.close_socket(connection.socket)
                return None
            return cluster.allgather(None)

    found = on_peers(2, act, deadline=5.0, tls=tls_files(folder) if tls else None)
    (told_by_0,) = told(found[:1])
    assert sentence in told_by_0
