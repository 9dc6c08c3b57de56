"""What compiled code needs of a process to execute its events: its arrays, and by their type its kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types

from adfs.algorithms.adfs import AdfsConstants, AdfsProcess, AdfsState, center_iterate, receive, run_events
from adfs.algorithms.base import EventProcess
from adfs.algorithms.ns_adfs import (
    NsAdfsProcess,
    NsConstants,
    NsState,
    ns_outgoing,
    ns_receive,
    ns_run_events,
)
from adfs.compilation import overloads

__all__ = ["AdfsParts", "NsParts", "execute", "fill_message", "parts_of", "take_message"]


class AdfsParts(NamedTuple):
    """The arrays of an `AdfsProcess`."""

    loss: Any
    rows: Any
    y: np.ndarray
    weights: np.ndarray
    offsets: np.ndarray
    constants: AdfsConstants
    state: AdfsState


class NsParts(NamedTuple):
    """The arrays of an `NsAdfsProcess`."""

    loss: Any
    rows: Any
    y: np.ndarray
    weights: np.ndarray
    constants: NsConstants
    state: NsState


def parts_of(process: EventProcess) -> AdfsParts | NsParts | None:
    """Return the arrays of a process whose kernels compiled code can call; None for any other."""
    if isinstance(process, AdfsProcess):
        p = process.problem
        return AdfsParts(p.loss, p.rows, p.y, p.weights, p.offsets, process.constants, process.state)
    if isinstance(process, NsAdfsProcess):
        p = process.problem
        return NsParts(p.loss, p.rows, p.y, p.weights, process.constants, process.state)
    return None


def execute(parts: Any, times: Any, actors: Any, samples: Any, first: int, last: int) -> int:
    """Do what ``process.run`` does; compiled code only."""
    raise NotImplementedError


def fill_message(parts: Any, i: int, time: float, out: np.ndarray) -> None:
    """Write what the block's node i sends, as ``process.outgoing`` does; compiled code only."""
    raise NotImplementedError


def take_message(parts: Any, edge: int, i: int, time: float, own: np.ndarray, other: np.ndarray) -> None:
    """Finish a communication, as ``process.incoming`` does; compiled code only."""
    raise NotImplementedError


def _kind(parts: Any) -> type | None:
    return parts.instance_class if isinstance(parts, types.BaseNamedTuple) else None


@overloads(execute)
def _execute(parts: Any, times: Any, actors: Any, samples: Any, first: Any, last: Any) -> Any:
    if _kind(parts) is AdfsParts:

        def adfs(parts: Any, times: Any, actors: Any, samples: Any, first: Any, last: Any) -> int:
            p = parts
            return run_events(
                p.loss,
                p.rows,
                p.y,
                p.weights,
                p.offsets,
                p.constants,
                p.state,
                times,
                actors,
                samples,
                first,
                last,
            )

        return adfs
    if _kind(parts) is NsParts:

        def ns_adfs(parts: Any, times: Any, actors: Any, samples: Any, first: Any, last: Any) -> int:
            p = parts
            return ns_run_events(
                p.loss, p.rows, p.y, p.weights, p.constants, p.state, times, actors, samples, first, last
            )

        return ns_adfs
    return None


@overloads(fill_message)
def _fill_message(parts: Any, i: Any, time: Any, out: Any) -> Any:
    if _kind(parts) is AdfsParts:
        return lambda parts, i, time, out: center_iterate(
            parts.offsets, parts.constants, parts.state, i, time, out
        )
    if _kind(parts) is NsParts:
        return lambda parts, i, time, out: ns_outgoing(parts.constants, parts.state, i, time, out)
    return None


@overloads(take_message)
def _take_message(parts: Any, edge: Any, i: Any, time: Any, own: Any, other: Any) -> Any:
    if _kind(parts) is AdfsParts:
        return lambda parts, edge, i, time, own, other: receive(
            parts.constants, parts.state, edge, i, own, other
        )
    if _kind(parts) is NsParts:
        return lambda parts, edge, i, time, own, other: ns_receive(
            parts.constants, parts.state, edge, i, time, own, other
        )
    return None
