"""Random streams against the framing: no exception but the package's own, and no memory beyond the limit."""

from __future__ import annotations

import random
import resource
import socket
import ssl

import numpy as np
import pytest

from adfs.runtimes.tcp import frames, meeting
from adfs.runtimes.tcp.frames import HEADER, MAGIC, Connection, FrameError, Kind

STREAMS = [300, pytest.param(10_000, marks=pytest.mark.soak)]


def stream(rng: random.Random) -> bytes:
    """Return noise, headers with wrong fields, or frames that end early."""
    parts = []
    for number in range(rng.randrange(1, 6)):
        body = rng.randbytes(rng.choice([0, 1, 8, 80, 3000, 70_000]))
        length = rng.choice([len(body), len(body), len(body), rng.getrandbits(64), rng.getrandbits(31)])
        kind = rng.choice([*Kind, *Kind, *Kind, rng.getrandbits(32)])
        magic = MAGIC if rng.random() < 0.9 else rng.randbytes(4)
        given = number if rng.random() < 0.9 else rng.getrandbits(32)
        parts.append(HEADER.pack(magic, kind, rng.getrandbits(rng.choice([2, 32])), given, length) + body)
    whole = b"".join(parts) if rng.random() < 0.9 else rng.randbytes(rng.randrange(1, 5000))
    return whole[: rng.randrange(len(whole) + 1)] if rng.random() < 0.3 else whole


def take_all(connection: Connection, rng: random.Random) -> None:
    """Take what has come as the runtime does."""
    while connection.inbox:
        kind = connection.inbox[0][0]
        rows = rng.choice([(-1, 3), (5,), (2, 2)])
        body = connection.take(kind) if rng.random() < 0.5 else connection.take_numbers(kind, rows)
        assert body.nbytes <= connection.longest


@pytest.mark.parametrize("count", STREAMS)
def test_connections_survive_random_streams(count: int) -> None:
    rng, told = random.Random(0), set[str]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(count):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            connection = Connection(ours, 1, longest=1 << 20)
            links: list[tuple[int, bytes]] = []
            if rng.random() < 0.5:
                connection.take_links(lambda edge, body, links=links: links.append((edge, bytes(body))))
            words = stream(rng)
            theirs.setblocking(False)
            at = 0
            try:
                while at < len(words):
                    # The bytes come in pieces, and the process looks between them.
                    try:
                        at += theirs.send(words[at : at + rng.choice([1, 23, 24, 25, 1000, 100_000])])
                    except BlockingIOError:
                        pass
                    except OSError:
                        break
                    connection.receive()
                    take_all(connection, rng)
                theirs.close()
                connection.receive()
                take_all(connection, rng)
                assert connection.ended or connection.full
            except FrameError as error:
                told.add(" ".join(str(error).split()[:2]))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 60_000  # kB
    assert {"bytes that", "the beginning", "a message"} <= told, told


@pytest.mark.parametrize("count", STREAMS)
def test_listeners_survive_random_callers(count: int) -> None:
    rng = random.Random(1)
    for _ in range(count):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            words = stream(rng)[:4000]
            if rng.random() < 0.3:
                body = rng.choice(
                    [b"{}", b"[]", b"null", b"{", b"\xff", b'{"rank": 1e999}', b"1" * 4096, b"[" * 4096]
                )
                words = HEADER.pack(MAGIC, Kind.HELLO, 0, 0, len(body)) + body
            theirs.sendall(words)
            theirs.shutdown(socket.SHUT_WR)
            try:
                card = meeting.receive_card(Connection(ours, -1, longest=4096))
            except (FrameError, OSError, ValueError, RecursionError) as error:  # what the listener expects
                card = {"words": meeting.explain(error)}
            assert isinstance(card, dict)
            assert card.get("words") != ""


def test_card_is_asked_for_before_anything_is_kept() -> None:
    """Messages between neighbours, which a process keeps for later, are no way to fill its memory."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for number in range(40):
            theirs.sendall(HEADER.pack(MAGIC, Kind.LINK, 0, number, 4000) + bytes(4000))
        caller = Connection(ours, -1, longest=4096)
        with pytest.raises(FrameError, match="a message that does not say who it is"):
            meeting.receive_card(caller)
        assert len(ours.recv(1 << 20)) > 50_000  # most of it was left where it is


def test_long_frames_take_memory_as_they_arrive() -> None:
    """A header may promise as much as the limit allows; nothing is taken for what does not come."""
    ours, theirs = socket.socketpair()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with ours, theirs:
        connection = Connection(ours, 1)
        theirs.sendall(HEADER.pack(MAGIC, Kind.ITEMS, 0, 0, frames.LONGEST) + bytes(1000))
        connection.receive()
        assert not connection.inbox
        theirs.close()
        with pytest.raises(FrameError, match="the beginning of a message, and closed the connection"):
            connection.receive()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000


def test_connection_stops_reading_what_nobody_asks_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader, writer = Connection(ours, 1), Connection(theirs, 0)
        body = np.zeros(1 << 20, dtype=np.uint8)
        for _ in range(20):
            writer.send(Kind.ROWS, body)
        while not reader.full:
            writer.flush()
            reader.receive()
        # The caller polls no more until something was taken.
        assert 4 <= len(reader.inbox) <= 7
        reader.take(Kind.ROWS)
        reader.take(Kind.ROWS)
        reader.take(Kind.ROWS)
        assert not reader.full


def test_explanations_are_words() -> None:
    assert meeting.explain(ssl.SSLError(1, "[SSL] x")) == "[ssl] x"
    assert meeting.explain(OSError()) == "OSError"
