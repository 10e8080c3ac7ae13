"""
Structural truncation of long answers: JSON stays valid, and omitted parts get handles.

A `TruncationPlan` contains the truncated answer and the texts of its handles. Nothing is stored here. Room is measured
in characters of compact JSON; `choose_plan` searches for the room whose answer fits in a budget of any unit.
"""

from __future__ import annotations

import functools
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, Protocol

import attrs

from mama_structs._internal.budget import Budget
from mama_structs._internal.jsonable import to_json_text, to_json_text_in_chunks
from mama_structs.refs.store.text import Content, count_lines, make_preview

SHORTENED: Final = "shortened"
ROOT_POINTER: Final = ""
"""JSON pointer of the complete answer."""

# Functions that render texts lazily, keyed by the JSON pointer or name that the plan uses for the text.
LazyTexts = Mapping[str, Callable[[], str]]
HandlesByName = Mapping[str, str]
Schema = Mapping[str, Any]

# Mappings nested deeper than this are included completely or not at all.
_MAX_DEPTH: Final = 24
# All keys of a mapping are included if they and the shortest forms of its values need at most this ratio of the room.
_MAX_KEYS_RATIO: Final = 1 / 3
# If not all keys are included, each value reserves at most this ratio of the room, so that more keys fit.
_MAX_VALUE_RATIO: Final = 1 / 4
_HEAD_RATIO: Final = 3 / 4
_MIN_MEMBER_CHARS: Final = len('"":0,')
_MAX_ATTEMPTS: Final = 24
_FIXED_TEXT_KEYWORDS: Final = ("enum", "const", "format", "pattern")
_COMBINING_KEYWORDS: Final = ("anyOf", "oneOf", "allOf")
# JSON leaves these characters unescaped, but `Rendering` replaces them. Escape them, so that rows are shown exactly.
_REPLACED_CHARS: Final = re.compile("[\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
_SEARCH_CHUNK_CHARS: Final = 2**20
# Significant digits that a double preserves.
_EXACT_DIGITS: Final = 16


class TruncationPlan(Protocol):
    """Plan of a truncated answer whose handles are not assigned yet."""

    @property
    def texts(self) -> LazyTexts:
        """The texts to store, by name, most important first."""

    def to_answer(self, handles: HandlesByName) -> Any:
        """Return the truncated answer. *handles* contains the handles of the stored texts, by name of the text."""


class OwnShare(Protocol):
    """Members of an answer that have their own truncation rules and their own share of the budget."""

    @property
    def without_references(self) -> Mapping[str, Any]:
        """The answer without these members."""

    @property
    def has_too_many_ids(self) -> bool:
        """True if the members must be truncated even if they fit."""

    def truncate(self, max_chars: int, handle_chars: int) -> TruncationPlan:
        """Return a plan that fits in *max_chars* characters if handles have at most *handle_chars* characters."""


@attrs.frozen(kw_only=True)
class _TruncatedValue:
    """An entry of ``shortened``, and a function that renders the text for its handle."""

    shown: int
    of: int
    text: Callable[[], str]

    def entry(self, pointer: str, handles: HandlesByName) -> dict[str, Any]:
        said: dict[str, Any] = {"shown": self.shown, "of": self.of}
        if pointer in handles:
            return said | {"fd": handles[pointer]}
        # Report a missing handle only for the complete answer, because its text contains all truncated parts.
        return said if pointer != ROOT_POINTER else said | {"kept": False}


@attrs.define
class StructuralPlan:
    """
    Plan of a mapping or list: the visible part, and the truncated values by JSON pointer.

    *own* is the plan of the members that have their own truncation rules.
    """

    shown: Any
    truncated_values: dict[str, _TruncatedValue]
    own: TruncationPlan | None = None
    # All keys of the answer in order, if *own* contains some of them.
    order: Sequence[str] = ()
    # Key of the member that lists the truncated values.
    name: str = SHORTENED

    @property
    def texts(self) -> LazyTexts:
        """The texts to store: of the complete answer, of each truncated value, and of *own*."""
        return {
            **{pointer: cut.text for pointer, cut in self.truncated_values.items()},
            **({} if self.own is None else self.own.texts),
        }

    def to_answer(self, handles: HandlesByName) -> Any:
        """Return the mapping or list; its last member describes the truncated values."""
        told = {pointer: cut.entry(pointer, handles) for pointer, cut in self.truncated_values.items()}
        if isinstance(self.shown, list):
            return [*self.shown, {SHORTENED: told}] if told else self.shown
        members = self.shown
        if self.own is not None:
            members = members | self.own.to_answer(handles)
            members = {key: members[key] for key in dict.fromkeys([*self.order, *members]) if key in members}
        return {**members, self.name: told} if told else members


@attrs.frozen
class TextPlan:
    """Plan of a text: a function that renders the text with handles, and the texts to store."""

    render: Callable[[HandlesByName], str]
    texts: LazyTexts

    def to_answer(self, handles: HandlesByName) -> str:
        """Return the truncated text."""
        return self.render(handles)


def _find_free_key(members: Mapping[str, Any]) -> str:
    name = SHORTENED
    while name in members:
        name += "_"
    return name


def choose_plan(
    plan: Callable[[int], TruncationPlan], handles: Callable[[LazyTexts], HandlesByName], budget: Budget, *, chars: int
) -> TruncationPlan:
    """
    Return the plan for the largest room (number of characters) whose rendered answer fits in the budget.

    The room is found with few attempts.

    Args:
        plan: Makes a plan for a room.
        handles: Assigns handles to the texts of a plan.
        budget: The budget of the rendered answer.
        chars: A room that is known to be too large.

    """
    low, high, best = 0, max(chars, 2), plan(0)
    room = budget.limit if budget.size is len else min(chars, 4 * budget.limit)
    for _ in range(_MAX_ATTEMPTS):
        made = plan(room)
        text = render_answer(made.to_answer(handles(made.texts)))
        used = budget.size(text)
        if used > budget.limit:
            high = room
            # Reduce the room in proportion to the excess, and by another 3 %, because the size per character varies.
            room = min(high - 1, max((low + high) // 4, int(min(room, len(text)) * budget.limit / used * 0.97)))
        else:
            low, best = room, made
            if used >= 0.9 * budget.limit or budget.size is len or used == 0:
                break
            room = min(high - 1, max(room + 1, int(room * budget.limit / used * 0.97)))
        if room <= low:
            break
    return best


def render_answer(answer: Any) -> str:
    """Return an answer as text for a model."""
    return answer if isinstance(answer, str) else to_json_text(answer)


# Values


def plan_data(
    data: Any,
    room: int,
    *,
    width: int,
    schema: Schema | None = None,
    own: OwnShare | None = None,
    payload_chars: int | None = None,
) -> StructuralPlan:
    """
    Return a plan for a mapping or list that fits in *room* characters.

    Args:
        data: The mapping or list.
        room: Maximum number of characters of compact JSON.
        width: Maximum number of characters of a handle.
        schema: JSON Schema of the data. Text values with a fixed format are not truncated.
        own: Members with their own truncation rules.
        payload_chars: Number of characters for the members that are not in *own*; None if neither has priority.

    """
    if own is None:
        return _Planner(room, width, schema).plan_answer(data)
    rest = own.without_references
    if payload_chars is not None:
        made = plan_payload(rest, min(room, payload_chars), width=width, schema=schema, written=data)
        used = _measure_answer(made, width)
        return attrs.evolve(made, own=own.truncate(room - used - 1, width), order=tuple(data))
    # Members of *own* get half of the room. Each half may use room that the other half does not need.
    planner = _Planner(room, width, schema)
    needed = planner.measure(rest)
    share = own.truncate(max(room // 2, room - needed - 1), width)
    used = _measure_answer(share, width) - 1
    if needed + used <= room:
        return StructuralPlan(rest, {}, share, tuple(data))
    made = _Planner(room - used, width, schema).plan_answer(rest, written=data)
    return attrs.evolve(made, own=share, order=tuple(data))


def plan_payload(
    payload: Any, room: int, *, width: int, schema: Schema | None = None, written: Any = None
) -> StructuralPlan:
    """Return a plan for a payload without references; *written* is the text of its handle, by default the payload."""
    planner = _Planner(room, width, schema)
    if planner.measure(payload) <= room:
        return StructuralPlan(payload, {})
    return planner.plan_answer(payload, written=written)


def show_payload(payload: Any, room: int, *, width: int, schema: Schema | None = None) -> tuple[Any, str]:
    """Return the part of a payload that `plan_data` shows in *room* characters, and the text with its handles."""
    plan = plan_payload(payload, room, width=width, schema=schema)
    return plan.shown, to_json_text(plan.to_answer(dict.fromkeys(plan.texts, "f" * width)))


def _measure_answer(plan: TruncationPlan, width: int) -> int:
    return len(to_json_text(plan.to_answer(dict.fromkeys(plan.texts, "f" * width))))


@attrs.define
class _MeasuredMember:
    key: str
    value: Any
    pointer: str
    # Number of characters of key, colon and comma.
    frame: int
    # Number of characters of the complete value.
    full_chars: int
    # Number of characters of the shortest form of the value.
    min_chars: int
    schemas: tuple[Schema, ...]


class _Planner:
    """
    Truncates one value to *room*, a maximum number of characters.

    Each part is measured once, and only up to the size of the room.
    """

    def __init__(self, room: int, width: int, schema: Schema | None) -> None:
        self._room = room
        # If a text could not be stored, "false" takes the place of its handle.
        self._width = max(width, len("false"))
        self._root = schema
        self._measured: dict[int, int] = {}
        self._cuts: dict[str, _TruncatedValue] = {}

    def plan_answer(self, value: Any, *, written: Any = None) -> StructuralPlan:
        """Return the plan of the complete answer. The handle of the answer stores *written* if given, else *value*."""
        text = functools.partial(_answer_text, value if written is None else written)
        empty: Any = [] if isinstance(value, list) else {}
        # The entry key must differ from every key of the payload, including omitted ones.
        name = SHORTENED if isinstance(value, list) else _find_free_key(value)
        told = len(to_json_text({name: {ROOT_POINTER: self._entry_of(ROOT_POINTER, len(value))}}))
        left = self._room - told - 1
        if left < len("{}"):
            fits = told + (len("[]") if isinstance(value, list) else 0) <= self._room
            return StructuralPlan(
                empty, {ROOT_POINTER: _TruncatedValue(shown=0, of=len(value), text=text)} if fits else {}, name=name
            )
        if isinstance(value, list):
            shown: Any = self._rows(value, left)
        else:
            shown, _ = self._mapping(value, ROOT_POINTER, left, 0, () if self._root is None else (self._root,))
        cuts = {pointer: self._cuts[pointer] for pointer in self._cuts if pointer != ROOT_POINTER}
        return StructuralPlan(
            shown, {ROOT_POINTER: _TruncatedValue(shown=len(shown), of=len(value), text=text), **cuts}, name=name
        )

    def measure(self, value: Any, depth: int = 0) -> int:
        """Return the number of characters of a value. If it exceeds the room, return any number above the room."""
        if not isinstance(value, (dict, list)):
            return _json_chars(value)
        known = self._measured.get(id(value))
        if known is None:
            known = self._measured[id(value)] = self._measure(value, depth)
        return known

    def _measure(self, value: Any, depth: int) -> int:
        over = self._room + 1
        if len(value) * (_MIN_MEMBER_CHARS if isinstance(value, dict) else 2) > over:
            return over
        total = len("{}")
        if depth >= _MAX_DEPTH:
            return _json_chars(value, over)
        for key, member in value.items() if isinstance(value, dict) else (("", one) for one in value):
            total += (_frame_chars(key) if isinstance(value, dict) else 1) + self.measure(member, depth + 1)
            if total > over:
                return over
        return total - bool(value)

    def _entry_of(self, pointer: str, of: int) -> dict[str, Any]:
        return _TruncatedValue(shown=of, of=of, text=str).entry(pointer, {pointer: "f" * self._width})

    def _entry(self, pointer: str, of: int) -> int:
        """Return the number of characters of an entry; 0 for the complete answer, whose entry is already counted."""
        return len(to_json_text({pointer: self._entry_of(pointer, of)})) - 1 if pointer else 0

    def _min_chars(self, value: Any, pointer: str, full: int, schemas: Iterable[Schema]) -> int:
        """Return the number of characters of a value in its shortest form, and of its entry in ``shortened``."""
        if isinstance(value, (dict, list)):
            return min(full, len("{}") + self._entry(pointer, len(value)))
        if isinstance(value, str) and not any(name in schema for schema in schemas for name in _FIXED_TEXT_KEYWORDS):
            return min(full, _max_note_chars(value) + self._entry(pointer, count_lines(value)))
        return full

    def _fill(self, member: _MeasuredMember, room: int, depth: int) -> tuple[Any, int]:
        """
        Return a value truncated to a room, and the number of characters used.

        The room must be at least the length of the value's shortest form.
        """
        value, pointer = member.value, member.pointer
        if member.full_chars <= room:
            return value, member.full_chars
        if isinstance(value, dict):
            return self._mapping(value, pointer, room, depth, member.schemas)
        if isinstance(value, list):
            entry = self._entry(pointer, len(value))
            shown = self._rows(value, room - entry)
            self._cuts[pointer] = _TruncatedValue(
                shown=len(shown), of=len(value), text=functools.partial(to_json_lines, value)
            )
            return shown, len(to_json_text(shown)) + entry
        entry = self._entry(pointer, count_lines(value))
        text, lines = truncate_text(value, room - entry)
        self._cuts[pointer] = _TruncatedValue(shown=lines, of=count_lines(value), text=functools.partial(str, value))
        return text, len(to_json_text(text)) + entry

    def _rows(self, rows: list[Any], room: int) -> list[Any]:
        """Return as many leading rows as fit, unchanged."""
        used = len("[]") - 1
        for number, row in enumerate(rows):
            used += self.measure(row) + 1
            if used > room:
                return rows[:number]
        return rows

    def _mapping(
        self, value: dict[str, Any], pointer: str, room: int, depth: int, schemas: tuple[Schema, ...]
    ) -> tuple[dict[str, Any], int]:
        """Include all keys if that leaves enough room for the values, else only the first keys."""
        entry = self._entry(pointer, len(value))
        members = [] if depth >= _MAX_DEPTH else self._members(value, pointer, room, depth, schemas)
        braces, most = len("{}"), int(room * _MAX_VALUE_RATIO)
        decent = [one.frame + max(one.min_chars, min(one.full_chars, most)) for one in members]
        is_seen = len(members) == len(value)
        paid = braces
        if not is_seen or (
            braces + sum(one.frame + one.min_chars for one in members) > room * _MAX_KEYS_RATIO
            and braces + sum(decent) > room
        ):
            left, count = room - entry - braces, 0
            for cost in decent:
                left -= cost
                if left < 0:
                    break
                count += 1
            members, paid = members[:count], braces + entry
            text = functools.partial(_members_to_json_lines, value)
            self._cuts[pointer] = _TruncatedValue(shown=count, of=len(value), text=text)
        shown, used = self._distribute_room(members, room - paid, depth)
        return shown, used + paid

    def _members(
        self, value: dict[str, Any], pointer: str, room: int, depth: int, schemas: tuple[Schema, ...]
    ) -> list[_MeasuredMember]:
        """Return the leading members whose keys fit in the room."""
        members = []
        left = room
        for key, member in value.items():
            frame = _frame_chars(key)
            left -= frame + 1
            if left < 0:
                break
            below = f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"
            full, known = self.measure(member, depth + 1), self._find_subschemas(schemas, key)
            members.append(
                _MeasuredMember(key, member, below, frame, full, self._min_chars(member, below, full, known), known)
            )
        return members

    def _distribute_room(self, members: list[_MeasuredMember], room: int, depth: int) -> tuple[dict[str, Any], int]:
        """Distribute the room among members: small values stay complete, and large values share the remainder."""
        spare = room - sum(one.frame + one.min_chars for one in members)
        shown: dict[str, Any] = {}
        used = 0
        for left, one in zip(
            range(len(members), 0, -1), sorted(members, key=lambda one: one.full_chars - one.min_chars), strict=True
        ):
            shown[one.key], cost = self._fill(one, one.min_chars + max(0, spare) // left, depth + 1)
            spare -= cost - one.min_chars
            used += one.frame + cost
        return {one.key: shown[one.key] for one in members}, used

    def _find_subschemas(self, schemas: Iterable[Schema], key: str) -> tuple[Schema, ...]:
        """Return the schemas that apply to the member *key* of a mapping."""
        found: list[Any] = []
        for schema in schemas:
            named = [schema.get("properties", {}).get(key)]
            patterns = schema.get("patternProperties", {})
            named += [below for pattern, below in patterns.items() if re.search(pattern, key)]
            found += [one for one in named if one is not None] or [schema.get("additionalProperties")]
        return tuple(self._resolve_schemas(found))

    def _resolve_schemas(self, schemas: Iterable[Any]) -> list[Schema]:
        """Resolve references and alternatives in schemas, and deduplicate the result."""
        waiting, seen = list(schemas), {}
        while waiting:
            schema = waiting.pop()
            if not isinstance(schema, Mapping) or id(schema) in seen:
                continue
            seen[id(schema)] = schema
            waiting += [one for name in _COMBINING_KEYWORDS for one in schema.get(name, ())]
            if isinstance(ref := schema.get("$ref"), str) and ref.startswith("#/"):
                target: Any = self._root
                for step in ref[2:].split("/"):
                    target = target.get(step) if isinstance(target, Mapping) else None
                waiting.append(target)
        return list(seen.values())


def _frame_chars(key: str) -> int:
    return len(to_json_text(key)) + len(":,")


def _json_chars(value: Any, otherwise: int = 2**62) -> int:
    """Return the number of characters of a value, or *otherwise* if it cannot be serialized."""
    try:
        return len(to_json_text(value))
    except (TypeError, ValueError, RecursionError):
        return otherwise


# Text values


def _omission_note(what: str, first: int, last: int, total: int) -> str:
    return f"[… {what} {first}-{last} of {total} left out …]"


@functools.lru_cache(maxsize=256)
def _max_note_chars_for_digits(digits: int) -> int:
    most = 10**digits - 1
    return len(to_json_text("\n" + _omission_note("characters", most, most, most) + "\n"))


def _max_note_chars(text: str) -> int:
    return _max_note_chars_for_digits(len(str(len(text))))


def truncate_text(text: str, room: int) -> tuple[str, int]:
    """
    Replace the middle of a text with a note.

    Returns:
        The text, and the number of complete lines in it.

    """
    content = Content(text, "", len(text), 0, count_lines(text))
    left = max(0, room - _max_note_chars(text))
    head = _fitting_prefix_chars(text, int(left * _HEAD_RATIO))
    tail = _fitting_prefix_chars(text[: -left - 1 : -1], left - int(left * _HEAD_RATIO))
    shown = make_preview(content, head=head, tail=tail)
    if shown.omitted_range is None:
        return text, content.lines
    is_cut = shown.head_ends_in_line or shown.tail_starts_in_line or shown.omitted_lines is None
    first, last = shown.omitted_range if is_cut or shown.omitted_lines is None else shown.omitted_lines
    note = (
        _omission_note("characters", first, last, content.chars)
        if is_cut
        else _omission_note("lines", first, last, content.lines)
    )
    lines = sum(
        0 if span is None else span[1] - span[0] + 1 - cut
        for span, cut in (
            (shown.head_lines, shown.head_ends_in_line),
            (shown.tail_lines, shown.tail_starts_in_line),
        )
    )
    before = "" if not shown.head or shown.head.endswith("\n") else "\n"
    return f"{shown.head}{before}{note}\n{shown.tail}", lines


def _fitting_prefix_chars(text: str, room: int) -> int:
    """Return the length of the longest prefix whose JSON encoding fits in the room."""
    few = text[:room]
    if len(to_json_text(few)) - 2 <= room:
        return len(few)
    return bisect_right(range(len(few)), room, key=lambda end: len(to_json_text(few[: end + 1])) - 2)


def parse_json_container(text: str) -> dict[str, Any] | list[Any] | None:
    """Parse a text that is a JSON object or array. Return None for any other text."""
    # Reject duplicate names, and numbers that Python would format differently, so that the JSON equals the text.
    if text.lstrip()[:1] not in {"{", "["}:
        return None
    try:
        found = json.loads(
            text,
            object_pairs_hook=_reject_duplicate_keys,
            parse_float=_parse_exact_float,
            parse_constant=_reject_constant,
        )
        to_json_text(found)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError
    return made


def _parse_exact_float(number: str) -> float:
    value = float(number)
    if value - value != 0 or (len(number) > _EXACT_DIGITS and Decimal(repr(value)) != Decimal(number)):
        raise ValueError
    return value


def _reject_constant(word: str) -> float:
    raise ValueError(word)


# Texts of handles


def to_json_lines(rows: Iterable[Any]) -> str:
    """Return the rows as JSON Lines: line *n* is row *n*."""
    return "\n".join(_to_json_line(row) for row in rows)


def _members_to_json_lines(mapping: Mapping[str, Any]) -> str:
    """Return the members as JSON Lines: line *n* is an object that contains only member *n*."""
    return to_json_lines({key: value} for key, value in mapping.items())


def _answer_text(value: Any) -> str:
    return to_json_lines(value) if isinstance(value, list) else _to_json_line(value)


def _to_json_line(value: Any) -> str:
    # Escape characters that files cannot contain or that answers replace.
    text = to_json_text_in_chunks(value)
    if len(text) <= _SEARCH_CHUNK_CHARS:
        return _REPLACED_CHARS.sub(_escape, text)
    # Search in chunks, because one search of a long text would hold the GIL too long.
    parts = (text[start : start + _SEARCH_CHUNK_CHARS] for start in range(0, len(text), _SEARCH_CHUNK_CHARS))
    return "".join(_REPLACED_CHARS.sub(_escape, part) for part in parts)


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
