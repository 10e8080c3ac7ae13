"""Hypothesis strategies for memories, in the format of `MemoryStore.save_many`."""

from __future__ import annotations

from typing import Any, Final

import attrs
from hypothesis import strategies as st

from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.model import Memory

_VOCABULARY: Final = (
    "shield", "raid", "guild", "login", "token", "session", "queue", "use", "keep", "not", "2-1", "42 %", "JWT",
    "마이그레이션", "로그인은", "\U0001f600", "'quoted'", "<b>", "</memory>", "a\nline",
)  # fmt: skip
# Texts from a small vocabulary, so that several memories have the same subject, and arbitrary texts.
_TEXTS: Final = st.lists(st.sampled_from(_VOCABULARY), min_size=1, max_size=8).map(" ".join) | st.text(
    st.characters(codec="utf-8"), min_size=1, max_size=40
).filter(str.strip)
_TOPICS: Final = st.sampled_from(["auth", "raids", "storage", "마이그레이션"])


def decisions(*, topics: st.SearchStrategy[str] = _TOPICS) -> st.SearchStrategy[dict[str, Any]]:
    """
    Return a strategy for decisions in the format of `MemoryStore.save_many`.

    Without ``type`` they are the keyword arguments of `MemoryStore.save_decision`.

    Args:
        topics: A strategy for their topics; by default it draws from a few, so that topics repeat.

    """
    said = {"type": st.just("decision"), "topic": topics, "content": _TEXTS, "reasoning": _TEXTS | st.just("")}
    return st.fixed_dictionaries(said, optional={"confidence": st.floats(0, 1)})


def memories(*, topics: st.SearchStrategy[str] = _TOPICS) -> st.SearchStrategy[dict[str, Any]]:
    """
    Return a strategy for memories of any type, in the format of `MemoryStore.save_many`.

    Args:
        topics: As for `decisions`.

    """
    several = st.lists(_TEXTS, max_size=3)

    def record(kind: str, optional: dict[str, Any], **fields: Any) -> st.SearchStrategy[dict[str, Any]]:
        return st.fixed_dictionaries({"type": st.just(kind), **fields}, optional=optional)

    return st.one_of(
        decisions(topics=topics),
        record("checkpoint", {"open_files": several, "next_steps": several}, content=_TEXTS),
        record("insight", {"category": _TEXTS, "tags": several}, content=_TEXTS),
        record("context", {"topic": topics, "source": _TEXTS}, content=_TEXTS),
    )


@attrs.frozen
class PlantedChain:
    """
    Decisions of one topic. Most of them supersede an earlier one.

    Args:
        decisions: The keyword arguments of `MemoryStore.save_decision`, oldest first.
        supersedes: For each decision the position of the decision that it supersedes, or None.

    """

    decisions: tuple[dict[str, Any], ...]
    supersedes: tuple[int | None, ...]

    async def save(self, memories: MemoryStore) -> list[Memory]:
        """Save the decisions, and return them oldest first."""
        saved: list[Memory] = []
        for given, earlier in zip(self.decisions, self.supersedes, strict=True):
            before = None if earlier is None else saved[earlier]
            saved.append(await memories.save_decision(**given, supersedes=before))
        return saved


def chains(*, max_size: int = 6) -> st.SearchStrategy[PlantedChain]:
    """
    Return a strategy for chains of decisions, including forks.

    Args:
        max_size: Maximum number of decisions.

    """
    return _draw_chain(max_size)


@st.composite
def _draw_chain(draw: st.DrawFn, max_size: int) -> PlantedChain:
    told = draw(st.lists(decisions(topics=st.just(draw(_TOPICS))), min_size=1, max_size=max_size))
    earlier = [None, *(draw(st.none() | st.integers(0, number)) for number in range(len(told) - 1))]
    given = [{name: value for name, value in one.items() if name != "type"} for one in told]
    return PlantedChain(tuple(given), tuple(earlier))
