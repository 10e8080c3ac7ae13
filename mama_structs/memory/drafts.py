"""What may be saved: each argument is checked here, once, before anything is done."""

from __future__ import annotations

import numbers
import operator
import os
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, SupportsIndex, TypeVar, get_args

import attrs

from mama_structs.errors import InvalidArgument
from mama_structs.memory.ids import from_milliseconds, milliseconds, new_id
from mama_structs.memory.model import (
    CheckpointMetadata,
    ContextMetadata,
    CreatedBy,
    DecisionMetadata,
    InsightMetadata,
    Memory,
    MemoryType,
    Metadata,
    Outcome,
)
from mama_structs.memory.relationships import check_relationship

Choice = TypeVar("Choice", MemoryType, Outcome)

MAX_TOPIC: Final = 200
MAX_ITEMS: Final = 1000
MAX_LINKS: Final = 100
_MAX_ID: Final = 512
_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(9000, 1, 1, tzinfo=UTC)
_TITLE: Final = 200


@attrs.frozen(kw_only=True)
class LinkDraft:
    """
    A link that was asked for.

    Args:
        to_id: Where it leads.
        relationship: The word for it.
        confidence: 0 to 1.
        reason: Why it is made.
        tags: Words to group links by.

    """

    to_id: str
    relationship: str
    confidence: float = 0.8
    reason: str | None = None
    tags: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Draft:
    """
    A memory that was asked for, checked as far as that needs no store.

    Args:
        memory: The memory, without mentions.
        supersedes: The decision that it takes the place of.
        implements: The memories that it carries out.
        links: Further links.
        contents: Texts that its evidence names, by their hash; others may be among them.
        is_dated: Whether somebody said when it was made.

    """

    memory: Memory
    supersedes: str | None = None
    implements: tuple[str, ...] = ()
    links: tuple[LinkDraft, ...] = ()
    contents: Mapping[str, str] = attrs.field(factory=dict, repr=False, hash=False)
    is_dated: bool = False


@attrs.frozen(kw_only=True)
class Door:
    """
    Checks what is to be saved in one namespace.

    Args:
        namespace: Its name.
        max_content: Characters that the text of one memory may have.

    """

    namespace: str
    max_content: int

    def decision(
        self,
        *,
        now: datetime,
        topic: object,
        decision: object,
        reasoning: object,
        confidence: object = 0.7,
        supersedes: object = None,
        implements: object = (),
        links: object = (),
        evidence: object = (),
        created_at: object = None,
        created_by: object = "user",
    ) -> Draft:
        """Return the draft of a decision."""
        metadata = DecisionMetadata(
            reasoning=self._text("reasoning", reasoning, empty=True),
            confidence=check_confidence(confidence),
            created_by=check_creator(created_by),
        )
        named = check_topic(topic)
        return Draft(
            memory=self._memory(
                MemoryType.DECISION,
                self._text("decision", decision),
                metadata,
                now=now,
                created_at=created_at,
                topic=named,
                evidence=check_texts("evidence", evidence),
                title=named,
            ),
            supersedes=None if supersedes is None else check_id("supersedes", supersedes),
            implements=check_ids("implements", implements),
            links=check_links(links),
            is_dated=created_at is not None,
        )

    def checkpoint(
        self,
        *,
        now: datetime,
        summary: object,
        open_files: object = (),
        next_steps: object = (),
        implements: object = (),
        created_at: object = None,
        created_by: object = "user",
    ) -> Draft:
        """Return the draft of a checkpoint."""
        metadata = CheckpointMetadata(
            open_files=check_texts("open_files", open_files),
            next_steps=check_texts("next_steps", next_steps),
            created_by=check_creator(created_by),
        )
        content = self._text("summary", summary)
        return Draft(
            memory=self._memory(MemoryType.CHECKPOINT, content, metadata, now=now, created_at=created_at),
            implements=check_ids("implements", implements),
        )

    def insight(
        self,
        *,
        now: datetime,
        content: object,
        category: object = None,
        tags: object = (),
        source: object = None,
        links: object = (),
        created_at: object = None,
        created_by: object = "user",
    ) -> Draft:
        """Return the draft of an insight."""
        metadata = InsightMetadata(
            category=self._short("category", category),
            tags=check_texts("tags", tags),
            source=self._short("source", source),
            created_by=check_creator(created_by),
        )
        text = self._text("content", content)
        return Draft(
            memory=self._memory(MemoryType.INSIGHT, text, metadata, now=now, created_at=created_at),
            links=check_links(links),
        )

    def context(
        self,
        *,
        now: datetime,
        content: object,
        topic: object = None,
        source: object = None,
        created_at: object = None,
        created_by: object = "user",
    ) -> Draft:
        """Return the draft of a context."""
        metadata = ContextMetadata(source=self._short("source", source), created_by=check_creator(created_by))
        named = None if topic is None else check_topic(topic)
        text = self._text("content", content)
        return Draft(
            memory=self._memory(MemoryType.CONTEXT, text, metadata, now=now, created_at=created_at, topic=named)
        )

    def record(self, record: object, *, now: datetime) -> Draft:
        """
        Return the draft that a record of `MemoryStore.save_many` asks for.

        Raises:
            InvalidArgument: It is no mapping, or an argument is missing, unknown or breaks its rule.

        """
        if not isinstance(record, Mapping):
            raise InvalidArgument(f"a record must be a mapping, got {type(record).__name__}")
        given = {}
        for name, value in record.items():
            if not isinstance(name, str) or name == "now":
                raise InvalidArgument(f"a record has no argument {name!r:.40}")
            given[name] = value
        kind = check_choice("type", given.pop("type", None), MemoryType)
        make = {
            MemoryType.DECISION: self.decision,
            MemoryType.CHECKPOINT: self.checkpoint,
            MemoryType.INSIGHT: self.insight,
            MemoryType.CONTEXT: self.context,
        }[kind]
        try:
            draft: Draft = make(now=now, **given)  # type: ignore[operator]  # each kind has its own keywords
        except TypeError as error:
            # The interpreter names the argument, and no value.
            problem = str(error).partition("() ")[2] or "its arguments are not those of its type"
            raise InvalidArgument(f"{kind.value}: {problem}") from None
        return draft

    def _memory(
        self,
        kind: MemoryType,
        content: str,
        metadata: Metadata,
        *,
        now: datetime,
        created_at: object,
        topic: str | None = None,
        evidence: tuple[str, ...] = (),
        title: str | None = None,
    ) -> Memory:
        created = check_time("created_at", now if created_at is None else created_at)
        return Memory(
            id=new_id(kind, title or content[:_TITLE], created),
            type=kind,
            content=content,
            topic=topic,
            metadata=metadata,
            evidence=evidence,
            created_at=created,
            updated_at=created,
            namespace=self.namespace,
        )

    def _text(self, name: str, value: object, *, empty: bool = False) -> str:
        return check_text(name, value, most=self.max_content, empty=empty)

    def _short(self, name: str, value: object) -> str | None:
        return None if value is None else check_text(name, value, most=self.max_content)


def check_text(name: str, value: object, *, most: int, empty: bool = False) -> str:
    """
    Return a text.

    Raises:
        InvalidArgument: It is no text, blank, too long, or has a lone surrogate, which UTF-8 cannot hold.

    """
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} must be a text, got {type(value).__name__}")
    if not empty and not value.strip():
        raise InvalidArgument(f"{name} must not be empty")
    if len(value) > most:
        raise InvalidArgument(f"{name} must have at most {most} characters, got {len(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{name}: character {error.start + 1} is a lone surrogate, which no file can hold",
            hint="decode the text with errors='replace', or remove it",
        ) from None
    return str(value)


def check_topic(topic: object) -> str:
    """
    Return a topic, in NFC and without blanks around it.

    Raises:
        InvalidArgument: It is no text, blank or too long.

    """
    return unicodedata.normalize("NFC", check_text("topic", topic, most=MAX_TOPIC)).strip()


def check_id(name: str, value: object) -> str:
    """
    Return an id as it is written.

    Raises:
        InvalidArgument: It is no text, blank or too long.

    """
    return unicodedata.normalize("NFC", check_text(name, value, most=_MAX_ID))


def check_texts(name: str, value: object) -> tuple[str, ...]:
    """
    Return several texts.

    Raises:
        InvalidArgument: It is one text in place of several, no texts, or too many.

    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidArgument(f"{name} must be a list of texts, got {type(value).__name__}")
    items = tuple(value)
    if len(items) > MAX_ITEMS:
        raise InvalidArgument(f"{name} must have at most {MAX_ITEMS} items, got {len(items)}")
    return tuple(check_text(f"{name}[{position}]", item, most=_MAX_ITEM) for position, item in enumerate(items))


_MAX_ITEM: Final = 10_000


def check_ids(name: str, value: object) -> tuple[str, ...]:
    """
    Return several ids, each once.

    Raises:
        InvalidArgument: It is one id in place of several, no ids, or too many.

    """
    found = check_texts(name, value)
    if len(found) > MAX_LINKS:
        raise InvalidArgument(f"{name} must have at most {MAX_LINKS} ids, got {len(found)}")
    return tuple(dict.fromkeys(check_id(f"{name}[{position}]", item) for position, item in enumerate(found)))


def check_links(value: object) -> tuple[LinkDraft, ...]:
    """
    Return links that were asked for: mappings with ``to_id``, ``relationship`` and what else a link has.

    Raises:
        InvalidArgument: One is no such mapping.

    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidArgument(f"links must be a list of mappings, got {type(value).__name__}")
    items = tuple(value)
    if len(items) > MAX_LINKS:
        raise InvalidArgument(f"links must have at most {MAX_LINKS} items, got {len(items)}")
    return tuple(_check_link(position, item) for position, item in enumerate(items))


def _check_link(position: int, item: object) -> LinkDraft:
    name = f"links[{position}]"
    if isinstance(item, LinkDraft):
        item = attrs.asdict(item)
    if not isinstance(item, Mapping):
        raise InvalidArgument(f"{name} must be a mapping with to_id and relationship, got {type(item).__name__}")
    known = [field.name for field in attrs.fields(LinkDraft)]
    unknown = [str(key) for key in item if key not in known]
    missing = [key for key in ("to_id", "relationship") if key not in item]
    if unknown or missing:
        what = f"lacks {' and '.join(missing)}" if missing else f"has an unknown {unknown[0]!r:.40}"
        raise InvalidArgument(f"{name} {what}", hint=f"a link has {', '.join(known)}")
    try:
        return link_draft(**{str(key): entry for key, entry in item.items()})
    except InvalidArgument as error:
        raise within(name, error) from error


def within(name: str, error: InvalidArgument) -> InvalidArgument:
    """Return an error that says in which of several items another one arose."""
    return InvalidArgument(f"{name}: {error.args[0]}", hint=error.hint)


def link_draft(
    *, to_id: object, relationship: object, confidence: object = 0.8, reason: object = None, tags: object = ()
) -> LinkDraft:
    """
    Return a link that was asked for.

    Raises:
        InvalidArgument: An argument breaks its rule.

    """
    return LinkDraft(
        to_id=check_id("to_id", to_id),
        relationship=check_relationship(relationship),
        confidence=check_confidence(confidence),
        reason=None if reason is None else check_text("reason", reason, most=_MAX_ITEM),
        tags=check_texts("tags", tags),
    )


def check_confidence(value: object) -> float:
    """
    Return a confidence.

    Raises:
        InvalidArgument: It is no number from 0 to 1.

    """
    return check_share("confidence", value)


def check_creator(value: object) -> CreatedBy:
    """
    Return who made something.

    Raises:
        InvalidArgument: It is none of the known words.

    """
    if value == "user" or value == "llm" or value == "system":  # noqa: PLR1714 - a type checker follows this
        return value
    raise InvalidArgument(f"created_by must be one of {', '.join(get_args(CreatedBy))}, got {value!r:.40}")


def check_choice(name: str, value: object, kind: type[Choice]) -> Choice:
    """
    Return a member of an enumeration, from itself or its value.

    Raises:
        InvalidArgument: It is none.

    """
    try:
        return kind(str(value))
    except ValueError:
        known = ", ".join(one.value for one in kind)
        raise InvalidArgument(f"{name} must be one of {known}, got {value!r:.40}") from None


def check_types(value: object) -> frozenset[MemoryType] | None:
    """
    Return types to restrict to, None for all.

    Raises:
        InvalidArgument: It is neither a type nor a list of types.

    """
    if value is None:
        return None
    if isinstance(value, str):
        return frozenset({check_choice("types", value, MemoryType)})
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidArgument(f"types must be a list of types, got {type(value).__name__}")
    found = frozenset(check_choice("types", one, MemoryType) for one in value)
    if not found:
        raise InvalidArgument("types must name at least one type", hint="leave it out to mean all")
    return found


def check_mentions(value: object) -> frozenset[str] | None:
    """
    Return ids that must be mentioned, None for any.

    Raises:
        InvalidArgument: It is neither an id nor a list of ids.

    """
    if value is None:
        return None
    found = frozenset(check_ids("mentions", [value] if isinstance(value, str) else value))
    if not found:
        raise InvalidArgument("mentions must name at least one id", hint="leave it out to mean any")
    return found


def check_flag(name: str, value: object) -> bool:
    """
    Return a yes or no.

    Raises:
        InvalidArgument: It is neither True nor False.

    """
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} must be True or False, got {value!r:.40}")
    return value


def check_progress(value: object) -> None:
    """
    Refuse what cannot be told how far something has come.

    Raises:
        InvalidArgument: It cannot be called.

    """
    if value is not None and not callable(value):
        raise InvalidArgument(f"progress must be a function of two numbers, got {type(value).__name__}")


def check_file(value: object) -> Path:
    """
    Return a file's path.

    Raises:
        InvalidArgument: It is none.

    """
    if not isinstance(value, str | os.PathLike) or not (text := os.fspath(value)) or not isinstance(text, str):
        raise InvalidArgument(f"path must be a file's path, got {value!r:.80}")
    return Path(text)


def check_limit(value: object, *, least: int = 1, name: str = "limit") -> int:
    """
    Return a number of results.

    Raises:
        InvalidArgument: It is no whole number, or too small.

    """
    # Numbers of NumPy count as well.
    number = operator.index(value) if isinstance(value, SupportsIndex) and not isinstance(value, bool) else None
    if number is None or number < least:
        raise InvalidArgument(f"{name} must be a whole number of {least} or more, got {value!r:.40}")
    return min(int(number), 2**31)


def check_share(name: str, value: object) -> float:
    """
    Return a number from 0 to 1.

    Raises:
        InvalidArgument: It is none.

    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= float(value) <= 1:
        raise InvalidArgument(f"{name} must be a number from 0 to 1, got {value!r:.40}")
    return float(value)


def check_time(name: str, value: object) -> datetime:
    """
    Return a time in UTC, cut to whole milliseconds; a text is read as ISO 8601.

    Raises:
        InvalidArgument: It is no time, has no time zone, or lies outside of 1970 to 9000.

    """
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidArgument(f"{name} must be an ISO 8601 time, got {value!r:.40}") from None
    if not isinstance(moment, datetime):
        raise InvalidArgument(f"{name} must be a datetime, got {type(value).__name__}")
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise InvalidArgument(
            f"{name} must have a time zone, got {value!r:.60}", hint="add one, such as tzinfo=datetime.UTC"
        )
    if not _FIRST <= moment < _LAST:
        raise InvalidArgument(f"{name} must lie between 1970 and 9000, got {value!r:.60}")
    return from_milliseconds(milliseconds(moment))


def check_namespace(name: object) -> str:
    """
    Return a namespace's name, in NFC.

    Raises:
        InvalidArgument: It is no text, empty, or has more than 100 characters or 200 bytes of UTF-8.

    """
    found = unicodedata.normalize("NFC", check_text("namespace", name, most=_MAX_NAMESPACE))
    size = len(found.encode())
    if size > _MAX_NAMESPACE_BYTES:
        raise InvalidArgument(
            f"namespace must have at most {_MAX_NAMESPACE_BYTES} bytes as UTF-8, got {size}: each of them may take "
            "three of the 1,024 bytes of a key"
        )
    return found


_MAX_NAMESPACE: Final = 100
_MAX_NAMESPACE_BYTES: Final = 200
