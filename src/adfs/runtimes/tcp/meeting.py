"""How processes find each other: one listens, the other calls and says who it is, and either may refuse.

A caller sends one message with its version, its rank and what it was given; the answer is a welcome, or a
sentence that says what differs. A stranger who says something else, or nothing, is turned away, and the run
goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from adfs.errors import InputError
from adfs.runtimes.tcp.frames import HEADER, LONGEST, MAGIC, Connection, FrameError, Kind

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


def load_tls(files: Mapping[str, str | Path] | None, rank: int) -> list[ssl.SSLContext | None]:
    """Return the TLS settings for answering and for calling: version 1.3, certificates on both ends."""
    if files is None:
        return [None, None]
    if sorted(files) != sorted(_TLS_FILES):
        raise InputError(f"tls takes the files {', '.join(_TLS_FILES)}, got {', '.join(map(str, files))}")
    names = {what: str(files[what]).replace("{rank}", str(rank)) for what in _TLS_FILES}
    contexts: list[ssl.SSLContext | None] = []
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
    return contexts


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
        # Who has called and is not welcomed yet, by rank; and those who have not said who they are.
        self._callers: dict[int, Connection] = {}
        self._strangers: list[Connection] = []
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
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The handshake waits for the caller, so it is left to that thread.
        if self._tls is not None:
            caller = self._tls.wrap_socket(caller, server_side=True, do_handshake_on_connect=False)
        connection = Connection(caller, -1, longest=_HELLO_BYTES)
        with self._lock:
            self._strangers.append(connection)
            # Strangers must not keep us from hearing our own: the one who has been here longest goes.
            if len(self._strangers) > _CALLERS:
                close_socket(self._strangers.pop(0).socket)
        threading.Thread(target=self._admit, args=(connection, address[0]), daemon=True).start()

    def _admit(self, caller: Connection, host: str) -> None:
        """Find out who a caller is, and keep it until it is asked for, or turn it away."""
        plain = self._tls is None
        try:
            card = receive_card(caller)
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
                caller.rank, caller.process = card["rank"], card["process"]
                refusal = self._keep(caller)
            if refusal is not None:
                self.last_refusal = f"a caller from {host} was turned away: {refusal.reason}"
        if refusal is not None:
            # The lock is free here: a slow stranger must not hold up our own processes.
            refuse(caller.socket, refusal, socket.socket if plain else ssl.SSLSocket)

    def _keep(self, caller: Connection) -> Refusal | None:
        # A process that gave up waiting calls again by the same name; another name is a second process.
        before = self._callers.get(caller.rank)
        if before is not None and before.process != caller.process:
            return taken(caller.rank)
        self._callers[caller.rank] = caller
        if before is not None:  # the same process calls again
            close_socket(before.socket)
        return None

    def caller(self, rank: int) -> Connection | None:
        """Return the connection to the process of a rank, if it has called."""
        with self._lock:
            return self._callers.pop(rank, None)

    def close(self) -> None:
        """Stop listening; those who are not connected yet may call again."""
        self._wake.send(b"x")
        self._thread.join()
        with self._lock:
            for caller in (*self._strangers, *self._callers.values()):
                close_socket(caller.socket)
            self._strangers.clear()
        for sock in (self._socket, self._wake, self._woken):
            sock.close()


def receive_card(caller: Connection) -> dict[str, Any]:
    """Return what a caller says about itself."""
    sock, until = caller.socket, time.monotonic() + _HELLO_SECONDS
    if isinstance(sock, ssl.SSLSocket):
        sock.settimeout(_HELLO_SECONDS)
        # The byte stays in the socket: TLS needs it, and without TLS the answer must be readable.
        if MAGIC.startswith(socket.socket.recv(sock, 1, socket.MSG_PEEK) or b"?"):
            raise WithoutTlsError("a message without TLS, which this process uses")
        sock.do_handshake()
        sock.setblocking(False)
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    # Messages between neighbours are kept for later, but not as many as a stranger likes to send.
    while not caller.inbox and not caller.full:
        # The time is for the whole message: a byte now and then does not prolong it.
        left = until - time.monotonic()
        if left <= 0.0 or not poll.poll(1000.0 * left):
            raise TimeoutError
        caller.receive()
        if caller.ended:
            raise caller.trouble or FrameError("nothing")
    card = json.loads(caller.take(Kind.HELLO).tobytes()) if caller.inbox else None
    if not isinstance(card, dict):
        raise FrameError("a message that does not say who it is")
    # From now on it may send as much as any of us.
    caller.longest = LONGEST
    return card


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
    try:
        return socket.create_server((host if local else any_host, port), family=family, backlog=128)
    except OSError as error:
        raise InputError(
            f"rank {rank} cannot listen at port {port}: {os.strerror(error.errno or 0)}; end what uses the "
            "port, start each rank once, or give another port in the list of addresses"
        ) from None


def call(
    address: tuple[str, int],
    card: Mapping[str, Any],
    tls: ssl.SSLContext | None,
    until: float,
    look_around: Callable[[], object],
) -> Connection:
    """Call a process, say who this one is, and return the connection once it is welcome.

    Raises
    ------
    InputError
        If the other process refuses this one for good.
    OSError, FrameError, ValueError
        If it cannot be reached, does not answer or refuses for now; `explain` makes words of it.
    """
    sock = socket.create_connection(address, timeout=max(0.001, min(5.0, until - time.perf_counter())))
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            sock = tls.wrap_socket(sock)
        connection = Connection(sock, card["to"])
        connection.send(Kind.HELLO, json.dumps(card).encode())
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
            return connection
        refusal = Refusal(*json.loads(connection.take(Kind.REFUSAL).tobytes()))
        # What was given to the two processes differs: no later call can succeed.
        if refusal.final:
            raise InputError(refusal.reason)
        raise ConnectionAbortedError(0, refusal.reason)
    except BaseException:
        close_socket(sock)
        raise


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
