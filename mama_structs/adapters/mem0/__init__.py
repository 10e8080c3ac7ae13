"""
A session's records under the method names of mem0, for hosts that migrate from mem0.

No model is called, and mem0 need not be installed. Memories that `mama_structs.importers` imported from mem0 are found
here. `Memory` is generated from `AsyncMemory`; ``mem0.pyi`` has its types, and ``scripts/sync_stub.py`` writes it.
"""

from __future__ import annotations

from mama_structs._internal.sync_proxy import make_proxy_class
from mama_structs.adapters.mem0.memory import AsyncMemory

__all__ = ["AsyncMemory", "Memory"]

# Set the name of the public module, which pickles contain and `help` shows.
AsyncMemory.__module__ = __name__
Memory = make_proxy_class(AsyncMemory, module=__name__)
Memory.__name__ = Memory.__qualname__ = "Memory"
