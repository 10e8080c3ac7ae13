"""
Connection pool for a PostgreSQL server, shared by all sessions of a process.

Any event loop and thread may use it.

The connections live in a dedicated event loop in its own thread. Callers submit a synchronous function, which runs in a
worker thread on a `Connection` inside one transaction. A read transaction sees one snapshot. A write transaction holds
an advisory lock on its namespace, so that each namespace has one writer at a time, and sees all earlier commits.
Connections carry no session state, so a transaction pooler such as PgBouncer may be in between.

Every wait has a timeout: for a connection, a lock or an answer. Broken connections are discarded, and a read
transaction is then retried once. If a commit gets no answer, its outcome is looked up by the token that it wrote.

Errors name the server by the result of `errors.redact_url`. They never contain a statement, a value or a password.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs._internal.caches import RefCountedRegistry
from mama_structs._internal.event_loop import call_sync
from mama_structs.errors import (
    InvalidArgument,
    MamaStructsError,
    SessionClosed,
    StoreBusy,
    StoreError,
    StoreReadOnly,
    StoreUnreachable,
    WrongLoop,
)
from mama_structs.settings import ServerSettings
from mama_structs.storage.postgres import schema_migrations
from mama_structs.storage.postgres.schema_migrations import SCHEMA
from mama_structs.storage.postgres.write_queue import WriteQueues

T = TypeVar("T")

# Seconds that the client waits longer than the server, so that the server reports its timeout first.
CLIENT_GRACE_SECONDS: Final = 2.0
RETRY_INTERVAL_SECONDS: Final = 0.05
# An advisory lock, because a shared lock on a row would write to the row. Waiters are served in order.
# The namespace is passed as a setting, so that no value is formatted into a statement.
LOCK_SQL: Final = "SELECT pg_advisory_xact_lock(hashtextextended(current_setting('app.namespace'), 17))"
LOCK_SHARED_SQL: Final = "SELECT pg_advisory_xact_lock_shared(hashtextextended(current_setting('app.namespace'), 17))"
# Override settings of the role or database that acknowledge commits before they reach the disk.
# Keep "remote_apply", which is stricter: it also waits until replicas have applied the change.
SYNCHRONOUS_COMMIT_SQL: Final = """
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') <> 'remote_apply'
"""
# Run this as the last statement of a message, because only the status of the last statement is returned.
# The status contains the number of rows, which is 0 unless the schema version has changed.
VERSION_CHANGED_SQL: Final = "SELECT FROM mama_structs.migrations HAVING max(version) IS DISTINCT FROM {version}"
VERSION_UNCHANGED_STATUS: Final = "SELECT 0"
VERSION_SQL: Final = "SELECT coalesce(max(version), 0) FROM mama_structs.migrations"
# Stores the last 4096 changes of a namespace, each with a token.
# If the answer to a commit is lost, the token shows whether the change was stored.
COUNT_AND_COMMIT_SQL: Final = """
INSERT INTO namespaces AS known (namespace, change) VALUES (current_setting('app.namespace'), 1)
    ON CONFLICT (namespace) DO UPDATE SET change = known.change + 1;
INSERT INTO changes (namespace, change, token)
    SELECT namespace, change, current_setting('app.token')::uuid FROM namespaces
    WHERE namespace = current_setting('app.namespace');
DELETE FROM changes WHERE namespace = current_setting('app.namespace')
    AND change <= (SELECT change - 4096 FROM namespaces WHERE namespace = current_setting('app.namespace'));
COMMIT
"""
OWNS_TABLES_SQL: Final = """
SELECT bool_and(pg_has_role(relowner, 'USAGE')) FROM unnest($1::text[]) AS name JOIN pg_class ON oid = name::regclass
"""
OLDER_TRANSACTION_SQL: Final = """
SELECT 1 FROM (
    SELECT unnest(ARRAY[backend_xmin, backend_xid]) AS oldest FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND coalesce(datname, current_database()) = current_database()
    UNION ALL SELECT xmin FROM pg_replication_slots
    UNION ALL SELECT transaction FROM pg_prepared_xacts WHERE database = current_database()
) AS held WHERE age(oldest) > age($1::text::xid8::xid) LIMIT 1
"""
# By default VACUUM skips indexes if few rows are deleted. ANALYZE removes deleted data from statistics.
VACUUM_SQL: Final = "VACUUM (ANALYZE, INDEX_CLEANUP ON)"
FIND_COMMIT_SQL: Final = "SELECT 1 FROM changes WHERE namespace = $1 AND token = $2"
SETTING_PATTERN: Final = re.compile(r"[a-z_]+\.[a-z_]+|plan_cache_mode|enable_[a-z]+|max_parallel_workers_per_gather")
ALL_NAMESPACES_SETTINGS: Final = {"app.across": "on"}
"""Settings of a transaction that spans all namespaces that its role may see."""


@attrs.frozen(kw_only=True)
class _TransactionOptions:
    """Options of one transaction."""

    write: bool
    namespace: str | None
    exclusive: bool
    settings: Mapping[str, str]
    wait_seconds: float
    token: uuid.UUID = attrs.field(factory=uuid.uuid4)


class Connection:
    """
    A connection inside one transaction, used from a worker thread.

    SQL arguments are `$1`, `$2` and so on. After a failure every further statement raises the same error, and nothing
    is stored.
    """

    def __init__(self, server: PostgresPool, connection: Any, options: _TransactionOptions) -> None:
        self.namespace: str | None = options.namespace
        self.statement_count: int = 0
        self.failure: MamaStructsError | None = None
        self.has_changes: bool = False
        self.has_executed: bool = False
        self._pool = server
        self._connection = connection
        # Errors of reads do not name a namespace, because a denied read means a missing grant.
        self._written_namespace = (
            (options.namespace or options.settings.get("app.namespace")) if options.write else None
        )
        self._has_ended = False
        self._change: int | None = None

    def fetch(self, sql: str, *arguments: Any) -> list[Any]:
        """Run a query and return its rows. If the query writes, call `note_change` as well."""
        rows: list[Any] = self._run_statement(lambda timeout: self._connection.fetch(sql, *arguments, timeout=timeout))
        return rows

    def execute(self, sql: str, *arguments: Any) -> int:
        """Execute a statement, and return the number of affected rows."""
        self.has_executed = True
        status: str = self._run_statement(lambda timeout: self._connection.execute(sql, *arguments, timeout=timeout))
        count = status.rpartition(" ")[2]
        return int(count) if count.isdecimal() else 0

    @property
    def change(self) -> int:
        """Number of the namespace's last change. It is queried once per transaction."""
        if self._change is None:
            found = self.fetch("SELECT change FROM namespaces WHERE namespace = $1", self.namespace)
            self._change = found[0]["change"] if found else 0
        return self._change

    def note_change(self) -> None:
        """Count one change of the namespace at the commit. Its number is `change` + 1."""
        self.has_changes = True

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        """Run the block in a savepoint, and roll back to it if the block raises."""
        self.execute("SAVEPOINT attempt")
        try:
            yield
        except BaseException:
            if self.failure is None:
                self.execute("ROLLBACK TO SAVEPOINT attempt")
            raise
        finally:
            if self.failure is None:
                self.execute("RELEASE SAVEPOINT attempt")

    def end(self) -> None:
        """Reject further use. Called when the transaction has ended."""
        self._has_ended = True

    def _run_statement(self, statement: Callable[[float], Coroutine[Any, Any, T]]) -> T:
        if self._has_ended:
            raise SessionClosed("this connection belongs to a transaction that is over")
        if self.failure is not None:
            raise self.failure
        self.statement_count += 1
        answer, failure = self._pool.run_in_loop(statement, namespace=self._written_namespace)
        if failure is not None:
            self.failure = failure
            raise failure
        return answer  # type: ignore[return-value]  # there is one, or a failure


class PostgresPool:
    """Connection pool of a server. All calls of `open` with the same URL share it."""

    def __init__(self, url: str, options: ServerSettings) -> None:
        self.url: str = check_url(url)
        self._failures, self._asyncpg = _import_modules()
        self.location: str = self._failures.redact_url(url)
        self.options: ServerSettings = options
        self._pid = os.getpid()
        self._pool: Any = None
        self._schema_state: Any = None
        self._is_closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._write_queues = WriteQueues()
        self._active_count = 0
        # Running tasks of `run_on_dedicated_connection`, each with its connection, which is None until it is open.
        self._dedicated_tasks: dict[asyncio.Task[Any] | None, Any] = {}
        self._workers = ThreadPoolExecutor(options.max_connections, thread_name_prefix="mama-structs plan")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mama-structs server", daemon=True)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.location!r}{' closed' if self._is_closed else ''}>"

    @classmethod
    def open(cls, url: str, *, options: ServerSettings | None = None) -> PostgresPool:
        """
        Connect to a server, and migrate the database to this version. Blocks.

        The options of the first call in a process apply to all later calls with the same URL.

        Raises:
            InvalidArgument: *url* is not the URL of a PostgreSQL server.
            StoreError: The server is unreachable or unusable, or pgvector is missing or too old.

        """

        def make() -> PostgresPool:
            made = cls(url, options or ServerSettings())
            made._connect()
            return made

        return open_pools.acquire(check_url(url), make)

    @property
    def is_read_only(self) -> bool:
        """
        True if the server was read-only when it was opened.

        A replica may have become the primary since then.
        """
        return bool(self._schema_state.is_read_only)

    def run(
        self,
        work: Callable[[Connection], T],
        *,
        write: bool,
        namespace: str | None = None,
        exclusive: bool = True,
        settings: Mapping[str, str] | None = None,
        wait: float | None = None,
    ) -> Future[T]:
        """
        Run a function in one transaction, and return its result after a durable commit.

        Args:
            work: A synchronous function. If it only reads, it may be run twice.
            write: Whether it may write.
            namespace: The namespace that a write locks and that row-level security checks. None locks nothing.
            exclusive: If False, take a shared lock: other shared writers run concurrently, and no change is counted.
            settings: Settings of this transaction, of extensions or the planner, such as ``{"hnsw.ef_search": "100"}``.
            wait: Maximum seconds to wait for a connection and for other writers; capped by the options.

        Raises:
            StoreBusy: No connection was free, or another writer did not finish in time. Nothing was stored.
            StoreReadOnly: The server is read-only.
            StoreUnreachable: The server did not answer. Unless the message says otherwise, nothing was stored.
            StoreError: Any other failure. Nothing was stored.

        """
        self._check_usable()
        given = dict(settings or {})
        if not all(map(SETTING_PATTERN.fullmatch, given)):
            raise InvalidArgument("a setting must belong to an extension, such as hnsw.ef_search, or to the planner")
        if namespace is not None and "\0" in namespace:
            raise InvalidArgument("a server cannot keep a namespace whose name has a NUL", hint="take another name")
        patience = self.options.pool_timeout if wait is None else min(wait, self.options.pool_timeout)
        how = _TransactionOptions(
            write=write, namespace=namespace, exclusive=exclusive, settings=given, wait_seconds=patience
        )
        done: Future[T] = Future()
        # Mark the future as running. Otherwise a caller that stops waiting would cancel it.
        done.set_running_or_notify_cancel()
        self._loop.call_soon_threadsafe(self._start_transaction, work, how, done)
        return done

    @property
    def vector_schema(self) -> str:
        """The schema that contains pgvector's types, as a quoted identifier."""
        return str(self._schema_state.vector_schema)

    def run_on_dedicated_connection(
        self, work: Callable[[Any], Coroutine[Any, Any, T]], wait: Callable[[], Coroutine[Any, Any, None]]
    ) -> Future[T]:
        """
        Await *wait*, then run a coroutine on a dedicated connection, outside of any transaction.

        Closing the pool cancels *wait* and stops waiting for the work, but does not cancel it on the server.
        """
        self._check_usable()
        return asyncio.run_coroutine_threadsafe(self._run_dedicated(work, wait), self._loop)

    def vacuum(self, *tables: str, wait: float) -> Future[None]:
        """
        Run VACUUM on tables within *wait* seconds.

        VACUUM removes deleted data from the tables and their statistics.

        Raises:
            StoreBusy: A running transaction may still read the deleted rows.
            StoreReadOnly: The role does not own the tables.
            StoreError: The server cannot do it.

        """
        self._check_usable()
        if not all(map(str.isidentifier, tables)):
            raise InvalidArgument("the name of a table to vacuum must be an identifier")
        return asyncio.run_coroutine_threadsafe(self._vacuum(tables, wait), self._loop)

    def close(self) -> None:
        """
        Release this reference to the pool. Blocks.

        The release of the last reference closes the connections after running work has finished.
        """
        if not self._is_closed and open_pools.release(self.url) is self:
            self.close_now()

    def close_now(self) -> None:
        """Close the connections, even if others use the pool. Blocks until running work has finished."""
        self._is_closed = True
        if os.getpid() != self._pid or not self._thread.is_alive():
            return
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result(self._thread_timeout)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLIENT_GRACE_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()
        self._workers.shutdown(wait=not self._tasks)

    def run_in_loop(
        self, make_coroutine: Callable[[float], Coroutine[Any, Any, T]], *, namespace: str | None = None
    ) -> tuple[T | None, MamaStructsError | None]:
        """
        Run a coroutine in the pool's loop, and block until it ends.

        Return the result and None, or None and a typed error without a cause.
        """
        started = time.monotonic()

        async def answer() -> T:
            return await make_coroutine(self._answer_timeout)

        asked = asyncio.run_coroutine_threadsafe(answer(), self._loop)
        try:
            return asked.result(self._thread_timeout), None
        except concurrent.futures.CancelledError:
            return None, SessionClosed(f"the connection to {self.location} was closed")
        except Exception as error:  # noqa: BLE001 - converted to a typed error
            return None, self._to_store_error(error, started, namespace)

    @property
    def _answer_timeout(self) -> float:
        """Maximum seconds to wait for an answer of the server."""
        return self.options.statement_timeout + CLIENT_GRACE_SECONDS

    @property
    def _thread_timeout(self) -> float:
        """Maximum seconds that a thread waits for the loop, longer than all timeouts inside the loop."""
        return self._answer_timeout + self.options.connect_timeout + self.options.pool_timeout + CLIENT_GRACE_SECONDS

    def _to_store_error(self, error: BaseException, started: float, namespace: str | None = None) -> MamaStructsError:
        made: MamaStructsError = self._failures.to_store_error(
            error,
            self.location,
            waited=time.monotonic() - started,
            namespace=namespace,
            role=None if self._schema_state is None else self._schema_state.role,
        )
        return made

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise WrongLoop("the server belongs to the process that opened it", hint="open another session here")
        if self._is_closed:
            raise SessionClosed(f"the connection to {self.location} was closed")

    # The methods below run in the loop's thread, except `_connect`.

    def _connect(self) -> None:
        self._thread.start()
        failure: BaseException | None = None
        started = time.monotonic()
        try:
            asyncio.run_coroutine_threadsafe(self._open_pool(), self._loop).result()
        except Exception as error:  # noqa: BLE001 - converted to a typed error
            failure = self._to_store_error(error, started)
        except BaseException:
            self.close_now()
            raise
        if failure is not None:
            self.close_now()
            raise failure

    @property
    def _connect_options(self) -> dict[str, Any]:
        options = self.options
        return {
            "dsn": self.url,
            "timeout": options.connect_timeout,
            "command_timeout": self._answer_timeout,
            "statement_cache_size": 100 if options.prepared_statements else 0,
            "server_settings": {"application_name": "mama_structs"},
        }

    async def _open_pool(self) -> None:
        connection = await self._asyncpg.connect(**self._connect_options)
        try:
            self._schema_state = await schema_migrations.prepare_database(
                connection, self.location, wait=self._answer_timeout
            )
        finally:
            connection.terminate()
        self._pool = await self._asyncpg.create_pool(
            min_size=0,
            max_size=self.options.max_connections,
            init=self._register_codecs,
            reset=_skip_reset,
            **self._connect_options,
        )

    async def _register_codecs(self, connection: Any) -> None:
        """Register codecs on a new connection. They convert pgvector's types from and to arrays."""
        schema = await connection.fetchval("SELECT (parse_ident($1))[1]", self._schema_state.vector_schema)
        for name, kind in (("vector", ">f4"), ("halfvec", ">f2")):
            await connection.set_type_codec(
                name, schema=schema, encoder=_vector_encoder(kind), decoder=_vector_decoder(kind), format="binary"
            )

    def _start_transaction(
        self, work: Callable[[Connection], T], options: _TransactionOptions, done: Future[T]
    ) -> None:
        task = self._loop.create_task(self._run_queued(work, options))
        self._tasks.add(task)

        def ended(task: asyncio.Task[T]) -> None:
            self._tasks.discard(task)
            if task.cancelled():
                done.set_exception(SessionClosed(f"the connection to {self.location} was closed"))
            elif (error := task.exception()) is not None:
                done.set_exception(error)
            else:
                done.set_result(task.result())

        task.add_done_callback(ended)

    async def _run_queued(self, work: Callable[[Connection], T], options: _TransactionOptions) -> T:
        async with contextlib.AsyncExitStack() as turn:
            if options.namespace is not None and options.write and options.exclusive:
                busy = functools.partial(self._queue_timeout_error, options.wait_seconds)
                await turn.enter_async_context(
                    self._write_queues.acquire_turn(options.namespace, wait=options.wait_seconds, make_busy_error=busy)
                )
            self._active_count += 1
            try:
                return await self._run_with_retry(work, options)
            finally:
                self._active_count -= 1

    def _queue_timeout_error(self, waited: float) -> StoreBusy:
        return StoreBusy(
            f"{self.location}: earlier writes in the queue were not finished for {waited:.1f} s",
            waited=waited,
            hint="nothing was stored; try again",
        )

    async def _run_with_retry(self, work: Callable[[Connection], T], options: _TransactionOptions) -> T:
        is_second = False
        while True:
            connection_handle = await self._acquire_connection(options.wait_seconds)
            connection = Connection(self, connection_handle, options)
            is_cut = False
            try:
                return await self._run_transaction(connection, work, options)
            except _BeginFailed as error:
                failure: MamaStructsError = error.failure
                is_cut = isinstance(failure, StoreUnreachable)
                may_again = True
            except StoreUnreachable as error:
                failure = error
                is_cut = True
                may_again = not options.write
            finally:
                connection.end()
                # Treat the connection as broken if it does not answer, because closing it cleanly would take too long.
                await self._release_connection(connection_handle, is_broken=is_cut)
            if is_second or not may_again or not isinstance(failure, StoreUnreachable):
                raise failure
            is_second = True
            await self._pool.expire_connections()

    async def _acquire_connection(self, wait: float) -> Any:
        """Acquire a connection from the pool. Wait if none is free."""
        started = time.monotonic()
        # If the pool may still open a connection, wait longer, because connecting to the server takes time.
        is_exhausted = self._is_exhausted
        patience = max(wait, RETRY_INTERVAL_SECONDS) if is_exhausted else max(wait, self.options.connect_timeout)
        failure: MamaStructsError
        try:
            return await self._pool.acquire(timeout=patience)
        except TimeoutError as error:
            if is_exhausted or self._is_exhausted:
                max_connections = self.options.max_connections
                failure = StoreBusy(
                    f"all {max_connections} connections of this process to {self.location} "
                    f"were in use for {patience:.1f} s",
                    waited=patience,
                    hint="nothing was stored; try again, or allow more connections",
                )
            else:
                failure = self._to_store_error(error, started)
        except Exception as error:  # noqa: BLE001 - converted to a typed error
            failure = self._to_store_error(error, started)
        raise failure

    @property
    def _is_exhausted(self) -> bool:
        """
        True if every connection is in use.

        A broken connection counts as in use until its transaction ends.
        """
        max_connections = self.options.max_connections
        return self._active_count > max_connections or bool(
            self._pool.get_size() >= max_connections and not self._pool.get_idle_size()
        )

    async def _vacuum(self, tables: Sequence[str], wait: float) -> None:
        until = time.monotonic() + wait
        started = time.monotonic()
        connection = await self._acquire_connection(wait)
        failure: MamaStructsError
        try:
            names = [f"{SCHEMA}.{table}" for table in tables]
            if not await connection.fetchval(OWNS_TABLES_SQL, names, timeout=self._answer_timeout):
                # Raise here, because the server would skip the tables and only log a warning.
                raise StoreReadOnly(f"the tables of {self.location} can only be vacuumed by their owner")
            now = await connection.fetchval("SELECT pg_current_xact_id()::text", timeout=self._answer_timeout)
            # Wait for older transactions, because VACUUM only removes rows that no transaction can see.
            while await connection.fetchval(OLDER_TRANSACTION_SQL, now, timeout=self._answer_timeout):
                if time.monotonic() >= until:
                    raise StoreBusy(
                        f"a transaction on {self.location} can still read the deleted rows",
                        waited=time.monotonic() - started,
                        hint="look for a long transaction in pg_stat_activity",
                    )
                await asyncio.sleep(RETRY_INTERVAL_SECONDS)
            await connection.execute(
                f"{VACUUM_SQL} {', '.join(names)}", timeout=max(until - time.monotonic(), self._answer_timeout)
            )
        except Exception as error:  # noqa: BLE001 - converted to a typed error
            failure = self._to_store_error(error, started)
        else:
            return
        finally:
            await self._release_connection(connection)
        raise failure

    async def _run_dedicated(
        self, work: Callable[[Any], Coroutine[Any, Any, T]], wait: Callable[[], Coroutine[Any, Any, None]]
    ) -> T:
        started, task = time.monotonic(), asyncio.current_task()
        self._dedicated_tasks[task] = None
        failure: MamaStructsError
        try:
            await wait()
            connection = self._dedicated_tasks[task] = await self._asyncpg.connect(**self._connect_options)
            return await work(connection)
        except Exception as error:  # noqa: BLE001 - converted to a typed error
            failure = self._to_store_error(error, started)
        finally:
            connection = self._dedicated_tasks.pop(task)
            if connection is not None:
                connection.terminate()
        raise failure

    async def _release_connection(self, connection: Any, *, is_broken: bool = False) -> None:
        with contextlib.suppress(Exception):
            # Discard a connection with an open transaction, because another caller would continue the transaction.
            if is_broken or connection.is_in_transaction():
                connection.terminate()
        with contextlib.suppress(Exception):
            await self._pool.release(connection)

    async def _run_transaction(
        self, connection: Connection, work: Callable[[Connection], T], options: _TransactionOptions
    ) -> T:
        held = connection._connection
        failure = await self._begin_transaction(held, options)
        if failure is not None:
            raise _BeginFailed(failure)
        try:
            result = await self._loop.run_in_executor(self._workers, _run_work, work, connection)
        except BaseException:
            if not isinstance(connection.failure, StoreUnreachable):
                await self._send(held, "ROLLBACK")
            raise
        is_counted = options.namespace is not None and options.exclusive and connection.has_changes
        failure = await self._send(held, COUNT_AND_COMMIT_SQL if is_counted else "COMMIT", options.namespace)
        # If nothing was written, it does not matter whether the commit succeeded.
        if failure is None or not (connection.has_changes or connection.has_executed):
            return result
        if isinstance(failure, StoreUnreachable):
            # Release this connection first. The lookup needs a connection, and this may be the last free one.
            await self._release_connection(held, is_broken=True)
            if await self._is_committed(options if is_counted else None):
                return result
        raise failure

    async def _begin_transaction(self, connection: Any, options: _TransactionOptions) -> MamaStructsError | None:
        """
        Begin a transaction. If that fails, return the error.

        A write transaction requires the schema version of this package.
        """
        started = time.monotonic()
        try:
            status = await connection.execute(self._begin_sql(options), timeout=self._answer_timeout)
            if options.write and status != VERSION_UNCHANGED_STATUS:
                version = await connection.fetchval(VERSION_SQL, timeout=self._answer_timeout)
                schema_migrations.check_same_version(version, self._schema_state.version, self.location)
        except Exception as error:  # noqa: BLE001 - converted to a typed error
            return self._to_store_error(error, started)
        return None

    async def _send(self, connection: Any, sql: str, namespace: str | None = None) -> MamaStructsError | None:
        """Send statements in one message. If they fail, return the error."""
        started = time.monotonic()
        try:
            await connection.execute(sql, timeout=self._answer_timeout)
        except Exception as error:  # noqa: BLE001 - converted to a typed error
            return self._to_store_error(error, started, namespace)
        return None

    def _begin_sql(self, transaction: _TransactionOptions) -> str:
        """Return all statements that begin a transaction. They are sent in one message, to save round trips."""
        milliseconds = int(self.options.statement_timeout * 1000)
        kind = "READ COMMITTED" if transaction.write else "REPEATABLE READ, READ ONLY"
        settings = {
            "app.namespace": transaction.namespace or "",
            "app.token": str(transaction.token),
            **transaction.settings,
        }
        lines = [
            f"BEGIN ISOLATION LEVEL {kind}",
            # Do not JIT-compile, because compiling a complex statement takes longer than running it.
            "SET LOCAL jit = off",
            f"SET LOCAL search_path = {self._schema_state.search_path}",
            f"SET LOCAL statement_timeout = {milliseconds}",
            # At least 1 ms, because 0 would disable the timeout.
            f"SET LOCAL lock_timeout = {max(1, int(transaction.wait_seconds * 1000))}",
            # After this time without a statement, the server releases the locks of a vanished host.
            f"SET LOCAL idle_in_transaction_session_timeout = {int(self._answer_timeout * 1000)}",
            "SELECT "
            + ", ".join(
                f"set_config({_quote_literal(name)}, {_quote_literal(value)}, true)" for name, value in settings.items()
            ),
        ]
        if transaction.write:
            lines += [
                SYNCHRONOUS_COMMIT_SQL,
                f"SELECT pg_advisory_xact_lock_shared({schema_migrations.MIGRATION_LOCK_ID})",
            ]
            if transaction.namespace is not None:
                lines.append(LOCK_SQL if transaction.exclusive else LOCK_SHARED_SQL)
            # Check the version after locking, because no migration can run while this transaction holds the lock.
            lines.append(VERSION_CHANGED_SQL.format(version=self._schema_state.version))
        return ";".join(lines)

    async def _is_committed(self, transaction: _TransactionOptions | None) -> bool:
        """
        Return True if a commit that got no answer was stored.

        Raise an error if that cannot be determined.
        """
        until = time.monotonic() + self.options.pool_timeout
        while transaction is not None and time.monotonic() < until:
            with contextlib.suppress(StoreError):
                held = await self._acquire_connection(self.options.pool_timeout)
                try:
                    # Taking the lock waits until the interrupted transaction has committed or rolled back.
                    failure = await self._send(
                        held, self._begin_sql(attrs.evolve(transaction, wait_seconds=self.options.pool_timeout))
                    )
                    if isinstance(failure, StoreReadOnly):
                        break
                    if failure is None:
                        return bool(
                            await held.fetch(
                                FIND_COMMIT_SQL, transaction.namespace, transaction.token, timeout=self._answer_timeout
                            )
                        )
                except Exception:  # noqa: BLE001, S110 - the lookup is retried
                    pass
                finally:
                    await self._release_connection(held)
            await asyncio.sleep(RETRY_INTERVAL_SECONDS)
        raise StoreUnreachable(
            f"{self.location} gave no answer to the commit: the changes may be stored, or not",
            hint="check whether the changes are stored before you repeat them",
        )

    async def _shut_down(self) -> None:
        """Close all connections after running work has finished. At the timeout, terminate them."""
        for task, held in [*self._dedicated_tasks.items()]:
            # Only terminate the connection. Cancelling would also cancel the work on the server.
            if held is not None:
                held.terminate()
            elif task is not None:
                task.cancel()
        if self._dedicated_tasks:
            await asyncio.wait(
                [task for task in self._dedicated_tasks if task is not None], timeout=CLIENT_GRACE_SECONDS
            )
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._answer_timeout)
            self._write_queues.fail_waiters(lambda: SessionClosed(f"the connection to {self.location} was closed"))
        if self._pool is not None:
            try:
                await asyncio.wait_for(self._pool.close(), CLIENT_GRACE_SECONDS)
            except TimeoutError:
                self._pool.terminate()


class _BeginFailed(Exception):
    """Raised if a transaction could not begin. Its function was not run."""

    def __init__(self, failure: MamaStructsError) -> None:
        super().__init__()
        self.failure = failure


open_pools: Final[RefCountedRegistry[str, PostgresPool]] = RefCountedRegistry()
"""The servers that this process has open, by URL."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=open_pools.reset)


def check_url(url: object) -> str:
    """Return the URL of a PostgreSQL server, or raise `InvalidArgument` without quoting it."""
    # Reject lone surrogates, because they cannot be encoded and no error message could contain the URL.
    is_ours = isinstance(url, str) and url.startswith(("postgresql://", "postgres://")) and "\0" not in url
    if not isinstance(url, str) or not is_ours or url.encode(errors="ignore").decode() != url:
        raise InvalidArgument(
            "a server's address must begin with postgresql:// and be text",
            hint="postgresql://user@host/database, or the path of a directory for a local store",
        )
    return url


def has_session(url: str) -> bool:
    """
    Return True if a session was ever opened in a database. Creates nothing. Blocks.

    Raises:
        InvalidArgument: *url* is not the URL of a PostgreSQL server.
        StoreError: The server is unreachable or unusable.

    """
    address = check_url(url)
    failures, asyncpg = _import_modules()
    started = time.monotonic()

    async def query_migrations() -> bool:
        patience = ServerSettings().connect_timeout
        connection = await asyncpg.connect(address, timeout=patience, command_timeout=patience)
        try:
            return bool(await connection.fetchval(f"SELECT to_regclass('{SCHEMA}.migrations') IS NOT NULL"))
        finally:
            connection.terminate()

    with ThreadPoolExecutor(1) as beside:
        try:
            return beside.submit(lambda: asyncio.run(query_migrations())).result()
        except Exception as error:  # noqa: BLE001 - converted to a typed error
            waited = time.monotonic() - started
            failure: MamaStructsError = failures.to_store_error(error, failures.redact_url(address), waited=waited)
    raise failure


def _import_modules() -> tuple[Any, Any]:
    """Return the modules that need asyncpg. The extra `postgres` installs it."""
    try:
        import asyncpg  # noqa: PLC0415 - optional dependency

        from mama_structs.storage.postgres import errors  # noqa: PLC0415 - it imports asyncpg
    except ImportError as error:
        raise StoreError(
            "a memory on PostgreSQL needs the package asyncpg", hint='pip install "mama-structs[postgres]"'
        ) from error
    return errors, asyncpg


async def _skip_reset(_connection: Any) -> None:
    """Do nothing instead of the pool's reset query, because all settings are local to a transaction."""


def _quote_literal(text: str) -> str:
    """Return *text* as an SQL expression without quotes, so that it is safe against injection."""
    return f"convert_from(decode('{text.encode().hex()}', 'hex'), 'UTF8')"


def _run_work(work: Callable[[Connection], T], connection: Connection) -> T:
    """Run a transaction function. Raise the connection's failure even if the function suppressed it."""
    result = call_sync(work, connection)
    if connection.failure is not None:
        raise connection.failure
    return result


def _vector_encoder(dtype: str) -> Callable[[NDArray[Any]], bytes]:
    """Return an encoder to pgvector's binary format: length, two zero bytes, big-endian numbers."""
    return lambda array: len(array).to_bytes(2, "big") + b"\0\0" + np.asarray(array).astype(dtype).tobytes()


def _vector_decoder(dtype: str) -> Callable[[bytes], NDArray[np.float32]]:
    return lambda data: np.frombuffer(data, dtype, offset=4).astype(np.float32)
