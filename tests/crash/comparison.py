"""Complete comparison of a store with its expected state, item by item."""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import attrs
from crash.model import ExpectedState, Item, difference, digest_of, plain, tag_of
from crash.oracle import Store, Verdict, opened

from mama_structs import admin
from mama_structs.memory.save.conflict_records import CONTRADICTION_WORD, REPLACEMENT_WORD
from mama_structs.memory.types.model import StoredEvidence, parse_stored_evidence
from mama_structs.session.session import Session

_TEMPORAL_WINDOW: Final = 3600.0
_MOST_AUTOMATIC: Final = {"association": 5, "temporal": 3, "conflict": 10}
# Association links with these words store conflicts, which no limit of the linking policy suppresses.
_CONFLICT_WORDS: Final = frozenset({CONTRADICTION_WORD, REPLACEMENT_WORD})
_MOST_INCOMING: Final = 32
_MIN_CONFIDENCE: Final = 0.3
_NOBODY: Final = "which nobody"


async def compare(store: Store, facts: ExpectedState) -> Verdict:
    """Open a store in this process, and compare its complete content with the expected state."""
    verdict = Verdict(wrong=list(facts.misreported))
    seen = Comparison(facts, verdict)
    with verdict.listening():
        for place, space in enumerate(sorted(facts.namespaces)):
            with verdict.noting(f"opening {space}"):
                async with opened(store, space) as session:
                    await seen.compare_memories(session)
                    await seen.compare_records(session)
                    # `admin.check` covers all namespaces, so run it once. For the others, check only the memories.
                    checked = admin.check(session.memories) if place else admin.check(session)
                    note_findings(verdict, (await checked).issues)
        with verdict.noting("listing namespaces"):
            unknown = set(await admin.list_namespaces(store)) - facts.namespaces
            verdict.wrong += [f"there is a namespace {one}, {_NOBODY} wrote to" for one in sorted(unknown)]
        for space in sorted(facts.namespaces):
            with verdict.noting(f"conversations of {space}"):
                await seen.compare_conversations(store, space)
    seen.compare_operations()
    return verdict


def note_findings(verdict: Verdict, found: Iterable[Any]) -> None:
    """Add the findings of a check to the verdict, except findings about an outdated SQLite or server."""
    verdict.findings += [
        f"{one.severity} {one.kind}: {one.message}" for one in found if one.kind not in {"sqlite", "server"}
    ]


@attrs.frozen
class Comparison:
    """
    One comparison of a store with its expected state.

    Args:
        facts: The expected state.
        verdict: Receives the differences.
        fits: The positions of the states that match each item.

    """

    facts: ExpectedState
    verdict: Verdict
    fits: dict[Item, set[int]] = attrs.field(factory=dict)

    def fit(self, item: Item, actual: Any) -> None:
        """Match a stored value against the possible states of an item. Report the item if no state matches."""
        found = {
            place
            for place, (_, state) in enumerate(item.states)
            if (actual is None if state is None else actual is not None and difference(state, actual) is None)
        }
        if found:
            self.fits[item] = found
        elif actual is None:
            self.verdict.lost.append(item.name)
        elif all(state is None for _, state in item.states):
            self.verdict.wrong.append(f"{item.name} is there, which was deleted")
        else:
            path = difference(next(state for _, state in reversed(item.states) if state is not None), actual)
            self.verdict.wrong.append(f"{item.name} has another {path}")

    # Memories

    async def compare_memories(self, session: Session) -> None:
        """Compare the memories and links of a session's namespace."""
        space, store = session.memories.namespace, session.memories
        if (copied := self.facts.copies.get(space)) is not None:
            await self._compare_copy(session, copied)
            return
        there = {memory.id: plain(memory) async for memory in store.iter_all()}
        self.verdict.memories += len(there)
        items = {key: item for key, item in self.facts.memories.items() if key[0] == space}
        ids = {item.id: item for item in items.values() if item.id is not None}
        found: dict[Item, str] = {}
        for memory_id, memory in there.items():
            if memory["type"] == "record":
                continue
            item = ids.get(memory_id) or items.get((space, tag_of(memory["content"])))
            if item is None:
                self.verdict.wrong.append(f"memory {memory_id} is there, {_NOBODY} saved")
            elif item in found or item.id not in (None, memory_id):
                self.verdict.duplicated.append(f"{item.name} is there again, as {memory_id}")
            else:
                found[item] = memory_id
        for item in dict.fromkeys(items.values()):
            self.fit(item, there.get(found.get(item, "")))
        await self._compare_links(session, there, {key: found.get(item) for key, item in items.items()})
        for memory_id in found.values():
            if any(parse_stored_evidence(one) for one in there[memory_id]["evidence"]):
                with self.verdict.noting(f"the evidence of {memory_id}"):
                    kept = [one for one in await store.evidence(memory_id) if one.digest is not None]
                    names = [str(StoredEvidence(one.source, digest_of(one.text or ""))) for one in kept]
                    if names != there[memory_id]["evidence"]:
                        self.verdict.wrong.append(f"memory {memory_id} has another text as evidence")

    async def _compare_links(
        self, session: Session, there: Mapping[str, Any], ids: Mapping[tuple[str, str], str | None]
    ) -> None:
        """Compare explicit links exactly, and validate automatic links against their rules."""
        space = session.memories.namespace
        automatic, explicit = [], defaultdict(list)
        async for one in session.memories._iter_links():
            link = plain(one)
            if missing := {link["from_id"], link["to_id"]} - set(there):
                self.verdict.wrong.append(f"link {link['id']} leads to {min(missing)}, which is not there")
            elif link["created_by"] == "system":
                automatic.append(link)
            else:
                word = link["metadata"]["original_relationship"]
                explicit[link["from_id"], link["to_id"], word].append(link)
        expected = {}
        for (where, begin, end, word), item in self.facts.links.items():
            ends = ids.get((space, begin)), ids.get((space, end))
            # Expect no link of a deleted memory, because the deletion also deletes the link.
            if where == space and None not in ends:
                expected[ends[0], ends[1], word] = item
        for key, item in expected.items():
            self.fit(item, next(iter(explicit.get(key, ())), None))
        self._check_explicit(explicit, expected)
        # A migration also creates evolution links between the decisions of a topic.
        most = _MOST_AUTOMATIC | ({"evolution": 1} if space in self.facts.migrated else {})
        self._check_automatic(automatic, {frozenset(key[:2]) for key in explicit}, there, most)

    def _check_explicit(
        self, explicit: Mapping[tuple[Any, ...], list[dict[str, Any]]], expected: Mapping[tuple[Any, ...], Item]
    ) -> None:
        """Report unexpected links and duplicate links."""
        for key, links in explicit.items():
            name = f"link {' '.join(map(str, key))}"
            if key not in expected and links[0]["link_type"] == "evolution":
                self.verdict.wrong.append(f"memory {key[1]} is superseded by {key[0]}, {_NOBODY} asked for")
            elif key not in expected:
                self.verdict.wrong.append(f"{name} is there, {_NOBODY} made")
            if len(links) > 1:
                self.verdict.duplicated.append(f"{name} is there {len(links)} times")

    def _check_automatic(
        self,
        links: list[dict[str, Any]],
        explicit: set[frozenset[str]],
        there: Mapping[str, Any],
        most: Mapping[str, int],
    ) -> None:
        """Check the invariants of automatic links."""
        wrong = self.verdict.wrong
        ways = Counter((link["from_id"], link["to_id"], link["link_type"]) for link in links)
        self.verdict.duplicated.extend(
            f"automatic link {way} is there twice" for way, count in ways.items() if count > 1
        )
        for (memory_id, kind), count in Counter((link["from_id"], _limited_kind(link)) for link in links).items():
            if count > most.get(kind, 0):
                wrong.append(f"memory {memory_id} has {count} automatic links of the type {kind}")
        for memory_id, count in Counter(link["to_id"] for link in links if _limited_kind(link) != "conflict").items():
            if count > _MOST_INCOMING:
                wrong.append(f"memory {memory_id} has {count} incoming automatic links")
        for link in links:
            seconds = _seconds(there, link["to_id"], link["from_id"])
            if not _MIN_CONFIDENCE <= link["confidence"] <= 1:
                wrong.append(f"automatic link {link['id']} has the confidence {link['confidence']}")
            if link["link_type"] == "temporal" and abs(seconds) > _TEMPORAL_WINDOW:
                wrong.append(f"automatic link {link['id']} leads over {seconds} seconds")
            if frozenset((link["from_id"], link["to_id"])) in explicit:
                wrong.append(f"automatic link {link['id']} is there beside an explicit one")

    async def _compare_copy(self, session: Session, item: Item) -> None:
        """Compare the content of an imported namespace with the rows of its import file."""
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "lines"
            await admin.export_jsonl(session.memories, file)
            actual = Counter(rows_of(file.read_text("utf-8").splitlines()))
        wanted = Counter(item.now)
        name = f"{item.name}: a memory, link or text"
        if actual - wanted:
            self.verdict.wrong.append(f"{name} is there, {_NOBODY} imported")
        if item.is_settled and wanted - actual:
            self.verdict.lost.append(name)

    # Records

    async def compare_records(self, session: Session) -> None:
        """Compare the records of a session's namespace, with their versions and history."""
        space, found = session.memories.namespace, defaultdict[tuple[str, ...], dict[str, Any]](dict)
        if space in self.facts.copies:
            return
        for record in await session.records.list():
            former = (await session.records.history(record.labels, record.key))[1:] if record.version > 1 else []
            history = [[plain(one.value), one.version, one.text] for one in reversed(former)]
            found[record.labels][record.key] = {**plain(record), "history": history}
        known = {labels: item for (where, labels), item in self.facts.groups.items() if where == space}
        for labels in found.keys() - known.keys():
            self.verdict.wrong.append(f"records {'/'.join(labels)} are there, {_NOBODY} put")
        for labels, item in known.items():
            self._fit_group(item, found.get(labels, {}))

    def _fit_group(self, item: Item, actual: dict[str, Any]) -> None:
        before = len(self.verdict.wrong)
        self.fit(item, actual)
        if len(self.verdict.wrong) == before:
            return
        # Report lost and unexpected keys instead of a general difference.
        states = [state for _, state in item.states]
        lost = [key for key in states[-1] if key not in actual and all(key in state for state in states)]
        new = [key for key in actual if all(key not in state for state in states)]
        if lost or new:
            del self.verdict.wrong[before:]
        self.verdict.lost.extend(f"{item.name}: {key}" for key in lost)
        self.verdict.wrong.extend(f"{item.name}: {key} is there, {_NOBODY} put or which was deleted" for key in new)

    # Conversations

    async def compare_conversations(self, store: Store, space: str) -> None:
        """Compare the conversations of a namespace, and the refs of each."""
        listed = {one.name for one in await admin.list_conversations(store, namespace=space)}
        known = {name for where, name in self.facts.conversations if where == space}
        self.verdict.wrong += [f"conversation {one} is there, {_NOBODY} began" for one in sorted(listed - known)]
        for name in sorted(known):
            items = self.facts.conversation(space, name)
            if name in listed:
                with self.verdict.noting(f"opening {name}"):
                    async with opened(store, space, name) as session:
                        self.compare_refs(session, items)
            else:
                for item in items.values():
                    self.fit(item, None)

    def compare_refs(self, session: Session, items: Mapping[str, Item]) -> None:
        """Compare the refs and descriptors of a session's conversation."""
        there: dict[str, Any] = {}
        for handle in session.refs:
            with self.verdict.noting(handle):
                one = session.refs.get(handle)
                there[handle] = {"text": digest_of(one.text), "attributes": plain(getattr(one, "attributes", {}))}
        known = {item.id: item for item in items.values() if item.id is not None}
        waiting = [item for item in items.values() if item.id is None]
        found = {known[handle]: state for handle, state in there.items() if handle in known}
        for handle, state in there.items():
            if handle in known:
                continue
            name = f"{handle} of {session.conversation}"
            item = next((one for one in waiting if difference(one.now, state) is None), None)
            if item is not None:
                waiting.remove(item)
                found[item] = state
            elif any(difference(one.now, state) is None for one in items.values() if one.now is not None):
                self.verdict.duplicated.append(f"{name} is there again")
            else:
                self.verdict.wrong.append(f"{name} is there, {_NOBODY} stored")
        for item in items.values():
            self.fit(item, found.get(item))

    def compare_operations(self) -> None:
        """Check that each unacknowledged operation is applied completely or not at all."""
        for operation in self.facts.operations.values():
            certain = [
                flag for item in operation.effects if (flag := self._is_applied(item, operation.tag)) is not None
            ]
            if operation.mode == "each":
                continue
            is_partial = len(set(certain)) > 1
            if operation.mode == "prefix":
                is_partial = sorted(certain, reverse=True) != certain
            if is_partial:
                self.verdict.wrong.append(f"{operation.kind} {operation.tag} is there in part")

    def _is_applied(self, item: Item, tag: str) -> bool | None:
        """Return whether the operation was applied, or None if the item does not show it."""
        place = next((at for at, (other, _) in enumerate(item.states) if other == tag), None)
        fits = self.fits.get(item)
        if place is None or fits is None or item.is_settled:
            return None
        shows = {at >= place for at in fits}
        return shows.pop() if len(shows) == 1 else None


def rows_of(lines: Iterable[str]) -> list[str]:
    """Return a digest of each memory, link and text of an export, ignoring the namespace."""
    rows = []
    for line in lines:
        row = json.loads(line)
        # Skip the first and the last line, which contain the format and the number of memories.
        if "format" in row or "end" in row:
            continue
        rows += [_row(one) for one in row.pop("links", ())]
        row.get("memory", {}).pop("namespace", None)
        rows.append(_row(row))
    return rows


def _row(value: Any) -> str:
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=9).hexdigest()


def _seconds(there: Mapping[str, Any], one: str, other: str) -> float:
    times = [datetime.fromisoformat(there[memory_id]["created_at"]) for memory_id in (one, other)]
    return (times[1] - times[0]).total_seconds()


def _limited_kind(link: Mapping[str, Any]) -> str:
    """Return the key of the limit that applies to an automatic link."""
    return "conflict" if link["metadata"]["original_relationship"] in _CONFLICT_WORDS else link["link_type"]
