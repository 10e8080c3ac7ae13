"""What ties a session's parts together: what forks share, handles in arguments, streams that end on disk."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import attrs

from mama_structs._async import LoopBound
from mama_structs.descriptors.parser import Event
from mama_structs.descriptors.store import Ingested, RefStore, RefStream
from mama_structs.directories import Keeper, Place
from mama_structs.errors import EntityNotFound, MemoryNotFound
from mama_structs.memory.model import MAX_RANDOM, MIN_RANDOM, DecisionMetadata, Memory, MemoryType
from mama_structs.memory.results import shortened
from mama_structs.memory.store import MemoryStore
from mama_structs.references.resolver import Resolver
from mama_structs.references.schemes import IdScheme, Source
from mama_structs.storage.opening import Finding

_REF: Final = "$ref"
_HANDLES: Final = ("fd:", "ref:")
_MAX_DEPTH: Final = 100
_MAX_MENTIONS: Final = 1000
# What models put around a handle.
_AROUND: Final = " \t\r\n`'\"<>[](){}"
# Decisions about one entity that a reference carries.
_RECALLED: Final = 3
_PUNCTUATION: Final = ".:!?*_~#@|"
# Between an id and what is no part of it, where the whole word is none.
_BETWEEN: Final = re.compile(r"[/=:|→]")
# What stands between blanks, quotes, brackets and commas.
_WORD: Final = re.compile("[^\\s,;()\\[\\]{}<>\"'`\u201c\u201d\u2018\u2019\u300c\u300d]+")
_PARTICLE: Final = re.compile(r"[가-힣]{1,8}$")


def with_contents(
    arguments: Mapping[str, Any], text_of: Callable[[str], str], *, handles: Collection[str] = ()
) -> Mapping[str, Any]:
    """
    Return a tool's arguments with the text in place of every ``{"$ref": "ref:x"}``.

    Any other mapping with such a key, a JSON Schema's for one, stays as it is; so does one 100 levels deep.

    Args:
        arguments: As the model gave them; they are not changed.
        text_of: Gives the text of a handle.
        handles: Names of arguments that are handles themselves, or lists of them, and get the handle in place of the
            text.

    Raises:
        HandleNotFound: Nothing has one of the handles.
        InvalidHandle: One is no handle.

    """
    if not isinstance(arguments, Mapping):
        return arguments
    return {
        name: _with_handles(value) if name in handles else _with_content(value, text_of, _MAX_DEPTH)
        for name, value in arguments.items()
    }


def _handle_in(value: Any) -> str | None:
    """Return the handle of ``{"$ref": "ref:x"}``, None for everything else."""
    handle = value.get(_REF) if isinstance(value, Mapping) and len(value) == 1 else None
    return handle if isinstance(handle, str) and handle.startswith(_HANDLES) else None


def _with_handles(value: Any) -> Any:
    if isinstance(value, list):
        return [_handle_in(item) or item for item in value]
    return _handle_in(value) or value


def _with_content(value: Any, text_of: Callable[[str], str], depth: int) -> Any:
    if depth == 0:
        return value
    if isinstance(value, Mapping):
        if handle := _handle_in(value):
            return text_of(handle)
        return {key: _with_content(item, text_of, depth - 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_content(item, text_of, depth - 1) for item in value]
    return value


def mentions_in(text: str, schemes: Collection[IdScheme]) -> tuple[str, ...]:
    """
    Return the ids of entities that a text names, each once, in the order of the text.

    A word is an id where all of it is one, but for punctuation around it (``**2-1**``), a Korean particle behind it
    (``2-1에서``), or what stands before or behind a slash, colon or equals sign (``id=2-1``).

    Args:
        text: Prose.
        schemes: How ids look.

    """
    if not schemes:
        return ()
    found: dict[str, None] = {}
    for word in _WORD.findall(text):
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
)
"""How the ids of memories look, those of v1.0 included."""


def memory_source(memories: Callable[[], MemoryStore]) -> Source:
    """
    Return a source that answers for the ids of memories.

    Args:
        memories: Gives the memories, once they are open.

    """

    async def fetch(memory_id: str) -> Mapping[str, Any]:
        try:
            return _as_entity(await memories().get(memory_id))
        except MemoryNotFound as error:
            raise EntityNotFound(memory_id) from error

    return Source(MEMORY_IDS, fetch=fetch, is_cached=False)


def _as_entity(memory: Memory) -> dict[str, Any]:
    fields: dict[str, Any] = {"topic": memory.topic, "content": shortened(memory.content)}
    if isinstance(memory.metadata, DecisionMetadata):
        fields["outcome"] = memory.metadata.outcome
        fields["outcome_reason"] = memory.metadata.outcome_reason and shortened(memory.metadata.outcome_reason)
    fields["created_at"] = memory.created_at.isoformat()
    return {name: value for name, value in fields.items() if value is not None}


def recall_from(
    memories: Callable[[], MemoryStore],
) -> Callable[[Sequence[str]], Awaitable[Mapping[str, Sequence[Mapping[str, Any]]]]]:
    """
    Return what gives the newest decisions about entities, an id and one line each.

    Args:
        memories: Gives the memories, once they are open.

    """

    async def recall(ids: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        found = {one: await memories().about(one, limit=_RECALLED, types=[MemoryType.DECISION]) for one in ids}
        return {
            one: [{"id": memory.id, "decision": _one_line(memory)} for memory in decisions]
            for one, decisions in found.items()
            if decisions
        }

    return recall


def _one_line(memory: Memory) -> str:
    outcome = memory.metadata.outcome if isinstance(memory.metadata, DecisionMetadata) else None
    return f"{f'[{outcome.value}] ' if outcome else ''}{shortened(memory.content)}"


def contents_of(refs: RefStore) -> Callable[[str], tuple[str, str] | None]:
    """
    Return what gives the versioned handle and the text for a piece of evidence, None for what is no handle.

    What begins as a handle does is one, or a mistake: as plain words it would be gone with its conversation.
    Blanks, quotes and brackets around it, and capitals, are forgiven.

    Args:
        refs: Where handles stand for texts.

    """

    def find(evidence: str) -> tuple[str, str] | None:
        bare = evidence.strip(_AROUND)
        kind, colon, name = bare.partition(":")
        handle = f"{kind.lower()}{colon}{name}"
        if not handle.startswith(_HANDLES):
            return None
        entry = refs.get(handle)
        return entry.versioned, entry.text

    return find


class SessionStream:
    """
    Takes a model's answer as it comes: ``feed`` every chunk, then ``await close()``.

    Args:
        stream: Scans and stores.
        flush: Waits for the disk.

    """

    def __init__(self, stream: RefStream, flush: Callable[[], Awaitable[None]]) -> None:
        self._stream = stream
        self._flush = flush

    def __repr__(self) -> str:
        return f"<SessionStream of {self._stream!r}>"

    def feed(self, chunk: object) -> list[Event]:
        """
        Take the next part and return what is known by now; see `RefStream.feed`.

        Raises:
            InvalidArgument: It is no chunk of an answer.
            SessionClosed: The stream was closed.

        """
        return self._stream.feed(chunk)

    async def close(self) -> Ingested:
        """
        Store the refs, which are on disk when this returns; again, the same.

        Raises:
            StoreError: The disk does not take it; the refs can be used, and the next `Session.flush` tries again.

        """
        ingested = self._stream.close()
        await self._flush()
        return ingested


@attrs.frozen
class CheckReport:
    """
    What `Session.check` found; ``str()`` of it is a line for each.

    Args:
        findings: One for each thing found; warnings among them are no damage.

    """

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged or in danger."""
        return not any(finding.severity == "error" for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(f"{one.severity}: {one.message}" for one in self.findings) or "nothing found"


class Home:
    """
    What a session shares with its forks: where its conversations are kept, and what resolves its references.

    Args:
        keeper: Keeps the conversations.
        path: Where, as the host wrote it.
        resolver: What resolves references.
        loop: The loop of the session and its forks.

    """

    def __init__(self, keeper: Keeper, *, path: Path | None, resolver: Resolver, loop: LoopBound) -> None:
        self.keeper: Keeper = keeper
        self._memories: MemoryStore | None = None
        self._close_memories: Callable[[], Awaitable[None]] | None = None
        self.path: Path | None = path
        self.resolver: Resolver = resolver
        self.loop: LoopBound = loop
        self.users: int = 0

    @property
    def memories(self) -> MemoryStore:
        """The memories of the session's namespace."""
        assert self._memories is not None, "they are open"  # noqa: S101 - a session is made after they were
        return self._memories

    def keep_memories(self, memories: MemoryStore, close: Callable[[], Awaitable[None]]) -> None:
        """Take over memories, which `leave` closes."""
        self._memories, self._close_memories = memories, close

    async def leave(self, place: Place | None) -> None:
        """
        End one session's use, and close what nobody uses any more.

        Args:
            place: The session's conversation, None for a session that never came to have one.

        Raises:
            StoreError: The disk did not take what was not yet written.

        """
        self.users -= 1
        # Each step runs, whatever happens to the others; the last one pushed runs first.
        async with AsyncExitStack() as steps:
            if self.users <= 0:
                steps.push_async_callback(self.keeper.close)
                steps.push_async_callback(self.resolver.close)
                if self._close_memories is not None:
                    steps.push_async_callback(self._close_memories)
            if place is not None:
                steps.push_async_callback(self.keeper.leave, place)
