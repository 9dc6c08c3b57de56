from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import adfs
from adfs.errors import InputError
from adfs.schedule import AliasTables, counts, frame, make_schedule, plot

both = pytest.mark.parametrize("kind", ["iid", "poisson"])


def make(kind):
    return make_schedule(
        kind,
        seed=3,
        n_nodes=3,
        edges=[[0, 1], [1, 2]],
        node_probability=[0.2, 0.1, 0.3],
        edge_probability=[0.25, 0.15],
        samples=AliasTables.build(np.ones(6), [0, 2, 4, 6]),
    )


@both
def test_counts(kind):
    schedule = make(kind)
    seen = counts(schedule, 10, 20_010)
    events = schedule.block(10, 20_010)
    assert seen.node_actual.tolist() == [int((events.actor == a).sum()) for a in range(3)]
    assert seen.edge_actual.tolist() == [int((events.actor == 3 + e).sum()) for e in range(2)]
    np.testing.assert_allclose(seen.node_expected, [4000, 2000, 6000], rtol=1e-12)
    np.testing.assert_allclose(seen.edge_expected, [5000, 3000], rtol=1e-12)
    for actual, expected in (seen[1::-1], seen[3:1:-1]):
        assert (np.abs(actual - expected) < 6 * np.sqrt(expected)).all()
    own = counts(schedule, 10, 20_010, [0])
    assert own.node_actual.tolist() == [seen.node_actual[0], 0, 0]
    assert own.edge_actual.tolist() == [seen.edge_actual[0], 0]
    np.testing.assert_allclose(own.node_expected, [4000, 0, 0], rtol=1e-12)
    np.testing.assert_allclose(own.edge_expected, [5000, 0], rtol=1e-12)
    with pytest.raises(InputError, match="finite"):
        counts(schedule, 0, np.inf)


@both
def test_frame(kind):
    schedule = make(kind)
    table = frame(schedule, first=60)
    assert list(table.columns) == ["time", "kind", "node", "neighbour", "edge", "sample"]
    assert len(table) == 60
    assert table["time"].is_monotonic_increasing
    events = schedule.block(0, 200)
    order = np.argsort(events.time, kind="stable")[:60]
    assert table["time"].tolist() == events.time[order].tolist()
    assert table["sample"].tolist() == events.sample[order].tolist()
    assert set(table["kind"]) == {"compute", "exchange"}
    for row in table.itertuples():
        if row.kind == "compute":
            assert (row.neighbour, row.edge) == (-1, -1)
            assert row.sample // 2 == row.node
        else:
            assert [row.node, row.neighbour] == schedule.edges[row.edge].tolist()
            assert row.sample == -1
    assert len(frame(schedule, first=0)) == 0
    own = frame(schedule, 12, nodes=[0])
    assert own["time"].tolist() == table.loc[table["node"] == 0, "time"].tolist()[:12]


@both
def test_plot(kind):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    schedule = make(kind)
    events = schedule.block(5, 40)
    ax = plot(schedule, 5, 40)
    computation = next(line for line in ax.lines if line.get_label() == "computation")
    mine = events.actor < 3
    assert sorted(computation.get_xdata()) == sorted(events.time[mine])
    exchange = next(c for c in ax.collections if c.get_label() == "exchange")
    assert len(exchange.get_segments()) == int((~mine).sum())
    assert plot(schedule, ax=ax) is ax
    plt.close(ax.figure)


def test_looking_does_not_import_what_it_does_not_need():
    code = "import sys, adfs.schedule; assert not {'pandas', 'matplotlib'} & set(sys.modules)"
    source = str(Path(adfs.__file__).parents[1])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": source})
