"""Ways to split samples over nodes: each returns one index array per node."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from adfs.errors import InputError, unknown_name

__all__ = ["PARTITIONS", "split"]


def _contiguous(y: np.ndarray, n_nodes: int, rng: np.random.Generator) -> list[np.ndarray]:
    return np.array_split(np.arange(y.size), n_nodes)


def _random(y: np.ndarray, n_nodes: int, rng: np.random.Generator) -> list[np.ndarray]:
    return [np.sort(part) for part in np.array_split(rng.permutation(y.size), n_nodes)]


def _label(
    y: np.ndarray, n_nodes: int, rng: np.random.Generator, concentration: float = 0.5
) -> list[np.ndarray]:
    """Give each class to the nodes in Dirichlet(concentration) shares; no node is left without a sample."""
    if not (np.isfinite(concentration) and concentration > 0.0):
        raise InputError(
            f"partition 'label': concentration must be finite and above 0, got {concentration!r}"
        )
    classes, codes = np.unique(y, return_inverse=True)
    if classes.size > max(20, y.size // 2):
        raise InputError(
            f"partition 'label' wants classes, but the {y.size} labels take {classes.size} values; "
            "use 'random' or 'contiguous' for regression targets"
        )
    parts: list[list[int]] = [[] for _ in range(n_nodes)]
    for code in range(classes.size):
        members = rng.permutation(np.flatnonzero(codes == code))
        shares = np.cumsum(rng.dirichlet(np.full(n_nodes, concentration)))[:-1]
        cuts = np.round(shares * members.size).astype(int)
        for node, chunk in enumerate(np.split(members, cuts)):
            parts[node].extend(chunk.tolist())
    for part in parts:  # small concentrations leave nodes empty: the fullest node gives one away
        if not part:
            part.append(max(parts, key=len).pop())
    return [np.sort(np.asarray(part, dtype=np.int64)) for part in parts]


def _indices(node: int, part: ArrayLike) -> np.ndarray:
    rows = np.asarray(part)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise InputError(f"partition: the list of node {node} must hold whole row numbers, got {part!r}")
    return rows.astype(np.int64)


PARTITIONS: dict[str, Callable[..., list[np.ndarray]]] = {
    "contiguous": _contiguous,
    "random": _random,
    "label": _label,
}


def split(
    partition: str | Sequence[ArrayLike],
    y: np.ndarray,
    n_nodes: int,
    *,
    seed: int | None = 0,
    **options: float,
) -> list[np.ndarray]:
    """Split the rows 0 … N−1 over the nodes.

    Parameters
    ----------
    partition : str or sequence of index arrays
        ``"contiguous"``, ``"random"``, ``"label"`` (each class spread in Dirichlet shares; option
        ``concentration``, small values give nodes that see few classes), or the lists themselves.
    y : ndarray of shape (N,)
        Labels; only ``"label"`` looks at their values.
    n_nodes : int
        Number of nodes.
    seed : int or None
        Seed of the random partitions.

    Returns
    -------
    list of ndarray
        One array of row numbers per node, together every row exactly once.

    Examples
    --------
    >>> import numpy as np
    >>> [part.tolist() for part in split("contiguous", np.zeros(5), 2)]
    [[0, 1, 2], [3, 4]]
    """
    n_samples = int(y.size)
    if isinstance(partition, str):
        if partition not in PARTITIONS:
            raise unknown_name("partition", partition, PARTITIONS)
        if n_nodes > n_samples:
            raise InputError(
                f"{n_samples} samples cannot be split over {n_nodes} nodes: every node needs one; "
                "use fewer nodes"
            )
        known = set(inspect.signature(PARTITIONS[partition]).parameters) - {"y", "n_nodes", "rng"}
        for option in options:
            if option not in known:
                raise unknown_name(f"option of the partition {partition!r}", option, known or {"(none)"})
        return PARTITIONS[partition](y, n_nodes, np.random.default_rng(seed), **options)
    if options:
        raise InputError(f"index lists take no options, but {sorted(options)} were given")
    if not np.iterable(partition):
        raise InputError(f"partition must be a name or one index list per node, got {partition!r}")
    parts = [_indices(node, part) for node, part in enumerate(partition)]
    if len(parts) != n_nodes:
        raise InputError(f"partition gives {len(parts)} index lists, but there are {n_nodes} nodes")
    taken = np.concatenate(parts)
    outside = taken[(taken < 0) | (taken >= n_samples)]
    if outside.size:
        raise InputError(f"partition holds row {outside[0]}, but rows go from 0 to {n_samples - 1}")
    counts = np.bincount(taken, minlength=n_samples)
    if np.any(counts != 1):
        row = int(np.flatnonzero(counts != 1)[0])
        raise InputError(
            f"partition holds row {row} {counts[row]} times; every row must be given to exactly one node"
        )
    return parts
