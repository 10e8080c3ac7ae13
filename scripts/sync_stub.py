"""
Write the type stubs of synchronous proxies, such as ``mama_structs/sync/__init__.pyi``.

Run ``python scripts/sync_stub.py`` after a change of a public signature. A test compares the stubs with the current
output.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import itertools
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import mama_structs
from mama_structs import admin as async_admin
from mama_structs import sync
from mama_structs._internal.hints.call_hints import is_hint
from mama_structs._internal.sync_proxy import SyncProxy
from mama_structs.adapters import mem0

MODULES = (sync, sync.admin, mem0)
_HEAD = '"""Types of `{}`; written by ``scripts/sync_stub.py``, never by hand."""\n'
# Maps a type in the annotations of async members to the type that the proxy has instead.
_PROXY_TYPES = {
    "AsyncIterator": "Iterator",
    "HasRefs": "Session",
    "ReferenceDecorator": "SyncReferenceDecorator",
    "SessionOpening": "Session",
}
# Modules of the proxy types that the module of the async type does not define.
_PROXY_TYPE_HOMES = {"SyncReferenceDecorator": "mama_structs.sync.reference_decorator"}
_CONSTRUCTED = ("Memory", "RefStore", "Resolver")
_WIDTH = 120
_STUBBED_OPERATORS = ("__enter__", "__exit__", "__iter__", "__len__", "__contains__", "__getitem__")


class _Annotations(ast.NodeTransformer):
    """
    Rewrites annotations for a stub that defines the names in *own*, and collects the imports of the stub.

    *members* are the names in the scope of the annotations, such as the methods of a class. They hide builtins.
    """

    def __init__(
        self, module: str, own: list[str], needed: dict[str, set[str]], members: frozenset[str] = frozenset()
    ) -> None:
        self._module = module
        self._own = own
        self._needed = needed
        self._members = members
        self._homes = _imports(module)
        self._aliases = _aliases(module)

    def __call__(self, annotation: str) -> str:
        return ast.unparse(self.visit(ast.parse(annotation, mode="eval")))

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == "mama_structs":
            return self._name(node.attr, getattr(mama_structs, node.attr).__module__)
        return ast.Attribute(self.visit(node.value), node.attr, node.ctx)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        home, name = self._homes.get(node.id, (self._module, node.id))
        if name == "":
            self._needed[home] = set()
            return node
        if node.id in self._aliases and node.id not in self._homes:
            # The alias names an async class, so the stub contains its value with the proxy class.
            return self.visit(self._aliases[node.id])
        if name not in vars(builtins):
            return self._name(name, home)
        if name not in self._members:
            return node
        self._needed["builtins"] = set()
        return ast.Attribute(ast.Name("builtins"), name, ast.Load())

    def _name(self, name: str, home: str) -> ast.Name:
        name = _PROXY_TYPES.get(name, name)
        home = _PROXY_TYPE_HOMES.get(name, home)
        if name not in self._own:
            self._needed[sync.__name__ if name in sync.__all__ else home].add(name)
        return ast.Name(name)


@functools.cache
def _imports(module: str) -> dict[str, tuple[str, str]]:
    """Map each name that a module imports to its source module and its name in the source module."""
    homes: dict[str, tuple[str, str]] = {}
    for node in ast.walk(ast.parse(inspect.getsource(sys.modules[module]))):
        if isinstance(node, ast.ImportFrom) and node.module:
            homes |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            homes |= {alias.name: (alias.name, "") for alias in node.names}
    return homes


@functools.cache
def _aliases(module: str) -> dict[str, ast.expr]:
    """Map the type aliases of a module that mention an async class with a proxy to their values."""
    found: dict[str, ast.expr] = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            names = {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
            if "TypeAlias" in ast.unparse(node.annotation) and not names.isdisjoint(sync.__all__):
                found[node.target.id] = node.value
    return found


def target(module: ModuleType) -> Path:
    """Return the path of a module's stub."""
    return Path(str(module.__file__)).with_suffix(".pyi")


def stub(module: ModuleType) -> str:
    """Return the content of the stub."""
    needed: dict[str, set[str]] = defaultdict(set)
    own: list[str] = module.__all__
    parts = []
    for name in own:
        member = vars(module)[name]
        if inspect.isclass(member) and issubclass(member, SyncProxy):
            parts.append(f"class {name}:\n" + "".join(_members(member, own, needed)))
        elif isinstance(member, ModuleType):
            needed[module.__name__].add(name)
        elif module is sync.admin:
            parts.append(
                _method(name, member, _Annotations(async_admin.__name__, own, needed, frozenset(own)), indent=0)
            )
        else:
            needed[_home(member)].add(name)
    every = sorted(name for names in needed.values() for name in names)
    if twice := {name for name, after in itertools.pairwise(every) if name == after}:
        raise ValueError(f"a stub defines each name once, and these refer to two objects: {', '.join(sorted(twice))}")
    lines = sorted(_import(home, sorted(names)) for home, names in needed.items())
    names = ", ".join(f'"{name}"' for name in own)
    listed = _wrapped(f"__all__ = [{names}]", 4)
    return f"{_HEAD.format(module.__name__)}\n{''.join(lines)}\n{listed}\n\n" + "\n".join(parts)


def _import(home: str, names: list[str]) -> str:
    line = f"from {home} import {', '.join(names)}" if names else f"import {home}"
    if len(line) > _WIDTH:
        line = _wrapped(line.replace("import ", "import (", 1) + ")", 4)
    return f"{line}\n"


def _home(member: Any) -> str:
    """Return the module that defines an object. Its `__module__` may name a module that only re-exports it."""
    function = member.__init__ if inspect.isclass(member) else member
    return str(inspect.unwrap(function).__globals__["__name__"])


def _members(facade: Any, own: list[str], needed: dict[str, set[str]]) -> Iterator[str]:
    kind = facade._kind
    scope = frozenset(name for name in vars(facade) if name[0] != "_")

    def method(name: str, function: Any) -> str:
        # Use the imports of the module that defines the function, because a base class may be in another module.
        return _method(name, function, _Annotations(function.__module__, own, needed, scope))

    annotations = _Annotations(_home(kind), own, needed, scope)
    for name, annotation in _attributes(kind):
        yield f"    {name}: {annotations(annotation)}\n"
    if facade.__name__ in _CONSTRUCTED:
        yield method("__init__", kind.__init__)
    for name, member in vars(facade).items():
        if (name in _STUBBED_OPERATORS or name[0] != "_") and not is_hint(getattr(kind, name, None)):
            if isinstance(member, property):
                yield "    @property\n" + method(name, inspect.getattr_static(kind, name).fget)
            elif isinstance(member, staticmethod):
                yield "    @staticmethod\n" + method(name, member.__func__)
            elif name == "__enter__":
                yield f"    def __enter__(self) -> {facade.__name__}: ...\n"
            elif name == "__exit__":
                yield "    def __exit__(self, *raised: object) -> None: ...\n"
            else:
                yield method(name, getattr(kind, name))


def _attributes(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the public attributes that a class sets in its constructor."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind.__init__)))
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute) and node.target.attr[0] != "_":
            yield node.target.attr, ast.unparse(node.annotation)


def _method(name: str, function: Any, annotations: _Annotations, *, indent: int = 4) -> str:
    signature = inspect.signature(function)
    parts, star = [], False
    for one in signature.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not star:
            parts.append("*")
        star = star or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        text = str(one.replace(annotation=one.empty, default=one.empty))
        typed = "" if one.annotation is one.empty else f": {annotations(one.annotation)}"
        default = "" if one.default is one.empty else f" = {_default(one.default)}"
        parts.append(f"{text}{typed}{default if typed else default.replace(' ', '')}")
        if one.kind is one.POSITIONAL_ONLY:
            parts.append("/")
    given = "None" if signature.return_annotation is signature.empty else annotations(signature.return_annotation)
    return _wrapped(f"{' ' * indent}def {name}({', '.join(parts)}) -> {given}: ...", indent + 4) + "\n"


def _default(value: object) -> str:
    return repr(value) if value is None or isinstance(value, bool | int | float | str) or value == () else "..."


def _wrapped(line: str, indent: int) -> str:
    # Allow line breaks after the commas of parameters only.
    text = line.replace(" ", "\0").replace(",\0", ", ")
    filled = textwrap.fill(text, _WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return filled.replace("\0", " ")


if __name__ == "__main__":
    for made in MODULES:
        target(made).write_text(stub(made), encoding="utf-8")
