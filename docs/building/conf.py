"""Sphinx' configuration of the documentation site; `docs.building.build` runs it."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pygments.lexers.jvm import ClojureLexer
from sphinx.application import Sphinx

project = "shaketable"
copyright = "the authors of shaketable"  # noqa: A001 - Sphinx' own name
# Of the pages' own checkout: what is installed may be of another day.
_PROJECT = Path(__file__).parents[2] / "pyproject.toml"
release = version = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["version"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
highlight_language = "none"
default_role = "code"  # docstrings quote code as Markdown does
nitpicky = False

smartquotes_action = "qe"  # two hyphens stay: they begin options
myst_heading_anchors = 5

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_google_docstring = True

html_theme = "furo"
html_title = f"shaketable {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False


def setup(app: Sphinx) -> None:
    """Have EDN, which Pygments has no lexer for, shown in the colours of Clojure."""
    app.add_lexer("edn", ClojureLexer)
