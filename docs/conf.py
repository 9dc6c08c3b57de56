from __future__ import annotations

from adfs import __version__

project = "adfs"
author = "The adfs developers"
copyright = "the adfs developers"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.apidoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
# A single back-quoted word in a docstring is a name in the code.
default_role = "code"

html_theme = "furo"
html_title = f"adfs {version}"

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
        "automodule_options": {"members", "show-inheritance"},
    }
]
# A name is described where it is defined, not again in each package that passes it on.
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


def setup(app: object) -> None:
    app.connect("autodoc-process-docstring", _process, priority=1)
