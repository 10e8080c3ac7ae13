"""
Synchronous functions of `mama_structs.admin`.

Each has the parameters of its async equivalent, and accepts sessions of `mama_structs.sync`.
They are generated; ``scripts/sync_stub.py`` writes ``admin.pyi`` for type checkers.
"""

from __future__ import annotations

import inspect

from mama_structs import admin
from mama_structs._internal.hints import peer_names
from mama_structs._internal.hints.call_hints import make_module_getattr
from mama_structs._internal.sync_proxy import make_blocking_function

__all__ = [*admin.__all__]  # noqa: PLE0604 - texts

for _name in admin.__all__:
    # Without `unwrap`, Python 3.12 would take the function for an async one, because `wraps` copies the mark of those.
    globals()[_name] = make_blocking_function(inspect.unwrap(getattr(admin, _name)))
    globals()[_name].__module__ = __name__

__getattr__ = make_module_getattr(__name__, peer_names.ADMIN, __all__)
