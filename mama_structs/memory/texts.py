"""What of a memory is indexed: its text for the embedder, and its text for the words (DESIGN section 6, "Search")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mama_structs.memory.model import CheckpointMetadata, DecisionMetadata, InsightMetadata, Memory

MAX_EMBEDDED: Final = 65_536
"""Characters that are embedded at the most; an embedder takes them in pieces, of which there is a limit of its own."""

MAX_INDEXED: Final = 262_144
"""Characters whose words are indexed at the most."""


def embedded_text(memory: Memory) -> str:
    """
    Return the text whose meaning stands for a memory: topic, content, and what else its author said about it.

    An outcome is not part of it: `MemoryStore.set_outcome` makes a memory of that, so that the decision's vector stays
    true, and a search of the past does not know what came later.
    """
    body = "\n".join(_parts(memory))
    topic = _spoken(memory.topic)
    return (f"{topic}: {body}" if topic else body)[:MAX_EMBEDDED]


def indexed_text(memory: Memory) -> str:
    """Return the text whose words a memory is found by: the same and a checkpoint's files, each part in lines."""
    lines = [*_parts(memory)]
    if isinstance(memory.metadata, CheckpointMetadata):
        lines.extend(memory.metadata.open_files)
    topic = _spoken(memory.topic)
    # In both forms, so that the whole identifier is a word, and so are its parts.
    heads = [topic] if topic == memory.topic else [memory.topic or "", topic]
    return "\n".join([*(head for head in heads if head), *lines])[:MAX_INDEXED]


def _spoken(topic: str | None) -> str:
    """Return a topic as words: agents write ``response_cache`` where they mean a response cache."""
    return " ".join((topic or "").replace("_", " ").split())


def _parts(memory: Memory) -> Iterator[str]:
    metadata = memory.metadata
    parts: tuple[str | None, ...] = ()
    if isinstance(metadata, DecisionMetadata):
        parts = (metadata.reasoning,)
    elif isinstance(metadata, CheckpointMetadata):
        parts = metadata.next_steps
    elif isinstance(metadata, InsightMetadata):
        parts = (metadata.category, " ".join(metadata.tags))
    yield memory.content
    for part in parts:
        if part is not None and part.strip():
            yield part
