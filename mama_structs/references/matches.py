"""Results of scanning a payload: id matches with their positions, and complete entities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, overload

import attrs

# Number of tuple elements per occurrence.
_PARTS: Final = 5

# Position of a container: the position of its parent and its key there. None is the payload itself.
Pointed = tuple[Any, Any] | None


@attrs.frozen(eq=False)
class FieldRule:
    """
    Meaning of a field name for ids of one type.

    Computed once per name and shared by its matches.
    """

    type: str
    field: Any
    primary: bool = True
    accepted: bool = True
    denied: bool = False
    # True if entities store their own id in this field.
    own: bool = False
    # True if every id in this field is a reference, regardless of its sibling fields.
    plain: bool = attrs.field(init=False)

    @plain.default
    def _is_plain(self) -> bool:
        return self.accepted and not self.own


class Found(tuple[str, FieldRule, int | None, Pointed, Any]):
    """One occurrence of an id in a payload."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<Found {self.type} {self.id} at {self.pointer}>"

    @property
    def id(self) -> str:
        """The id, written ``type:id`` if the field determines its type."""
        return self[0]

    @property
    def type(self) -> str:
        """The name of the id's type, such as ``planet``."""
        return self[1].type

    @property
    def field(self) -> str:
        """
        The name of the field with the id.

        Members of an array or of a wrapper mapping use its name.
        """
        return str(self[1].field)

    @property
    def primary(self) -> bool:
        """True if the field is a direct relation."""
        return self[1].primary

    @property
    def row(self) -> int | None:
        """The index of the list row that contains the id, from 0; None outside the rows."""
        return self[2]

    @property
    def pointer(self) -> str:
        """The JSON pointer (RFC 6901) of the value that contains the id."""
        return pointer(self[3], self[4])


@attrs.frozen
class Embedded:
    """JSON parsed from a string. Pointers to its members end at the string."""

    content: Any


def pointer(place: Pointed, key: Any) -> str:
    """
    Return the JSON pointer of *key* in the container at *place*.

    Inside nested JSON, return the pointer of the string that contains it.
    """
    keys = [key]
    while place is not None:
        place, key = place
        if key is Embedded:
            keys.clear()
        else:
            keys.append(key)
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in reversed(keys))


class Occurrences(Sequence[Found]):  # noqa: PLW1641 - mutable and therefore unhashable
    """
    Sequence of id matches in payload order.

    Stored as one flat list; matches are created lazily.
    """

    def __init__(self, parts: Iterable[Any] = ()) -> None:
        self.parts: list[Any] = list(parts)

    def __len__(self) -> int:
        return len(self.parts) // _PARTS

    @overload
    def __getitem__(self, index: int) -> Found: ...
    @overload
    def __getitem__(self, index: slice) -> list[Found]: ...
    def __getitem__(self, index: int | slice) -> Found | list[Found]:
        return (
            list(self)[index]
            if isinstance(index, slice)
            else Found(self.parts[(at := range(len(self))[index] * _PARTS) : at + _PARTS])
        )

    def __iter__(self) -> Iterator[Found]:
        return map(Found, self.tuples())

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    def __repr__(self) -> str:
        return repr(list(self))

    def tuples(self) -> Iterator[tuple[Any, ...]]:
        """Return an iterator over the tuples of all matches."""
        return zip(*[iter(self.parts)] * _PARTS, strict=True)

    def ids(self) -> list[str]:
        """Return the ids of all matches."""
        return self.parts[::_PARTS]

    def where(self, wanted: Callable[[str, FieldRule], bool]) -> Occurrences:
        """Return the matches for which ``wanted(id, rule)`` is true."""
        return Occurrences(part for one in self.tuples() if wanted(one[0], one[1]) for part in one)


@attrs.define
class Scan:
    """
    Result of a scan, in payload order: ids and look-alikes.

    A look-alike is an id whose type does not fit its field.
    """

    found: Occurrences = attrs.field(factory=Occurrences)
    lookalikes: Occurrences = attrs.field(factory=Occurrences)
    # Ids of related entities that the payload contains completely, so that they need no reference.
    present: set[str] = attrs.field(factory=set)
    # `complete` is False if the payload was too large to scan completely. `unread` counts the objects that could not be
    # read.
    complete: bool = True
    unread: int = 0
