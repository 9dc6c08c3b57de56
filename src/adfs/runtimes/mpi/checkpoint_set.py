"""Checkpoints of a run on several ranks: one file a rank, and a manifest that says which belong together.

A generation is complete once every rank has written its file; only then rank 0 replaces the manifest, and
only then the files of the generation before are removed. Whatever happens meanwhile, the manifest names
files that are all there.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from adfs.algorithms.base import Process
from adfs.errors import AdfsError, InputError
from adfs.runtimes.checkpoints import load_checkpoint, save_checkpoint
from adfs.runtimes.container import FileError, read_container, write_atomically, write_container
from adfs.runtimes.mpi.faults import RefusalError
from adfs.runtimes.mpi.team import Team

__all__ = ["CheckpointSet"]

_KIND = "checkpoint-set"


class CheckpointSet:
    """The folder in which a run keeps its checkpoints.

    Parameters
    ----------
    team : Team
    folder : Path
        The same for all ranks, on a disk they share or on a disk of each host.
    mark : str
        The fingerprint of this rank's part of the run.
    nodes : ndarray
        This rank's nodes.
    """

    def __init__(self, team: Team, folder: Path, mark: str, nodes: np.ndarray) -> None:
        self.team, self.folder, self.mark, self.nodes = team, folder, mark, nodes
        self.generation = 0

    def _file(self, generation: int) -> Path:
        return self.folder / f"rank-{self.team.rank:05d}-of-{self.team.size:05d}.{generation:08d}.checkpoint"

    @property
    def manifest(self) -> Path:
        """The file that names the complete generation."""
        return self.folder / "manifest"

    @property
    def marker(self) -> Path:
        """The file that says that the run ended well (exit codes of launchers do not)."""
        return self.folder / "finished.json"

    def save(self, process: Process, rows: list[dict[str, float]], seconds: float) -> None:
        """Write a new generation; all ranks call it at the same position."""
        new = self.generation + 1
        why = f"to write the checkpoint at position {process.position:.17g}"
        trouble = ""
        try:
            save_checkpoint(self._file(new), process, self.mark, rows if self.team.rank == 0 else [], seconds)
        except FileError as error:
            trouble = str(error)
        self._all_well(trouble, new, why)
        if self.team.rank == 0:
            header = {"generation": new, "n_ranks": self.team.size, "position": process.position}
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
        """Raise on every rank if one has trouble; the generation before stays."""
        found = self.team.gather_all(trouble, why)
        failed = [rank for rank, words in enumerate(found) if words]
        if failed:
            with contextlib.suppress(OSError):
                self._file(generation).unlink()
            keep = "the checkpoint before is intact" if self.generation else "there is no checkpoint"
            raise FileError(f"rank {failed[0]} {found[failed[0]]}; {keep}")

    def resume(self, process: Process) -> tuple[list[dict[str, float]], float]:
        """Fill a process from the last complete generation; all ranks, or none."""
        why = "to read the checkpoint"
        header: dict[str, Any] = {}
        trouble = ""
        if self.team.rank == 0 and self.manifest.exists():
            try:
                header, _ = read_container(self.manifest, _KIND)
            except InputError as error:
                trouble = str(error)
        header, trouble = json.loads(self.team.tell_all(json.dumps([header, trouble]).encode(), why))
        if not trouble and not header:
            return [], 0.0
        if not trouble and header["n_ranks"] != self.team.size:
            trouble = (
                f"the checkpoint in {self.folder} was written by {header['n_ranks']} ranks "
                f"and there are {self.team.size}; resume with as many as there were"
            )
        rows: list[dict[str, float]] = []
        seconds = 0.0
        if not trouble:
            self.generation = int(header["generation"])
            try:
                rows, seconds = load_checkpoint(self._file(self.generation), process, self.mark)
                if process.position != header["position"]:
                    raise InputError(
                        f"{self._file(self.generation)} is of another position than the manifest says"
                    )
            except AdfsError as error:
                trouble = f"rank {self.team.rank}: {error}"
        found = [words for words in self.team.gather_all(trouble, why) if words]
        if found:
            raise RefusalError(found[0])
        # The rows are all ranks' alike, and only rank 0 keeps them.
        shared: list[dict[str, float]] = json.loads(self.team.tell_all(json.dumps(rows).encode(), why))
        return shared, seconds

    def start(self) -> None:
        """Remove the marker of a run before; its checkpoint stays until there is a newer one."""
        generation = 0
        if self.team.rank == 0:
            with contextlib.suppress(AdfsError):
                generation = int(read_container(self.manifest, _KIND)[0]["generation"])
            with contextlib.suppress(OSError):
                self.marker.unlink()
        self.generation = int(self.team.tell_all(str(generation).encode(), "to look for checkpoints"))

    def finish(self, words: dict[str, Any]) -> None:
        """Say that the run ended well."""
        if self.team.rank == 0:
            write_atomically(self.marker, (json.dumps(words, sort_keys=True) + "\n").encode())
