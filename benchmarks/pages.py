"""The cost of indexing, reading and searching a large text, compared with the standard library."""

from __future__ import annotations

import asyncio
import io
import re
from typing import Any

from _common import arguments, compared, comparison_rows, report, take_turns

from mama_structs.refs.store.text import Content, make_preview, read_excerpt
from mama_structs.refs.store.text_search import TextSearchRequest, search

CHARS = 10_000_000
PAGE_CHARS = 4_000
# Reads per measurement. A single read is too fast for the resolution of the clock.
TIMES = 100


def texts(size: int) -> dict[str, str]:
    """Return texts of about *size* characters."""
    return {
        "one line": "x" * size,
        "lines of 50": ("y" * 49 + "\n") * (size // 50),
        "one line, emoji": "😀abc" * (size // 4),
        "empty lines": "\n" * size,
    }


def string_io(text: str) -> list[str]:
    with io.StringIO(text) as lines:
        return lines.readlines()


def indexing(text: str, rounds: int) -> dict[str, dict[str, float]]:
    """Index a text by page, line and character. The rivals only split it into lines or pages."""
    return compared(
        take_turns(
            {
                "str.splitlines": lambda: text.splitlines(keepends=True),
                "StringIO.readlines": lambda: string_io(text),
                "naive slices": lambda: [text[start : start + PAGE_CHARS] for start in range(0, len(text), PAGE_CHARS)],
                "Content and index": lambda: Content.from_text(text).pages(PAGE_CHARS),
            },
            rounds,
        ),
        "str.splitlines",
    )


def reading(text: str, rounds: int) -> dict[str, dict[str, float]]:
    """
    Read parts of an indexed text.

    The rivals have no index, so they start from the plain text.
    """
    content = Content.from_text(text)
    pages = len(content.pages(PAGE_CHARS))
    last = (len(text) - 1) // PAGE_CHARS * PAGE_CHARS

    def repeated(action: Any) -> Any:
        return lambda: [action() for _ in range(TIMES)]

    def reader(mode: Any, start: int) -> Any:
        return repeated(lambda: read_excerpt(content, handle="fd:1", mode=mode, start=start, page_size=PAGE_CHARS))

    rivals = take_turns(
        {
            "naive slice": repeated(lambda: text[last : last + PAGE_CHARS]),
            "last page": reader("page", pages),
            "last line": reader("line", content.lines),
            "last character": reader("char", content.chars),
            "preview": repeated(lambda: make_preview(content, head=1_500, tail=500)),
        },
        rounds,
    )
    rivals = {name: [sample / TIMES for sample in samples] for name, samples in rivals.items()}
    rivals |= take_turns({"last line by splitlines": lambda: text.splitlines(keepends=True)[-1]}, max(1, rounds // 3))
    return compared(rivals, "naive slice")


def searching(text: str, rounds: int) -> dict[str, dict[str, float]]:
    """Search for a string that occurs once at the end, and count the occurrences of a frequent string."""
    content = Content.from_text(f"{text}needle 42")
    content.pages(PAGE_CHARS)
    common = text[0]

    def find(query: str, **options: Any) -> Any:
        return lambda: asyncio.run(
            search(TextSearchRequest(content, query, handle="fd:1", timeout=60, page_size=PAGE_CHARS, **options))
        )

    return compared(
        take_turns(
            {
                "str.find": lambda: content.text.find("needle"),
                "str.count of all": lambda: content.text.count(common),
                "re": lambda: list(re.finditer(r"needle \d+", content.text)),
                "search, plain": find("needle"),
                "search, plain, all counted": find(common),
                "search, pattern": find(r"needle \d+", regex=True),
            },
            rounds,
        ),
        "str.find",
    )


def main() -> None:
    options = arguments(__doc__ or "")
    size, rounds = (20_000, 2) if options.quick else (CHARS, 7)
    figures, rows = {}, []
    for name, text in texts(size).items():
        own = {
            "index": indexing(text, rounds),
            "read": reading(text, rounds),
            "search": searching(text, max(1, rounds // 2)),
        }
        figures[name] = {"chars": len(text), **own}
        for case in own.values():
            rows += comparison_rows(name, case)
    report(
        "pages",
        f"Texts of {size / 1e6:g} million characters, pages of {PAGE_CHARS}; milliseconds, and the ratio to the first of each\n"
        "group in the same run. Targets: content and index below 100 ms, the last page below 1 ms.",
        ("text", "what", "min ms", "median ms", "min ratio", "median ratio"),
        rows,
        figures=figures,
        folder=options.results,
    )


if __name__ == "__main__":
    main()
