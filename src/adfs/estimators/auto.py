"""What ``n_nodes="auto"`` and ``graph="auto"`` stand for: the planner's choice, the same in every process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from adfs.network import Network
from adfs.planning import GRAPHS, Facts, choose, networks_of, node_counts
from adfs.problem.finite_sum import check_count
from adfs.runtimes import Cluster
from adfs.runtimes.timing import measured_tau_of

#: What ``algorithm="auto"`` chooses between: a fit goes on from where it was (the rounds of an intercept, a
#: path of strengths), which not every method can.
CANDIDATES = ("adfs", "adfs-block", "lbfgs", "newton", "qning", "interior-point", "ns-adfs")


class Request(NamedTuple):
    """What an estimator was asked for."""

    n_nodes: Any
    graph: Any
    algorithm: str
    tau: float | str | None
    tol: float
    seed: int


class Spread(NamedTuple):
    """Nodes of this process, how all are linked, and why, in words where something was chosen."""

    n_nodes: Any
    graph: Any
    reason: str = ""


def is_auto(value: Any) -> bool:
    """Whether a parameter is left to the planner."""
    return isinstance(value, str) and value == "auto"


def spread_rows(cluster: Cluster, request: Request, facts: Facts) -> Spread:
    """Choose what was left open; every process calls it together.

    Rows that one process holds stay on one node unless ``tau`` says what machines they are planned for; of
    several processes each is one node, as its rows are there already.

    Parameters
    ----------
    cluster : Cluster
    request : Request
        With ``"auto"`` for the number of nodes, the graph, or both.
    facts : Facts
        Of the rows of all processes.
    """
    n_nodes, graph, tau = request.n_nodes, request.graph, request.tau
    open_count = is_auto(n_nodes) or (n_nodes is None and is_auto(graph))
    if cluster.size > 1:
        why = "to count the nodes"
        own = cluster.attempt(
            why, lambda: 1 if open_count else check_count(1 if n_nodes is None else n_nodes)
        )
        counts: Sequence[int] = [sum(cluster.gather(own, why))]
        if not is_auto(graph):
            return Spread(own, graph, f"each of the {cluster.size} processes is one node")
    elif not open_count:
        own, counts = None, [check_count(n_nodes)]
    elif tau is None and (is_auto(graph) or ":" not in str(graph)):
        reason = "all rows are in one process, so they stay on one node; with tau more nodes are thought of"
        return Spread(1, "path:1", reason)
    else:
        own, counts = None, node_counts(facts.n_samples)
    if isinstance(tau, str):
        tau = measured_tau_of(cluster, facts.n_features, facts.entries_per_row, facts.n_samples)
    graphs = GRAPHS if is_auto(graph) else (graph,)
    methods: tuple[str, ...] = (request.algorithm,)
    if request.algorithm == "auto":  # which is ADFS where tau is given
        methods = CANDIDATES if request.tau is None else ("adfs", "ns-adfs")

    def chosen() -> tuple[int, str]:
        networks = networks_of(counts, graphs, facts.n_samples, request.seed)
        found = choose(facts, networks, tau=1.0 if tau is None else tau, tol=request.tol, methods=methods)
        return networks.index(found.network), found.reason

    # Eigenvalues may differ in the last digit between machines: process 0 says.
    place, reason = cluster.gather(list(cluster.attempt("to plan", chosen)), "to plan")[0]
    network: Network = networks_of(counts, graphs, facts.n_samples, request.seed)[place]
    return Spread(network.n_nodes if own is None else own, network, reason)
