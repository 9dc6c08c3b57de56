"""The cases that the simulator and the ranks both run, and the hash of what must be the same."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

import adfs
from adfs.network import changing_network
from adfs.problem.losses import get_loss
from adfs.problem.terms import LinearTerm
from adfs.runtimes import Cluster, Grid, RunOptions, run_method
from adfs.runtimes.joint_problem import JointProblem, join_shards


@dataclass(frozen=True)
class Case:
    method: str = "adfs"
    loss: str = "logistic"
    schedule: str = "iid"
    sparse: bool | str = False  # or "mixed": every second node
    network: str = "grid:3x3"
    rows: int = 7
    width: int = 6
    max_passes: float = 6.0
    seed: int = 3
    parameters: str | None = None
    read: str = "x"
    record: tuple[str, ...] = ("gap",)
    lost: float = 0.0
    also: str = ""  # a second graph: the network changes between the two

    def links(self) -> adfs.Network:
        graphs = [self.network, self.also]
        return changing_network(graphs, window=30.0) if self.also else adfs.Network(self.network)

    def n_nodes(self) -> int:
        return self.links().n_nodes

    def shard(self, node: int) -> tuple[Any, np.ndarray, np.ndarray]:
        """Return one node's data, whoever asks; nodes differ in their sizes and their weights."""
        rng = np.random.default_rng([self.seed, node])
        rows = self.rows + node % 3
        X = rng.standard_normal((rows, self.width)) * (rng.random((rows, self.width)) < 0.6)
        y = np.where(X[:, 0] + 0.3 * rng.standard_normal(rows) > 0.0, 1.0, -1.0)
        weights = rng.random(rows) + 0.5
        sparse = self.sparse is True or (self.sparse == "mixed" and node % 2 == 1)
        return (sp.csr_array(X) if sparse else X), y, weights

    def general(self, nodes: list[int]) -> adfs.GeneralProblem:
        """Return some nodes' samples as terms with a prox of their own."""
        loss = get_loss(self.loss)
        terms = []
        for node in nodes:
            X, y, weights = self.shard(node)
            terms.append([LinearTerm(x, b, w, loss) for x, b, w in zip(X, y, weights, strict=True)])
        return adfs.GeneralProblem(terms, self.width, self.sigma()[nodes])

    def sigma(self) -> np.ndarray:
        return 0.2 + 0.1 * (np.arange(self.n_nodes()) % 4)

    def options(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "parameters": self.parameters,
            "schedule": self.schedule,
            "seed": self.seed,
            "max_passes": self.max_passes,
            "read": self.read,
            "record": adfs.Record(self.record, grid=Grid(per_decade=3)),
            "lost": self.lost,
        }

    def simulate(self, *, general: bool = False, **more: Any) -> adfs.Run:
        network = self.links()
        if general:
            terms = self.general(list(range(self.n_nodes())))
            return adfs.simulate(problem=terms, network=network, **(self.options() | more))
        shards = [self.shard(node) for node in range(self.n_nodes())]
        problem = adfs.Problem.from_shards(shards, self.loss, self.sigma())
        return adfs.simulate(problem=problem, network=network, **(self.options() | more))

    def join(self, cluster: Cluster) -> JointProblem:
        """Return the nodes of this process, and what it knows of the others."""
        given: dict[str, Any] = {"nodes": None, "loss": self.loss, "sigma": self.sigma(), "n_features": None}
        return join_shards(cluster, self.shard, self.links(), **given)

    def run_on(self, cluster: Cluster, joint: JointProblem | None = None, **more: Any) -> adfs.Run:
        """Run the case together with other processes."""
        settings = self.options() | {"gather": True} | more
        method = settings.pop("method")
        with cluster:
            problem, network, placement, _ = joint or self.join(cluster)
            options = RunOptions(**settings)
            return run_method(method, problem, network, options, cluster=cluster, placement=placement)

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Case:
        """Return the case that was made plain, perhaps as JSON."""
        return cls(**plain | {"record": tuple(plain.get("record", ["gap"]))})


def stamp(run: adfs.Run) -> str:
    """Hash everything that must not depend on who computed it."""
    frame = run.frame.drop(columns=["seconds"])
    parts = [run.theta, run.coef, np.array([run.gap]), frame.to_numpy(dtype=np.float64)]
    words = [str(run.outcome), *frame.columns]
    digest = hashlib.sha256(repr(words).encode())
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()[:16]
