from __future__ import annotations

import contextlib
import html
import inspect
import io
import os
import re
import sys
from importlib import import_module
from pathlib import Path
from unittest import mock

import numpy as np
from docutils import nodes
from docutils.nodes import SkipNode
from docutils.parsers.rst import Directive
from matplotlib.font_manager import FontProperties
from matplotlib.mathtext import MathTextParser
from matplotlib.textpath import TextPath
from sphinx.util import logging
from sphinx.util.osutil import FileAvoidWrite

from adfs import __version__
from adfs.cli import main

sys.path.insert(0, str(Path(__file__).parent))
from kept import RESULTS, kept_figure
from pictures import write_pictures

project = "adfs"
author = "The adfs developers"
copyright = "the adfs developers"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.apidoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build", "tables.md"]
# A single back-quoted word in a docstring is a name in the code.
default_role = "code"

html_theme = "furo"
html_title = f"adfs {version}"
html_static_path = ["style"]
html_css_files = ["formulas.css", "pictures.css"]
# Formulas are drawn into the page: no page asks another server for anything, and no reader needs a font.
html_math_renderer = "outlines"

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# The pages of the interface are written from the sources at each build: a new module appears by itself.
apidoc_modules = [
    {
        "path": "../src/adfs",
        "destination": "api",
        "exclude_patterns": ["**/__main__.py", "**/_version.py", "**/cli/**"],
        "separate_modules": True,
        "module_first": True,
        # Links and the index lead to the public names (below); these pages are for those who change a module.
        "automodule_options": {"members", "show-inheritance", "no-index"},
    }
]
# Package -> the title of the page of its public names, those in its `__all__`; docs/reference.md lists them.
PUBLIC = {
    "estimators": "Estimators",
    "problem": "Problems and losses",
    "network": "Networks",
    "theory": "Parameters and theorems",
    "runtimes": "Runs",
    "runtimes.mpi": "Runs on a cluster",
    "algorithms": "Methods",
    "stages": "Stages",
    "schedule": "Schedules",
    "engines": "Engines",
    "experiments": "Comparisons",
    "planning": "The planner",
    "data": "Files",
    "errors": "Errors",
}
# A module's page describes what the module defines, whatever it passes on.
autodoc_default_options = {
    "ignore-module-all": True,
    "member-order": "bysource",
}
# Words in a type such as "(n_nodes, d)" are shapes, not references to one of the many n_nodes.
suppress_warnings = ["ref.python"]
# The docstrings give types and shapes.
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_rtype = False
# A record's docstring describes its fields; autodoc would list them a second time.
napoleon_use_ivar = True


def _escape_signs(line: str) -> str:
    """Show |E|, F* and (N, *shape) as they are: reStructuredText has its own ideas of bars and stars."""
    if line.lstrip().startswith((">>>", "...")):
        return line
    parts = line.split("``")
    for k in range(0, len(parts), 2):
        parts[k] = re.sub(r"(?<=[ℓfFθ])\*(?![\w*])|(?<=, )\*(?=\w+\))", r"\\*", parts[k].replace("|", "\\|"))
    return "``".join(parts)


def _process(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    lines[:] = [_escape_signs(line) for line in lines]


def _draw_pictures(app: object) -> None:
    write_pictures(Path(app.srcdir) / "pictures")


def _write_tables(app: object) -> None:
    """Write the kept tables one below the other, for the page of benchmarks; some have pages of their own."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(RESULTS.glob("*.md"))]
    elsewhere = ("# The paper", "# Who wins", "# Forms", "# Stages", "# ADFS and")
    with FileAvoidWrite(Path(app.srcdir) / "tables.md") as page:
        page.write("\n".join(f"#{text}" for text in texts if not text.startswith(elsewhere)))


def _write_reference(app: object) -> None:
    """Write a page of the public names of each package."""
    folder = Path(app.srcdir) / "reference"
    folder.mkdir(exist_ok=True)
    described: set[int] = set()
    for package, title in PUBLIC.items():
        module = import_module(f"adfs.{package}")
        lines = [title, "=" * len(title), "", module.__doc__.splitlines()[0], ""]
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.ismodule(found):
                continue
            full = f"adfs.{package}.{name}"
            # An object has one entry in the index: names that a package itself defines are on its API page.
            own = getattr(found, "__module__", "") == module.__name__
            own = own or re.search(rf"^{name}\b", inspect.getsource(module), flags=re.MULTILINE) is not None
            again = ["   :no-index:"] if own or id(found) in described else []
            described.add(id(found))
            if inspect.isclass(found):
                lines += [f".. autoclass:: {full}", *again, "   :members:", "   :show-inheritance:", ""]
            elif callable(found):
                lines += [f".. autofunction:: {full}", *again, ""]
            else:  # a registry
                known = ", ".join(f"``{key}``" for key in sorted(found))
                lines += [f".. py:data:: {full}", *again, "", f"   By name: {known}.", ""]
        with FileAvoidWrite(folder / f"{package}.rst") as page:
            page.write("\n".join(lines))


# LaTeX that matplotlib's own reader of formulas writes otherwise.
_OTHERWISE = (
    (r"\\(ge|le)(?![a-zA-Z])", r"\\\1q"),
    (r"\\sqrt\s*(\\[a-zA-Z]+|\w)", r"\\sqrt{\1}"),
    (r"\\frac(\w)(\w)", r"\\frac{\1}{\2}"),
    (r"\\[bB]ig([(\[])", r"\\left\1"),
    (r"\\[bB]ig([)\]])", r"\\right\1"),
    (r"\^([+*])", r"^{\1}"),  # not an operator between what stands before and after; nor is the next
    (r"\\top(?![a-zA-Z])", r"{\\mathsf{T}}"),
    (r"\s+", " "),
)
# Units of the outlines in the height of the letters around; a little more makes x as high as they have it.
_EM = 90.0


def _formula_svg(node: object, fraction: str = "frac") -> str:
    """Return a formula as SVG outlines, its baseline on that of the text around it."""
    source = text = node.astext().strip()
    for pattern, instead in _OTHERWISE:
        text = re.sub(pattern, instead, text)
    text = text.replace("\\frac", f"\\{fraction}")
    font = FontProperties(size=100, math_fontfamily="stix")
    try:
        width, height, depth, *_ = MathTextParser("path").parse(f"${text}$", 72, font)
        outline = TextPath((0, 0), f"${text}$", prop=font)
    except ValueError as error:
        logging.getLogger(__name__).warning("cannot draw %s: %s", source, error, location=node)
        return ""
    letters = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}  # what Path calls its codes
    strokes = []
    for points, code in outline.iter_segments(simplify=False, curves=True):
        places = points * np.tile([1, -1], len(points) // 2)
        strokes.append(letters[code] + ("" if code == 79 else " ".join(f"{place:.0f}" for place in places)))
    box = f"0 {depth - height:.0f} {width:.0f} {height:.0f}"
    return (
        f'<svg role="img" aria-label="{html.escape(source)}" viewBox="{box}" '
        f'style="width: {width / _EM:.2f}em; vertical-align: {-depth / _EM:.2f}em" fill="currentColor">'
        f'<path d="{"".join(strokes)}"/></svg>'
    )


def _inline_formula(translator: object, node: object) -> None:
    translator.body.append(_formula_svg(node))
    raise SkipNode


def _formula(translator: object, node: object) -> None:
    translator.body.append(f'<div class="formula">{_formula_svg(node, "dfrac")}</div>')
    raise SkipNode


def _kept(name, rawtext, text, lineno, inliner, options=None, content=()):
    """Write a figure of ``benchmarks/results``, as in {kept}`solvers; a9a, C = 1; ratio`."""
    try:
        return [nodes.inline(rawtext, kept_figure(text), classes=["kept"])], []
    except KeyError as error:
        return [], [inliner.reporter.error(error.args[0], line=lineno)]


class _Help(Directive):
    """Write what ``adfs COMMAND --help`` says."""

    optional_arguments = 1

    def run(self):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), mock.patch.dict(os.environ, COLUMNS="90"):
            main([*self.arguments, "--help"])
        text = said.getvalue().strip()
        return [nodes.literal_block(text, text, language="text")]


def _skip(app, what, name, found, skip, options):
    """Leave out what scikit-learn adds by itself, with references into its own pages."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def _without_dead_links(app, pagename, templatename, context, doctree):
    """Leave out links from sources to modules' pages, which have no anchors, and to Python's own types."""
    if pagename.startswith("_modules/"):
        dead = r'<a class="viewcode-back".*?</a>\n?|<li><a href="builtins.html">.*?</li>\n?'
        context["body"] = re.sub(dead, "", context["body"])


def setup(app: object) -> None:
    app.add_role("kept", _kept)
    app.add_directive("adfs-help", _Help)
    app.connect("builder-inited", _write_reference)
    app.connect("builder-inited", _draw_pictures)
    app.connect("builder-inited", _write_tables)
    app.connect("autodoc-process-docstring", _process, priority=1)
    app.connect("autodoc-skip-member", _skip)
    app.connect("html-page-context", _without_dead_links)
    app.add_html_math_renderer("outlines", (_inline_formula, None), (_formula, None))
