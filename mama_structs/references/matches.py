"""What a walk through a payload found: occurrences of ids, each with its place, and entities that stand whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, overload

import attrs

# The parts of one occurrence.
_PARTS: Final = 5

# Where a container stands: its parent's place and the key below it; None is the payload itself.
Pointed = tuple[Any, Any] | None


@attrs.frozen(eq=False)
class FieldRule:
    """What a field's name means for ids of one type; decided once for each name, and shared by what is found there."""

    type: str
    field: Any
    primary: bool = True
    accepted: bool = True
    denied: bool = False
    # Whether entities hold their own id in it.
    own: bool = False
    # Whether what is found there is a reference, whatever stands beside it.
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
        """The id; where the field tells its type, ``type:id``."""
        return self[0]

    @property
    def type(self) -> str:
        """The name of its type, such as ``planet``."""
        return self[1].type

    @property
    def field(self) -> str:
        """The name of the field that holds it: an array's for its members, that of a mapping which only names it."""
        return str(self[1].field)

    @property
    def primary(self) -> bool:
        """Whether the field holds a direct relation."""
        return self[1].primary

    @property
    def row(self) -> int | None:
        """The number of the list's row that holds it, from 0; None outside the rows."""
        return self[2]

    @property
    def pointer(self) -> str:
        """The JSON pointer (RFC 6901) of the value that holds it."""
        return pointer(self[3], self[4])


@attrs.frozen
class Embedded:
    """JSON that stood in a text; its members' pointers end at the text."""

    content: Any


def pointer(place: Pointed, key: Any) -> str:
    """Return the JSON pointer of *key* in the container at *place*; inside embedded JSON, of the text that holds it."""
    keys = [key]
    while place is not None:
        place, key = place
        if key is Embedded:
            keys.clear()
        else:
            keys.append(key)
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in reversed(keys))


class Occurrences(Sequence[Found]):  # noqa: PLW1641 - it compares by its parts, and is no key
    """Occurrences of ids in payload order, their parts in one list; a `Found` is made where one is looked at."""

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
        """Return the parts of each, in the order of `Found`."""
        return zip(*[iter(self.parts)] * _PARTS, strict=True)

    def ids(self) -> list[str]:
        """Return the id of each."""
        return self.parts[::_PARTS]

    def where(self, wanted: Callable[[str, FieldRule], bool]) -> Occurrences:
        """Return those of which ``wanted(id, rule)``."""
        return Occurrences(part for one in self.tuples() if wanted(one[0], one[1]) for part in one)


@attrs.define
class Scan:
    """What a walk found, in payload order: ids, and look-alikes of a type that their field does not hold."""

    found: Occurrences = attrs.field(factory=Occurrences)
    lookalikes: Occurrences = attrs.field(factory=Occurrences)
    # The ids of the entities that stand whole in the payload, but for those it is about: they are no references.
    present: set[str] = attrs.field(factory=set)
    # False when the payload was too large to be walked whole; and how many objects could not be read at all.
    complete: bool = True
    unread: int = 0
