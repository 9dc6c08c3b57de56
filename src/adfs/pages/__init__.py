"""Pages that need nothing else: their style and templates, and how they are filled in."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from importlib import resources
from string import Template

from adfs._version import __version__

__all__ = ["COLORS", "fill_page", "html_facts", "html_table", "number"]

#: Okabe and Ito's colours, told apart with every kind of colour vision; black and yellow are left out, since
#: pages may be dark or light.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


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
