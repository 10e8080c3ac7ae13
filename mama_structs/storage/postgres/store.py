"""
Storage of rows on a PostgreSQL server, for any number of hosts.

Rows carry the same checksums as in a directory. Each row belongs to one namespace, so that row-level security applies.
Background writes of several hosts run concurrently: they write different keys or equal values. `transact` locks the
namespaces that it names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Self, TypeVar, cast

from mama_structs.errors import InvalidArgument, StoreBusy, StoreError
from mama_structs.storage.postgres.durability import check_durability
from mama_structs.storage.postgres.leases import Leases
from mama_structs.storage.postgres.pool import ALL_NAMESPACES_SETTINGS, Connection, PostgresPool
from mama_structs.storage.sealed_rows import (
    SEAL_BYTES,
    DamagedValue,
    NewValue,
    RowChange,
    Rows,
    Snapshot,
    check_key,
    check_value,
    key_range,
    seal,
    unseal,
)
from mama_structs.storage.sqlite_errors import Issue
from mama_structs.storage.sqlite_store import DEFAULT_WAIT_SECONDS, RowStorage, await_job

T = TypeVar("T")

PAGE_ROWS: Final = 500

GET_SQL: Final = "SELECT key, value FROM rows WHERE key = ANY($1::text[])"
PUT_SQL: Final = """
INSERT INTO rows (namespace, key, value) SELECT $1, * FROM unnest($2::text[], $3::bytea[])
ON CONFLICT (namespace, key) DO UPDATE SET value = excluded.value
"""
DELETE_SQL: Final = "DELETE FROM rows WHERE namespace = $1 AND key = ANY($2::text[])"
DELETE_RANGE_SQL: Final = "DELETE FROM rows WHERE namespace = $1 AND key >= $2 AND key < $3"
NAMESPACES_SQL: Final = "SELECT DISTINCT namespace FROM rows ORDER BY namespace"
# Takes the same advisory lock as the pool, to lock further namespaces in a transaction.
LOCK_SQL: Final = "SELECT pg_advisory_xact_lock(hashtextextended($1, 17))"
# If policies depend only on the column `namespace`, they show all rows of a namespace or none.
# PostgreSQL records no dependency for a whole-row reference, so look for it in the policy's expression.
# In the expression, a whole-row reference is a variable with column number 0.
IS_COMPLETE_SQL: Final = """
SELECT NOT row_security_active('rows') OR NOT EXISTS (
    SELECT FROM pg_policy WHERE polrelid = 'rows'::regclass AND (polqual::text LIKE '%:varattno 0 %' OR EXISTS (
        SELECT FROM pg_depend JOIN pg_attribute ON attrelid = refobjid AND attnum = refobjsubid
        WHERE classid = 'pg_policy'::regclass AND objid = pg_policy.oid AND refclassid = 'pg_class'::regclass
            AND refobjid = polrelid AND refobjsubid <> 0 AND attname <> 'namespace'))
) AS is_complete
"""
KEYS_SQL: Final = "SELECT key FROM rows WHERE {rule} ORDER BY key"
LAST_KEY_SQL: Final = "SELECT key FROM rows WHERE {rule} ORDER BY key DESC LIMIT 1"
ITEMS_SQL: Final = "SELECT key, value FROM rows WHERE {rule} ORDER BY key LIMIT {limit}"
SIZES_SQL: Final = "SELECT key, octet_length(value) AS size FROM rows WHERE {rule}"
KEY_RANGE_SQL: Final = "key >= $1 AND key < $2"


class PostgresSnapshot(Snapshot):
    """Snapshot of the rows of a namespace on a server. A *namespace* of None means all visible namespaces."""

    def __init__(self, connection: Connection, namespace: str | None) -> None:
        self.connection: Connection = connection
        self.namespace: str | None = namespace

    def in_namespace(self, namespace: str) -> Self:
        """Implements `Snapshot.in_namespace`."""
        return type(self)(self.connection, namespace)

    @property
    def is_complete(self) -> bool:
        """Implements `Snapshot.is_complete`."""
        return bool(self.connection.fetch(IS_COMPLETE_SQL)[0]["is_complete"])

    def storage_namespaces(self) -> tuple[str, ...]:
        """Return the visible namespaces that contain rows, sorted by name."""
        return tuple(row["namespace"] for row in self.connection.fetch(NAMESPACES_SQL))

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes | DamagedValue]:
        """Implements `Snapshot.get_many`."""
        if not keys:
            return {}
        return dict(self._read_values(f"{GET_SQL} AND namespace = $2", [*keys], self._require_namespace))

    def keys(self, prefix: str = "") -> list[str]:
        """Implements `Snapshot.keys`."""
        return [row["key"] for row in self._select_by_prefix(KEYS_SQL, prefix)]

    def last_key(self, prefix: str) -> str | None:
        """Implements `Snapshot.last_key`."""
        found = self._select_by_prefix(LAST_KEY_SQL, prefix)
        return found[0]["key"] if found else None

    def items(self, prefix: str, *, after: str = "", limit: int = -1) -> list[tuple[str, bytes | DamagedValue]]:
        """Implements `Snapshot.items`."""
        rows = self._select_by_prefix(ITEMS_SQL, prefix, after=after, limit="ALL" if limit < 0 else limit)
        return [(row["key"], unseal(row["key"], row["value"])) for row in rows]

    def sizes(self, prefix: str) -> dict[str, int]:
        """Implements `Snapshot.sizes`."""
        return {row["key"]: max(row["size"] - SEAL_BYTES, 0) for row in self._select_by_prefix(SIZES_SQL, prefix)}

    def _select_by_prefix(self, sql: str, prefix: str, *, after: str = "", limit: int | str = "") -> list[Any]:
        """Return the rows whose keys begin with *prefix*."""
        first, last = _key_range(prefix)
        # Keys contain no \x01, so no key is between *after* and this bound.
        given, rule = [max(first, f"{after}\x01") if after else first, last], KEY_RANGE_SQL
        if self.namespace is not None:
            given.append(self.namespace)
            rule = f"namespace = $3 AND {KEY_RANGE_SQL}"
        return self.connection.fetch(sql.format(rule=rule, limit=limit), *given)

    @property
    def _require_namespace(self) -> str:
        if self.namespace is None:
            raise InvalidArgument("rows of a server are read and written by key within one namespace only")
        return self.namespace

    def _read_values(self, sql: str, *arguments: Any) -> list[tuple[str, bytes | DamagedValue]]:
        return [(row["key"], unseal(row["key"], row["value"])) for row in self.connection.fetch(sql, *arguments)]


class PostgresRows(PostgresSnapshot, Rows):
    """The rows of a namespace on a server, inside one write transaction."""

    def put(self, key: str, value: bytes) -> None:
        """Implements `Rows.put`."""
        check_value(value)
        self._put({check_key(key): value})

    def delete(self, key: str) -> bool:
        """Implements `Rows.delete`."""
        return bool(self._delete([check_key(key)]))

    def delete_prefix(self, prefix: str) -> None:
        """Implements `Rows.delete_prefix`."""
        self.connection.execute(DELETE_RANGE_SQL, self._require_namespace, *_key_range(prefix))
        self.connection.note_change()

    def apply_changes(self, changes: dict[str, RowChange]) -> None:
        """Apply *changes* with at most three statements."""
        new = [key for key, change in changes.items() if isinstance(change, NewValue)]
        whole = {key for key, value in self.get_many(new).items() if isinstance(value, bytes)}
        values = {
            key: change.value if isinstance(change, NewValue) else change
            for key, change in changes.items()
            if change is not None and key not in whole
        }
        if values:
            self._put(values)
        gone = [key for key, change in changes.items() if change is None]
        if gone:
            self._delete(gone)

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        """Implements `Rows.savepoint`."""
        with self.connection.savepoint():
            yield

    def _put(self, values: dict[str, bytes]) -> None:
        # Sort the keys, so that concurrent writers lock rows in the same order and cannot deadlock.
        keys = sorted(values)
        self.connection.execute(PUT_SQL, self._require_namespace, keys, [seal(key, values[key]) for key in keys])
        self.connection.note_change()

    def _delete(self, keys: Sequence[str]) -> int:
        count = self.connection.execute(DELETE_SQL, self._require_namespace, sorted(keys))
        self.connection.note_change()
        return count


class PostgresStorage(RowStorage):
    """
    A store on a PostgreSQL server.

    Args:
        server: The connection pool. It is closed with the store.
        namespace: Default namespace of calls. Without it each call must name one.
        lease_name_of: Returns the name whose lease is required to write a key, or None.
        leases: The leases of these names. Rows under a lost lease are not written.
        wait: Seconds to wait for other writers.

    """

    def __init__(
        self,
        server: PostgresPool,
        *,
        namespace: str | None = None,
        lease_name_of: Callable[[str], str | None] = lambda _key: None,
        leases: Leases | None = None,
        wait: float = DEFAULT_WAIT_SECONDS,
    ) -> None:
        self._pool = server
        self._namespace = namespace
        self._lease_name_of = lease_name_of
        self._leases = leases
        self._dropped_rows_error: StoreBusy | None = None
        super().__init__(server.location, name="rows", wait=wait)

    def storage_namespace(self, namespace: str | None) -> str:
        """Implements `RowStorage.storage_namespace`. Each namespace is stored separately."""
        found = self._namespace if namespace is None else namespace
        if not found:
            raise InvalidArgument("rows on a server belong to a namespace", hint="name the namespace of the rows")
        return found

    @property
    def is_read_only(self) -> bool:
        """Implements `RowStorage.is_read_only`."""
        return self._pool.is_read_only

    async def storage_namespaces(self) -> tuple[str, ...]:
        """Implements `RowStorage.storage_namespaces`."""
        return await self.run_read(lambda rows: cast("PostgresSnapshot", rows).storage_namespaces())

    async def flush(self) -> None:
        """
        Implements `RowStorage.flush`.

        Raise an error, once, if rows were dropped because another host took over their lease.
        """
        await super().flush()
        dropped, self._dropped_rows_error = self._dropped_rows_error, None
        if dropped is not None:
            raise dropped

    def run_read_in_job(self, work: Callable[[Snapshot], T], *, namespace: str | None = None) -> T:
        """Implements `RowStorage.run_read_in_job`."""
        space = self._namespace if namespace is None else namespace
        reading = self._pool.run(
            lambda one: work(PostgresSnapshot(one, space)),
            write=False,
            namespace=space,
            settings=ALL_NAMESPACES_SETTINGS if space is None else {},
        )
        return reading.result()

    async def erase_deleted_data(self, *, wait: float | None = None) -> bool:
        """
        Make the server remove deleted rows from its files.

        Return False if old transactions still see deleted rows.
        """
        self._check_open()
        try:
            await await_job(self._pool.vacuum("rows", wait=self._wait if wait is None else min(wait, self._wait)))
        except StoreError:
            return False
        return True

    def _check_changes(self, changes: dict[str, RowChange]) -> None:
        if (
            self._leases is not None
            and self._leases.lost_names
            and not self._leases.lost_names.isdisjoint(self._lease_names(changes))
        ):
            raise _taken_over_error(self.location)

    def _lease_names(self, changes: Iterable[str]) -> set[str]:
        return {name for key in changes if (name := self._lease_name_of(key)) is not None}

    def _run_transaction(self, work: Callable[[Rows], T], *, spaces: Sequence[str], wait: float | None = None) -> T:
        # Lock namespaces in sorted order, so that two transactions on the same ones cannot deadlock.
        first, *others = sorted({*spaces})

        def plan(rows: PostgresRows) -> T:
            for one in others:
                rows.connection.fetch(LOCK_SQL, one)
            return work(rows.in_namespace(spaces[0]))

        return self._run_write(
            plan, first, exclusive=True, settings=ALL_NAMESPACES_SETTINGS if others else {}, wait=wait
        )

    def _write_changes(self, changes: dict[str, RowChange], space: str) -> None:
        # Writing is idempotent, so changes may be written again after a connection was lost before the answer.
        if not self._run_write(lambda rows: self._apply_unlost_changes(rows, changes), space, exclusive=False):
            self._dropped_rows_error = _taken_over_error(self.location)
        elif self._leases is not None:
            self._leases.record_written(self._lease_names(changes))

    def _apply_unlost_changes(self, rows: PostgresRows, changes: dict[str, RowChange]) -> bool:
        """
        Apply all changes except those under a lost lease.

        Return True if all changes were applied.
        """
        names = self._lease_names(changes)
        lost = (
            self._leases.find_lost_names(rows.connection, names) if self._leases is not None and names else frozenset()
        )
        rows.apply_changes({key: change for key, change in changes.items() if self._lease_name_of(key) not in lost})
        return not lost

    def _run_write(
        self,
        work: Callable[[PostgresRows], T],
        space: str,
        *,
        exclusive: bool,
        settings: Mapping[str, str] | None = None,
        wait: float | None = None,
    ) -> T:
        """Run *work* in a transaction on a namespace. While it waits to begin, this thread runs queued reads."""
        begun: list[bool] = []

        def begin() -> None:
            if not begun:
                begun.append(True)
                self._queued_reads.put(_stop_reading)

        def plan(one: Connection) -> T:
            begin()
            return work(PostgresRows(one, space))

        running = self._pool.run(
            plan,
            write=True,
            namespace=space,
            exclusive=exclusive,
            settings=settings,
            wait=self._wait if wait is None else min(wait, self._wait),
        )
        # Stop reading even if the transaction failed to begin, and so never called its function.
        running.add_done_callback(lambda _: begin())
        while (look := self._queued_reads.get()) is not _stop_reading:
            look()
        return running.result()

    def _inspect(self) -> list[Issue]:
        findings = self._pool.run(check_durability, write=False).result()
        for space in self.run_read_in_job(lambda rows: cast("PostgresSnapshot", rows).storage_namespaces()):
            after: str | None = ""
            while after is not None:
                page = self.run_read_in_job(lambda rows, after=after: _find_damage(rows, after), namespace=space)  # type: ignore[misc]  # bound
                findings += page[0]
                after = page[1]
        return findings

    def _close_database(self) -> None:
        self._pool.close()


def _taken_over_error(location: str) -> StoreBusy:
    return StoreBusy(
        f"another host has taken a conversation over, as this one did not reach {location} in time",
        waited=0.0,
        hint="what was stored in it since is lost; close it and open it again",
    )


def _stop_reading() -> None:
    """Sentinel in the queue of reads. It means that the transaction has begun."""


def _find_damage(rows: Snapshot, after: str) -> tuple[list[Issue], str | None]:
    """Return the issues in one page of rows, and the last key of the page, or None after the last page."""
    page = rows.items("", after=after, limit=PAGE_ROWS)
    found = [Issue("error", "damaged", row.reason, key) for key, row in page if isinstance(row, DamagedValue)]
    return found, page[-1][0] if len(page) == PAGE_ROWS else None


def _key_range(prefix: str) -> tuple[str, str]:
    """Return the range of the keys with *prefix*: the first key, and the end (excluded)."""
    return key_range(prefix) if prefix else ("", "\x80")
