"""
Rows on a PostgreSQL server: what `Storage` is for a directory, for any number of hosts.

They are sealed as in a directory. Rows that are written behind are written beside those of other hosts, which write
other keys or the same values; a transaction's work has the rows to itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from mama_structs.errors import StoreBusy, StoreError
from mama_structs.storage.durability import check_durability
from mama_structs.storage.failures import Finding
from mama_structs.storage.leases import Leases
from mama_structs.storage.rows import (
    SEAL_BYTES,
    Change,
    Damaged,
    New,
    Rows,
    Snapshot,
    check_key,
    check_value,
    range_of,
    seal,
    unseal,
)
from mama_structs.storage.server import ACROSS, Connection, Server
from mama_structs.storage.store import WAIT, RowStorage, outcome

T = TypeVar("T")
SnapshotT = TypeVar("SnapshotT", bound="ServerSnapshot")

SHARED: Final = ""
"""The namespace of rows that several share, which no session can have."""
_PAGE: Final = 500

_GET: Final = """
SELECT key, value FROM rows JOIN unnest($1::text[], $2::text[]) AS wanted (namespace, key) USING (namespace, key)
"""
_PUT: Final = """
INSERT INTO rows (namespace, key, value) SELECT * FROM unnest($1::text[], $2::text[], $3::bytea[])
ON CONFLICT (namespace, key) DO UPDATE SET value = excluded.value
"""
_DELETE: Final = """
DELETE FROM rows USING unnest($1::text[], $2::text[]) AS doomed (namespace, key)
WHERE rows.namespace = doomed.namespace AND rows.key = doomed.key
"""
_KEYS: Final = "SELECT key FROM rows WHERE {rule} ORDER BY key"
_LAST: Final = "SELECT key FROM rows WHERE {rule} ORDER BY key DESC LIMIT 1"
_ITEMS: Final = "SELECT key, value FROM rows WHERE {rule} ORDER BY key LIMIT {limit}"
_SIZES: Final = "SELECT key, octet_length(value) AS size FROM rows WHERE {rule}"
_BETWEEN: Final = "key >= $1 AND key < $2"


class ServerSnapshot(Snapshot):
    """The rows on a server at one moment."""

    def __init__(
        self, connection: Connection, space_of: Callable[[str], str], part_of: Callable[[str], str | None]
    ) -> None:
        self.connection: Connection = connection
        self._space_of = space_of
        self._part_of = part_of

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes | Damaged]:
        """See `Snapshot`."""
        return dict(self._opened(_GET, *self._places(keys))) if keys else {}

    def keys(self, prefix: str = "") -> list[str]:
        """See `Snapshot`."""
        return [row["key"] for row in self._below(_KEYS, prefix)]

    def last(self, prefix: str) -> str | None:
        """See `Snapshot`."""
        found = self._below(_LAST, prefix)
        return found[0]["key"] if found else None

    def items(self, prefix: str, *, after: str = "", limit: int = -1) -> list[tuple[str, bytes | Damaged]]:
        """See `Snapshot`."""
        rows = self._below(_ITEMS, prefix, after=after, limit="ALL" if limit < 0 else limit)
        return [(row["key"], unseal(row["key"], row["value"])) for row in rows]

    def sizes(self, prefix: str) -> dict[str, int]:
        """See `Snapshot`."""
        return {row["key"]: max(row["size"] - SEAL_BYTES, 0) for row in self._below(_SIZES, prefix)}

    def _below(self, sql: str, prefix: str, *, after: str = "", limit: int | str = "") -> list[Any]:
        """Return rows whose keys begin with *prefix*: of one namespace, where that says which it is."""
        first, last = _between(prefix)
        # No key has the letter that comes first.
        given, rule = [max(first, f"{after}\x01") if after else first, last], _BETWEEN
        # Whatever follows.
        parts = {self._part_of(f"{prefix}{one}") for one in "ab"}
        if len(parts) == 1 and prefix.endswith("/"):
            given.append(self._space_of(f"{prefix}a"))
            rule = f"namespace = $3 AND {_BETWEEN}"
        return self.connection.ask(sql.format(rule=rule, limit=limit), *given)

    def _places(self, keys: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return namespaces and keys, in one order for all, so that two that write the same wait for each other."""
        found = sorted((self._space_of(key), key) for key in keys)
        return [space for space, _ in found], [key for _, key in found]

    def _opened(self, sql: str, *arguments: Any) -> list[tuple[str, bytes | Damaged]]:
        return [(row["key"], unseal(row["key"], row["value"])) for row in self.connection.ask(sql, *arguments)]


class ServerRows(ServerSnapshot, Rows):
    """The rows on a server inside one write transaction."""

    def put(self, key: str, value: bytes) -> None:
        """See `Rows`."""
        check_value(value)
        self._put({check_key(key): value})

    def delete(self, key: str) -> bool:
        """See `Rows`."""
        return bool(self._delete([check_key(key)]))

    def apply(self, changes: dict[str, Change]) -> None:
        """Make *changes* in three questions at the most."""
        new = [key for key, change in changes.items() if isinstance(change, New)]
        whole = {key for key, value in self.get_many(new).items() if isinstance(value, bytes)}
        values = {
            key: change.value if isinstance(change, New) else change
            for key, change in changes.items()
            if change is not None and key not in whole
        }
        if values:
            self._put(values)
        gone = [key for key, change in changes.items() if change is None]
        if gone:
            self._delete(gone)

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """See `Rows`."""
        with self.connection.attempt():
            yield

    def _put(self, values: dict[str, bytes]) -> None:
        spaces, keys = self._places(values)
        self.connection.tell(_PUT, spaces, keys, [seal(key, values[key]) for key in keys])
        self.connection.note_change()

    def _delete(self, keys: Sequence[str]) -> int:
        count = self.connection.tell(_DELETE, *self._places(keys))
        self.connection.note_change()
        return count


class ServerStorage(RowStorage):
    """
    A store on a server.

    Args:
        server: Given up at its close.
        part_of: The name that must be claimed to write a row of a key, None where none need be.
        namespace_of: The namespace of a name, None for one that does not say it.
        leases: What knows which names are claimed; rows under one that was lost are refused.
        wait: Seconds to wait for other writers.

    """

    def __init__(
        self,
        server: Server,
        *,
        part_of: Callable[[str], str | None] = lambda _key: None,
        namespace_of: Callable[[str], str | None] = lambda _name: None,
        leases: Leases | None = None,
        wait: float = WAIT,
    ) -> None:
        self._server = server
        self._part_of = part_of
        self._namespace_of = namespace_of
        self._leases = leases
        self._dropped: StoreBusy | None = None
        super().__init__(server.location, name="rows", wait=wait)

    async def flush(self) -> None:
        """See `RowStorage`; raises once where rows were dropped, as another host has taken over whose they are."""
        await super().flush()
        dropped, self._dropped = self._dropped, None
        if dropped is not None:
            raise dropped

    def look_here(self, work: Callable[[Snapshot], T]) -> T:
        """See `RowStorage`."""
        reading = self._server.run(lambda one: work(self._seen_by(ServerSnapshot, one)), write=False, settings=ACROSS)
        return reading.result()

    async def scrub(self, *, wait: float | None = None) -> bool:
        """Have the server give back the room of deleted rows; what old transactions still see stays until later."""
        self._check_open()
        try:
            await outcome(self._server.vacuum("rows", wait=self._wait if wait is None else min(wait, self._wait)))
        except StoreError:
            return False
        return True

    def _accept(self, changes: dict[str, Change]) -> None:
        if self._leases is not None and self._leases.lost and not self._leases.lost.isdisjoint(self._names(changes)):
            raise _taken_over(self.location)

    def _seen_by(self, kind: type[SnapshotT], connection: Connection) -> SnapshotT:
        return kind(connection, self._space_of, self._part_of)

    def _names(self, changes: Iterable[str]) -> set[str]:
        return {name for key in changes if (name := self._part_of(key)) is not None}

    def _space_of(self, key: str) -> str:
        name = self._part_of(key)
        return SHARED if name is None else self._namespace_of(name) or SHARED

    def _in_transaction(self, work: Callable[[Rows], T], *, wait: float | None = None) -> T:
        return self._run(work, exclusive=True, wait=wait)

    def _write_changes(self, changes: dict[str, Change]) -> None:
        # What is lost on the way is written again, whether it was stored or not: it comes to the same.
        if not self._run(lambda rows: self._applied(rows, changes), exclusive=False):
            self._dropped = _taken_over(self.location)
        elif self._leases is not None:
            self._leases.written(self._names(changes))

    def _applied(self, rows: ServerRows, changes: dict[str, Change]) -> bool:
        """Make changes but for those under a name that was lost, and tell whether it was all of them."""
        names = self._names(changes)
        lost = self._leases.lost_of(rows.connection, names) if self._leases is not None and names else frozenset()
        rows.apply({key: change for key, change in changes.items() if self._part_of(key) not in lost})
        return not lost

    def _run(self, work: Callable[[ServerRows], T], *, exclusive: bool, wait: float | None = None) -> T:
        """Run *work* in a transaction, and let looks pass until it begins."""
        begun: list[bool] = []

        def begin() -> None:
            if not begun:
                begun.append(True)
                self._looks.put(_stop)

        def plan(one: Connection) -> T:
            begin()
            return work(self._seen_by(ServerRows, one))

        running = self._server.run(
            plan,
            write=True,
            namespace=SHARED,
            exclusive=exclusive,
            settings=ACROSS,
            wait=self._wait if wait is None else min(wait, self._wait),
        )
        # It may never begin.
        running.add_done_callback(lambda _: begin())
        while (look := self._looks.get()) is not _stop:
            look()
        return running.result()

    def _inspect(self) -> list[Finding]:
        findings = self._server.run(check_durability, write=False).result()
        after: str | None = ""
        while after is not None:
            page = self.look_here(lambda rows, after=after: _damaged(rows, after))  # type: ignore[misc]  # bound
            findings += page[0]
            after = page[1]
        return findings

    def _shut(self) -> None:
        self._server.close()


def _taken_over(where: str) -> StoreBusy:
    return StoreBusy(
        f"another host has taken a conversation over, as this one did not reach {where} in time",
        waited=0.0,
        hint="what was stored in it since is lost; close it and open it again",
    )


def _stop() -> None:
    """Stand in the queue of looks for the beginning of a transaction."""


def _damaged(rows: Snapshot, after: str) -> tuple[list[Finding], str | None]:
    """Return what is wrong with a page of rows, and after which key the next one begins, None for the last."""
    page = rows.items("", after=after, limit=_PAGE)
    found = [Finding("error", "damaged", row.reason, key) for key, row in page if isinstance(row, Damaged)]
    return found, page[-1][0] if len(page) == _PAGE else None


def _between(prefix: str) -> tuple[str, str]:
    """Return between which keys those are that begin with *prefix*."""
    return range_of(prefix) if prefix else ("", "\x80")
