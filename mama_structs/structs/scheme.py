"""
Id scheme of the Structs chain, with the types of its reference fields.

Types by field follow the proto of structsd v0.16.0; misleading names were corrected by its validation rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from mama_structs.references.schemes import IdScheme
from mama_structs.structs.ids import MAX_INDEX, EntityType

# Field names by role: denied, of a single type, primary (direct relations), and brief (name, owner, location, state).
# Some denied fields contain free text of the guild API, such as a guild name that looks like an id (1-11).
_FIELD_NAMES: Final = json.loads(Path(__file__).with_name("scheme.json").read_text(encoding="utf-8"))
# Types of the ids in fields with these suffixes, such as `attackerStructId` and `member_guild_ids`.
_HINTS_BY_SUFFIX: Final = {
    f"{start}{number}": kind
    for kind in ("guild", "player", "planet", "struct", "fleet")
    for start in (f"{kind}Id", f"*{kind.capitalize()}Id", f"*_{kind}_id")
    for number in ("", "s")
}
_HINTS: Final = {name: (kind,) for kind, names in _FIELD_NAMES["hints"].items() for name in names.split()} | {
    **{name: (kind,) for name, kind in _HINTS_BY_SUFFIX.items()},
    "locationId": ("planet", "fleet"),
    "destinationId": ("reactor", "substation", "struct"),
    "sourceObjectId": ("player", "reactor", "substation"),
}


def _to_snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _iter_name_forms(names: Iterable[str]) -> Iterator[str]:
    """Yield each name in camelCase (as in the chain) and in snake_case (as in the guild API)."""
    for name in names:
        yield name
        if not name.startswith("*"):
            yield _to_snake_case(name)


def _make_number_pattern(max_value: int) -> str:
    """Return a regular expression that matches the numbers from 1 to *max_value* without leading zeros."""
    digits = str(max_value)
    same_length = [
        f"{digits[:place]}[{0 if place else 1}-{int(digit) - 1}][0-9]{{{len(digits) - place - 1}}}"
        for place, digit in enumerate(digits)
        if int(digit) > (0 if place else 1)
    ]
    return "|".join([f"[1-9][0-9]{{0,{len(digits) - 2}}}", *same_length, digits])


STRUCTS_SCHEME: Final = IdScheme(
    name="structs",
    pattern=re.compile(rf"([0-9]|1[01])-(?:{_make_number_pattern(MAX_INDEX)})", re.ASCII),
    type_of={str(member.code): str(member) for member in EntityType},
    deny=frozenset(_iter_name_forms(" ".join(_FIELD_NAMES["deny"]).split())),
    deny_subtrees=frozenset({"pagination"}),
    hints={form: types for name, types in _HINTS.items() for form in _iter_name_forms((name,))},
    primary=frozenset(_iter_name_forms(" ".join(_FIELD_NAMES["primary"]).split())),
    contains="-",
    bare={"protectedStructIndex": "5-", "protected_struct_index": "5-"},
    embedded=frozenset({"map", "detail"}),
    types=frozenset(EntityType),
    # `EntityType` includes 7-n and 8-n, but no entity of the chain has such an id, so they cannot be resolved.
    unresolvable=frozenset(member for member in EntityType if not member.has_ids),
    brief={kind: tuple(fields.split()) for kind, fields in _FIELD_NAMES["brief"].items()},
)
