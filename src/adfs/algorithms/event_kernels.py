"""How compiled code calls the kernels of an event-driven method, whichever it is.

A method's events are three compiled functions of one named tuple, its *parts*. The table below says which
functions belong to which named tuple, so that a compiled loop (the exchange of messages over MPI) can call
`execute`, `fill_message` and `take_message` on any of them, those of methods from outside the package too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import types

from adfs.compilation import kernel, overloads
from adfs.errors import InputError
from adfs.problem.rows import kind_of

__all__ = ["EventKernels", "execute", "fill_message", "register_event_kernels", "take_message"]


@kernel
def sends_nothing(parts: tuple[object, ...], i: int, time: float, out: np.ndarray) -> None:
    """Write nothing: the method runs on one machine."""


@kernel
def takes_nothing(
    parts: tuple[object, ...], edge: int, i: int, time: float, own: np.ndarray, other: np.ndarray
) -> None:
    """Take nothing: the method runs on one machine."""


class EventKernels(NamedTuple):
    """What an event does, as compiled functions of a method's parts.

    Attributes
    ----------
    run : callable
        ``run(parts, times, actors, samples, first, last) -> int``: execute events first … last − 1; stop
        before a communication with a node of another block, and return how far it got.
    outgoing : callable
        ``outgoing(parts, i, time, out)``: write what the block's node i sends at a communication to ``out``.
    incoming : callable
        ``incoming(parts, edge, i, time, own, other)``: finish a communication at node i, from what it sent
        and what it received.
    """

    run: Callable[..., int]
    outgoing: Callable[..., None] = sends_nothing
    incoming: Callable[..., None] = takes_nothing


_KERNELS: dict[type, EventKernels] = {}


def register_event_kernels(parts: type, kernels: EventKernels) -> EventKernels:
    """Say which kernels belong to a named tuple of parts, and return them.

    Parameters
    ----------
    parts : type
        A ``NamedTuple`` of arrays, numbers and further named tuples, one for each method.
    kernels : EventKernels
        Made with `adfs.compilation.kernel`.
    """
    if not (issubclass(parts, tuple) and hasattr(parts, "_fields")):
        raise InputError(f"the parts of an event method must be a NamedTuple, got {parts.__name__}")
    _KERNELS[parts] = kernels
    return kernels


def execute(
    parts: tuple[object, ...],
    times: np.ndarray,
    actors: np.ndarray,
    samples: np.ndarray,
    first: int,
    last: int,
) -> int:
    """Execute events by the kernel of these parts."""
    return _KERNELS[type(parts)].run(parts, times, actors, samples, first, last)


def fill_message(parts: tuple[object, ...], i: int, time: float, out: np.ndarray) -> None:
    """Write what the block's node i sends, by the kernel of these parts."""
    _KERNELS[type(parts)].outgoing(parts, i, time, out)


def take_message(
    parts: tuple[object, ...], edge: int, i: int, time: float, own: np.ndarray, other: np.ndarray
) -> None:
    """Finish a communication at the block's node i, by the kernel of these parts."""
    _KERNELS[type(parts)].incoming(parts, edge, i, time, own, other)


def _kernels_of(parts: types.Type) -> EventKernels | None:
    kind = kind_of(parts)
    return None if kind is None else _KERNELS.get(kind)


# numba compiles the inner functions below: what they close over is a constant to it.


@overloads(execute)
def _execute(
    parts: types.Type,
    times: types.Type,
    actors: types.Type,
    samples: types.Type,
    first: types.Type,
    last: types.Type,
) -> Callable[..., object] | None:
    found = _kernels_of(parts)
    if found is None:
        return None
    run = found.run

    def implementation(
        parts: tuple[object, ...],
        times: np.ndarray,
        actors: np.ndarray,
        samples: np.ndarray,
        first: int,
        last: int,
    ) -> int:
        return run(parts, times, actors, samples, first, last)

    return implementation


@overloads(fill_message)
def _fill_message(
    parts: types.Type, i: types.Type, time: types.Type, out: types.Type
) -> Callable[..., object] | None:
    found = _kernels_of(parts)
    if found is None:
        return None
    outgoing = found.outgoing

    def implementation(parts: tuple[object, ...], i: int, time: float, out: np.ndarray) -> None:
        outgoing(parts, i, time, out)

    return implementation


@overloads(take_message)
def _take_message(
    parts: types.Type, edge: types.Type, i: types.Type, time: types.Type, own: types.Type, other: types.Type
) -> Callable[..., object] | None:
    found = _kernels_of(parts)
    if found is None:
        return None
    incoming = found.incoming

    def implementation(
        parts: tuple[object, ...], edge: int, i: int, time: float, own: np.ndarray, other: np.ndarray
    ) -> None:
        incoming(parts, edge, i, time, own, other)

    return implementation
