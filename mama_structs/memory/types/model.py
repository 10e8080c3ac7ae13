"""What a memory, a link and kept evidence are, how ids are made, and how links lose strength with age."""

from __future__ import annotations

import enum
import math
import re
import secrets
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final, Literal

import attrs

from mama_structs._internal.reprs import Seen, Showing, briefly, listed

# Part of this module's names, and defined where refs can use them, too.
from mama_structs.provenance import ORIGINS as ORIGINS  # noqa: PLC0414 - exported
from mama_structs.provenance import Origin as Origin  # noqa: PLC0414 - exported
from mama_structs.provenance import least_trusted as least_trusted  # noqa: PLC0414 - exported

CreatedBy = Literal["user", "system", "llm"]
"""Who made a memory or link: the host's user, this package, or a model."""

CREATORS: Final[tuple[CreatedBy, ...]] = ("user", "system", "llm")

_SHOWN: Final = 200


class MemoryType(enum.StrEnum):
    """The kinds of memories."""

    DECISION = "decision"
    CHECKPOINT = "checkpoint"
    INSIGHT = "insight"
    CONTEXT = "context"
    RECORD = "record"


SINGULAR: Final = frozenset({MemoryType.CHECKPOINT, MemoryType.RECORD})
"""Types whose memories are copies of none: each stands for itself, whatever it says."""


class LinkType(enum.StrEnum):
    """The types of links; a link's metadata keeps the word that its author used."""

    EVOLUTION = "evolution"
    IMPLEMENTATION = "implementation"
    ASSOCIATION = "association"
    TEMPORAL = "temporal"


class Outcome(enum.StrEnum):
    """What became of a decision."""

    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    PARTIAL = "PARTIAL"


@attrs.frozen(kw_only=True, field_transformer=briefly)
class OutcomeChange:
    """
    One outcome that a decision was given.

    Args:
        outcome: What became of it.
        reason: Why, None where nobody said.
        at: When it was set (UTC).

    """

    outcome: Outcome
    reason: str | None = None
    at: datetime


@attrs.frozen(kw_only=True, field_transformer=briefly)
class DecisionMetadata:
    """
    What belongs to a decision beside its content.

    Args:
        reasoning: Why it was taken.
        confidence: How sure its author was, 0 to 1.
        outcome: What became of it, None while that is open.
        outcome_reason: Why it came so.
        outcome_at: When the outcome was set (UTC).
        history: All outcomes that it was given, oldest first, the present one last.
        created_by: Who saved it.
        extra: What a later version or another program stored, kept as it is.
        schema_version: The version of this form.

    """

    reasoning: str = ""
    confidence: float = 0.7
    outcome: Outcome | None = None
    outcome_reason: str | None = None
    outcome_at: datetime | None = None
    history: tuple[OutcomeChange, ...] = ()
    created_by: CreatedBy = "user"
    extra: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    schema_version: int = 1


@attrs.frozen(kw_only=True, field_transformer=briefly)
class CheckpointMetadata:
    """
    What belongs to a checkpoint beside its summary.

    Args:
        open_files: Paths that were being worked on.
        next_steps: What was to be done next.
        created_by: Who saved it.
        extra: What a later version or another program stored, kept as it is.
        schema_version: The version of this form.

    """

    open_files: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    created_by: CreatedBy = "user"
    extra: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    schema_version: int = 1


@attrs.frozen(kw_only=True, field_transformer=briefly)
class InsightMetadata:
    """
    What belongs to an insight beside its content.

    Args:
        category: What kind of insight it is, in the host's words.
        tags: Words to group insights by.
        source: Where it came from.
        created_by: Who saved it.
        extra: What a later version or another program stored, kept as it is.
        schema_version: The version of this form.

    """

    category: str | None = None
    tags: tuple[str, ...] = ()
    source: str | None = None
    created_by: CreatedBy = "user"
    extra: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    schema_version: int = 1


@attrs.frozen(kw_only=True, field_transformer=briefly)
class ContextMetadata:
    """
    What belongs to a context beside its content.

    Args:
        source: Where it came from.
        created_by: Who saved it.
        extra: What a later version or another program stored, kept as it is.
        schema_version: The version of this form.

    """

    source: str | None = None
    created_by: CreatedBy = "user"
    extra: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    schema_version: int = 1


@attrs.frozen(kw_only=True, field_transformer=briefly)
class FormerValue:
    """
    What a record held before another value took its place.

    Args:
        value: The value, as JSON has it.
        version: Which version it was.
        at: When it was written (UTC).
        text: What it was found by, None where it was only kept.

    """

    value: Any = attrs.field(hash=False)
    version: int
    at: datetime
    text: str | None = None


BETWEEN_TEXTS: Final = "\n\n"
"""Stands between the texts of a record that has several."""


@attrs.frozen(kw_only=True, field_transformer=briefly)
class RecordMetadata:
    """
    What belongs to a record beside the text that it is found by; see `mama_structs.records`.

    Args:
        labels: The namespace of labels under which its host keeps it.
        key: Its name there.
        value: What is kept, as JSON has it.
        version: How often it was written, from 1 on.
        lengths: The characters of each text that it is found by where these are several; blank lines part them.
        history: What it held before, oldest first, as far as that was to be kept.
        created_by: Who saved it.
        extra: What a later version or another program stored, kept as it is.
        schema_version: The version of this form.

    """

    labels: tuple[str, ...] = ()
    key: str = ""
    value: Any = attrs.field(default=None, hash=False)
    version: int = 1
    lengths: tuple[int, ...] = ()
    history: tuple[FormerValue, ...] = ()
    created_by: CreatedBy = "user"
    extra: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    schema_version: int = 1


Metadata = DecisionMetadata | CheckpointMetadata | InsightMetadata | ContextMetadata | RecordMetadata

METADATA: Final[Mapping[MemoryType, type[Metadata]]] = {
    MemoryType.DECISION: DecisionMetadata,
    MemoryType.CHECKPOINT: CheckpointMetadata,
    MemoryType.INSIGHT: InsightMetadata,
    MemoryType.CONTEXT: ContextMetadata,
    MemoryType.RECORD: RecordMetadata,
}


@attrs.frozen(kw_only=True, field_transformer=briefly)
class FormerText:
    """
    What a memory said before it was corrected.

    Args:
        content: Its content.
        reasoning: A decision's reasoning, empty for other types.
        until: When it was corrected (UTC).
        reason: Why, None where nobody said.

    """

    content: str
    reasoning: str = ""
    until: datetime
    reason: str | None = None


def reasoning_of(memory: Memory) -> str | None:
    """Return a decision's reasoning, None for other types."""
    return memory.metadata.reasoning if isinstance(memory.metadata, DecisionMetadata) else None


def said_otherwise(memory: Memory, *, content: str, reasoning: str) -> Memory:
    """Return a memory with another content, and a decision with another reasoning."""
    if not isinstance(memory.metadata, DecisionMetadata):
        return attrs.evolve(memory, content=content)
    return attrs.evolve(memory, content=content, metadata=attrs.evolve(memory.metadata, reasoning=reasoning))


@attrs.frozen
class NoticedMemory:
    """
    A memory that stands on the matter of another one.

    Args:
        id: Its id.
        probability: How sure it is that it stands so to the other one, 0 to 1.

    """

    id: str
    probability: float


@attrs.frozen(kw_only=True, field_transformer=briefly)
class Noticed:
    """
    What stood on the matter of a memory when that was saved; nothing of it was changed.

    Args:
        copy_of: What says the same, word for word (1.0) or in other words.
        may_contradict: What cannot hold together with it.
        may_replace: What does not hold any more, by what it says.
        note: Why the session's judge was not heard, None where it was, or there is none.

    """

    copy_of: tuple[NoticedMemory, ...] = ()
    may_contradict: tuple[NoticedMemory, ...] = ()
    may_replace: tuple[NoticedMemory, ...] = ()
    note: str | None = None

    def __bool__(self) -> bool:
        return bool(self.copy_of or self.may_contradict or self.may_replace)


@attrs.frozen(kw_only=True, repr=False)
class Memory(Showing):
    """
    A decision, checkpoint, insight or context, or a record of a host's.

    Args:
        id: ``<type>_<slug>_<milliseconds>_<8 hexadecimal digits>``.
        type: Its kind.
        content: The decision, summary, insight or context itself.
        topic: What it is about, in its author's word; None where that was not given.
        metadata: What belongs to its kind.
        mentions: Ids of entities that its text names.
        evidence: What it rests on: ids, addresses, any words; and for a handle whose text is kept
            ``<handle>#sha256:<hash>``, see `MemoryStore.evidence_of`.
        created_at: When it was made (UTC).
        updated_at: When it was last changed (UTC).
        namespace: Where it lives.
        origin: Who its text comes from.
        trust: The least trusted origin of it and of the memories that it rests on, carries out or supersedes.
        valid_until: When it stops to hold (UTC), None for never; later searches do not find it.
        repeats: When the same was saved again, word for word (UTC), oldest first.
        former: What it said before it was corrected, oldest first.
        noticed: What the store held on its topic when it was saved; only the memory that a save returns has it, and it
            is not stored.

    """

    id: str
    type: MemoryType
    content: str
    topic: str | None = None
    metadata: Metadata
    mentions: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    created_at: datetime
    updated_at: datetime
    namespace: str = "default"
    origin: Origin = "user"
    trust: Origin = "user"
    valid_until: datetime | None = None
    repeats: tuple[datetime, ...] = ()
    former: tuple[FormerText, ...] = ()
    noticed: Noticed | None = attrs.field(default=None, eq=False)

    def _seen(self) -> Seen:
        outcome = getattr(self.metadata, "outcome", None)
        ended = None if self.valid_until is None else f"until {self.valid_until:%Y-%m-%d}"
        return Seen(
            text=self.content,
            facts=(f"{self.created_at:%Y-%m-%d}", outcome and outcome.value),
            id=self.id,
            more=(self.type.value, self.topic, ended, None if self.origin == "user" else f"from {self.origin}"),
            details=tuple(self._details()),
        )

    def _details(self) -> Iterator[tuple[str, str]]:
        for name in (
            "reasoning",
            "outcome_reason",
            "category",
            "source",
            "tags",
            "open_files",
            "next_steps",
            "labels",
            "key",
        ):
            if value := getattr(self.metadata, name, None):
                yield name.replace("_", " "), value if isinstance(value, str) else listed(value)
        for name in ("mentions", "evidence"):
            if several := getattr(self, name):
                yield name, listed(several)
        for one in self.former:
            yield f"until {one.until:%Y-%m-%d}", one.content
        if self.noticed is not None:
            for field in attrs.fields(Noticed)[:3]:
                for found in getattr(self.noticed, field.name):
                    yield field.name.replace("_", " "), f"{found.id} ({found.probability:.2f})"

    def _record(self) -> dict[str, Any]:
        own = self.metadata
        return {
            "id": self.id,
            "type": self.type.value,
            "topic": self.topic,
            "content": self.content,
            "reasoning": getattr(own, "reasoning", None),
            "confidence": getattr(own, "confidence", None),
            "outcome": (outcome := getattr(own, "outcome", None)) and outcome.value,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
            "valid_until": self.valid_until,
            "mentions": self.mentions,
            "origin": self.origin,
            "trust": self.trust,
            "namespace": self.namespace,
        }


@attrs.frozen(kw_only=True, field_transformer=briefly)
class LinkMetadata:
    """
    What is known of a link beside its ends, type and confidence.

    Args:
        original_relationship: The word that was used for it, as it was given.
        similarity: The cosine of the two memories where it was made for their likeness.
        reason: Why it was made.
        tags: Words to group links by.
        extra: What a later version or another program stored, kept as it is.

    """

    original_relationship: str
    similarity: float | None = None
    reason: str | None = None
    tags: tuple[str, ...] = ()
    extra: Mapping[str, Any] = attrs.field(factory=dict, hash=False)


@attrs.frozen(kw_only=True, repr=False)
class Link(Showing):
    """
    A link from the memory that acts to the one that it acts on, so normally from newer to older.

    Args:
        id: Its own id.
        from_id: The memory that acts: the one that supersedes, implements or refers.
        to_id: The memory acted on.
        link_type: Its kind.
        confidence: 0 to 1, as stored; see `strength`.
        created_by: Who made it; ``"system"`` for automatic links.
        metadata: The word used for it, and what else is known.
        created_at: When it was made (UTC); it ages from then.

    """

    id: str
    from_id: str
    to_id: str
    link_type: LinkType
    confidence: float
    created_by: CreatedBy
    metadata: LinkMetadata
    created_at: datetime
    # Neither compared nor stored: what begins with an underscore is not written.
    _texts: tuple[str, str] | None = attrs.field(default=None, init=False, eq=False)

    @property
    def texts(self) -> tuple[str, str] | None:
        """The beginnings of both memories' contents, the origin's first; None if they were not read with the link."""
        return self._texts

    def _seen(self) -> Seen:
        one, other = self._texts or (self.from_id, self.to_id)
        return Seen(
            text=one,
            other=(self.metadata.original_relationship, other),
            facts=(f"{self.confidence:.2f}",),
            id=self.id,
            more=(self.link_type.value, f"{self.created_at:%Y-%m-%d}", f"by {self.created_by}"),
            details=(("reason", self.metadata.reason),) if self.metadata.reason else (),
        )

    def _record(self) -> dict[str, Any]:
        one, other = self._texts or (None, None)
        return {
            "id": self.id,
            "from_id": self.from_id,
            "to_id": self.to_id,
            "link_type": self.link_type.value,
            "relationship": self.metadata.original_relationship,
            "confidence": self.confidence,
            "similarity": self.metadata.similarity,
            "created_by": self.created_by,
            "created_at": self.created_at,
            "from_text": one,
            "to_text": other,
        }

    def strength(self, now: datetime) -> float:
        """
        Return the confidence after decay: ``confidence * exp(-rate * age_days)``, the rate by the link's type.

        Links of users and models do not decay, nor does evolution; a link from later than *now* has the age 0.
        """
        if self.created_by != "system":
            return self.confidence
        days = max((now - self.created_at) / timedelta(days=1), 0.0)
        return self.confidence * math.exp(-RATES[self.link_type] * days)


def with_texts(links: Iterable[Link], memories: Iterable[Memory]) -> tuple[Link, ...]:
    """Return links that know how those of their ends begin that are among some memories."""
    texts = {memory.id: memory.content[:_SHOWN] for memory in memories}
    told = []
    for link in links:
        known = attrs.evolve(link)
        object.__setattr__(known, "_texts", (texts.get(link.from_id, link.from_id), texts.get(link.to_id, link.to_id)))
        told.append(known)
    return tuple(told)


RATES: Final[Mapping[LinkType, float]] = {
    LinkType.EVOLUTION: 0.0,
    LinkType.IMPLEMENTATION: 0.02,
    LinkType.ASSOCIATION: 0.05,
    LinkType.TEMPORAL: 0.1,
}
"""What a link by ``system`` loses a day, as an exponent (ADR-001, section 4)."""

SUPERSEDES: Final = "supersedes"
IMPLEMENTS: Final = "implements"
OUTCOME_OF: Final = "outcome_of"
"""The words of the links that a save makes for what it was told."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_SLUG_LENGTH: Final = 50
_SHORT_SLUG: Final = 24
_BETWEEN: Final = re.compile(r"[\0-/:-`{-\x7f]+")
MIN_RANDOM: Final = 4
"""Characters at an id's end in v1.0."""
MAX_RANDOM: Final = 8
"""Characters at an id's end, made at random."""
MAX_ID_LENGTH: Final = 512
"""Characters of an id at most."""
_LINK_ID: Final = re.compile(r"link_[0-9a-f]{24}")
# Categories of characters that have no place in an id: controls, invisible format characters, line breaks, surrogates.
_NO_ID_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_ID: Final = re.compile(
    rf"(?:{'|'.join(kind.value for kind in MemoryType)})_\S*_[0-9]{{10,}}_[0-9a-z]{{{MIN_RANDOM},{MAX_RANDOM}}}"
)


def new_id(kind: MemoryType, title: str, created_at: datetime) -> str:
    """Return an id for a new memory: ``<type>_<slug>_<milliseconds>_<8 hexadecimal digits>``."""
    # Every answer that names a memory has its id: a few words tell what it is.
    return f"{kind.value}_{slug(title, most=_SHORT_SLUG)}_{milliseconds(created_at)}_{secrets.token_hex(4)}"


def new_link_id() -> str:
    """Return an id for a new link."""
    return f"link_{secrets.token_hex(12)}"


def slug(title: str, *, most: int = _SLUG_LENGTH) -> str:
    """Return the readable part of an id: lower case, other characters than letters and digits become ``_``."""
    text = unicodedata.normalize("NFC", title[: 8 * _SLUG_LENGTH]).lower()
    if not text.isascii():
        # Marks belong to the letters of many scripts, and are no letters themselves.
        text = "".join(letter if unicodedata.category(letter)[0] in "LNM" else "_" for letter in text)
    return _BETWEEN.sub("_", text).strip("_")[:most].strip("_") or "untitled"


def is_reason(memory: Memory) -> bool:
    """Tell whether a memory only says why a decision turned out as it did."""
    return isinstance(memory.metadata, ContextMetadata) and memory.metadata.source == OUTCOME_OF


def is_id(text: str) -> bool:
    """Return True if a text has the syntax of a memory's id."""
    return _ID.fullmatch(text) is not None


def problem_of_name(text: str) -> str | None:
    """Return the rule of ids and mentions that a text breaks, or None if it breaks none."""
    if not 0 < len(text) <= MAX_ID_LENGTH:
        return f"must have 1 to {MAX_ID_LENGTH} characters"
    if any(unicodedata.category(character) in _NO_ID_CATEGORIES for character in text):
        return "must have no control, format or line break characters"
    if text != text.strip():
        return "must not begin or end with blanks"
    if not unicodedata.is_normalized("NFC", text):
        return "is not in Unicode's form NFC"
    return None


def problem_of_id(text: str, kind: MemoryType) -> str | None:
    """
    Return the rule that a text breaks as the id of a memory of a type, or None if it breaks none.

    Decisions of v1.0 keep their ids, which may be any name that is not an id of another type.
    """
    problem = problem_of_name(text)
    if problem is not None:
        return problem
    if is_id(text):
        return None if text.startswith(f"{kind.value}_") else f"must begin with {kind.value}_"
    if kind is not MemoryType.DECISION:
        return f"must have the form {kind.value}_<slug>_<milliseconds>_<8 hexadecimal digits>"
    return "must not be a handle" if text.startswith(("fd:", "ref:")) else None


def is_link_id(text: str) -> bool:
    """Return True if a text has the syntax of a link's id."""
    return _LINK_ID.fullmatch(text) is not None


def milliseconds(moment: datetime) -> int:
    """Return a time (with a time zone) as whole milliseconds since 1970 (UTC)."""
    return (moment - _EPOCH) // _MILLISECOND


def from_milliseconds(count: int) -> datetime:
    """Return the time (UTC) of whole milliseconds since 1970."""
    return _EPOCH + timedelta(milliseconds=count)


@attrs.frozen(kw_only=True)
class Maintained:
    """
    What `MemoryStore.maintain` did.

    Args:
        pruned: Links that were pruned.
        due: Whether enough time had passed since the last time.

    """

    pruned: int = 0
    due: bool = False


# Evidence: what a handle stood for when a memory was saved lives on with the memories that name it.
# Such an item holds both, ``ref:plan@2#sha256:<64 hexadecimal digits>``: where the text came from, and the hash under
# which the store keeps it, once, for as long as any memory names it. Every other item is plain.

# Of no other scheme: an address with such a fragment is plain evidence.
_KEPT: Final = re.compile(r"((?:ref|fd|message):[^\s#]{1,200})#sha256:([0-9a-f]{64})")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
MAX_KEPT: Final = 2**25
"""Bytes of UTF-8 of a kept text at the most: however it is escaped, a line of an export holds it."""


@attrs.frozen
class KeptItem:
    """An item of evidence whose text is kept."""

    source: str
    digest: str

    def __str__(self) -> str:
        return f"{self.source}#sha256:{self.digest}"


def parse_kept(item: str) -> KeptItem | None:
    """Return what an item of evidence names that is kept, None for a plain one."""
    found = _KEPT.fullmatch(item)
    return None if found is None else KeptItem(found[1], found[2])


def digests_in(evidence: Iterable[str]) -> tuple[str, ...]:
    """Return the hashes of the kept texts that evidence names, each once."""
    return tuple(dict.fromkeys(kept.digest for kept in map(parse_kept, evidence) if kept is not None))


def digest_of(text: str) -> str:
    """Return the hash under which a text is kept."""
    return sha256(text.encode()).hexdigest()


def is_digest(text: str) -> bool:
    """Tell whether a text has the form of such a hash."""
    return _DIGEST.fullmatch(text) is not None
