"""Reference sources for systems other than the Structs chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_structs._internal.lazy_import import attach

if TYPE_CHECKING:
    from mama_structs.sources.openapi import from_openapi as from_openapi
    from mama_structs.sources.sqlite import from_sqlite as from_sqlite

_NAMES = {"openapi": "from_openapi", "sqlite": "from_sqlite"}

if not TYPE_CHECKING:  # With __getattr__ in sight, type checkers would accept misspelt names.
    __all__, __getattr__, __dir__ = attach(__name__, _NAMES)
