r"""
Where Markdown code begins and ends, in text that comes in pieces.

* A *fence* opens at a line's start (of the text, or after ``\n``) after at most three spaces, with a run of three or
  more backticks or tildes. A run of backticks opens none when a backtick follows on the same line within 1,000
  characters. A fence closes at a line of at most three spaces, a run of the same character that is at least as long,
  and nothing but spaces, tabs and ``\r``; else it runs to the end of the text.
* A *span* opens with a run of backticks that is no fence, and closes with the next run of exactly as many on the same
  line, when at most 1,000 characters are in between; else its backticks are text.
* A run of more than 1,000 characters opens nothing. It may close a fence.
"""

from __future__ import annotations

import enum
import re
from typing import Final

import attrs

LONGEST_RUN: Final = 1_000
REACH: Final = 1_000
_SHORTEST_FENCE: Final = 3
_INDENT: Final = 3

_RUNS: Final = {character: re.compile(f"{character}*+") for character in "`~"}
# The usual span, of one backtick each and without what may be a tag, in which there is nothing to decide.
PLAIN_SPAN: Final = rf"`[^`\n<]{{1,{REACH}}}+`(?=[^`])"

_BLANK: Final = re.compile(r"[ \t\r]*+")


def begins_line(text: str, at: int) -> bool:
    """Tell whether nothing but at most three spaces stands between a line break and an index."""
    for index in range(at - 1, max(at - 2 - _INDENT, -1), -1):
        if text[index] != " ":
            return text[index] == "\n"
    return False


def line_beginning(text: str) -> str:
    """Return the end of a text behind which a fence may open: a line break and at most three spaces, else nothing."""
    at = text.rfind("\n", max(len(text) - 1 - _INDENT, 0))
    return text[at:] if at >= 0 and begins_line(text, len(text)) else ""


def matched_to(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return the index behind what a pattern matches at an index."""
    match = pattern.match(text, at)
    return at if match is None else match.end()


@attrs.frozen
class Fence:
    """
    Fenced code that is open.

    Args:
        character: A backtick or a tilde.
        length: Of the run that opened it.

    """

    character: str
    length: int

    def end(self, text: str, start: int) -> int:
        """Return the index of the line break that ends the closing line, -1 when there is none from *start* on."""
        run = self.character * self.length
        at = text.find(run, start)
        while at >= 0:
            behind = matched_to(_RUNS[self.character], text, at)
            if begins_line(text, at):
                blank = matched_to(_BLANK, text, behind)
                if text.startswith("\n", blank):
                    return blank
            at = text.find(run, behind)
        return -1

    def line_so_far(self, text: str, start: int) -> str:
        """
        Return the last line, from its line break on, if it may become the closing one, else nothing.

        It comes as short as another that is as good: no longer than the fence's own run and a few characters.
        """
        line = text.rfind("\n", start)
        if line < 0:
            return ""
        run = text.find(self.character, line, line + 2 + _INDENT)
        if run < 0:
            return line_beginning(text[line:])
        behind = matched_to(_RUNS[self.character], text, run)
        blank = matched_to(_BLANK, text, behind)
        if blank < len(text) or not begins_line(text, run):
            return ""
        if blank == behind:
            return text[line : min(behind, run + self.length)]
        return f"{text[line : run + self.length]} " if behind - run >= self.length else ""


class Undecided(enum.Enum):
    """What a run of backticks is, when it has no closing run."""

    WAIT = "depends on how the text goes on"
    FENCE = "opens fenced code"
    TEXT = "is text"


@attrs.define
class Span:
    """
    A run of backticks that may open code.

    Args:
        length: Of the run.
        may_be_fence: Whether it begins a line and is long enough; False as soon as a backtick is seen behind it.
        searched: Characters behind the run that need not be searched again.

    """

    length: int
    may_be_fence: bool
    searched: int = 0

    def end(self, text: str, start: int, *, final: bool) -> int | Undecided:
        """
        Return the index of the closing run, or what is known without it.

        Args:
            text: The text.
            start: The index behind the run.
            final: Whether the text will not go on.

        """
        line = text.find("\n", start, start + REACH + 1)
        stop = start + REACH + 1 if line < 0 else line
        known = final or stop <= len(text)
        at = text.find("`", start + self.searched, stop)
        while at >= 0:
            self.may_be_fence = False
            behind = matched_to(_RUNS["`"], text, at)
            if behind == len(text) and not final and (behind < stop or behind - at <= self.length):
                self.searched = at - start
                return Undecided.WAIT
            if behind - at == self.length:
                return at
            at = text.find("`", behind, stop)
        if known:
            return Undecided.FENCE if self.may_be_fence else Undecided.TEXT
        self.searched = len(text) - start
        return Undecided.WAIT


@attrs.define
class Run:
    """
    A run of backticks or tildes that is being counted.

    Args:
        character: A backtick or a tilde.
        begins_line: Whether it begins a line.
        length: Counted so far.

    """

    character: str
    begins_line: bool
    length: int = 0

    def count(self, text: str, at: int) -> int:
        """Count what stands at an index, and return the index behind it."""
        end = matched_to(_RUNS[self.character], text, at)
        self.length += end - at
        return end

    def opens(self) -> Fence | Span | None:
        """Return what the run opens, now that it is counted: code, what may be code, or nothing."""
        may_be_fence = self.begins_line and self.length >= _SHORTEST_FENCE
        if self.length > LONGEST_RUN:
            return None
        if self.character == "`":
            return Span(self.length, may_be_fence)
        return Fence(self.character, self.length) if may_be_fence else None
