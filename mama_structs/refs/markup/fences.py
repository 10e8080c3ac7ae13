"""Fenced code, as `RefParser` finds it in pieces and as it stands in a whole text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import attrs

LONGEST_RUN: Final = 1_000
REACH: Final = 1_000
SHORTEST_FENCE: Final = 3
INDENT: Final = 3

_BLANK: Final = r"[ \t\r]*+"
_CLOSING_LINE: Final = {mark: re.compile(rf"\n {{0,3}}(?P<run>{mark}{{3,}}+){_BLANK}(?=\n)") for mark in "`~"}
_LAST_LINE: Final = {mark: re.compile(rf"\n {{0,3}}(?P<run>{mark}*+)(?P<blank>{_BLANK})\Z") for mark in "`~"}
_FENCE_LINE: Final = re.compile(
    rf"^ {{0,3}}(?P<run>`{{3,{LONGEST_RUN}}}+(?![^`\n]{{0,{REACH}}}+`)|~{{3,{LONGEST_RUN}}}+(?!~))(?P<info>[^\n]*)",
    re.MULTILINE,
)


@attrs.frozen
class Fence:
    """Fenced code that is open: the character, and the length of the run that opened it."""

    character: str
    length: int

    def end(self, text: str, start: int) -> int:
        """Return the index of the line break that ends the closing line, -1 when there is none from *start* on."""
        lines = _CLOSING_LINE[self.character].finditer(text, start)
        return next((line.end() for line in lines if len(line["run"]) >= self.length), -1)

    def line_so_far(self, text: str, start: int) -> str:
        """Return the last line, or a shorter one that is as good, if it may become the closing one, else nothing."""
        match = _LAST_LINE[self.character].search(text, max(text.rfind("\n"), start))
        if match is None:
            return ""
        begun, run = match.span("run")
        if match["blank"]:
            return f"{text[match.start() : begun + self.length]} " if run - begun >= self.length else ""
        return text[match.start() : min(run, begun + self.length)]


@attrs.frozen
class FencedBlock:
    """A fenced block of a whole text; positions count from 0, and the content has no line break at its end."""

    info: str  # behind the opening fence
    opening: int  # where its line begins
    start: int
    end: int
    behind: int  # where the line behind the closing fence begins, or would
    closed: bool  # else it runs to the end of the text


def fenced_blocks(text: str) -> Iterator[FencedBlock]:
    """Find the fenced blocks of a whole text without refs, as `RefParser` finds them in pieces."""
    whole = text if text.endswith("\n") else f"{text}\n"
    at = 0
    while line := _FENCE_LINE.search(whole, at):
        at, run = line.end(), line["run"]
        start = min(at + 1, len(text))
        closing = Fence(run[0], len(run)).end(whole, at)
        at = len(text) if closing < 0 else closing
        end = whole.rfind("\n", 0, closing) if closing >= 0 else len(text) - text.endswith("\n")
        end -= text[end - 1 : end + 1] == "\r\n"
        behind = len(text) if closing < 0 else closing + 1
        yield FencedBlock(line["info"].strip(), line.start(), start, max(start, end), behind, closed=closing >= 0)


def language_of(info: str) -> str | None:
    """Read the language from what stands behind a fence: its first word, in lower case."""
    words = info.replace("{", " ").replace("}", " ").replace(",", " ").split(maxsplit=1)
    if not words or "=" in words[0]:
        return None
    word = words[0].partition(":")[0].lstrip(".").lower()[:40]
    return word or None


_MAY_BE_ENCLOSED: Final = re.compile(r"\s*+(?:```|~~~)")
_MARKDOWN: Final = frozenset({"md", "markdown"})


@attrs.frozen
class Enclosed:
    """What stands in the one fence around a whole text, without the fence's own indentation; *language* may be None."""

    text: str
    language: str | None


def enclosed(text: str) -> Enclosed | None:
    """Return what stands in the fence that encloses a whole text, but for blank lines; None where none is markup."""
    # A fence that is never closed runs to the end, and Markdown in a fence is shown rather than meant.
    block = next(fenced_blocks(text), None) if _MAY_BE_ENCLOSED.match(text) else None
    if block is None or text[: block.opening].strip() or text[block.behind :].strip():
        return None
    language = language_of(block.info)
    if language in _MARKDOWN:
        return None
    # Where the text was cut, the line break may belong to what comes.
    inner = text[block.start : block.end] if block.closed else text[block.start :]
    opening = text[block.opening : block.start]
    if indent := len(opening) - len(opening.lstrip(" ")):
        inner = re.sub(rf"^ {{1,{indent}}}", "", inner, flags=re.MULTILINE)
    return Enclosed(inner, language)
