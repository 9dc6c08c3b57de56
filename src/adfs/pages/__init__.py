"""Pages that need nothing else: their style and templates, and how they are filled in."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from importlib import resources
from string import Template
from typing import Any
from zlib import crc32

from adfs._version import __version__

__all__ = [
    "COLORS",
    "METHOD_STYLES",
    "fill_page",
    "html_facts",
    "html_table",
    "line_options",
    "line_styles",
    "number",
    "on_any_page",
]

#: Okabe and Ito's colours, told apart with every kind of colour vision; black and yellow are left out, since
#: pages may be dark or light.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_BLUE, _RED, _GREEN, _PINK, _ORANGE, _SKY = COLORS
#: Method -> the colour and the dashes of its line, the same on every page and in every figure.
METHOD_STYLES = {
    "adfs": (_BLUE, ""),
    "adfs-block": (_RED, ""),
    "msda": (_GREEN, ""),
    "point-saga": (_PINK, ""),
    "esdacd": (_ORANGE, ""),
    "ns-adfs": (_SKY, ""),
    "lbfgs": (_SKY, "6 3"),
    "newton": (_PINK, "6 3"),
    "qning": (_GREEN, "6 3"),
    "dsba": (_ORANGE, "6 3"),
    "dagd": (_BLUE, "6 3"),
    "extra": (_RED, "6 3"),
    "agd": (_BLUE, "2 2"),
    "apcg": (_GREEN, "2 2"),
    "interior-point": (_PINK, "2 2"),
}


def line_styles(methods: Iterable[str]) -> list[tuple[str, str]]:
    """Return the colours and dashes of the lines in one figure, all different.

    A method has the style of `METHOD_STYLES`, or one made from its name. When it comes again, with other
    constants, it keeps its colour, and dots follow its dashes.

    Examples
    --------
    >>> line_styles(["adfs", "adfs", "lbfgs"])
    [('#0072B2', ''), ('#0072B2', '10 3 1 3'), ('#56B4E9', '6 3')]
    """
    styles: list[tuple[str, str]] = []
    for method in methods:
        other = (COLORS[crc32(method.encode()) % len(COLORS)], "1 2")
        color, dashes = METHOD_STYLES.get(method, other)
        style = color, dashes
        while style in styles:
            style = color, f"{style[1] or '10 3'} 1 3"
        styles.append(style)
    return styles


def line_options(color: str, dashes: str) -> dict[str, Any]:
    """Return a line's style as matplotlib takes it."""
    pattern = (0, tuple(float(part) for part in dashes.split()))
    return {"color": color, "linestyle": pattern if dashes else "-"}


def on_any_page() -> dict[Any, Any]:
    """Return settings of matplotlib for a drawing that reads well on light and on dark pages."""
    parts = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    grey = "0.48"  # contrast 4.3 : 1 with white and with the dark pages
    return {
        **dict.fromkeys(parts, grey),
        "axes.facecolor": "none",
        "legend.frameon": False,
        "savefig.transparent": True,
        "svg.fonttype": "path",
        "svg.hashsalt": "adfs",
    }


def fill_page(name: str, **parts: str) -> str:
    """Return a page of the package's own, filled in."""
    folder = resources.files("adfs.pages")
    files = {ending: (folder / f"page.{ending}").read_text(encoding="utf-8") for ending in ("css", "js")}
    return Template((folder / name).read_text(encoding="utf-8")).substitute(
        files, version=__version__, **parts
    )


def html_table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return an HTML table of text; rows are made of cells, ``<td>`` elements."""
    head = "".join(f"<th>{html.escape(one)}</th>" for one in heads)
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return f'<table class="times"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def html_facts(facts: Mapping[str, str]) -> str:
    """Return what is told of something, as the entries of an HTML list."""
    return "".join(f"<dt>{html.escape(key)}</dt><dd>{html.escape(text)}</dd>" for key, text in facts.items())


def number(value: float) -> str:
    """Return a number with three digits, for people.

    Examples
    --------
    >>> number(123456.0), number(0.01234), number(1.5e9)
    ('123,000', '0.0123', '1.5e+09')
    """
    short = float(f"{value:.3g}")
    return f"{short:,.0f}" if 1000.0 <= short < 1e8 else f"{short:.3g}"
