"""Search by keywords only."""

import pytest

from mama_structs import HashEmbedder, Session, as_embedder
from mama_structs.memory.store.lexical_store import LexicalMemoryStore

ANSWER = "Acquirer Nordbank: timeouts are retried 3 times with exponential backoff"
OTHERS = ("shield first, raids doubled", "alerts come later")


@pytest.mark.parametrize(
    "embedder", [HashEmbedder(), as_embedder(lambda texts: [[1.0, 0.0]] * len(texts), name="mine", dimensions=2)]
)
async def test_search_ranks_by_words_with_any_embedder(embedder):
    """The stored vectors do not change the order or the relevance."""
    async with Session.open(None, embedder=embedder) as session:
        for text in (ANSWER, *OTHERS):
            await session.memories.save_context(text)
        words = LexicalMemoryStore(session.memories._shared)
        hits = await words.search("How often are timeouts of the acquirer Nordbank retried?")

        assert ANSWER == hits[0].memory.content
        assert 0.55 == pytest.approx(hits[0].relevance, abs=0.05)
        assert all(hit.relevance < 0.1 for hit in hits[1:])
