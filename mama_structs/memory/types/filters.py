"""The public `Filter`: conditions on memories for lists, counts, searches, deletion and erasure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias

import attrs

import mama_structs  # Imported for the annotations. The names are resolved lazily, when type hints are evaluated.
from mama_structs._internal import validation as _check
from mama_structs._internal.hints import peer_names
from mama_structs._internal.hints.call_hints import with_call_hints
from mama_structs._internal.jsonable import JsonMixin, canonical_json, has_text_form
from mama_structs._internal.validation import TimeInput
from mama_structs.errors import InvalidArgument, repr_short
from mama_structs.memory.types.engine import EngineFilter
from mama_structs.memory.types.model import CREATORS, ORIGINS, CreatedBy, MemoryType, Origin, Outcome
from mama_structs.memory.types.requests import MAX_ITEM_CHARS, check_extra, check_ids, check_namespace, check_topic

TypeCondition: TypeAlias = MemoryType | str | Iterable[MemoryType | str]
"""One type of memories, or several."""

# The longest texts that a filter accepts, which are the longest that a save accepts.
_check_texts: Final = _check.one_or_many(_check.check_text, max_chars=MAX_ITEM_CHARS)


def _check_choices(known: Iterable[Any]) -> Callable[[str, object], frozenset[Any]]:
    choices = tuple(known)

    def check(name: str, value: object) -> frozenset[Any]:
        several = (value,) if isinstance(value, str) else _check.check_items(name, value, item_kind=f"{name}s")
        found = frozenset(_check.check_choice(name, one, choices) for one in several)
        if not found:
            raise InvalidArgument(f"{name} must name at least one {name}", hint="leave it out to mean all")
        return found

    return check


def _check_names(name: str, value: object) -> frozenset[str]:
    several = [value] if isinstance(value, str) or has_text_form(type(value)) else _check.check_items(name, value)
    # An `EntityId` has a text form.
    found = frozenset(check_ids(name, [str(one) if has_text_form(type(one)) else one for one in several]))
    if not found:
        raise InvalidArgument(f"{name} must name at least one id", hint="leave it out to mean any")
    return found


def _check_extra_condition(name: str, value: object) -> dict[str, Any]:
    found = check_extra(value, name)
    if not found:
        # Without keys the condition would match all memories, and `erase` would accept it.
        raise InvalidArgument(f"{name} must have at least one key", hint="leave it out to mean any")
    return found


check_types: Final = _check_choices(MemoryType)


_CHECKS: Final[Mapping[str, Callable[[str, Any], object]]] = {
    "type": check_types,
    "topic": lambda name, value: check_topic(value, name),
    "since": _check.check_time_input,
    "until": _check.check_time_input,
    "origin": _check_choices(ORIGINS),
    "min_trust": lambda name, value: _check.check_choice(name, value, ORIGINS),
    "tags": _check_texts,
    "mentions": _check_names,
    "source": _check.check_text,
    "outcome": lambda name, value: _check.check_choice(name, value, Outcome),
    "created_by": lambda name, value: _check.check_choice(name, value, CREATORS),
    "namespace": lambda _, value: check_namespace(value),
    "extra": _check_extra_condition,
}


def _add_checks(_cls: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """Add a converter to each field that validates every value except None."""

    def converter(name: str) -> Callable[[object], object]:
        return lambda value: None if value is None else _CHECKS[name](name, value)

    return [field.evolve(converter=converter(field.name)) for field in fields]


@with_call_hints(peer_names.FILTER)
@attrs.frozen(kw_only=True, field_transformer=_add_checks)
class Filter(JsonMixin):
    """
    Conditions on memories. A memory must satisfy all conditions that are not None.

    Args:
        type: Its type is this one, or one of these.
        topic: Its topic, exactly as it was saved.
        since: It was created at this time or later. A `timedelta`, or an ISO 8601 duration such as ``"P7D"``, counts
            back from the time of the call.
        until: It was created before this time.
        origin: The author of its text is this one, or one of these: ``"user"``, ``"model"``, ``"tool"``, ``"outside"``.
        min_trust: It is trusted at least as much as this origin, see `Memory.trust`.
        tags: It has this tag, or all of these.
        mentions: Its text mentions this entity id, or all of these.
        source: Its source.
        outcome: Its outcome: ``"SUCCESS"``, ``"FAILED"`` or ``"PARTIAL"``.
        created_by: Its creator: ``"user"``, ``"llm"`` or ``"system"``.
        namespace: Its namespace, in a session that also reads other namespaces.
        extra: Its `extra` has equal values under these keys.

    Raises:
        InvalidArgument: A condition is invalid.

    """

    type: TypeCondition | None = None
    topic: str | None = None
    since: TimeInput | None = None
    until: TimeInput | None = None
    origin: Origin | Iterable[Origin] | None = None
    min_trust: Origin | None = None
    tags: str | Iterable[str] | None = None
    mentions: str | mama_structs.EntityId | Iterable[str | mama_structs.EntityId] | None = None
    source: str | None = None
    outcome: Outcome | str | None = None
    created_by: CreatedBy | None = None
    namespace: str | None = None
    # Compare as engines do: 1 equals 1.0, but not True.
    extra: Mapping[str, Any] | None = attrs.field(default=None, eq=canonical_json, hash=False)

    def __repr__(self) -> str:
        given = ((field.name, getattr(self, field.name)) for field in attrs.fields(Filter))
        return f"Filter({', '.join(f'{name}={_as_given(value)!r}' for name, value in given if value is not None)})"

    @property
    def is_empty(self) -> bool:
        """True if it has no condition, so that every memory matches."""
        return self == Filter()


def _as_given(value: object) -> object:
    """Return a condition as a caller writes it: one value, or a sorted list of several."""
    if isinstance(value, frozenset | tuple):
        several = sorted(map(str, value))
        return several[0] if len(several) == 1 else several
    return str(value) if isinstance(value, enum.Enum) else value


def to_engine_filter(
    where: object = None,
    *,
    now: datetime,
    type: object = None,  # noqa: A002 - the name of the public argument
    topic: object = None,
    since: object = None,
) -> EngineFilter:
    """
    Return the engine's form of a `Filter` and of the conditions that methods accept directly.

    A condition that is given twice raises `InvalidArgument`.
    """
    asked: Any = check_where(where)
    for name, value in (("type", type), ("topic", topic), ("since", since)):
        if value is not None:
            if getattr(asked, name) is not None:
                raise InvalidArgument(f"{name} is given twice: as {name}= and in where=", hint="give it once")
            asked = attrs.evolve(asked, **{name: value})
    return EngineFilter(
        types=asked.type,
        topic=asked.topic,
        since=None if asked.since is None else _check.check_time("since", asked.since, now=now),
        until=None if asked.until is None else _check.check_time("until", asked.until, now=now),
        mentions=asked.mentions,
        origins=asked.origin,
        trust=asked.min_trust,
        tags=asked.tags,
        source=asked.source,
        outcome=asked.outcome,
        created_by=asked.created_by,
        namespace=asked.namespace,
        extra=asked.extra,
    )


def check_where(where: object) -> Filter:
    """Return a given filter, or one without conditions for None. Other values raise `InvalidArgument`."""
    if where is None:
        return Filter()
    if isinstance(where, Filter):
        return where
    hint = "write where=Filter(tags='food'); from mama_structs import Filter"
    raise InvalidArgument(f"where must be a Filter, got {repr_short(where)}", hint=hint)
