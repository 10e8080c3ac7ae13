"""Parts what a user pasted from the user's own words around it."""

from __future__ import annotations

from typing import Final

import attrs

from mama_structs.descriptors.fences import fenced_blocks
from mama_structs.errors import InvalidArgument

# Characters of the user's own words that stay in sight at each end; fewer where that leaves too little to put away.
_IN_SIGHT: Final = (1_000, 500, 250, 125)


@attrs.frozen
class Pasted:
    """
    A text in three parts, which joined are the text.

    Args:
        before: Words before, which stay in sight; may be empty.
        pasted: What becomes a descriptor.
        after: Words behind, which stay in sight; may be empty.

    """

    before: str
    pasted: str
    after: str


def split_pasted(text: str, *, over: int) -> Pasted:
    """
    Part what a user pasted from the user's own words, which often hold the question, at the beginning or the end.

    A fenced block that holds more than half of the text is what was pasted; its fences stay outside.
    Else the first and the last paragraphs stay in sight, at most 1,000 characters at each end.
    Where there is no blank line, or where what is left for the descriptor would not be longer than half of *over*,
    everything counts as pasted.

    Args:
        text: What the user sent.
        over: From which length on texts become descriptors, in characters.

    Raises:
        InvalidArgument: *over* is negative or no whole number.

    """
    if not isinstance(over, int) or isinstance(over, bool) or over < 0:
        raise InvalidArgument(f"over must be a whole number of 0 or more, got {over!r:.80}")
    around_fence = _by_fence(text, most=max(_IN_SIGHT[0], over // 2))
    if around_fence is not None and 2 * len(around_fence.pasted) > over:
        return around_fence
    for most in _IN_SIGHT:
        parted = _by_paragraphs(text, most=most)
        if 2 * len(parted.pasted) > over:
            return parted
    return Pasted("", text, "")


def _by_fence(text: str, *, most: int) -> Pasted | None:
    """Part at the largest fenced block, where it is most of the text and little enough stays in sight."""
    largest = max(fenced_blocks(text), key=lambda block: block.end - block.start, default=None)
    if largest is None or 2 * (largest.end - largest.start) <= len(text):
        return None
    if largest.start > most or len(text) - largest.end > most:
        return None
    return Pasted(text[: largest.start], text[largest.start : largest.end], text[largest.end :])


def _by_paragraphs(text: str, *, most: int) -> Pasted:
    start = _behind_blank_line(text[:most])
    end = len(text) - most
    end = len(text) if end <= start else end + _before_blank_line(text[end:])
    before, after = text[:start], text[end:]
    # Blank lines alone are nobody's words.
    start = start if before.strip() else 0
    end = end if after.strip() else len(text)
    return Pasted(text[:start], text[start:end], text[end:])


def _behind_blank_line(head: str) -> int:
    """Find where the last paragraph of *head* begins: behind its last blank line; 0 when it has none."""
    position = found = 0
    for line in head.split("\n")[:-1]:
        if not line.strip():
            found = position + len(line) + 1
        position += len(line) + 1
    return found


def _before_blank_line(tail: str) -> int:
    """Find where the first blank line of *tail* begins; its length when it has none."""
    lines = tail.split("\n")
    # The first is cut.
    position = len(lines[0]) + 1
    for line in lines[1:]:
        if not line.strip():
            return position
        position += len(line) + 1
    return len(tail)
