"""The runtime for hosts without a launcher: processes that find each other by address, messages over TCP."""

from __future__ import annotations

from adfs.runtimes.tcp.peers import TcpPeers

__all__ = ["TcpPeers"]
