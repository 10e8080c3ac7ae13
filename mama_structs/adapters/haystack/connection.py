"""
Base class of Haystack components. It serializes the reference to a session and has a loop bridge.

Needs the extra ``haystack``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

from mama_structs import sync
from mama_structs.adapters.shared.loop_bridge import LoopBridge
from mama_structs.errors import InvalidArgument
from mama_structs.session.session import Session

try:
    from haystack.utils import Secret
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.haystack needs Haystack: pip install 'mama-structs[haystack]'"
    ) from _missing

HOST_LABEL: Final = "haystack"

SessionLocation: TypeAlias = Session | sync.Session | str | Secret

T = TypeVar("T")


class SessionComponent:
    """Base of Haystack components. It has a serializable reference to a session and a loop bridge."""

    def __init__(self, session: SessionLocation, *, namespace: str, conversation: str | None = None) -> None:
        self._session_or_location = session
        self._namespace = namespace
        self._conversation = conversation
        self._lock = threading.Lock()
        self._own_session: sync.Session | None = None
        # Bind an async session now, because its event loop runs here. Bind any other session at its first use.
        self._connected_bridge = LoopBridge(session) if isinstance(session, Session) else None

    @property
    def _bridge(self) -> LoopBridge:
        """The loop bridge. The first access opens the session if only a location was passed."""
        with self._lock:
            if self._connected_bridge is None:
                self._connected_bridge = _run_in_thread(self._connect)
            return self._connected_bridge

    def _connect(self) -> LoopBridge:
        given = self._session_or_location
        if isinstance(given, str | Secret):
            place = given if isinstance(given, str) else given.resolve_value()
            given = sync.Session.open(place, namespace=self._namespace, conversation=self._conversation)
            self._own_session = given
        return LoopBridge(given)

    def close(self) -> None:
        """Close the session if it was opened here. A passed session stays open. Idempotent."""
        with self._lock:
            if self._own_session is not None:
                _run_in_thread(self._own_session.close)
                self._own_session = self._connected_bridge = None

    def _serialize_location(self) -> dict[str, Any]:
        """Return the constructor arguments that open the session again, for a pipeline file."""
        given, namespace = self._session_or_location, self._namespace
        if isinstance(given, str) and urlsplit(given).password:
            raise InvalidArgument(
                "session has a password, which a pipeline file would expose",
                hint="give haystack.utils.Secret.from_env_var(...)",
            )
        if not isinstance(given, str | Secret):
            session = self._bridge.session
            if session.location is None:
                raise InvalidArgument("a temporary session has no location to serialize")
            given, namespace = str(session.location), session.memories.namespace
        arguments = {"session": given, "namespace": namespace}
        return arguments if self._conversation is None else {**arguments, "conversation": self._conversation}


def _run_in_thread(work: Callable[[], T]) -> T:
    """Run a blocking function in a new thread, because this thread may run an event loop."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(work).result()
