"""
The oracle of the crash test: the exact expected state of a store.

It is computed from an operation log outside of the store.

Each operation is logged before its call and again with its result. An acknowledged operation must be in the store
exactly. An operation in flight must be there completely or not at all. Nothing else may exist.
"""

from __future__ import annotations

import copy
import enum
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b, sha256
from typing import Any, Final, Literal

import attrs

_WORDS: Final = (
    "shield", "raid", "guild", "reactor", "planet", "fleet", "login", "token",
    "cache", "queue", "index", "journal", "ore", "tax", "vote", "trade",
)  # fmt: skip
ANY: Final = {"$any": True}
"""A pattern that matches every value, for values that the oracle cannot know."""
_AFTER: Final = "$after"
_OPEN: Final = "$open"

LINK_TYPES: Final[Mapping[str, str]] = {
    "refines": "evolution",
    "supersedes": "evolution",
    "implements": "implementation",
    "outcome_of": "implementation",
    "relates to": "association",
}
"""The link type of each relationship word of the crash test."""

Mode = Literal["atomic", "prefix", "each"]


def text_of(tag: str) -> str:
    """Return the text of a tag. The first word of the text is the tag."""
    digest = blake2b(tag.encode(), digest_size=12).hexdigest()
    words = " ".join(_WORDS[int(digit, 16)] for digit in digest)
    # Lengthen one text in sixteen, so that it fills several database pages.
    return f"{tag} {words}" + f" {words}" * (40 if digest[0] == "0" else 0)


def tag_of(text: str) -> str:
    """Return the tag of a stored text."""
    return text.split(" ", 1)[0]


def digest_of(text: str) -> str:
    """Return the SHA-256 of a text, in the format of evidence."""
    return sha256(text.encode()).hexdigest()


def plain(value: Any) -> Any:
    """Convert a value to JSON-serializable data. Objects of attrs classes become dicts of their public fields."""
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat()
        case enum.Enum():
            return value.value
        case Mapping():
            return {str(key): plain(one) for key, one in value.items()}
        case tuple() | list():
            return [plain(one) for one in value]
    if attrs.has(type(value)):
        names = [field.name for field in attrs.fields(type(value))]
        # Skip `warnings`, which is not stored, and caches, whose names begin with an underscore.
        return {name: plain(getattr(value, name)) for name in names if name[0] != "_" and name != "warnings"}
    return value


def after(moment: str) -> dict[str, str]:
    """Return a pattern that matches every time at or after *moment*."""
    return {_AFTER: moment}


def difference(expected: Any, actual: Any, path: str = "") -> str | None:
    """Return the path of the first difference between a pattern and a value, or None if the value matches."""
    if isinstance(expected, dict):
        return _mapping_difference(expected, actual, path)
    if isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            return path
        pairs = enumerate(zip(expected, actual, strict=True))
        found = (difference(one, other, f"{path}[{place}]") for place, (one, other) in pairs)
        return next((one for one in found if one is not None), None)
    return None if type(expected) is type(actual) and expected == actual else path or "existence"


def _mapping_difference(expected: dict[str, Any], actual: Any, path: str) -> str | None:
    if "$any" in expected:
        return None
    if _AFTER in expected:
        is_time = isinstance(actual, str)
        is_later = is_time and datetime.fromisoformat(actual) >= datetime.fromisoformat(expected[_AFTER])
        return None if is_later else path
    if not isinstance(actual, dict):
        return path or "existence"
    names = set(expected) - {_OPEN}
    if missing := names - set(actual) or (set() if _OPEN in expected else set(actual) - names):
        return _joined(path, min(missing))
    found = (difference(expected[name], actual[name], _joined(path, name)) for name in sorted(names))
    return next((one for one in found if one is not None), None)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


@attrs.define(eq=False)
class Item:
    """
    A memory, link, group of records, ref or namespace copy, with all its possible states.

    Args:
        name: The name in reports.
        states: Pairs of an operation's tag and the resulting state, oldest first; the state None means nonexistent.
        id: The id in the store, once it is known.

    """

    name: str
    states: list[tuple[str | None, Any]] = attrs.field(factory=lambda: [(None, None)])
    id: str | None = None

    @property
    def now(self) -> Any:
        """The most recent of the possible states."""
        return self.states[-1][1]

    @property
    def is_settled(self) -> bool:
        """True if only one state is possible."""
        return len(self.states) == 1


@attrs.define(eq=False)
class Operation:
    """
    A change whose call was started.

    Args:
        tag: The unique name.
        kind: The method.
        effects: The changed items, in order.
        mode: ``"atomic"``; ``"prefix"`` if the first effects may be applied without the rest; ``"each"`` if each
            effect may be applied without the others.
        done: Whether the change was acknowledged.

    """

    tag: str
    kind: str
    space: str
    arguments: dict[str, Any]
    effects: list[Item] = attrs.field(factory=list)
    mode: Mode = "atomic"
    done: bool = False


MemoryKey = tuple[str, str]
LinkKey = tuple[str, str, str, str]
GroupKey = tuple[str, tuple[str, ...]]
RefKey = tuple[str, str, str]


@attrs.define(eq=False)
class ExpectedState:
    """
    The expected state of a store, item by item.

    Keys begin with a namespace, and contain tags instead of ids.
    """

    memories: dict[MemoryKey, Item] = attrs.field(factory=dict)
    links: dict[LinkKey, Item] = attrs.field(factory=dict)
    groups: dict[GroupKey, Item] = attrs.field(factory=dict)
    refs: dict[RefKey, Item] = attrs.field(factory=dict)
    copies: dict[str, Item] = attrs.field(factory=dict)
    operations: dict[str, Operation] = attrs.field(factory=dict)
    backups: list[tuple[str, int]] = attrs.field(factory=list)
    namespaces: set[str] = attrs.field(factory=lambda: {"default"})
    conversations: set[tuple[str, str]] = attrs.field(factory=set)
    migrated: set[str] = attrs.field(factory=set)
    misreported: list[str] = attrs.field(factory=list)
    """Results of calls that differ from the requested change."""
    is_loose: bool = False

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged operations."""
        return sum(one.done for one in self.operations.values())

    def hear(self, lines: Iterable[str]) -> ExpectedState:
        """Update the expected state from lines of the log, and return self."""
        for line in lines:
            match json.loads(line):
                case ["begin", tag, space, kind, at, arguments]:
                    self._begin(Operation(tag, kind, space, arguments), at)
                case ["end", tag, result]:
                    self._end(self.operations[tag], result)
                case ["backup", path, length]:
                    self.backups.append((path, length))
        return self

    def loosen(self) -> ExpectedState:
        """
        Make every later operation optional, and return self.

        A backup may or may not contain the operations that run while it is made.
        """
        self.is_loose = True
        return self

    def copy(self) -> ExpectedState:
        """Return an independent copy."""
        return copy.deepcopy(self)

    def conversation(self, space: str, name: str) -> dict[str, Item]:
        """Return the refs and descriptors of a conversation by handle."""
        return {handle: item for (where, other, handle), item in self.refs.items() if (where, other) == (space, name)}

    def _begin(self, operation: Operation, at: str) -> None:
        self.namespaces.add(operation.space)
        if operation.tag in self.operations:
            raise ValueError(f"two changes have the tag {operation.tag}")
        self.operations[operation.tag] = operation
        for item, state in getattr(self, f"_{operation.kind}")(operation, at, operation.arguments):
            item.states.append((operation.tag, state))
            operation.effects.append(item)

    def _end(self, operation: Operation, result: dict[str, Any]) -> None:
        operation.done = True
        for item in operation.effects:
            state = next(state for tag, state in item.states if tag == operation.tag)
            self._settle(operation, item, self._reported(operation, item, state, result))

    def _settle(self, operation: Operation, item: Item, state: Any) -> None:
        if self.is_loose:
            item.states = [(tag, state if tag == operation.tag else one) for tag, one in item.states]
        else:
            item.states = [(operation.tag, state)]

    def _reported(self, operation: Operation, item: Item, state: Any, result: dict[str, Any]) -> Any:
        """Return the expected state, completed with values of the call's result, and report any contradiction."""
        answer = result.get(item.name)
        if answer is None or state is None:
            return state
        if "handle" in answer:
            item.id = answer["handle"]
            return state
        if item.name.startswith("records"):
            # The result contains only the written records and no history, so add the other records and the history.
            answer = {key: {**answer.get(key, one), "history": one["history"]} for key, one in state.items()}
        elif item.id is None:
            item.id = answer["id"]
        path = difference(state, answer)
        if path is not None:
            self.misreported.append(f"{operation.kind} {operation.tag} returned another {path}")
        return answer if path is None else state

    # Memories and links

    def _memory(self, space: str, tag: str) -> Item:
        return self.memories.setdefault((space, tag), Item(f"memory {tag}"))

    def _link(self, space: str, one: str, other: str, word: str) -> Item:
        key = space, one, other, word
        return self.links.setdefault(key, Item(f"link {one} {word} {other}"))

    def _save(self, operation: Operation, at: str, given: dict[str, Any]) -> Iterator[tuple[Item, Any]]:
        """Yield the expected effects of a call that saves one or more memories."""
        space = operation.space
        operation.mode = "prefix" if given.get("many") else "atomic"
        for one in given["memories"]:
            yield self._memory(space, one["tag"]), new_memory(space, at, one)
            for word, ends in one.get("links", {}).items():
                for end in ends:
                    yield self._link(space, one["tag"], end, word), new_link(at, word, "user")

    def _migrate(self, operation: Operation, at: str, given: dict[str, Any]) -> Iterator[tuple[Item, Any]]:
        self.migrated.add(operation.space)
        yield from self._save(operation, at, given)
        operation.mode = "each"

    def _outcome(self, operation: Operation, at: str, given: dict[str, Any]) -> Iterator[tuple[Item, Any]]:
        decision, reason = self._memory(operation.space, given["target"]), given["reason"]
        why = text_of(reason)
        state = copy.deepcopy(decision.now)
        own = state["metadata"]
        own |= {"outcome": given["outcome"], "outcome_reason": why, "outcome_at": after(at)}
        own["history"] = [*own["history"], {"outcome": given["outcome"], "reason": why, "at": after(at)}]
        yield decision, {**state, "updated_at": after(at)}
        saved = {"tag": reason, "type": "context", "topic": state["topic"], "source": "outcome_of", "origin": "model"}
        saved |= {"created_by": "llm", "trust": state["trust"]}
        yield self._memory(operation.space, reason), new_memory(operation.space, at, saved)
        yield self._link(operation.space, reason, given["target"], "outcome_of"), new_link(at, "outcome_of", "llm")

    def _correct(self, operation: Operation, at: str, given: dict[str, Any]) -> Iterator[tuple[Item, Any]]:
        item = self._memory(operation.space, given["target"])
        state = copy.deepcopy(item.now)
        former = {"content": state["content"], "reasoning": state["metadata"].get("reasoning", "")}
        state["previous_texts"] = [*state["previous_texts"], {**former, "until": after(at), "reason": given["reason"]}]
        state |= {"content": text_of(given["content"]), "updated_at": after(at)}
        if given["reasoning"] is not None:
            state["metadata"]["reasoning"] = given["reasoning"]
        # Register the new text, so that the comparison recognizes later duplicates of this memory.
        self.memories[operation.space, given["content"]] = item
        yield item, state

    def _merge(self, operation: Operation, at: str, given: dict[str, Any]) -> Iterator[tuple[Item, Any]]:
        item = self._memory(operation.space, given["target"])
        yield item, {**item.now, "repeated_at": [*item.now["repeated_at"], after(at)]}

    def _link_memories(self, operation: Operation, at: str, given: dict[str, Any]) -> Iterator[tuple[Item, Any]]:
        item = self._link(operation.space, given["from"], given["to"], given["word"])
        if item.now is None:
            state = new_link(at, given["word"], "user", given["confidence"], given["reason"])
        else:
            known = item.now["metadata"]
            metadata = {**known, "reason": given["reason"] or known["reason"]}
            confidence = max(item.now["confidence"], given["confidence"])
            state = {**item.now, "confidence": confidence, "metadata": metadata}
        yield item, state

    def _unlink(self, operation: Operation, _at: str, given: dict[str, Any]) -> Iterator[tuple[Item, Any]]:
        yield self._link(operation.space, given["from"], given["to"], given["word"]), None

    def _delete(self, operation: Operation, _at: str, given: dict[str, Any]) -> Iterator[tuple[Item, Any]]:
        yield self._memory(operation.space, given["target"]), None
        yield from self._outcome_reasons(operation.space, given["target"])

    def _outcome_reasons(self, space: str, target: str) -> Iterator[tuple[Item, Any]]:
        """Yield the contexts with the reasons of a decision's outcomes, which are deleted together with it."""
        for (where, one, other, word), link in [*self.links.items()]:
            if (where, other, word) == (space, target, "outcome_of") and link.now is not None:
                reason = self._memory(space, one)
                if reason.now is not None:
                    yield reason, None

    def _forget(self, operation: Operation, _at: str, given: dict[str, Any]) -> Iterator[tuple[Item, Any]]:
        space, target = operation.space, given["target"]
        item = self._memory(space, target)
        kept = [*item.now["evidence"]]
        yield item, None
        yield from self._outcome_reasons(space, target)
        yield from [*self._bridges(space, target)]
        gone = {entry.rpartition("#sha256:")[2] for entry in kept}
        for (where, _, _), ref in [*self.refs.items()]:
            if where == space and ref.now is not None and ref.now["text"] in gone:
                yield ref, None

    def _bridges(self, space: str, target: str) -> Iterator[tuple[Item, Any]]:
        """Yield the links that connect the successors of a forgotten memory with its predecessors."""
        evolution = {
            key: item
            for key, item in self.links.items()
            if key[0] == space and item.now is not None and item.now["link_type"] == "evolution"
        }
        before, behind = defaultdict(list), set()
        for (_, one, other, _), item in evolution.items():
            if other == target and self._memory(space, one).now is not None:
                before[one].append(item.now)
            if one == target and self._memory(space, other).now is not None:
                behind.add(other)
        for one, made in before.items():
            for other in sorted(behind - {one}):
                item = self._link(space, one, other, "supersedes")
                # If several links connect the same memories, the store may derive the new link from any of them.
                confidence = made[0]["confidence"] if len(made) == 1 and item.now is None else ANY
                created_at = made[0]["created_at"] if len(made) == 1 else ANY
                state = new_link("", "supersedes", made[0]["created_by"], confidence)
                yield item, {**state, "created_at": created_at} | ({"created_at": ANY} if item.now else {})

    # Records

    def _group(self, space: str, labels: Sequence[str]) -> Item:
        return self.groups.setdefault((space, tuple(labels)), Item(f"records {'/'.join(labels)}", [(None, {})]))

    def _put(self, operation: Operation, at: str, given: dict[str, Any]) -> Iterator[tuple[Item, Any]]:
        item = self._group(operation.space, given["labels"])
        state = dict(item.now)
        for one in given["records"]:
            state[one["key"]] = next_record(state.get(one["key"]), at, given["labels"], one)
        yield item, state

    def _remove(self, operation: Operation, _at: str, given: dict[str, Any]) -> Iterator[tuple[Item, Any]]:
        """
        Yield the effect of a deletion, a pop or an expiry in the past.

        If *keys* is None, all records of the group are removed.
        """
        item = self._group(operation.space, given["labels"])
        keys = given["keys"]
        yield item, {key: one for key, one in item.now.items() if keys is not None and key not in keys}

    def _move(self, operation: Operation, _at: str, given: dict[str, Any]) -> Iterator[tuple[Item, Any]]:
        source, target = self._group(operation.space, given["labels"]), self._group(operation.space, given["to"])
        moved = {**source.now[given["key"]], "labels": given["to"], "key": given["new_key"]}
        moved["memory_id"] = None if moved["text"] is None else ANY
        yield source, {key: one for key, one in source.now.items() if key != given["key"]}
        yield target, {**target.now, given["new_key"]: moved}

    # Refs, descriptors and conversations

    def _ref(self, space: str, conversation: str, handle: str) -> Item:
        self.conversations.add((space, conversation))
        return self.refs.setdefault((space, conversation, handle), Item(f"{handle} of {conversation}", id=handle))

    def _refer(self, operation: Operation, _at: str, given: dict[str, Any]) -> Iterator[tuple[Item, Any]]:
        """
        Yield the effect of a call that stores refs.

        The handle of a descriptor is known only from the result.
        """
        for handle, text in given["refs"].items():
            item = self._ref(operation.space, given["conversation"], handle)
            if handle.startswith("?"):
                item.id = None
            yield item, {"text": text, "attributes": {}}

    def _fork(self, operation: Operation, _at: str, given: dict[str, Any]) -> Iterator[tuple[Item, Any]]:
        for handle, state in given["refs"].items():
            yield self._ref(operation.space, given["conversation"], handle), state

    def _drop_conversation(self, operation: Operation, _at: str, given: dict[str, Any]) -> Iterator[tuple[Item, Any]]:
        self.conversations.add((operation.space, given["conversation"]))
        for item in self.conversation(operation.space, given["conversation"]).values():
            if item.now is not None:
                yield item, None

    # Copies of whole namespaces

    def _import(self, operation: Operation, _at: str, given: dict[str, Any]) -> Iterator[tuple[Item, Any]]:
        """Yield the effect of an import of a whole namespace."""
        operation.mode = "each"
        item = self.copies.setdefault(operation.space, Item(f"copy {operation.space}", [(None, [])]))
        yield item, sorted(given["rows"])


def new_memory(space: str, at: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the pattern of a memory that is saved at or after *at*."""
    kind, origin = given["type"], given["origin"]
    metadata: dict[str, Any] = {"created_by": given.get("created_by", "user"), "extra": given.get("extra", {})}
    metadata["schema_version"] = 1
    match kind:
        case "decision":
            metadata |= {"reasoning": given["reasoning"], "confidence": given.get("confidence", 0.7)}
            metadata |= {"outcome": None, "outcome_reason": None, "outcome_at": None, "history": []}
        case "checkpoint":
            metadata |= {"open_files": given["open_files"], "next_steps": given["next_steps"]}
        case "insight":
            metadata |= {"category": given["category"], "tags": given["tags"], "source": given.get("source")}
        case "context":
            metadata |= {"source": given.get("source")}
    return {
        _OPEN: True,
        "id": ANY,
        "type": kind,
        "content": given.get("content") or text_of(given["tag"]),
        "topic": given.get("topic"),
        "metadata": {_OPEN: True, **metadata},
        "mentions": [],
        "evidence": given.get("evidence", []),
        "created_at": after(at),
        "updated_at": after(at),
        "namespace": space,
        "origin": origin,
        "trust": given.get("trust", origin),
        "valid_until": given.get("valid_until"),
        "repeated_at": [],
        "previous_texts": [],
        **given.get("fields", {}),
    }


def new_link(at: str, word: str, created_by: str, confidence: Any = 1.0, reason: str | None = None) -> dict[str, Any]:
    """Return the pattern of an explicit link."""
    metadata: dict[str, Any] = {
        "original_relationship": word,
        "similarity": None,
        "reason": reason,
        "tags": [],
        "extra": {},
    }
    return {
        _OPEN: True,
        "link_type": LINK_TYPES[word],
        "confidence": confidence,
        "created_by": created_by,
        "metadata": metadata,
        "created_at": after(at) if at else ANY,
    }


def next_record(before: dict[str, Any] | None, at: str, labels: list[str], given: dict[str, Any]) -> dict[str, Any]:
    """Return the pattern of a record after a put that replaces *before*."""
    history = [] if before is None else before["history"]
    if before is not None and given["history"]:
        history = [*history, [before["value"], before["version"], before["text"]]]
    return {
        "labels": labels,
        "key": given["key"],
        "value": given["value"],
        "version": 1 if before is None else before["version"] + 1,
        "created_at": after(at) if before is None else before["created_at"],
        "updated_at": after(at),
        "expires_at": None,
        "text": given["text"],
        "origin": given["origin"],
        "memory_id": None if given["text"] is None else ANY,
        "history": history,
    }
