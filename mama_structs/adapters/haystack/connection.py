"""What a pipeline's file says of a session, and the bridge to it; needs the extra ``haystack``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

from mama_structs import sync
from mama_structs.adapters.shared.loop_bridge import Bridge
from mama_structs.errors import InvalidArgument
from mama_structs.session.session import Session

try:
    from haystack.utils import Secret
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.haystack.document_store needs Haystack: pip install 'mama-structs[haystack]'"
    ) from _missing

HOST: Final = "haystack"

Where: TypeAlias = Session | sync.Session | str | Secret

T = TypeVar("T")


class Connected:
    """Something that Haystack writes into a pipeline's file, and what it does in the loop of its session."""

    def __init__(self, session: Where, *, namespace: str, conversation: str | None = None) -> None:
        self._given = session
        self._namespace = namespace
        self._conversation = conversation
        self._guard = threading.Lock()
        self._opened: sync.Session | None = None
        # An async session is known by the loop that runs here; any other one is opened or asked at its first use.
        self._known = Bridge(session) if isinstance(session, Session) else None

    @property
    def _bridge(self) -> Bridge:
        """The bridge to the session, which is opened where only its place was given."""
        with self._guard:
            if self._known is None:
                self._known = _beside(self._connect)
            return self._known

    def _connect(self) -> Bridge:
        given = self._given
        if isinstance(given, str | Secret):
            place = given if isinstance(given, str) else given.resolve_value()
            given = sync.Session.open(place, namespace=self._namespace, conversation=self._conversation)
            self._opened = given
        return Bridge(given)

    def close(self) -> None:
        """Close the session that was opened here, never one that was given; a second call does nothing."""
        with self._guard:
            if self._opened is not None:
                _beside(self._opened.close)
                self._opened = self._known = None

    def _place(self) -> dict[str, Any]:
        """Return what a pipeline's file says of the session; it opens the same one again."""
        given, namespace = self._given, self._namespace
        if isinstance(given, str) and urlsplit(given).password:
            raise InvalidArgument(
                "session has a password, which a pipeline's file would show",
                hint="give haystack.utils.Secret.from_env_var(...)",
            )
        if not isinstance(given, str | Secret):
            session = self._bridge.session
            if session.location is None:
                raise InvalidArgument("a temporary session has no place that a pipeline's file could name")
            given, namespace = str(session.location), session.memories.namespace
        told = {"session": given, "namespace": namespace}
        return told if self._conversation is None else {**told, "conversation": self._conversation}


def _beside(work: Callable[[], T]) -> T:
    """Do what blocks in a thread of its own: in this one an event loop may run."""
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(work).result()
