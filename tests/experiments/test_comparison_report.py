"""What a comparison writes: traces, table, figures, and the page, opened in a browser where there is one."""

from __future__ import annotations

import dataclasses
import html
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
from adfs.experiments.report import layout, network_svg
from adfs.experiments.results import Finding, load_findings, markdown, save_findings, time_table
from adfs.network import Network
from adfs.pages import html_table, line_styles

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


def test_write_folder_keeps_every_bit_of_the_traces_and_bounds_late_times(
    written: tuple[Results, Path],
) -> None:
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


def test_write_folder_draws_every_figure_as_png_and_svg(written: tuple[Results, Path]) -> None:
    _, folder = written
    for name in ("error-time", "error-work"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert ET.parse(folder / f"{name}.svg").getroot().tag.endswith("svg")
    drawing = (folder / "error-time.svg").read_text(encoding="utf-8").lower()
    for color, _ in line_styles(["adfs", "point-saga", "dsba"], METHODS):
        assert color.lower() in drawing


def test_line_styles_are_one_per_method_in_every_figure(written: tuple[Results, Path]) -> None:
    alone = [line_styles([name], METHODS)[0] for name in METHODS]
    assert len(set(alone)) == len(METHODS)
    # The same method with other parameters, and methods from outside: still no two lines alike.
    names = [*METHODS, *["adfs"] * 5, "adfs-block", *(f"outside-{k}" for k in range(12))]
    styles = line_styles(names, METHODS)
    assert len(set(styles)) == len(names)
    assert styles[: len(METHODS)] == alone
    assert len({color for name, (color, _) in zip(names, styles, strict=True) if name == "adfs"}) == 1
    # The legend of the page shows the colours of the figures.
    page = (written[1] / "report.html").read_text(encoding="utf-8")
    used = line_styles((entry.method for entry in written[0].comparison.methods), METHODS)
    assert re.findall(r'stroke="([^"]*)" stroke-dasharray="([^"]*)"', page) == used


def test_page_needs_no_other_file_and_escapes_the_texts_of_users(written: tuple[Results, Path]) -> None:
    results, folder = written
    page = (folder / "report.html").read_text(encoding="utf-8")
    outside = set(re.findall(r"https?://[^\s\"'<]+", page)) - {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert outside == set()
    assert not re.search(r"<(link|img|iframe)\b|@import|url\((?!#)", page.split("<script", 1)[0])
    assert "<script>alert" not in page
    assert html.escape(EVIL) in page
    # Each method has a checkbox, and the drawings have a group for each of its curves.
    assert re.findall(r'data-method="(\d)"', page) == ["0", "1", "2", "3"]
    groups = re.findall(r'<g id="curve-(\d)-([a-z]*)"', page)
    everywhere = ["time", "computations", "messages", "bytes"]
    for place, axes in (("0", everywhere), ("2", everywhere[:2])):  # Point-SAGA, one machine, sends nothing
        assert [axis for number, axis in groups if number == place] == axes
    assert len(re.findall(r'<g id="curve-0-[a-z]*-band"', page)) == 4
    assert html.escape(results.comparison.toml()) in page
    assert "Seeds: 0, 1, 2." in page
    assert [f" {node} -->" in page.split("<h2>Network", 1)[1] for node in range(7)] == [True] * 6 + [False]


def test_page_gives_the_command_that_finds_the_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert "<dt>delays</dt><dd>exponential</dd>" in page
    assert "<dt>delays, stragglers</dt><dd>[[0, 4.0], [1, 2.0, 0.5]]</dd>" in page
    (command,) = re.findall("<code>adfs (.*?)</code>", page)
    before = (folder / "runs" / "adfs-0.run").stat().st_mtime_ns
    monkeypatch.chdir(folder)
    assert main([*command.split(), "--jobs", "1"]) == 0
    assert (folder / "runs" / "adfs-0.run").stat().st_mtime_ns == before  # the runs were found again
    assert (folder / "report.html").read_text(encoding="utf-8") == page


def test_report_command_makes_the_same_files_again(
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


def test_page_of_runs_without_the_facts_of_their_problem(written: tuple[Results, Path]) -> None:
    """Runs of another version may lack these facts: the page leaves them out."""
    results = written[0]
    for problem in ({}, {"problem": {"samples": 90}}):
        runs = {key: dataclasses.replace(run, details=problem) for key, run in results.runs.items()}
        page = make_page(dataclasses.replace(results, runs=runs))
        assert "all samples on" in page
        assert ("<dt>samples</dt><dd>90</dd>" in page) == bool(problem)


def test_remake_folder_keeps_parquet_traces(written: tuple[Results, Path], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    results, folder = written
    shutil.copytree(folder / "runs", tmp_path / "runs")
    shutil.copy(folder / "comparison.toml", tmp_path)
    write_folder(results, tmp_path, traces="parquet")
    (tmp_path / "report.html").unlink()
    remake_folder(tmp_path)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "traces.parquet"), results.frame())
    assert not (tmp_path / "traces.csv").exists()


def test_html_table_keeps_long_cells_and_all_rows() -> None:
    cells = pd.DataFrame({"method": ["x" * 99] * 99})
    assert html_table(cells).count(f"<td>{'x' * 99}</td>") == 99


def test_findings_are_loaded_as_they_were_saved(written: tuple[Results, Path], tmp_path: Path) -> None:
    _, folder = written
    assert load_findings(folder) == [Finding("small", f"a claim {EVIL}", "holds", "to 1e-6")]
    assert load_findings(tmp_path) == []
    (tmp_path / "claims.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        load_findings(tmp_path)


def test_network_svg_has_a_circle_per_node_and_a_line_per_edge() -> None:
    svg = "{http://www.w3.org/2000/svg}"
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
        assert len(drawing.findall(f".//*[@id='edges']/{svg}path")) == network.n_edges
        assert len(drawing.findall(f".//*[@id='nodes']//{svg}use")) == network.n_nodes
    assert np.allclose(np.abs(np.diff(layout(Network("grid:3x4"))[:2], axis=0)), [[1.0 / 3.0, 0.0]])
    named = Network(nx.relabel_nodes(nx.path_graph(3), {0: "<a>", 1: "b", 2: "c"}))
    assert "&lt;a&gt; -->" in network_svg(named)
    assert "too many to draw" in network_svg(Network("path:700"))


# --------------------------------------------------------------------------- in a browser


def dom(page: Path, profile: Path) -> str:
    """Return the page's elements after its scripts have run, as a browser sees them."""
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    flags += ["--no-first-run", "--disable-component-update", "--disable-sync", f"--user-data-dir={profile}"]
    done = subprocess.run(
        [CHROMIUM, *flags, "--window-size=1200,900", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here to open the page with")
def test_page_hides_the_curves_of_a_method_by_its_checkbox(
    written: tuple[Results, Path], tmp_path: Path
) -> None:
    """In a frame as narrow as a telephone, which the page must not exceed."""
    page = html.escape((written[1] / "report.html").read_text(encoding="utf-8"))
    script = """
    function check(page) {
      const box = page.querySelector('input[data-method="1"]'), hidden = () =>
        [...page.querySelectorAll('[id^="curve-"]')].filter(part => part.style.display === "none")
          .map(part => part.id);
      box.click();
      const off = hidden();
      box.click();
      const root = page.documentElement;
      return [off.join(" "), hidden().length, root.scrollWidth <= root.clientWidth].join(";");
    }"""
    (tmp_path / "frame.html").write_text(
        f"<!doctype html><meta charset='utf-8'><script>{script}</script>"
        f'<iframe style="width: 390px; height: 900px; border: 0" srcdoc="{page}"'
        ' onload="document.body.dataset.seen = check(this.contentDocument)"></iframe>',
        encoding="utf-8",
    )
    seen = dom(tmp_path / "frame.html", tmp_path / "profile")
    (found,) = re.findall(r'data-seen="([^"]*)"', seen)
    off, left, fits = found.split(";")
    names = {
        f"curve-1-{axis}{end}"
        for axis in ("time", "computations", "messages", "bytes")
        for end in ("", "-band")
    }
    assert set(off.split()) == names
    assert (left, fits) == ("0", "true")


def test_page_of_one_seed_has_no_band(written: tuple[Results, Path]) -> None:
    results, _ = written
    one = Results(dataclasses.replace(results.comparison, seeds=(1,)), {("ADFS", 1): results.runs["ADFS", 1]})
    page = make_page(one)
    assert "bands" not in page
    assert "-band" not in page
