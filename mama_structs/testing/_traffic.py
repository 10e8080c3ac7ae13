"""Counting what a node was asked."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

import attrs


@attrs.frozen
class NodeRequest:
    """
    A request that reached the node.

    Args:
        method: The HTTP method.
        path: The path, percent-decoded.
        query: The query's parameters.
        headers: The headers, their names in lower case.
        names: What the request can be called by, for counting, latency and faults.

    """

    method: str
    path: str
    query: Mapping[str, str] = attrs.field(factory=dict)
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    names: tuple[str, ...] = attrs.field(default=(), repr=False)


@attrs.define(eq=False)
class Traffic:
    """Counts requests; safe to read and reset from any thread."""

    _requests: list[NodeRequest] = attrs.field(factory=list, init=False)
    _in_flight: int = attrs.field(default=0, init=False)
    _most_in_flight: int = attrs.field(default=0, init=False)
    _bytes_sent: int = attrs.field(default=0, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)

    @property
    def requests(self) -> list[NodeRequest]:
        """Every request since the last reset, oldest first."""
        with self._lock:
            return list(self._requests)

    @property
    def requests_by_path(self) -> Counter[str]:
        """How many requests each path had."""
        return Counter(request.path for request in self.requests)

    @property
    def in_flight(self) -> int:
        """How many requests have no answer yet."""
        return self._in_flight

    @property
    def most_in_flight(self) -> int:
        """The most requests that were without an answer at the same time."""
        return self._most_in_flight

    @property
    def bytes_sent(self) -> int:
        """How many bytes of bodies were sent."""
        return self._bytes_sent

    def count(self, name: str) -> int:
        """Return how many requests have this name: a path, an id, a pattern, a type, or ``*``."""
        return sum(name in request.names for request in self.requests)

    def enter(self, request: NodeRequest) -> None:
        """Note that a request has come."""
        with self._lock:
            self._requests.append(request)
            self._in_flight += 1
            self._most_in_flight = max(self._most_in_flight, self._in_flight)

    def leave(self) -> None:
        """Note that a request is answered, or given up by the client."""
        with self._lock:
            self._in_flight -= 1

    def sent(self, size: int) -> None:
        """Note that a body is sent."""
        with self._lock:
            self._bytes_sent += size

    def reset(self) -> None:
        """Forget everything but the requests that are still in flight."""
        with self._lock:
            self._requests.clear()
            self._most_in_flight = self._in_flight
            self._bytes_sent = 0
