"""Configuration of the documentation site. Build it with ``nox -s docs`` or ``sphinx-build -W docs build/site``."""

from __future__ import annotations

import importlib.util
import logging
import posixpath
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "mama-structs"
html_title = "mama-structs"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "reference_pages", "name_links"]
exclude_patterns = ["_build", "_extensions"]
nitpicky = True

# Docstrings use single backticks for names. `name_links` leaves names without a page as plain code.
default_role = "py:obj"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
# Modules that adapters, embedders and tests import. Those that are not installed are mocked.
_OPTIONAL_MODULES = (
    *("agent_framework", "anthropic", "asyncpg", "claude_agent_sdk", "cohere", "google", "google.adk", "haystack"),
    *("google.genai", "hnswlib", "hypothesis", "langchain", "langchain_core", "langgraph", "mcp", "onnxruntime"),
    *("openai", "agents"),
    *("opentelemetry", "pydantic", "pydantic_ai", "pydantic_ai_harness", "pytest", "sentence_transformers"),
    *("starlette", "tokenizers", "uvicorn", "voyageai", "yaml"),
)


def _is_missing(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is None
    except ModuleNotFoundError:
        return True


autodoc_mock_imports = [name for name in _OPTIONAL_MODULES if _is_missing(name)]
# A mocked class has no documentation that could be inherited.
logging.getLogger("sphinx.ext.autodoc.mock").setLevel(logging.ERROR)

myst_heading_anchors = 3
myst_enable_extensions = ["attrs_block", "attrs_inline"]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
# Most blocks that are not Python are program output.
highlight_language = "text"
pygments_style = "friendly"
pygments_dark_style = "github-dark"


def list_groups(docname: str, text: str) -> list[tuple[str, list[str]]]:
    """Return the headings of a page, each with the pages that its bullet list links, deduplicated."""
    groups: list[tuple[str, list[str]]] = []
    folder = posixpath.dirname(docname)
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        rows = re.findall(r"^\* .*$", body, re.MULTILINE)
        links = [link for row in rows for link in re.findall(r"\]\(([^)#:]+)\.md\)", row)]
        groups.append((heading.strip(), [posixpath.normpath(posixpath.join(folder, one)) for one in links]))
    return [(heading, list(dict.fromkeys(pages))) for heading, pages in groups if pages]


def add_navigation(_app: Sphinx, docname: str, source: list[str]) -> None:
    """
    Add hidden toctrees for the lists of the front page and of the reference.

    The pages contain no directives, so that they are readable on the hosting platform.
    """
    if docname in ("index", "reference/index"):
        for heading, pages in list_groups(docname, source[0]):
            caption = f":caption: {heading}\n" if docname == "index" else ""
            names = "\n".join(f"/{name}" for name in pages)
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n{caption}\n{names}\n```\n"
    elif docname.startswith("internals/"):
        # CONTRIBUTING.md links the internals. They are not part of the navigation.
        source[0] = f"---\norphan: true\n---\n\n{source[0]}"


def setup(app: Sphinx) -> None:
    """Register the navigation."""
    app.connect("source-read", add_navigation)
