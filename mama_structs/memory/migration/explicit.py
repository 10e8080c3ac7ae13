"""The links that v1.0 says: its columns ``supersedes`` and ``superseded_by``, its edges, and ``refined_from``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import attrs

from mama_structs.memory.migration.marks import link_id
from mama_structs.memory.migration.report import OddRow
from mama_structs.memory.migration.rows import Planned
from mama_structs.memory.migration.source import DECISIONS, EDGES, OldRow
from mama_structs.memory.migration.times import read_time
from mama_structs.memory.migration.values import read_text
from mama_structs.memory.model import Link, LinkMetadata, LinkType, Memory
from mama_structs.memory.relationships import LONGEST, normalised
from mama_structs.memory.saving import OUTCOME_OF, SUPERSEDES

REFINED: Final = "refines"
_LONGEST_REASON: Final = 10_000


@attrs.define(eq=False, kw_only=True)
class Explicit:
    """
    Collects the links of the old file, each once, whatever said it.

    Args:
        namespace: Where they will be.
        ids: The memories' ids by those of the old rows.
        memories: The memories by their ids.
        edges: What the report calls the rows of edges that are links now, with the link's id.

    """

    namespace: str
    ids: Mapping[str, str]
    memories: Mapping[str, Memory]
    links: dict[tuple[str, str, str], Link] = attrs.field(factory=dict)
    odd: list[OddRow] = attrs.field(factory=list)
    edges: list[tuple[str, str]] = attrs.field(factory=list)

    def of_decision(self, row: OldRow, memory: Memory, refined: object) -> None:
        """Take up what a decision's row says."""
        before = self._told(row, memory, "supersedes")
        after = self._told(row, memory, "superseded_by")
        if before is not None:
            self._add(memory.id, before, SUPERSEDES, LinkType.EVOLUTION)
        if after is not None:
            self._add(after, memory.id, SUPERSEDES, LinkType.EVOLUTION)
        for old in refined if isinstance(refined, Sequence) and not isinstance(refined, str) else ():
            end = self.ids.get(old) if isinstance(old, str) else None
            if end is None:
                self._tell(memory, "dangling", f"refined_from names {old!r:.200}, which does not exist")
            elif end != memory.id:
                self._add(memory.id, end, REFINED, LinkType.ASSOCIATION)

    def of_edge(self, row: OldRow) -> None:
        """Take up an edge."""
        ends = [read_text(row.get(column)).text or "" for column in ("from_id", "to_id")]
        word = (read_text(row.get("relationship")).text or "").strip()
        key = f"{ends[0]} -> {ends[1]} ({word})"[:600]
        missing = [old for old in ends if old not in self.ids]
        if missing:
            names = " and ".join(f"{old!r:.200}" for old in dict.fromkeys(missing))
            self._left_out(key, "dangling", f"left out: it names {names}, which does not exist")
            return
        start, end = (self.ids[old] for old in ends)
        if start == end:
            self._left_out(key, "self_loop", "left out: a memory cannot be linked to itself")
            return
        if not word or len(word) > LONGEST:
            self._left_out(key, "no_relationship", f"left out: its relationship must have 1 to {LONGEST} characters")
            return
        self.edges.append((key, link_id(self.namespace, start, end, normalised(word))))
        reason = read_text(row.get("reason")).text
        weight = row.get("weight")
        share = min(max(float(weight), 0.0), 1.0) if isinstance(weight, int | float) else 1.0
        is_evolution = normalised(word) == SUPERSEDES
        self._add(
            start,
            end,
            word,
            LinkType.EVOLUTION if is_evolution else LinkType.ASSOCIATION,
            confidence=1.0 if is_evolution else share,
            reason=None if reason is None or not reason.strip() else reason[:_LONGEST_REASON],
            at=read_time(row.get("created_at")).at,
            extra={} if share == 1 or not is_evolution else {"weight": share},
        )

    def of_outcomes(self, planned: Iterable[Planned]) -> None:
        """Link the memories of why decisions came out as they did to these, as `saving.set_outcome` does."""
        for one in planned:
            if one.outcome_of is not None:
                self._add(
                    one.memory.id,
                    one.outcome_of,
                    OUTCOME_OF,
                    LinkType.IMPLEMENTATION,
                    created_by=one.memory.metadata.created_by,
                )

    def _told(self, row: OldRow, memory: Memory, column: str) -> str | None:
        """Return the id of the memory that a column names."""
        old = read_text(row.get(column)).text
        if not old:
            return None
        found = self.ids.get(old)
        if found is None:
            self._tell(memory, "dangling", f"{column} names {old!r:.200}, which does not exist")
        elif found == memory.id:
            self._tell(memory, "self_loop", f"{column} names the row itself: no link is made of that")
            return None
        return found

    def _add(
        self,
        from_id: str,
        to_id: str,
        word: str,
        link_type: LinkType,
        *,
        confidence: float = 1.0,
        reason: str | None = None,
        at: datetime | None = None,
        created_by: Any = "system",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        key = (from_id, to_id, normalised(word))
        before = self.links.get(key)
        link = Link(
            id=link_id(self.namespace, from_id, to_id, normalised(word)),
            from_id=from_id,
            to_id=to_id,
            link_type=link_type,
            confidence=confidence,
            created_by=created_by,
            metadata=LinkMetadata(original_relationship=word, reason=reason, extra=extra or {}),
            created_at=at or self.memories[from_id].created_at,
        )
        # An edge says more than a column does.
        if before is None or (before.metadata.reason is None and (reason is not None or at is not None)):
            self.links[key] = link

    def _tell(self, memory: Memory, kind: str, what: str) -> None:
        self.odd.append(OddRow(table=DECISIONS, id=memory.id, kind=kind, what=what, topic=memory.topic))

    def _left_out(self, key: str, kind: str, what: str) -> None:
        self.odd.append(OddRow(table=EDGES, id=key, kind=kind, what=what))


def circles(links: Iterable[Link]) -> list[tuple[str, ...]]:
    """Return the groups of memories that supersede each other in a circle."""
    older: dict[str, list[str]] = {}
    for link in links:
        if link.link_type is LinkType.EVOLUTION:
            older.setdefault(link.from_id, []).append(link.to_id)
    search = _Circles(older)
    for begin in older:
        if begin not in search.order:
            search.walk(begin)
    return search.found


@attrs.define(eq=False)
class _Circles:
    """Strongly connected parts, by the algorithm of Tarjan (1972) without recursion: chains may be long."""

    older: Mapping[str, Sequence[str]]
    order: dict[str, int] = attrs.field(factory=dict)
    found: list[tuple[str, ...]] = attrs.field(factory=list)
    _lowest: dict[str, int] = attrs.field(factory=dict)
    _path: list[str] = attrs.field(factory=list)
    _on_path: set[str] = attrs.field(factory=set)

    def walk(self, begin: str) -> None:
        """Look at all that is reached from a memory."""
        work = [self._enter(begin)]
        while work:
            node, ahead = work[-1]
            following = next(ahead, None)
            if following is None:
                work.pop()
                self._leave(node)
                if work:
                    self._lower(work[-1][0], self._lowest[node])
            elif following not in self.order:
                work.append(self._enter(following))
            elif following in self._on_path:
                self._lower(node, self.order[following])

    def _enter(self, node: str) -> tuple[str, Iterator[str]]:
        self.order[node] = self._lowest[node] = len(self.order)
        self._path.append(node)
        self._on_path.add(node)
        return node, iter(self.older.get(node, ()))

    def _lower(self, node: str, order: int) -> None:
        self._lowest[node] = min(self._lowest[node], order)

    def _leave(self, node: str) -> None:
        if self._lowest[node] != self.order[node]:
            return
        members = [self._path.pop()]
        while members[-1] != node:
            members.append(self._path.pop())
        self._on_path.difference_update(members)
        if len(members) > 1:
            self.found.append(tuple(sorted(members)))
