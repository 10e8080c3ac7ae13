"""Packages whose public names load when they are first asked for (PEP 562)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def attach(package: str, sources: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """
    Return ``__getattr__`` and ``__dir__`` for a package.

    Args:
        package: The package's ``__name__``.
        sources: The public names, each with the module that defines it.

    """

    def load(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(sources[name]), name)
        vars(importlib.import_module(package))[name] = value
        return value

    return load, lambda: sorted(sources)
