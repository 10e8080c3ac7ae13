"""
The session for code that has no event loop: scripts, Flask, Celery, ``graph.invoke``.

Everything lives in one thread with an event loop of its own; each method returns when what it asks for is done, and may
be called in any thread, but in none whose event loop runs: that one uses `mama_structs.Session`.
These classes are made of the async ones; ``sync.pyi`` tells type checkers so, and ``scripts/sync_stub.py`` writes it.
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
