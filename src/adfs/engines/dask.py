"""Fits where the partitions of Dask collections are: a task per worker, linked by `adfs.TcpPeers`."""

from __future__ import annotations

import contextlib
import logging
import pkgutil
import socket
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from adfs._version import __version__
from adfs.engines.dask_blocks import blocks_of, lazy_call, lazy_score
from adfs.engines.tasks import (
    Fitted,
    Partition,
    base_of,
    fit_partitions,
    predictor_of,
    require,
    run_options,
    take_fitted,
    without_cluster,
)
from adfs.errors import AdfsError, InputError
from adfs.estimators.distributed import Engine
from adfs.estimators.pipeline import FittedModel
from adfs.files import AnyPath
from adfs.runtimes import RunOptions
from adfs.runtimes.tcp import TcpPeers
from adfs.runtimes.waiting import RankLostError

if TYPE_CHECKING:
    from distributed import Client, Future

_RESTARTS = 3  # of a fit that keeps checkpoints, each after the loss of a worker
_POLL_SECONDS = 0.5  # between two looks at the workers that are left
_FEW_SECONDS = 5.0  # for the scheduler to notice that a worker has ended
_LOG = logging.getLogger("adfs")


class WorkerLostError(AdfsError, RuntimeError):
    """A worker ended or was retired during a fit."""


class DaskWorkers(Engine):
    """The workers of a Dask cluster, which fit the partitions that they hold.

    An estimator with this as its ``cluster`` is fitted to dask arrays or dataframes. The partitions that have
    rows are the nodes, in their order, wherever they are: the bits are those of a fit in one process with the
    same partitions. Rows stay on their workers, whose own links carry the messages.

    With dask collections ``predict``, ``predict_proba``, ``decision_function`` and ``score`` are lazy.

    Parameters
    ----------
    client : distributed.Client, optional
        Left out, the client that was made last.
    deadline : float
        Seconds that one worker waits for another.
    tls : optional
        The certificates of the links, as for `adfs.TcpPeers`: files on every worker.
    checkpoint : path, optional
        A folder that all workers share. A fit that loses a worker then starts again and resumes from it.
    checkpoint_every : float
        Seconds.

    Examples
    --------
    With ``X`` and ``y`` dask arrays::

        client = distributed.Client("scheduler:8786")
        model = adfs.ADFSClassifier(cluster=adfs.DaskWorkers(client)).fit(X, y)
    """

    def __init__(
        self,
        client: Client | None = None,
        *,
        deadline: float = 60.0,
        tls: Any = None,
        checkpoint: AnyPath | None = None,
        checkpoint_every: float = 60.0,
    ) -> None:
        for module in ("distributed", "dask.array"):
            require(module, "DaskWorkers needs dask ({}): pip install 'dask[complete]'")
        self._client, self.deadline, self.tls = client, deadline, tls
        self.checkpoint, self.checkpoint_every = checkpoint, checkpoint_every

    def __deepcopy__(self, memo: dict[int, object]) -> DaskWorkers:
        """Return this object: a client cannot be copied."""
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """Leave out the client: a loaded model uses the one of its own program."""
        given = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return partial(DaskWorkers, **given), ()

    def __repr__(self) -> str:
        return f"DaskWorkers(deadline={self.deadline:g})"

    def holds(self, X: Any) -> bool:
        """Return whether X is a dask collection."""
        from dask.base import is_dask_collection

        return bool(is_dask_collection(X))

    # ------------------------------------------------------------------ fits

    def fit(
        self, estimator: Any, X: Any, y: Any, sample_weight: Any = None, offset: Any = None
    ) -> FittedModel:
        """Fit where the partitions are, and take over the result."""
        import dask
        from distributed import default_client

        if not self.holds(X):
            raise InputError(
                f"X must be a dask array or dataframe with DaskWorkers, got {type(X).__name__}; "
                "leave out the cluster for rows in this process"
            )
        client = self._client or default_client()
        if client.asynchronous:
            raise InputError("DaskWorkers waits for its fits: give it a client without asynchronous=True")
        plain = without_cluster(estimator)
        folder = None if self.checkpoint is None else Path(self.checkpoint) / "fit"
        options = run_options(estimator, checkpoint=folder, checkpoint_every=self.checkpoint_every)
        _check_versions(client)
        # The columns of a block may lie on different workers: as one value they have one place.
        pack = dask.delayed(tuple, pure=True)
        futures = client.compute([pack(list(block)) for block in blocks_of(X, y, sample_weight, offset)])
        parts, groups, places = _groups(client, futures)
        for attempt in range(_RESTARTS + 1):
            work = _Fit(self, client, plain, options, places)
            try:
                return take_fitted(estimator, work.run(parts, groups, bool(base_of(estimator).verbose)))
            except (WorkerLostError, RankLostError) as error:
                if folder is None or attempt == _RESTARTS:
                    raise
                _say(logging.WARNING, f"{error}; the fit starts again from its checkpoint", shown=True)
            # The groups keep their ranks, and so their files in the checkpoint: only places change.
            # Dask computes the partitions of a lost worker again from their graphs.
            options, places = replace(options, resume=True), _new_places(client, places)
            _check_versions(client)
        raise AssertionError

    # ------------------------------------------------------------------ predictions

    def apply(self, name: str, estimator: Any, X: Any, *arrays: Any, **named: Any) -> Any:
        """Return the lazy result of a method, block by block."""
        check_is_fitted(estimator)
        alone = predictor_of(estimator)
        if name == "score":
            return lazy_score(alone, X, *arrays, **named)
        return lazy_call(name, alone, X, *arrays, **named)


# --------------------------------------------------------------------------- one fit, in the client


class _Fit:
    """One attempt to fit, and what it leaves on the workers until its end."""

    def __init__(
        self, engine: DaskWorkers, client: Client, estimator: Any, options: RunOptions, places: Sequence[str]
    ) -> None:
        self.engine, self.client, self.estimator = engine, client, estimator
        self.options, self.places = options, list(places)
        self.name = f"adfs-{uuid.uuid4().hex}"

    def run(self, parts: Sequence[Future], groups: Sequence[Sequence[int]], shown: bool) -> Fitted:
        """Start a task per group of partitions, and return the result of the first."""
        client, futures = self.client, list[Any]()
        level = logging.DEBUG if shown else _LOG.getEffectiveLevel()
        with contextlib.ExitStack() as messages:
            if level <= logging.INFO:  # the lines of the first task are shown here
                client.subscribe_topic(self.name, lambda event: _say(*event[1], shown=shown))
                messages.callback(client.unsubscribe_topic, self.name)
            try:
                team = _Team(self.name, self._listen(), self.engine.deadline, self.engine.tls, level)
                for rank, (place, nodes) in enumerate(zip(self.places, groups, strict=True)):
                    held = [parts[node] for node in nodes]
                    arguments = self.estimator, self.options, team, rank, held, list(nodes)
                    # The task goes where the rows are, and nowhere else.
                    where = {"workers": [place], "allow_other_workers": False}
                    key = f"{self.name}-{rank}"
                    futures.append(client.submit(_fit_rank, *arguments, key=key, pure=False, **where))
                return self._result(futures)
            except BaseException:
                self._end(futures)
                raise

    def _listen(self) -> tuple[str, ...]:
        """Let every worker listen on a port; return the addresses in the order of the ranks."""
        from distributed.comm import CommClosedError

        workers = list(dict.fromkeys(self.places))
        found = self.client.run(_open_ports, self.name, self.places, workers=workers, on_error="return")
        self._raise_if_lost(workers)
        for worker, ports in found.items():
            if isinstance(ports, CommClosedError):  # the scheduler has not noticed yet
                raise WorkerLostError(f"the worker {worker} ended before the fit began; fit again")
            if isinstance(ports, Exception):
                raise InputError(f"the worker {worker} cannot listen for the others: {ports}")
        addresses = {rank: address for ports in found.values() for rank, address in ports.items()}
        return tuple(addresses[rank] for rank in range(len(self.places)))

    def _result(self, futures: list[Future]) -> Fitted:
        """Wait for the tasks; return the result of the first, or raise the error that tells most."""
        from distributed import wait

        left, results = dict(zip(futures, self.places, strict=True)), dict[Any, Any]()
        until = np.inf
        while left and time.monotonic() < until:
            with contextlib.suppress(TimeoutError):
                wait(list(left), timeout=_POLL_SECONDS, return_when="FIRST_COMPLETED")
            self._raise_if_lost([*left.values()])
            for future in [future for future in left if future.done()]:
                del left[future]
                results[future] = future.result(timeout=self.engine.deadline)
            errors = [result for result in results.values() if isinstance(result, Exception)]
            # A rank that lost another one may be the first to say so: the others and the scheduler know more.
            if errors:
                until = min(until, time.monotonic() + _FEW_SECONDS)
                if not all(isinstance(error, RankLostError) for error in errors):
                    break
        if errors:
            raise min(errors, key=lambda error: isinstance(error, RankLostError))
        result: Fitted = results[futures[0]]
        return result

    def _raise_if_lost(self, workers: Sequence[str]) -> None:
        """Raise if one of these workers is no longer there."""
        there = self.client.nthreads()
        lost = [worker for worker in workers if worker not in there]
        if lost:
            advice = "fit again, or give DaskWorkers a checkpoint folder that all workers share"
            if self.engine.checkpoint is not None:
                advice = "it held a part of the rows"
            raise WorkerLostError(f"the worker {lost[0]} ended or was retired during the fit; {advice}")

    def _end(self, futures: Sequence[Future]) -> None:
        """End what still runs on the workers that are left."""
        from distributed import wait

        there = self.client.nthreads()
        left = [place for place in dict.fromkeys(self.places) if place in there]
        with contextlib.suppress(Exception):
            self.client.run(_close, self.name, workers=left, on_error="ignore")
        # A fit that starts again must not meet the tasks of this one at its checkpoint.
        running = [future for place, future in zip(self.places, futures, strict=False) if place in there]
        if self.engine.checkpoint is not None:
            with contextlib.suppress(TimeoutError):
                wait(running, timeout=self.engine.deadline)
        self.client.cancel(list(futures))


def _say(level: int, sentence: str, *, shown: bool) -> None:
    """Log a line of a fit, and write it to standard error if it is to be seen."""
    _LOG.log(level, "%s", sentence)
    if shown:
        sys.stderr.write(f"adfs: {sentence}\n")
        sys.stderr.flush()


def _check_versions(client: Client) -> None:
    """Raise unless all workers have this version of adfs."""
    from distributed.comm import CommClosedError

    # A function of Python itself: a worker without adfs, or with an old one, has it too.
    versions = client.run(pkgutil.resolve_name, "adfs:__version__", on_error="return")
    for worker, version in versions.items():
        if isinstance(version, CommClosedError):  # it has just ended
            continue
        if isinstance(version, Exception):
            raise InputError(f"the worker {worker} cannot import adfs: {version}")
        if version != __version__:
            raise InputError(
                f"the worker {worker} has adfs {version} and this program has {__version__}: "
                "install the same version everywhere"
            )


def _groups(client: Client, futures: Sequence[Future]) -> tuple[list[Future], list[list[int]], list[str]]:
    """Return the partitions that have rows, groups of their numbers, and the worker of each group.

    Partitions stay where they are; the workers are in the order of their first partitions.
    """
    lengths = client.gather(client.map(_lengths, futures, pure=False))
    for place, (n_rows, *others) in enumerate(lengths):
        for name, length in zip(("y", "sample_weight", "offset"), others, strict=True):
            if length not in (None, n_rows):
                raise InputError(
                    f"{name} must have one entry per row of X: partition {place} has {n_rows} rows and "
                    f"{length} entries of {name}"
                )
    parts = [future for future, (n_rows, *_) in zip(futures, lengths, strict=True) if n_rows]
    if not parts:
        raise InputError("X has no rows")
    holders, found = client.who_has(parts), dict[str, list[int]]()
    for node, part in enumerate(parts):
        if not holders[part.key]:
            raise WorkerLostError("a worker ended before the fit began; fit again")
        # Several workers may have copies: the least address is the same choice every time.
        found.setdefault(min(holders[part.key]), []).append(node)
    return parts, list(found.values()), list(found)


def _new_places(client: Client, places: Sequence[str]) -> list[str]:
    """Return the workers of the groups, with one that is there in place of each that was lost."""
    there = list(client.nthreads())
    if not there:
        raise WorkerLostError("no worker is left: start some, and fit again")
    new = [place if place in there else "" for place in places]
    for rank, place in enumerate(new):
        if not place:
            # A worker can be several ranks: the one that is the fewest takes over.
            new[rank] = min(there, key=new.count)
    return new


# --------------------------------------------------------------------------- on the workers


class _Team(NamedTuple):
    """The tasks of one fit: its name, the address of each rank, and the arguments of their links."""

    name: str
    addresses: tuple[str, ...]
    deadline: float
    tls: Any
    level: int


# The ranks of fits that are here, by the name of the fit: each with its socket, or None once its task runs. A
# task whose rank is not here any more ends.
_RANKS: dict[tuple[str, int], socket.socket | None] = {}


def _open_ports(name: str, places: Sequence[str], dask_worker: Any) -> dict[int, str]:
    """Listen for the ranks that this worker will be; return their addresses."""
    from distributed.comm import get_address_host

    host, found = get_address_host(dask_worker.address), {}
    for rank in [rank for rank, place in enumerate(places) if place == dask_worker.address]:
        # The port is open before any task begins: a call of a faster rank waits in its queue.
        listener = _RANKS[name, rank] = socket.create_server((host, 0))
        found[rank] = f"{host}:{listener.getsockname()[1]}"
    return found


def _close(name: str) -> None:
    """End the tasks of a fit that run here, and stop listening for those that have not begun."""
    for key in [key for key in list(_RANKS) if key[0] == name]:
        listener = _RANKS.pop(key, None)
        if listener is not None:
            listener.close()


def _fit_rank(
    estimator: Any, options: RunOptions, team: _Team, rank: int, parts: list[Partition], nodes: list[int]
) -> Fitted | AdfsError | None:
    """Be one rank of a fit."""
    from distributed import secede

    # The ranks wait for each other: none may wait in a queue behind another task.
    secede()
    listener = _RANKS.pop((team.name, rank), None)
    if listener is None:
        return RankLostError("a worker was restarted during the fit")
    _RANKS[team.name, rank] = None
    try:
        return fit_partitions(estimator, parts, nodes, _Worker(team, rank, listener), options)
    except AdfsError as error:  # a result, because workers print the traces of exceptions
        return error
    finally:
        _RANKS.pop((team.name, rank), None)


class _Worker(TcpPeers):
    """A rank that sends its lines to the client, and that the client can end."""

    def __init__(self, team: _Team, rank: int, listener: socket.socket) -> None:
        super().__init__(team.addresses, rank, deadline=team.deadline, tls=team.tls, listener=listener)
        self.team, self._last = team, 0.0

    def log(self, level: int, sentence: str, *values: object) -> None:
        from distributed import get_worker

        super().log(level, sentence, *values)
        # Checks may come a thousand times per second: the first one is sent, and then one now and then.
        if level == logging.DEBUG:
            now = time.monotonic()
            if now - self._last < _POLL_SECONDS:
                return
            self._last = now
        if self.rank == 0 and level >= self.team.level:
            get_worker().log_event(self.team.name, [level, sentence % values])

    def allgather(self, item: Any) -> list[Any]:
        if (self.team.name, self.rank) not in _RANKS:
            raise RankLostError(f"rank {self.rank} was told to end by the client")
        return super().allgather(item)


def _lengths(partition: Partition) -> list[int | None]:
    """Return the number of rows of each part of a partition."""
    return [None if part is None else int(part.shape[0]) for part in partition]
