"""Status of the embedder of a namespace, and the search if the embedder is unavailable."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import attrs

import mama_structs  # for annotations only; its submodules load lazily
from mama_structs.errors import EmbeddingFailed
from mama_structs.memory.embedding.factory import installed_semantic_embedders
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.store.factory import UnavailableEmbedder
from mama_structs.memory.store.lexical_store import LexicalMemoryStore

T = TypeVar("T")


@attrs.frozen
class EmbedderStatus:
    """The name of an embedder, and a notice with an instruction, or None if it is the best one."""

    name: str
    notice: str | None = None
    instruction: str | None = None


def get_embedder_status(memories: mama_structs.MemoryStore) -> EmbedderStatus:
    """Return the name of the embedder, and whether the search is limited without a better one."""
    embedder = memories.embedder
    best = next(iter(installed_semantic_embedders()), None)
    if isinstance(embedder, UnavailableEmbedder):
        return EmbedderStatus(
            embedder.name,
            "The embedder of these memories is not installed, so the search compares words only.",
            "Install it, or change to another one with the command: mama-structs reembed",
        )
    if best is not None and best.name != embedder.name:
        return EmbedderStatus(
            embedder.name,
            f"The installed embedder {best.name} finds more than the one of these memories.",
            "Change to it with the command: mama-structs reembed",
        )
    if isinstance(embedder, HashEmbedder):
        return EmbedderStatus(
            embedder.name,
            "The search compares words and parts of words, not their meaning.",
            "For the meaning, use the commands: pip install 'mama-structs[semantic]', then mama-structs reembed",
        )
    return EmbedderStatus(embedder.name)


async def search_with_fallback(
    memories: mama_structs.MemoryStore, search: Callable[[mama_structs.MemoryStore], Awaitable[T]]
) -> tuple[T, str | None]:
    """Return the result of a search, and the reason if it compared words only because the embedder failed."""
    try:
        return await search(memories), None
    except EmbeddingFailed as error:
        return await search(LexicalMemoryStore(memories._shared)), str(error.args[0] if error.args else error)
