"""Connections between references, memory and refs: mentions, evidence, memory source."""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from mama_structs._internal.budget import Budget
from mama_structs._internal.jsonable import to_answer, to_plain_level
from mama_structs.errors import DescriptorError, EntityNotFound, MemoryNotFound
from mama_structs.memory.graph.results import shorten_to_line
from mama_structs.memory.save.save_plan import FindContent
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.filters import Filter
from mama_structs.memory.types.model import MAX_RANDOM_CHARS, MIN_RANDOM_CHARS, DecisionMetadata, Memory, MemoryType
from mama_structs.memory.upkeep.erasure import EraseTexts, ErasureSet
from mama_structs.provenance import UNKNOWN_ORIGIN, Origin, Provenance, get_marked_trust, least_trusted
from mama_structs.references.resolver import Resolver
from mama_structs.references.schemes import IdScheme, Source
from mama_structs.references.section_truncation import AnswerRoom, ReferenceBudget
from mama_structs.refs.messages.media import to_content_blocks
from mama_structs.refs.store.entries import EntryErasure
from mama_structs.refs.store.ref_store import RefStore
from mama_structs.refs.store.result_truncation import compute_handle_width, is_content_list
from mama_structs.refs.store.truncation import OwnShare, show_payload
from mama_structs.tools.wire_names import DEPRECATED_SUCCESSORS, MEMORY_TOOLS

HANDLE_PREFIXES: Final = ("fd:", "ref:")
MAX_MENTIONS: Final = 1000
# Models often surround a handle with these characters, so they are stripped.
SURROUNDING_CHARS: Final = " \t\r\n`'\"<>[](){}"
# Maximum number of decisions that a reference shows for one entity.
MAX_RECALLED_DECISIONS: Final = 3
PUNCTUATION_CHARS: Final = ".:!?*_~#@|"
# Characters that separate an id from the rest of its word.
ID_SEPARATOR_PATTERN: Final = re.compile(r"[/=:|→]")
# A word is text without blanks, quotes, brackets and commas.
WORD_PATTERN: Final = re.compile("[^\\s,;()\\[\\]{}<>\"'`\u201c\u201d\u2018\u2019\u300c\u300d]+")
# Matches the element of a shown handle, and a handle in truncated JSON. Quotation marks may be escaped.
SHOWN_HANDLE_PATTERN: Final = re.compile(
    r"<(?:fd_result|fd_content|fd_matches|ref_content)\s[^<>]{0,1000}?\b(?:fd|id)=\\{0,16}\"(?P<tag>[^\"\\<>]{1,300})"
    r"|\"fd\\{0,16}\":\s{0,2}\\{0,16}\"(?P<json>(?:fd:[1-9][0-9]{0,17}|ref:[^\"\\]{1,300}))"
)
KOREAN_PARTICLE_PATTERN: Final = re.compile(r"[가-힣]{1,8}$")


def find_mentions(text: str, schemes: Collection[IdScheme]) -> tuple[str, ...]:
    """Return the entity ids that a text mentions, deduplicated, in order of appearance."""
    # An id is a whole word, ignoring punctuation (``**2-1**``), a Korean particle (``2-1에서``) and ``id=``.
    schemes = [scheme for scheme in schemes if scheme.contains in text]
    if not schemes:
        return ()
    found: dict[str, None] = {}
    for word in WORD_PATTERN.findall(text):
        if not any(scheme.contains in word for scheme in schemes):
            continue
        bare = word.strip(PUNCTUATION_CHARS)
        parts = ID_SEPARATOR_PATTERN.split(bare)
        for candidate in dict.fromkeys(
            (word, bare, KOREAN_PARTICLE_PATTERN.sub("", bare), *(parts if len(parts) > 1 else ()))
        ):
            if any(scheme.match(candidate) not in {None, *scheme.unresolvable} for scheme in schemes):
                found[candidate] = None
        if len(found) >= MAX_MENTIONS:
            break
    return tuple(found)


MEMORY_ID_SCHEME: Final = IdScheme(
    name="memory",
    pattern=rf"({'|'.join(kind.value for kind in MemoryType)})_\S*_[0-9]{{10,}}"
    rf"_[0-9a-z]{{{MIN_RANDOM_CHARS},{MAX_RANDOM_CHARS}}}",
    type_of={kind.value: kind.value for kind in MemoryType},
    types=frozenset(kind.value for kind in MemoryType),
    contains="_",
    brief={
        "decision": ("topic", "content", "outcome", "trust"),
        "checkpoint": ("content", "trust"),
        "insight": ("content", "trust"),
        "context": ("topic", "content", "trust"),
    },
)
"""Scheme of memory ids, including those of v1.0."""


def load_chain_schemes() -> tuple[IdScheme, ...]:
    """Return the scheme of the chain's ids, for sessions without a source that knows them."""
    # Imported lazily: most sessions without a chain never need it.
    from mama_structs.structs.scheme import STRUCTS_SCHEME  # noqa: PLC0415

    return (STRUCTS_SCHEME,)


def make_text_eraser(erase: Callable[..., Awaitable[tuple[int, tuple[str, ...]]]]) -> EraseTexts:
    """Return a function that deletes refs and descriptors with texts of erased memories, and ids in recall logs."""

    def erase_texts(doomed: ErasureSet, *, dry_run: bool) -> Awaitable[tuple[int, tuple[str, ...]]]:
        def is_read(source: str) -> bool:
            tool = source.partition(" ")[0]
            # Delete all results of memory tools: they may quote erased text, and can be loaded again.
            return tool in MEMORY_TOOLS or tool in DEPRECATED_SUCCESSORS or doomed.contains_id(source)

        erasure = EntryErasure(doomed.digests, is_read, doomed.contains_id, doomed.find_missing_ids)
        return erase(erasure, dry_run=dry_run)

    return erase_texts


def make_memory_source(memories: MemoryStore) -> Source:
    """Return the source that resolves references to memory ids."""

    async def fetch(memory_id: str) -> Mapping[str, Any]:
        try:
            return _to_entity(await memories.get(memory_id))
        except MemoryNotFound as error:
            raise EntityNotFound(memory_id) from error

    return Source(MEMORY_ID_SCHEME, fetch=fetch, cache=False)


def _to_entity(memory: Memory) -> dict[str, Any]:
    fields: dict[str, Any] = {"topic": memory.topic, "content": shorten_to_line(memory.content)}
    if isinstance(memory.metadata, DecisionMetadata):
        fields["outcome"] = memory.metadata.outcome
        fields["outcome_reason"] = memory.metadata.outcome_reason and shorten_to_line(memory.metadata.outcome_reason)
    fields["trust"] = get_marked_trust(memory.trust)
    fields["created_at"] = memory.created_at.isoformat()
    return {name: value for name, value in fields.items() if value is not None}


def make_decision_finder(
    memories: MemoryStore,
) -> Callable[[Sequence[str]], Awaitable[Mapping[str, Sequence[Mapping[str, Any]]]]]:
    """Return a function that finds the newest decisions about each entity."""

    async def recall(ids: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        found = {
            one: await memories.list(
                limit=MAX_RECALLED_DECISIONS, type=[MemoryType.DECISION], where=Filter(mentions=one)
            )
            for one in ids
        }
        return {
            one: [
                {
                    "id": memory.id,
                    **({"trust": memory.trust} if get_marked_trust(memory.trust) else {}),
                    "decision": _summarize(memory),
                }
                for memory in decisions
            ]
            for one, decisions in found.items()
            if decisions
        }

    return recall


def _summarize(memory: Memory) -> str:
    outcome = memory.metadata.outcome if isinstance(memory.metadata, DecisionMetadata) else None
    return f"{f'[{outcome.value}] ' if outcome else ''}{shorten_to_line(memory.content)}"


def make_reference_budget(resolver: Resolver) -> Callable[[Mapping[str, Any]], OwnShare | None]:
    """
    Return a function that extracts an answer's references, which have their own budget.

    The function returns None if the answer has no references.
    """

    def brief_of(kind: str) -> tuple[str, ...]:
        briefs = (source.scheme.brief_fields(kind) for source in resolver.sources)
        return next((brief for brief in briefs if brief), ())

    return lambda answer: ReferenceBudget.from_answer(answer, brief_of)


def make_answer_room(refs: RefStore, budget: Budget | None, schema: Mapping[str, Any] | None) -> AnswerRoom:
    """Return the room of a tool's answer, in which the answer's references are chosen; see `ResultTruncation`."""
    width = 0 if budget is None else compute_handle_width(refs._entries.next_fd, budget)
    return AnswerRoom(
        budget,
        show=functools.partial(show_payload, width=width, schema=schema),
        to_rows=_to_rows,
    )


def _to_rows(result: Any) -> Sequence[Any] | None:
    """Return the rows of a list or set. Return None for other results, and for a list of content blocks."""
    if not isinstance(result, list | tuple | AbstractSet):
        return None
    rows: Sequence[Any] = to_content_blocks(list(to_plain_level(result) or ()))
    return None if is_content_list(to_answer(rows)) else rows


def make_content_finder(refs: RefStore) -> FindContent:
    """Return a function that looks up the version, text and provenance of a handle."""
    # Invalid handles raise. As plain text, a handle would be meaningless in other conversations.

    def find(evidence: str) -> tuple[str, str, Provenance] | None:
        bare = evidence.strip(SURROUNDING_CHARS)
        kind, colon, name = bare.partition(":")
        handle = f"{kind.lower()}{colon}{name}"
        if not handle.startswith(HANDLE_PREFIXES):
            return None
        entry = refs.get(handle)
        return entry.versioned_handle, entry.body.text, entry.provenance

    return find


def find_author(text: str, speaker: Origin, refs: RefStore) -> Origin:
    """Return the least trusted of a message's speaker and the authors of the texts that the message shows."""
    return least_trusted([speaker, *_find_shown_trusts(text, refs)])


def _find_shown_trusts(text: str, refs: RefStore) -> Iterator[Origin]:
    """Yield the trust of each handle whose text is part of a message."""
    for found in SHOWN_HANDLE_PATTERN.finditer(text):
        handle = found["tag"] or found["json"]
        try:
            yield refs.get(handle).trust
        except DescriptorError:
            # The handle was deleted or is from another conversation, so its trust is unknown.
            yield UNKNOWN_ORIGIN
