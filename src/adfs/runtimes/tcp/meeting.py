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
from typing import Any

from adfs._version import __version__
from adfs.errors import InputError
from adfs.runtimes.tcp.frames import HEADER, MAGIC, Connection, FrameError, Kind, check_header

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
                f"the TLS files {', '.join(names.values())} cannot be used: {_reason(error)}; "
                "give a certificate, its key and the authority that signed it, as PEM"
            ) from None
        contexts.append(context)
    return contexts[0], contexts[1]


def _reason(error: Exception) -> str:
    """Return the words of an error of the system or of TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid here ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class Door:
    """The listening socket of a process, and a thread that asks callers who they are.

    The same thread sends the signs of life: ``beat`` is called every ``pause`` seconds.
    """

    def __init__(
        self,
        listener: socket.socket,
        check: Callable[[Mapping[str, Any]], str],
        tls: ssl.SSLContext | None,
        beat: Callable[[], None],
        pause: float,
    ) -> None:
        self._listener, self._check, self._tls, self._beat, self._pause = listener, check, tls, beat, pause
        # Who has called and is not connected yet, by rank; and those who have not said who they are.
        self._callers: dict[int, tuple[str, socket.socket]] = {}
        self._strangers: list[socket.socket] = []
        self._lock = threading.Lock()
        #: Why the last caller was turned away.
        self.turned_away = ""
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._work, name="adfs-peers", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        self._listener.setblocking(False)
        beat = time.monotonic() + self._pause
        while True:
            ready, *_ = select.select(
                [self._listener, self._woken], [], [], max(0.0, beat - time.monotonic())
            )
            if self._woken in ready:
                return
            if time.monotonic() >= beat:
                self._beat()
                beat = time.monotonic() + self._pause
            if self._listener in ready:
                with contextlib.suppress(OSError):
                    self._ask(*self._listener.accept())

    def _ask(self, caller: socket.socket, address: Any) -> None:
        """Ask a caller who it is, in a thread of its own: it may be slow, or a stranger."""
        with self._lock:
            self._strangers.append(caller)
            # Strangers must not keep us from hearing our own: the one who has been here longest goes.
            if len(self._strangers) > _CALLERS:
                hang_up(self._strangers.pop(0))
        threading.Thread(target=self._hear, args=(caller, address[0]), daemon=True).start()

    def _hear(self, caller: socket.socket, host: str) -> None:
        sock = caller
        try:
            sock, card = self._card(caller)
        except (OSError, ValueError, FrameError) as error:
            trouble, card = _reason(error), {}
        else:
            trouble = self._check(card)
        with self._lock:
            if caller not in self._strangers:  # it took too long, or the door was closed
                hang_up(sock)
                return
            self._strangers.remove(caller)
            if not trouble:
                rank, process = card["rank"], card["process"]
                before, old = self._callers.get(rank, (process, None))
                if before == process:
                    self._callers[rank] = process, sock
                    if old is not None:
                        hang_up(old)
                    return
                trouble = f"another process is rank {rank} already"
            self.turned_away = f"a caller from {host} was turned away: {trouble}"
        refuse(sock, trouble)

    def _card(self, caller: socket.socket) -> tuple[socket.socket, dict[str, Any]]:
        """Return what a caller says about itself."""
        until = time.monotonic() + _HELLO_SECONDS
        caller.settimeout(_HELLO_SECONDS)
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock = caller
        if self._tls is not None:
            sock = self._tls.wrap_socket(caller, server_side=True, do_handshake_on_connect=False)
            sock.do_handshake()
        kind, _, length = check_header(_read(sock, HEADER.size, until), 0, _HELLO_BYTES)
        card = json.loads(_read(sock, length, until))
        if kind != Kind.HELLO or not isinstance(card, dict):
            raise FrameError("it did not say who it is")
        return sock, card

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
                hang_up(sock)
            self._strangers.clear()
        for sock in (self._listener, self._wake, self._woken):
            sock.close()


def _read(sock: socket.socket, count: int, until: float) -> bytes:
    """Return so many bytes, before a moment."""
    data = b""
    while len(data) < count:
        sock.settimeout(max(0.001, until - time.monotonic()))
        more = sock.recv(count - len(data))
        if not more:
            raise FrameError("it said nothing" if not data else "it stopped in the middle of a message")
        data += more
        if not MAGIC.startswith(data[:4]) and not data.startswith(MAGIC) and count == HEADER.size:
            tls = data[:1] in (b"\x16", b"\x15")
            raise FrameError("it speaks TLS, and this process does not" if tls else "it does not speak adfs")
    return data


def refuse(sock: socket.socket, reason: str) -> None:
    """Tell a caller why it is turned away."""
    body = json.dumps(reason).encode()
    with contextlib.suppress(OSError, ValueError):
        sock.settimeout(1.0)
        sock.sendall(HEADER.pack(MAGIC, Kind.REFUSAL, 0, 0, len(body)) + body)
        # Closing with unread bytes would discard what was just sent.
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 12):
            pass
    hang_up(sock)


def hang_up(sock: socket.socket) -> None:
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
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host if local else any_host, port))
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise InputError(
            f"rank {rank} cannot listen at port {port}: {_reason(error)}; end what uses the port, start "
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


def explain(error: Exception) -> str:
    """Return why a process cannot be reached."""
    if isinstance(error, socket.gaierror):
        return "its name does not resolve"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, TimeoutError):
        return "it does not answer; a firewall may be in between"
    return _reason(error)


def fingerprint(addresses: Sequence[str]) -> str:
    """Return what two processes with the same list of addresses have in common."""
    return hashlib.sha256(json.dumps(list(addresses)).encode()).hexdigest()[:16]


def new_process() -> str:
    """Return a name for a process that no other has."""
    return f"{socket.gethostname()} {os.getpid()} {os.urandom(6).hex()}"


def answer_of(connection: Connection) -> str | None:
    """Return "" for a welcome, the reason of a refusal, and None if there is no answer yet."""
    connection.receive()
    if not connection.inbox:
        return None
    kind, body = connection.inbox[0]
    connection.take(kind)
    return "" if kind == Kind.WELCOME else str(json.loads(bytes(body)))


__all__ = ["Door", "__version__", "call", "listen", "load_tls", "read_address"]
