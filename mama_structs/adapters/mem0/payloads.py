"""Conversion between mem0's arguments, payloads and answers, and the records of a session."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypedDict

import attrs

from mama_structs._internal import validation as _check
from mama_structs.adapters.mem0.filters import WILDCARD, compile_filters
from mama_structs.errors import InvalidArgument
from mama_structs.importers.mem0.reader import HISTORY_LABELS, MEMORY_LABELS, compute_hash, read_expiry
from mama_structs.memory.types.model import ORIGINS, Origin
from mama_structs.memory.types.record import NewRecord, Record

Message = Mapping[str, Any]
ID_NAMES: Final = ("user_id", "agent_id", "run_id")
_ORIGIN_BY_ROLE: Final[Mapping[str, Origin]] = {"assistant": "model", "tool": "tool", "function": "tool"}
# Payload keys that are top-level keys of an answer; other keys are part of its metadata.
_TOP_LEVEL_KEYS: Final = (*ID_NAMES, "actor_id", "role", "attributed_to", "expiration_date")
# Metadata must not contain these keys, because `add` has arguments for them or computes them.
_RESERVED_KEYS: Final = frozenset({*ID_NAMES, "actor_id", "data", "hash", "created_at", "updated_at"})
_NON_METADATA_KEYS: Final = frozenset({"data", "hash", "created_at", "updated_at", *_TOP_LEVEL_KEYS})
# Unsupported arguments of mem0, with the reasons. Each argument is accepted with its default value.
_UNSUPPORTED_ARGUMENTS: Final[Mapping[str, str]] = {
    "timestamp": "mem0's platform alone takes one",
    "reference_date": "mem0's platform alone takes one",
    "memory_type": "procedural memories need a model",
    "prompt": "it is for mem0's model: give extract= to the class",
    "rerank": "mem0's reranker is a model",
    "show_expired": "what has expired is gone",
    **dict.fromkeys(ID_NAMES, "it belongs into filters, such as filters={'user_id': 'ada'}"),
}


def reject_unsupported(**given: Any) -> None:
    """Raise for unknown arguments, and for unsupported arguments with a value."""
    for name, value in given.items():
        if name not in _UNSUPPORTED_ARGUMENTS:
            hint = "use top_k" if name in ("limit", "k", "n_results") else None
            raise InvalidArgument(f"there is no argument {name!r:.80}", hint=hint)
        if name in ID_NAMES or (value is not None and value is not False):
            raise InvalidArgument(f"{name} is not supported here: {_UNSUPPORTED_ARGUMENTS[name]}")


def normalize_id(name: str, value: object) -> str | None:
    """Return an id as text without surrounding whitespace, or None."""
    if value is None:
        return None
    found = str(value).strip()
    if not found or any(sign.isspace() for sign in found):
        raise InvalidArgument(f"{name} must be an id without blanks")
    return _check.check_text(name, found)


def collect_ids(ids: Mapping[str, object]) -> dict[str, str]:
    """Return the ids that are not None (user, agent or run). Raise if all are None."""
    checked = {name: normalize_id(name, value) for name, value in ids.items()}
    found = {name: value for name, value in checked.items() if value is not None}
    if not found:
        raise InvalidArgument("at least one of user_id, agent_id and run_id must be given")
    return found


def format_date(value: object) -> str | None:
    """Return a date in mem0's format, or None."""
    if isinstance(value, datetime):
        return value.date().isoformat()
    if value is None or isinstance(value, date):
        return None if value is None else value.isoformat()
    try:
        return date.fromisoformat(str(value)).isoformat()
    except ValueError:
        raise InvalidArgument("expiration_date must be a day, such as 2026-12-31") from None


def check_metadata(value: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of valid metadata."""
    if value is not None and not isinstance(value, Mapping):
        raise InvalidArgument(f"metadata must be a mapping, got {type(value).__name__}")
    fixed = sorted(_RESERVED_KEYS & set(value or ()))
    if fixed:
        raise InvalidArgument(f"metadata cannot set {fixed[0]}", hint="ids are arguments of add, and never change")
    return dict(value or {})


class TextToStore(NamedTuple):
    """A text to store, its origin, and the message that contains it."""

    text: str
    origin: Origin
    # The message is empty if the text is, for example, an extracted fact.
    message: Message = MappingProxyType({})

    @property
    def speaker_payload(self) -> dict[str, Any]:
        """Role and name of the speaker, as keys of a memory's payload."""
        name = self.message.get("name")
        role = {"role": str(self.message["role"])} if self.message else {}
        return {**role, **({"actor_id": str(name)} if name else {})}

    @property
    def speaker_answer(self) -> dict[str, Any]:
        """Role and name of the speaker, as keys of the answer of `add`."""
        return {"actor_id": None, **self.speaker_payload} if self.message else {}


def extract_texts(given: object) -> list[TextToStore]:
    """Return the texts of messages, without system messages and messages without text."""
    several = [{"role": "user", "content": given}] if isinstance(given, str) else given
    several = [several] if isinstance(several, Mapping) else several
    if not isinstance(several, Sequence) or not all(isinstance(one, Mapping) for one in several):
        raise InvalidArgument(f"messages must be a text, a message or a list of messages, got {type(given).__name__}")
    texts = []
    for position, one in enumerate(several):
        content, role = one.get("content"), one.get("role")
        if isinstance(content, list):
            parts = [part for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
            content = " ".join(str(part.get("text", "")) for part in parts)
        if role not in (None, "system") and content is not None and not isinstance(content, Mapping):
            text = _check.check_text(f"messages[{position}].content", content, allow_empty=True)
            texts += [TextToStore(text, _ORIGIN_BY_ROLE.get(str(role), ORIGINS[0]), one)] if text.strip() else []
    return texts


def create_records(
    memory_id: str, text: TextToStore, own: Mapping[str, Any], now: datetime
) -> tuple[NewRecord, NewRecord]:
    """Return the records of a new memory."""
    payload = {**own, **text.speaker_payload, "data": text.text, "hash": compute_hash(text.text)}
    payload |= {"created_at": now.isoformat(), "updated_at": now.isoformat()}
    return _create_record_pair(
        memory_id, payload, [_create_event("ADD", memory_id, None, payload)], text.origin, (0, 0)
    )


def create_change(
    record: Record, past: Record | None, kind: str, new: Mapping[str, Any], now: datetime
) -> tuple[list[NewRecord], list[tuple[tuple[str, ...], str, int]]]:
    """
    Return the records to write and the record versions to delete for a change of a memory.

    The versions in them make the transaction fail on a concurrent change.
    """
    payload = {**record.value, **new, "updated_at": now.isoformat()}
    events = [*(past.value if past else ()), _create_event(kind, record.key, record.value["data"], payload)]
    versions = record.version, past.version if past else 0
    memory, history = _create_record_pair(record.key, payload, events, record.origin, versions)
    if kind == "DELETE":
        return [attrs.evolve(history, expires_at=None)], [(MEMORY_LABELS, record.key, record.version)]
    return [memory, history], []


def _create_event(kind: str, memory_id: str, before: str | None, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the history event of a change that resulted in *payload*."""
    is_deleted = kind == "DELETE"
    return {
        "id": str(uuid.uuid4()),
        "memory_id": memory_id,
        "old_memory": before,
        "new_memory": None if is_deleted else payload["data"],
        "event": kind,
        "created_at": payload.get("created_at"),
        "updated_at": payload.get("updated_at"),
        "is_deleted": is_deleted,
        "actor_id": payload.get("actor_id"),
        "role": payload.get("role"),
    }


def _create_record_pair(
    memory_id: str, payload: Mapping[str, Any], events: Sequence[Any], origin: Origin, versions: tuple[int, int]
) -> tuple[NewRecord, NewRecord]:
    """
    Return the records of a memory and its history.

    Writing them fails if their versions changed.
    """
    ends = read_expiry(payload.get("expiration_date"))
    own: dict[str, Any] = {"expires_at": ends, "origin": origin}
    memory = NewRecord(MEMORY_LABELS, memory_id, payload, text=payload["data"], if_version=versions[0], **own)
    return memory, NewRecord(HISTORY_LABELS, memory_id, events, if_version=versions[1], **own)


def create_item(record: Record, **score: Any) -> dict[str, Any]:
    """Return a memory in mem0's answer format."""
    payload: Mapping[str, Any] = record.value
    more = {name: value for name, value in payload.items() if name not in _NON_METADATA_KEYS}
    return {
        "id": record.key,
        "memory": payload["data"],
        "hash": payload.get("hash"),
        "metadata": more or None,
        **score,
        "created_at": payload.get("created_at"),
        "updated_at": payload.get("updated_at"),
        **{name: payload[name] for name in _TOP_LEVEL_KEYS if name in payload},
    }


class RecordFilters(TypedDict):
    """The arguments of `RecordStore.list` that select records."""

    where: Mapping[str, Any] | None
    predicate: Callable[[Record], bool]


def compile_record_filters(filters: Mapping[str, Any] | None) -> RecordFilters:
    """Return the selection of records; the filters must contain at least one id."""
    if filters is not None and not isinstance(filters, Mapping):
        raise InvalidArgument(f"filters must be a mapping, got {type(filters).__name__}")
    given = dict(filters or {})
    own: dict[str, Any] = {name: normalize_id(name, given[name]) for name in ID_NAMES if name in given}
    if not own:
        raise InvalidArgument("filters must have one of user_id, agent_id and run_id: filters={'user_id': 'ada'}")
    test = compile_filters({**given, **own})
    ids = {name: one for name, one in own.items() if isinstance(one, str) and one != WILDCARD}
    return {"where": ids or None, "predicate": lambda record: test(record.value)}
