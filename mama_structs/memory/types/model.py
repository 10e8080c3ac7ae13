"""Memories, links, stored evidence texts, their ids, and the decay of link strength."""

from __future__ import annotations

import difflib
import enum
import math
import re
import secrets
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, ClassVar, Final, Literal
from urllib.parse import quote, unquote

import attrs

from mama_structs._internal.caches import cache_by_text
from mama_structs._internal.hints import peer_names
from mama_structs._internal.hints.call_hints import with_call_hints
from mama_structs._internal.jsonable import JsonMixin
from mama_structs._internal.reprs import Columns, FieldReprMixin, ReprContent, ReprMixin, join_texts

# Re-exported from `provenance`, which defines them because refs use them too.
from mama_structs.provenance import ORIGINS as ORIGINS  # noqa: PLC0414 - exported
from mama_structs.provenance import Origin as Origin  # noqa: PLC0414 - exported
from mama_structs.provenance import least_trusted as least_trusted  # noqa: PLC0414 - exported

CreatedBy = Literal["user", "system", "llm"]
"""Creator of a memory or link: the host's user, this package, or a model."""

CREATORS: Final[tuple[CreatedBy, ...]] = ("user", "system", "llm")

_MAX_PREVIEW_CHARS: Final = 200


class MemoryType(enum.StrEnum):
    """Types of memories."""

    DECISION = "decision"
    CHECKPOINT = "checkpoint"
    INSIGHT = "insight"
    CONTEXT = "context"
    RECORD = "record"


TYPES_WITHOUT_DUPLICATES: Final = frozenset({MemoryType.CHECKPOINT, MemoryType.RECORD})
"""Types without duplicates: each of their memories is distinct, even with equal text."""


class LinkType(enum.StrEnum):
    """Types of links. The word that the author used is stored in the link's metadata."""

    EVOLUTION = "evolution"
    IMPLEMENTATION = "implementation"
    ASSOCIATION = "association"
    TEMPORAL = "temporal"


class Outcome(enum.StrEnum):
    """Result of a decision."""

    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    PARTIAL = "PARTIAL"


@attrs.frozen(kw_only=True, repr=False)
class OutcomeChange(FieldReprMixin):
    """
    One outcome in the history of a decision.

    Args:
        outcome: The outcome.
        reason: Reason for the outcome, or None if not given.
        at: When it was set (UTC).

    """

    outcome: Outcome
    reason: str | None = None
    at: datetime


@attrs.frozen(kw_only=True, repr=False)
class DecisionMetadata(FieldReprMixin):
    """
    Metadata of a decision.

    Args:
        reasoning: Why it was taken.
        confidence: How sure its author was, 0 to 1.
        outcome: Present outcome, or None while it is open.
        outcome_reason: Reason for the outcome.
        outcome_at: When the outcome was set (UTC).
        history: All outcomes that were set, oldest first, including the present one.
        tags: Words to group memories by.
        source: Where the text came from.
        created_by: Who saved it.
        extra: JSON data of the host, and fields that a later version stored.
        schema_version: Version of this schema.

    """

    reasoning: str = ""
    confidence: float = 0.7
    outcome: Outcome | None = None
    outcome_reason: str | None = None
    outcome_at: datetime | None = None
    history: tuple[OutcomeChange, ...] = ()
    tags: tuple[str, ...] = ()
    source: str | None = None
    created_by: CreatedBy = "user"
    extra: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    schema_version: int = 1


@attrs.frozen(kw_only=True, repr=False)
class CheckpointMetadata(FieldReprMixin):
    """
    Metadata of a checkpoint.

    Args:
        open_files: Paths that were being worked on.
        next_steps: What was to be done next.
        tags: Words to group memories by.
        source: Where the text came from.
        created_by: Who saved it.
        extra: JSON data of the host, and fields that a later version stored.
        schema_version: Version of this schema.

    """

    open_files: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    source: str | None = None
    created_by: CreatedBy = "user"
    extra: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    schema_version: int = 1


@attrs.frozen(kw_only=True, repr=False)
class InsightMetadata(FieldReprMixin):
    """
    Metadata of an insight.

    Args:
        category: Category in the host's words.
        tags: Words to group memories by.
        source: Where the text came from.
        created_by: Who saved it.
        extra: JSON data of the host, and fields that a later version stored.
        schema_version: Version of this schema.

    """

    category: str | None = None
    tags: tuple[str, ...] = ()
    source: str | None = None
    created_by: CreatedBy = "user"
    extra: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    schema_version: int = 1


@attrs.frozen(kw_only=True, repr=False)
class ContextMetadata(FieldReprMixin):
    """
    Metadata of a context.

    Args:
        tags: Words to group memories by.
        source: Where the text came from.
        created_by: Who saved it.
        extra: JSON data of the host, and fields that a later version stored.
        schema_version: Version of this schema.

    """

    tags: tuple[str, ...] = ()
    source: str | None = None
    created_by: CreatedBy = "user"
    extra: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    schema_version: int = 1


@attrs.frozen(kw_only=True, repr=False)
class PreviousValue(FieldReprMixin):
    """
    A previous version of a record's value.

    Args:
        value: The value, as JSON data.
        version: Its version number.
        at: When it was written (UTC).
        text: Its searchable text, or None if it had none.

    """

    value: Any = attrs.field(hash=False)
    version: int
    at: datetime
    text: str | None = None


TEXT_SEPARATOR: Final = "\n\n"
"""Separator between the texts of a record that has several."""


@attrs.frozen(kw_only=True, repr=False)
class RecordMetadata(FieldReprMixin):
    """
    Metadata of a record; see `RecordStore`.

    Args:
        labels: Labels under which the host stores it.
        key: Its key under these labels.
        value: The stored value, as JSON data.
        version: Number of writes, starting at 1.
        text_lengths: Number of characters of each searchable text, if there are several. A blank line separates them.
        history: Previous values, oldest first, if history was requested.
        created_by: Who saved it.
        extra: Fields stored by a later version or another program, preserved unchanged.
        schema_version: Version of this schema.

    """

    labels: tuple[str, ...] = ()
    key: str = ""
    value: Any = attrs.field(default=None, hash=False)
    version: int = 1
    text_lengths: tuple[int, ...] = ()
    history: tuple[PreviousValue, ...] = ()
    created_by: CreatedBy = "user"
    extra: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    schema_version: int = 1


Metadata = DecisionMetadata | CheckpointMetadata | InsightMetadata | ContextMetadata | RecordMetadata

METADATA_TYPES: Final[Mapping[MemoryType, type[Metadata]]] = {
    MemoryType.DECISION: DecisionMetadata,
    MemoryType.CHECKPOINT: CheckpointMetadata,
    MemoryType.INSIGHT: InsightMetadata,
    MemoryType.CONTEXT: ContextMetadata,
    MemoryType.RECORD: RecordMetadata,
}


@attrs.frozen(kw_only=True, repr=False)
class PreviousText(FieldReprMixin):
    """
    The text of a memory before a correction.

    Args:
        content: The previous content.
        reasoning: The previous reasoning of a decision, empty for other types.
        until: When it was corrected (UTC).
        reason: Reason for the correction, or None if not given.

    """

    content: str
    reasoning: str = ""
    until: datetime
    reason: str | None = None


def with_text(memory: Memory, *, content: str, reasoning: str) -> Memory:
    """Return the memory with a new content. A decision also gets the new reasoning."""
    if not isinstance(memory.metadata, DecisionMetadata):
        return attrs.evolve(memory, content=content)
    return attrs.evolve(memory, content=content, metadata=attrs.evolve(memory.metadata, reasoning=reasoning))


@attrs.frozen
class RelatedMemory(JsonMixin):
    """
    An older memory that is related to a newly saved one.

    Args:
        id: Its id.
        probability: Probability of the relation, 0 to 1.

    """

    id: str
    probability: float


@attrs.frozen(kw_only=True, repr=False)
class SaveWarnings(FieldReprMixin):
    """
    Older memories that a newly saved one repeats, contradicts or replaces.

    They are reported, but not changed.

    Args:
        duplicate_of: Memories with the same statement, word for word (probability 1.0) or reworded.
        possible_conflicts: Memories that contradict it.
        possible_replacements: Memories that are no longer true according to it.
        note: Why the session's judge was not consulted; None if it was consulted, or if the session has no judge.

    """

    duplicate_of: tuple[RelatedMemory, ...] = ()
    possible_conflicts: tuple[RelatedMemory, ...] = ()
    possible_replacements: tuple[RelatedMemory, ...] = ()
    note: str | None = None

    def __bool__(self) -> bool:
        return bool(self.duplicate_of or self.possible_conflicts or self.possible_replacements)


MEMORY_COLUMNS: Final[Columns] = {
    "content": "text",
    "type": "text",
    "topic": "text",
    "outcome": "text",
    "reasoning": "text",
    "confidence": "float",
    "origin": "text",
    "created_at": "time",
    "valid_until": "time",
    "id": "text",
    "outcome_reason": "text",
    "tags": "object",
    "source": "text",
    "mentions": "object",
    "updated_at": "time",
    "trust": "text",
    "namespace": "text",
}
"""Columns of a table of memories."""


@with_call_hints(peer_names.MEMORY)
@attrs.frozen(kw_only=True, repr=False)
class Memory(ReprMixin):
    """
    A decision, checkpoint, insight or context, or a record of the host.

    Args:
        id: ``<type>_<slug>_<milliseconds>_<8 hexadecimal digits>``.
        type: Its type.
        content: The text of the decision, summary, insight or context.
        topic: Its subject in its author's words, or None if not given.
        metadata: Fields that are specific to its type.
        mentions: Ids of entities that occur in its text.
        evidence: Supporting ids, addresses or free text. A handle whose text is stored has the form
            ``<handle>#sha256:<hash>``, see `MemoryStore.evidence`.
        created_at: When it was created (UTC).
        updated_at: When it was last changed (UTC).
        namespace: Its namespace.
        origin: Author of its text.
        trust: The least trusted origin of it and of the memories that it is based on, implements or supersedes.
        valid_until: When it expires (UTC), or None for never. Later searches do not find it.
        repeated_at: When an exact duplicate was saved (UTC), oldest first.
        previous_texts: Texts before changes, oldest first.
        warnings: Related memories in the store when it was saved. Only set on the memory that a save returns, and not
            stored.

    """

    _table_columns: ClassVar[Columns] = MEMORY_COLUMNS

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
    repeated_at: tuple[datetime, ...] = ()
    previous_texts: tuple[PreviousText, ...] = ()
    warnings: SaveWarnings | None = attrs.field(default=None, eq=False)

    @property
    def reasoning(self) -> str | None:
        """The reasoning of a decision, None for other types."""
        return self.metadata.reasoning if isinstance(self.metadata, DecisionMetadata) else None

    @property
    def confidence(self) -> float | None:
        """The author's confidence in a decision, 0 to 1; None for other types."""
        return self.metadata.confidence if isinstance(self.metadata, DecisionMetadata) else None

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of a decision; None if it has none, and for other types."""
        return self.metadata.outcome if isinstance(self.metadata, DecisionMetadata) else None

    @property
    def outcome_reason(self) -> str | None:
        """The reason for the outcome of a decision; None if it has none, and for other types."""
        return self.metadata.outcome_reason if isinstance(self.metadata, DecisionMetadata) else None

    @property
    def tags(self) -> tuple[str, ...]:
        """The words that group it with other memories. Always empty for a record."""
        return () if isinstance(self.metadata, RecordMetadata) else self.metadata.tags

    @property
    def source(self) -> str | None:
        """The source of its text, or None if not given. Always None for a record."""
        return None if isinstance(self.metadata, RecordMetadata) else self.metadata.source

    def _repr_content(self) -> ReprContent:
        ended = None if self.valid_until is None else f"until {self.valid_until:%Y-%m-%d}"
        return ReprContent(
            text=self.content,
            facts=(f"{self.created_at:%Y-%m-%d}", self.outcome and self.outcome.value),
            id=self.id,
            html_facts=(self.type.value, self.topic, ended, None if self.origin == "user" else f"from {self.origin}"),
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
                yield name.replace("_", " "), value if isinstance(value, str) else join_texts(value)
        for name in ("mentions", "evidence"):
            if several := getattr(self, name):
                yield name, join_texts(several)
        for one in self.previous_texts:
            yield f"until {one.until:%Y-%m-%d}", one.content
        if self.warnings is not None:
            for field in attrs.fields(SaveWarnings)[:3]:
                for found in getattr(self.warnings, field.name):
                    yield field.name.replace("_", " "), f"{found.id} ({found.probability:.2f})"

    def _table_row(self) -> dict[str, Any]:
        return {
            "content": self.content,
            "type": self.type.value,
            "topic": self.topic,
            "outcome": self.outcome and self.outcome.value,
            "reasoning": self.reasoning,
            "confidence": self.confidence,
            "origin": self.origin,
            "created_at": self.created_at,
            "valid_until": self.valid_until,
            "id": self.id,
            "outcome_reason": self.outcome_reason,
            "tags": self.tags,
            "source": self.source,
            "mentions": self.mentions,
            "updated_at": self.updated_at,
            "trust": self.trust,
            "namespace": self.namespace,
        }


@attrs.frozen(kw_only=True, repr=False)
class LinkMetadata(FieldReprMixin):
    """
    Metadata of a link.

    Args:
        original_relationship: The relationship word as given by the author.
        similarity: Cosine of the two memories, if the link was created because of their similarity.
        reason: Why it was created.
        tags: Words to group links by.
        extra: Fields stored by a later version or another program, preserved unchanged.

    """

    original_relationship: str
    similarity: float | None = None
    reason: str | None = None
    tags: tuple[str, ...] = ()
    extra: Mapping[str, Any] = attrs.field(factory=dict, hash=False)


@attrs.frozen(kw_only=True, repr=False)
class Link(ReprMixin):
    """
    A directed link between two memories, normally from the newer to the older one.

    Args:
        id: Its own id.
        from_id: Memory at the start, which supersedes, implements or refers to the other one.
        to_id: Memory at the end.
        link_type: Its type.
        confidence: Stored confidence, 0 to 1; see `strength`.
        created_by: Who created it; ``"system"`` for automatic links.
        metadata: Relationship word and further fields.
        created_at: When it was created (UTC). Decay starts at this time.

    """

    _table_columns: ClassVar[Columns] = {
        "from_text": "text",
        "relationship": "text",
        "to_text": "text",
        "link_type": "text",
        "confidence": "float",
        "created_by": "text",
        "created_at": "time",
        "from_id": "text",
        "to_id": "text",
        "id": "text",
        "similarity": "float",
        "reason": "text",
        "tags": "object",
    }

    id: str
    from_id: str
    to_id: str
    link_type: LinkType
    confidence: float
    created_by: CreatedBy
    metadata: LinkMetadata
    created_at: datetime
    # Excluded from comparison (eq=False) and storage (attributes with a leading underscore are not serialized).
    _texts: tuple[str, str] | None = attrs.field(default=None, init=False, eq=False)

    @property
    def endpoint_texts(self) -> tuple[str, str] | None:
        """
        Previews of both memories' contents, or None if the link was read without them.

        The preview of `from_id` comes first.
        """
        return self._texts

    def _repr_content(self) -> ReprContent:
        one, other = self._texts or (self.from_id, self.to_id)
        return ReprContent(
            text=one,
            second_text=(self.metadata.original_relationship, other),
            facts=(f"{self.confidence:.2f}",),
            id=self.id,
            html_facts=(self.link_type.value, f"{self.created_at:%Y-%m-%d}", f"by {self.created_by}"),
            details=(("reason", self.metadata.reason),) if self.metadata.reason else (),
        )

    def _table_row(self) -> dict[str, Any]:
        one, other = self._texts or (None, None)
        return {
            "from_text": one,
            "relationship": self.metadata.original_relationship,
            "to_text": other,
            "link_type": self.link_type.value,
            "confidence": self.confidence,
            "created_by": self.created_by,
            "created_at": self.created_at,
            "from_id": self.from_id,
            "to_id": self.to_id,
            "id": self.id,
            "similarity": self.metadata.similarity,
            "reason": self.metadata.reason,
            "tags": self.metadata.tags,
        }

    def strength(self, now: datetime) -> float:
        """
        Return the confidence after decay: ``confidence * exp(-rate * age_days)``.

        The rate depends on the link's type. Only automatic links decay, except evolution links. A link created after
        *now* has the age 0.
        """
        if self.created_by != "system":
            return self.confidence
        days = max((now - self.created_at) / timedelta(days=1), 0.0)
        return self.confidence * math.exp(-DECAY_RATES_PER_DAY[self.link_type] * days)


def with_previews(links: Iterable[Link], memories: Iterable[Memory]) -> tuple[Link, ...]:
    """
    Return copies of the links with previews of the memories at both ends.

    If a memory is not among *memories*, its id takes the place of the preview.
    """
    texts = {memory.id: memory.content[:_MAX_PREVIEW_CHARS] for memory in memories}
    told = []
    for link in links:
        known = attrs.evolve(link)
        object.__setattr__(known, "_texts", (texts.get(link.from_id, link.from_id), texts.get(link.to_id, link.to_id)))
        told.append(known)
    return tuple(told)


DECAY_RATES_PER_DAY: Final[Mapping[LinkType, float]] = {
    LinkType.EVOLUTION: 0.0,
    LinkType.IMPLEMENTATION: 0.02,
    LinkType.ASSOCIATION: 0.05,
    LinkType.TEMPORAL: 0.1,
}
"""Decay rate per day of automatic links, as an exponent (ADR-001, section 4)."""

SUPERSEDES_WORD: Final = "supersedes"
IMPLEMENTS_WORD: Final = "implements"
OUTCOME_OF_WORD: Final = "outcome_of"
"""Relationship words of the links that a save creates from its arguments."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_MAX_SLUG_CHARS: Final = 50
_MAX_ID_SLUG_CHARS: Final = 24
_SEPARATOR_PATTERN: Final = re.compile(r"[\0-/:-`{-\x7f]+")
MIN_RANDOM_CHARS: Final = 4
"""Minimum number of random characters at the end of an id, from v1.0."""
MAX_RANDOM_CHARS: Final = 8
"""Maximum number of random characters at the end of an id."""
MAX_ID_CHARS: Final = 512
"""Maximum number of characters of an id."""
_LINK_ID_PATTERN: Final = re.compile(r"link_[0-9a-f]{24}")
# Unicode categories not allowed in ids: controls, invisible format characters, line breaks and surrogates.
_FORBIDDEN_ID_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_ID_PATTERN: Final = re.compile(
    rf"(?:{'|'.join(kind.value for kind in MemoryType)})_\S*_[0-9]{{10,}}"
    rf"_[0-9a-z]{{{MIN_RANDOM_CHARS},{MAX_RANDOM_CHARS}}}"
)

_ID_END_PATTERN: Final = re.compile(rf"[0-9]{{10,}}_?[0-9a-z]{{1,{MAX_RANDOM_CHARS}}}$")
_DIGITS_PATTERN: Final = re.compile(r"[0-9]+")
MIN_ID_END_RATIO: Final = 0.9
"""Minimum similarity of the ends of two ids that differ only by a typing error. Ids of the same time have about 0.7."""


def new_id(kind: MemoryType, title: str, created_at: datetime) -> str:
    """Return a new memory id: ``<type>_<slug>_<milliseconds>_<8 hexadecimal digits>``."""
    # Ids occur in every answer, so the slug is short: a few words are enough to recognize the memory.
    slug = make_slug(title, max_chars=_MAX_ID_SLUG_CHARS)
    return f"{kind.value}_{slug}_{to_milliseconds(created_at)}_{secrets.token_hex(4)}"


def new_link_id() -> str:
    """Return a new link id."""
    return f"link_{secrets.token_hex(12)}"


def make_slug(title: str, *, max_chars: int = _MAX_SLUG_CHARS) -> str:
    """Return the readable part of an id: the title in lower case, with ``_`` between words."""
    text = unicodedata.normalize("NFC", title[: 8 * _MAX_SLUG_CHARS]).lower()
    if not text.isascii():
        # Combining marks are not letters, but they are retained because many scripts spell letters with them.
        text = "".join(letter if unicodedata.category(letter)[0] in "LNM" else "_" for letter in text)
    return _SEPARATOR_PATTERN.sub("_", text).strip("_")[:max_chars].strip("_") or "untitled"


def is_outcome_reason(memory: Memory) -> bool:
    """Return True if the memory is the stored reason for a decision's outcome."""
    return isinstance(memory.metadata, ContextMetadata) and memory.metadata.source == OUTCOME_OF_WORD


def is_id(text: str) -> bool:
    """Return True if a text has the syntax of a memory's id."""
    return _ID_PATTERN.fullmatch(text) is not None


def is_misspelled_id(text: str, memory_id: str) -> bool:
    """
    Return True if *text* can be a misspelled or shortened form of *memory_id*.

    Return False for ids of other memories, such as a deleted one whose slug is similar.
    """
    given, known = _ID_END_PATTERN.search(text), _ID_END_PATTERN.search(memory_id)
    if given is not None and known is not None:
        # Time and random digits identify a memory, so they may only contain a typing error or be cut off.
        is_cut = known[0].startswith(given[0])
        return is_cut or difflib.SequenceMatcher(None, given[0], known[0]).ratio() >= MIN_ID_END_RATIO
    # Without them only the slug can be compared. "customer_1" and "customer_18" are different customers.
    slug = memory_id if known is None else memory_id[: known.start()]
    return set(_DIGITS_PATTERN.findall(text)) <= set(_DIGITS_PATTERN.findall(slug))


def find_name_problem(text: str) -> str | None:
    """Return the rule for ids and mentions that a text violates, or None if it violates none."""
    if not 0 < len(text) <= MAX_ID_CHARS:
        return f"must have 1 to {MAX_ID_CHARS} characters"
    if any(unicodedata.category(character) in _FORBIDDEN_ID_CATEGORIES for character in text):
        return "must have no control, format or line break characters"
    if text != text.strip():
        return "must not begin or end with blanks"
    if not unicodedata.is_normalized("NFC", text):
        return "is not in Unicode's form NFC"
    return None


def find_id_problem(text: str, kind: MemoryType) -> str | None:
    """Return the rule for ids of this memory type that a text violates, or None if it violates none."""
    problem = find_name_problem(text)
    if problem is not None:
        return problem
    if is_id(text):
        return None if text.startswith(f"{kind.value}_") else f"must begin with {kind.value}_"
    if kind is not MemoryType.DECISION:
        return f"must have the form {kind.value}_<slug>_<milliseconds>_<8 hexadecimal digits>"
    return "must not be a handle" if text.startswith(("fd:", "ref:")) else None


def is_link_id(text: str) -> bool:
    """Return True if a text has the syntax of a link's id."""
    return _LINK_ID_PATTERN.fullmatch(text) is not None


def to_milliseconds(time: datetime) -> int:
    """Convert a time with a time zone to whole milliseconds since 1970 (UTC)."""
    return (time - _EPOCH) // _MILLISECOND


def from_milliseconds(milliseconds: int) -> datetime:
    """Convert milliseconds since 1970 to a time (UTC)."""
    return _EPOCH + timedelta(milliseconds=milliseconds)


@attrs.frozen(kw_only=True)
class MaintenanceReport(JsonMixin):
    """
    Result of `admin.maintain`.

    Args:
        pruned: Number of pruned links.
        due: Whether enough time had passed since the previous maintenance.

    """

    pruned: int = 0
    due: bool = False


# Evidence can cite a handle. The handle's text at the time of saving is stored while any memory refers to it.
# The evidence item is then ``ref:plan@2#sha256:<64 hexadecimal digits>``: the handle, and the hash of its stored text.
# All other evidence items have no stored text.

# Match handles only, because a URL with a ``#sha256:`` fragment is evidence without a stored text.
_STORED_EVIDENCE_PATTERN: Final = re.compile(r"((?:ref|fd|message):[^\s#]{1,200})#sha256:([0-9a-f]{64})")
_DIGEST_PATTERN: Final = re.compile(r"[0-9a-f]{64}")
MAX_STORED_TEXT_BYTES: Final = 2**25
"""Maximum size of a stored text in bytes of UTF-8, so that it fits on one line of an export in any escaping."""


@attrs.frozen
class StoredEvidence:
    """A parsed evidence item: a handle, and the hash of its stored text."""

    source: str
    digest: str

    def __str__(self) -> str:
        return f"{self.source}#sha256:{self.digest}"


def parse_stored_evidence(item: str) -> StoredEvidence | None:
    """Parse an evidence item with a stored text. Return None for other items."""
    found = _STORED_EVIDENCE_PATTERN.fullmatch(item)
    return None if found is None else StoredEvidence(found[1], found[2])


def evidence_digests(evidence: Iterable[str]) -> tuple[str, ...]:
    """Return the deduplicated hashes of the stored texts in evidence."""
    return tuple(dict.fromkeys(kept.digest for kept in map(parse_stored_evidence, evidence) if kept is not None))


def text_digest(text: str) -> str:
    """Return the hash under which a text is stored."""
    return sha256(text.encode()).hexdigest()


def is_digest(text: str) -> bool:
    """Return True if a text has the syntax of a stored text's hash."""
    return _DIGEST_PATTERN.fullmatch(text) is not None


# Paths of records: percent-encoded labels and key, in names of notes and of filters

KEY_PREFIX: Final = "="
"""Prefix of the key in the path of a record."""
PATH_FILTER_PREFIX: Final = "\0\0path="
"""Prefix of the path of a record in its filter name."""
MAX_KEY_CHARS_IN_PATH: Final = 256
"""Maximum length of a percent-encoded key in a shortened path. It fits in a row key and in a key of an index."""
# Separates a shortened key from its hash. Percent-encoded text never contains this character.
_HASH_MARKER: Final = "+"
# A write computes a path several times.
_MAX_CACHED_PATHS: Final = 1024


def record_path(labels: Sequence[str], key: str | None = None) -> str:
    """
    Return labels, and optionally a key, as a percent-encoded ASCII path.

    The path of labels is a prefix of the path of every label sequence that starts with them.
    """
    place = _labels_path(tuple(labels))
    return place if key is None else f"{place}{KEY_PREFIX}{quote(key, safe='')}"


@cache_by_text(_MAX_CACHED_PATHS)
def _labels_path(labels: tuple[str, ...]) -> str:
    return "".join(f"{quote(label, safe='')}/" for label in labels)


@cache_by_text(_MAX_CACHED_PATHS)
def short_path(labels: tuple[str, ...], key: str) -> str:
    """Return the path of a record. The end of a long key is replaced with the hash of the key."""
    whole = record_path(labels, key)
    begin = len(_labels_path(labels)) + len(KEY_PREFIX)
    if len(whole) - begin > MAX_KEY_CHARS_IN_PATH:
        whole = f"{whole[: begin + MAX_KEY_CHARS_IN_PATH // 2]}{_HASH_MARKER}{sha256(key.encode()).hexdigest()}"
    return whole


def has_complete_key(path: str) -> bool:
    """Return True if a path contains the complete key instead of a hash."""
    return _HASH_MARKER not in path


def parse_labels(path: str) -> tuple[str, ...]:
    """Return the labels in the path of a record."""
    above = path.rpartition("/")[0]
    return tuple(map(unquote, above.split("/"))) if above else ()


def parse_path(path: str) -> tuple[tuple[str, ...], str] | None:
    """Return labels and key from the path of a record, or None if it contains a hash of the key."""
    key = path.rpartition("/")[2].removeprefix(KEY_PREFIX)
    return (parse_labels(path), unquote(key)) if has_complete_key(path) else None
