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

    def __init__(self, sock: socket.socket, rank: int, process: str = "", longest: int = LONGEST) -> None:
        sock.setblocking(False)
        self.socket, self.rank, self.process, self.longest = sock, rank, process, longest
        self.inbox: deque[tuple[Kind, np.ndarray]] = deque()
        self.take_link: Callable[[int, memoryview], None] | None = None
        self.heard = -np.inf
        self.ended = self.bye = False
        self.lost: bytes | None = None
        self.trouble: OSError | None = None
        self.lock = threading.Lock()
        self.unsent: deque[memoryview] = deque()
        self._early: list[tuple[int, memoryview]] = []
        self._held = self._sent = self._received = 0
        # What has arrived of the next frames.
        self._buffer = memoryview(bytearray(_SHORT))
        self._end = 0
        # A long frame that is arriving, and how much of it is there.
        self._long: tuple[Kind, int, np.ndarray] | None = None
        self._filled = 0

    @property
    def full(self) -> bool:
        """Whether so much has not been asked for that no more is taken."""
        return self._held > _HELD

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
            self._flush()

    def send_link(self, edge: int, frame: memoryview) -> None:
        """Send a message between neighbours, before which there is room for the header."""
        with self.lock:
            length = frame.nbytes - HEADER.size
            HEADER.pack_into(frame, 0, MAGIC, Kind.LINK, edge, self._sent & 0xFFFFFFFF, length)
            self._sent += 1
            self.unsent.append(frame)
            self._flush()

    def sign(self) -> None:
        """Send a sign of life, unless something else is on its way."""
        # While the other end does not read, signs would pile up in the queue.
        if not self.unsent and not self.ended:
            self.send(Kind.SIGN_OF_LIFE)
        else:
            self.flush()

    def flush(self) -> None:
        """Send what is waiting in the queue, as far as the socket takes it."""
        with self.lock:
            self._flush()

    def _flush(self) -> None:
        queue = self.unsent
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
            long = self._long
            # The bytes of a long frame go straight to its array, those of all others to the shared buffer.
            room = long[-1].data[self._filled :] if long else self._buffer[self._end :]
            try:
                with self.lock:
                    count = self.socket.recv_into(room)
            except _NOT_NOW:
                return
            except OSError as error:
                count, self.trouble = 0, error
            if count == 0:
                self.ended = True
                # A stranger may have sent less than a header: even so its first bytes tell what it is.
                start = bytes(self._buffer[: min(self._end, len(MAGIC))])
                if not MAGIC.startswith(start):
                    raise FrameError(foreign(start))
                if long or self._end:
                    raise FrameError("the beginning of a message, and closed the connection")
            elif long:
                self._filled += count
                if self._filled == long[-1].size:
                    self._long = None
                    kind, edge, body = long
                    if kind == Kind.LINK:
                        self._put_link(edge, body.data)
                    else:
                        self._put(kind, body)
            else:
                self._end += count
                self._take_frames()
            # Less than the room means that the socket is empty: another call would only say so.
            # TLS may hold bytes that the socket no longer shows.
            if count < room.nbytes and not (isinstance(self.socket, ssl.SSLSocket) and self.socket.pending()):
                return

    def _take_frames(self) -> None:
        """Take the frames in the buffer, and keep the rest for later."""
        buffer, start, end = self._buffer, 0, self._end
        while end - start >= HEADER.size:
            kind, edge, length = check_header(buffer[start:end], self._received, self.longest)
            first = start + HEADER.size
            if length > len(buffer) - HEADER.size:  # it arrives in an array of its own
                # The system gives memory to an empty array page by page, as bytes arrive.
                body = np.empty(length, dtype=np.uint8)
                self._long, self._filled = (kind, edge, body), end - first
                body.data[: self._filled] = buffer[first:end]
                self._received += 1
                start = end
                break
            if end - first < length:
                break
            self._received += 1
            # Messages between neighbours are copied straight to their slot. Others need an array of
            # their own, because the next bytes overwrite the buffer.
            view = buffer[first : first + length]
            if kind == Kind.LINK:
                self._put_link(edge, view)
            else:
                self._put(kind, np.array(view, dtype=np.uint8))
            start = first + length
        # A frame that has not arrived as a whole goes to the front.
        if start and start < end:
            # The copy is needed, because the two ranges may overlap.
            buffer[: end - start] = bytes(buffer[start:end])
        self._end = end - start

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
