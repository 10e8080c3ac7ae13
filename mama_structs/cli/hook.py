"""
The command ``mama-structs hook``: forwards an agent's hook event to a helper process.

It imports almost nothing (a test counts) and has a time limit. On any error it prints ``{}`` and exits with 0, so that
the agent continues without memory; the error is a line on stderr.
"""

from __future__ import annotations

import os
import sys
import time

SOCKET_NAME = "hook.sock"
"""File name of the helper's Unix socket in the store's directory. Only the owner may connect."""

QUIT_COMMAND = "quit"
"""Sent instead of the number of characters: tells the helper to close the store and exit."""

_DEFAULT_SECONDS = 2.0
_DEFAULT_MAX_CHARS = 2_000
_MAX_EVENT_BYTES = 2**22
_HELPER_CODE = "from mama_structs.cli.hook_server import main; main()"
# Seconds between attempts to reach a helper that is starting or exiting.
_POLL_SECONDS = 0.005


def answer_hook(arguments: list[str]) -> int:
    """Print the answer to the event on stdin, and return 0 even on errors."""
    output, error_line = b"{}\n", b""
    before = None
    try:
        options = _parse_options(arguments)
        until = time.monotonic() + float(options["--seconds"])
        event = _read_event(until)
        before = os.getcwd()  # noqa: PTH109 - importing pathlib is slow
        if "://" in options["STORE"]:
            raise OSError("it needs a session's directory: a server's address is not taken here")
        # Use a socket path relative to the store, because socket paths have a small maximum length.
        os.chdir(options["STORE"])
        if not os.path.isdir("journal"):  # noqa: PTH112 - importing pathlib is slow
            raise OSError(f"{options['STORE']!r:.200} is not the directory of a store")
        head = f"{options['--namespace']}\0{int(options['--max-chars'])}\0"
        answer, newline, error_line = request_answer(head.encode() + event, until).partition(b"\n")
        output = answer + newline
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - no error may reach the agent
        error_line = f"{str(error) or type(error).__name__}\n".encode(errors="backslashreplace")
    finally:
        if before is not None:
            os.chdir(before)
    if error_line:
        _write(2, b"mama-structs hook: " + error_line)
    _write(1, output)
    return 0


def request_answer(request: bytes, deadline: float, *, may_start: bool = True) -> bytes:
    """Return the helper's answer, starting a helper for the working directory if needed."""
    # Import the C module, because importing the Python wrapper takes longer than the answer.
    from _socket import AF_UNIX, SHUT_WR, SOCK_STREAM, socket  # noqa: PLC0415

    helper = 0
    while True:
        connection = socket(AF_UNIX, SOCK_STREAM)
        try:
            connection.settimeout(max(deadline - time.monotonic(), _POLL_SECONDS))
            connection.connect(SOCKET_NAME)
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            if not may_start and time.monotonic() >= deadline:
                raise TimeoutError("the helper did not start in time") from None
            if may_start:
                may_start = False
                helper = _start_helper()
            elif helper and _has_failed(helper):
                raise OSError("the helper cannot start: see mama-structs check") from None
            time.sleep(_POLL_SECONDS)
        else:
            break
    try:
        view = memoryview(request)
        while view:
            # The timeout of a socket is per call, so set the remaining time before each call.
            connection.settimeout(max(deadline - time.monotonic(), _POLL_SECONDS))
            view = view[connection.send(view) :]
        connection.shutdown(SHUT_WR)
        parts = []
        while part := connection.recv(2**16):
            parts.append(part)
            connection.settimeout(max(deadline - time.monotonic(), _POLL_SECONDS))
        answer = b"".join(parts)
    finally:
        connection.close()
    if not answer.endswith(b"\n"):
        raise OSError("the helper ended in the middle of its answer")
    return answer


def stop_helper(store: str) -> None:
    """Ask a running helper of a store to close the store and exit, and wait for it."""
    import fcntl  # noqa: PLC0415 - not needed by a hook

    before = os.getcwd()  # noqa: PTH109 - importing pathlib is slow
    os.chdir(store)
    directory = os.open(".", os.O_RDONLY)
    try:
        until = time.monotonic() + _DEFAULT_SECONDS
        if os.path.exists(SOCKET_NAME):  # noqa: PTH110 - importing pathlib is slow
            request_answer(f"\0{QUIT_COMMAND}\0".encode(), time.monotonic(), may_start=False)
        while time.monotonic() < until:
            try:
                # The helper holds this lock while it runs, so acquiring it means that the helper has exited.
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(_POLL_SECONDS)
            else:
                break
    except OSError:
        # Nothing to stop: there is no helper, or a killed helper left its socket file.
        return
    finally:
        os.close(directory)
        os.chdir(before)


def _parse_options(arguments: list[str]) -> dict[str, str]:
    """Parse the command line without argparse, whose import takes as long as an answer."""
    options = {"--namespace": "default", "--max-chars": str(_DEFAULT_MAX_CHARS), "--seconds": str(_DEFAULT_SECONDS)}
    remaining = list(arguments)
    while remaining:
        name, equals, value = remaining.pop(0).partition("=")
        if name in options:
            options[name] = value if equals else remaining.pop(0)
        elif name.startswith("--") or "STORE" in options:
            raise ValueError(f"it takes no {name!r:.80}: see mama-structs hook --help")
        else:
            options["STORE"] = name
    if "STORE" not in options:
        raise ValueError("it needs STORE: see mama-structs hook --help")
    return options


def _read_event(deadline: float) -> bytes:
    """Read the event from stdin, and raise if stdin is not closed in time."""
    import select  # noqa: PLC0415 - imported lazily, because a hook must start fast

    parts: list[bytes] = []
    size = 0
    while size <= _MAX_EVENT_BYTES:
        ready, _, _ = select.select([0], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            raise TimeoutError("stdin was not closed in time")
        part = os.read(0, 2**16)
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    raise ValueError(f"the event is longer than {_MAX_EVENT_BYTES:,} bytes")


def _start_helper() -> int:
    """Start a helper that is independent of this process and its files; return its process id."""
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    # -P: do not import modules from the store's directory.
    command = [sys.executable, "-P", "-c", _HELPER_CODE]
    return os.posix_spawn(sys.executable, command, os.environ, file_actions=null, setpgroup=0)


def _has_failed(helper: int) -> bool:
    """
    Return True if the helper exited with an error.

    Exit code 0 means that another helper serves.
    """
    try:
        ended, status = os.waitpid(helper, os.WNOHANG)
    except ChildProcessError:
        # The exit status is unavailable, because the process was already waited for or the agent ignores SIGCHLD.
        return False
    return bool(ended and status)


def _write(file: int, text: bytes) -> None:
    try:
        os.write(file, text)
    except OSError:
        # The reader closed the pipe.
        return
