"""Export of memories and links as networkx graphs and Mermaid diagrams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from mama_structs._internal.reprs import COLOURS, require_extra, truncate_line
from mama_structs.memory.types.model import Link, LinkType, Memory, Outcome

_MAX_LABEL_CHARS: Final = 60
_MAX_NODES: Final = 100
# All characters except letters, digits and these are escaped, because they may be Mermaid syntax.
_UNESCAPED_CHARS: Final = frozenset(" ,.-'!?:/()…")
_SOLID_LINK_TYPES: Final = frozenset({LinkType.EVOLUTION, LinkType.IMPLEMENTATION})


def outcome_value(memory: Memory) -> str | None:
    """Return a decision's outcome, or None if it has no outcome yet or the memory is no decision."""
    outcome = getattr(memory.metadata, "outcome", None)
    return None if outcome is None else str(outcome.value)


def links_between(links: Iterable[Link], memories: Iterable[Memory]) -> list[Link]:
    """Return the deduplicated links with both ends among *memories*."""
    ids = {memory.id for memory in memories}
    return list({link.id: link for link in links if link.from_id in ids and link.to_id in ids}.values())


def to_networkx(memories: Sequence[Memory], links: Iterable[Link]) -> Any:
    """Return a `networkx.MultiDiGraph` of memories and the links between them."""
    graph = require_extra("networkx").MultiDiGraph()
    for memory in memories:
        facts = {
            "type": memory.type.value,
            "topic": memory.topic,
            "content": memory.content,
            "outcome": outcome_value(memory),
            "created_at": memory.created_at,
        }
        graph.add_node(memory.id, **{name: value for name, value in facts.items() if value is not None})
    for link in links_between(links, memories):
        graph.add_edge(
            link.from_id,
            link.to_id,
            key=link.id,
            link_type=link.link_type.value,
            relationship=link.metadata.original_relationship,
            confidence=link.confidence,
        )
    return graph


def to_mermaid(memories: Sequence[Memory], links: Iterable[Link]) -> str:
    """Return a Mermaid flowchart of the first hundred memories and the links between them."""
    shown = memories[:_MAX_NODES]
    at = {memory.id: f"m{number}" for number, memory in enumerate(shown)}
    lines = ["flowchart TD"]
    for memory in shown:
        outcome = outcome_value(memory)
        mark = "" if outcome is None else f":::{outcome}"
        lines.append(f'  {at[memory.id]}["{memory.created_at:%Y-%m-%d} {_escape_label(memory.content)}"]{mark}')
    for link in links_between(links, shown):
        arrow = "-->" if link.link_type in _SOLID_LINK_TYPES else "-.->"
        word = _escape_label(link.metadata.original_relationship)
        lines.append(f'  {at[link.from_id]} {arrow}|"{word}"| {at[link.to_id]}')
    lines += [f"  classDef {name} stroke:{COLOURS[name]},stroke-width:3px" for name in Outcome]
    if len(memories) > _MAX_NODES:
        lines.append(f"  %% {len(memories) - _MAX_NODES:,} more")
    return "\n".join(lines)


def _escape_label(text: str) -> str:
    return (
        "".join(
            one if one.isalnum() or one in _UNESCAPED_CHARS else f"#{ord(one)};"
            for one in truncate_line(text, _MAX_LABEL_CHARS)
        )
        or "#32;"
    )
