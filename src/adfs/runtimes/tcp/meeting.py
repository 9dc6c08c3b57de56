"""How processes find each other: one listens, the other calls and says who it is, and either may refuse.

A caller sends one message with its version, its rank and what it was given; the answer is a welcome, or a
sentence that says what differs. A stranger who says something else, or nothing, is turned away, and the run
goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from adfs.errors import InputError
from adfs.runtimes.tcp.frames import HEADER, MAGIC, Connection, FrameError, Kind, check_header, foreign

# A caller must say who it is within so many seconds and so many bytes; so many may be doing so at once.
_HELLO_SECONDS, _HELLO_BYTES, _CALLERS = 10.0, 4096, 64
_TLS_FILES = ("certificate", "key", "authority")


def read_address(text: object) -> tuple[str, int]:
    """Return the host and the port of an address.

    >>> read_address("node-1:47001"), read_address("[::1]:47001")
    (('node-1', 47001), ('::1', 47001))
    """
    host, colon, port = str(text).rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 65_536):
        raise InputError(f"an address is a host and a port, such as node-1:47001, got {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def load_tls(files: Mapping[str, str | Path], rank: int) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS settings for answering and for calling: version 1.3, certificates on both ends."""
    if sorted(files) != sorted(_TLS_FILES):
        raise InputError(f"tls takes the files {', '.join(_TLS_FILES)}, got {', '.join(map(str, files))}")
    names = {what: str(files[what]).replace("{rank}", str(rank)) for what in _TLS_FILES}
    contexts = []
    for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Whoever has a certificate of this authority is one of us, whatever its address is.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(names["certificate"], names["key"])
            context.load_verify_locations(names["authority"])
        except (OSError, ssl.SSLError) as error:
            raise InputError(
                f"the TLS files {', '.join(names.values())} cannot be used: {explain(error)}; "
                "give a certificate, its key and the authority that signed it, as PEM"
            ) from None
        contexts.append(context)
    return contexts[0], contexts[1]


class WithoutTlsError(FrameError):
    """The caller is one of us and does not use TLS."""


class Refusal(NamedTuple):
    """Why a caller is turned away, and whether calling again is of no use."""

    reason: str
    final: bool = False


def taken(rank: int) -> Refusal:
    """Return the refusal of a second process of one rank: the first may have ended, which shows later."""
    return Refusal(f"another process is rank {rank} already; start each rank once")


class Listener:
    """The listening socket of a process, and a thread that asks callers who they are.

    The same thread sends the signs of life: ``beat`` is called every ``pause`` seconds.
    """

    def __init__(
        self,
        listener: socket.socket,
        check: Callable[[Mapping[str, Any]], Refusal | None],
        tls: ssl.SSLContext | None,
        beat: Callable[[], None],
        pause: float,
    ) -> None:
        self._socket, self._check, self._tls, self._beat, self._pause = listener, check, tls, beat, pause
        # Who has called and is not connected yet, by rank; and those who have not said who they are.
        self._callers: dict[int, tuple[str, socket.socket]] = {}
        self._strangers: list[socket.socket] = []
        self._lock = threading.Lock()
        #: Why the last caller was turned away.
        self.last_refusal = ""
        # `close` writes to one end; the thread wakes at the other, and ends.
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._work, name="adfs-peers", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        self._socket.setblocking(False)
        poll = select.poll()
        for sock in (self._socket, self._woken):
            poll.register(sock, select.POLLIN)
        beat = time.monotonic() + self._pause
        while True:
            # The thread sleeps until someone calls, or the next sign of life is due.
            ready = {number for number, _ in poll.poll(1000.0 * max(0.0, beat - time.monotonic()))}
            if self._woken.fileno() in ready:
                return
            if time.monotonic() >= beat:
                self._beat()
                beat = time.monotonic() + self._pause
            if self._socket.fileno() in ready:
                with contextlib.suppress(OSError):
                    # The caller may have left again, and then there is nobody to accept.
                    self._ask(*self._socket.accept())

    def _ask(self, caller: socket.socket, address: Any) -> None:
        """Ask a caller who it is, in a thread of its own: it may be slow, or a stranger."""
        caller.settimeout(_HELLO_SECONDS)
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The handshake waits for the caller, so it is left to the thread that hears it.
        if self._tls is not None:
            caller = self._tls.wrap_socket(caller, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._strangers.append(caller)
            # Strangers must not keep us from hearing our own: the one who has been here longest goes.
            if len(self._strangers) > _CALLERS:
                close_socket(self._strangers.pop(0))
        threading.Thread(target=self._hear, args=(caller, address[0]), daemon=True).start()

    def _hear(self, caller: socket.socket, host: str) -> None:
        """Find out who a caller is, and keep it until it is asked for, or turn it away."""
        card: Mapping[str, Any] = {}
        plain = self._tls is None
        try:
            card = _card(caller)
            refusal = self._check(card)
        # Python's TLS sockets raise AttributeError when another thread closes them during the handshake.
        except (OSError, ValueError, RecursionError, FrameError, AttributeError) as error:
            refusal = Refusal(explain(error))
            plain = plain or isinstance(error, WithoutTlsError)
        with self._lock:
            # Whoever takes a caller off this list, under the lock, decides about its socket.
            if caller not in self._strangers:  # the listener was closed, or others came
                return
            self._strangers.remove(caller)
            if refusal is None:
                refusal = self._keep(caller, card["rank"], card["process"])
            if refusal is not None:
                self.last_refusal = f"a caller from {host} was turned away: {refusal.reason}"
        if refusal is not None:
            # The lock is free here: a slow stranger must not hold up our own processes.
            refuse(caller, refusal, socket.socket if plain else ssl.SSLSocket)

    def _keep(self, caller: socket.socket, rank: int, process: str) -> Refusal | None:
        # A process that gave up waiting calls again by the same name; another name is a second process.
        before, old = self._callers.get(rank, (process, None))
        if before != process:
            return taken(rank)
        self._callers[rank] = process, caller
        if old is not None:  # the same process calls again
            close_socket(old)
        return None

    def caller(self, rank: int) -> tuple[str, socket.socket] | None:
        """Return the process of a rank, if it has called, and the socket to it."""
        with self._lock:
            return self._callers.pop(rank, None)

    def close(self) -> None:
        """Stop listening; those who are not connected yet may call again."""
        self._wake.send(b"x")
        self._thread.join()
        with self._lock:
            for sock in (*self._strangers, *(sock for _, sock in self._callers.values())):
                close_socket(sock)
            self._strangers.clear()
        for sock in (self._socket, self._wake, self._woken):
            sock.close()


def _card(caller: socket.socket) -> dict[str, Any]:
    """Return what a caller says about itself."""
    until = time.monotonic() + _HELLO_SECONDS
    if isinstance(caller, ssl.SSLSocket):
        # The byte stays in the socket: TLS needs it, and without TLS the answer must be readable.
        if MAGIC.startswith(socket.socket.recv(caller, 1, socket.MSG_PEEK) or b"?"):
            raise WithoutTlsError("a message without TLS, which this process uses")
        caller.do_handshake()
    kind, _, length = check_header(_read(caller, HEADER.size, until), 0, _HELLO_BYTES)
    card = json.loads(_read(caller, length, until))
    if kind != Kind.HELLO or not isinstance(card, dict):
        raise FrameError("a message that does not say who it is")
    return card


def _read(sock: socket.socket, count: int, until: float) -> bytes:
    """Return so many bytes, before a moment."""
    data = b""
    while len(data) < count:
        # The time is for the whole message: a byte now and then does not prolong it.
        sock.settimeout(max(0.001, until - time.monotonic()))
        more = sock.recv(count - len(data))
        data += more
        # A stranger shows by its first byte, long before a whole header has come.
        if count == HEADER.size and not MAGIC.startswith(data[: len(MAGIC)]):
            raise FrameError(foreign(data))
        if not more:
            raise FrameError("the beginning of a message, and closed the connection" if data else "nothing")
    return data


def refuse(sock: Any, refusal: Refusal, kind: type[socket.socket]) -> None:
    """Tell a caller why it is turned away, with TLS or without."""
    body = json.dumps(refusal).encode()
    with contextlib.suppress(OSError, ValueError):
        sock.settimeout(1.0)
        # As a plain socket it writes beside TLS, which a caller without TLS can read.
        kind.sendall(sock, HEADER.pack(MAGIC, Kind.REFUSAL, 0, 0, len(body)) + body)
        # Closing with unread bytes would discard what was just sent.
        sock.shutdown(socket.SHUT_WR)
        until = time.monotonic() + 1.0
        while kind.recv(sock, _HELLO_BYTES) and time.monotonic() < until:
            pass
    close_socket(sock)


def close_socket(sock: socket.socket) -> None:
    """Close a socket, whatever state it is in, also while another thread waits for it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def listen(address: tuple[str, int], rank: int) -> socket.socket:
    """Return a socket that listens at the port of this rank's address."""
    host, port = address
    # Only an address of this machine alone is listened at as it is: a name may be that of another interface.
    local = host in ("localhost", "::1") or host.startswith("127.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    any_host = "::" if family == socket.AF_INET6 else ""
    sock = socket.socket(family)
    try:
        # The connections of the last run may hold the port for a minute more.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host if local else any_host, port))
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise InputError(
            f"rank {rank} cannot listen at port {port}: {explain(error)}; end what uses the port, start "
            "each rank once, or give another port in the list of addresses"
        ) from None
    return sock


def call(
    address: tuple[str, int], card: Mapping[str, Any], tls: ssl.SSLContext | None, seconds: float
) -> socket.socket:
    """Call a process and say who this one is.

    Raises
    ------
    OSError
        If it cannot be reached now; `explain` makes words of it.
    """
    sock = socket.create_connection(address, timeout=seconds)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            sock = tls.wrap_socket(sock)
        body = json.dumps(card).encode()
        sock.sendall(HEADER.pack(MAGIC, Kind.HELLO, 0, 0, len(body)) + body)
    except OSError:
        sock.close()
        raise
    return sock


def wait_for_welcome(connection: Connection, until: float, look_around: Callable[[], object]) -> None:
    """Wait for the answer to a call.

    Raises
    ------
    InputError
        If the other process refuses this one for good.
    OSError, FrameError, ValueError
        If it does not answer, or not now; `explain` makes words of it.
    """
    while not connection.inbox:
        connection.receive()
        if connection.ended:
            raise connection.trouble or ConnectionResetError(0, "it ended the connection")
        if time.perf_counter() > until:
            raise TimeoutError
        # The existing connections are served meanwhile, also to learn that one of them has ended.
        look_around()
        time.sleep(0.001)
    if connection.inbox[0][0] == Kind.WELCOME:
        connection.take(Kind.WELCOME)
        return
    refusal = Refusal(*json.loads(connection.take(Kind.REFUSAL).tobytes()))
    # What was given to the two processes differs: no later call can succeed.
    if refusal.final:
        raise InputError(refusal.reason)
    raise ConnectionAbortedError(0, refusal.reason)


def explain(error: Exception) -> str:
    """Return why a process cannot be reached."""
    if isinstance(error, FrameError):
        return f"it sent {error}"
    if isinstance(error, socket.gaierror):
        return "its name does not resolve"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, TimeoutError):
        return "it does not answer; a firewall may be in between"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid here ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return str(getattr(error, "reason", None) or error).replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def for_good(error: Exception) -> bool:
    """Whether TLS failed for a reason that does not go away."""
    passing = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    return isinstance(error, ssl.SSLError) and not isinstance(error, passing)


def fingerprint(addresses: Sequence[str]) -> str:
    """Return what two processes with the same list of addresses have in common."""
    return hashlib.sha256(json.dumps(list(addresses)).encode()).hexdigest()[:16]


def new_process() -> str:
    """Return a name for a process that no other has."""
    return f"{socket.gethostname()} {os.getpid()} {os.urandom(6).hex()}"
