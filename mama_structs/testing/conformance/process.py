"""
Separate process for a store under test, and the client through which checks call it.

Command line: ``process.py DRIVER LOCATION FD``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import importlib.util
import inspect
import json
import operator
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Final

import attrs

from mama_structs.errors import InvalidArgument
from mama_structs.testing.conformance.ack_log import HANG_TIMEOUT_SECONDS, AckLog
from mama_structs.testing.conformance.sample_texts import make_text

# A writer chooses from these operations at random. An operation that is listed more often is chosen more often.
_WRITER_OPERATIONS: Final = ("save", "save", "save", "replace", "delete", "save")
_MAX_ERROR_CHARS: Final = 160


class StoreFailed(Exception):
    """Raised if the driver raised, or if its process ended or did not answer. The message is one line."""


def load_driver(spec: str) -> type:
    """
    Return the class for ``module:Class`` or ``path/to/file.py:Class``.

    Raises:
        InvalidArgument: There is no such class.

    """
    where, _, name = spec.rpartition(":")
    try:
        found = operator.attrgetter(name)(_import_module(where))
    except (ImportError, AttributeError, OSError, ValueError) as error:
        raise InvalidArgument(
            f"driver must be module:Class or file.py:Class, and {spec!r:.200} names nothing that can be imported",
            hint="give a class at the top level of a module",
        ) from error
    if not isinstance(found, type):
        raise InvalidArgument(f"driver must name a class, got {spec!r:.200}")
    return found


@functools.cache
def _import_module(name_or_path: str) -> ModuleType:
    if not name_or_path.endswith(".py"):
        return importlib.import_module(name_or_path)
    path = Path(name_or_path)
    # Register the module in sys.modules, so that pickle can find its definitions.
    found = importlib.util.spec_from_file_location(f"{path.stem}_of_the_store", path)
    if found is None or found.loader is None:
        raise ImportError(name_or_path)
    module = sys.modules[found.name] = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def make_driver_spec(driver: type | str) -> str:
    """
    Return the argument from which `load_driver` loads a driver class in another process.

    A string is returned unchanged.
    """
    if isinstance(driver, str):
        return driver
    name, module = driver.__qualname__, driver.__module__
    if "<locals>" in name:
        raise InvalidArgument(
            f"the driver {name!r} is defined within a function", hint="other processes import it: move it to the top"
        )
    file = inspect.getfile(driver)
    # pytest may import a file under a module name that other processes cannot import. In that case use the file's path.
    tail = Path(*module.split(".")).with_suffix(".py")
    is_known = any((Path(folder) / tail).resolve() == Path(file).resolve() for folder in sys.path)
    return f"{module if is_known else file}:{name}"


def list_store_files(location: str) -> list[Path]:
    """
    Return the files of a store.

    If the location is a directory, these are all files below it. If it is a file, these are the files in its folder
    whose names begin with its name.
    """
    path = Path(location)
    found = path.rglob("*") if path.is_dir() else path.parent.glob(f"{path.name}*") if path.exists() else ()
    return [one for one in found if one.is_file()]


# Server side, in the separate process


@attrs.define
class _DriverServer:
    """Calls a driver, whose methods may be async, and implements the operations that use several calls."""

    driver: Any
    location: str
    runner: asyncio.Runner

    def call(self, name: str, *given: Any, **named: Any) -> Any:
        """Call a method of the driver, and wait for its result if the method is async."""
        return self._await_if_needed(getattr(self.driver, name)(*given, **named))

    def _await_if_needed(self, value: Any) -> Any:
        async def await_value() -> Any:
            return await value

        return self.runner.run(await_value()) if inspect.isawaitable(value) else value

    def open(self) -> None:
        self.call("open", self.location)

    def save(self, namespace: str, id: str, text: str, metadata: Mapping[str, str]) -> str:  # noqa: A002 - required by the protocol
        """Save a memory, and return its id in the store, which is *id* unless the store assigns its own."""
        own = self.call("save", namespace, id, text, metadata)
        return id if own is None else own

    def save_all(self, rows: Iterable[Sequence[Any]]) -> list[str]:
        return [self.save(*row) for row in rows]

    def all(self, namespace: str) -> list[list[str]]:
        return [list(one) for one in self.call("all", namespace)]

    def search(self, namespace: str, query: str, named: Mapping[str, Any]) -> list[list[str]]:
        given = dict(named)
        if "as_of" in given:
            given["as_of"] = datetime.fromisoformat(given["as_of"])
        return [list(one) for one in self.call("search", namespace, query, **given)]

    def forget(self, namespace: str, id: str) -> None:  # noqa: A002 - as above
        self.call("forget" if hasattr(self.driver, "forget") else "delete", namespace, id)

    def stream(self, path: str, name: str, spaces: Sequence[str], count: int, kinds: Sequence[str]) -> None:
        """Make *count* random changes of the given kinds. Log each before it starts and after it is acknowledged."""
        book, chance, mine = AckLog.open(Path(path)), random.Random(name), list[tuple[str, str]]()  # noqa: S311 - reproducible by seed
        for number in range(count):
            chosen = chance.choice(_WRITER_OPERATIONS)
            kind = chosen if mine and chosen in kinds else "save"
            try:
                self._step(book, kind, f"{name}-{number}", spaces, mine)
            except Exception as error:  # noqa: BLE001 - a driver may raise anything
                book.append("refused", kind, _format_error(error))

    def _step(self, book: AckLog, kind: str, tag: str, spaces: Sequence[str], mine: list[tuple[str, str]]) -> None:
        chance = random.Random(tag)  # noqa: S311 - as above
        space, own = (chance.choice(spaces), tag) if kind == "save" else chance.choice(mine)
        if kind == "save":
            book.append("saving", space, tag)
            own = self.save(space, tag, make_text(tag), {"topic": "stream", "kind": "context"})
            book.append("saved", space, own, tag)
            mine.append((space, own))
        elif kind == "replace":
            book.append("replacing", space, own, tag)
            self.call("replace", space, own, make_text(tag))
            book.append("replaced", space, own, tag)
        else:
            mine.remove((space, own))
            book.append("deleting", space, own)
            self.call("delete", space, own)
            book.append("deleted", space, own)

    def limit(self, room: int | None) -> None:
        """
        Limit the size of each file of the store to the size of the largest file plus *room* bytes.

        0 allows no write, and None removes the limit.
        """
        import resource  # noqa: PLC0415 - not available on Windows

        # While the limit applies, an import could write truncated bytecode, so disable bytecode files.
        sys.dont_write_bytecode = True
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        sizes = [path.stat().st_size for path in list_store_files(self.location)]
        least = most if room is None else 0 if room == 0 else max(sizes, default=0) + room
        resource.setrlimit(resource.RLIMIT_FSIZE, (least, most))


_SERVER_METHODS: Final = ("open", "save", "save_all", "all", "search", "forget", "stream", "limit")


def _format_error(error: BaseException) -> str:
    """Return the type and the message of an error as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_MAX_ERROR_CHARS].rstrip(": ")


def main(spec: str, location: str, answers: str) -> None:
    """Read calls as lines from the standard input, and write one line per result to the descriptor *answers*."""
    # Ignore the signal, so that a write above the limit raises an error instead of ending the process.
    if hasattr(signal, "SIGXFSZ"):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open(int(answers), "w", encoding="utf-8") as said, asyncio.Runner() as runner:  # noqa: PTH123 - a file descriptor
        served: _DriverServer | None = None
        for line in sys.stdin:
            name, given, named = json.loads(line)
            try:
                if served is None:
                    served = _DriverServer(load_driver(spec)(), location, runner)
                found = (
                    getattr(served, name)(*given, **named)
                    if name in _SERVER_METHODS
                    else served.call(name, *given, **named)
                )
                answer = {"found": found}
            except Exception as error:  # noqa: BLE001 - as above
                answer = {"raised": _format_error(error)}
            said.write(json.dumps(answer) + "\n")
            said.flush()


# Client side


@attrs.define(eq=False)
class StoreProcess:
    """
    A client of a store in a separate process.

    Calling it calls a method of the driver. It raises `StoreFailed` if the call fails.
    """

    process: subprocess.Popen[bytes]
    log: Path
    _result_pipe: IO[bytes]
    _buffer: bytes = b""

    @classmethod
    def start(cls, spec: str, location: str, log: Path) -> StoreProcess:
        """Start a process. The output of the process is appended to the file *log*."""
        answers, answering = os.pipe()
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        with log.open("ab") as file:
            process = subprocess.Popen(  # noqa: S603 - runs this module
                [sys.executable, "-m", __name__, spec, location, str(answering)],
                stdin=subprocess.PIPE, stdout=file, stderr=file, pass_fds=[answering], start_new_session=True,
                env=os.environ | one | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )  # fmt: skip
        os.close(answering)
        return cls(process, log, os.fdopen(answers, "rb", buffering=0))

    def __call__(self, name: str, *given: Any, **named: Any) -> Any:
        """Call a method of the driver, and return its result."""
        self.send_call(name, *given, **named)
        return self.wait_for_result(name)

    def send_call(self, name: str, *given: Any, **named: Any) -> None:
        """Send a call without waiting for its result."""
        assert self.process.stdin is not None  # noqa: S101 - for type checkers
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps([name, given, named]).encode() + b"\n")
            self.process.stdin.flush()

    def wait_for_result(self, name: str) -> Any:
        """Wait for the result of a call."""
        until = time.monotonic() + HANG_TIMEOUT_SECONDS
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._result_pipe], [], [], max(until - time.monotonic(), 0))
            got = self._result_pipe.read(2**16) if ready else b""
            if not got:
                hung = not ready
                self.kill()
                raise StoreFailed(
                    f"{name}: {'no answer came' if hung else f'its process ended{self._last_log_line()}'}"
                )
            self._buffer += got
        line, _, self._buffer = self._buffer.partition(b"\n")
        found = json.loads(line)
        if "raised" in found:
            raise StoreFailed(f"{name}: {found['raised']}")
        return found["found"]

    def _last_log_line(self) -> str:
        lines = [line for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        return f": {lines[-1][:_MAX_ERROR_CHARS]}" if lines else ""

    def kill(self) -> None:
        """Kill the process and all of its children with SIGKILL."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.wait_for_exit()

    def wait_for_exit(self) -> None:
        """Close the input of the process, and wait until the process ends."""
        with contextlib.suppress(BrokenPipeError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        try:
            self.process.wait(HANG_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._result_pipe.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
