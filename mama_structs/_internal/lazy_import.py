"""Lazy loading of public names (PEP 562), load callbacks, and thread-safe imports."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

Names = Mapping[str, str]
"""Maps each module of a package to the names that it defines, separated by blanks."""


def attach(package: str, names: Names) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` for a lazily loading package."""
    sources = homes(package, names)

    def load(name: str) -> Any:
        home = sources.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home), name)
        vars(importlib.import_module(package))[name] = value
        return value

    return sorted(sources), load, lambda: sorted(sources)


def homes(package: str, names: Names) -> dict[str, str]:
    """Return the defining module of each name."""
    return {name: f"{package}.{module}" for module, several in names.items() for name in several.split()}


_awaited: Final[dict[str, list[Callable[[], object]]]] = {}


def when_loaded(module: str, then: Callable[[], object]) -> None:
    """
    Call *then* once *module* is loaded, without loading it.

    The module must call `announce`.
    """
    if module in sys.modules:
        then()
    else:
        _awaited.setdefault(module, []).append(then)


def announce(module: str) -> None:
    """Run the callbacks that wait for *module*. Called at the end of that module."""
    for then in _awaited.pop(module, ()):
        then()


_loading: Final = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_loading.acquire,
        after_in_parent=_loading.release,
        after_in_child=_loading.release,
    )


def loaded(name: str) -> ModuleType:
    """
    Import a module, safely in any thread.

    Forks wait until the import ends: a child would block forever on a module that another thread was loading.
    """
    with _loading:
        return importlib.import_module(name)


def load_regex() -> Any:
    """Import the package regex, which has no type hints."""
    return loaded("regex")
