"""Which events can be executed while others wait for a message."""

from __future__ import annotations

import numpy as np

from adfs.compilation import kernel

__all__ = ["split_events", "take_events"]


@kernel
def split_events(
    actors: np.ndarray,
    first: int,
    last: int,
    ends: np.ndarray,
    slot: np.ndarray,
    blocked: np.ndarray,
    waiting: np.ndarray,
    n_waiting: int,
    ready: np.ndarray,
) -> tuple[int, int]:
    """Split events into those that can be executed now and those that must wait.

    Parameters
    ----------
    actors : (T,) int32
        The events of a window.
    first, last : int
        New events, in their order.
    ends : (|E|, 2) int32
    slot : (n,) int32
        The place of each node in the block, −1 elsewhere.
    blocked : (k,) uint8
        Which nodes of the block wait for a message; on return also those with an event that must wait.
    waiting : (≥ T,) int32
        The events that waited before, and come first; on return those that wait now, in their order.
    n_waiting : int
        How many.
    ready : (≥ T,) int32
        On return, the events to execute, in their order. A node that communicates with another rank is the
        last of its events among them.

    Returns
    -------
    n_ready, n_waiting : int
    """
    n = slot.size
    n_ready = 0
    kept = 0
    for position in range(n_waiting + last - first):
        t = waiting[position] if position < n_waiting else first + position - n_waiting
        actor = actors[t]
        other = -1
        if actor < n:
            one = slot[actor]
        else:
            one = slot[ends[actor - n, 0]]
            other = slot[ends[actor - n, 1]]
        if (one >= 0 and blocked[one]) or (other >= 0 and blocked[other]):
            if one >= 0:
                blocked[one] = 1
            if other >= 0:
                blocked[other] = 1
            waiting[kept] = t  # never beyond what has been read
            kept += 1
            continue
        ready[n_ready] = t
        n_ready += 1
        if actor >= n:
            if one < 0:
                blocked[other] = 1
            elif other < 0:
                blocked[one] = 1
    return n_ready, kept


@kernel
def take_events(
    times: np.ndarray,
    actors: np.ndarray,
    samples: np.ndarray,
    chosen: np.ndarray,
    count: int,
    out_times: np.ndarray,
    out_actors: np.ndarray,
    out_samples: np.ndarray,
) -> None:
    """Copy the chosen events one after the other."""
    for k in range(count):
        t = chosen[k]
        out_times[k] = times[t]
        out_actors[k] = actors[t]
        out_samples[k] = samples[t]
