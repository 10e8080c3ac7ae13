"""What a store holds: refs, descriptors, and the marks of what is gone or broken."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import attrs

from mama_structs.descriptors.categories import Category
from mama_structs.descriptors.content import Content
from mama_structs.descriptors.handles import FdHandle, RefHandle


@attrs.frozen(kw_only=True, repr=False)
class _Kept:
    """A text that is kept, whatever it came from."""

    category: Category
    created_at: datetime
    page_size: int
    content: Content

    @property
    def text(self) -> str:
        """The text."""
        return self.content.text

    @property
    def chars(self) -> int:
        """Its characters."""
        return self.content.chars

    @property
    def lines(self) -> int:
        """Its lines."""
        return self.content.lines

    @property
    def pages(self) -> int:
        """Its pages."""
        return len(self.content.pages(self.page_size))


@attrs.frozen(kw_only=True, repr=False)
class Ref(_Kept):
    """
    A part of a model's answer that the model marked.

    Args:
        id: As the model chose it.
        version: From 1; a repeated id makes the next.
        category: ``code``, ``data`` or ``text``, from the attributes or else from the content.
        attributes: What else the tag said, by lower-case name.
        complete: False when the answer ended before the tag was closed.
        created_at: When it was stored (UTC).
        page_size: Characters of its pages.
        content: The marked text.

    """

    id: str
    version: int
    attributes: Mapping[str, str] = attrs.field(factory=dict)
    complete: bool = True

    def __repr__(self) -> str:
        state = "" if self.complete else ", never closed"
        return f"<Ref {self.versioned}: {self.category}, {self.chars:,} characters, lines: {self.lines:,}{state}>"

    @property
    def handle(self) -> str:
        """``ref:<id>``: this ref, until its id is used again."""
        return str(RefHandle(self.id))

    @property
    def versioned(self) -> str:
        """``ref:<id>@<version>``: always this text."""
        return str(RefHandle(self.id, self.version))


@attrs.frozen(kw_only=True, repr=False)
class Descriptor(_Kept):
    """
    A large input or result, kept under a number.

    Args:
        number: From 1 in each conversation, never used again.
        source: Where it came from, such as ``tool_result`` or ``user_input``.
        category: ``code``, ``data`` or ``text``, from the content.
        created_at: When it was stored (UTC).
        page_size: Characters of its pages.
        content: The text.

    """

    number: int
    source: str

    def __repr__(self) -> str:
        return f"<Descriptor {self.handle} of {self.source}: {self.chars:,} characters, lines: {self.lines:,}>"

    @property
    def handle(self) -> str:
        """``fd:<number>``."""
        return str(FdHandle(self.number))

    @property
    def versioned(self) -> str:
        """The handle: a descriptor never changes."""
        return self.handle


@attrs.frozen
class Deleted:
    """
    What is left of something that was deleted.

    Args:
        at: When (UTC).

    """

    at: datetime


@attrs.frozen
class Damaged:
    """
    What is left of something that the disk did not give back.

    Args:
        reason: What was found.

    """

    reason: str


Entry = Ref | Descriptor
Slot = Ref | Descriptor | Deleted | Damaged
