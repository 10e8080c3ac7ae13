"""
A session's records under the method names of mem0, for hosts that come over from it.

No model is asked, and mem0 need not be installed; what `mama_structs.importers` takes over from mem0 is found here.
`Memory` is made of `AsyncMemory`; ``mem0.pyi`` tells type checkers so, and ``scripts/sync_stub.py`` writes it.
"""

from __future__ import annotations

from mama_structs._internal.sync_proxy import facade_of
from mama_structs.adapters.mem0.memory import AsyncMemory

__all__ = ["AsyncMemory", "Memory"]

# Pickles and `help` name the door, which stays where it is; `test_a_class_is_named_by_its_door` holds it.
AsyncMemory.__module__ = __name__
Memory = facade_of(AsyncMemory, module=__name__)
Memory.__name__ = Memory.__qualname__ = "Memory"
