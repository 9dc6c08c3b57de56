"""HTML pages that need no other file: their style and templates, and the helpers that fill them."""

from __future__ import annotations

import html
import io
from collections.abc import Iterable, Mapping
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

from adfs._version import __version__

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: Okabe and Ito's colours, which people with any kind of colour vision can distinguish. Black and yellow are
#: left out, since pages may be dark or light.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("", "6 3", "2 2", "8 2 2 2")


def line_styles(methods: Iterable[str], registry: Iterable[str]) -> list[tuple[str, str]]:
    """Return the colours and dashes of the lines in one figure, all different.

    A method's place in the registry decides its style, so it looks the same in every figure. A method that
    occurs again, with other parameters, keeps its colour, and dots follow its dashes.

    Examples
    --------
    >>> line_styles(["msda", "adfs", "adfs"], ["adfs", "msda"])
    [('#D55E00', ''), ('#0072B2', ''), ('#0072B2', '10 3 1 3')]
    """
    places = {name: place for place, name in enumerate(registry)}
    styles: list[tuple[str, str]] = []
    for method in methods:
        turn, color = divmod(places.setdefault(method, len(places)), len(COLORS))
        # Methods beyond the last pattern of dashes repeat the patterns, with dots added below.
        dashes = _DASHES[turn % len(_DASHES)]
        while (COLORS[color], dashes) in styles:
            dashes = f"{dashes or '10 3'} 1 3"
        styles.append((COLORS[color], dashes))
    return styles


def line_options(color: str, dashes: str) -> dict[str, Any]:
    """Return the style of a line as options of matplotlib."""
    pattern = (0, tuple(float(part) for part in dashes.split()))
    return {"color": color, "linestyle": pattern if dashes else "-"}


def on_any_page() -> dict[Any, Any]:
    """Return settings of matplotlib for a drawing that is legible on light and on dark pages."""
    parts = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    grey = "0.48"  # contrast 4.3 : 1 with white and with the dark pages
    return {
        **dict.fromkeys(parts, grey),
        "axes.facecolor": "none",
        "legend.frameon": False,
        "savefig.transparent": True,
        "svg.fonttype": "path",
        "svg.hashsalt": "adfs",  # the same figure gives the same file
    }


def svg_element(figure: Figure, label: str) -> str:
    """Return a figure as an SVG element for a page; the label is its description for screen readers."""
    import matplotlib as mpl

    text = io.StringIO()
    # Unless these entries are unset, matplotlib writes the date and addresses of web pages into the drawing.
    unset = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with mpl.rc_context(on_any_page()):
        figure.savefig(text, format="svg", metadata=unset)
    svg = text.getvalue()
    opening = f'<svg role="img" aria-label="{html.escape(label)}" class="figure" '
    return svg[svg.index("<svg") :].replace("<svg ", opening, 1)


def fill_page(name: str, **parts: str) -> str:
    """Return one of the package's pages, with its placeholders replaced."""
    folder = resources.files("adfs.pages")
    files = {ending: (folder / f"page.{ending}").read_text(encoding="utf-8") for ending in ("css", "js")}
    template = Template((folder / name).read_text(encoding="utf-8"))
    return template.substitute(files, version=__version__, **parts)


def html_table(cells: pd.DataFrame) -> str:
    """Return a table whose cells are HTML as an element."""
    import pandas as pd

    with pd.option_context("display.max_colwidth", None):  # pandas would cut long cells short
        return cells.to_html(escape=False, index=False, border=0, classes="times")


def html_facts(facts: Mapping[str, str]) -> str:
    """Return names and values as the entries of an HTML description list."""
    return "".join(f"<dt>{html.escape(key)}</dt><dd>{html.escape(text)}</dd>" for key, text in facts.items())


def number(value: float) -> str:
    """Return a number with three significant digits.

    Examples
    --------
    >>> number(123456.0), number(0.01234), number(1.5e9)
    ('123,000', '0.0123', '1.5e+09')
    """
    short = float(f"{value:.3g}")
    return f"{short:,.0f}" if 1000.0 <= short < 1e8 else f"{short:.3g}"
