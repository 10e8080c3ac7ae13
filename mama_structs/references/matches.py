"""Results of scanning a payload: id matches with their positions, and complete entities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, overload

import attrs

from mama_structs._internal.jsonable import to_json_text

# Number of tuple elements per occurrence.
_MATCH_TUPLE_LENGTH: Final = 5

# Position of a container: the position of its parent, and its key in the parent. None for the payload itself.
ContainerPosition = tuple[Any, Any] | None


@attrs.frozen(eq=False)
class FieldRule:
    """
    Meaning of a field name for ids of one type.

    Computed once per field name, and shared by all matches with this name.
    """

    type: str
    field: Any
    primary: bool = True
    is_accepted: bool = True
    is_denied: bool = False
    # True if the field contains the entity's own id.
    is_own_id_field: bool = False
    # True if every id in this field is a reference, regardless of the entity's other fields.
    is_always_reference: bool = attrs.field(init=False)

    @is_always_reference.default
    def _default_is_always_reference(self) -> bool:
        return self.is_accepted and not self.is_own_id_field


class IdMatch(tuple[str, FieldRule, int | None, ContainerPosition, Any]):
    """One occurrence of an id in a payload. The same id may occur several times."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<IdMatch {self.type} {self.id} at {self.pointer}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON data. The keys are their names."""
        return {name: getattr(self, name) for name in ("id", "type", "field", "is_primary", "row", "pointer")}

    def to_json(self) -> str:
        """Return the data of `to_dict` as JSON text."""
        return to_json_text(self.to_dict())

    @property
    def id(self) -> str:
        """The id, with the prefix ``type:`` if its type comes from the field name."""
        return self[0]

    @property
    def type(self) -> str:
        """The name of the id's type, such as ``planet``."""
        return self[1].type

    @property
    def field(self) -> str:
        """
        The name of the field with the id.

        Members of an array or of a wrapper mapping take the name of that container.
        """
        return str(self[1].field)

    @property
    def is_primary(self) -> bool:
        """True if the field is a direct relation of the entity."""
        return self[1].primary

    @property
    def row(self) -> int | None:
        """The index of the list row that contains the id, from 0; None outside the rows."""
        return self[2]

    @property
    def pointer(self) -> str:
        """The JSON pointer (RFC 6901) of the value that contains the id."""
        return format_json_pointer(self[3], self[4])


@attrs.frozen
class NestedJson:
    """JSON parsed from a string. The JSON pointer of a member is the pointer of the string."""

    content: Any


def format_json_pointer(position: ContainerPosition, key: Any) -> str:
    """
    Return the JSON pointer of *key* in the container at *position*.

    Inside nested JSON, return the pointer of the string that contains it.
    """
    keys = [key]
    while position is not None:
        position, key = position
        if key is NestedJson:
            keys.clear()
        else:
            keys.append(key)
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in reversed(keys))


class IdMatches(Sequence[IdMatch]):  # noqa: PLW1641 - mutable and therefore unhashable
    """
    Sequence of id matches in payload order.

    Stored as one flat list; matches are created lazily.
    """

    def __init__(self, parts: Iterable[Any] = ()) -> None:
        self.flat_items: list[Any] = list(parts)

    def __len__(self) -> int:
        return len(self.flat_items) // _MATCH_TUPLE_LENGTH

    @overload
    def __getitem__(self, index: int) -> IdMatch: ...
    @overload
    def __getitem__(self, index: slice) -> list[IdMatch]: ...
    def __getitem__(self, index: int | slice) -> IdMatch | list[IdMatch]:
        return (
            list(self)[index]
            if isinstance(index, slice)
            else IdMatch(
                self.flat_items[(at := range(len(self))[index] * _MATCH_TUPLE_LENGTH) : at + _MATCH_TUPLE_LENGTH]
            )
        )

    def __iter__(self) -> Iterator[IdMatch]:
        return map(IdMatch, self.iter_tuples())

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    def __repr__(self) -> str:
        return repr(list(self))

    def iter_tuples(self) -> Iterator[tuple[Any, ...]]:
        """Return an iterator that yields each match as a tuple."""
        return zip(*[iter(self.flat_items)] * _MATCH_TUPLE_LENGTH, strict=True)

    def ids(self) -> list[str]:
        """Return the ids of all matches."""
        return self.flat_items[::_MATCH_TUPLE_LENGTH]

    def filter(self, predicate: Callable[[str, FieldRule], bool]) -> IdMatches:
        """Return the matches for which ``predicate(id, rule)`` is true."""
        return IdMatches(part for one in self.iter_tuples() if predicate(one[0], one[1]) for part in one)


@attrs.define
class ScanResult:
    """
    Result of a scan: ids and look-alikes, each in payload order.

    A look-alike is an id whose type does not fit its field.
    """

    matches: IdMatches = attrs.field(factory=IdMatches)
    lookalikes: IdMatches = attrs.field(factory=IdMatches)
    # Ids of entities that the payload contains completely. They need no reference.
    present_ids: set[str] = attrs.field(factory=set)
    # False if the payload was too large to scan completely.
    is_complete: bool = True
    # Number of objects that could not be read.
    unreadable_objects: int = 0
