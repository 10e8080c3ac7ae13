"""
Synchronous API for code without an event loop, such as scripts, Flask and Celery.

All objects live in one thread with its own event loop. Each method blocks until its work is done. Methods may be called
in any thread without a running event loop; in a thread with one, use `mama_structs.Session`.
These classes are generated from the async ones. ``scripts/sync_stub.py`` writes ``sync.pyi`` for type checkers.
"""

from __future__ import annotations

from mama_structs._internal.sync_proxy import facade_of
from mama_structs.memory.graph import plot
from mama_structs.memory.records import record_store
from mama_structs.memory.store import memory_store as memories
from mama_structs.references import resolver
from mama_structs.refs.conversations import conversation_info
from mama_structs.refs.store import ref_collector as marking
from mama_structs.refs.store import ref_store as store
from mama_structs.session import session

__all__ = [
    "Conversations",
    "MemoryPlots",
    "MemoryStore",
    "RecordStore",
    "RefStore",
    "RefStream",
    "Resolver",
    "Session",
    "SessionStream",
]

Conversations = facade_of(conversation_info.Conversations, module=__name__)
MemoryPlots = facade_of(plot.MemoryPlots, module=__name__)
MemoryStore = facade_of(memories.MemoryStore, module=__name__)
RecordStore = facade_of(record_store.RecordStore, module=__name__)
RefStore = facade_of(store.RefStore, module=__name__)
RefStream = facade_of(marking.RefStream, module=__name__)
Resolver = facade_of(resolver.Resolver, module=__name__)
Session = facade_of(session.Session, module=__name__)
SessionStream = facade_of(session.SessionStream, module=__name__)
