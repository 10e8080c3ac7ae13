"""
Sphinx extension that turns code spans with public names into links.

In Markdown pages, `Session.open` and `Filter(topic=)` become links if exactly one public name has this ending.
In docstrings and signatures, the same lookup replaces references that the Python domain cannot resolve.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.addnodes import pending_xref, pending_xref_condition
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

if TYPE_CHECKING:
    from docutils.nodes import Element, document
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

# A dotted name, optionally with the arguments of a call.
_NAME_PATTERN = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:\(.*\))?", re.DOTALL)
# The page, the id on the page, and the full name of an object.
_Target = tuple[str, str, str]


def _rank(name: str) -> tuple[bool, int]:
    """Return the sort key of a full name: asynchronous API first, then the shortest name."""
    return (name.startswith(("mama_structs.sync.", "mama_structs.adapters.mem0.")), name.count("."))


def index_names(env: BuildEnvironment) -> dict[str, _Target]:
    """Return the page and full name of each class, function and error, by its endings of one to three parts."""
    found: dict[str, list[str]] = {}
    objects = env.get_domain("py").objects  # type: ignore[attr-defined]
    for name, entry in objects.items():
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            ending = ".".join(parts[-length:])
            is_type = entry.objtype in ("class", "exception", "module") or name.count(".") < 2
            if length > 1 or is_type:
                found.setdefault(ending, []).append(name)
    targets = {}
    for ending, names in found.items():
        best = min(names, key=_rank)
        rivals = {objects[name][:2] for name in names if _rank(name) == _rank(best)}
        if len(rivals) == 1 or best == ending:
            targets[ending] = (objects[best].docname, objects[best].node_id, best)
    return targets


def _find_target(app: Sphinx, text: str) -> _Target | None:
    index = getattr(app.env, "_mama_structs_names", None)
    if index is None:
        index = app.env._mama_structs_names = index_names(app.env)  # type: ignore[attr-defined]
    matched = _NAME_PATTERN.fullmatch(text.removeprefix("~"))
    return None if matched is None else index.get(matched[1])


def link_code_spans(app: Sphinx, doctree: document, docname: str) -> None:
    """Replace the code spans of a Markdown page by links, except in headings and links."""
    if docname.startswith("reference/"):
        return
    for span in list(doctree.findall(nodes.literal)):
        if isinstance(span.parent, nodes.reference | nodes.title) or span.get("classes", []) not in ([], ["code"]):
            continue
        target = _find_target(app, span.astext())
        if target is not None:
            link = make_refnode(app.builder, docname, *target[:2], [span.deepcopy()], target[2])
            span.parent.replace(span, link)


class AmbiguousNames(SphinxPostTransform):
    """Give a short name of a docstring its full name, or make it plain code if it is not the name of a type."""

    # Runs before Sphinx resolves references, which would log a warning for each ambiguous name.
    default_priority = 5

    def run(self, **_options: Any) -> None:
        """Process the references of one page."""
        for node in list(self.document.findall(pending_xref)):
            if node.get("refdomain") != "py" or "." in node["reftarget"]:
                continue
            target = _find_target(self.app, node["reftarget"])
            if target is not None:
                node["reftarget"] = target[2]
            elif node.get("reftype") == "obj" and not any(isinstance(one, pending_xref_condition) for one in node):
                node.replace_self(node.children)
            else:
                # Look the name up in its module and class only.
                node.attributes.pop("refspecific", None)


def resolve_short_name(app: Sphinx, _env: BuildEnvironment, node: pending_xref, content: Element) -> Any:
    """Resolve a name of a docstring by its ending, and show a name without a page as plain code."""
    if node.get("refdomain") != "py":
        return None
    name = node["reftarget"].rpartition("mama_structs.")[2]
    last = name.rpartition(".")[2]
    target = _find_target(app, name) or (_find_target(app, last) if last[:1].isupper() else None)
    if target is None:
        return content
    return make_refnode(app.builder, node["refdoc"], *target[:2], content, target[2])


def forget_index(app: Sphinx, *_: Any) -> None:
    """Drop the index of names, which a previous build may have stored."""
    if hasattr(app.env, "_mama_structs_names"):
        del app.env._mama_structs_names


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.add_post_transform(AmbiguousNames)
    app.connect("env-updated", forget_index)
    app.connect("missing-reference", resolve_short_name)
    app.connect("doctree-resolved", link_code_spans)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
