"""
Synchronous functions of `mama_structs.admin`.

Each has the parameters of its async equivalent, and accepts sessions of `mama_structs.sync`.
They are generated; ``scripts/sync_stub.py`` writes ``admin.pyi`` for type checkers.
"""

from __future__ import annotations

from mama_structs import admin
from mama_structs._internal.sync_proxy import make_blocking_function

__all__ = [*admin.__all__]  # noqa: PLE0604 - texts

for _name in admin.__all__:
    globals()[_name] = make_blocking_function(getattr(admin, _name))
    globals()[_name].__module__ = __name__
