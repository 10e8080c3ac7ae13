"""
Leases: time-limited, exclusive claims of names on a server shared by many hosts.

The names are, for example, those that identify conversations.

A lease is a row that its holder renews. It expires by the server's clock if the holder dies or is disconnected.
Connection-level locks would not work: a transaction pooler releases them early, or keeps them for another client.
After a long disconnection another host may have taken over a lease. `Leases.lost_of` checks that inside the transaction
that writes, so that nothing is written under a lost lease.
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
from mama_structs.storage.postgres.pool import ACROSS, Connection, Server

_CLAIM: Final = """
INSERT INTO leases (namespace, name, holder, expires)
    VALUES ($1, $2, $3, clock_timestamp() + make_interval(secs => $4))
    ON CONFLICT (namespace, name) DO UPDATE SET holder = excluded.holder, expires = excluded.expires
    WHERE leases.expires < clock_timestamp() OR leases.holder = excluded.holder
"""
_RENEW: Final = """
UPDATE leases SET expires = clock_timestamp() + make_interval(secs => $2)
    WHERE holder = $1 AND name = ANY($3) RETURNING name
"""
_RELEASE: Final = "DELETE FROM leases WHERE namespace = $1 AND name = $2 AND holder = $3"
_RELEASE_ALL: Final = "DELETE FROM leases WHERE holder = $1"
_CLAIMED: Final = "SELECT name FROM leases WHERE expires >= clock_timestamp()"
# Lock the lease rows, so that no host takes them over before this transaction commits.
_KEEP: Final = "SELECT name FROM leases WHERE holder = $1 AND name = ANY($2) FOR SHARE"

_log: Final = logging.getLogger("mama_structs")


class Leases:
    """
    The leases that this process holds on a server. `close` releases them and the server.

    Args:
        server: The server that stores the leases.
        seconds: Lifetime of a lease that is not renewed. Leases are renewed every third of it.

    """

    def __init__(self, server: Server, *, seconds: float) -> None:
        self.lost: set[str] = set()
        self._server = server
        # Namespace of each name that was ever claimed here. Entries are never removed, because there are few.
        self._spaces: dict[str, str] = {}
        self._seconds = seconds
        self._holder = uuid.uuid4()
        self._guard = threading.Lock()
        self._held: dict[str, Future[object] | None] = {}
        # A token for each confirmed claim. A renewal must not report a claim as lost that was made during the renewal.
        self._claims: dict[str, object] = {}
        self._unclaimed: set[str] = set()
        self._over = threading.Event()
        self._renewing: threading.Thread | None = None

    @property
    def is_read_only(self) -> bool:
        """True if the server was read-only when it was opened, so that nothing can be claimed."""
        return self._server.is_read_only

    def claim(self, name: str, namespace: str) -> None:
        """
        Claim a name in a namespace until `release`, `close` or the end of the process. Blocks.

        Raises:
            StoreBusy: Another session has claimed it.
            StoreReadOnly: The server's row-level security does not allow this role to write in the namespace.

        """
        with self._guard:
            self._spaces[name] = namespace
            going = self._held.get(name)
            if name in self._held and going is None:
                raise self._busy()
            self._held[name] = None
            self.lost.discard(name)
        try:
            if going is not None:
                with contextlib.suppress(StoreError):
                    going.result()
            try:
                try:
                    is_mine = self._claim(name)
                except StoreUnreachable:
                    # The answer was lost. Claiming is idempotent, so retry.
                    is_mine = self._claim(name)
                if not is_mine:
                    raise self._busy()
                with self._guard:
                    self._claims[name] = object()
            except StoreReadOnly as error:
                # A read-only server or role needs no lease, because every write fails.
                if error.namespace is not None and not self.is_read_only:
                    raise
        except BaseException:
            with self._guard:
                self._held.pop(name, None)
            raise
        self._begin_renewing()

    def claim_later(self, name: str, namespace: str) -> None:
        """
        Claim a name later, with its first write or the next renewal.

        Only for names that no other session knows yet.
        """
        with self._guard:
            self._spaces[name] = namespace
            self._held[name] = None
            self._claims[name] = object()
            self._unclaimed.add(name)
        self._begin_renewing()

    def release(self, name: str) -> Future[object] | None:
        """Release a name. Return a future of the release, or None if the name is not held."""
        with self._guard:
            if name not in self._held or self._held[name] is not None:
                return None
            given = self._spaces[name], name, self._holder
            self._unclaimed.discard(name)
            self._claims.pop(name, None)
            going: Future[object] = self._server.run(
                lambda one: one.tell(_RELEASE, *given), write=True, settings=ACROSS
            )
            self._held[name] = going
        going.add_done_callback(lambda _: self._forget(name, going))
        return going

    def claimed(self) -> frozenset[str]:
        """Return all names with an unexpired lease of any holder, this process included. Blocks."""
        rows = self._server.run(lambda one: one.ask(_CLAIMED), write=False, settings=ACROSS).result()
        return frozenset(row["name"] for row in rows)

    def lost_of(self, connection: Connection, names: Collection[str]) -> frozenset[str]:
        """
        Return the names that another holder took over.

        The others are locked until the transaction ends.
        """
        with self._guard:
            mine = self._held.keys() & set(names)
            claims = {name: claim for name, claim in self._claims.items() if name in mine}
        self._claim_new(connection, mine)
        kept = {row["name"] for row in connection.ask(_KEEP, self._holder, sorted(mine))} if mine else set()
        self._lose(claims, kept)
        return frozenset(mine - kept)

    def written(self, names: Collection[str]) -> None:
        """
        Record that rows were stored under names.

        From now on a missing lease of these names counts as lost.
        """
        with self._guard:
            self._unclaimed.difference_update(names)

    def close(self) -> None:
        """Release all names and the server. Blocks."""
        if self._over.is_set():
            return
        self._over.set()
        if self._renewing is not None:
            self._renewing.join()
        with self._guard:
            held, self._held, self._claims = self._held, {}, {}
        try:
            if held:
                self._server.run(lambda one: one.tell(_RELEASE_ALL, self._holder), write=True, settings=ACROSS).result()
        except StoreReadOnly:
            pass
        except StoreError as error:
            _log.warning("conversations stay locked for %.0f s: %s", self._seconds, error)
        finally:
            self._server.close()

    def renew(self) -> None:
        """Renew all leases. Record those as lost that another holder took over. Blocks."""
        with self._guard:
            claims = dict(self._claims)
        if claims:
            held = claims.keys()
            given = self._holder, self._seconds, sorted(held)

            def plan(connection: Connection) -> set[str]:
                connection.note_change()
                self._claim_new(connection, held)
                return {row["name"] for row in connection.ask(_RENEW, *given)}

            self._lose(claims, self._server.run(plan, write=True, settings=ACROSS).result())
            self.written(held)

    def _claim(self, name: str) -> bool:
        settings = {"app.namespace": self._spaces[name]}
        return self._server.run(lambda one: self._claimed_in(one, name), write=True, settings=settings).result()

    def _claim_new(self, connection: Connection, names: Collection[str]) -> None:
        with self._guard:
            new = sorted(self._unclaimed.intersection(names))
        for name in new:
            self._claimed_in(connection, name)

    def _claimed_in(self, connection: Connection, name: str) -> bool:
        return bool(connection.tell(_CLAIM, self._spaces[name], name, self._holder, self._seconds))

    def _lose(self, claims: Mapping[str, object], kept: Collection[str]) -> None:
        """
        Record the claims that are not in *kept* as lost.

        Claims that were released or renewed by `claim` meanwhile are ignored.
        """
        with self._guard:
            gone = {name for name, claim in claims.items() if name not in kept and self._claims.get(name) is claim}
            new = gone - self.lost
            self.lost |= gone
        if new:
            _log.warning(
                "%d conversations were taken over by another host, which this one did not reach in time", len(new)
            )

    def _forget(self, name: str, going: Future[object]) -> None:
        with self._guard:
            if self._held.get(name) is going:
                del self._held[name]

    def _begin_renewing(self) -> None:
        with self._guard:
            if self._renewing is None and not self._over.is_set():
                self._renewing = threading.Thread(target=self._renew, name="mama-structs leases", daemon=True)
                self._renewing.start()

    def _renew(self) -> None:
        while not self._over.wait(self._seconds / 3):
            try:
                self.renew()
            except StoreReadOnly:
                continue
            except MamaStructsError as error:
                _log.warning("conversations could not be kept locked: %s", error)

    def _busy(self) -> StoreBusy:
        return StoreBusy(f"another session uses this part of {self._server.location}", waited=0.0)
