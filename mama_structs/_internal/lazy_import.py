"""Lazy loading of public names (PEP 562), callbacks on the loading of a module, and thread-safe imports."""

from __future__ import annotations

import ast
import importlib
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

import lazy_loader


def make_lazy_exports(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """
    Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package. Its stub ``__init__.pyi`` lists the names.

    Submodules in ``from . import name as name`` are attributes, but not part of ``__all__``.
    """
    # lazy_loader.attach_stub opens a file, which fails in a zip archive. The loader of the package reads from both.
    module = sys.modules[package]
    loader: Any = module.__spec__ and module.__spec__.loader
    try:
        stub = ast.parse(loader.get_data(f"{module.__path__[0]}{os.sep}__init__.pyi"))
    except OSError as error:
        raise ImportError(
            f"{package} was installed without its file __init__.pyi, which lists the public names"
        ) from error
    imported: dict[str, list[str]] = {}
    submodules: set[str] = set()
    for node in stub.body:
        if isinstance(node, ast.ImportFrom):
            found = [alias.name for alias in node.names]
            if node.module:
                imported.setdefault(node.module, []).extend(found)
            else:
                submodules.update(found)
    load, list_names, names = lazy_loader.attach(package, submod_attrs=imported)

    def load_public(name: str) -> object:
        if name in submodules:
            return importlib.import_module(f"{package}.{name}")
        if name not in names:
            _raise_hint(package, name, caller=sys._getframe(1))
            # Raise the standard message of Python; lazy_loader has a different one.
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = load(name)
        return value

    return load_public, list_names, names


def _raise_hint(package: str, name: str, *, caller: FrameType) -> None:
    """
    Raise an error with the right call if callers guess this name in the top package.

    It is an `AttributeError`, as `hasattr` and `unittest.mock.patch` require. In ``from package import name`` Python
    would replace its message, so there it is an `ImportError`.
    """
    if package == "mama_structs" and not name.startswith("_"):
        from mama_structs._internal.hints.call_hints import make_attribute_error  # noqa: PLC0415 - only for errors
        from mama_structs._internal.hints.peer_names import MODULE_NAMES  # noqa: PLC0415 - only for errors

        if name in MODULE_NAMES:
            message = f"{package} has no {name!r}. Use {MODULE_NAMES[name]}."
            if _is_from_import(caller):
                raise ImportError(message, name=package)
            raise make_attribute_error(message, name)


def _is_from_import(caller: FrameType) -> bool:
    """Return True if *caller*, the caller of ``__getattr__``, looks up a name for ``from package import name``."""
    return caller.f_code.co_name == "_handle_fromlist" and "importlib" in caller.f_code.co_filename


_load_callbacks: dict[str, list[Callable[[], object]]] = {}


def call_when_loaded(module: str, callback: Callable[[], object]) -> None:
    """
    Call *callback* when *module* is loaded. Do not load it.

    The module must call `run_load_callbacks`.
    """
    if module in sys.modules:
        callback()
    else:
        _load_callbacks.setdefault(module, []).append(callback)


def run_load_callbacks(module: str) -> None:
    """Run the callbacks that wait for *module*. The module calls this at its end."""
    for then in _load_callbacks.pop(module, ()):
        then()


_import_lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_import_lock.acquire,
        after_in_parent=_import_lock.release,
        after_in_child=_import_lock.release,
    )


def load_module(name: str) -> ModuleType:
    """
    Import a module. Several threads may call this concurrently.

    A fork waits until the import ends. Otherwise the child would block forever on a module that another thread loads.
    """
    with _import_lock:
        return importlib.import_module(name)


def load_regex() -> Any:
    """Import the package regex, which has no type hints."""
    return load_module("regex")
