"""
What a model got a little wrong, put right where it can only mean one thing.

Models write numbers as text, one string for a list of them, JSON text for an object, null for what they leave out.
A value that is right as it stands is never touched, and what could mean two things is left as it is, to be refused.
"""

from __future__ import annotations

import collections.abc
import enum
import json
import math
import re
import types
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, Union, get_args, get_origin

from mama_structs.errors import InvalidArgument
from mama_structs.tools.fields import Field, bare, fields_of
from mama_structs.tools.given_names import nearest, renamed
from mama_structs.tools.schema import shortened

# What a model means by these is anybody's guess where a list is wanted.
_NOTHING_SAID: Final = frozenset({"", "null", "none", "nil", "undefined", "n/a", "na", "-"})
_LONGEST_NUMBER: Final = 64
_WHOLE: Final = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,29})(?:\.0+)?")
_NUMBER: Final = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
# Beyond this not every whole number is one that a float can be.
_EXACT: Final = 2**53
_MAX_NOTES: Final = 3
_BOOLEANS: Final = {"true": True, "false": False}
_SEPARATOR: Final = re.compile(r"[,;|]")
_LISTS: Final = frozenset(
    {
        list,
        set,
        frozenset,
        collections.abc.Collection,
        collections.abc.Sequence,
        collections.abc.MutableSequence,
        collections.abc.Set,
        collections.abc.MutableSet,
    }
)
_MAPPINGS: Final = frozenset({dict, collections.abc.Mapping, collections.abc.MutableMapping})


def fits(value: object, kind: Any) -> bool:
    """Tell whether a value is of a type as it stands."""
    import msgspec  # noqa: PLC0415 - loaded since the tool was made

    try:
        msgspec.convert(value, kind, strict=True, str_keys=True)
    except (ValueError, RecursionError):
        return False
    return is_finite(value)


def is_finite(value: object) -> bool:
    """Tell whether a value holds neither NaN nor an infinity, which are no JSON."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    return not isinstance(value, (list, tuple)) or all(map(is_finite, value))


def mended(value: Any, kind: Any, notes: list[str]) -> Any:
    """
    Return what a value means where a type is wanted; itself, in whole or in part, where that cannot be said.

    Whether the answer is of the type is for the caller to see.

    Args:
        value: As a model gave it.
        kind: As `msgspec.convert` takes it.
        notes: Gets what a model should know about names that nothing has.

    """
    if fits(value, kind):
        return value
    kind = bare(kind)
    origin = get_origin(kind) or kind
    meant = value
    if origin in (Union, types.UnionType):
        meant = _as_one_of(value, get_args(kind), notes)
    elif origin is Literal or (isinstance(origin, type) and issubclass(origin, enum.Enum)):
        meant = _as_choice(value, kind)
    elif origin in (int, float, bool):
        meant = _as_scalar(value, origin)
    elif origin in _LISTS or origin is tuple:
        meant = _as_list(value, kind, notes)
    elif origin in _MAPPINGS:
        meant = _as_mapping(value, kind, notes)
    elif (fields := fields_of(origin)) is not None:
        meant = _as_object(value, fields, notes)
    return meant


def _as_one_of(value: Any, kinds: Iterable[Any], notes: list[str]) -> Any:
    wanted = [kind for kind in kinds if kind is not type(None)]
    if len(wanted) == 1:
        return mended(value, wanted[0], notes)
    meanings: list[Any] = []
    for kind in wanted:
        meaning = mended(value, kind, [])
        if fits(meaning, kind) and meaning not in meanings:
            meanings.append(meaning)
    return meanings[0] if len(meanings) == 1 else value


def _as_choice(value: Any, kind: Any) -> Any:
    if not isinstance(value, str):
        return value
    choices = get_args(kind) if get_origin(kind) is Literal else [one.value for one in kind]
    # A choice in another case, or a number or bool as text.
    word = value.strip()
    found = [
        choice
        for choice in choices
        if (
            choice.casefold() == word.casefold()
            if isinstance(choice, str)
            else _as_scalar(word, type(choice)) == choice
        )
    ]
    return found[0] if len(found) == 1 else value


def _as_scalar(value: Any, kind: Any) -> Any:
    if isinstance(value, float) and kind is int:
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    if not isinstance(value, str) or len(value) > _LONGEST_NUMBER:
        return value
    word = value.strip()
    if kind is bool:
        return _BOOLEANS.get(word.lower(), value)
    if kind is int and _WHOLE.fullmatch(word):
        return int(word.partition(".")[0])
    if kind is float and _NUMBER.fullmatch(word):
        return float(word)
    return value


def _as_list(value: Any, kind: Any, notes: list[str]) -> Any:
    item_kinds = get_args(kind)
    if (get_origin(kind) or kind) is tuple and not (len(item_kinds) == 2 and item_kinds[1] is ...):  # noqa: PLR2004
        return _as_tuple(value, item_kinds, notes)
    item_kind = item_kinds[0] if item_kinds else Any
    found = _listed(value) if isinstance(value, str) else value
    if bare(item_kind) in (Any, object) or _is_list(item_kind):
        # Of two levels of lists nobody knows which one was left out.
        return [_inner(item, item_kind, notes) for item in found] if isinstance(found, list | tuple) else value
    if isinstance(found, list | tuple):
        return [mended(item, item_kind, notes) for item in found]
    # One item in place of a list of them.
    item = mended(found, item_kind, notes)
    return [item] if found is not None and fits(item, item_kind) else value


def _inner(item: Any, kind: Any, notes: list[str]) -> Any:
    is_list = isinstance(item, list | tuple) or (isinstance(item, str) and isinstance(_from_json(item), list))
    return mended(item, kind, notes) if is_list else item


def _is_list(kind: Any) -> bool:
    found = bare(kind)
    return (get_origin(found) or found) in _LISTS | {tuple}


def _as_tuple(value: Any, kinds: tuple[Any, ...], notes: list[str]) -> Any:
    found = _from_json(value) if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or len(found) != len(kinds):
        return value
    return [mended(item, kind, notes) for item, kind in zip(found, kinds, strict=True)]


def _listed(text: str) -> Any:
    """Return the list or object that a text is the JSON of, the text itself for one item, None for what may be more."""
    found = _from_json(text)
    if found is not None:
        return found
    word = text.strip()
    if word.casefold() in _NOTHING_SAID or _is_bracketed(word) or _may_be_several(word):
        return None
    return text


def _is_bracketed(text: str) -> bool:
    """Tell whether a text looks like JSON, which it is not."""
    return text[0] + text[-1] in ("[]", "{}")


def _may_be_several(text: str) -> bool:
    """Tell whether a text may be several items, as ``auth, jwt`` or one a line are; a sentence has commas, too."""
    if len([one for one in text.splitlines() if one.strip()]) > 1:
        return True
    parts = [part.strip() for part in _SEPARATOR.split(text)]
    return len(parts) > 1 and all(len(part.split()) <= 1 for part in parts)


def _as_mapping(value: Any, kind: Any, notes: list[str]) -> Any:
    found = _object_in(value)
    if found is None:
        return value
    _, item_kind = get_args(kind) or (Any, Any)
    return {key: mended(item, item_kind, notes) for key, item in found.items()}


def _as_object(value: Any, fields: Mapping[str, Field], notes: list[str]) -> Any:
    found = _object_in(value)
    if found is None:
        return value
    right = {}
    for key, item in renamed(found, fields).items():
        field = fields.get(key)
        if field is None:
            _note(notes, key, fields)
            right[key] = item
        elif item is not None or field.required or fits(None, field.type):
            right[key] = mended(item, field.type, notes)
    return right


def _note(notes: list[str], key: object, names: Iterable[str]) -> None:
    # Looking for names that are near takes time, and a few show what is wrong with all.
    near = nearest(key, names) if len(notes) < _MAX_NOTES else None
    note = f"did you mean {near} by {shortened(key)}?"
    if near is not None and note not in notes:
        notes.append(note)


def _object_in(value: Any) -> Mapping[Any, Any] | None:
    found = _from_json(value) if isinstance(value, str) else value
    return found if isinstance(found, Mapping) else None


def _from_json(text: str) -> Any:
    """Return the object or list that a text is the JSON of; None where it is none."""
    if text.strip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=each_once)
    except (ValueError, RecursionError):
        return None


def _refuse(word: str) -> None:
    raise ValueError(word)


def read_arguments(arguments: object) -> Mapping[str, Any]:
    """Return a call's arguments: a mapping, JSON text of one, or empty text and None for none."""
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    # Some models write the JSON text of the JSON text.
    for _ in range(2):
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments, object_pairs_hook=each_once)
            except (ValueError, RecursionError) as fault:
                raise InvalidArgument(
                    f"the arguments are no JSON: {fault!s:.120}",
                    hint="give one JSON object with the arguments by name",
                ) from None
    if not isinstance(arguments, Mapping):
        raise InvalidArgument("the arguments must be one JSON object", hint="give the arguments by name")
    return arguments


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """
    Return an object of JSON; an `object_pairs_hook`.

    Raises:
        ValueError: A name is given twice: which one was meant nobody knows.

    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is given twice")
    return found
