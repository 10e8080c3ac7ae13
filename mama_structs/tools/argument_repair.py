"""
Repair of a model's arguments if their meaning is unambiguous.

Models write numbers as text, one string instead of a list, JSON text instead of an object, or null or an empty value
for an omitted one. Other valid values are never changed. Ambiguous values are returned unchanged and then rejected by
the validation.
"""

from __future__ import annotations

import difflib
import enum
import json
import re
import types
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal, Union, get_args, get_origin

from mama_structs.errors import InvalidArgument, repr_short
from mama_structs.tools.type_hints.conversion import (
    LIST_TYPES,
    MAPPING_TYPES,
    ObjectField,
    cache_result,
    convert,
    get_fields,
    is_custom,
    unwrap_type,
)

# A model may write these words for a missing list, so they are not converted to list items.
PLACEHOLDER_WORDS: Final = frozenset({"", "null", "none", "nil", "undefined", "n/a", "na", "-"})
MAX_NUMBER_CHARS: Final = 64
INTEGER_PATTERN: Final = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,29})(?:\.0+)?")
NUMBER_PATTERN: Final = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
# Above this bound, some integers are not exactly representable as float.
MAX_EXACT_FLOAT: Final = 2**53
MAX_NOTES: Final = 3
MAX_COMPARED_NAME_CHARS: Final = 1_000
NAME_SEPARATOR_PATTERN: Final = re.compile(r"[\s_-]+")
BOOLEAN_WORDS: Final = {"true": True, "false": False}
ITEM_SEPARATOR_PATTERN: Final = re.compile(r"[,;|]")
JSON_CONSTANTS: Final[dict[bool | None, str]] = {None: "null", True: "true", False: "false"}


def describe_value(value: object) -> str:
    """Describe a value in an error message for a model. None and bools are spelled as in JSON."""
    return JSON_CONSTANTS[value] if value is None or isinstance(value, bool) else repr_short(value)


def is_valid(value: object, kind: Any) -> bool:
    """Return True if a value can be converted to a type without repair."""
    try:
        convert(value, kind)
    except (ValueError, RecursionError):
        return False
    return True


def means_default(value: object, kind: Any, *, omits_empty: bool = False) -> bool:
    """
    Return True if a value for an optional parameter or field means an omitted one.

    Null, a blank text and an empty list do if they are invalid, or with *omits_empty*. Their containers do not: they
    may hold what a model wanted to say, such as the ids to delete.
    """
    # A strict schema requires all parameters, so a model sends an empty value for a parameter that it does not need.
    is_empty = not value.strip() if isinstance(value, str) else value is None or value == []
    return is_empty and (omits_empty or not is_valid(value, kind))


@cache_result
def coerce(value: Any, kind: Any, notes: list[str]) -> Any:
    """
    Repair a value for a type. Return it unchanged if the repair would be ambiguous.

    Suggested names go to *notes*.
    """
    if is_valid(value, kind):
        return value
    kind = unwrap_type(kind)
    fields = None
    while is_custom(kind) and (fields := get_fields(kind)) is None:
        kind = unwrap_type(kind.get_repair_type() or kind.json_type)
    origin = get_origin(kind) or kind
    repaired = value
    if fields is not None:
        repaired = _coerce_object(value, fields, notes)
    elif origin in (Union, types.UnionType):
        repaired = _coerce_union(value, get_args(kind), notes)
    elif origin is Literal or (isinstance(origin, type) and issubclass(origin, enum.Enum)):
        repaired = _coerce_choice(value, kind)
    elif origin in (int, float, bool):
        repaired = _coerce_scalar(value, origin)
    elif origin in LIST_TYPES:
        repaired = _coerce_list(value, kind, notes)
    elif origin in MAPPING_TYPES:
        found = _parse_object(value)
        _, item_kind = get_args(kind) or (Any, Any)
        repaired = value if found is None else {key: coerce(item, item_kind, notes) for key, item in found.items()}
    elif (fields := get_fields(origin)) is not None:
        repaired = _coerce_object(value, fields, notes)
    return repaired


def _coerce_union(value: Any, kinds: Iterable[Any], notes: list[str]) -> Any:
    non_null_types = [kind for kind in kinds if kind is not type(None)]
    if len(non_null_types) == 1:
        return coerce(value, non_null_types[0], notes)
    meanings: list[Any] = []
    tried: list[str] = []
    for kind in non_null_types:
        meaning = coerce(value, kind, tried)
        if is_valid(meaning, kind) and meaning not in meanings:
            meanings.append(meaning)
    notes.extend(tried if not meanings else ())
    # An object means an object rather than a list of one object.
    meanings = [one for one in meanings if _get_form(one) is _get_form(value)] or meanings
    return meanings[0] if len(meanings) == 1 else value


def _get_form(value: object) -> type | None:
    return next((form for form in (Mapping, list) if isinstance(value, form)), None)


def _coerce_choice(value: Any, kind: Any) -> Any:
    if not isinstance(value, str):
        return _coerce_scalar(value, int)
    word = value.strip()

    def is_meant(choice: Any) -> bool:
        # Compare strings without regard to case. Numbers and bools may be written as text.
        is_text = isinstance(choice, str)
        return bool(choice.casefold() == word.casefold() if is_text else _coerce_scalar(word, type(choice)) == choice)

    found = [*filter(is_meant, get_args(kind) if get_origin(kind) is Literal else [one.value for one in kind])]
    return found[0] if len(found) == 1 else value


def _coerce_scalar(value: Any, kind: Any) -> Any:
    if isinstance(value, float) and kind is int:
        return int(value) if value.is_integer() and abs(value) < MAX_EXACT_FLOAT else value
    if not isinstance(value, str) or len(value) > MAX_NUMBER_CHARS:
        return value
    word = value.strip()
    if kind is bool:
        return BOOLEAN_WORDS.get(word.lower(), value)
    if kind is int and INTEGER_PATTERN.fullmatch(word):
        return int(word.partition(".")[0])
    if kind is float and NUMBER_PATTERN.fullmatch(word):
        return float(word)
    return value


def _coerce_list(value: Any, kind: Any, notes: list[str]) -> Any:
    item_kinds = get_args(kind)
    if (get_origin(kind) or kind) is tuple and item_kinds[1:] != (...,):
        found = _parse_json(value) if isinstance(value, str) else value
        if not isinstance(found, list | tuple) or len(found) != len(item_kinds):
            return value
        return [coerce(item, item_kind, notes) for item, item_kind in zip(found, item_kinds, strict=True)]
    item_kind = item_kinds[0] if item_kinds else Any
    bare = unwrap_type(item_kind)
    found = _parse_list(value) if isinstance(value, str) else value
    if bare in (Any, object) or (get_origin(bare) or bare) in LIST_TYPES:
        # Do not wrap a single value if a list of lists is expected, because it is unclear which level it belongs to.
        if not isinstance(found, list | tuple):
            return value
        is_list = [isinstance(_parse_json(one) if isinstance(one, str) else one, list | tuple) for one in found]
        return [coerce(one, item_kind, notes) if inner else one for one, inner in zip(found, is_list, strict=True)]
    if isinstance(found, list | tuple):
        return [coerce(item, item_kind, notes) for item in found]
    # Wrap a single item in a list.
    item = coerce(found, item_kind, notes)
    return [item] if found is not None and is_valid(item, item_kind) else value


def _parse_list(text: str) -> Any:
    """Return the value of a JSON text, the text if it is one item, or None if ambiguous."""
    found = _parse_json(text)
    if found is not None:
        return found
    word = text.strip()
    # A text in brackets is a list, but not valid JSON.
    is_bracketed = word[:1] + word[-1:] in ("[]", "{}")
    # The text may contain several items, such as ``auth, jwt`` or one per line.
    # A sentence contains commas, too, so every part must be a single word.
    parts = ITEM_SEPARATOR_PATTERN.split(word)
    may_be_several = len(word.splitlines()) > 1 or (len(parts) > 1 and all(len(part.split()) <= 1 for part in parts))
    return None if word.casefold() in PLACEHOLDER_WORDS or is_bracketed or may_be_several else text


def _coerce_object(value: Any, fields: Mapping[str, ObjectField], notes: list[str]) -> Any:
    found = _parse_object(value)
    if found is None:
        return value
    right = {}
    for key, item in fix_names(found, fields).items():
        field = fields.get(key)
        if field is None:
            _add_name_note(notes, key, fields)
            right[key] = item
        elif field.required or not means_default(item, field.type):
            right[key] = coerce(item, field.type, notes)
    return right


def _add_name_note(notes: list[str], key: object, names: Iterable[str]) -> None:
    # Limit the number of suggestions: searching for similar names is slow.
    similar_name = find_similar_name(key, names) if len(notes) < MAX_NOTES else None
    note = f"did you mean {similar_name} by {describe_value(key)}?"
    if similar_name is not None and note not in notes:
        notes.append(note)


def _parse_object(value: Any) -> Mapping[Any, Any] | None:
    found = _parse_json(value) if isinstance(value, str) else value
    return found if isinstance(found, Mapping) else None


def _parse_json(text: str) -> Any:
    """Parse a text as a JSON object or list. Return None if it is neither."""
    if text.strip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text, parse_constant=_reject_constant, object_pairs_hook=make_unique_dict)
    except (ValueError, RecursionError):
        return None


def _reject_constant(word: str) -> None:
    raise ValueError(word)


def read_arguments(arguments: object) -> Mapping[str, Any]:
    """Return the arguments of a call as a mapping; they may be JSON text, empty text or None."""
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    # Parse up to twice: some models encode the JSON text as a JSON string.
    for _ in range(2):
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments, object_pairs_hook=make_unique_dict)
            except (ValueError, RecursionError) as fault:
                raise InvalidArgument(
                    f"the arguments are no JSON: {fault!s:.120}", hint="give one JSON object with the arguments by name"
                ) from None
    if not isinstance(arguments, Mapping):
        raise InvalidArgument("the arguments must be one JSON object", hint="give the arguments by name")
    return arguments


def make_unique_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """
    Return a JSON object as a dict, for the argument ``object_pairs_hook`` of `json.loads`.

    Raise ValueError for a repeated name.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        # If a name occurs twice, it is ambiguous which value is meant.
        raise ValueError("a name is given twice")
    return found


# Argument names


def fix_names(arguments: Mapping[Any, Any], names: Collection[str]) -> dict[Any, Any]:
    """Correct argument names that differ from a parameter name only in case, ``_`` and ``-``."""
    by_style: dict[str, list[str]] = {}
    for name in names:
        by_style.setdefault(_normalize_name(name), []).append(name)
    corrected_names: dict[Any, str] = {}
    for key in arguments:
        found = by_style.get(_normalize_name(key), []) if isinstance(key, str) and key not in names else []
        if len(found) == 1 and found[0] not in arguments:
            corrected_names[key] = found[0]
    times = Counter(corrected_names.values())
    right = {}
    for key, value in arguments.items():
        if key in corrected_names and times[corrected_names[key]] == 1:
            right[corrected_names[key]] = value
        # Drop an unknown argument with the value null: the model probably meant to omit it.
        elif key in names or value is not None or not isinstance(key, str):
            right[key] = value
    return right


def find_similar_name(name: object, names: Iterable[str]) -> str | None:
    """Return the name that is most similar to *name*, or None if none is similar enough."""
    by_style = {_normalize_name(one): one for one in names}
    similar_styles = difflib.get_close_matches(_normalize_name(str(name)), by_style, n=1)
    return by_style[similar_styles[0]] if similar_styles else None


def _normalize_name(name: str) -> str:
    # Limit the length: comparing long names is slow, and no parameter has such a name.
    return NAME_SEPARATOR_PATTERN.sub("", name[:MAX_COMPARED_NAME_CHARS]).casefold()
