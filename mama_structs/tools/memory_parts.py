"""What a memory has several of, each shown short with the rest behind a handle: outcomes, links, evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

from mama_structs.memory.model import DecisionMetadata, Link
from mama_structs.memory.results import Evidence
from mama_structs.tools.memory_answers import LINE, Cutter, LinkLine, line, link_line, written

_HISTORY: Final = 10
_LINKS: Final = 20
_EVIDENCE: Final = 10
# Characters of a text beside others of its kind, such as one of several pieces of evidence.
_BESIDE: Final = 400


class OutcomeLine(TypedDict):
    """One outcome of a decision."""

    outcome: str
    reason: str | None
    at: str


class EvidenceLine(TypedDict):
    """What a decision rests on."""

    source: str
    content: str | None


def outcome_lines(decision: DecisionMetadata | None, cutter: Cutter) -> list[OutcomeLine]:
    """Show the last outcomes of a decision, with the earlier ones behind a handle."""
    history = decision.history if decision else ()
    earlier = [f"{written(one.at)} {one.outcome.value}: {one.reason or 'no reason'}" for one in history[:-_HISTORY]]
    cutter.keep_rest("outcomes", earlier, shown=_HISTORY)
    shown: list[OutcomeLine] = []
    for place, change in enumerate(history[-_HISTORY:], start=len(earlier)):
        reason = change.reason
        if reason is not None:
            # Of the last one all stands above.
            is_last = place == len(history) - 1
            reason = line(reason) if is_last else cutter.cut(f"outcomes[{place}].reason", reason, most=_BESIDE)
        shown.append({"outcome": change.outcome.value, "reason": reason, "at": written(change.at)})
    return shown


def link_lines(links: Sequence[Link], cutter: Cutter) -> list[LinkLine]:
    """Show the first of a memory's links, with the others behind a handle."""
    shown = [_link(place, link, cutter) for place, link in enumerate(links[:_LINKS])]
    cutter.keep_rest("links", [_link_text(link) for link in links[_LINKS:]], shown=_LINKS)
    return shown


def _link(place: int, link: Link, cutter: Cutter) -> LinkLine:
    shown = link_line(link)
    if link.metadata.reason is not None:
        shown["reason"] = cutter.cut(f"links[{place}].reason", link.metadata.reason, most=LINE)
    return shown


def _link_text(link: Link) -> str:
    reason = f": {link.metadata.reason}" if link.metadata.reason else ""
    return f"{link.from_id} {link.metadata.original_relationship} {link.to_id}{reason}"


def evidence_lines(evidence: Sequence[Evidence], cutter: Cutter) -> list[EvidenceLine]:
    """Return what a memory rests on, with the texts that were kept of it."""
    shown: list[EvidenceLine] = [
        {
            "source": cutter.cut(f"evidence[{place}].source", one.source, most=_BESIDE),
            "content": None if one.text is None else cutter.cut(f"evidence[{place}].content", one.text),
        }
        for place, one in enumerate(evidence[:_EVIDENCE])
    ]
    rest = [
        f"evidence[{place}] {one.source}" if one.text is None else f"evidence[{place}] {one.source}:\n{one.text}"
        for place, one in enumerate(evidence[_EVIDENCE:], start=_EVIDENCE)
    ]
    cutter.keep_rest("evidence", rest, shown=len(shown))
    return shown
