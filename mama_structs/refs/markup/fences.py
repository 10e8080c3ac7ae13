"""Fenced code blocks: incremental recognition, and extraction from a complete text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import attrs

MAX_RUN_CHARS: Final = 1_000
MAX_SPAN_CHARS: Final = 1_000
MIN_FENCE_CHARS: Final = 3
MAX_FENCE_INDENT: Final = 3

# A line ends with "\n", "\r\n" or "\r". Texts from different sources may mix them.
LINE_BREAK: Final = re.compile(r"\r\n?+|\n")
_LINE_START: Final = r"(?<![^\r\n])"
_CLOSING_LINE: Final = {mark: re.compile(rf"[\r\n] {{0,3}}(?P<run>{mark}{{3,}}+)[ \t]*+(?=[\r\n])") for mark in "`~"}
_LAST_LINE: Final = {mark: re.compile(rf"[\r\n] {{0,3}}(?P<run>{mark}*+)(?P<blank>[ \t]*+)\Z") for mark in "`~"}
_FENCE_LINE: Final = re.compile(
    rf"{_LINE_START} {{0,3}}(?P<run>`{{3,{MAX_RUN_CHARS}}}+(?![^`\r\n]{{0,{MAX_SPAN_CHARS}}}+`)"
    rf"|~{{3,{MAX_RUN_CHARS}}}+(?!~))(?P<info>[^\r\n]*)"
)


@attrs.frozen
class Fence:
    """An open fenced block. *character* and *length* describe the run of characters that opened it."""

    character: str
    length: int

    def end(self, text: str, start: int) -> int:
        """Return the index of the line break after the closing fence, or -1 if there is no closing fence."""
        line = self.find_closing_line(text, start)
        return -1 if line is None else line.end()

    def find_closing_line(self, text: str, start: int) -> re.Match[str] | None:
        """Return the match of the closing line, from the last character of the line break before it."""
        lines = _CLOSING_LINE[self.character].finditer(text, start)
        return next((line for line in lines if len(line["run"]) >= self.length), None)

    def partial_closing_line(self, text: str, start: int) -> str:
        """
        Return the last line if it may become a closing fence when more text arrives, else "".

        Only the part that affects the decision is returned, which limits the buffered text.
        """
        match = _LAST_LINE[self.character].search(text, max(text.rfind("\n"), text.rfind("\r"), start))
        if match is None:
            return ""
        begun, run = match.span("run")
        if match["blank"]:
            return f"{text[match.start() : begun + self.length]} " if run - begun >= self.length else ""
        return text[match.start() : min(run, begun + self.length)]


@attrs.frozen
class FencedBlock:
    """
    A fenced block of a complete text. Positions count from 0.

    The content excludes its last line break.
    """

    info: str  # text after the opening fence
    opening_start: int  # start of the line with the opening fence
    start: int
    end: int
    position_after: int  # start of the line after the closing fence
    closed: bool  # False if the text ends before a closing fence


def find_fenced_blocks(text: str) -> Iterator[FencedBlock]:
    """Yield the fenced blocks of a text that contains no refs, by the same rules as `RefParser`."""
    whole = text if text.endswith(("\n", "\r")) else f"{text}\n"
    at = 0
    while line := _FENCE_LINE.search(whole, at):
        at, run = line.end(), line["run"]
        start = min(_skip_line_break(whole, at), len(text))
        closing = Fence(run[0], len(run)).find_closing_line(whole, at)
        at = len(text) if closing is None else closing.end()
        end = len(text) - text.endswith(("\n", "\r")) if closing is None else closing.start()
        end -= text[end - 1 : end + 1] == "\r\n"
        behind = len(text) if closing is None else _skip_line_break(whole, at)
        yield FencedBlock(
            line["info"].strip(), line.start(), start, max(start, end), behind, closed=closing is not None
        )


def _skip_line_break(text: str, at: int) -> int:
    match = LINE_BREAK.match(text, at)
    return at if match is None else match.end()


def parse_language(info: str) -> str | None:
    """Return the language of a fence's info string (first word, lower case), or None."""
    words = info.replace("{", " ").replace("}", " ").replace(",", " ").split(maxsplit=1)
    if not words or "=" in words[0]:
        return None
    word = words[0].partition(":")[0].lstrip(".").lower()[:40]
    return word or None


_FENCE_START: Final = re.compile(r"\s*+(?:```|~~~)")
_MARKDOWN_LANGUAGES: Final = frozenset({"md", "markdown"})


@attrs.frozen
class EnclosedText:
    """Content of a fence that encloses a complete text. The indentation of the fence is removed from its lines."""

    text: str
    language: str | None


def parse_enclosing_fence(text: str) -> EnclosedText | None:
    """
    Return the content of the fence that encloses a complete text, or None if there is no such fence.

    Blank lines around the fence are ignored. A fence with the language Markdown does not count.
    """
    # An unclosed fence also encloses the text. A Markdown fence does not count, because it displays an example.
    block = next(find_fenced_blocks(text), None) if _FENCE_START.match(text) else None
    if block is None or text[: block.opening_start].strip() or text[block.position_after :].strip():
        return None
    language = parse_language(block.info)
    if language in _MARKDOWN_LANGUAGES:
        return None
    # The text of an unclosed block may be truncated, so its last line break may belong to the content.
    inner = text[block.start : block.end] if block.closed else text[block.start :]
    opening = text[block.opening_start : block.start]
    if indent := len(opening) - len(opening.lstrip(" ")):
        inner = re.sub(rf"{_LINE_START} {{1,{indent}}}", "", inner)
    return EnclosedText(inner, language)
