"""The documentation's pages: complete without a network, in an order for readers, no figure typed by hand."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import adfs
from adfs.experiments.paper import SETTINGS
from browser import Browser, narrow_pages

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
WRITTEN = ("_build", "api", "reference", "pictures", "tables.md")
SOURCES = [path for path in DOCS.rglob("*.md") if not set(WRITTEN) & set(path.relative_to(DOCS).parts)]

ASKS = r'<(?:script|link|img|iframe|source|object)\b[^>]*?(?:src|href|data)="([^"]+)'
BUILD = """
from sphinx.application import Sphinx
settings = {"exclude_patterns": ["reference/*"], "apidoc_modules": []}
Sphinx("docs", "docs", "html", "doctrees", "html", settings, status=None, warning=None).build()
"""
# A module's page as the build writes it; one of its names is a type of Python's own.
MODULE = """:orphan:

adfs.files
==========

.. automodule:: adfs.files
   :members:
   :no-index:
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the pages, without those written from the sources, which take a minute to build."""
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("docs")
    shutil.copytree(DOCS, folder / "docs", ignore=shutil.ignore_patterns(*WRITTEN, "__pycache__"))
    shutil.copytree(ROOT / "benchmarks" / "results", folder / "benchmarks" / "results")
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff"):
        shutil.copy(ROOT / name, folder)
    (folder / "docs" / "api.rst").write_text(MODULE, encoding="utf-8")
    places = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": places}
    subprocess.run([sys.executable, "-c", BUILD], cwd=folder, env=environment, timeout=300, check=True)
    return folder / "html"


@pytest.fixture(scope="module")
def pages(built: Path) -> dict[str, str]:
    """The pages that have a source of their own, by name, such as "tutorials/one-machine"."""
    own = {path.relative_to(DOCS).with_suffix("").as_posix() for path in SOURCES}
    return {name: (built / f"{name}.html").read_text(encoding="utf-8") for name in sorted(own)}


@pytest.fixture(scope="module")
def kept() -> Iterator[ModuleType]:
    """The module of the kept figures, as the pages use it."""
    sys.path.insert(0, str(DOCS))
    try:
        import kept as found

        yield found
    finally:
        sys.path.remove(str(DOCS))


def test_pages_ask_no_other_server_for_anything(pages: dict[str, str]) -> None:
    assert {"index", "guide", "errata", "changelog", "tutorials/comparison", "explained/event"} <= set(pages)
    for name, page in pages.items():
        wanted = re.findall(ASKS, page)
        assert wanted, name
        assert [place for place in wanted if re.match(r"(https?:)?//", place)] == [], name
        assert "@import" not in page


def test_pages_have_their_formulas_drawn_in(pages: dict[str, str]) -> None:
    assert pages["index"].count('<div class="formula"><svg role="img"') == 1
    text = (DOCS / "errata.md").read_text(encoding="utf-8")
    formulas = re.findall(r"\$\$(.+?)\$\$|\$(.+?)\$", text, flags=re.DOTALL)
    drawn = re.findall(r'<svg role="img" aria-label="([^"]+)"[^>]*><path d="M[^"]+"', pages["errata"])
    assert {html.unescape(one) for one in drawn} == {(block or inline).strip() for block, inline in formulas}
    assert len(drawn) > 200
    assert not re.search(r"\$|\\(frac|sigma|kappa)", re.sub(r'aria-label="[^"]*"', "", pages["errata"]))


def test_sidebar_goes_from_the_purpose_to_the_reference(pages: dict[str, str]) -> None:
    sidebar = pages["index"].partition('<div class="sidebar-tree">')[2].partition("</aside>")[0]
    order = re.findall(r'toctree-l1[\w -]*"><a class="reference internal" href="([\w/-]+)\.html"', sidebar)
    assert order[:3] == ["why", "install", "tutorials/one-machine"]
    assert order[-2:] == ["changelog", "citing"]
    assert set(order) == set(pages) - {"index"}
    captions = re.findall(r'class="caption-text">([^<]+)', sidebar)
    assert captions == ["Start", "Tutorials", "How it works", "How to", "Reference"]


def test_pictures_are_there_and_are_told_in_words(built: Path, pages: dict[str, str]) -> None:
    shown = 0
    for name, page in pages.items():
        for tag in re.findall(r'<img\b[^>]*class="[^"]*picture[^"]*"[^>]*>', page):
            words = re.search(r'alt="([^"]*)"', tag)
            place = re.search(r'src="([^"]+)"', tag)
            assert words is not None, (name, tag)
            assert place is not None, (name, tag)
            assert len(words[1]) > 60, (name, tag)
            assert ((built / name).parent / place[1]).is_file(), tag
            shown += 1
        for tag in re.findall(r"<img\b[^>]*>", page):
            assert "alt=" in tag, (name, tag)
    assert shown >= 10


def test_pages_have_links_that_lead_somewhere(built: Path, pages: dict[str, str]) -> None:
    anchors = {name: set(re.findall(r'\bid="([^"]+)"', page)) for name, page in pages.items()}
    followed = 0
    for name, page in pages.items():
        article = page.partition('<article role="main"')[2].partition("</article>")[0]
        for place in re.findall(r'<a [^>]*href="([^"]+)"', article):
            if re.match(r"https?:|mailto:", place):
                continue
            file, _, anchor = html.unescape(place).partition("#")
            target = (built / name).parent / file if file else built / f"{name}.html"
            assert target.is_file(), f"{name}: {place}"
            if anchor:
                other = target.resolve().relative_to(built.resolve()).with_suffix("").as_posix()
                assert anchor in anchors.get(other, {anchor}), f"{name}: {place}"
            followed += 1
    assert followed > 100


def test_source_pages_have_links_that_lead_somewhere(built: Path) -> None:
    sources = list((built / "_modules").rglob("*.html"))
    assert built / "_modules" / "adfs" / "files.html" in sources
    for source in sources:
        article = source.read_text(encoding="utf-8").partition('<article role="main"')[2]
        for place in re.findall(r'<a [^>]*href="([^":]+)"', article.partition("</article>")[0]):
            file, _, anchor = html.unescape(place).partition("#")
            target = source.parent / file if file else source
            assert target.is_file(), f"{source}: {place}"
            assert not anchor or f'id="{anchor}"' in target.read_text(encoding="utf-8"), f"{source}: {place}"


def test_first_page_has_three_entrances_and_no_list_of_all_pages(pages: dict[str, str]) -> None:
    article = pages["index"].partition('<article role="main"')[2].partition("</article>")[0]
    assert re.findall(r"<strong>.*?>(I [\w ]+)<", article) == [
        "I have a table",
        "I have machines",
        "I study methods",
    ]
    assert "toctree-l1" not in article


def test_benchmarks_page_begins_with_ten_lines(pages: dict[str, str]) -> None:
    before = pages["benchmarks"].partition("<h1>")[2].partition("<table")[0]
    assert before.count("<li>") == 10
    assert before.count('class="kept"') >= 10


def test_texts_name_one_way_to_install() -> None:
    for path in [*SOURCES, ROOT / "README.md", *(ROOT / "src").rglob("*.py"), ROOT / "examples" / "demo.py"]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"pip install (-\S+ \S+ )?[\"']?adfs\b", text), path


def test_reference_has_every_public_name(pages: dict[str, str]) -> None:
    missing = [name for name in adfs._OBJECTS if f">{name}<" not in pages["reference"]]
    assert missing == []


# --------------------------------------------------------------------------- figures


def test_readme_has_the_kept_figures(kept: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(kept.TAGGED.findall(readme)) >= 4
    assert kept.wrong_figures(readme) == []
    place, shown = kept.TAGGED.findall(readme)[0]
    assert len(kept.wrong_figures(readme.replace(f"-->{shown}<", "-->0.1 ns<"))) == 1  # it can fail
    assert kept.with_kept_figures(f"<!-- {place} -->?<!-- . -->") == f"<!-- {place} -->{shown}<!-- . -->"


def test_reproduction_table_has_a_row_for_each_method_that_runs(kept: ModuleType) -> None:
    methods = [row["method"] for row in kept.read_table("reproduction")]
    assert methods == [one.label for one in SETTINGS["small"].methods]
    assert {"L-BFGS", "Newton"} <= set(methods)


@pytest.mark.parametrize("place", ["nowhere; a row", "solvers; a row", "solvers; a9a, C"])
def test_kept_figure_refuses_a_figure_that_is_not_kept(kept: ModuleType, place: str) -> None:
    with pytest.raises(KeyError):
        kept.kept_figure(place)


def test_texts_have_no_measured_figure_typed_by_hand(kept: ModuleType) -> None:
    """Nothing that looks measured stands in a text but where it comes from a table."""
    measured = re.compile(
        r"\d[\d.,]*\s?(?:ns|µs|ms|MiB|GiB|GB)\b|\d\s?% (?:faster|slower|less|more)"
        r"|\d[\d.]* times (?:as fast|faster|slower)|\d\s?× (?:faster|as)"
    )
    assert measured.search("a step takes 99 ns")
    for path in [*SOURCES, ROOT / "README.md"]:
        text = kept.TAGGED.sub("", path.read_text(encoding="utf-8"))
        text = re.sub(r"^```.*?^```$|`[^`]*`|\$[^$]*\$", "", text, flags=re.MULTILINE | re.DOTALL)
        assert measured.findall(text) == [], path


def test_kept_tables_are_all_shown(pages: dict[str, str]) -> None:
    def words(text: str) -> str:
        return re.sub(r"\W+", " ", html.unescape(re.sub(r"<[^>]+>", " ", text)))

    names = ("benchmarks", "reproducibility", "map", "explained/variants")
    shown = words("".join(pages[name] for name in names))
    for path in (ROOT / "benchmarks" / "results").glob("*.md"):
        rows = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|")][2:]
        assert words(rows[0].strip("|").partition("|")[0]).strip() in shown, path.name


def test_readme_shows_what_the_package_computes(kept: ModuleType) -> None:
    """The picture beside the README was drawn from the numbers that the run has now."""
    from drawings import first_picture_data

    drawn = (DOCS / "style" / "first.svg").read_text(encoding="utf-8")
    told = re.search(r"<dc:description>(.*?)</dc:description>", drawn, flags=re.DOTALL)
    assert told is not None
    data = json.loads(html.unescape(told[1]))
    now = first_picture_data()
    assert data.keys() == now.keys()
    for name, values in now.items():
        assert data[name] == pytest.approx(values, rel=1e-6), name


def test_readme_shows_the_map_of_the_kept_table(kept: ModuleType) -> None:
    from drawings import map_stamp

    drawn = (DOCS / "style" / "map.svg").read_text(encoding="utf-8")
    assert f"<dc:description>{map_stamp()}<" in drawn


def test_pictures_have_no_texts_or_boxes_that_overlap(kept: ModuleType) -> None:
    import drawings
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from pictures import draw_architecture

    figure = Figure(figsize=(5.2, 6.2), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    with mpl.rc_context({"font.size": 9.5}):
        draw_architecture(figure)
        canvas.draw()
    (axes,) = figure.axes
    texts = [text.get_window_extent() for text in axes.texts if text.get_text()]
    boxes = [box.get_window_extent() for box in axes.patches]
    for number, text in enumerate(texts):
        assert sum(text.overlaps(other) for other in texts[number + 1 :]) == 0
        for box in boxes:  # inside a box, or outside
            inside = box.contains(*text.min) and box.contains(*text.max)
            assert inside or not box.overlaps(text)
    for draw in (drawings.draw_event, drawings.draw_mean_and_lag, drawings.draw_waiting):
        figure = Figure(layout="constrained")
        draw(figure)
        assert figure.legends, draw
        assert [axes.get_legend() for axes in figure.axes] == [None] * len(figure.axes)


def test_pictures_have_no_ground_of_their_own(built: Path) -> None:
    """What a browser would turn dark turns orange into brown; a white sheet glares in the dark."""
    assert "filter" not in (DOCS / "style" / "pictures.css").read_text(encoding="utf-8")
    for path in (built / "_images").glob("*.svg"):
        ground = path.read_text(encoding="utf-8").partition('<g id="patch_1">')[2].partition("</g>")[0]
        assert 'style="fill: none' in ground, path


def test_readme_has_links_that_lead_to_files() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "RELEASING.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for place in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
            assert re.match(r"https?:", place) or (ROOT / place).exists(), f"{name}: {place}"


# --------------------------------------------------------------------------- in a browser


def test_pages_fit_a_telephone_and_the_dark_and_ask_nobody(built: Path, pages: dict[str, str]) -> None:
    browser = Browser.find()
    if browser is None:
        pytest.skip("no chromium or chrome on this machine")
    seen = narrow_pages(browser, built, [f"{name}.html" for name in pages], width=390)
    assert set(seen.pages) == {f"{name}.html" for name in pages}
    too_wide = {name: page for name, page in seen.pages.items() if page.scroll_width > 390}
    assert too_wide == {}
    for name, page in seen.pages.items():
        assert page.background < 80 < 170 < page.ink, (name, page)  # light letters on a dark page
    assert seen.elsewhere == []


def test_narrow_pages_notices_a_page_that_is_wide_or_asks_somebody(tmp_path: Path) -> None:
    browser = Browser.find()
    if browser is None:
        pytest.skip("no chromium or chrome on this machine")
    wide = '<body><div style="width: 600px">wide</div><img src="http://example.org/a.png"></body>'
    (tmp_path / "wide.html").write_text(wide, encoding="utf-8")
    seen = narrow_pages(browser, tmp_path, ["wide.html"], width=390)
    assert seen.pages["wide.html"].scroll_width > 600
    assert seen.elsewhere == ["http://example.org/a.png"]
