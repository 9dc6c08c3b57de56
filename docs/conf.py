from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path

from docutils.nodes import SkipNode
from latex2mathml.converter import convert
from sphinx.util import logging
from sphinx.util.osutil import FileAvoidWrite

from adfs import __version__

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
exclude_patterns = ["_build"]
# A single back-quoted word in a docstring is a name in the code.
default_role = "code"

html_theme = "furo"
html_title = f"adfs {version}"
html_static_path = ["style"]
html_css_files = ["formulas.css"]
# Formulas are MathML in the page itself: browsers draw it, and no page asks another server for anything.
html_math_renderer = "mathml"

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
    "schedule": "Schedules",
    "experiments": "Comparisons",
    "data": "Files",
    "errors": "Errors",
}
# A module's page describes what the module defines, whatever it passes on.
autodoc_default_options = {
    "ignore-module-all": True,
    "member-order": "bysource",
    # What scikit-learn adds by itself, with references into its own pages.
    "exclude-members": "set_fit_request, set_score_request, set_predict_request",
}
# Words in a type such as "(n_nodes, d)" are shapes, not references to one of the many n_nodes.
suppress_warnings = ["ref.python"]
# The docstrings give types and shapes.
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_rtype = False
# A record's fields are told in its docstring, and found by autodoc again.
napoleon_use_ivar = True


def _escape_bars(line: str) -> str:
    """Show |E| and |u − b| as they are: reStructuredText would take the bars for a substitution."""
    if line.lstrip().startswith((">>>", "...")):
        return line
    parts = line.split("``")
    return "``".join(part if k % 2 else part.replace("|", "\\|") for k, part in enumerate(parts))


def _process(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    lines[:] = [_escape_bars(line) for line in lines]


def _write_reference(app: object) -> None:
    """Write a page of the public names of each package."""
    folder = Path(app.srcdir) / "reference"
    folder.mkdir(exist_ok=True)
    for package, title in PUBLIC.items():
        module = import_module(f"adfs.{package}")
        lines = [title, "=" * len(title), "", module.__doc__.splitlines()[0], ""]
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.ismodule(found):
                continue
            full = f"adfs.{package}.{name}"
            if inspect.isclass(found):
                lines += [f".. autoclass:: {full}", "   :members:", "   :show-inheritance:", ""]
            elif callable(found):
                lines += [f".. autofunction:: {full}", ""]
            else:  # a registry
                known = ", ".join(f"``{key}``" for key in sorted(found))
                lines += [f".. py:data:: {full}", "", f"   By name: {known}.", ""]
        with FileAvoidWrite(folder / f"{package}.rst") as page:
            page.write("\n".join(lines))


def _mathml(node: object, display: str) -> str:
    """Return a formula as MathML; what the converter does not know is a warning, an error of the build."""
    text = convert(node.astext(), display=display)
    if "\\" in text:
        logging.getLogger(__name__).warning("unknown LaTeX in a formula: %s", node.astext(), location=node)
    return text


def _inline_formula(translator: object, node: object) -> None:
    translator.body.append(_mathml(node, "inline"))
    raise SkipNode


def _formula(translator: object, node: object) -> None:
    translator.body.append(f'<div class="formula">{_mathml(node, "block")}</div>')
    raise SkipNode


def setup(app: object) -> None:
    app.connect("builder-inited", _write_reference)
    app.connect("autodoc-process-docstring", _process, priority=1)
    app.add_html_math_renderer("mathml", (_inline_formula, None), (_formula, None))
