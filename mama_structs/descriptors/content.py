"""A text that a handle stands for, with what is asked about it most."""

from __future__ import annotations

import hashlib

import attrs

from mama_structs.descriptors.pages import Pages, check_page_size, count_lines
from mama_structs.errors import InvalidArgument


@attrs.frozen(repr=False)
class Content:
    """
    A text that never changes; two are equal when their hashes are. Made by `Content.of`.

    Args:
        text: The text itself.
        hash: SHA-256 of its UTF-8 form, in hexadecimal digits.
        chars: Characters, as Python counts them.
        size: Bytes in UTF-8.
        lines: Lines, at least 1.

    """

    text: str = attrs.field(eq=False)
    hash: str
    chars: int = attrs.field(eq=False)
    size: int = attrs.field(eq=False)
    lines: int = attrs.field(eq=False)
    _pages: dict[int, Pages] = attrs.field(factory=dict, init=False, eq=False)

    @classmethod
    def of(cls, text: str) -> Content:
        """
        Measure a text.

        Raises:
            InvalidArgument: It is no text, or holds a lone surrogate, for which UTF-8 has no bytes.

        """
        if not isinstance(text, str):
            raise InvalidArgument(f"content must be text, got {type(text).__name__}")
        # A subclass may format, escape or translate itself; what is stored is what it holds.
        text = str.__str__(text)
        data = _encoded(text)
        if isinstance(data, int):
            # Raised outside the handler: a UnicodeEncodeError carries the whole text.
            raise InvalidArgument(
                f"character {data} of the content is a lone surrogate, which no file and no model can hold",
                hint="decode it with errors='replace', or remove it",
            )
        return cls(text, hashlib.sha256(data).hexdigest(), len(text), len(data), count_lines(text))

    def pages(self, page_size: int) -> Pages:
        """
        Return the index of its pages, which is made once for each size.

        Raises:
            InvalidArgument: *page_size* is no whole number of 1 or more.

        """
        check_page_size(page_size)
        known = self._pages.get(page_size)
        if known is None:
            # Two threads may both make it; they make the same.
            known = self._pages.setdefault(page_size, Pages.of(self.text, page_size))
        return known

    def __repr__(self) -> str:
        return f"<Content: {self.chars} characters, {self.lines} lines, {self.hash[:12]}>"


def _encoded(text: str) -> bytes | int:
    """Return the UTF-8 bytes, or the position, from 1, of the first character that has none."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        return error.start + 1
