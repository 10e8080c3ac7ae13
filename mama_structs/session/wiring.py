"""Connections between references, memory and refs: mentions, evidence, memory source."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from mama_structs.errors import DescriptorError, EntityNotFound, MemoryNotFound
from mama_structs.memory.graph.results import shortened
from mama_structs.memory.save.save_plan import FindContent
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.model import MAX_RANDOM, MIN_RANDOM, DecisionMetadata, Memory, MemoryType
from mama_structs.memory.upkeep.erasure import Doomed, EraseTexts
from mama_structs.provenance import UNKNOWN_ORIGIN, Origin, Provenance, least_trusted, marked_trust
from mama_structs.references.resolver import Resolver
from mama_structs.references.schemes import IdScheme, Source
from mama_structs.references.section_truncation import ReferenceShare
from mama_structs.refs.store.entries import Erasure
from mama_structs.refs.store.ref_store import RefStore
from mama_structs.refs.store.truncation import OwnShare
from mama_structs.tools.wire_names import MEMORY_TOOLS, SUCCESSORS

_HANDLES: Final = ("fd:", "ref:")
_MAX_MENTIONS: Final = 1000
# Characters that models put around a handle.
_AROUND: Final = " \t\r\n`'\"<>[](){}"
# Maximum number of decisions about one entity in a reference.
_RECALLED: Final = 3
_PUNCTUATION: Final = ".:!?*_~#@|"
# Separators between an id and the rest of a word.
_BETWEEN: Final = re.compile(r"[/=:|→]")
# A word: text between blanks, quotes, brackets and commas.
_WORD: Final = re.compile("[^\\s,;()\\[\\]{}<>\"'`\u201c\u201d\u2018\u2019\u300c\u300d]+")
# The element of a handle whose text is shown, and the note on a handle in shortened JSON. Either may be part of a text
# in JSON, where backslashes precede the quotation marks.
_SHOWN_HANDLE: Final = re.compile(
    r"<(?:fd_result|fd_content|fd_matches|ref_content)\s[^<>]{0,1000}?\b(?:fd|id)=\\{0,16}\"(?P<tag>[^\"\\<>]{1,300})"
    r"|\"fd\\{0,16}\":\s{0,2}\\{0,16}\"(?P<json>(?:fd:[1-9][0-9]{0,17}|ref:[^\"\\]{1,300}))"
)
_PARTICLE: Final = re.compile(r"[가-힣]{1,8}$")


def mentions_in(text: str, schemes: Collection[IdScheme]) -> tuple[str, ...]:
    """Return the ids of entities that a text mentions, deduplicated, in the order of the text."""
    # A whole word is matched, with these exceptions: punctuation around it (``**2-1**``), a Korean particle after it
    # (``2-1에서``), and parts at a slash, colon or equals sign (``id=2-1``).
    schemes = [scheme for scheme in schemes if scheme.contains in text]
    if not schemes:
        return ()
    found: dict[str, None] = {}
    for word in _WORD.findall(text):
        if not any(scheme.contains in word for scheme in schemes):
            continue
        bare = word.strip(_PUNCTUATION)
        parts = _BETWEEN.split(bare)
        for candidate in dict.fromkeys((word, bare, _PARTICLE.sub("", bare), *(parts if len(parts) > 1 else ()))):
            if any(scheme.match(candidate) not in {None, *scheme.unresolvable} for scheme in schemes):
                found[candidate] = None
        if len(found) >= _MAX_MENTIONS:
            break
    return tuple(found)


MEMORY_IDS: Final = IdScheme(
    name="memory",
    pattern=rf"({'|'.join(kind.value for kind in MemoryType)})_\S*_[0-9]{{10,}}_[0-9a-z]{{{MIN_RANDOM},{MAX_RANDOM}}}",
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


def chain_ids() -> tuple[IdScheme, ...]:
    """Return the scheme of the chain's ids, for sessions without a source for them."""
    # Most sessions without a chain do not need it.
    from mama_structs.structs.scheme import STRUCTS_SCHEME  # noqa: PLC0415

    return (STRUCTS_SCHEME,)


def erasing(erase: Callable[..., Awaitable[tuple[int, tuple[str, ...]]]]) -> EraseTexts:
    """Return a function that deletes refs and descriptors with texts of erased memories."""

    def erase_texts(doomed: Doomed, *, dry_run: bool) -> Awaitable[tuple[int, tuple[str, ...]]]:
        def is_read(source: str) -> bool:
            tool = source.partition(" ")[0]
            # Delete all results of memory tools: they can be loaded again, and may contain erased text next to other
            # memories.
            return tool in MEMORY_TOOLS or tool in SUCCESSORS or doomed.names(source)

        return erase(Erasure(doomed.digests, is_read, doomed.names), dry_run=dry_run)

    return erase_texts


def memory_source(memories: MemoryStore) -> Source:
    """Return a source that resolves memory ids."""

    async def fetch(memory_id: str) -> Mapping[str, Any]:
        try:
            return _as_entity(await memories.get(memory_id))
        except MemoryNotFound as error:
            raise EntityNotFound(memory_id) from error

    return Source(MEMORY_IDS, fetch=fetch, is_cached=False)


def _as_entity(memory: Memory) -> dict[str, Any]:
    fields: dict[str, Any] = {"topic": memory.topic, "content": shortened(memory.content)}
    if isinstance(memory.metadata, DecisionMetadata):
        fields["outcome"] = memory.metadata.outcome
        fields["outcome_reason"] = memory.metadata.outcome_reason and shortened(memory.metadata.outcome_reason)
    fields["trust"] = marked_trust(memory.trust)
    fields["created_at"] = memory.created_at.isoformat()
    return {name: value for name, value in fields.items() if value is not None}


def recall_from(
    memories: MemoryStore,
) -> Callable[[Sequence[str]], Awaitable[Mapping[str, Sequence[Mapping[str, Any]]]]]:
    """Return a function that finds the newest decisions about entities."""

    async def recall(ids: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        found = {one: await memories.about(one, limit=_RECALLED, types=[MemoryType.DECISION]) for one in ids}
        return {
            one: [
                {
                    "id": memory.id,
                    **({"trust": memory.trust} if marked_trust(memory.trust) else {}),
                    "decision": _one_line(memory),
                }
                for memory in decisions
            ]
            for one, decisions in found.items()
            if decisions
        }

    return recall


def _one_line(memory: Memory) -> str:
    outcome = memory.metadata.outcome if isinstance(memory.metadata, DecisionMetadata) else None
    return f"{f'[{outcome.value}] ' if outcome else ''}{shortened(memory.content)}"


def reference_share(resolver: Resolver) -> Callable[[Mapping[str, Any]], OwnShare | None]:
    """
    Return a function that finds an answer's references, which are truncated separately.

    The function returns None if the answer has no references.
    """

    def brief_of(kind: str) -> tuple[str, ...]:
        briefs = (source.scheme.brief_of(kind) for source in resolver.sources)
        return next((brief for brief in briefs if brief), ())

    return lambda answer: ReferenceShare.of(answer, brief_of)


def contents_of(refs: RefStore) -> FindContent:
    """Return a function that resolves a handle in evidence to handle, text and provenance."""
    # A text that begins like a handle must be a valid one: as plain text it is meaningless in another conversation.

    def find(evidence: str) -> tuple[str, str, Provenance] | None:
        bare = evidence.strip(_AROUND)
        kind, colon, name = bare.partition(":")
        handle = f"{kind.lower()}{colon}{name}"
        if not handle.startswith(_HANDLES):
            return None
        entry = refs.get(handle)
        return entry.versioned, entry.body.text, entry.provenance

    return find


def author_of(text: str, speaker: Origin, refs: RefStore) -> Origin:
    """Return the least trusted author of a message, which may show the text of handles."""
    return least_trusted([speaker, *_trusts_shown(text, refs)])


def _trusts_shown(text: str, refs: RefStore) -> Iterator[Origin]:
    """Yield the trust of each handle whose text a message shows."""
    for found in _SHOWN_HANDLE.finditer(text):
        handle = found["tag"] or found["json"]
        try:
            yield refs.get(handle).trust
        except DescriptorError:
            # The handle was deleted, or belongs to another conversation.
            yield UNKNOWN_ORIGIN
