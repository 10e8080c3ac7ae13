"""
What a long answer shows of itself: shortened by its structure, never cut through its JSON.

A `Plan` says what is shown, and which texts its handles are to hold; nothing here stores anything.
Rooms are characters of compact JSON; `fitting` finds the room whose answer a budget holds, whatever the budget counts.
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
from mama_structs._internal.jsonable import json_text, json_text_in_pieces
from mama_structs.refs.store.text import Content, count_lines, preview

SHORTENED: Final = "shortened"
WHOLE: Final = ""
"""The pointer of the answer itself."""

# Names a text for each name under which a plan asks for one; it is written when it is asked for.
Texts = Mapping[str, Callable[[], str]]
Handles = Mapping[str, str]
Schema = Mapping[str, Any]

# Mappings nested deeper are shown whole or not at all.
_DEEPEST: Final = 24
# Of its room a mapping gives up so much at the most so that all its keys are seen.
_FOR_KEYS: Final = 1 / 3
# Of a mapping that cannot show all keys, no value takes more than this from those behind it.
_FOR_ONE: Final = 1 / 4
_FOR_HEAD: Final = 3 / 4
_LEAST_MEMBER: Final = len('"":0,')
_TRIES: Final = 24
_FIXED: Final = ("enum", "const", "format", "pattern")
_ALTERNATIVES: Final = ("anyOf", "oneOf", "allOf")
# What `Rendering` replaces, of what JSON leaves as it is: a row that is read must be the row.
_NOT_SHOWN: Final = re.compile("[\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
_SEARCHED: Final = 2**20
# Digits that a double gives back as they were written.
_EXACT_DIGITS: Final = 16


class Plan(Protocol):
    """A shortened answer before its handles are known."""

    @property
    def texts(self) -> Texts:
        """What is to be kept, by name, the most important first."""

    def answer(self, handles: Handles) -> Any:
        """Return the answer with the handles that were given, by name; where one is missing nothing was kept."""


class OwnShare(Protocol):
    """Members of an answer that shrink by rules of their own, and have a share of its room."""

    @property
    def rest(self) -> Mapping[str, Any]:
        """The answer without them."""

    @property
    def is_over(self) -> bool:
        """Whether they must be shortened, however much room there is."""

    def within(self, room: int, width: int) -> Plan:
        """Return the members within a room, for handles of at most so many characters."""


@attrs.frozen(kw_only=True)
class _Cut:
    """One entry of ``shortened``, and what its handle is to hold."""

    shown: int
    of: int
    text: Callable[[], str]

    def entry(self, pointer: str, handles: Handles) -> dict[str, Any]:
        said: dict[str, Any] = {"shown": self.shown, "of": self.of}
        if pointer in handles:
            return said | {"fd": handles[pointer]}
        # Where the whole is kept, so is every part of it.
        return said if pointer != WHOLE else said | {"kept": False}


@attrs.define
class StructuralPlan:
    """The plan of a mapping or list: what is shown, what was shortened, by pointer, and what shrinks by itself."""

    shown: Any
    cuts: dict[str, _Cut]
    own: Plan | None = None
    # The keys in their order, where some of them are of *own*; and under which name it is said what was shortened.
    order: Sequence[str] = ()
    name: str = SHORTENED

    @property
    def texts(self) -> Texts:
        """What is to be kept: the whole, each shortened part, and what members of their own leave out."""
        return {
            **{pointer: cut.text for pointer, cut in self.cuts.items()},
            **({} if self.own is None else self.own.texts),
        }

    def answer(self, handles: Handles) -> Any:
        """Return the mapping or list, the last of which says what was shortened."""
        told = {pointer: cut.entry(pointer, handles) for pointer, cut in self.cuts.items()}
        if isinstance(self.shown, list):
            return [*self.shown, {SHORTENED: told}] if told else self.shown
        members = self.shown
        if self.own is not None:
            members = members | self.own.answer(handles)
            members = {key: members[key] for key in dict.fromkeys([*self.order, *members]) if key in members}
        return {**members, self.name: told} if told else members


@attrs.frozen
class TextPlan:
    """The plan of a text: the parts of the JSON in it, or a rendering of how much of it is shown."""

    written: Callable[[Handles], str]
    texts: Texts

    def answer(self, handles: Handles) -> str:
        """Return the shortened text."""
        return self.written(handles)


def _free(members: Mapping[str, Any]) -> str:
    name = SHORTENED
    while name in members:
        name += "_"
    return name


def fitting(plan: Callable[[int], Plan], handles: Callable[[Texts], Handles], budget: Budget, *, chars: int) -> Plan:
    """Return the plan with the largest room, among few, whose answer a budget holds; of *chars* it holds none."""
    low, high, best = 0, max(chars, 2), plan(0)
    room = budget.limit if budget.size is len else min(chars, 4 * budget.limit)
    for _ in range(_TRIES):
        made = plan(room)
        text = said(made.answer(handles(made.texts)))
        used = budget.size(text)
        if used > budget.limit:
            high = room
            # By how much it is too long; a little less, since not every sign costs the same.
            room = min(high - 1, max((low + high) // 4, int(min(room, len(text)) * budget.limit / used * 0.97)))
        else:
            low, best = room, made
            if used >= 0.9 * budget.limit or budget.size is len or used == 0:
                break
            room = min(high - 1, max(room + 1, int(room * budget.limit / used * 0.97)))
        if room <= low:
            break
    return best


def said(answer: Any) -> str:
    """Return an answer as the text that a model reads."""
    return answer if isinstance(answer, str) else json_text(answer)


# Values


def plan_data(
    data: Any, room: int, *, width: int, schema: Schema | None = None, own: OwnShare | None = None
) -> StructuralPlan:
    """Plan a mapping or list within so many characters, for handles of at most *width* characters."""
    # With *own*, some members of a mapping shrink by themselves: they have half of the room, and neither they nor the
    # others leave unused what the others could use.
    if own is None:
        return _Planner(room, width, schema).whole(data)
    rest = own.rest
    planner = _Planner(room, width, schema)
    needed = planner.measure(rest)
    share = own.within(max(room // 2, room - needed - 1), width)
    used = len(json_text(share.answer(dict.fromkeys(share.texts, "f" * width)))) - 1
    if needed + used <= room:
        return StructuralPlan(rest, {}, share, tuple(data))
    made = _Planner(room - used, width, schema).whole(rest, written=data)
    return attrs.evolve(made, own=share, order=tuple(data))


@attrs.define
class _Sized:
    key: str
    value: Any
    pointer: str
    # Characters of key, colon and comma; of the value in full, and as short as it can be.
    frame: int
    full: int
    least: int
    schemas: tuple[Schema, ...]


class _Planner:
    """Fills one room with one value; measures each part of it once, and no more of it than could be shown."""

    def __init__(self, room: int, width: int, schema: Schema | None) -> None:
        self._room = room
        # What stands in place of a handle that could not be kept needs room, too.
        self._width = max(width, len("false"))
        self._root = schema
        self._known: dict[int, int] = {}
        self._cuts: dict[str, _Cut] = {}

    def whole(self, value: Any, *, written: Any = None) -> StructuralPlan:
        """Plan the answer itself; *written* is what its handle is to hold, where that is more than the value."""
        text = functools.partial(_whole_text, value if written is None else written)
        empty: Any = [] if isinstance(value, list) else {}
        # The payload's own key of this name must not be mistaken for it, even if it is not shown.
        name = SHORTENED if isinstance(value, list) else _free(value)
        told = len(json_text({name: {WHOLE: self._entry_of(WHOLE, len(value))}}))
        left = self._room - told - 1
        if left < len("{}"):
            fits = told + (len("[]") if isinstance(value, list) else 0) <= self._room
            return StructuralPlan(empty, {WHOLE: _Cut(shown=0, of=len(value), text=text)} if fits else {}, name=name)
        if isinstance(value, list):
            shown: Any = self._rows(value, left)
        else:
            shown, _ = self._mapping(value, WHOLE, left, 0, () if self._root is None else (self._root,))
        cuts = {pointer: self._cuts[pointer] for pointer in self._cuts if pointer != WHOLE}
        return StructuralPlan(shown, {WHOLE: _Cut(shown=len(shown), of=len(value), text=text), **cuts}, name=name)

    def measure(self, value: Any, depth: int = 0) -> int:
        """Return a value's characters, or some number above the room."""
        if not isinstance(value, (dict, list)):
            return _length(value)
        known = self._known.get(id(value))
        if known is None:
            known = self._known[id(value)] = self._measure(value, depth)
        return known

    def _measure(self, value: Any, depth: int) -> int:
        over = self._room + 1
        if len(value) * (_LEAST_MEMBER if isinstance(value, dict) else 2) > over:
            return over
        total = len("{}")
        if depth >= _DEEPEST:
            return _length(value, over)
        for key, member in value.items() if isinstance(value, dict) else (("", one) for one in value):
            total += (_frame(key) if isinstance(value, dict) else 1) + self.measure(member, depth + 1)
            if total > over:
                return over
        return total - bool(value)

    def _entry_of(self, pointer: str, of: int) -> dict[str, Any]:
        return _Cut(shown=of, of=of, text=str).entry(pointer, {pointer: "f" * self._width})

    def _entry(self, pointer: str, of: int) -> int:
        """Return what an entry costs; the whole's is paid for."""
        return len(json_text({pointer: self._entry_of(pointer, of)})) - 1 if pointer else 0

    def _least(self, value: Any, pointer: str, full: int, schemas: Iterable[Schema]) -> int:
        """Return the characters of a value as short as it can be, with its entry."""
        if isinstance(value, (dict, list)):
            return min(full, len("{}") + self._entry(pointer, len(value)))
        if isinstance(value, str) and not any(name in schema for schema in schemas for name in _FIXED):
            return min(full, _longest_note(value) + self._entry(pointer, count_lines(value)))
        return full

    def _fill(self, member: _Sized, room: int, depth: int) -> tuple[Any, int]:
        """Return what a value shows in a room that is enough for its least, and the characters that this costs."""
        value, pointer = member.value, member.pointer
        if member.full <= room:
            return value, member.full
        if isinstance(value, dict):
            return self._mapping(value, pointer, room, depth, member.schemas)
        if isinstance(value, list):
            entry = self._entry(pointer, len(value))
            shown = self._rows(value, room - entry)
            self._cuts[pointer] = _Cut(shown=len(shown), of=len(value), text=functools.partial(rows_text, value))
            return shown, len(json_text(shown)) + entry
        entry = self._entry(pointer, count_lines(value))
        text, lines = cut_text(value, room - entry)
        self._cuts[pointer] = _Cut(shown=lines, of=count_lines(value), text=functools.partial(str, value))
        return text, len(json_text(text)) + entry

    def _rows(self, rows: list[Any], room: int) -> list[Any]:
        """Return the first elements, unaltered, as many as fit."""
        used = len("[]") - 1
        for number, row in enumerate(rows):
            used += self.measure(row) + 1
            if used > room:
                return rows[:number]
        return rows

    def _mapping(
        self, value: dict[str, Any], pointer: str, room: int, depth: int, schemas: tuple[Schema, ...]
    ) -> tuple[dict[str, Any], int]:
        """Show all keys where that leaves room for what they hold, else the first ones."""
        entry = self._entry(pointer, len(value))
        members = [] if depth >= _DEEPEST else self._members(value, pointer, room, depth, schemas)
        braces, most = len("{}"), int(room * _FOR_ONE)
        decent = [one.frame + max(one.least, min(one.full, most)) for one in members]
        is_seen = len(members) == len(value)
        paid = braces
        if not is_seen or (
            braces + sum(one.frame + one.least for one in members) > room * _FOR_KEYS and braces + sum(decent) > room
        ):
            left, count = room - entry - braces, 0
            for cost in decent:
                left -= cost
                if left < 0:
                    break
                count += 1
            members, paid = members[:count], braces + entry
            text = functools.partial(_members_text, value)
            self._cuts[pointer] = _Cut(shown=count, of=len(value), text=text)
        shown, used = self._shared_out(members, room - paid, depth)
        return shown, used + paid

    def _members(
        self, value: dict[str, Any], pointer: str, room: int, depth: int, schemas: tuple[Schema, ...]
    ) -> list[_Sized]:
        """Return the first members, as many as could be shown at all."""
        members = []
        left = room
        for key, member in value.items():
            frame = _frame(key)
            left -= frame + 1
            if left < 0:
                break
            below = f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"
            full, known = self.measure(member, depth + 1), self._below(schemas, key)
            members.append(_Sized(key, member, below, frame, full, self._least(member, below, full, known), known))
        return members

    def _shared_out(self, members: list[_Sized], room: int, depth: int) -> tuple[dict[str, Any], int]:
        """Fill the members: what is small stays whole, and the largest share what is left."""
        spare = room - sum(one.frame + one.least for one in members)
        shown: dict[str, Any] = {}
        used = 0
        for left, one in zip(
            range(len(members), 0, -1), sorted(members, key=lambda one: one.full - one.least), strict=True
        ):
            shown[one.key], cost = self._fill(one, one.least + max(0, spare) // left, depth + 1)
            spare -= cost - one.least
            used += one.frame + cost
        return {one.key: shown[one.key] for one in members}, used

    def _below(self, schemas: Iterable[Schema], key: str) -> tuple[Schema, ...]:
        """Return what the schemas of a mapping say of one of its members."""
        found: list[Any] = []
        for schema in schemas:
            named = [schema.get("properties", {}).get(key)]
            patterns = schema.get("patternProperties", {})
            named += [below for pattern, below in patterns.items() if re.search(pattern, key)]
            found += [one for one in named if one is not None] or [schema.get("additionalProperties")]
        return tuple(self._resolved(found))

    def _resolved(self, schemas: Iterable[Any]) -> list[Schema]:
        """Return schemas with those that they refer to and combine, each once."""
        waiting, seen = list(schemas), {}
        while waiting:
            schema = waiting.pop()
            if not isinstance(schema, Mapping) or id(schema) in seen:
                continue
            seen[id(schema)] = schema
            waiting += [one for name in _ALTERNATIVES for one in schema.get(name, ())]
            if isinstance(ref := schema.get("$ref"), str) and ref.startswith("#/"):
                target: Any = self._root
                for step in ref[2:].split("/"):
                    target = target.get(step) if isinstance(target, Mapping) else None
                waiting.append(target)
        return list(seen.values())


def _frame(key: str) -> int:
    return len(json_text(key)) + len(":,")


def _length(value: Any, otherwise: int = 2**62) -> int:
    """Return the characters of a value; of one that cannot be written more than there is room for."""
    try:
        return len(json_text(value))
    except (TypeError, ValueError, RecursionError):
        return otherwise


# Texts


def _note(what: str, first: int, last: int, total: int) -> str:
    return f"[… {what} {first}-{last} of {total} left out …]"


@functools.lru_cache(maxsize=256)
def _note_length(digits: int) -> int:
    most = 10**digits - 1
    return len(json_text("\n" + _note("characters", most, most, most) + "\n"))


def _longest_note(text: str) -> int:
    return _note_length(len(str(len(text))))


def cut_text(text: str, room: int) -> tuple[str, int]:
    """Return the first and the last lines of a text around a line about the others, and how many lines are shown."""
    content = Content(text, "", len(text), 0, count_lines(text))
    left = max(0, room - _longest_note(text))
    head = _prefix(text, int(left * _FOR_HEAD))
    tail = _prefix(text[: -left - 1 : -1], left - int(left * _FOR_HEAD))
    shown = preview(content, head=head, tail=tail)
    if shown.omitted_range is None:
        return text, content.lines
    is_cut = shown.head_ends_in_line or shown.tail_starts_in_line or shown.omitted_lines is None
    first, last = shown.omitted_range if is_cut or shown.omitted_lines is None else shown.omitted_lines
    note = _note("characters", first, last, content.chars) if is_cut else _note("lines", first, last, content.lines)
    lines = sum(
        0 if span is None else span[1] - span[0] + 1 - cut
        for span, cut in (
            (shown.head_lines, shown.head_ends_in_line),
            (shown.tail_lines, shown.tail_starts_in_line),
        )
    )
    before = "" if not shown.head or shown.head.endswith("\n") else "\n"
    return f"{shown.head}{before}{note}\n{shown.tail}", lines


def _prefix(text: str, room: int) -> int:
    """Return how many characters from the beginning are, written as JSON, within a room."""
    few = text[:room]
    if len(json_text(few)) - 2 <= room:
        return len(few)
    return bisect_right(range(len(few)), room, key=lambda end: len(json_text(few[: end + 1])) - 2)


def json_in(text: str) -> dict[str, Any] | list[Any] | None:
    """Return the object or array that a text is, whole; None for every other text."""
    # A name twice, or a number that Python would write otherwise, is no JSON here: what is shown would not be what it
    # says.
    if text.lstrip()[:1] not in {"{", "["}:
        return None
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_float=_exact, parse_constant=_refused)
        json_text(found)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError
    return made


def _exact(number: str) -> float:
    value = float(number)
    if value - value != 0 or (len(number) > _EXACT_DIGITS and Decimal(repr(value)) != Decimal(number)):
        raise ValueError
    return value


def _refused(word: str) -> float:
    raise ValueError(word)


# What handles hold


def rows_text(rows: Iterable[Any]) -> str:
    """Return JSON Lines: line *n* is row *n*."""
    return "\n".join(_line(row) for row in rows)


def _members_text(mapping: Mapping[str, Any]) -> str:
    """Return JSON Lines in which line *n* is an object with member *n* alone."""
    return rows_text({key: value} for key, value in mapping.items())


def _whole_text(value: Any) -> str:
    return rows_text(value) if isinstance(value, list) else _line(value)


def _line(value: Any) -> str:
    # JSON has a way to write what no file can hold, or what no answer shows as it is.
    text = json_text_in_pieces(value)
    if len(text) <= _SEARCHED:
        return _NOT_SHOWN.sub(_escape, text)
    # One search of a long text would hold the interpreter lock to its end.
    parts = (text[start : start + _SEARCHED] for start in range(0, len(text), _SEARCHED))
    return "".join(_NOT_SHOWN.sub(_escape, part) for part in parts)


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
