"""
Ids of on-chain entities: the code of the type, a hyphen, and a decimal index.

The rules follow structsd's ``objectType`` enum and its ``%d-%d`` formatting: no leading zeros, indexes from 1.
"""

from __future__ import annotations

import enum
import re
from typing import Self

import attrs

from mama_structs._internal.jsonable import JsonMixin, to_plain
from mama_structs._internal.lazy_import import run_load_callbacks
from mama_structs.errors import InvalidArgument, repr_short

MAX_INDEX = 2**64 - 1
_ID_PATTERN = re.compile(r"(0|[1-9][0-9]?)-([1-9][0-9]{0,19})", re.ASCII)


class EntityType(enum.StrEnum):
    """The type of an entity. The value is its name; *code* is its number in ids."""

    code: int

    def __new__(cls, name: str, code: int) -> Self:
        """Create a member with a name and a code."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.code = code
        return member

    GUILD = "guild", 0
    PLAYER = "player", 1
    PLANET = "planet", 2
    REACTOR = "reactor", 3
    SUBSTATION = "substation", 4
    STRUCT = "struct", 5
    ALLOCATION = "allocation", 6
    INFUSION = "infusion", 7
    ADDRESS = "address", 8
    FLEET = "fleet", 9
    PROVIDER = "provider", 10
    AGREEMENT = "agreement", 11

    @property
    def has_ids(self) -> bool:
        """
        True if entities of this type have ``type-index`` ids.

        Infusions and addresses have none.
        """
        return self not in (EntityType.INFUSION, EntityType.ADDRESS)

    @classmethod
    def from_code(cls, code: int) -> EntityType:
        """Return the type with this code, or raise `InvalidArgument`."""
        try:
            return _TYPES_BY_CODE[code]
        except (KeyError, TypeError):
            raise InvalidArgument(f"entity type codes are 0 to 11, got {repr_short(code)}") from None


_TYPES_BY_CODE = {member.code: member for member in EntityType}


@attrs.frozen(order=True, repr=False)
class EntityId(JsonMixin):
    """
    The id of an on-chain entity, written ``type-index``.

    Args:
        type: The entity's type.
        index: Its number, from 1 to 2**64 - 1.

    """

    type: EntityType = attrs.field(order=lambda member: member.code)
    index: int

    def __attrs_post_init__(self) -> None:
        """Raise `InvalidArgument` for an invalid type or index."""
        if not isinstance(self.type, EntityType):
            raise InvalidArgument(f"type must be an EntityType, got {repr_short(self.type)}")
        if not isinstance(self.index, int) or isinstance(self.index, bool) or not 1 <= self.index <= MAX_INDEX:
            raise InvalidArgument(f"index must be a whole number from 1 to 2**64 - 1, got {repr_short(self.index)}")

    @classmethod
    def parse(cls, text: str) -> EntityId:
        """
        Parse an id such as ``1-11``.

        Returns:
            The parsed id.

        Raises:
            InvalidArgument: *text* is not an id: not of the form ``type-index``, an unknown type,
                a leading zero, or an index outside 1 to 2**64 - 1.

        """
        if isinstance(text, EntityId):
            return text
        matched = _ID_PATTERN.fullmatch(text) if isinstance(text, str) else None
        if matched is None:
            raise InvalidArgument(
                f"an entity id must look like 1-11, got {repr_short(text)}",
                hint="type code 0 to 11, one hyphen, an index from 1 without leading zeros",
            )
        return cls(EntityType.from_code(int(matched[1])), int(matched[2]))

    def __str__(self) -> str:
        return f"{self.type.code}-{self.index}"

    def __repr__(self) -> str:
        return f"EntityId.parse({str(self)!r})"


# Tools may return models, so ids in them must be detected like text.
to_plain.register(EntityId, str)


run_load_callbacks(__name__)
