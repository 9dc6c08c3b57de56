"""Checkpoints: the state of a run at one position, enough to go on with the same bits."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from typing import Any

import numpy as np

from adfs.algorithms.base import Process, Setting, Work
from adfs.errors import InputError
from adfs.runtimes.container import read_container, write_container

__all__ = ["fingerprint", "load_checkpoint", "save_checkpoint"]


def fingerprint(method: str, setting: Setting) -> str:
    """Return a hash of everything that decides a run's bits: data, network, parameters, schedule and seed."""
    stamp = hashlib.sha256()
    problem, network = setting.problem, setting.network
    words, arrays = problem.identity()
    words = [method, setting.seed, setting.schedule, sorted(setting.options.items()), *words]
    arrays += [setting.block, network.edges, network.weights]
    stamp.update(repr(words).encode())
    if dataclasses.is_dataclass(setting.parameters):
        for item in dataclasses.fields(setting.parameters):
            value = getattr(setting.parameters, item.name)
            if isinstance(value, np.ndarray):
                arrays.append(value)
            else:
                stamp.update(repr((item.name, value)).encode())
    for array in arrays:
        stamp.update(repr((array.dtype.str, array.shape)).encode())
        stamp.update(np.ascontiguousarray(array).data)
    return stamp.hexdigest()


def save_checkpoint(
    path: str | os.PathLike[str],
    process: Process,
    mark: str,
    rows: list[dict[str, float]],
    seconds: float,
) -> None:
    """Write the state of a process, and what the run has recorded so far."""
    columns = list(rows[0]) if rows else []
    header = {
        "fingerprint": mark,
        "position": process.position,
        "work": list(process.work),
        "seconds": seconds,
        "columns": columns,
    }
    table = np.array([[row[name] for name in columns] for row in rows], dtype=np.float64)
    arrays = {f"state/{name}": value for name, value in process.arrays().items()}
    write_container(path, "checkpoint", header, arrays | {"rows": table})


def load_checkpoint(
    path: str | os.PathLike[str], process: Process, mark: str
) -> tuple[list[dict[str, float]], float]:
    """Fill a process from a checkpoint; return the rows recorded so far and the seconds of running."""
    header, arrays = read_container(path, "checkpoint")
    if header["fingerprint"] != mark:
        raise InputError(
            f"{path} is a checkpoint of another run (other data, network, parameters, method or seed); "
            "resume with the same ones, or start anew"
        )
    for name, array in process.arrays().items():
        array[...] = arrays[f"state/{name}"]
    process.position = float(header["position"])
    process.work = Work(*(int(value) for value in header["work"]))
    rows: list[dict[str, Any]] = [
        dict(zip(header["columns"], (float(value) for value in row), strict=True)) for row in arrays["rows"]
    ]
    return rows, float(header["seconds"])
