from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import adfs
from adfs.schedule import AliasTables, frame, make_schedule

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
def test_frame_lists_events_in_order_of_time(kind):
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


def test_schedule_imports_neither_pandas_nor_matplotlib():
    code = "import sys, adfs.schedule; assert not {'pandas', 'matplotlib'} & set(sys.modules)"
    source = str(Path(adfs.__file__).parents[1])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": source})
