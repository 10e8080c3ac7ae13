"""
Sphinx extension that generates the reference from the package.

A Markdown page contains a comment such as ``<!-- api: mama_structs.types -->`` or ``<!-- generated: settings -->``.
The extension replaces the comment with the documentation of the module, or with the generated text.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import inspect
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import attrs
from sphinx.ext.autodoc.mock import mock
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_PACKAGE = "mama_structs"
_API_COMMENT = re.compile(r"^<!-- api: ([\w.]+) -->$", re.MULTILINE)
_GENERATED_COMMENT = re.compile(r"^<!-- generated: ([\w-]+) -->$", re.MULTILINE)
_HELP_COLUMNS = "100"
# An assignment such as ``self.settings: Settings = settings`` in a constructor.
_ASSIGNMENT = re.compile(r"^\s+self\.([a-z]\w*)(?:: ([^=]+?))? = ", re.MULTILINE)
_LOGGER = logging.getLogger(__name__)
_PAGES = Path(__file__).parents[1] / "reference"


def find_public_names(module: ModuleType) -> list[str]:
    """Return ``__all__`` of a module, or the classes and functions that it defines."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isroutine(value))
        and getattr(value, "__module__", None) == module.__name__
        and hasattr(value, "__qualname__")
    )


@functools.cache
def load_public_objects(module_name: str) -> dict[str, Any]:
    """Import a module, and return its public objects by name. Log missing ones as warnings."""
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        _LOGGER.warning("%s cannot be imported: %s", module_name, error)
        return {}
    found = {}
    for name in find_public_names(module):
        try:
            found[name] = getattr(module, name)
        except (AttributeError, ImportError) as error:
            _LOGGER.warning("%s.%s cannot be loaded: %s", module_name, name, error)
    return found


def list_members(cls: type) -> list[str]:
    """Return the public members of a class that this package defines, in the order of their definition."""
    members: dict[str, None] = {}
    for parent in cls.__mro__:
        if not parent.__module__.startswith(_PACKAGE):
            continue
        fields = [field.name for field in attrs.fields(parent)] if "__attrs_attrs__" in vars(parent) else []
        names = (*fields, *vars(parent).get("__annotations__", ()), *vars(parent))
        members |= dict.fromkeys(name for name in names if not name.startswith("_"))
    return list(members)


def find_instance_attributes(cls: type) -> dict[str, str]:
    """Return the public attributes that autodoc does not find, because only constructors set them."""
    attributes: dict[str, str] = {}
    known = set(list_members(cls))
    for parent in _find_async_class(cls).__mro__:
        if not parent.__module__.startswith(_PACKAGE):
            continue
        found = dict(vars(parent).get("__annotations__", {}))
        constructor = vars(parent).get("__init__")
        if inspect.isfunction(constructor):
            with contextlib.suppress(OSError):
                found |= dict(_ASSIGNMENT.findall(inspect.getsource(constructor)))
        new = {name: str(kind) for name, kind in found.items() if not name.startswith("_") and name not in known}
        attributes = new | attributes
    return attributes


def _find_async_class(cls: type) -> type:
    """Return the async class from which a class of `mama_structs.sync` is generated, or the class itself."""
    if cls.__module__ != f"{_PACKAGE}.sync":
        return cls
    for module_name in (_PACKAGE, f"{_PACKAGE}.types"):
        found = load_public_objects(module_name).get(cls.__name__)
        if inspect.isclass(found):
            return found
    return cls


@functools.cache
def read_documented_modules() -> dict[str, str]:
    """Return the documented modules, each with the name of its page."""
    return {
        module: page.stem
        for page in sorted(_PAGES.glob("*.md"))
        for module in _API_COMMENT.findall(page.read_text(encoding="utf-8"))
    }


@functools.cache
def _find_homes() -> dict[int, str]:
    """Return the full name under which each public object is documented, by the id of the object."""
    homes: dict[int, str] = {}
    # The top-level package comes first, so that its classes are documented there.
    for module_name in sorted(read_documented_modules(), key=lambda name: (name != _PACKAGE, name.count("."), name)):
        for name, value in load_public_objects(module_name).items():
            if inspect.isclass(value) or inspect.isroutine(value):
                homes.setdefault(id(value), f"{module_name}.{name}")
    return homes


def _has_documented_bases(cls: type) -> bool:
    """Return False if a base class is internal to this package, so that no page describes it."""
    return all(not base.__module__.startswith(_PACKAGE) or id(base) in _find_homes() for base in cls.__bases__)


def _describe_type(value: object) -> str:
    """Return the name of a constant's type, or the text of a type alias."""
    if type(value).__module__ in ("typing", "types", "collections.abc"):
        return str(value).replace("typing.", "")
    return type(value).__name__


def render_module(module_name: str) -> str:
    """Return the autodoc directives for a module, as a MyST block."""
    lines = [f".. automodule:: {module_name}", "   :no-members:", ""]
    elsewhere = []
    for name, value in load_public_objects(module_name).items():
        full_name = f"{module_name}.{name}"
        if isinstance(value, ModuleType):
            continue
        home = _find_homes().get(id(value), full_name)
        if home != full_name:
            elsewhere.append(home)
        elif inspect.isclass(value):
            kind = "exception" if issubclass(value, BaseException) else "class"
            lines += [f".. auto{kind}:: {full_name}", "   :undoc-members:"]
            if _has_documented_bases(value):
                lines.append("   :show-inheritance:")
            if members := list_members(value):
                lines.append(f"   :members: {', '.join(members)}")
            lines.append("")
            for attribute, annotation in find_instance_attributes(value).items():
                lines.append(f"   .. py:attribute:: {attribute}")
                lines += [f"      :type: {annotation}", ""] if annotation else [""]
        elif inspect.isroutine(value):
            lines += [f".. autofunction:: {full_name}", ""]
        else:
            lines += [f".. py:data:: {name}", f"   :module: {module_name}", f"   :type: {_describe_type(value)}", ""]
    if elsewhere:
        lines += ["Documented on other pages: " + ", ".join(f":py:obj:`~{name}`" for name in elsewhere) + ".", ""]
    return "\n".join(("```{eval-rst}", *lines, "```"))


def _escape_cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _to_markdown(text: str) -> str:
    """Convert the reStructuredText code spans of a docstring to Markdown."""
    return re.sub(r"``(.+?)``", r"`\1`", text)


def _render_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(map(_escape_cell, row))} |" for row in lines)


def _read_arguments(docstring: str) -> dict[str, str]:
    """Return the descriptions in the section ``Args:`` of a docstring."""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", inspect.cleandoc(docstring), re.MULTILINE | re.DOTALL)
    found = re.findall(
        r"^ {4}(\w+)(?: \(.*?\))?: (.*?)(?=^ {4}\S|\Z)", section[1] if section else "", re.MULTILINE | re.DOTALL
    )
    return {name: " ".join(text.split()) for name, text in found}


def _format_default(field: Any) -> str:
    if not isinstance(field.default, attrs.Factory):  # type: ignore[arg-type]
        return f"`{field.default!r}`"
    value = field.default.factory()
    return f"`{value!r}`" if isinstance(value, tuple | frozenset | dict | list) else f"`{type(value).__name__}()`"


def render_settings() -> str:
    """Return one table per section of `Settings`, with variables and defaults."""
    from mama_structs.settings import ENV_PREFIX, Settings

    parts = []
    for section in attrs.fields(Settings):
        cls = section.default.factory
        descriptions = _read_arguments(cls.__doc__ or "")
        rows = []
        for field in attrs.fields(cls):
            default = "" if isinstance(field.default, attrs.Factory) else field.default
            has_variable = field.metadata.get("like", default) is not None
            variable = f"`{ENV_PREFIX}{section.name.upper()}_{field.name.upper()}`" if has_variable else "only in code"
            description = _to_markdown(descriptions.get(field.name, "")).replace("*", "`")
            rows.append((f"`{field.name}`", _format_default(field), variable, description))
        table = _render_table(("setting", "default", "variable", "meaning"), rows)
        parts.append(f"## Section `{section.name}`\n\nClass `{cls.__name__}`.\n\n{table}")
    return "\n\n".join(parts)


def _walk_errors(cls: type, depth: int = 0) -> Iterator[tuple[int, type]]:
    yield depth, cls
    for child in sorted(cls.__subclasses__(), key=lambda one: one.__name__):
        if child.__module__ == f"{_PACKAGE}.errors":
            yield from _walk_errors(child, depth + 1)


def render_errors() -> str:
    """Return the tree of all errors, with their types and attributes."""
    from mama_structs.errors import MamaStructsError

    rows = []
    for depth, cls in dict.fromkeys(_walk_errors(MamaStructsError)):
        own = [name for name in vars(cls).get("__annotations__", {}) if name not in ("type", "_default_hint")]
        own = [name for name in own if not name.startswith("_")]
        builtin = [base.__name__ for base in cls.__bases__ if base.__module__ == "builtins" and base is not Exception]
        indent = "\u2003" * depth
        rows.append((f"{indent}`{cls.__name__}`", f"`{cls.type}`", " ".join(f"`{one}`" for one in own),
                     " ".join(f"`{one}`" for one in builtin)))  # fmt: skip
    return _render_table(("error", "type", "attributes", "also a"), rows)


async def _list_tools() -> list[Any]:
    from mama_structs import HashEmbedder, Session, Settings, ToolSettings

    with tempfile.TemporaryDirectory() as folder:
        allowed = Settings(tools=ToolSettings(forget=True))
        options: dict[str, Any] = {"structs": "http://localhost:1317", "settings": allowed}
        async with Session.open(files_root=folder, embedder=HashEmbedder(), **options) as session:
            return list(session.tools.values())


def _render_type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_render_type(one) for one in schema["anyOf"] if one.get("type") != "null")
    if schema.get("type") == "array":
        return f"array of {_render_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def render_model_tools() -> str:
    """Return each tool that a session can offer to a model, with its description and arguments."""
    parts: list[str] = []
    groups: dict[str, list[Any]] = {}
    for tool in asyncio.run(_list_tools()):
        group = "Structs chain" if tool.name.startswith("structs_") else "Memories" if "/" in tool.name else "Texts"
        groups.setdefault(group, []).append(tool)
    for group in sorted(groups):
        parts.append(f"## {group}")
        for tool in groups[group]:
            required = tool.input_schema.get("required", [])
            rows = [
                (
                    f"`{name}`" + (" (required)" if name in required else ""),
                    _render_type(schema),
                    f"`{schema['default']}`" if "default" in schema else "",
                    schema.get("description", "").replace("<", "\\<"),
                )
                for name, schema in tool.input_schema["properties"].items()
            ]
            description = tool.description.replace("<", "\\<")
            parts.append(f"### `{tool.name}`\n\n{description}")
            if rows:
                parts.append(_render_table(("argument", "type", "default", "meaning"), rows))
    return "\n\n".join(parts)


def render_command_line() -> str:
    """Return the help text of each command, as argparse prints it."""
    from mama_structs.cli.command_table import create_parser

    with _columns(_HELP_COLUMNS):
        parser, commands = create_parser()
        parts = [f"```text\n{parser.format_help().strip()}\n```"]
        for path in sorted(commands):
            parts.append(f"## mama-structs {path}\n\n```text\n{commands[path].format_help().strip()}\n```")
    return "\n\n".join(parts)


@contextlib.contextmanager
def _columns(count: str) -> Iterator[None]:
    """Set the terminal width that argparse reads, and plain text without colours."""
    import os

    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
    os.environ |= {"COLUMNS": count, "NO_COLOR": "1"}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


_RENDERERS: dict[str, Callable[[], str]] = {
    "settings": render_settings,
    "errors": render_errors,
    "model-tools": render_model_tools,
    "command-line": render_command_line,
}


def insert_reference(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace the comments of a reference page."""
    if not docname.startswith("reference/"):
        return
    with mock(app.config.autodoc_mock_imports):
        text = _GENERATED_COMMENT.sub(lambda found: _RENDERERS[found[1]](), source[0])
        source[0] = _API_COMMENT.sub(lambda found: render_module(found[1]), text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("source-read", insert_reference)
    return {"parallel_read_safe": True}


__all__ = ["find_public_names", "list_members", "load_public_objects", "read_documented_modules", "setup"]
