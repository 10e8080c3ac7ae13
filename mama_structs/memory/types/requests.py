"""Save requests: a frozen class per memory type that validates the arguments of a save."""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeVar

import attrs

from mama_structs._internal import validation as _check
from mama_structs._internal.hints import peer_names
from mama_structs._internal.hints.call_hints import suggest_keyword
from mama_structs.errors import InvalidArgument, repr_short
from mama_structs.memory.types.engine import Direction
from mama_structs.memory.types.model import (
    CREATORS,
    MAX_ID_CHARS,
    METADATA_TYPES,
    ORIGINS,
    CreatedBy,
    LinkType,
    Memory,
    MemoryType,
    Origin,
    new_id,
)
from mama_structs.memory.types.relationships import check_relationship

T = TypeVar("T")

MAX_TOPIC_CHARS: Final = 200
MAX_ITEMS: Final = 1000
MAX_LINKS: Final = 100
MAX_DELETED: Final = 10_000
"""Maximum number of memories that one call deletes or erases by their ids."""
MAX_REQUEST_ID_CHARS: Final = MAX_ID_CHARS
MAX_ITEM_CHARS: Final = 10_000
MAX_EXTRA_KEYS: Final = 64
MAX_EXTRA_CHARS: Final = 10_000
_MAX_NAMESPACE_CHARS: Final = 100
_MAX_NAMESPACE_BYTES: Final = 200
_MAX_RESULTS: Final = 2**31
_MAX_TITLE_CHARS: Final = 200
DIRECTIONS: Final[tuple[Direction, ...]] = ("out", "in", "both")


def check_topic(topic: object, name: str = "topic") -> str:
    """Validate a topic and return it in NFC without surrounding blanks."""
    return unicodedata.normalize("NFC", _check.check_text(name, topic, max_chars=MAX_TOPIC_CHARS)).strip()


def check_id(name: str, value: object) -> str:
    """Validate an id and return it in NFC."""
    return unicodedata.normalize("NFC", _check.check_text(name, value, max_chars=MAX_REQUEST_ID_CHARS))


def check_memory(name: str, value: object) -> str:
    """Return the id of a memory that is given as an id, a `Memory`, or a result that contains a memory."""
    inner = getattr(value, "memory", value)
    if isinstance(inner, Memory):
        return inner.id
    if not isinstance(value, str):
        rule = "must be a memory or its id, such as a Memory, a Hit or memory.id"
        raise _check.invalid_argument(name, rule, value)
    return check_id(name, value)


def check_memories(name: str, value: object, *, max_items: int = MAX_LINKS) -> tuple[str, ...]:
    """Return the deduplicated ids of one memory or several, each given as for `check_memory`."""
    if isinstance(value, str) or isinstance(getattr(value, "memory", value), Memory):
        return (check_memory(name, value),)
    several = _check.check_items(name, value, item_kind="memories", max_items=max_items, item_noun="ids")
    return tuple(dict.fromkeys(check_memory(f"{name}[{position}]", one) for position, one in enumerate(several)))


def check_ids(name: str, value: object) -> tuple[str, ...]:
    """Validate ids and return them deduplicated, in NFC."""
    found = _check.check_texts(name, value, max_items=MAX_ITEMS, max_chars=MAX_ITEM_CHARS)
    _check.check_items(name, found, max_items=MAX_LINKS, item_noun="ids")
    return tuple(dict.fromkeys(check_id(f"{name}[{position}]", item) for position, item in enumerate(found)))


def _check_links(value: Sequence[LinkRequest | Mapping[str, Any]]) -> tuple[LinkRequest, ...]:
    found = _check.check_items("links", value, item_kind="mappings", max_items=MAX_LINKS)
    return tuple(_check_link(f"links[{position}]", item) for position, item in enumerate(found))


def _check_link(name: str, item: object) -> LinkRequest:
    if isinstance(item, LinkRequest):
        return item
    if not isinstance(item, Mapping):
        raise InvalidArgument(f"{name} must be a mapping with to_id and relationship, got {type(item).__name__}")
    known = [field.name for field in attrs.fields(LinkRequest)]
    unknown = [str(key) for key in item if key not in known]
    missing = [key for key in ("to_id", "relationship") if key not in item]
    if unknown or missing:
        what = f"lacks {' and '.join(missing)}" if missing else f"has an unknown {repr_short(unknown[0])}"
        raise InvalidArgument(f"{name} {what}", hint=f"a link has {', '.join(known)}")
    try:
        return LinkRequest(**item)
    except InvalidArgument as error:
        raise prefix_error(name, error) from error


OnDuplicate = Literal["keep", "merge"]
"""Handling of an exact duplicate: save a further memory ("keep"), or return the existing one ("merge")."""
ON_DUPLICATE_CHOICES: Final[tuple[OnDuplicate, ...]] = ("keep", "merge")

_check_texts: Final = partial(_check.check_texts, max_items=MAX_ITEMS, max_chars=MAX_ITEM_CHARS)


def check_tags(name: str, value: object) -> tuple[str, ...]:
    """Return one tag or several as a tuple without duplicates."""
    return tuple(dict.fromkeys(_check_texts(name, (value,) if isinstance(value, str) else value)))


def check_evidence(name: str, value: object) -> tuple[str, ...]:
    """Return one item of evidence or several as texts. A memory becomes its id, a ref or descriptor its handle."""
    if isinstance(value, str) or _evidence_text(value) is not value:
        value = (value,)
    several = _check.check_items(name, value, item_kind="texts, memories, refs or descriptors", max_items=MAX_ITEMS)
    return _check_texts(name, [_evidence_text(one) for one in several])


def _evidence_text(item: object) -> object:
    inner = getattr(item, "memory", item)
    return inner.id if isinstance(inner, Memory) else getattr(item, "handle", item)


_CHECKS: Final[Mapping[str, Callable[[str, Any], object]]] = {
    "topic": lambda name, value: check_topic(value, name),
    "reasoning": partial(_check.check_text, allow_empty=True),
    "content": _check.check_text,
    "category": _check.check_text,
    "source": _check.check_text,
    "extra": lambda name, value: check_extra(value, name),
    "confidence": _check.check_ratio,
    "supersedes": check_memory,
    "implements": check_memories,
    "evidence": check_evidence,
    "open_files": _check_texts,
    "next_steps": _check_texts,
    "tags": check_tags,
    "to_id": check_memory,
    "relationship": lambda _, value: check_relationship(value),
    "reason": partial(_check.check_text, max_chars=MAX_ITEM_CHARS),
    "created_at": _check.check_time,
    "created_by": partial(_check.check_choice, known=CREATORS),
    "origin": partial(_check.check_choice, known=ORIGINS),
    "valid_until": partial(_check.check_time, in_future=True),
    "on_duplicate": partial(_check.check_choice, known=ON_DUPLICATE_CHOICES),
}
_LIMITED_BY_SETTINGS: Final = ("content", "reasoning", "category", "source")
"""Texts whose maximum length is a setting."""


def _add_checks(_cls: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """
    Add a converter to each field that has none. The converter validates the value with the check for the field's name.

    Default values are not checked.
    """

    def converter(field: attrs.Attribute[Any]) -> Callable[[object], object]:
        check, default = partial(_CHECKS[field.name], field.name), field.default
        return lambda value: value if value is default else check(value)

    return [field.evolve(converter=field.converter or converter(field)) for field in fields]


@attrs.frozen(kw_only=True, field_transformer=_add_checks)
class LinkRequest:
    """Arguments of a link to create."""

    to_id: str
    relationship: str
    confidence: float = 0.8
    reason: str | None = None
    tags: Sequence[str] = ()


@attrs.frozen(kw_only=True, field_transformer=_add_checks)
class SaveRequest:
    """
    Arguments of a memory to save.

    Arguments that a type does not support keep their defaults.
    """

    type: ClassVar[MemoryType]

    content: str
    topic: str | None = None
    supersedes: str | None = attrs.field(default=None, init=False)
    implements: Sequence[str] = attrs.field(default=(), init=False)
    links: tuple[LinkRequest, ...] = attrs.field(default=(), converter=_check_links)
    evidence: Sequence[str] = ()
    tags: Sequence[str] = ()
    source: str | None = None
    extra: Mapping[str, Any] | None = None
    on_duplicate: OnDuplicate = "keep"
    created_at: datetime | None = None
    created_by: CreatedBy = "user"
    origin: Origin | None = None
    valid_until: datetime | None = None

    @property
    def can_merge(self) -> bool:
        """
        True if an exact duplicate may be merged into the existing memory.

        A save with links, evidence, extra data or a creation time contains more than the existing memory, so it is
        never merged.
        """
        says_more = self.supersedes, self.implements, self.links, self.evidence, self.extra, self.created_at
        return self.on_duplicate == "merge" and not any(says_more)

    def memory(self, namespace: str, *, now: datetime, max_content: int) -> Memory:
        """Return the memory to save, without mentions and with unresolved handles in its evidence."""
        for name in _LIMITED_BY_SETTINGS:
            if (text := getattr(self, name, None)) is not None:
                _check.check_text(name, text, max_chars=max_content, allow_empty=True)
        given = {name: getattr(self, name) for name in attrs.fields_dict(type(self))}
        given["tags"], given["extra"] = tuple(self.tags), {} if self.extra is None else self.extra
        metadata = METADATA_TYPES[self.type]
        created = self.created_at or _check.check_time("created_at", now)
        origin = self.origin or ("model" if self.created_by == "llm" else "user")
        title = self.topic if self.type is MemoryType.DECISION and self.topic is not None else self.content
        return Memory(
            id=new_id(self.type, title[:_MAX_TITLE_CHARS], created),
            type=self.type,
            content=self.content,
            topic=self.topic,
            metadata=metadata(**{name: given[name] for name in attrs.fields_dict(metadata) if name in given}),
            evidence=tuple(self.evidence),
            created_at=created,
            updated_at=created,
            namespace=namespace,
            origin=origin,
            trust=origin,
            valid_until=self.valid_until,
        )


@attrs.frozen(kw_only=True, field_transformer=_add_checks)
class DecisionRequest(SaveRequest):
    """Arguments of `MemoryStore.save_decision`."""

    type = MemoryType.DECISION

    topic: str
    reasoning: str
    confidence: float = 0.7
    supersedes: str | None = None
    implements: Sequence[str] = ()


@attrs.frozen(kw_only=True, field_transformer=_add_checks)
class CheckpointRequest(SaveRequest):
    """Arguments of `MemoryStore.save_checkpoint`. Checkpoints have no duplicates."""

    type = MemoryType.CHECKPOINT

    open_files: Sequence[str] = ()
    next_steps: Sequence[str] = ()
    implements: Sequence[str] = ()
    on_duplicate: OnDuplicate = attrs.field(default="keep", init=False)


@attrs.frozen(kw_only=True, field_transformer=_add_checks)
class InsightRequest(SaveRequest):
    """Arguments of `MemoryStore.save_insight`."""

    type = MemoryType.INSIGHT

    category: str | None = None


@attrs.frozen(kw_only=True, field_transformer=_add_checks)
class ContextRequest(SaveRequest):
    """Arguments of `MemoryStore.save_context`."""

    type = MemoryType.CONTEXT


TEXT_REQUESTS: Final[Mapping[str, type[InsightRequest | ContextRequest]]] = {
    MemoryType.INSIGHT.value: InsightRequest,
    MemoryType.CONTEXT.value: ContextRequest,
}
"""The requests of the types that `MemoryStore.save` accepts."""
_REQUEST_BY_TYPE: Final = {
    form.type: form for form in (DecisionRequest, CheckpointRequest, InsightRequest, ContextRequest)
}


def parse_request(item: object, *, now: datetime) -> SaveRequest:
    """
    Validate an item of `MemoryStore.save_many` and return its request. A text becomes an insight.

    A timedelta is relative to *now*.
    """
    if isinstance(item, str):
        return InsightRequest(content=item)
    if not isinstance(item, Mapping):
        raise InvalidArgument(f"an item must be a text or a mapping, got {type(item).__name__}")
    unknown = [name for name in item if not isinstance(name, str) or not name.isidentifier()]
    if unknown:
        raise InvalidArgument(f"an item has no argument {repr_short(unknown[0])}")
    given = dict(item)
    for name, in_future in (("created_at", False), ("valid_until", True)):
        if given.get(name) is not None:
            given[name] = _check.check_time(name, given[name], now=now, in_future=in_future)
    kind = _check.check_choice("type", given.pop("type", MemoryType.INSIGHT), _REQUEST_BY_TYPE)
    fields = [field for field in attrs.fields(_REQUEST_BY_TYPE[kind]) if field.init]
    parameters = [field.name for field in fields]
    for name in given:
        if name not in parameters:
            hint = suggest_keyword(name, parameters, peer_names.MEMORY_STORE)
            hint = f"{hint[:1].lower()}{hint[1:].removesuffix('.')}"
            raise InvalidArgument(f"save_{kind.value}() has no {name!r:.200}", hint=hint)
    missing = [field.name for field in fields if field.default is attrs.NOTHING and field.name not in given]
    if missing:
        raise InvalidArgument(f"save_{kind.value}() needs {' and '.join(f'{name}=' for name in missing)}")
    return _REQUEST_BY_TYPE[kind](**given)


@attrs.frozen(kw_only=True)
class TraversalRequest:
    """Arguments of `MemoryStore.traverse`."""

    start: str
    types: frozenset[LinkType] | None
    max_depth: int
    direction: Direction
    min_strength: float
    limit: int

    @classmethod
    def checked(
        cls,
        memory: object,
        *,
        link_types: object,
        max_depth: object,
        direction: object,
        min_strength: object,
        limit: object,
    ) -> TraversalRequest:
        """Validate the arguments."""
        return cls(
            start=check_memory("memory", memory),
            types=None if link_types is None else check_link_types(link_types),
            max_depth=check_limit(max_depth, name="max_depth"),
            direction=_check.check_choice("direction", direction, DIRECTIONS),
            min_strength=_check.check_ratio("min_strength", min_strength),
            limit=_MAX_RESULTS if limit is None else check_limit(limit),
        )


def check_extra(value: object, name: str = "extra") -> dict[str, Any]:
    """Validate the host's JSON mapping of a memory and return a copy."""
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"{name} must be a mapping, got {type(value).__name__}", hint="give JSON data by name")
    if len(value) > MAX_EXTRA_KEYS:
        raise InvalidArgument(f"{name} must have at most {MAX_EXTRA_KEYS} keys, got {len(value)}")
    copied: dict[str, Any] = _check.check_json(name, value)
    size = len(json.dumps(copied, ensure_ascii=False))
    if size > MAX_EXTRA_CHARS:
        hint = "store large values in session.records, and their key here"
        raise InvalidArgument(f"{name} must have at most {MAX_EXTRA_CHARS} characters of JSON, got {size}", hint=hint)
    return copied


def prefix_error(name: str, error: InvalidArgument) -> InvalidArgument:
    """Return the error with a prefix that names the invalid item."""
    return InvalidArgument(f"{name}: {error.args[0]}", hint=error.hint)


def check_link_types(value: object) -> frozenset[LinkType]:
    """Validate link types to follow and return them."""
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, Iterable):
        raise InvalidArgument(f"link_types must be a list of link types, got {type(value).__name__}")
    return frozenset(_check.check_choice("link_types", one, LinkType) for one in several)


def check_progress(value: object) -> None:
    """Raise `InvalidArgument` unless the progress callback is callable or None."""
    if value is not None and not callable(value):
        raise InvalidArgument(f"progress must be a function of two numbers, got {type(value).__name__}")


def check_file(value: object) -> Path:
    """Validate a file path and return it."""
    if not isinstance(value, str | os.PathLike) or not (text := os.fspath(value)) or not isinstance(text, str):
        raise InvalidArgument(f"path must be a file's path, got {repr_short(value)}")
    return Path(text)


def check_limit(value: object, *, name: str = "limit") -> int:
    """Validate a maximum number of results and return it."""
    return min(_check.check_integer(name, _check.to_int(value), 1), _MAX_RESULTS)


def check_namespace(name: object) -> str:
    """Validate a namespace name and return it in NFC."""
    found = unicodedata.normalize("NFC", _check.check_text("namespace", name, max_chars=_MAX_NAMESPACE_CHARS))
    size = len(found.encode())
    if size > _MAX_NAMESPACE_BYTES:
        raise InvalidArgument(
            f"namespace must have at most {_MAX_NAMESPACE_BYTES} bytes as UTF-8, got {size}: each of them may take "
            "three of the 1,024 bytes of a key"
        )
    return found


def check_scopes(namespace: object, read_namespaces: object) -> tuple[str, ...]:
    """Return the writable namespace, then the read-only ones, validated and deduplicated."""
    own = check_namespace(namespace)
    if isinstance(read_namespaces, str | bytes | Mapping) or not isinstance(read_namespaces, Iterable):
        raise InvalidArgument(
            f"read_namespaces must be a list of namespaces, got {type(read_namespaces).__name__}",
            hint="for one namespace: read_namespaces=('team:core',)",
        )
    checked = [own]
    for position, name in enumerate(read_namespaces):
        try:
            checked.append(check_namespace(name))
        except InvalidArgument as error:
            raise prefix_error(f"read_namespaces[{position}]", error) from error
    return tuple(dict.fromkeys(checked))
