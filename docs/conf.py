"""How the site is built: ``nox -s docs``, or ``sphinx-build -W docs build/site``. Warnings are errors."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "mama_structs"
html_title = "mama_structs"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
nitpicky = True

myst_heading_anchors = 3
myst_enable_extensions = ["attrs_block", "attrs_inline"]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
# Programs print more than Python: a block in no language is shown as it is.
highlight_language = "text"
pygments_style = "friendly"
pygments_dark_style = "github-dark"

# The pages that list others. Their lists are the navigation too, so that a page is listed in one place.
FRONTS = ("index", "tutorials", "how-to", "explanation", "reference")


def listed(docname: str, text: str) -> list[str]:
    """Return the pages that a page's lists link, in their order, each once."""
    rows = re.findall(r"^\* .*$", text, re.MULTILINE)
    links = [link for row in rows for link in re.findall(r"\]\(([^)#:]+)\.md\)", row)]
    folder = posixpath.dirname(docname)
    return list(dict.fromkeys(posixpath.normpath(posixpath.join(folder, link)) for link in links))


def add_navigation(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Put what a front page lists into the navigation, without a directive in the page, which GitHub would show."""
    if docname not in FRONTS:
        return
    parts = [*FRONTS[1:], "security", "changelog"] if docname == "index" else listed(docname, source[0])
    source[0] += "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(f"/{name}" for name in parts) + "\n```\n"


def setup(app: Sphinx) -> None:
    """Register what this file adds to Sphinx."""
    app.connect("source-read", add_navigation)
