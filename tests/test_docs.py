"""The documentation's pages: complete without a network, in an order for readers, formulas drawn."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


ASKS = r'<(?:script|link|img|iframe|source|object)\b[^>]*?(?:src|href|data)="([^"]+)'
BUILD = """
from sphinx.application import Sphinx
settings = {"exclude_patterns": ["reference/*"], "apidoc_modules": []}
Sphinx("docs", "docs", "html", "doctrees", "html", settings, status=None, warning=None).build()
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The pages by name, without those that are written from the sources, which take a minute to build."""
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("docs")
    written = shutil.ignore_patterns("_build", "api", "reference")
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=written)
    shutil.copytree(ROOT / "benchmarks" / "results", folder / "benchmarks" / "results")
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, folder)
    places = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": places}
    subprocess.run([sys.executable, "-c", BUILD], cwd=folder, env=environment, timeout=300, check=True)
    return {path.stem: path.read_text(encoding="utf-8") for path in (folder / "html").glob("*.html")}


def test_no_page_asks_another_server_for_anything(pages: dict[str, str]) -> None:
    assert {"index", "guide", "errata", "changelog", "reference"} <= set(pages)
    for name, page in pages.items():
        wanted = re.findall(ASKS, page)
        assert wanted, name
        assert [place for place in wanted if re.match(r"(https?:)?//", place)] == [], name
        assert "@import" not in page


def test_formulas_are_drawn_into_the_page(pages: dict[str, str]) -> None:
    assert pages["index"].count('<div class="formula"><svg role="img"') == 1
    text = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
    formulas = re.findall(r"\$\$(.+?)\$\$|\$(.+?)\$", text, flags=re.DOTALL)
    drawn = re.findall(r'<svg role="img" aria-label="([^"]+)"[^>]*><path d="M[^"]+"', pages["errata"])
    assert {html.unescape(one) for one in drawn} == {(block or inline).strip() for block, inline in formulas}
    assert len(drawn) > 200
    assert not re.search(r"\$|\\(frac|sigma|kappa)", re.sub(r'aria-label="[^"]*"', "", pages["errata"]))


def test_the_sidebar_starts_with_the_guide_and_ends_with_the_changelog(pages: dict[str, str]) -> None:
    sidebar = pages["index"].partition('<div class="sidebar-tree">')[2].partition("</aside>")[0]
    order = re.findall(r'toctree-l1[\w -]*"><a class="reference internal" href="([\w-]+)\.html"', sidebar)
    assert order[:2] == ["guide", "estimators"]
    assert order[-2:] == ["reference", "changelog"]
    assert set(order) == {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
