"""What the commands print, and how far long work is."""

# ruff: noqa: PLC0415 - what takes time to import is imported where it is used, see `mama_structs.cli`

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

from mama_structs._internal.reprs import short
from mama_structs.errors import MamaStructsError

# As often as a line says how far it is, where there is no bar.
_TOLD_EVERY: Final = 1.0
# Of a path made of an address one slash is left.
_PASSWORD: Final = re.compile(r"(\w:/{1,2}[^\s:@/]*:)\S*@")


def say(*texts: str) -> None:
    """Print to stdout, at once, for whoever started this may wait for it; without a text, what is not written yet."""
    try:
        for text in texts:
            print(text)
        # There is none where it was closed before the start (`>&-`).
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output()
        raise MamaStructsError(f"the output cannot be written: {error.strerror or error}") from error


def answer(given: argparse.Namespace, figures: Any, text: str) -> None:
    """Print what a command found, as JSON where that is asked for."""
    say(json.dumps(figures) if given.json else text)


def drop_output(stream: TextIO | None = None) -> None:
    """
    Send what is still to be written nowhere, of stdout where no other stream is named.

    The interpreter flushes again at its end, and must not complain.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stdout if stream is None else stream).fileno())


def tell_stderr(text: str) -> None:
    """Write to stderr, which is not there where it was closed before the start (`2>&-`)."""
    if sys.stderr is not None:
        try:
            sys.stderr.write(without_passwords(text))
            sys.stderr.flush()
        except (OSError, ValueError):
            drop_output(sys.stderr)


def without_passwords(text: str) -> str:
    """Return a text without the passwords of addresses, which stand where a user put an argument in a wrong place."""
    return _PASSWORD.sub(r"\1***@", text)


@contextlib.contextmanager
def shown(what: str, unit: str, *, resumable: bool = False, lines: bool = True) -> Iterator[Callable[[int, int], None]]:
    """
    Show how far work is: a bar on a terminal if there is tqdm, else a line now and then.

    Without *lines* only a terminal gets those, and everything else a single one at the end.
    """
    import asyncio

    is_terminal = False
    with contextlib.suppress(OSError, ValueError):
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
    bar: Any = None
    if is_terminal:
        with contextlib.suppress(ImportError):
            from tqdm.auto import tqdm  # type: ignore[import-untyped]  # it ships no types

            bar = tqdm(desc=what, unit=f" {unit}", file=sys.stderr, leave=False, dynamic_ncols=True)
    told, last = time.monotonic(), ""

    def tell(done: int, total: int) -> None:
        nonlocal told, last
        if bar is not None:
            bar.total = total
            bar.update(done - bar.n)
            return
        last = f"{what} {done:,} of {total:,} {unit}\n"
        if (lines or is_terminal) and time.monotonic() - told >= _TOLD_EVERY:
            told = time.monotonic()
            tell_stderr(last)

    try:
        yield tell
    except asyncio.CancelledError:
        if resumable:
            tell_stderr("mama-structs: interrupted; run it again to go on\n")
        raise
    finally:
        if bar is not None:
            bar.close()
        elif not (lines or is_terminal):
            tell_stderr(last)


def confirmed(question: str) -> bool:
    """Ask on stderr, and return whether the answer on stdin is yes; no answer is none."""
    tell_stderr(f"{question} [y/N] ")
    try:
        return sys.stdin is not None and sys.stdin.readline().strip().lower() in ("y", "yes")
    except (OSError, ValueError):
        return False


def columns(rows: Sequence[Sequence[str]]) -> str:
    """
    Return rows under each other, each column as wide as its widest cell.

    On a terminal that is too narrow for that, a row is a block: its text, which is the last cell but one, the other
    facts, and the last cell, an id, whole.
    """
    whole = _columns(rows)
    room = shutil.get_terminal_size().columns
    if not _is_terminal() or max(map(_width, whole.splitlines())) <= room:
        return whole
    return "\n".join(line for row in rows for line in _block(row, room))


def _is_terminal() -> bool:
    with contextlib.suppress(OSError, ValueError):
        return sys.stdout is not None and sys.stdout.isatty()
    return False


def _block(row: Sequence[str], room: int) -> Iterator[str]:
    *facts, text, id_ = row
    told = ", ".join(filter(None, facts))
    yield short(text, room)
    if _width(f"  {told}, {id_}") <= room:
        yield f"  {told}, {id_}"
    else:
        yield f"  {short(told, room - 2)}"
        yield f"  {id_}"


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)) for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _width(text: str) -> int:
    """Return the places that a text takes on a terminal, where East Asian letters take two."""
    return sum(0 if combining(one) else 2 if east_asian_width(one) in "WF" else 1 for one in text)
