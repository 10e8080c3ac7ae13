"""
Synchronous API for code without an event loop, such as scripts, Flask and Celery.

All objects live in one thread with its own event loop. Each method blocks until its work is done. Methods may be called
in any thread without a running event loop; in a thread with one, use `mama_structs.Session`.
These classes are generated from the async ones. ``scripts/sync_stub.py`` writes ``__init__.pyi`` for type checkers.
"""

from __future__ import annotations

from mama_structs._internal.event_loop import enter_session, leave_session
from mama_structs._internal.sync_proxy import SyncProxy, enter_proxy, exit_proxy, make_proxy_class, unwrap
from mama_structs.memory.graph import plot
from mama_structs.memory.records import record_store
from mama_structs.memory.store import memory_store
from mama_structs.references import resolver
from mama_structs.refs.store import ref_collector, ref_store
from mama_structs.session import session, ui_server
from mama_structs.sync import admin
from mama_structs.sync.reference_decorator import bind_with_references, with_references

__all__ = [
    "MemoryPlots",
    "MemoryStore",
    "RecordStore",
    "RefStore",
    "RefStream",
    "Resolver",
    "Session",
    "SessionStream",
    "UiServer",
    "admin",
    "with_references",
]


def _enter_session(self: SyncProxy) -> SyncProxy:
    """Enter the session. It is also the session that an unbound `with_references` uses."""
    enter_proxy(self)
    # The line above enters the session in the loop thread, in a copy of the caller's context.
    enter_session(unwrap(self))
    return self


def _exit_session(self: SyncProxy, *raised: object) -> None:
    """Close the session."""
    leave_session(unwrap(self))
    exit_proxy(self, *raised)


MemoryPlots = make_proxy_class(plot.MemoryPlots, module=__name__)
MemoryStore = make_proxy_class(memory_store.MemoryStore, module=__name__)
RecordStore = make_proxy_class(record_store.RecordStore, module=__name__)
RefStore = make_proxy_class(ref_store.RefStore, module=__name__)
RefStream = make_proxy_class(ref_collector.RefStream, module=__name__)
Resolver = make_proxy_class(resolver.Resolver, module=__name__)
Session = make_proxy_class(
    session.Session,
    module=__name__,
    replaced={
        "with_references": property(bind_with_references),
        "__enter__": _enter_session,
        "__exit__": _exit_session,
    },
)
SessionStream = make_proxy_class(session.SessionStream, module=__name__)
UiServer = make_proxy_class(ui_server.UiServer, module=__name__)

with_references.__module__ = __name__
