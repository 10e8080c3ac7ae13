"""
Connection pool for a PostgreSQL server, shared by all sessions of a process.

Any event loop and thread may use it.

The connections live in a dedicated event loop in its own thread. Callers submit a synchronous function, which runs in a
worker thread on a `Connection` inside one transaction. A read transaction sees one snapshot. A write transaction holds
an advisory lock on its namespace, so that each namespace has one writer at a time, and sees all earlier commits.
Connections carry no session state, so a transaction pooler such as PgBouncer may be in between.

Every wait has a timeout: for a connection, a lock or an answer. Broken connections are discarded, and a read
transaction is then retried once. If a commit gets no answer, its outcome is looked up by the token that it wrote.

Errors name the server by the redacted URL of `errors.located` and never contain a statement, a value or a password.
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

from mama_structs._internal.event_loop import done_at_once
from mama_structs._internal.refcount import Registry
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

# Seconds that the client waits longer than the server's own timeout, so that the server reports its timeout first.
_GRACE: Final = 2.0
_PAUSE: Final = 0.05
# Transaction parameters are passed as settings, so that no value is ever formatted into a statement.
# An advisory lock instead of a row lock, because a shared row lock writes to the row.
# Its waiters are served in order.
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended(current_setting('app.namespace'), 17))"
_LOCK_SHARED: Final = "SELECT pg_advisory_xact_lock_shared(hashtextextended(current_setting('app.namespace'), 17))"
# A role or database may be configured to acknowledge commits before they reach the disk, so force "on".
# Keep "remote_apply", which is stricter: it also waits until the replicas have applied the change.
_DURABLE: Final = """
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') <> 'remote_apply'
"""
# The status of the last statement reports its row count: 0 unless the database was migrated to another version.
_MIGRATED: Final = "SELECT FROM mama_structs.migrations HAVING max(version) IS DISTINCT FROM {version}"
_NOT_MIGRATED: Final = "SELECT 0"
_VERSION: Final = "SELECT coalesce(max(version), 0) FROM mama_structs.migrations"
# Only the last 4096 changes of a namespace are stored, each with the token that identifies a commit without an answer.
_COUNT_AND_COMMIT: Final = """
INSERT INTO namespaces AS known (namespace, change) VALUES (current_setting('app.namespace'), 1)
    ON CONFLICT (namespace) DO UPDATE SET change = known.change + 1;
INSERT INTO changes (namespace, change, token)
    SELECT namespace, change, current_setting('app.token')::uuid FROM namespaces
    WHERE namespace = current_setting('app.namespace');
DELETE FROM changes WHERE namespace = current_setting('app.namespace')
    AND change <= (SELECT change - 4096 FROM namespaces WHERE namespace = current_setting('app.namespace'));
COMMIT
"""
_OWNED: Final = """
SELECT bool_and(pg_has_role(relowner, 'USAGE')) FROM unnest($1::text[]) AS name JOIN pg_class ON oid = name::regclass
"""
_SEEN: Final = """
SELECT 1 FROM (
    SELECT unnest(ARRAY[backend_xmin, backend_xid]) AS oldest FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND coalesce(datname, current_database()) = current_database()
    UNION ALL SELECT xmin FROM pg_replication_slots
    UNION ALL SELECT transaction FROM pg_prepared_xacts WHERE database = current_database()
) AS held WHERE age(oldest) > age($1::text::xid8::xid) LIMIT 1
"""
# By default VACUUM skips indexes of pages with few deleted rows, and statistics contain keys and terms.
_VACUUM: Final = "VACUUM (ANALYZE, INDEX_CLEANUP ON)"
_FIND: Final = "SELECT 1 FROM changes WHERE namespace = $1 AND token = $2"
_SETTING: Final = re.compile(r"[a-z_]+\.[a-z_]+|plan_cache_mode|max_parallel_workers_per_gather")
ACROSS: Final = {"app.across": "on"}
"""Settings of a transaction that spans all namespaces that its role may see."""


@attrs.frozen(kw_only=True)
class _How:
    """Options of one transaction."""

    write: bool
    namespace: str | None
    exclusive: bool
    settings: Mapping[str, str]
    wait: float
    token: uuid.UUID = attrs.field(factory=uuid.uuid4)


class Connection:
    """
    A connection inside one transaction, used from a worker thread.

    SQL arguments are `$1`, `$2` and so on. After a failure every further statement raises the same error, and nothing
    is stored.
    """

    def __init__(self, server: Server, held: Any, how: _How) -> None:
        self.namespace: str | None = how.namespace
        self.questions: int = 0
        self.failure: MamaStructsError | None = None
        self.changed: bool = False
        self.has_told: bool = False
        self._server = server
        self._held = held
        # Only writes: a denied read is a missing grant, unrelated to the namespace.
        self._written = (how.namespace or how.settings.get("app.namespace")) if how.write else None
        self._over = False
        self._change: int | None = None

    def ask(self, sql: str, *arguments: Any) -> list[Any]:
        """Return the rows of a query, by name or index. If it writes, call `note_change` as well."""
        rows: list[Any] = self._wait(lambda timeout: self._held.fetch(sql, *arguments, timeout=timeout))
        return rows

    def tell(self, sql: str, *arguments: Any) -> int:
        """Execute a statement and return the number of affected rows."""
        self.has_told = True
        status: str = self._wait(lambda timeout: self._held.execute(sql, *arguments, timeout=timeout))
        count = status.rpartition(" ")[2]
        return int(count) if count.isdecimal() else 0

    def tell_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Execute a statement for each of *rows* in one batch."""
        if rows:
            self.has_told = True
            self._wait(lambda timeout: self._held.executemany(sql, rows, timeout=timeout))

    @property
    def change(self) -> int:
        """Number of the namespace's last change. Queried once per transaction."""
        if self._change is None:
            found = self.ask("SELECT change FROM namespaces WHERE namespace = $1", self.namespace)
            self._change = found[0]["change"] if found else 0
        return self._change

    def note_change(self) -> None:
        """Make the commit count one change of the namespace, with the number `change` + 1."""
        self.changed = True

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Run the block in a savepoint, and roll back to it if the block raises."""
        self.tell("SAVEPOINT attempt")
        try:
            yield
        except BaseException:
            if self.failure is None:
                self.tell("ROLLBACK TO SAVEPOINT attempt")
            raise
        finally:
            if self.failure is None:
                self.tell("RELEASE SAVEPOINT attempt")

    def end(self) -> None:
        """Reject any further use, because the transaction has ended."""
        self._over = True

    def _wait(self, question: Callable[[float], Coroutine[Any, Any, T]]) -> T:
        if self._over:
            raise SessionClosed("this connection belongs to a transaction that is over")
        if self.failure is not None:
            raise self.failure
        self.questions += 1
        answer, failure = self._server.answered(question, namespace=self._written)
        if failure is not None:
            self.failure = failure
            raise failure
        return answer  # type: ignore[return-value]  # there is one, or a failure


class Server:
    """Connection pool of a server, shared by all callers of `open` with the same URL."""

    def __init__(self, url: str, options: ServerSettings) -> None:
        self.url: str = check_url(url)
        self._failures, self._asyncpg = _needed()
        self.location: str = self._failures.located(url)
        self.options: ServerSettings = options
        self._pid = os.getpid()
        self._pool: Any = None
        self._database: Any = None
        self._is_closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._queues = WriteQueues()
        self._asking = 0
        # Running tasks of `apart`, with their own connection once it is open.
        self._beside: dict[asyncio.Task[Any] | None, Any] = {}
        self._workers = ThreadPoolExecutor(options.connections, thread_name_prefix="mama-structs plan")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mama-structs server", daemon=True)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.location!r}{' closed' if self._is_closed else ''}>"

    @classmethod
    def open(cls, url: str, *, options: ServerSettings | None = None) -> Server:
        """
        Connect, migrate the database to this version, and return the server. Blocks.

        The options of the first call in a process apply to all later calls with the same URL.

        Raises:
            InvalidArgument: *url* is not the URL of a PostgreSQL server.
            StoreError: The server is unreachable or unusable, or pgvector is missing or too old.

        """

        def make() -> Server:
            made = cls(url, options or ServerSettings())
            made._begin()
            return made

        return servers.join(check_url(url), make)

    @property
    def is_read_only(self) -> bool:
        """
        True if the server was read-only when it was opened.

        A replica may have become the primary since.
        """
        return bool(self._database.is_read_only)

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
        Run a function in one transaction and return its result after a durable commit.

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
        self._check_here()
        given = dict(settings or {})
        if not all(map(_SETTING.fullmatch, given)):
            raise InvalidArgument("a setting must belong to an extension, such as hnsw.ef_search, or to the planner")
        if namespace is not None and "\0" in namespace:
            raise InvalidArgument("a server cannot keep a namespace whose name has a NUL", hint="take another name")
        patience = self.options.wait if wait is None else min(wait, self.options.wait)
        how = _How(write=write, namespace=namespace, exclusive=exclusive, settings=given, wait=patience)
        done: Future[T] = Future()
        # Mark the future as running, so that a caller that stops waiting cannot cancel it.
        done.set_running_or_notify_cancel()
        self._loop.call_soon_threadsafe(self._start, work, how, done)
        return done

    @property
    def vector_schema(self) -> str:
        """The schema of pgvector's types, as a quoted identifier."""
        return str(self._database.vector_schema)

    def apart(self, work: Callable[[Any], Coroutine[Any, Any, T]]) -> Future[T]:
        """
        Run a coroutine on a dedicated connection outside of any transaction.

        Closing the server stops waiting for the work, but does not cancel it on the server.
        """
        self._check_here()
        return asyncio.run_coroutine_threadsafe(self._apart(work), self._loop)

    def vacuum(self, *tables: str, wait: float) -> Future[None]:
        """
        Run VACUUM on tables within *wait* seconds.

        It removes deleted data from the tables and their statistics.

        Raises:
            StoreBusy: A running transaction may still read the deleted rows.
            StoreReadOnly: The role does not own the tables.
            StoreError: The server cannot do it.

        """
        self._check_here()
        if not all(map(str.isidentifier, tables)):
            raise InvalidArgument("the name of a table to vacuum must be an identifier")
        return asyncio.run_coroutine_threadsafe(self._vacuumed(tables, wait), self._loop)

    def close(self) -> None:
        """
        Release this reference.

        The last one closes the connections after running work has finished. Blocks.
        """
        if not self._is_closed and servers.leave(self.url) is self:
            self.close_now()

    def close_now(self) -> None:
        """Close the connections regardless of other users. Blocks until running work has finished."""
        self._is_closed = True
        if os.getpid() != self._pid or not self._thread.is_alive():
            return
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(self._longest)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_GRACE)
        if not self._thread.is_alive():
            self._loop.close()
        self._workers.shutdown(wait=not self._tasks)

    def answered(
        self, question: Callable[[float], Coroutine[Any, Any, T]], *, namespace: str | None = None
    ) -> tuple[T | None, MamaStructsError | None]:
        """
        Run a coroutine in the server's loop and block until it ends.

        Return its answer, or a typed error without a cause.
        """
        started = time.monotonic()

        async def answer() -> T:
            return await question(self._patience)

        asked = asyncio.run_coroutine_threadsafe(answer(), self._loop)
        try:
            return asked.result(self._longest), None
        except concurrent.futures.CancelledError:
            return None, SessionClosed(f"the connection to {self.location} was closed")
        except Exception as error:  # noqa: BLE001 - converted to a typed error
            return None, self._error(error, started, namespace)

    @property
    def _patience(self) -> float:
        """Seconds to wait for an answer of the server."""
        return self.options.statement_timeout + _GRACE

    @property
    def _longest(self) -> float:
        """Seconds that a thread waits for the loop; longer than all timeouts inside the loop."""
        return self._patience + self.options.connect_timeout + self.options.wait + _GRACE

    def _error(self, error: BaseException, started: float, namespace: str | None = None) -> MamaStructsError:
        made: MamaStructsError = self._failures.server_error(
            error,
            self.location,
            waited=time.monotonic() - started,
            namespace=namespace,
            role=None if self._database is None else self._database.role,
        )
        return made

    def _check_here(self) -> None:
        if os.getpid() != self._pid:
            raise WrongLoop("the server belongs to the process that opened it", hint="open another session here")
        if self._is_closed:
            raise SessionClosed(f"the connection to {self.location} was closed")

    # The methods below run in the loop's thread, except `_begin`.

    def _begin(self) -> None:
        self._thread.start()
        failure: BaseException | None = None
        started = time.monotonic()
        try:
            asyncio.run_coroutine_threadsafe(self._opened(), self._loop).result()
        except Exception as error:  # noqa: BLE001 - converted to a typed error
            failure = self._error(error, started)
        except BaseException:
            self.close_now()
            raise
        if failure is not None:
            self.close_now()
            raise failure

    @property
    def _connecting(self) -> dict[str, Any]:
        options = self.options
        return {
            "dsn": self.url,
            "timeout": options.connect_timeout,
            "command_timeout": self._patience,
            "statement_cache_size": 100 if options.prepared else 0,
            "server_settings": {"application_name": "mama_structs"},
        }

    async def _opened(self) -> None:
        connection = await self._asyncpg.connect(**self._connecting)
        try:
            self._database = await schema_migrations.prepare(connection, self.location, wait=self._patience)
        finally:
            connection.terminate()
        self._pool = await self._asyncpg.create_pool(
            min_size=0,
            max_size=self.options.connections,
            init=self._teach,
            reset=_leave_as_it_is,
            **self._connecting,
        )

    async def _teach(self, connection: Any) -> None:
        """Register codecs on a new connection that convert pgvector's types from and to arrays."""
        schema = await connection.fetchval("SELECT (parse_ident($1))[1]", self._database.vector_schema)
        for name, kind in (("vector", ">f4"), ("halfvec", ">f2")):
            await connection.set_type_codec(
                name, schema=schema, encoder=_encoder(kind), decoder=_decoder(kind), format="binary"
            )

    def _start(self, work: Callable[[Connection], T], how: _How, done: Future[T]) -> None:
        task = self._loop.create_task(self._run(work, how))
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

    async def _run(self, work: Callable[[Connection], T], how: _How) -> T:
        async with contextlib.AsyncExitStack() as turn:
            if how.namespace is not None and how.write and how.exclusive:
                busy = functools.partial(self._kept_waiting, how.wait)
                await turn.enter_async_context(self._queues.one(how.namespace, wait=how.wait, busy=busy))
            self._asking += 1
            try:
                return await self._tried(work, how)
            finally:
                self._asking -= 1

    def _kept_waiting(self, waited: float) -> StoreBusy:
        return StoreBusy(
            f"{self.location}: earlier writes in the queue were not finished for {waited:.1f} s",
            waited=waited,
            hint="nothing was stored; try again",
        )

    async def _tried(self, work: Callable[[Connection], T], how: _How) -> T:
        is_second = False
        while True:
            held = await self._acquired(how.wait)
            connection = Connection(self, held, how)
            is_cut = False
            try:
                return await self._in_transaction(connection, work, how)
            except _NotBegun as error:
                failure: MamaStructsError = error.failure
                is_cut = isinstance(failure, StoreUnreachable)
                may_again = True
            except StoreUnreachable as error:
                failure = error
                is_cut = True
                may_again = not how.write
            finally:
                connection.end()
                # Do not wait for a clean shutdown of a connection that does not answer.
                await self._released(held, is_cut=is_cut)
            if is_second or not may_again or not isinstance(failure, StoreUnreachable):
                raise failure
            is_second = True
            await self._pool.expire_connections()

    async def _acquired(self, wait: float) -> Any:
        """Acquire a connection from the pool, and wait for a free one."""
        started = time.monotonic()
        # The time to connect is not time spent waiting for other users.
        is_exhausted = self._is_exhausted
        patience = max(wait, _PAUSE) if is_exhausted else max(wait, self.options.connect_timeout)
        failure: MamaStructsError
        try:
            return await self._pool.acquire(timeout=patience)
        except TimeoutError as error:
            if is_exhausted or self._is_exhausted:
                most = self.options.connections
                failure = StoreBusy(
                    f"all {most} connections of this process to {self.location} were in use for {patience:.1f} s",
                    waited=patience,
                    hint="nothing was stored; try again, or allow more connections",
                )
            else:
                failure = self._error(error, started)
        except Exception as error:  # noqa: BLE001 - converted to a typed error
            failure = self._error(error, started)
        raise failure

    @property
    def _is_exhausted(self) -> bool:
        """
        True if every connection is in use.

        A broken one counts as in use until its transaction ends.
        """
        most = self.options.connections
        return self._asking > most or bool(self._pool.get_size() >= most and not self._pool.get_idle_size())

    async def _vacuumed(self, tables: Sequence[str], wait: float) -> None:
        until = time.monotonic() + wait
        started = time.monotonic()
        held = await self._acquired(wait)
        failure: MamaStructsError
        try:
            names = [f"{SCHEMA}.{table}" for table in tables]
            if not await held.fetchval(_OWNED, names, timeout=self._patience):
                # The server would only log a warning and do nothing.
                raise StoreReadOnly(f"the tables of {self.location} can only be vacuumed by their owner")
            now = await held.fetchval("SELECT pg_current_xact_id()::text", timeout=self._patience)
            # VACUUM only removes rows that no transaction can see any more.
            while await held.fetchval(_SEEN, now, timeout=self._patience):
                if time.monotonic() >= until:
                    raise StoreBusy(
                        f"a transaction on {self.location} can still read the deleted rows",
                        waited=time.monotonic() - started,
                        hint="look for a long transaction in pg_stat_activity",
                    )
                await asyncio.sleep(_PAUSE)
            await held.execute(f"{_VACUUM} {', '.join(names)}", timeout=max(until - time.monotonic(), self._patience))
        except Exception as error:  # noqa: BLE001 - converted to a typed error
            failure = self._error(error, started)
        else:
            return
        finally:
            await self._released(held)
        raise failure

    async def _apart(self, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        started, task = time.monotonic(), asyncio.current_task()
        self._beside[task] = None
        failure: MamaStructsError
        try:
            held = self._beside[task] = await self._asyncpg.connect(**self._connecting)
            return await work(held)
        except Exception as error:  # noqa: BLE001 - converted to a typed error
            failure = self._error(error, started)
        finally:
            held = self._beside.pop(task)
            if held is not None:
                held.terminate()
        raise failure

    async def _released(self, held: Any, *, is_cut: bool = False) -> None:
        with contextlib.suppress(Exception):
            # Never return a connection with an open transaction to the pool.
            if is_cut or held.is_in_transaction():
                held.terminate()
        with contextlib.suppress(Exception):
            await self._pool.release(held)

    async def _in_transaction(self, connection: Connection, work: Callable[[Connection], T], how: _How) -> T:
        held = connection._held  # noqa: SLF001 - defined in this module
        failure = await self._begun(held, how)
        if failure is not None:
            raise _NotBegun(failure)
        try:
            result = await self._loop.run_in_executor(self._workers, _done, work, connection)
        except BaseException:
            if not isinstance(connection.failure, StoreUnreachable):
                await self._sent(held, "ROLLBACK")
            raise
        is_counted = how.namespace is not None and how.exclusive and connection.changed
        failure = await self._sent(held, _COUNT_AND_COMMIT if is_counted else "COMMIT", how.namespace)
        # If nothing was written, the outcome of the commit does not matter.
        if failure is None or not (connection.changed or connection.has_told):
            return result
        if isinstance(failure, StoreUnreachable):
            # Release this connection first: it may be the last free one, and the lookup needs another.
            await self._released(held, is_cut=True)
            if await self._is_stored(how if is_counted else None):
                return result
        raise failure

    async def _begun(self, held: Any, how: _How) -> MamaStructsError | None:
        """
        Begin a transaction, and return the error if that fails.

        Writes require the current schema version.
        """
        started = time.monotonic()
        try:
            status = await held.execute(self._beginning(how), timeout=self._patience)
            if how.write and status != _NOT_MIGRATED:
                version = await held.fetchval(_VERSION, timeout=self._patience)
                schema_migrations.check_same_version(version, self._database.version, self.location)
        except Exception as error:  # noqa: BLE001 - converted to a typed error
            return self._error(error, started)
        return None

    async def _sent(self, held: Any, sql: str, namespace: str | None = None) -> MamaStructsError | None:
        """Send statements in one message, and return the error if they fail."""
        started = time.monotonic()
        try:
            await held.execute(sql, timeout=self._patience)
        except Exception as error:  # noqa: BLE001 - converted to a typed error
            return self._error(error, started, namespace)
        return None

    def _beginning(self, how: _How) -> str:
        """Return the statements that begin a transaction, as one message to save round trips."""
        milliseconds = int(self.options.statement_timeout * 1000)
        kind = "READ COMMITTED" if how.write else "REPEATABLE READ, READ ONLY"
        settings = {"app.namespace": how.namespace or "", "app.token": str(how.token), **how.settings}
        lines = [
            f"BEGIN ISOLATION LEVEL {kind}",
            # JIT-compiling a complex statement takes longer than running it.
            "SET LOCAL jit = off",
            f"SET LOCAL search_path = {self._database.path}",
            f"SET LOCAL statement_timeout = {milliseconds}",
            # 0 would disable the timeout.
            f"SET LOCAL lock_timeout = {max(1, int(how.wait * 1000))}",
            # Releases the locks of a vanished host after this time, and tolerates a slow one until then.
            f"SET LOCAL idle_in_transaction_session_timeout = {int(self._patience * 1000)}",
            *(f"SELECT set_config({_quoted(name)}, {_quoted(value)}, true)" for name, value in settings.items()),
        ]
        if how.write:
            lines += [_DURABLE, f"SELECT pg_advisory_xact_lock_shared({schema_migrations.MIGRATION_LOCK})"]
            if how.namespace is not None:
                lines.append(_LOCK if how.exclusive else _LOCK_SHARED)
            # Checked after the lock is held, because migrations wait for that lock.
            lines.append(_MIGRATED.format(version=self._database.version))
        return ";".join(lines)

    async def _is_stored(self, how: _How | None) -> bool:
        """
        Return True if a commit without an answer was stored.

        Raise if that cannot be determined.
        """
        until = time.monotonic() + self.options.wait
        while how is not None and time.monotonic() < until:
            with contextlib.suppress(StoreError):
                held = await self._acquired(self.options.wait)
                try:
                    # The lock becomes free when the interrupted transaction has committed or rolled back.
                    failure = await self._sent(held, self._beginning(attrs.evolve(how, wait=self.options.wait)))
                    if isinstance(failure, StoreReadOnly):
                        break
                    if failure is None:
                        return bool(await held.fetch(_FIND, how.namespace, how.token, timeout=self._patience))
                except Exception:  # noqa: BLE001, S110 - the lookup is retried
                    pass
                finally:
                    await self._released(held)
            await asyncio.sleep(_PAUSE)
        raise StoreUnreachable(
            f"{self.location} gave no answer to the commit: the changes may be stored, or not",
            hint="check whether the changes are stored before you repeat them",
        )

    async def _end(self) -> None:
        """Close all connections after running work has finished, or terminate them at the timeout."""
        for task, held in [*self._beside.items()]:
            # Cancelling would also cancel the work on the server, so only cut the connection.
            if held is not None:
                held.terminate()
            elif task is not None:
                task.cancel()
        if self._beside:
            await asyncio.wait([task for task in self._beside if task is not None], timeout=_GRACE)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._patience)
            self._queues.end(lambda: SessionClosed(f"the connection to {self.location} was closed"))
        if self._pool is not None:
            try:
                await asyncio.wait_for(self._pool.close(), _GRACE)
            except TimeoutError:
                self._pool.terminate()


class _NotBegun(Exception):
    """The transaction could not begin, so its function did not run."""

    def __init__(self, failure: MamaStructsError) -> None:
        super().__init__()
        self.failure = failure


servers: Final[Registry[str, Server]] = Registry()
"""The servers that this process has open, by URL."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=servers.forget)


def check_url(url: object) -> str:
    """Return the URL of a PostgreSQL server, or raise `InvalidArgument` without quoting it."""
    # Lone surrogates cannot be encoded, so no error message could contain the URL.
    is_ours = isinstance(url, str) and url.startswith(("postgresql://", "postgres://")) and "\0" not in url
    if not isinstance(url, str) or not is_ours or url.encode(errors="ignore").decode() != url:
        raise InvalidArgument(
            "a server's address must begin with postgresql:// and be text", hint="postgresql://user@host/database"
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
    failures, asyncpg = _needed()
    started = time.monotonic()

    async def look() -> bool:
        patience = ServerSettings().connect_timeout
        connection = await asyncpg.connect(address, timeout=patience, command_timeout=patience)
        try:
            return bool(await connection.fetchval(f"SELECT to_regclass('{SCHEMA}.migrations') IS NOT NULL"))
        finally:
            connection.terminate()

    with ThreadPoolExecutor(1) as beside:
        try:
            return beside.submit(lambda: asyncio.run(look())).result()
        except Exception as error:  # noqa: BLE001 - converted to a typed error
            waited = time.monotonic() - started
            failure: MamaStructsError = failures.server_error(error, failures.located(address), waited=waited)
    raise failure


def _needed() -> tuple[Any, Any]:
    """Return the modules that require asyncpg, which is installed by the extra `postgres`."""
    try:
        import asyncpg  # noqa: PLC0415 - optional dependency

        from mama_structs.storage.postgres import errors  # noqa: PLC0415 - it imports asyncpg
    except ImportError as error:
        raise StoreError(
            "a memory on PostgreSQL needs the package asyncpg", hint='pip install "mama-structs[postgres]"'
        ) from error
    return errors, asyncpg


async def _leave_as_it_is(_connection: Any) -> None:
    """Skip the pool's reset query. All settings are local to a transaction."""


def _quoted(text: str) -> str:
    """Return *text* as an SQL expression that is safe against injection."""
    return f"convert_from(decode('{text.encode().hex()}', 'hex'), 'UTF8')"


def _done(work: Callable[[Connection], T], connection: Connection) -> T:
    """Run a transaction function. Raise the connection's failure even if it was swallowed."""
    result = done_at_once(work, connection)
    if connection.failure is not None:
        raise connection.failure
    return result


def _encoder(kind: str) -> Callable[[NDArray[Any]], bytes]:
    """Return an encoder to pgvector's format: length, two zero bytes, big-endian numbers."""
    return lambda array: len(array).to_bytes(2, "big") + b"\0\0" + np.asarray(array).astype(kind).tobytes()


def _decoder(kind: str) -> Callable[[bytes], NDArray[np.float32]]:
    return lambda data: np.frombuffer(data, kind, offset=4).astype(np.float32)
