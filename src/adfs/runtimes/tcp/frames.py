"""Messages on a socket: each has a header with its kind, its number and its length, and is never pickled.

A connection never blocks: what the socket does not take at once waits in a queue, and what has arrived is
taken in pieces. Numbers are raw bytes, text is JSON.
"""

from __future__ import annotations

import enum
import math
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from adfs.errors import AdfsError

# "adfs", the kind, the edge of a message between neighbours, the number of the frame, the bytes that follow.
HEADER = struct.Struct("<4sIIIQ")
MAGIC = b"adfs"
#: The longest frame that a connection takes, in bytes.
LONGEST = 1 << 30
# A frame shorter than this is sent in one piece with its header.
_SHORT = 1 << 16
# A connection with so many bytes that nobody has asked for yet takes no more.
_HELD = 1 << 22
_NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Kind(enum.IntEnum):
    """The kinds of frames."""

    HELLO = 1
    WELCOME = 2
    REFUSAL = 3
    SIGN_OF_LIFE = 4
    LOST = 5
    BYE = 6
    ITEMS = 7
    ROWS = 8
    SUM = 9
    PARCEL = 10
    LINK = 11


_KINDS = {int(kind): kind for kind in Kind}


class FrameError(AdfsError, RuntimeError):
    """The bytes that have arrived are not those of a process of the same version."""


def _buffer(size: int) -> memoryview:
    """Return room for bytes; the system gives its memory page by page, as they arrive."""
    return np.empty(size, dtype=np.uint8).data


def foreign(start: bytes) -> str:
    """Return what bytes are that do not begin as a message does."""
    tls = start[:1] in (b"\x15", b"\x16")
    return "bytes of TLS, which this process does not use" if tls else "bytes that are no message of adfs"


def check_header(header: bytes | memoryview, number: int, longest: int) -> tuple[Kind, int, int]:
    """Return the kind, the edge and the length of a frame; raise unless it is the frame that comes next."""
    magic, kind, edge, given, length = HEADER.unpack_from(header)
    if magic != MAGIC:
        raise FrameError(foreign(bytes(header[:1])))
    if kind not in _KINDS:
        raise FrameError(f"a message of the unknown kind {kind}")
    # TCP loses nothing: a wrong number means that the ends disagree on where a frame begins.
    if given != number & 0xFFFFFFFF:
        raise FrameError(f"message {given} where message {number} is next: one is missing or was repeated")
    # This comes before any memory is taken: a stranger may promise any length.
    if length > longest:
        raise FrameError(f"a message of {length} bytes, and {longest} are the most")
    return _KINDS[kind], edge, length


class Connection:
    """One socket to another process.

    A second thread may send signs of life at any time, so a lock protects the socket (TLS needs it for
    receiving too).

    Attributes
    ----------
    rank, process : int, str
        The process at the other end, and its name for itself.
    inbox : deque of (Kind, ndarray of uint8)
        The frames that have arrived and were not asked for yet.
    take_link : callable or None
        Takes the messages between neighbours: an edge and its bytes.
    heard : float
        When the last sign of life came.
    ended, bye : bool
        Whether the other end has closed the connection, and whether it said before that it would.
    lost : bytes or None
        The sentence with which the other end gave up.
    trouble : OSError or None
        What ended the connection, if it was not the other end in order.
    """

    def __init__(self, sock: socket.socket, rank: int, longest: int = LONGEST) -> None:
        sock.setblocking(False)
        self.socket, self.rank, self.process, self.longest = sock, rank, "", longest
        self.inbox: deque[tuple[Kind, np.ndarray]] = deque()
        self.take_link: Callable[[int, memoryview], None] | None = None
        self.heard = -np.inf
        self.ended = self.bye = False
        self.lost: bytes | None = None
        self.trouble: OSError | None = None
        self.lock = threading.RLock()
        self.unsent: deque[memoryview] = deque()
        self._early: list[tuple[int, memoryview]] = []
        self._held = self._sent = self._received = 0
        # What has arrived of the next frames.
        self._buffer = _buffer(_SHORT)
        self._end = 0

    @property
    def full(self) -> bool:
        """Whether so much has not been asked for that no more is taken."""
        return self._held > min(_HELD, self.longest)

    # ------------------------------------------------------------------ sending

    def send(self, kind: Kind, payload: Any = b"") -> None:
        """Send a frame, or what the socket takes of it now; until it has left, its bytes must not change."""
        body = memoryview(payload).cast("B")
        with self.lock:
            # The number is given under the lock: signs of life of the other thread are counted, too.
            header = HEADER.pack(MAGIC, kind, 0, self._sent & 0xFFFFFFFF, body.nbytes)
            self._sent += 1
            if body.nbytes < _SHORT:
                self.unsent.append(memoryview(header + body))
            else:
                # To copy a long body would cost more than a second call of the system.
                self.unsent += [memoryview(header), body]
            self.flush()

    def send_link(self, edge: int, frame: memoryview) -> None:
        """Send a message between neighbours, before which there is room for the header."""
        with self.lock:
            length = frame.nbytes - HEADER.size
            HEADER.pack_into(frame, 0, MAGIC, Kind.LINK, edge, self._sent & 0xFFFFFFFF, length)
            self._sent += 1
            self.unsent.append(frame)
            self.flush()

    def sign(self) -> None:
        """Send a sign of life, unless something else is on its way."""
        # While the other end does not read, signs would pile up in the queue.
        if not self.unsent and not self.ended:
            self.send(Kind.SIGN_OF_LIFE)
        else:
            self.flush()

    def flush(self) -> None:
        """Send what is waiting in the queue, as far as the socket takes it."""
        queue = self.unsent
        with self.lock:
            while queue:
                try:
                    count = self.socket.send(queue[0])
                except _NOT_NOW:
                    return
                except OSError:  # the other end has gone; what it said before is still to be read
                    queue.clear()
                    return
                if count == queue[0].nbytes:
                    queue.popleft()
                else:
                    queue[0] = queue[0][count:]

    # ------------------------------------------------------------------ receiving

    def receive(self) -> None:
        """Take what has arrived, without waiting; raise `FrameError` if it is not what a process sends."""
        while not self.ended:
            room = self._buffer[self._end :]
            try:
                with self.lock:
                    count = self.socket.recv_into(room)
            except _NOT_NOW:
                return
            except OSError as error:
                count, self.trouble = 0, error
            if count == 0:
                self.ended = True
                if self._end:
                    raise FrameError("the beginning of a message, and closed the connection")
            self._end += count
            self._take_frames()
            # TLS may hold bytes that the socket no longer shows: they are taken in any case.
            hidden = isinstance(self.socket, ssl.SSLSocket) and self.socket.pending()
            # Less than the room means that the socket is empty: another call would only say so.
            if not hidden and (self.full or count < room.nbytes):
                return

    def _take_frames(self) -> None:
        """Take the frames in the buffer, and keep the rest for later."""
        buffer, start, end, size = self._buffer, 0, self._end, _SHORT
        while end - start >= HEADER.size:
            kind, edge, length = check_header(buffer[start:end], self._received, self.longest)
            first, stop = start + HEADER.size, start + HEADER.size + length
            if stop > end:
                size = max(_SHORT, stop - start)
                break
            self._received += 1
            # Messages between neighbours are copied straight to their slot. Others need an array of their
            # own, because the next bytes overwrite the buffer; a long one keeps its buffer.
            body = buffer[first:stop]
            if kind == Kind.LINK:
                self._put_link(edge, body)
            else:
                found = np.frombuffer(body, dtype=np.uint8)
                self._put(kind, found.copy() if len(buffer) == _SHORT else found)
            start = stop
        rest = buffer[start:end]
        # The first bytes show a stranger, long before a whole header has come.
        beginning = bytes(rest[: len(MAGIC)])
        if not MAGIC.startswith(beginning):
            raise FrameError(foreign(beginning))
        # A long frame arrives in a buffer of its own size, and what follows it in a short one again.
        if len(buffer) != size:
            self._buffer = _buffer(size)
        # What has arrived of the next frame goes to the front; the copy is needed where the two overlap.
        if start or len(buffer) != size:
            self._buffer[: len(rest)] = bytes(rest)
        self._end = len(rest)

    def _put_link(self, edge: int, body: memoryview) -> None:
        if self.take_link is not None:
            self.take_link(edge, body)
        else:  # the other end is ahead
            # The bytes are copied, because the buffer is used again at once.
            self._held += len(body)
            self._early.append((edge, memoryview(bytes(body))))

    def _put(self, kind: Kind, body: np.ndarray) -> None:
        """Keep a frame for the one who asks for it, or note what it says."""
        if kind == Kind.SIGN_OF_LIFE:
            self.heard = time.perf_counter()
        elif kind == Kind.BYE:
            self.bye = True
        elif kind == Kind.LOST:
            self.lost = body.tobytes()
        else:
            self._held += body.size
            self.inbox.append((kind, body))

    def take(self, kind: Kind) -> np.ndarray:
        """Return the bytes of the frame that has arrived first, which must be of this kind."""
        found, body = self.inbox.popleft()
        self._held -= body.size
        # Both ends make the same calls in the same order: another kind shows that they do not.
        if found != kind:
            raise FrameError(f"a message of the kind {found.name} where {kind.name} is next")
        return body

    def take_numbers(self, kind: Kind, shape: tuple[int, ...]) -> np.ndarray:
        """Return the numbers of the frame that has arrived first; −1 is any number of rows, but not none."""
        body = self.take(kind)
        # The shape is that of the receiver: a sender cannot make this process believe in another one.
        row = 8 * math.prod(shape[1:] if shape[0] < 0 else shape)
        if body.size % row or not body.size or (shape[0] >= 0 and body.size != row):
            raise FrameError(f"{body.size} bytes of the kind {kind.name}, which are not {shape} numbers")
        return body.view(np.float64).reshape(shape)

    def take_links(self, take: Callable[[int, memoryview], None] | None) -> None:
        """Let messages between neighbours be taken from now on, also those that came early."""
        # Only the thread that receives comes here, so no later message can overtake the early ones.
        self.take_link, early, self._early = take, self._early, []
        if take is not None:
            for edge, body in early:
                self._held -= len(body)
                take(edge, body)
