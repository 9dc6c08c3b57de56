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
autodoc_default_options = {"ignore-module-all": True, "member-order": "bysource"}
# The docstrings give types and shapes.
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_rtype = False
# A record's fields are told in its docstring, and found by autodoc again.
napoleon_use_ivar = True
