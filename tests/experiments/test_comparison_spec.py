"""Comparisons as data: files, flags, and what is refused."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file

from adfs.errors import InputError
from adfs.experiments import Comparison, DataSpec, DelaySpec, MethodSpec, read_comparison, read_grid
from adfs.experiments.inputs import gaussians, make_network, make_problem
from adfs.experiments.runner import fingerprint
from adfs.network import Network, changing_network

ROOT = Path(__file__).parents[2]


def table(**changes: Any) -> dict[str, Any]:
    return {"data": "synthetic:90x3", "network": "grid:3x3", "methods": ["adfs", "msda"]} | changes


def use(described: dict[str, Any]) -> None:
    """Do with a comparison all that is done before data are read."""
    comparison = Comparison.from_table(described)
    comparison.check_names()
    make_network(comparison)


def test_comparison_goes_through_toml_and_back() -> None:
    comparison = Comparison(
        DataSpec("file “é”.svm", 7, 12, "rows", "libsvm", None, 3),
        "erdos-renyi:9,0.5",
        (
            MethodSpec("adfs", "A", "paper", "v", "poisson"),
            MethodSpec("dsba", options=(("step_factor", 1.5),)),
        ),
        title='a "title"\nwith lines',
        n_nodes=9,
        network_seed=4,
        partition="label",
        loss="huber",
        sigma=(1.0, 2.5),
        tau=0.25,
        delays=DelaySpec("fixed", "scaled", True, (1.0, 2.0), ((0, 2.0, 0.5, 10.0),), 9),
        seeds=(2, 5),
        target=3e-5,
        relative=True,
        max_time=1e5,
        max_passes=17.5,
        records=11,
        imports=("json", "a.py"),
    )
    assert Comparison.from_table(tomllib.loads(comparison.toml())) == comparison


def test_comparison_takes_short_forms() -> None:
    comparison = Comparison.from_table(
        table(seeds=3, delays="fixed", methods=["adfs:parameters=paper", "dagd"])
    )
    assert comparison.seeds == (0, 1, 2)
    assert comparison.delays == DelaySpec("fixed")
    assert [one.label for one in comparison.methods] == ["ADFS (paper)", "distributed AGD"]
    assert comparison.title == "synthetic:90x3 on grid:3x3"


def test_delays_of_slow_links_are_multiples_of_tau() -> None:
    delays = DelaySpec(slow_links=((1, 0, 4.0), (2, 3, 0.5)))
    network = Network("path:4")
    assert delays.make(10.0, network).tau.tolist() == [40.0, 10.0, 5.0]
    assert delays.make(10.0).tau == 10.0
    assert delays.make(5, network).tau.tolist() == [20.0, 5.0, 2.5]
    example = read_comparison(ROOT / "examples" / "stragglers.toml")
    times = example.delays.make(example.tau, Network(example.network)).tau
    assert sorted(set(times.tolist())) == [20.0, 100.0]
    with pytest.raises(InputError, match="no link between nodes 0 and 3 to be slow"):
        DelaySpec(slow_links=((3, 0, 4.0),)).make(10.0, network)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"netwrk": "x"}, "did you mean 'network'"),
        ({"data": {"sorce": "x"}}, "did you mean 'source'"),
        ({"data": 3}, "data must be one word or a table"),
        ({"data": "gaussians"}, "samples_per_node"),
        ({"data": {"source": "a", "samples_per_node": 0}}, "samples_per_node must be a whole number"),
        ({"data": {"source": "a", "normalise": "row"}}, "did you mean 'rows'"),
        ({"delays": "exponentail"}, "did you mean 'exponential'"),
        ({"delays": {"stragglers": [[0, -1.0]]}}, "a straggler needs"),
        (
            {"delays": {"slow_links": [[0, 1]]}},
            r"slow_links must be a list of \[node, node, factor\], .*, got",
        ),
        ({"title": 3}, "title must be text, got 3"),
        ({"network": 3}, "network: a network cannot be made from int"),
        ({"network": [[0, 1], [2, 3]]}, "network: the network is not connected"),
        ({"network": "none.graphml"}, "graph none.graphml: cannot be read: No such file"),
        ({"network": "erdos-reny:9,0.5"}, "did you mean 'erdos-renyi'"),
        ({"relative": "no"}, "relative must be true or false, got 'no'"),
        ({"network_seed": "x"}, "network_seed must be a whole number"),
        ({"delays": {"speed": "x"}}, "delays: speed must be a number or a list of"),
        ({"delays": {"stragglers": 3}}, "delays: stragglers must be a list of"),
        ({"delays": {"stragglers": [3, 4.0]}}, r"a list of \[node, factor\], .*, got \[3, 4.0\]$"),
        (
            {"delays": {"stragglers": [[1.5, 4.0]]}},
            r"stragglers must be .* whole numbers from 0, got \[\[1.5",
        ),
        ({"methods": [{"method": "adfs", "label": 3}]}, "method 'adfs': label must be text"),
        ({"methods": []}, "at least one method"),
        ({"methods": "adfs"}, "methods must be a list"),
        ({"methods": [3]}, "a method is a name"),
        ({"methods": ["adfs", "adfs"]}, "another label"),
        ({"methods": ["adfs", "adfs:label=adfs!"]}, "another label"),
        ({"methods": ["adfs:paper"]}, "name:key=value"),
        ({"methods": ["adfs:read=z"]}, "place to read"),
        ({"methods": ["adfs:schedule=idi"]}, "did you mean 'iid'"),
        ({"seeds": []}, "seeds must be"),
        ({"seeds": [0, 0]}, "seeds must be"),
        ({"seeds": [-1]}, "seeds must be"),
        ({"seeds": "three"}, "seeds must be"),
        ({"seeds": ["a"]}, "seeds must be"),
        ({"partition": "randm"}, "did you mean 'random'"),
        ({"loss": "logstic"}, "did you mean 'logistic'"),
        (
            {"delays": {"stragglers": [[0]]}},
            r"stragglers must be a list of \[node, factor\], .*, got \[\[0\]\]$",
        ),
        ({"target": 0.0}, "target must be"),
        ({"target": "small"}, "target must be"),
        ({"max_time": float("inf")}, "max_time must be"),
        ({"tau": -1.0}, "tau must be"),
        ({"records": 0}, "records must be"),
        ({"imports": "json"}, "imports must be a list"),
        ({"lost": 1.0}, r"lost, .*, must be in \[0, 1\), got 1.0"),
        ({"lost": "few"}, "lost must be a number"),
        ({"window": 0}, "window must be a finite number above 0"),
        ({"networks": ["path:9", "star:9"]}, "a network or networks, not both"),
        ({"network": ["path:9", "star:8"]}, "the same nodes"),
        ({"network": ["path:9", "sites.txt"]}, "networks takes names and lists of edges"),
    ],
)
def test_comparison_refuses_wrong_entries_in_one_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        use(table(**changes))
    assert "\n" not in str(caught.value)


def test_comparison_takes_networks_that_change() -> None:
    described = {"data": "synthetic:90x3", "methods": ["dadao"], "lost": 0.3}
    comparison = Comparison.from_table(described | {"networks": ["path:4", [[0, 2], [1, 3]]], "n_nodes": 4})
    assert comparison.title == "synthetic:90x3 on path:4 / edges"
    expected = changing_network(["path:4", [(0, 2), (1, 3)]], n_nodes=4).losing(0.3)
    assert make_network(comparison) == expected
    assert Comparison.from_table(tomllib.loads(comparison.toml())) == comparison
    other = Comparison.from_table(described | {"networks": ["path:4", "star:4"], "window": 50})
    assert make_network(other).faults.window == 50.0
    prints = {fingerprint(one, one.methods[0], 0) for one in (comparison, other, replace(other, lost=0.2))}
    assert len(prints) == 3
    for network in (expected, Network("path:4").losing(0.3)):
        with pytest.raises(InputError, match="graphs of a changing network as a list, and lost as a number"):
            Comparison(DataSpec("synthetic:90x3"), network, (MethodSpec("dadao"),))


def test_comparison_names_a_missing_key() -> None:
    with pytest.raises(InputError, match="needs 'network'"):
        Comparison.from_table({"data": "a", "methods": ["adfs"]})


def test_read_comparison_refuses_files_that_it_cannot_use(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_comparison(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("network = ")
    with pytest.raises(InputError, match="is not TOML"):
        read_comparison(tmp_path / "bad.toml")
    (tmp_path / "m.toml").write_text("data = 'synthetic:9x2'\nnetwork = 'path:2'\nmethods = ['adfss']\n")
    with pytest.raises(InputError, match=r"unknown method 'adfss': did you mean 'adfs'"):
        read_comparison(tmp_path / "m.toml").check_names()
    with pytest.raises(InputError, match="option of 'adfs' 'steps'"):
        read_comparison(tmp_path / "m.toml", {"methods": ["adfs:steps=3"]}).check_names()
    with pytest.raises(InputError, match="cannot import 'no_such_module'"):
        read_comparison(tmp_path / "m.toml", {"imports": ["no_such_module"]}).check_names()


def test_read_comparison_takes_paths_relative_to_the_file_and_options_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.toml").write_text(
        "data = { source = 'x.svm', normalise = 'rows' }\nnetwork = 'path:2'\nmethods = ['adfs']\n"
    )
    assert read_comparison(tmp_path / "c.toml").data.source == str(tmp_path / "x.svm")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    replaced = read_comparison(tmp_path / "c.toml", {"data": {"source": "y.svm"}})
    assert replaced.data == DataSpec(str(elsewhere / "y.svm"), normalise="rows")


def test_comparison_keeps_a_graph_as_its_edges(tmp_path: Path) -> None:
    lattice = nx.grid_2d_graph(2, 2)
    lattice.edges[(0, 0), (0, 1)]["weight"] = 2.5
    comparison = Comparison.from_table(table(network=lattice))
    assert comparison.network == ((0, 1, 2.5), (0, 2, 1.0), (1, 3, 1.0), (2, 3, 1.0))
    assert comparison.title == "synthetic:90x3 on 4 nodes, 4 edges"
    assert Comparison.from_table(tomllib.loads(comparison.toml())) == comparison
    named = Comparison.from_table(table(network=[["b", "a"], ["b", "c"]]))
    assert make_network(named).labels == ("a", "b", "c")
    assert Comparison.from_table(table(network=nx.empty_graph(1))).network == "path:1"
    with pytest.raises(InputError, match="the network has 4 nodes but n_nodes is 5"):
        Comparison.from_table(table(network=lattice, n_nodes=5))


def test_comparison_reads_graph_files(tmp_path: Path) -> None:
    # Ten nodes and more: as text 10 would come before 2.
    ring = nx.cycle_graph(12)
    expected = tuple((int(a), int(b)) for a, b in Network("cycle:12").edges)
    nx.write_graphml(ring, tmp_path / "ring.graphml")
    nx.write_edgelist(ring, tmp_path / "ring.txt")
    lines = [f"{a},{b}" for a, b in ring.edges]
    (tmp_path / "ring.csv").write_text("# my ring\n\n" + "\n".join(lines) + "\n")
    for name in ("ring.graphml", "ring.txt", "ring.csv"):
        (tmp_path / "c.toml").write_text(f"data = 'synthetic:90x3'\nnetwork = '{name}'\nmethods = ['adfs']\n")
        comparison = read_comparison(tmp_path / "c.toml")
        assert (comparison.network, comparison.title) == (expected, f"synthetic:90x3 on {name}")
    (tmp_path / "weighted.txt").write_text("5 7 0.5\n7 9\n")
    assert Comparison.from_table(table(network="weighted.txt"), base=tmp_path).network == (
        (0, 1, 0.5),
        (1, 2, 1.0),
    )
    for text, words in (
        ("0 1\n1 2 3 4\n", "line 2: an edge is two nodes"),
        ("0 1 heavy\n", "line 1: an edge"),
    ):
        (tmp_path / "bad.txt").write_text(text)
        with pytest.raises(InputError, match=words):
            Comparison.from_table(table(network=str(tmp_path / "bad.txt")))
    (tmp_path / "bad.graphml").write_text("<graphml")
    with pytest.raises(InputError, match="cannot be read"):
        Comparison.from_table(table(network=str(tmp_path / "bad.graphml")))


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda path: path.stem)
def test_examples_name_existing_methods_and_losses(path: Path) -> None:
    over_grid = "\n[grid]\n" in path.read_text(encoding="utf-8")
    described = (
        [point.comparison for column in read_grid(path).columns() for point in column] if over_grid else []
    )
    for comparison in described or [read_comparison(path)]:
        comparison.check_names()


def test_make_problem_normalises_columns_of_libsvm_text_without_zeros(tmp_path: Path) -> None:
    X = np.random.default_rng(0).standard_normal((60, 5)) + 3.0
    dump_svmlight_file(X, np.array([1.0, 2.0] * 30), str(tmp_path / "d.svm"), zero_based=False)
    data = {"source": str(tmp_path / "d.svm"), "normalise": "columns"}
    problem, _ = make_problem(Comparison.from_table(table(data=data, network="path:2")), 0)
    rows = np.vstack([shard.X for shard in problem.shards])
    assert np.allclose(rows.mean(axis=0), 0.0, atol=1e-12)
    assert np.allclose(rows.std(axis=0), 1.0)


def test_gaussians_are_the_papers_data() -> None:
    X, y = gaussians(100_000, 3, seed=1)
    assert y.sum() == 0.0
    for label in (-1.0, 1.0):
        rows = X[y == label]
        assert np.allclose(rows.mean(axis=0), label, atol=0.02)
        assert np.allclose(np.cov(rows.T), np.eye(3), atol=0.03)
    comparison = Comparison.from_table(table(data={"source": "gaussians", "samples_per_node": 10}, sigma=2.0))
    problem, network = make_problem(comparison, 0)
    assert (problem.n_nodes, problem.n_samples, problem.n_features, network.name) == (9, 90, 10, "grid:3x3")
    assert all(shard.y.sum() == 0.0 for shard in problem.shards)
    assert make_problem(comparison, 0)[0] is problem
    # What does not change the problem does not make it again; a split by label does.
    later = dataclasses.replace(comparison, tau=50.0, max_time=10.0, title="later")
    assert make_problem(later, 0)[0] is problem
    uneven, _ = make_problem(dataclasses.replace(comparison, partition="label"), 0)
    assert sum(abs(shard.y.sum()) for shard in uneven.shards) > 20.0
    assert np.array_equal(np.sort(uneven.X[:, 0]), np.sort(problem.X[:, 0]))
    assert not np.array_equal(make_problem(comparison, 1)[0].X, problem.X)


def test_make_problem_takes_samples_of_a_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 5)) * (rng.random((60, 5)) < 0.5)
    y = np.where(rng.random(60) < 0.4, 2.0, 1.0)
    dump_svmlight_file(X, y, str(tmp_path / "d.svm"), zero_based=False)
    data = {"source": str(tmp_path / "d.svm"), "samples_per_node": 5, "normalise": "rows", "n_features": 5}
    comparison = Comparison.from_table(table(data=data))
    problem, _ = make_problem(comparison, 3)
    assert problem.sparse
    assert (np.diff(problem.node_starts) == 5).all()
    norms = problem.row_norms_squared
    assert np.allclose(norms[norms > 0.0], 1.0, rtol=1e-14)
    assert set(problem.y) == {-1.0, 1.0}
    # Every row is one of the file's, with its own label.
    given = X / np.maximum(np.linalg.norm(X, axis=1), 1e-300)[:, None]
    rows = sp.csr_array(problem.X).toarray()
    for row, label in zip(rows, problem.y, strict=True):
        same = np.flatnonzero(np.abs(given - row).max(axis=1) < 1e-12)
        assert label in np.where(y[same] == 2.0, 1.0, -1.0)
    with pytest.raises(InputError, match="has 60 samples, fewer than 9 nodes x 7"):
        make_problem(Comparison.from_table(table(data=data | {"samples_per_node": 7})), 0)
    with pytest.raises(InputError, match="of its values are 0"):
        make_problem(Comparison.from_table(table(data=data | {"normalise": "columns"})), 0)


def test_make_problem_refuses_labels_that_do_not_fit_the_loss() -> None:
    with pytest.raises(InputError, match="3 classes"):
        make_problem(Comparison.from_table(table(data="sklearn:iris")), 0)
    problem, _ = make_problem(Comparison.from_table(table(data="sklearn:diabetes", loss="squared")), 0)
    assert np.unique(problem.y).size > 100
    with pytest.raises(InputError, match="two classes"):
        make_problem(
            Comparison.from_table(table(data={"source": "gaussians", "samples_per_node": 3}, loss="squared")),
            0,
        )


def test_fingerprint_changes_with_every_setting_of_a_run(tmp_path: Path) -> None:
    base = Comparison.from_table(table())
    mark = fingerprint(base, base.methods[0], 0)
    same = Comparison.from_table(table(title="other", seeds=4, methods=["adfs:label=Another", "extra"]))
    assert fingerprint(same, same.methods[0], 0) == mark
    assert fingerprint(base, base.methods[0], 1) != mark
    for change in (
        {"tau": 6.0},
        {"sigma": 2.0},
        {"delays": "fixed"},
        {"target": 1e-3},
        {"methods": ["adfs:read=v"]},
    ):
        other = Comparison.from_table(table(**change))
        assert fingerprint(other, other.methods[0], 0) != mark
    path = tmp_path / "a.svm"
    path.write_text("1 1:1\n")
    filed = Comparison.from_table(table(data=str(path)))
    before = fingerprint(filed, filed.methods[0], 0)
    path.write_text("1 1:12\n")
    assert fingerprint(filed, filed.methods[0], 0) != before
