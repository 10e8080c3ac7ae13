"""Output of the commands: stdout, stderr, progress and tables."""

# ruff: noqa: PLC0415 - slow imports are local, so that the command starts fast

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TextIO
from unicodedata import combining, east_asian_width

from mama_structs._internal.reprs import truncate_line
from mama_structs.errors import MamaStructsError

# Minimum seconds between two lines of progress, which are printed if there is no progress bar.
_PROGRESS_INTERVAL_SECONDS: Final = 1.0
# Match one slash as well, because pathlib collapses the two slashes of an address.
_PASSWORD_PATTERN: Final = re.compile(r"(\w:/{1,2}[^\s:@/]*:)\S*@")


def print_lines(*texts: str) -> None:
    """Print to stdout and flush, because a parent process may wait for the output."""
    try:
        for text in texts:
            print(text)
        # If stdout was closed before the start (`>&-`), it is None.
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_output()
        raise MamaStructsError(f"the output cannot be written: {error.strerror or error}") from error


def print_answer(given: argparse.Namespace, figures: Any, text: str) -> None:
    """Print a command's result, as JSON if requested."""
    print_lines(json.dumps(figures) if given.json else text)


def discard_output(stream: TextIO | None = None) -> None:
    """
    Redirect a stream (default: stdout) to the null device.

    Otherwise the interpreter's flush at exit would report an error.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stdout if stream is None else stream).fileno())


def write_stderr(text: str) -> None:
    """Write to stderr. Do nothing if stderr was closed before the start (`2>&-`)."""
    if sys.stderr is not None:
        try:
            sys.stderr.write(mask_passwords(text))
            sys.stderr.flush()
        except (OSError, ValueError):
            discard_output(sys.stderr)


def mask_passwords(text: str) -> str:
    """Mask passwords in addresses. Error messages may quote an address from the command line."""
    return _PASSWORD_PATTERN.sub(r"\1***@", text)


@contextlib.contextmanager
def report_progress(
    action: str, unit: str, *, resumable: bool = False, lines: bool = True
) -> Iterator[Callable[[int, int], None]]:
    """
    Provide a progress callback: a bar in a terminal with tqdm, otherwise occasional lines.

    Without *lines*, an output that is not a terminal gets a single line at the end.
    """
    import asyncio

    is_terminal = False
    with contextlib.suppress(OSError, ValueError):
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
    bar: Any = None
    if is_terminal:
        with contextlib.suppress(ImportError):
            from tqdm.auto import tqdm  # type: ignore[import-untyped]  # tqdm has no type information

            bar = tqdm(desc=action, unit=f" {unit}", file=sys.stderr, leave=False, dynamic_ncols=True)
    reported_at, last = time.monotonic(), ""

    def update_progress(done: int, total: int) -> None:
        nonlocal reported_at, last
        if bar is not None:
            bar.total = total
            bar.update(done - bar.n)
            return
        last = f"{action} {done:,} of {total:,} {unit}\n"
        if (lines or is_terminal) and time.monotonic() - reported_at >= _PROGRESS_INTERVAL_SECONDS:
            reported_at = time.monotonic()
            write_stderr(last)

    try:
        yield update_progress
    except asyncio.CancelledError:
        if resumable:
            write_stderr("mama-structs: interrupted; run it again to go on\n")
        raise
    finally:
        if bar is not None:
            bar.close()
        elif not (lines or is_terminal):
            write_stderr(last)


def confirm(question: str) -> bool:
    """Ask a question on stderr. Return True if the user answers yes on stdin."""
    write_stderr(f"{question} [y/N] ")
    try:
        return sys.stdin is not None and sys.stdin.readline().strip().lower() in ("y", "yes")
    except (OSError, ValueError):
        return False


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """
    Return rows as a table with aligned columns.

    If the table is too wide for the terminal, each row becomes a block: its text (the last cell but one), other cells,
    and its id (the last cell), untruncated.
    """
    table = _align_columns(rows)
    room = shutil.get_terminal_size().columns
    if not _is_terminal() or max(map(_measure_width, table.splitlines())) <= room:
        return table
    return "\n".join(line for row in rows for line in _format_block(row, room))


def _is_terminal() -> bool:
    with contextlib.suppress(OSError, ValueError):
        return sys.stdout is not None and sys.stdout.isatty()
    return False


def _format_block(row: Sequence[str], width: int) -> Iterator[str]:
    *facts, text, id_ = row
    facts_text = ", ".join(filter(None, facts))
    yield truncate_line(text, width)
    if _measure_width(f"  {facts_text}, {id_}") <= width:
        yield f"  {facts_text}, {id_}"
    else:
        yield f"  {truncate_line(facts_text, width - 2)}"
        yield f"  {id_}"


def _align_columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(_measure_width, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell + " " * (width - _measure_width(cell)) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _measure_width(text: str) -> int:
    """Return the width of a text in terminal columns; East Asian wide characters take two."""
    return sum(0 if combining(one) else 2 if east_asian_width(one) in "WF" else 1 for one in text)
