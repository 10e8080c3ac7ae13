"""
Leases: time-limited, exclusive claims of names on a server that many hosts share.

For example, a session claims the names of its conversations.

A lease is a row that its holder renews. It expires by the server's clock if the holder dies or is disconnected.
Connection-level locks would not work: a transaction pooler releases them early, or keeps them for another client.
After a long disconnection another host may have taken over a lease. `Leases.find_lost_names` checks that inside the
transaction that writes, so that nothing is written under a lost lease.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Final

from mama_structs.errors import MamaStructsError, StoreBusy, StoreError, StoreReadOnly, StoreUnreachable
from mama_structs.storage.postgres.pool import ALL_NAMESPACES_SETTINGS, Connection, PostgresPool

CLAIM_SQL: Final = """
INSERT INTO leases (namespace, name, holder, expires)
    VALUES ($1, $2, $3, clock_timestamp() + make_interval(secs => $4))
    ON CONFLICT (namespace, name) DO UPDATE SET holder = excluded.holder, expires = excluded.expires
    WHERE leases.expires < clock_timestamp() OR leases.holder = excluded.holder
"""
RENEW_SQL: Final = """
UPDATE leases SET expires = clock_timestamp() + make_interval(secs => $2)
    WHERE holder = $1 AND name = ANY($3) RETURNING name
"""
RELEASE_SQL: Final = "DELETE FROM leases WHERE namespace = $1 AND name = $2 AND holder = $3"
RELEASE_ALL_SQL: Final = "DELETE FROM leases WHERE holder = $1"
CLAIMED_NAMES_SQL: Final = "SELECT name FROM leases WHERE expires >= clock_timestamp()"
# Lock the lease rows, so that no other host takes over a lease before this transaction ends.
LOCK_OWN_SQL: Final = "SELECT name FROM leases WHERE holder = $1 AND name = ANY($2) FOR SHARE"

_log: Final = logging.getLogger("mama_structs")


class Leases:
    """
    The leases that this process holds on a server. `close` releases the leases and the connection pool.

    Args:
        server: The server that stores the leases.
        seconds: Lifetime of a lease that is not renewed. Leases are renewed after each third of it.

    """

    def __init__(self, server: PostgresPool, *, seconds: float) -> None:
        self.lost_names: set[str] = set()
        self._server = server
        # The namespace in which each name was claimed. Entries are never removed, because there are few names.
        self._namespaces: dict[str, str] = {}
        self._seconds = seconds
        self._holder = uuid.uuid4()
        self._guard = threading.Lock()
        self._pending_releases: dict[str, Future[object] | None] = {}
        # A new token for each claim. A renewal compares tokens, so that it does not report a newer claim as lost.
        self._claim_tokens: dict[str, object] = {}
        self._unclaimed_names: set[str] = set()
        self._closed = threading.Event()
        self._renewal_thread: threading.Thread | None = None

    @property
    def is_read_only(self) -> bool:
        """True if the server was read-only when it was opened. Then no name can be claimed."""
        return self._server.is_read_only

    def claim(self, name: str, namespace: str) -> None:
        """
        Claim a name in a namespace until `release`, `close` or the end of the process. Blocks.

        Raises:
            StoreBusy: Another session has claimed the name.
            StoreReadOnly: The server's row-level security does not allow this role to write in the namespace.

        """
        with self._guard:
            self._namespaces[name] = namespace
            going = self._pending_releases.get(name)
            if name in self._pending_releases and going is None:
                raise self._busy_error()
            self._pending_releases[name] = None
            self.lost_names.discard(name)
        try:
            if going is not None:
                with contextlib.suppress(StoreError):
                    going.result()
            try:
                try:
                    is_mine = self._claim(name)
                except StoreUnreachable:
                    # The answer was lost. Try again, because claiming is idempotent.
                    is_mine = self._claim(name)
                if not is_mine:
                    raise self._busy_error()
                with self._guard:
                    self._claim_tokens[name] = object()
            except StoreReadOnly as error:
                # A read-only server or role needs no lease, because it cannot write anything.
                if error.namespace is not None and not self.is_read_only:
                    raise
        except BaseException:
            with self._guard:
                self._pending_releases.pop(name, None)
            raise
        self._start_renewal()

    def claim_later(self, name: str, namespace: str) -> None:
        """
        Register a name without a request. Its first write or the next renewal claims it.

        Use this only for names that no other session knows yet.
        """
        with self._guard:
            self._namespaces[name] = namespace
            self._pending_releases[name] = None
            self._claim_tokens[name] = object()
            self._unclaimed_names.add(name)
        self._start_renewal()

    def release(self, name: str) -> Future[object] | None:
        """Release a name. Return a future that is resolved afterwards, or None if the name is not held."""
        with self._guard:
            if name not in self._pending_releases or self._pending_releases[name] is not None:
                return None
            given = self._namespaces[name], name, self._holder
            self._unclaimed_names.discard(name)
            self._claim_tokens.pop(name, None)
            release_future: Future[object] = self._server.run(
                lambda one: one.execute(RELEASE_SQL, *given), write=True, settings=ALL_NAMESPACES_SETTINGS
            )
            self._pending_releases[name] = release_future
        release_future.add_done_callback(lambda _: self._remove_released(name, release_future))
        return release_future

    def find_claimed_names(self) -> frozenset[str]:
        """Return all names with an unexpired lease, including leases of other holders. Blocks."""
        rows = self._server.run(
            lambda one: one.fetch(CLAIMED_NAMES_SQL), write=False, settings=ALL_NAMESPACES_SETTINGS
        ).result()
        return frozenset(row["name"] for row in rows)

    def find_lost_names(self, connection: Connection, names: Collection[str]) -> frozenset[str]:
        """
        Return the names that another holder has taken over.

        The leases of the other names are locked until the transaction ends.
        """
        with self._guard:
            mine = self._pending_releases.keys() & set(names)
            claims = {name: claim for name, claim in self._claim_tokens.items() if name in mine}
        self._claim_new(connection, mine)
        kept = {row["name"] for row in connection.fetch(LOCK_OWN_SQL, self._holder, sorted(mine))} if mine else set()
        self._record_lost(claims, kept)
        return frozenset(mine - kept)

    def record_written(self, names: Collection[str]) -> None:
        """
        Record that rows were stored under *names*.

        From now on each name has a lease row. If the row is missing, the lease is lost.
        """
        with self._guard:
            self._unclaimed_names.difference_update(names)

    def close(self) -> None:
        """Release all names and the connection pool. Blocks."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._renewal_thread is not None:
            self._renewal_thread.join()
        with self._guard:
            held, self._pending_releases, self._claim_tokens = self._pending_releases, {}, {}
        try:
            if held:
                self._server.run(
                    lambda one: one.execute(RELEASE_ALL_SQL, self._holder), write=True, settings=ALL_NAMESPACES_SETTINGS
                ).result()
        except StoreReadOnly:
            pass
        except StoreError as error:
            _log.warning("conversations stay locked for %.0f s: %s", self._seconds, error)
        finally:
            self._server.close()

    def renew(self) -> None:
        """Renew all leases. Record a lease as lost if another holder has taken it over. Blocks."""
        with self._guard:
            claims = dict(self._claim_tokens)
        if claims:
            held = claims.keys()
            given = self._holder, self._seconds, sorted(held)

            def plan(connection: Connection) -> set[str]:
                connection.note_change()
                self._claim_new(connection, held)
                return {row["name"] for row in connection.fetch(RENEW_SQL, *given)}

            self._record_lost(claims, self._server.run(plan, write=True, settings=ALL_NAMESPACES_SETTINGS).result())
            self.record_written(held)

    def _claim(self, name: str) -> bool:
        settings = {"app.namespace": self._namespaces[name]}
        return self._server.run(
            lambda one: self._claim_in_transaction(one, name), write=True, settings=settings
        ).result()

    def _claim_new(self, connection: Connection, names: Collection[str]) -> None:
        with self._guard:
            new = sorted(self._unclaimed_names.intersection(names))
        for name in new:
            self._claim_in_transaction(connection, name)

    def _claim_in_transaction(self, connection: Connection, name: str) -> bool:
        return bool(connection.execute(CLAIM_SQL, self._namespaces[name], name, self._holder, self._seconds))

    def _record_lost(self, claims: Mapping[str, object], kept: Collection[str]) -> None:
        """
        Record the claims that are not in *kept* as lost.

        Claims are ignored if they were released or made again after the renewal began.
        """
        with self._guard:
            gone = {
                name for name, claim in claims.items() if name not in kept and self._claim_tokens.get(name) is claim
            }
            new = gone - self.lost_names
            self.lost_names |= gone
        if new:
            _log.warning(
                "%d conversations were taken over by another host, which this one did not reach in time", len(new)
            )

    def _remove_released(self, name: str, release: Future[object]) -> None:
        with self._guard:
            if self._pending_releases.get(name) is release:
                del self._pending_releases[name]

    def _start_renewal(self) -> None:
        with self._guard:
            if self._renewal_thread is None and not self._closed.is_set():
                self._renewal_thread = threading.Thread(
                    target=self._renew_periodically, name="mama-structs leases", daemon=True
                )
                self._renewal_thread.start()

    def _renew_periodically(self) -> None:
        while not self._closed.wait(self._seconds / 3):
            try:
                self.renew()
            except StoreReadOnly:
                continue
            except MamaStructsError as error:
                _log.warning("conversations could not be kept locked: %s", error)

    def _busy_error(self) -> StoreBusy:
        return StoreBusy(f"another session uses this part of {self._server.location}", waited=0.0)
