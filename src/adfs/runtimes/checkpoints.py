"""Checkpoints: the state of a run at one position, enough to go on with the same bits.

One process keeps one file. Several keep a folder: one file per process, and a manifest that says which belong
together. A generation is complete once every process has written its file; only then process 0 replaces the
manifest, and only then the files of the generation before are removed. Whatever happens meanwhile, the
manifest names files that are all there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from adfs._version import __version__
from adfs.algorithms.base import Process, Setting, Work
from adfs.errors import AdfsError, FileError, InputError
from adfs.files import AnyPath, JsonObject, write_whole
from adfs.runtimes.certificates import Certificate
from adfs.runtimes.cluster import Cluster, RefusalError
from adfs.runtimes.loop import Ending, Outcome, Progress
from adfs.runtimes.options import describe
from adfs.runtimes.result import (
    arrays_under,
    check_array,
    read_container,
    refused_as_damaged,
    write_container,
)

_KIND = "checkpoint-set"


#: The stages of a run in a checkpoint: entries for its header, and arrays by name.
StageState = tuple[list[JsonObject], dict[str, np.ndarray]]
#: Returns the process that a checkpoint fills, from the stages in it.
MakeProcess = Callable[[list[JsonObject], dict[str, np.ndarray]], Process]


def run_fingerprint(method: str, setting: Setting, rule: str) -> str:
    """Return a hash of everything that decides a run's bits: data, network, parameters, schedule and seed.

    ``rule`` identifies the rule that decides about its stages.
    """
    words, arrays = setting.problem.identity()
    words = [method, setting.seed, setting.schedule, sorted(setting.options.items()), *words, rule]
    parts = (*arrays, setting.block, setting.network, setting.parameters)
    return hashlib.sha256(repr([words, *map(describe, parts)]).encode()).hexdigest()


def _save(path: Path, process: Process, fingerprint: str, progress: Progress, stages: StageState) -> None:
    """Write the state of a process and of its stages, and the rows of the run so far."""
    rows = progress.rows
    columns = list(rows[0]) if rows else []
    header: JsonObject = {
        "version": __version__,
        "fingerprint": fingerprint,
        "position": process.position,
        "work": list(process.work),
        "seconds": progress.seconds,
        "columns": columns,
        "stages": stages[0],
    }
    # Rows all have the same columns, so they are kept as one table.
    table = np.array([[row[name] for name in columns] for row in rows], dtype=np.float64)
    arrays = {f"{_STATE}{name}": value for name, value in process.arrays().items()}
    if progress.best is not None:
        header["best"] = _keep(progress.best, _BEST, arrays)
    if progress.ending is not None:
        outcome, certificate, exhausted, planned = progress.ending
        header["ending"] = [str(outcome), exhausted, planned, _keep(certificate, _ENDING, arrays)]
    arrays |= {f"{_STAGES}{name}": value for name, value in stages[1].items()}
    write_container(path, "checkpoint", header, arrays | {"rows": table})


# The beginnings of the names of arrays in a checkpoint, besides "rows".
_STATE, _STAGES, _BEST, _ENDING = "state/", "stages/", "best/", "ending/"


def _keep(certificate: Certificate, place: str, arrays: dict[str, np.ndarray]) -> list[str]:
    """Put a certificate's arrays beside others, and return its numbers in a form that loses no bit."""
    arrays[f"{place}theta"] = certificate.theta
    if certificate.duals is not None:
        arrays[f"{place}duals"] = certificate.duals
    numbers = certificate.value, certificate.lower, certificate.gap, certificate.absolute_gap
    return [float(number).hex() for number in numbers]


def _kept(numbers: Sequence[str], place: str, arrays: Mapping[str, np.ndarray]) -> Certificate:
    """Return a certificate that `_keep` has kept."""
    value, lower, gap, absolute_gap = (float.fromhex(number) for number in numbers)
    theta, duals = arrays[f"{place}theta"], arrays.get(f"{place}duals")
    return Certificate(theta, value, lower, gap, duals, absolute_gap=absolute_gap)


def _why_refused(path: Path, header: JsonObject, fingerprint: str) -> str:
    """Say why a checkpoint cannot be resumed by a run with this fingerprint; nothing if it can be."""
    # Another version may draw or round differently: its runs cannot be gone on with.
    version = header.get("version", "an earlier version")
    if version != __version__:
        return (
            f"{path} was written by adfs {version} and this is adfs {__version__}; "
            "resume with that version, or start anew"
        )
    if header.get("fingerprint") != fingerprint:
        return (
            f"{path} is a checkpoint of another run (other data, network, parameters, method or seed); "
            "resume with the same ones, or start anew"
        )
    return ""


def _fill(
    path: Path, header: JsonObject, arrays: dict[str, np.ndarray], make_process: MakeProcess
) -> tuple[Process, Progress]:
    """Fill a process from the content of a checkpoint; return it, and how far the run was."""
    with refused_as_damaged(path):
        position, seconds = float(header["position"]), float(header["seconds"])
        work = Work(*(int(value) for value in header["work"]))
        if not (0.0 <= position < math.inf and 0.0 <= seconds < math.inf and min(work) >= 0):
            raise ValueError("its position, its work or its seconds are negative or not finite")
        # The file may have been changed by hand: every entry is checked before it is used.
        names, table = header["columns"], arrays["rows"]
        check_array("rows", table, (len(table), len(names)) if len(table) else (0,))
        rows = [dict(zip(names, (float(value) for value in row), strict=True)) for row in table]
        progress = Progress(rows, seconds)
        if "best" in header:
            progress.best = _kept(header["best"], _BEST, arrays)
        if "ending" in header:
            outcome, exhausted, planned, numbers = header["ending"]
            progress.ending = Ending(Outcome(outcome), _kept(numbers, _ENDING, arrays), exhausted, planned)
        process = make_process(header["stages"], arrays_under(_STAGES, arrays))
        ending = progress.ending
        diverged = ending is not None and ending.outcome is Outcome.DIVERGED
        for name, array in process.arrays().items():
            found = arrays[f"{_STATE}{name}"]
            check_array(name, found, array.shape, array.dtype)
            # Infinity is a bound that was not met yet; NaN is nothing.
            if not diverged and found.dtype.kind in "fc" and np.isnan(found).any():
                raise ValueError(f"the array {name!r} holds NaN; start anew")
            array[...] = found
        process.position, process.work = position, work
        dual = process.dual()
        # Certificates are checked against the process, which knows the shapes.
        for certificate in (progress.best, None if ending is None else ending.certificate):
            if certificate is None:
                continue
            check_array("theta", certificate.theta, process.primal().shape[1:])
            if certificate.duals is not None and dual is not None:
                check_array("dual variables", certificate.duals, dual.shape)
            # A run that had ended returns these as they are.
            for values in (certificate.theta, certificate.duals):
                if not diverged and values is not None and not np.isfinite(values).all():
                    raise ValueError("its coefficients or dual variables hold NaN or infinity; start anew")
    return process, progress


@contextlib.contextmanager
def used_by_one_run(cluster: Cluster, path: AnyPath) -> Iterator[None]:
    """Refuse a second run where a live one keeps its checkpoints; a run that died holds nothing."""
    place = Path(path)
    file = place.with_name(f".{place.name}.lock") if cluster.one_file else place / ".lock"
    # Process 0 holds the lock for all.
    lock = partial(_lock, file, place) if cluster.rank == 0 else lambda: None
    handle = cluster.attempt("to look for checkpoints", lock)
    try:
        yield
    finally:
        if handle is not None:
            file.unlink(missing_ok=True)
            os.close(handle)


def _lock(file: Path, place: Path) -> int:
    """Return the handle of a lock that the system drops with this process, however that ends."""
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
            return handle
        # Whoever held it before may have removed the file since it was opened.
        if file.exists() and os.path.samestat(os.fstat(handle), file.stat()):
            return handle
        os.close(handle)


def _check_folder(folder: Path) -> None:
    """Raise unless files can be written into a folder, which is made if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Permissions do not say everything (quotas, read-only disks): write a file.
        probe = folder / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink(missing_ok=True)  # another process of the same number may have been quicker
    except OSError as error:
        raise InputError(f"cannot write checkpoints into {folder}: {error.strerror or error}") from None


class Checkpoints:
    """Where the processes of a run keep their checkpoints: a file of one process, or a folder of several.

    The folder is the same for all, on a disk they share or on a disk of each host.

    Parameters
    ----------
    cluster : Cluster
    path : Path
    fingerprint : str
        Of this process's part of the run.
    part_of : path, optional
        The folder of the fit that the run is part of.
    """

    def __init__(
        self, cluster: Cluster, path: Path, fingerprint: str, part_of: AnyPath | None = None
    ) -> None:
        self.cluster, self.path, self.fingerprint, self.part_of = cluster, path, fingerprint, part_of
        self.one_file, self.n_ranks = cluster.one_file, cluster.size
        self.manifest = path / "manifest"  # names the complete generation in a folder
        self.generation = 0

    def _file(self, generation: int) -> Path:
        if self.one_file:
            return self.path
        place = f"rank-{self.cluster.rank:05d}-of-{self.n_ranks:05d}"
        return self.path / f"{place}.{generation:08d}.checkpoint"

    def start(self, make_process: MakeProcess | None, *, optional: bool) -> tuple[Process, Progress] | None:
        """Check that a checkpoint can be written; return the process and the progress of the last one.

        The result is None without a checkpoint, and if the run shall start anew (``make_process`` is None).
        A checkpoint of another run is refused. If it is ``optional``, the run starts anew instead: it is a
        later part of a fit whose first part was resumed, and an earlier fit left the file.
        """
        why, resume = "to look for checkpoints", make_process is not None
        # All count from the generation of process 0, whose manifest it is.
        latest = self.cluster.bcast(self.cluster.attempt(why, partial(self._find_latest, resume)))
        self.generation = latest.get("generation", 0)
        if make_process is None or not latest:
            return None
        # The nodes of a process and the bits of its file belong to this number of ranks.
        if latest["n_ranks"] != self.n_ranks:
            if optional:
                return None
            raise RefusalError(
                f"the checkpoint in {self.path} was written by {latest['n_ranks']} ranks "
                f"and there are {self.n_ranks}; resume with as many as there were"
            )
        # Every process reads its own file; one that does not fit stops all.
        path = self._file(self.generation)
        why = "to read the checkpoint"
        header, arrays = self.cluster.attempt(why, partial(read_container, path, "checkpoint"))
        trouble = _why_refused(path, header, self.fingerprint)
        if optional and any(self.cluster.allgather(bool(trouble))):
            return None

        def load() -> tuple[Process, Progress]:
            if trouble:
                raise InputError(trouble)
            process, progress = _fill(path, header, arrays, make_process)
            if process.position != latest.get("position", process.position):
                raise InputError(f"{path} is of another position than the manifest says")
            return process, progress

        process, progress = self.cluster.attempt(why, load)
        # The rows are the same for all, and only process 0 keeps them.
        return process, dataclasses.replace(progress, rows=self.cluster.bcast(progress.rows))

    def _find_latest(self, resume: bool) -> JsonObject:
        """Return the generation, ranks and position of the last complete checkpoint; {} without one."""
        if self.one_file:
            if self.path.is_dir():
                raise InputError(f"cannot write the checkpoint {self.path}: it is a directory")
            _check_folder(self.path.parent)
            return {"n_ranks": 1} if self.path.exists() else {}
        _check_folder(self.path)
        if self.cluster.rank > 0 or not self.manifest.exists():
            return {}
        try:
            header, _ = read_container(self.manifest, _KIND)
            with refused_as_damaged(self.manifest):
                counts = {name: int(header[name]) for name in ("generation", "n_ranks")}
                return counts | {"position": float(header["position"])}
        except AdfsError:
            if resume:
                raise
            return {}  # a run that starts anew replaces it

    def begin(self) -> None:
        """Remove the files about an earlier run's end; its checkpoint stays until there is a newer one."""
        if self.cluster.rank == 0 and not self.one_file:
            # A fit of several runs has such files in its own folder, too.
            for folder in {self.path, Path(self.part_of or self.path)}:
                for name in ("finished.json", "ended.json"):
                    with contextlib.suppress(OSError):
                        (folder / name).unlink()

    def save(self, process: Process, progress: Progress, stages: StageState) -> None:
        """Write a new checkpoint; all processes call it at the same position."""
        if self.one_file:
            _save(self.path, process, self.fingerprint, progress, stages)
            return
        new, first = self.generation + 1, self.cluster.rank == 0
        self.cluster.activity = f"to write the checkpoint at position {process.position:.17g}"
        # Rows are the same in every process: process 0 writes them.
        own = progress if first else dataclasses.replace(progress, rows=[])
        self._write(new, partial(_save, self._file(new), process, self.fingerprint, own, stages))
        # The manifest is replaced only when every process has written its file.
        header = {"generation": new, "n_ranks": self.n_ranks, "position": process.position}
        self._write(new, partial(write_container, self.manifest, _KIND, header, {}) if first else None)
        self.generation = new
        self._remove_older()

    def _remove_older(self) -> None:
        """Remove older generations, whoever wrote them: the manifest names a newer one."""
        for path in self.path.glob("rank-*.checkpoint"):
            number = path.suffixes[-2].removeprefix(".") if len(path.suffixes) > 1 else ""
            if number.isdigit() and int(number) < self.generation:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _write(self, generation: int, write: Callable[[], None] | None) -> None:
        """Write a file of a generation; raise everywhere if one process fails, the one before stays."""
        trouble = ""
        try:
            if write is not None:
                with self.cluster.busy():
                    write()
        except FileError as error:
            trouble = str(error)
        found = self.cluster.allgather(trouble)
        failed = [rank for rank, words in enumerate(found) if words]
        if failed:
            with contextlib.suppress(OSError):
                self._file(generation).unlink()
            keep = "the checkpoint before is intact" if self.generation else "there is no checkpoint"
            raise FileError(f"rank {failed[0]} {found[failed[0]]}; {keep}")


def tell_ending(cluster: Cluster, folder: AnyPath, words: JsonObject) -> None:
    """Write into the checkpoint folder of several processes how a run, or a fit of several runs, ended.

    ``finished.json`` means converged, and nothing else does: the exit codes of launchers cannot be trusted.
    Any other end is written to ``ended.json``.
    """
    if cluster.rank == 0 and not cluster.one_file:
        name = "finished.json" if words["outcome"] == "converged" else "ended.json"
        write_whole(Path(folder) / name, json.dumps(words, sort_keys=True) + "\n", make_folder=True)
