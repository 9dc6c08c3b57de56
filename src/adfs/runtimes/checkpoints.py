"""Checkpoints: the state of a run at one position, enough to go on with the same bits.

One process keeps one file. Several keep a folder: one file per process, and a manifest that says which belong
together. A generation is complete once every process has written its file; only then process 0 replaces the
manifest, and only then the files of the generation before are removed. Whatever happens meanwhile, the
manifest names files that are all there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from adfs.algorithms.base import Process, Setting, Work
from adfs.errors import AdfsError, FileError, InputError
from adfs.files import AnyPath, JsonObject, write_whole
from adfs.runtimes.cluster import Cluster, RefusalError
from adfs.runtimes.result import read_container, write_container

_KIND = "checkpoint-set"

Rows = list[dict[str, float]]


class KeptPhases(NamedTuple):
    """What is kept of a run in phases: what JSON can hold, and arrays by name."""

    words: list[JsonObject]
    arrays: dict[str, np.ndarray]


#: Makes the process that a checkpoint is to fill, from the phases that are kept in it (None: there are none).
Start = Callable[[KeptPhases | None], Process]


def fingerprint(method: str, setting: Setting, *also: object) -> str:
    """Return a hash of everything that decides a run's bits: data, network, parameters, schedule and seed.

    ``also`` is what else does, and prints the same when it is the same.
    """
    stamp = hashlib.sha256()
    network = setting.network
    words, arrays = setting.problem.identity()
    words = [method, setting.seed, setting.schedule, sorted(setting.options.items()), *words, *also]
    arrays = [*arrays, setting.block, network.edges, network.weights]
    if dataclasses.is_dataclass(setting.parameters):
        for item in dataclasses.fields(setting.parameters):
            value = getattr(setting.parameters, item.name)
            if isinstance(value, np.ndarray):
                arrays.append(value)
            else:
                words.append((item.name, value))
    stamp.update(repr(words).encode())
    for array in arrays:
        stamp.update(repr((array.dtype.str, array.shape)).encode())
        stamp.update(np.ascontiguousarray(array).data)
    return stamp.hexdigest()


def _save(
    path: Path, process: Process, mark: str, rows: Rows, seconds: float, phases: KeptPhases | None
) -> None:
    """Write the state of a process, and what the run has recorded so far."""
    columns = list(rows[0]) if rows else []
    header: JsonObject = {
        "fingerprint": mark,
        "position": process.position,
        "work": list(process.work),
        "seconds": seconds,
        "columns": columns,
    }
    table = np.array([[row[name] for name in columns] for row in rows], dtype=np.float64)
    arrays = {f"state/{name}": value for name, value in process.arrays().items()}
    if phases is not None:
        header["phases"] = phases.words
        arrays |= {f"{_PHASES}{name}": value for name, value in phases.arrays.items()}
    write_container(path, "checkpoint", header, arrays | {"rows": table})


_PHASES = "phases/"


def _load(path: Path, start: Start, mark: str) -> tuple[Process, Rows, float]:
    """Fill a process from a checkpoint; return it, the rows recorded so far and the seconds of running."""
    header, arrays = read_container(path, "checkpoint")
    if header["fingerprint"] != mark:
        raise InputError(
            f"{path} is a checkpoint of another run (other data, network, parameters, method or seed); "
            "resume with the same ones, or start anew"
        )
    phases = None
    if "phases" in header:
        kept = {name: value for name, value in arrays.items() if name.startswith(_PHASES)}
        phases = KeptPhases(header["phases"], {name.removeprefix(_PHASES): kept[name] for name in kept})
    process = start(phases)
    for name, array in process.arrays().items():
        array[...] = arrays[f"state/{name}"]
    process.position = float(header["position"])
    process.work = Work(*(int(value) for value in header["work"]))
    names = header["columns"]
    rows = [dict(zip(names, (float(value) for value in row), strict=True)) for row in arrays["rows"]]
    return process, rows, float(header["seconds"])


class Checkpoints(ABC):
    """Where a run keeps its checkpoints."""

    @abstractmethod
    def start(self) -> None:
        """Check that a checkpoint could be written, before anything is run."""

    @abstractmethod
    def resume(self, start: Start) -> tuple[Rows, float]:
        """Fill a process from the last checkpoint, if there is one; return its rows and seconds."""

    def begin(self) -> None:  # noqa: B027  # one file says nothing of the end
        """Forget what was said of an earlier run's end: this one begins."""

    @abstractmethod
    def save(self, process: Process, rows: Rows, seconds: float, phases: KeptPhases | None = None) -> None:
        """Write a new one; all processes call it at the same position."""

    def finish(self, words: JsonObject) -> None:  # noqa: B027
        """Say how the run ended."""


def open_checkpoints(
    cluster: Cluster, path: AnyPath, mark: str, part_of: AnyPath | None = None
) -> CheckpointFile | CheckpointFolder:
    """Return the checkpoints of a run: a file of one process, or a folder of several."""
    if cluster.one_file:
        return CheckpointFile(Path(path), mark)
    return CheckpointFolder(cluster, Path(path), mark, None if part_of is None else Path(part_of))


@contextlib.contextmanager
def used_by_one_run(cluster: Cluster, path: AnyPath | None) -> Iterator[None]:
    """Refuse a second run where a live one keeps its checkpoints; a run that died holds nothing."""
    with contextlib.ExitStack() as held:
        if path is not None:
            place = Path(path)
            file = place.with_name(f".{place.name}.lock") if cluster.one_file else place / ".lock"

            def hold() -> None:
                if cluster.rank == 0:
                    held.enter_context(_locked(file, place))

            cluster.attempt("to look for checkpoints", hold)
        yield


@contextlib.contextmanager
def _locked(file: Path, place: Path) -> Iterator[None]:
    """Hold a lock that the system drops with this process."""
    try:
        import fcntl
    except ImportError:  # a system without such locks
        yield
        return
    _check_folder(file.parent)
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise InputError(
                f"another run keeps its checkpoints in {place}: wait for its end, or name another place"
            ) from None
        except OSError:  # a disk without locks
            break
        # Whoever held it before may have removed the file since it was opened.
        if file.exists() and os.path.samestat(os.fstat(handle), file.stat()):
            break
        os.close(handle)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(handle)


class CheckpointFile(Checkpoints):
    """The checkpoint of a run in one process: one file."""

    def __init__(self, path: Path, mark: str) -> None:
        self.path, self.mark = path, mark

    def start(self) -> None:
        """Make the folder, and try whether it can be written into."""
        if self.path.is_dir():
            raise InputError(f"cannot write the checkpoint {self.path}: it is a directory")
        _check_folder(self.path.parent)

    def resume(self, start: Start) -> tuple[Rows, float]:
        """Fill a process from the file, if it is there."""
        return _load(self.path, start, self.mark)[1:] if self.path.exists() else ([], 0.0)

    def save(self, process: Process, rows: Rows, seconds: float, phases: KeptPhases | None = None) -> None:
        """Replace the file."""
        _save(self.path, process, self.mark, rows, seconds, phases)


def _check_folder(folder: Path) -> None:
    """Raise unless files can be written into a folder, which is made if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink(missing_ok=True)  # another process of the same number may have been quicker
    except OSError as error:
        raise InputError(f"cannot write checkpoints into {folder}: {error.strerror or error}") from None


class CheckpointFolder(Checkpoints):
    """The folder in which the processes of a run keep their checkpoints.

    It is the same for all, on a disk they share or on a disk of each host. ``mark`` is the fingerprint of
    this process's part of the run; ``part_of`` is the folder of the fit that the run is part of, if it is.
    """

    def __init__(self, cluster: Cluster, folder: Path, mark: str, part_of: Path | None = None) -> None:
        self.cluster, self.folder, self.mark, self.part_of = cluster, folder, mark, part_of
        self.generation = 0

    def _file(self, generation: int) -> Path:
        place = f"rank-{self.cluster.rank:05d}-of-{self.cluster.size:05d}"
        return self.folder / f"{place}.{generation:08d}.checkpoint"

    @property
    def manifest(self) -> Path:
        """The file that names the complete generation."""
        return self.folder / "manifest"

    def start(self) -> None:
        """Try whether the folder can be written into, and look which generation is there."""
        why = "to look for checkpoints"
        self.cluster.attempt(why, lambda: _check_folder(self.folder))
        generation = 0
        if self.cluster.rank == 0:
            with contextlib.suppress(AdfsError):
                generation = int(read_container(self.manifest, _KIND)[0]["generation"])
        self.generation = int(self.cluster.gather(generation, why)[0])

    def save(self, process: Process, rows: Rows, seconds: float, phases: KeptPhases | None = None) -> None:
        """Write a new generation."""
        new = self.generation + 1
        why = f"to write the checkpoint at position {process.position:.17g}"
        trouble = ""
        try:
            with self.cluster.busy():
                own = rows if self.cluster.rank == 0 else []
                _save(self._file(new), process, self.mark, own, seconds, phases)
        except FileError as error:
            trouble = str(error)
        self._all_well(trouble, new, why)
        if self.cluster.rank == 0:
            header = {"generation": new, "n_ranks": self.cluster.size, "position": process.position}
            try:
                write_container(self.manifest, _KIND, header, {})
            except FileError as error:
                trouble = str(error)
        self._all_well(trouble, new, why)
        self.generation = new
        self._remove_older()

    def _remove_older(self) -> None:
        """Remove older generations, whoever wrote them: the manifest names a newer one."""
        for path in self.folder.glob("rank-*.checkpoint"):
            number = path.suffixes[-2].removeprefix(".") if len(path.suffixes) > 1 else ""
            if number.isdigit() and int(number) < self.generation:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _all_well(self, trouble: str, generation: int, why: str) -> None:
        """Raise everywhere if one process has trouble; the generation before stays."""
        found = self.cluster.gather(trouble, why)
        failed = [rank for rank, words in enumerate(found) if words]
        if failed:
            with contextlib.suppress(OSError):
                self._file(generation).unlink()
            keep = "the checkpoint before is intact" if self.generation else "there is no checkpoint"
            raise FileError(f"rank {failed[0]} {found[failed[0]]}; {keep}")

    def resume(self, start: Start) -> tuple[Rows, float]:
        """Fill a process from the last complete generation; all processes, or none."""
        why = "to read the checkpoint"
        there = self.cluster.rank == 0 and self.manifest.exists()
        own = self.cluster.attempt(why, lambda: read_container(self.manifest, _KIND)[0] if there else {})
        header = self.cluster.gather(own, why)[0]
        if not header:
            return [], 0.0
        if header["n_ranks"] != self.cluster.size:
            raise RefusalError(
                f"the checkpoint in {self.folder} was written by {header['n_ranks']} ranks "
                f"and there are {self.cluster.size}; resume with as many as there were"
            )
        self.generation = int(header["generation"])
        path = self._file(self.generation)

        def load() -> tuple[Rows, float]:
            process, rows, seconds = _load(path, start, self.mark)
            if process.position != header["position"]:
                raise InputError(f"{path} is of another position than the manifest says")
            return rows, seconds

        rows, seconds = self.cluster.attempt(why, load)
        # The rows are the same for all, and only process 0 keeps them.
        shared: Rows = self.cluster.gather(rows, why)[0]
        return shared, seconds

    def begin(self) -> None:
        """Remove what an earlier run said of its end; its checkpoint stays until there is a newer one."""
        if self.cluster.rank == 0:
            for folder in {self.folder, self.part_of or self.folder}:
                for name in ("finished.json", "ended.json"):
                    with contextlib.suppress(OSError):
                        (folder / name).unlink()

    def finish(self, words: JsonObject) -> None:
        """Write how the run ended: ``finished.json`` means converged, and nothing else does.

        Launchers' exit codes do not tell. What ended otherwise is told in ``ended.json``.
        """
        tell_ending(self.cluster, self.folder, words)


def tell_ending(cluster: Cluster, folder: AnyPath, words: JsonObject) -> None:
    """Write into the checkpoint folder of several processes how a run, or a fit of several runs, ended."""
    if cluster.rank == 0 and not cluster.one_file:
        name = "finished.json" if words["outcome"] == "converged" else "ended.json"
        write_whole(Path(folder) / name, json.dumps(words, sort_keys=True) + "\n", make_folder=True)
