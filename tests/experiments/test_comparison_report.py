"""What a comparison writes: traces, table, figures, and the page, opened in a browser where there is one."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest

from adfs.algorithms import METHODS
from adfs.cli import main
from adfs.experiments import Comparison, Results, make_page, remake_folder, run_comparison, write_folder
from adfs.experiments.figures import layout, markdown, network_svg, time_table
from adfs.experiments.report import Finding, load_findings, save_findings
from adfs.network import Network
from adfs.pages import METHOD_STYLES, line_styles

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
EVIL = "</script><script>alert(1)</script> & <b>"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Path]:
    folder = tmp_path_factory.mktemp("written")
    comparison = Comparison.from_table(
        {
            "title": f"Test {EVIL}",
            "data": {"source": "gaussians", "samples_per_node": 20, "n_features": 3},
            "network": "grid:2x3",
            "methods": ["adfs", {"method": "msda", "label": EVIL}, "point-saga", "dsba"],
            "seeds": 3,
            "target": 1e-6,
            "max_time": 3000.0,
            "records": 8,
        }
    )
    results = run_comparison(comparison, folder, progress=False)
    findings = [Finding("small", f"a claim {EVIL}", "holds", "to 1e-6")]
    save_findings(findings, folder)
    write_folder(results, folder, findings=findings)
    return results, folder


def test_traces_and_tables(written: tuple[Results, Path]) -> None:
    results, folder = written
    # The first pandas that reads back every bit by itself warns of being told to.
    exact = {} if pd.__version__ >= "3" else {"float_precision": "round_trip"}
    traces = pd.read_csv(folder / "traces.csv", **exact)
    assert set(traces["label"]) == {"ADFS", EVIL, "Point-SAGA", "DSBA"}
    assert {"time", "computations", "messages", "bytes", "suboptimality", "relative", "seed"} <= set(
        traces.columns
    )
    run = results.of("ADFS")[2]
    mine = traces[(traces["label"] == "ADFS") & (traces["seed"] == 2)]
    assert np.array_equal(mine["suboptimality"], run.frame["suboptimality"])
    times = pd.read_csv(folder / "times.csv")
    row = times[(times["label"] == "ADFS") & (times["level"] == 1e-4)].iloc[0]
    assert row["median"] == pytest.approx(np.median(results.times("ADFS", 1e-4)), rel=1e-12)
    assert (row["reached"], row["seeds"]) == (3, 3)
    late = times[(times["label"] == "DSBA") & (times["level"] == 1e-6)].iloc[0]
    assert np.isinf(late["median"])
    assert late["given_up"] == pytest.approx(3000.0, rel=0.05)
    table = time_table(results)
    assert table.loc["DSBA", "1e-06"].startswith("> ")
    # No column beyond the target, which no run goes for; the target has one, whatever it is.
    assert list(table.columns) == ["1e-02", "1e-04", "1e-06"]
    for target, columns in ((2.5e-5, ["1e-02", "1e-04", "2.5e-05"]), (0.1, ["1e-01"])):
        other = Results(dataclasses.replace(results.comparison, target=target), results.runs)
        assert list(time_table(other).columns) == columns
    assert (folder / "times.md").read_text(encoding="utf-8") == markdown(table)


def test_figures(written: tuple[Results, Path]) -> None:
    _, folder = written
    for name in ("error-time", "error-work"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert ET.parse(folder / f"{name}.svg").getroot().tag.endswith("svg")
    drawing = (folder / "error-time.svg").read_text(encoding="utf-8").lower()
    for method in ("adfs", "point-saga", "dsba"):
        assert METHOD_STYLES[method][0].lower() in drawing


def test_each_method_has_one_line_style_everywhere(written: tuple[Results, Path]) -> None:
    own = {name for name, method in METHODS.items() if method.__class__.__module__.startswith("adfs.")}
    assert set(METHOD_STYLES) == own
    assert len(set(METHOD_STYLES.values())) == len(METHOD_STYLES)
    # The same method with other constants, and methods from outside: still no two lines alike.
    names = [*METHOD_STYLES, *["adfs"] * 5, "adfs-block", *(f"outside-{k}" for k in range(12))]
    styles = line_styles(names)
    assert len(set(styles)) == len(names)
    assert styles[: len(METHOD_STYLES)] == list(METHOD_STYLES.values())
    assert {color for name, (color, _) in zip(names, styles, strict=True) if name == "adfs"} == {styles[0][0]}
    # The page's script gets these.
    page = (written[1] / "report.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    used = line_styles(one.method for one in written[0].comparison.methods)
    assert [(one["color"], one["dash"]) for one in data["methods"]] == used


def test_the_page_needs_nothing_else_and_escapes_what_users_write(written: tuple[Results, Path]) -> None:
    results, folder = written
    page = (folder / "report.html").read_text(encoding="utf-8")
    outside = set(re.findall(r"https?://[^\s\"'<]+", page)) - {"http://www.w3.org/2000/svg"}
    assert outside == set()
    assert not re.search(r"<(link|img|iframe)\b|@import|url\((?!#)", page.split("<script", 1)[0])
    assert "<script>alert" not in page
    assert html.escape(EVIL) in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert [one["label"] for one in data["methods"]] == ["ADFS", EVIL, "Point-SAGA", "DSBA"]
    assert set(data["methods"][0]["curves"]) == {"time", "computations", "messages", "bytes"}
    assert set(data["methods"][2]["curves"]) == {"time", "computations"}  # one machine sends nothing
    curve = data["methods"][0]["curves"]["time"]
    assert len(curve["runs"]) == 3
    assert curve["reached"] == pytest.approx(results.times("ADFS", 1e-6).max(), rel=1e-4)
    assert data["methods"][3]["curves"]["time"]["reached"] is None
    assert html.escape(results.comparison.toml()) in page
    assert "Seeds: 0, 1, 2." in page
    assert page.count("<circle") == 6


def test_the_page_says_in_words_how_to_run_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "d.npz", X=np.random.default_rng(0).standard_normal((12, 2)), y=[1, -1] * 6)
    (tmp_path / "mine.py").touch()
    table = {"data": "d.npz", "network": "path:2", "methods": ["adfs"], "target": 1e-2}
    table["imports"] = ["mine.py"]
    delays = {"stragglers": [[0, 4.0], [1, 2.0, 0.5]], "speed": 2.0}
    comparison = Comparison.from_table(table | {"delays": delays}, base=tmp_path)
    folder = tmp_path / "results"
    write_folder(run_comparison(comparison, folder, progress=False), folder)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert str(tmp_path) not in page
    assert "Straggler(" not in page
    assert "law=" not in page
    assert "node 0: 4 times as long; node 1: 2 times as long, 50% of each 1000" in page
    (command,) = re.findall("<code>adfs (.*?)</code>", page)
    before = (folder / "runs" / "adfs-0.run").stat().st_mtime_ns
    monkeypatch.chdir(folder)
    assert main([*command.split(), "--jobs", "1"]) == 0
    assert (folder / "runs" / "adfs-0.run").stat().st_mtime_ns == before  # the runs were found again
    assert (folder / "report.html").read_text(encoding="utf-8") == page


def test_report_makes_the_same_page_again(
    written: tuple[Results, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = written
    names = ("report.html", "times.csv", "traces.csv", "error-time.svg", "error-time.png")
    before = {name: (folder / name).read_bytes() for name in names}
    for name in names:
        (folder / name).unlink()
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    assert {name: (folder / name).read_bytes() for name in names} == before


def test_parquet_traces_stay_parquet(written: tuple[Results, Path], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    results, folder = written
    shutil.copytree(folder / "runs", tmp_path / "runs")
    shutil.copy(folder / "comparison.toml", tmp_path)
    write_folder(results, tmp_path, traces="parquet")
    (tmp_path / "report.html").unlink()
    remake_folder(tmp_path)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "traces.parquet"), results.frame())
    assert not (tmp_path / "traces.csv").exists()


def test_findings_are_kept(written: tuple[Results, Path], tmp_path: Path) -> None:
    _, folder = written
    assert load_findings(folder) == [Finding("small", f"a claim {EVIL}", "holds", "to 1e-6")]
    assert load_findings(tmp_path) == []
    (tmp_path / "claims.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        load_findings(tmp_path)


def test_networks_are_drawn() -> None:
    for name in (
        "grid:3x4",
        "torus:3x3",
        "cycle:7",
        "path:4",
        "star:6",
        "hypercube:3",
        "complete:5",
        "path:1",
        "path:2",
    ):
        network = Network(name)
        places = layout(network)
        assert places.shape == (network.n_nodes, 2)
        assert places.min() >= -1e-9
        assert places.max() <= 1.0 + 1e-9
        assert len({tuple(np.round(place, 6)) for place in places}) == network.n_nodes
        drawing = ET.fromstring(network_svg(network))
        assert len(drawing.findall("line")) == network.n_edges
        assert len(drawing.findall("circle")) == network.n_nodes
    assert np.allclose(np.abs(np.diff(layout(Network("grid:3x4"))[:2], axis=0)), [[1.0 / 3.0, 0.0]])
    named = Network(nx.relabel_nodes(nx.path_graph(3), {0: "<a>", 1: "b", 2: "c"}))
    assert "&lt;a&gt;" in network_svg(named)
    assert "too many to draw" in network_svg(Network("path:700"))


# --------------------------------------------------------------------------- in a browser


def dom(page: Path, address: str, profile: Path) -> str:
    """Return the page's elements after its script has run, as a browser sees them."""
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    flags += ["--no-first-run", "--disable-component-update", "--disable-sync", f"--user-data-dir={profile}"]
    done = subprocess.run(
        [CHROMIUM, *flags, "--window-size=1200,900", "--dump-dom", f"{page.as_uri()}#{address}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here to open the page with")
def test_the_page_in_a_browser(written: tuple[Results, Path], tmp_path: Path) -> None:
    _, folder = written
    page = folder / "report.html"
    seen = dom(page, "", tmp_path)
    assert 'data-ready="time"' in seen
    assert re.findall(r'class="curve" data-method="(\d)"', seen) == ["0", "1", "2", "3"]
    assert len(re.findall(r'<input type="checkbox" data-method="\d"', seen)) == 4
    assert seen.count("<polygon") == 4  # a band each
    assert len(re.findall(r"<button[^>]*data-x=", seen)) == 4
    assert "NaN" not in re.sub(r'id="data">.*?</script>', "", seen, flags=re.DOTALL).split("<script")[0]
    # Another axis, without bands' middle method, linear in y, every seed drawn.
    seen = dom(page, "x=messages&xlog=1&ylog=0&seeds=1&off=1", tmp_path)
    assert 'data-ready="messages"' in seen
    assert re.findall(r'class="curve" data-method="(\d)"', seen) == ["0", "3"]  # 2 runs on one machine
    assert seen.count("<polyline") == 2 + 2 * 3
    assert ">messages (all nodes)</text>" in seen
    assert "NaN" not in seen.split("<script")[0]
    seen = dom(page, "off=0,1,2,3", tmp_path)
    assert "no method chosen" in seen
    # A label that would be a script is text.
    assert html.escape(EVIL, quote=False) in seen.split('id="legend"')[1]


# What a reader of a narrow page would see cut off, or one upon the other.
FAULTS = """
function faults(page) {
  const found = [], root = page.documentElement, box = one => one.getBoundingClientRect();
  if (root.scrollWidth > root.clientWidth) found.push("the page is wider than the window");
  for (const button of page.querySelectorAll(".choice button")) {
    const inner = box(button), outer = box(button.parentElement);
    if (inner.right > outer.right || inner.bottom > outer.bottom) found.push(button.textContent + " is cut");
  }
  const texts = [...page.querySelectorAll("#plot text")];
  if (texts.length < 6) found.push("hardly any ticks");
  for (const one of texts) for (const other of texts) {
    const a = box(one), b = box(other), beside = a.right < b.left || b.right < a.left;
    if (one !== other && !beside && a.top < b.bottom && b.top < a.bottom)
      found.push(one.textContent + " meets " + other.textContent);
  }
  return found.join("; ") || "none";
}
"""


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here to open the page with")
@pytest.mark.parametrize("longest", [3.2e3, 3.2e5])
def test_nothing_is_cut_off_on_a_narrow_page(
    written: tuple[Results, Path], tmp_path: Path, longest: float
) -> None:
    """In a frame of 390 pixels, the width of a telephone, with times that have long ticks."""
    results, _ = written
    ends = [float(results.times(label, results.comparison.target).max()) for label in results.labels]
    scale = longest / max(end for end in ends if end < math.inf)
    runs = {
        key: dataclasses.replace(run, columns=run.columns | {"time": scale * run.columns["time"]})
        for key, run in results.runs.items()
    }
    plain = dataclasses.replace(results.comparison, title="Narrow")
    page = html.escape(make_page(Results(plain, runs)))
    (tmp_path / "frame.html").write_text(
        f"<!doctype html><meta charset='utf-8'><script>{FAULTS}</script>"
        f'<iframe style="width: 390px; height: 900px; border: 0" srcdoc="{page}"'
        ' onload="document.body.dataset.faults = faults(this.contentDocument)"></iframe>',
        encoding="utf-8",
    )
    seen = dom(tmp_path / "frame.html", "", tmp_path / "profile")
    assert re.findall(r'data-faults="([^"]*)"', seen) == ["none"]


def test_the_page_of_one_seed_has_no_band(written: tuple[Results, Path]) -> None:
    results, _ = written
    one = Results(dataclasses.replace(results.comparison, seeds=(1,)), {("ADFS", 1): results.runs["ADFS", 1]})
    page = make_page(one)
    assert "bands" not in page
    assert json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])["methods"][0]["seeds"] == 1  # type: ignore[index]
