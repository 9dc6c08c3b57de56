"""What nodes hold: ways to split samples over them, and shards, which are checked here, once.

A shard is what one node holds: rows, labels, sample weights and offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from adfs.errors import InputError, unknown_name
from adfs.problem.losses import Loss, check_labels
from adfs.problem.samples import Matrix, sparse

if TYPE_CHECKING:
    from adfs.problem.finite_sum import FiniteSum

_LARGEST = 1e150  # can be squared
#: The ends of what doubles hold with all their digits.
SMALLEST, LARGEST = float(np.finfo(np.float64).tiny), float(np.finfo(np.float64).max)


class Shard(NamedTuple):
    """What one node holds.

    Attributes
    ----------
    X : ndarray or csr_array of shape (m, d)
    y, weights : ndarray of shape (m,)
        Labels or targets, and sample weights.
    offset : ndarray of shape (m,) or (m, K), or None
        What is added to the margins.
    """

    X: Matrix
    y: np.ndarray
    weights: np.ndarray
    offset: np.ndarray | None = None

    def take(self, rows: np.ndarray | slice) -> Shard:
        """Return some of the rows."""
        offset = None if self.offset is None else self.offset[rows]
        return Shard(self.X[rows], self.y[rows], self.weights[rows], offset)


def as_numbers(values: ArrayLike, where: str) -> np.ndarray:
    """Return values as a C-contiguous float64 array, not copied when they are one already."""
    try:
        array = np.asarray(values)
        numbers = array if np.iscomplexobj(array) else np.asarray(array, dtype=np.float64, order="C")
    except (TypeError, ValueError):
        raise InputError(
            f"{where} cannot be read as numbers; give a table of them, each row as long"
        ) from None
    if np.iscomplexobj(numbers):
        raise InputError(f"{where} holds complex numbers; give their real parts")
    return numbers


def as_rows(X: Matrix, where: str = "X") -> Matrix:
    """Return X as a C-contiguous float64 array or a canonical float64 CSR array, checked to be finite.

    Data that has the right form already is not copied; what is given is never changed.
    """
    if sparse(X) and np.iscomplexobj(X):
        raise InputError(f"{where} holds complex numbers; give their real parts")
    out: Matrix = X if sparse(X) else as_numbers(X, where)
    if out.ndim != 2:
        raise InputError(f"{where} must be two-dimensional (samples × features), got shape {out.shape}")
    if out.shape[1] == 0:
        raise InputError(f"{where} has no features (shape {out.shape})")
    values, starts = out, None
    if sparse(out):
        out = _canonical(out)
        values, starts = out.data, out.indptr
    check_range(values, where, "; clean or impute it first", starts)
    return out


def check_range(values: np.ndarray, where: str, advice: str = "", starts: np.ndarray | None = None) -> None:
    """Raise unless all numbers and their squares are finite; ``starts`` is where sparse rows begin."""
    # Extremes need no memory, and are nan where one number is.
    if values.size and not (values.min() >= -_LARGEST and values.max() <= _LARGEST):
        if not np.all(np.isfinite(values)):
            raise InputError(f"{where} contains NaN or infinity{advice}")
        # Name the row of the first such number.
        place = int(np.argwhere(np.abs(values) > _LARGEST)[0, 0])
        row = place if starts is None else int(np.searchsorted(starts, place, side="right")) - 1
        raise InputError(
            f"{where} holds a number beyond ±{_LARGEST:g} in row {row}, whose square is no double; scale it"
        )


def _canonical(X: Matrix) -> Matrix:
    out: Matrix = sp.csr_array(X, dtype=np.float64)
    # Kernels need sorted columns without duplicates; what was given stays as it is.
    if not out.has_canonical_format:
        out = out.copy()
        out.sum_duplicates()
    # Short indices where they suffice: half the memory, and one set of kernels.
    if out.indices.dtype != np.int32 and max(out.shape[1], out.nnz) < 2**31:
        parts = (out.data, out.indices.astype(np.int32), out.indptr.astype(np.int32))
        out = sp.csr_array(parts, shape=out.shape)
    return out


def check_weights(weights: ArrayLike | None, n_samples: int, where: str) -> np.ndarray:
    """Return sample weights, 1 when not given, as an array of shape (n_samples,) of its own."""
    if weights is None:
        return np.ones(n_samples)
    masses = as_numbers(weights, f"{where}sample_weight").copy()
    if masses.shape != (n_samples,):
        raise InputError(
            f"{where}sample_weight must have one entry per row of X: "
            f"X has {n_samples} rows, got shape {masses.shape}"
        )
    fits = np.isfinite(masses) & (masses >= 0.0)
    if not fits.all():
        row = int(np.argmin(fits))
        raise InputError(f"{where}sample_weight must be finite and at least 0, that of row {row} is not")
    return masses


def check_offset(offset: ArrayLike, n_samples: int, loss: Loss, where: str) -> np.ndarray:
    """Return offsets of the margins as an array of its own, one per row, or one per row and output."""
    values = as_numbers(offset, f"{where}offset").copy()
    # A multinomial loss that does not know its K yet takes any number of columns.
    if loss.several_outputs:
        fits = values.ndim == 2 and values.shape == (n_samples, loss.n_outputs or values.shape[1])
        shape = f"({n_samples}, {loss.n_outputs or 'K'}), one per row and class"
    else:
        fits, shape = values.shape == (n_samples,), f"({n_samples},), one per row"
    if not fits:
        raise InputError(f"{where}offset must have shape {shape}, got {values.shape}")
    check_range(values, f"{where}offset")
    return values


def make_shard(
    X: Matrix,
    y: ArrayLike,
    weights: ArrayLike | None,
    loss: Loss,
    where: str,
    offset: ArrayLike | None = None,
) -> Shard:
    """Check one node's data against each other and against the loss."""
    # Shapes first, then values: the sentence names the first thing that is wrong.
    rows = as_rows(X, f"{where}X")
    labels = as_numbers(y, f"{where}y").copy()
    if labels.ndim != 1 or labels.size != rows.shape[0]:
        raise InputError(
            f"{where}y must have one entry per row of X: X has {rows.shape[0]} rows, "
            f"y has shape {labels.shape}"
        )
    check_range(labels, f"{where}y")
    check_labels(loss, labels, f"{where}y")
    masses = check_weights(weights, labels.size, where)
    shift = None if offset is None else check_offset(offset, labels.size, loss, where)
    return Shard(rows, labels, masses, shift)


def check_squares(problem: FiniteSum, name: Callable[[int], str]) -> None:
    """Raise where ‖x‖², weights or their products leave the range of doubles; ``name`` names a row."""
    weights, norms = problem.weights, problem.row_norms_squared
    outside = (norms < SMALLEST) | (norms > LARGEST)
    chosen = np.flatnonzero(outside)
    # Rows of zeros are constants, whatever the sum of their squares is.
    outside[chosen] = np.asarray((problem.X[chosen] != 0.0).sum(axis=1)).ravel() > 0
    # L and L/σ must be doubles with all their digits.
    with np.errstate(over="ignore", under="ignore"):
        smoothness = weights * norms * min(problem.loss.beta, 1.0)
        ratio = smoothness / (problem.sigma.min() or 1.0)
    unusable = (norms > 0.0) & ((smoothness < SMALLEST) | ~np.isfinite(ratio))
    for bad, what in (
        (outside, "has a squared norm that is not a double; scale X"),
        (weights < SMALLEST, "has a weight too small to divide by"),
        (unusable, "has weight × squared norm / sigma beyond doubles; scale X, the weights or sigma"),
    ):
        if (bad & (weights > 0.0)).any():
            raise InputError(f"{name(int(np.argmax(bad & (weights > 0.0))))} {what}")


def stack_shards(shards: list[Shard]) -> tuple[Shard, np.ndarray]:
    """Put shards one below the other, CSR as soon as one is sparse; return the offsets of nodes too."""
    widths = {int(shard.X.shape[1]) for shard in shards}
    if len(widths) > 1:
        raise InputError(
            f"shards have different numbers of features ({sorted(widths)}); give them the same columns"
        )
    node_starts = np.concatenate([[0], np.cumsum([shard.y.size for shard in shards])]).astype(np.int64)
    # One sparse shard makes all rows sparse; a single shard is not copied.
    X: Matrix
    if len(shards) == 1:
        X = shards[0].X
    elif any(sparse(shard.X) for shard in shards):
        X = as_rows(sp.vstack([sp.csr_array(shard.X) for shard in shards], format="csr"))
    else:
        X = np.ascontiguousarray(np.vstack([shard.X for shard in shards]))
    # Where one shard has offsets, those without any have zeros.
    shapes = [shard.offset.shape[1:] for shard in shards if shard.offset is not None]
    offset = None
    if shapes:
        own = [np.zeros((len(s.y), *shapes[0])) if s.offset is None else s.offset for s in shards]
        offset = np.concatenate(own)
    y = np.concatenate([shard.y for shard in shards])
    return Shard(X, y, np.concatenate([shard.weights for shard in shards]), offset), node_starts


# --------------------------------------------------------------------------- nodes


def check_count(n_nodes: object) -> int:
    """Return the number of nodes, checked to be a whole number of at least 1."""
    if isinstance(n_nodes, bool) or not isinstance(n_nodes, int | np.integer) or n_nodes < 1:
        raise InputError(f"n_nodes must be a whole number of at least 1, got {n_nodes!r}")
    return int(n_nodes)


def one_per_node(name: str, given: ArrayLike, n_nodes: int, *, above_zero: bool = True) -> np.ndarray:
    """Return a number, or one number per node, as an array (n,) of its own that is not to be changed.

    Numbers above 0 are divisors: quotients by them, and their sum, must be doubles with all their digits.
    """
    try:
        values = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a number or one number per node, got {given!r}") from None
    if values.ndim == 0:
        values = np.full(n_nodes, float(values))
    if values.shape != (n_nodes,):
        raise InputError(
            f"{name} must be one number or one per node ({n_nodes} nodes), got shape {values.shape}"
        )
    fits = np.isfinite(values) & (values > 0.0 if above_zero else values >= 0.0)
    if not fits.all():
        bad, wanted = int(np.argmin(fits)), "above 0" if above_zero else "at least 0"
        raise InputError(f"{name} must be finite and {wanted} at every node, node {bad} has {values[bad]:g}")
    if above_zero and (values.min() < SMALLEST or values.max() > LARGEST / n_nodes):
        bad = int(np.argmin(values) if values.min() < SMALLEST else np.argmax(values))
        raise InputError(
            f"{name} must be between {SMALLEST:.1e} and {LARGEST:.1e} in all, node {bad} has "
            f"{values[bad]:g}; scale the whole problem"
        )
    values.setflags(write=False)
    return values


def check_penalty(
    sigma: ArrayLike, l1: ArrayLike | None, n_nodes: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return σ_i and λ_i, at least 0, (n,); λ is None where all are 0, and σ all 0 only with some λ."""
    # All zero is no ℓ1 term: the kernels without one are faster.
    own_l1 = None if l1 is None else one_per_node("l1", l1, n_nodes, above_zero=False)
    if own_l1 is None or not own_l1.any():
        return one_per_node("sigma", sigma, n_nodes), None
    lasso = np.size(sigma) > 0 and np.asarray(sigma).dtype.kind in "iuf" and not np.any(sigma)
    return one_per_node("sigma", sigma, n_nodes, above_zero=not lasso), own_l1


# --------------------------------------------------------------------------- splitting


PARTITIONS = ("contiguous", "random", "label")


def _by_label(
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
    # Cut each class, in a random order, at the sums of its shares.
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


def arrange(
    partition: str | Sequence[ArrayLike], y: np.ndarray, n_nodes: int, *, seed: int | None, **options: float
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return where the rows of each node start, (n + 1,), and the rows' order; None where they are in order.

    Parameters and options are those of `split`.
    """
    # A list of the rows of each of a million nodes takes more memory than the labels.
    if isinstance(partition, str) and partition == "contiguous" and n_nodes <= y.size and not options:
        # The first nodes have one row more where the rows cannot be shared evenly, as in `split`.
        size, more = divmod(y.size, n_nodes)
        nodes = np.arange(n_nodes + 1, dtype=np.int64)
        return size * nodes + np.minimum(nodes, more), None
    parts = split(partition, y, n_nodes, seed=seed, **options)
    order = np.concatenate(parts)
    node_starts = np.concatenate([[0], np.cumsum([part.size for part in parts])]).astype(np.int64)
    return node_starts, None if np.array_equal(order, np.arange(order.size)) else order


def _indices(node: int, part: ArrayLike) -> np.ndarray:
    # An empty list has no type of its own.
    rows = np.asarray(part)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise InputError(f"partition: the list of node {node} must hold whole row numbers, got {part!r}")
    return rows.astype(np.int64)


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
        known = "concentration" if partition == "label" else "(none)"
        for option in options:
            if option != known:
                raise unknown_name(f"option of the partition {partition!r}", option, [known])
        if partition == "contiguous":
            return np.array_split(np.arange(n_samples), n_nodes)
        rng = np.random.default_rng(seed)
        if partition == "label":
            return _by_label(y, n_nodes, rng, **options)
        return [np.sort(part) for part in np.array_split(rng.permutation(n_samples), n_nodes)]
    if options:
        raise InputError(f"index lists take no options, but {sorted(options)} were given")
    if not np.iterable(partition):
        raise InputError(f"partition must be a name or one index list per node, got {partition!r}")
    parts = [_indices(node, part) for node, part in enumerate(partition)]
    if len(parts) != n_nodes:
        raise InputError(f"partition gives {len(parts)} index lists, but there are {n_nodes} nodes")
    # Every row exactly once.
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
