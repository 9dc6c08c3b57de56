"""One problem from the data of all processes: they must ask for the same, and hold data that fits together.

Errors are found together and reported once: every process raises the same `RefusalError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from adfs.errors import InputError
from adfs.network import Network
from adfs.problem import Loss, Multinomial, Problem
from adfs.problem.finite_sum import FiniteSum
from adfs.problem.losses import check_labels, get_loss
from adfs.problem.samples import Matrix, sparse
from adfs.problem.shards import as_rows, one_per_node
from adfs.runtimes.cluster import Cluster, Placement, RefusalError, numbered

if TYPE_CHECKING:
    import networkx

_DENSE = 600  # nodes up to which the Fiedler vector comes from a dense eigensolver


#: Two labels or more, numbers or text.
Classes = list[str] | list[float]
ShardSource = Sequence[Any] | FiniteSum | Callable[[int], Any]


class JointProblem(NamedTuple):
    """A process's ``problem``, the network of all, the placement of its nodes, and the two ``classes``."""

    problem: FiniteSum
    network: Network
    placement: Placement
    classes: Classes | None


def join_shards(
    cluster: Cluster,
    shards: ShardSource,
    network: Network | str | None,
    *,
    nodes: Sequence[int] | None,
    loss: str | Loss,
    sigma: float | Sequence[float] | np.ndarray,
    n_features: int | None,
) -> JointProblem:
    """Return this process's problem, with the dimension and the labels of all processes."""
    # Who holds what is settled first: everything else refers to nodes.
    linked, placement = _placed(cluster, shards, network, nodes)
    block = placement.block(cluster.rank)
    if isinstance(shards, FiniteSum):
        return JointProblem(_same_columns(cluster, shards, n_features), linked, placement, None)
    parts = cluster.attempt("to read the data", lambda: _read(shards, block, nodes))
    _refuse_empty(cluster.allgather(sum(np.size(part[1]) for part in parts)), "sample")
    # A sparse shard may end before the last column: the widest one decides.
    own = max((int(part[0].shape[1]) for part in parts), default=0)
    width = widest(cluster, own, n_features)
    # A sum over stored entries has other bits than one over all columns: sparse as soon as one shard is.
    as_csr = any(cluster.allgather(any(sparse(part[0]) for part in parts)))
    classes: Classes | None = None
    chosen = get_loss(loss)
    if isinstance(chosen, Multinomial):
        chosen = _with_all_classes(cluster, chosen, [np.asarray(part[1]).ravel() for part in parts])
    elif chosen.task == "classification":
        found = all_labels(cluster, [np.asarray(part[1]).ravel() for part in parts])
        classes = _two_classes(found)

    # Labels and columns are now the same everywhere, and each process makes its own problem.
    def build() -> Problem:
        mine = one_per_node("sigma", sigma, linked.n_nodes)[block]
        fitted = []
        for X, y, *rest in parts:
            labels = np.asarray(y)
            if classes is not None:
                labels = np.where(labels == classes[1], 1.0, -1.0)
            rows = widen(X, width)
            fitted.append((sp.csr_array(rows) if as_csr else rows, labels, *rest))
        return Problem.from_shards(fitted, chosen, mine)

    return JointProblem(cluster.attempt("to check the data", build), linked, placement, classes)


def _refuse_empty(counts: Iterable[int], what: str) -> None:
    for rank, count in enumerate(counts):
        if count == 0:
            raise RefusalError(
                f"rank {rank} has no data: every rank needs at least one {what}; start fewer ranks"
            )


# --------------------------------------------------------------------------- who holds which nodes


def _placed(
    cluster: Cluster, shards: ShardSource, network: Network | str | None, nodes: Sequence[int] | None
) -> tuple[Network, Placement]:
    """Say which nodes are where: as the shards that were given have it, or so that few edges are cut."""
    # A function gives the shard of any node, so the nodes go where few edges are cut.
    if callable(shards):
        linked = cluster.attempt("to build the network", partial(network_of, network, None, cluster.size))
        return linked, place_together(cluster, linked)
    count = shards.n_nodes if isinstance(shards, FiniteSum) else len(shards)
    given = None if nodes is None else [int(node) for node in nodes]
    trouble = ""
    if given is not None and isinstance(shards, FiniteSum) and sorted(given) != given:
        trouble = f"rank {cluster.rank} must name the nodes of its problem in increasing order"
    cluster.activity = "to place the nodes"
    for words in cluster.allgather(trouble):
        if words:
            raise RefusalError(words)
    rank_of_node, n_ranks = numbered(cluster, count, given), cluster.size
    _refuse_empty(np.bincount(rank_of_node, minlength=n_ranks), "shard")
    build = partial(network_of, network, rank_of_node.size, n_ranks)
    linked = cluster.attempt("to build the network", build)
    return linked, Placement(rank_of_node, linked.edges, n_ranks)


def place_together(cluster: Cluster, network: Network) -> Placement:
    """Return process 0's placement of a network's nodes."""
    # Process 0 decides: its eigenvectors may differ from those of other machines in the last bit.
    chosen = cluster.attempt("to place the nodes", partial(place, network, cluster.size))
    ranks = cluster.bcast(chosen.rank_of_node.astype(np.float64))
    return Placement(ranks.astype(np.int64), network.edges, chosen.n_ranks)


def network_of(network: Network | str | None, n_nodes: int | None, n_ranks: int) -> Network:
    """Return the network that links the nodes; a name may leave out its sizes."""
    if isinstance(network, Network):
        linked = network
    elif network is None:
        linked = Network("complete", n_nodes=n_nodes or n_ranks)
    else:
        try:
            linked = Network(network)
        except InputError:  # a name without sizes
            linked = Network(network, n_nodes=n_nodes or n_ranks)
    if n_nodes is not None and linked.n_nodes != n_nodes:
        raise InputError(
            f"the network has {linked.n_nodes} nodes and the {n_ranks} ranks hold {n_nodes} shards together: "
            "start as many ranks as the shards need, or give the network that links them"
        )
    return linked


def place(network: Network, n_ranks: int) -> Placement:
    """Put the nodes of a network on ranks, equally many each (or one more), cutting few edges.

    Recursive bisection: each part is ordered by the nodes' numbers, by its bandwidth, by a search in depth
    and by its Fiedler vector, cut at the right place, and the best of the four is kept.

    Parameters
    ----------
    network : Network
    n_ranks : int
        At most as many as there are nodes.

    Returns
    -------
    Placement

    Examples
    --------
    >>> print(place(Network("grid:4x4"), 2))
    16 nodes on 2 ranks, 4 of 24 edges cut
      rank 0: nodes 0-7 (10 edges inside, 4 to other ranks)
      rank 1: nodes 8-15 (10 edges inside, 4 to other ranks)
    """
    import networkx

    n = network.n_nodes
    if not 1 <= n_ranks <= n:
        raise InputError(
            f"{n} nodes cannot be placed on {n_ranks} ranks: every rank holds at least one node; "
            f"start {n} ranks or fewer"
        )
    # Every edge carries as many messages, whatever its weight.
    graph = networkx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(network.edges.tolist())
    rank_of_node = np.zeros(n, dtype=np.int64)
    _bisect(graph, list(range(n)), 0, n_ranks, rank_of_node)
    return Placement(rank_of_node, np.asarray(network.edges), n_ranks)


def _bisect(graph: networkx.Graph, nodes: list[int], first: int, ranks: int, out: np.ndarray) -> None:
    """Give some nodes to ranks first … first + ranks − 1."""
    if ranks == 1:
        out[nodes] = first
        return
    import networkx

    left = ranks // 2
    # Sizes as equal as they can be: the first ranks have one more.
    base, more = divmod(len(nodes), ranks)
    size = left * base + min(left, more)
    part = graph.subgraph(nodes)
    bandwidth = networkx.utils.reverse_cuthill_mckee_ordering(part)
    orders = [nodes, list(bandwidth), list(networkx.dfs_preorder_nodes(part))]
    # The second eigenvector of the Laplacian orders the nodes along the network.
    if len(nodes) <= _DENSE:
        laplacian = networkx.laplacian_matrix(part, nodes).toarray()
        order = np.argsort(np.linalg.eigh(laplacian)[1][:, 1], kind="stable")
        orders.append([nodes[k] for k in order])
    best = min((set(order[:size]) for order in orders), key=partial(networkx.cut_size, part))
    _bisect(graph, sorted(best), first, left, out)
    _bisect(graph, sorted(set(nodes) - best), first + left, ranks - left, out)


# --------------------------------------------------------------------------- the data


def _read(shards: Any, block: np.ndarray, nodes: Sequence[int] | None) -> list[tuple[Any, ...]]:
    """Return this process's shards in the order of its nodes."""
    # Shards are put in the order of the nodes, as the blocks of the placement are.
    if callable(shards):
        given = [shards(int(node)) for node in block]
    else:
        order = range(len(shards)) if nodes is None else np.argsort(np.asarray(nodes))
        given = [shards[k] for k in order]
    parts = []
    for node, shard in zip(block, given, strict=True):
        if len(shard) not in (2, 3, 4):
            raise InputError(
                f"the shard of node {node} must be (X, y), (X, y, weights) or (X, y, weights, offset), "
                f"got {len(shard)} parts"
            )
        parts.append((as_rows(shard[0], f"the X of node {node}"), *shard[1:]))
    return parts


def _same_columns(cluster: Cluster, problem: FiniteSum, n_features: int | None) -> FiniteSum:
    """Give a process's problem the width of the widest, and sparse rows as soon as one has them."""
    # Problems that were made by each process are only widened.
    cluster.activity = "to compare the data"
    cluster.same(lambda: {"the loss": problem.loss.name})
    _refuse_empty(cluster.allgather(problem.n_samples), "sample")
    width = max([n_features or 0, *cluster.allgather(problem.n_features)])
    as_csr = any(cluster.allgather(problem.sparse))

    def fit() -> FiniteSum:
        return (problem.with_sparse_rows() if as_csr else problem).widened(width)

    return cluster.attempt("to compare the data", fit)


def widest(cluster: Cluster, width: int, n_features: int | None) -> int:
    """Return the number of columns: that of the widest process, or the larger one that was given."""
    found = max(cluster.allgather(width))
    if n_features is None:
        return int(found)
    if n_features < found:
        raise RefusalError(
            f"n_features is {n_features} and a shard has {found} columns; give at least {found}"
        )
    return int(n_features)


def widen(X: Matrix, width: int) -> Matrix:
    """Add columns of zeros on the right of sparse rows, which may end before the last column."""
    if X.shape[1] == width:
        return X
    if not sparse(X):
        raise InputError(
            f"a dense shard has {X.shape[1]} columns and there are {width}; give all shards the same columns"
        )
    return sp.csr_array((X.data, X.indices, X.indptr), shape=(X.shape[0], width))


def all_labels(cluster: Cluster, labels: list[np.ndarray]) -> np.ndarray:
    """Return the different labels of all processes, sorted; a process may hold one of them only."""

    def own() -> Classes:
        everything = np.concatenate(labels)
        if everything.dtype.kind == "f" and not np.isfinite(everything).all():
            raise InputError("the labels contain NaN or infinity")
        found: Classes = np.unique(everything).tolist()
        return found

    # A process may hold samples of one class only: the union decides.
    cards = cluster.allgather(cluster.attempt("to compare the labels", own))
    if len({isinstance(label, str) for card in cards for label in card}) > 1:
        raise RefusalError("some processes have numbers as labels and others text; give all the same kind")
    return np.unique(np.array([label for card in cards for label in card]))


def _with_all_classes(cluster: Cluster, loss: Multinomial, labels: list[np.ndarray]) -> Multinomial:
    """Return the loss with its K: the one it says, or that of the labels 0 … K − 1 of all processes."""
    if loss.n_classes:
        return loss

    def largest() -> int:
        everything = np.concatenate(labels)
        if everything.dtype.kind not in "iuf":
            raise InputError(
                "the loss 'multinomial' wants labels that are whole numbers from 0; map yours first"
            )
        check_labels(loss, everything, "the labels")
        return int(everything.max())

    return Multinomial(1 + max(cluster.allgather(cluster.attempt("to compare the labels", largest))))


def _two_classes(labels: np.ndarray) -> Classes | None:
    """Return the two labels, the one for −1 first; None when they are ±1 already."""
    union: Classes = labels.tolist()
    if set(union) <= {-1, 1}:
        return None
    if len(union) != 2:
        raise RefusalError(
            f"a classification loss takes two classes and all ranks together have {len(union)} "
            f"({', '.join(map(str, union[:6]))}); pick two, or give labels -1 and 1"
        )
    return union
