"""
Synchronous API for code without an event loop, such as scripts, Flask and Celery.

All objects live in one thread with its own event loop. Each method blocks until its work is done. Methods may be called
in any thread without a running event loop; in a thread with one, use `mama_structs.Session`.
These classes are generated from the async ones. ``scripts/sync_stub.py`` writes ``sync.pyi`` for type checkers.
"""

from __future__ import annotations

from mama_structs._internal.sync_proxy import make_proxy_class
from mama_structs.memory.graph import plot
from mama_structs.memory.records import record_store
from mama_structs.memory.store import memory_store as memories
from mama_structs.references import resolver
from mama_structs.refs.store import ref_collector as marking
from mama_structs.refs.store import ref_store as store
from mama_structs.session import session

__all__ = [
    "MemoryPlots",
    "MemoryStore",
    "RecordStore",
    "RefStore",
    "RefStream",
    "Resolver",
    "Session",
    "SessionStream",
]

MemoryPlots = make_proxy_class(plot.MemoryPlots, module=__name__)
MemoryStore = make_proxy_class(memories.MemoryStore, module=__name__)
RecordStore = make_proxy_class(record_store.RecordStore, module=__name__)
RefStore = make_proxy_class(store.RefStore, module=__name__)
RefStream = make_proxy_class(marking.RefStream, module=__name__)
Resolver = make_proxy_class(resolver.Resolver, module=__name__)
Session = make_proxy_class(session.Session, module=__name__)
SessionStream = make_proxy_class(session.SessionStream, module=__name__)
