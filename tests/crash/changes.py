"""Random writes for the crash test. Each writing method makes one change, and logs it before and after the call."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import attrs
from crash.model import digest_of, plain, text_of

from mama_structs import Filter, admin
from mama_structs.errors import MemoryNotFound, VersionConflict
from mama_structs.memory.graph.results import Hit
from mama_structs.memory.types.model import Memory, Origin
from mama_structs.session.session import Session
from mama_structs.testing.conformance.ack_log import AckLog, log_errors

ORIGINS: Final[tuple[Origin, ...]] = ("model", "tool", "outside")
"""The origins of model-written refs are excluded: their text lowers no trust that the oracle would have to compute."""
_QUESTION: Final = 200
_PAST: Final = datetime(2020, 1, 1, tzinfo=UTC)
# Stored times are rounded to milliseconds, so they may be earlier than the call by this much.
_ROUNDING: Final = timedelta(milliseconds=2)
_LONG: Final = 12_000
_MAX_LEARNED: Final = 1_500
# Forking and forgetting must not overlap, because the oracle cannot know which refs a fork copies meanwhile.
_turns: Final[WeakKeyDictionary[Session, asyncio.Lock]] = WeakKeyDictionary()


def began_at() -> str:
    """Return the current time minus the rounding error, as a lower bound for the times that later calls store."""
    return (datetime.now(UTC) - _ROUNDING).isoformat()


async def write(
    session: Session,
    book: AckLog,
    name: str,
    chance: random.Random,
    count: int,
    *,
    kinds: Sequence[str] | None = None,
) -> None:
    """
    Make *count* changes in sequence, and log each as acknowledged when its call returns.

    Args:
        session: The session to write to.
        book: The log.
        name: The prefix of this writer's tags.
        chance: The random number generator.
        count: The number of changes.
        kinds: The kinds of changes, in order; random kinds by default.

    """
    author = Author(session, book, name, chance)
    for number in range(count if kinds is None else len(kinds)):
        with log_errors(book):
            kind = author.choose() if kinds is None else kinds[number]
            await CHANGES[kind].make(author, f"{name}-{number}")


@attrs.define
class Author:
    """
    A writer of random changes, and the items that it may still change.

    Each item is changed by one writer only, and by none after a failed call on it. All possible states of the store after
    a kill are therefore known. A change removes its items from the dictionaries, and adds them again when acknowledged.
    """

    session: Session
    book: AckLog
    name: str
    chance: random.Random
    origin: Origin = attrs.field(init=False)
    decisions: dict[str, str] = attrs.field(factory=dict, init=False)
    insights: dict[str, str] = attrs.field(factory=dict, init=False)
    topics: dict[str, str] = attrs.field(factory=dict, init=False)
    links: dict[tuple[str, str, str], str] = attrs.field(factory=dict, init=False)
    doubtful: set[tuple[str, str, str]] = attrs.field(factory=set, init=False)
    records: dict[tuple[str, ...], dict[str, int]] = attrs.field(factory=dict, init=False)
    refs: dict[str, tuple[int, str]] = attrs.field(factory=dict, init=False)
    forks: list[str] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.origin = self.chance.choice(ORIGINS)

    def choose(self) -> str:
        """Return a random kind of change that is currently possible."""
        names = [name for name, one in CHANGES.items() if one.is_possible(self)]
        return self.chance.choices(names, [CHANGES[name].weight for name in names])[0]

    @property
    def standing_links(self) -> dict[tuple[str, str, str], str]:
        """The links between decisions that both still exist."""
        return {key: one for key, one in self.links.items() if {key[0], key[1]} <= self.decisions.keys()}

    @property
    def space(self) -> str:
        """The namespace of the session."""
        return self.session.memories.namespace

    @contextlib.contextmanager
    def change(self, tag: str, kind: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        """Log a change before the block, and the result of its call after the block."""
        answer: dict[str, Any] = {}
        self.book.append("begin", tag, self.space, kind, began_at(), arguments)
        yield answer
        self.book.append("end", tag, answer)

    @contextlib.asynccontextmanager
    async def turn(self) -> Any:
        """Hold the session's lock, so that no other writer forks or forgets during the block."""
        async with _turns.setdefault(self.session, asyncio.Lock()):
            yield

    def some(self, most: int) -> list[str]:
        """Return the tags of a random sample of at most *most* decisions."""
        return self.chance.sample(sorted(self.decisions), min(len(self.decisions), self.chance.randrange(most + 1)))

    @contextlib.asynccontextmanager
    async def taken(self, items: dict[Any, Any], *, back: bool = True) -> Any:
        """Remove a random item from *items* during the block, and restore it on success if *back* is true."""
        key = self.chance.choice(sorted(items))
        value = items.pop(key)
        yield key, value
        if back:
            items[key] = value

    async def save(self, tag: str, specs: list[dict[str, Any]], call: Callable[[], Awaitable[Any]]) -> list[Memory]:
        """Save memories with *call*, log the change, and return the saved memories."""
        is_many = len(specs) > 1
        with self.change(tag, "save", memories=specs, many=is_many) as answer:
            done = await call()
            saved = cast("list[Memory]", list(done) if isinstance(done, list | tuple) else [done])
            answer.update(zip([f"memory {one['tag']}" for one in specs], map(plain, saved), strict=True))
        for one, memory in zip(specs, saved, strict=True):
            self.book.append("saved", self.space, memory.id, one["tag"])
        return saved


async def save_decision(author: Author, tag: str, *, evidence: str | None = None) -> None:
    """Save a decision with links, optionally with a ref as evidence."""
    targets = author.some(3)
    other = next(iter(author.some(1)), None)
    spec: dict[str, Any] = {
        "tag": tag,
        "type": "decision",
        "topic": "topic",
        "reasoning": "why",
        "origin": author.origin,
    }
    spec |= {"links": {"implements": targets, "relates to": [other] if other else []}}
    if evidence is not None:
        spec["evidence"] = [f"ref:{evidence}@1#sha256:{digest_of(text_of(evidence))}"]
    (saved,) = await author.save(
        tag,
        [spec],
        lambda: author.session.memories.save_decision(
            text_of(tag),
            topic="topic",
            reasoning="why",
            implements=[author.decisions[one] for one in targets],
            links=[{"to_id": author.decisions[other], "relationship": "relates to", "confidence": 1.0}]
            if other
            else [],
            evidence=[] if evidence is None else [f"ref:{evidence}"],
            origin=author.origin,
        ),
    )
    author.decisions[tag] = saved.id


async def save_with_evidence(author: Author, tag: str) -> None:
    """Store a ref, and save a decision with it as evidence."""
    handle = f"{tag}-e"
    await observe(author, handle)
    author.refs.pop(handle)
    await save_decision(author, tag, evidence=handle)


async def save_checkpoint(author: Author, tag: str) -> None:
    """Save a checkpoint."""
    spec: dict[str, Any] = {
        "tag": tag,
        "type": "checkpoint",
        "open_files": ["a.py"],
        "next_steps": ["b", "c"],
        "origin": author.origin,
    }
    store = author.session.memories
    await author.save(
        tag,
        [spec],
        lambda: store.save_checkpoint(text_of(tag), open_files=["a.py"], next_steps=["b", "c"], origin=author.origin),
    )


async def save_insight(author: Author, tag: str) -> None:
    """Save an insight that a later change can merge."""
    spec: dict[str, Any] = {"tag": tag, "type": "insight", "category": "sort", "tags": ["x"], "origin": author.origin}
    saved = await author.save(tag, [spec], lambda: _insight(author, tag))
    author.insights[tag] = saved[0].id


def _insight(author: Author, tag: str) -> Awaitable[Memory]:
    return author.session.memories.save_insight(
        text_of(tag), category="sort", tags=["x"], on_duplicate="merge", origin=author.origin
    )


async def save_context(author: Author, tag: str) -> None:
    """Save a context under its own topic."""
    spec: dict[str, Any] = {
        "tag": tag,
        "type": "context",
        "topic": f"about {tag}",
        "source": "test",
        "origin": author.origin,
    }
    saved = await author.save(
        tag,
        [spec],
        lambda: author.session.memories.save_context(
            text_of(tag), topic=f"about {tag}", source="test", origin=author.origin
        ),
    )
    author.topics[tag] = saved[0].id


async def save_many(author: Author, tag: str) -> None:
    """Save several contexts in one call."""
    tags = [f"{tag}-{part}" for part in range(author.chance.choice((3, 3, 5, 60)))]
    specs = [{"tag": one, "type": "context", "origin": author.origin} for one in tags]
    rows: list[Mapping[str, Any]] = [
        {"type": "context", "content": text_of(one), "origin": author.origin} for one in tags
    ]
    await author.save(tag, specs, lambda: author.session.memories.save_many(rows))


async def remember(author: Author, tag: str) -> None:
    """Extract a memory from a message with a scripted model answer."""
    content = text_of(tag)[:_MAX_LEARNED].rstrip()
    # Include all words of the memory in the message.
    # Otherwise the memory gets the origin of a known memory that contains more of these words.
    message = f"{tag}-m {content}"
    spec: dict[str, Any] = {
        "tag": tag,
        "type": "context",
        "content": content,
        "origin": author.origin,
        "created_by": "llm",
    }
    spec["evidence"] = [f"message:user#sha256:{digest_of(message)}"]
    answer = {"records": [{"type": "context", "content": content, "messages": [1]}]}

    async def call() -> Any:
        learned = await author.session.remember(message, extract=lambda *_: answer, origin=author.origin)
        return [*learned.saved, *learned.duplicates]

    await author.save(tag, [spec], call)


async def supersede(author: Author, tag: str) -> None:
    """Supersede a decision."""
    async with author.taken(author.decisions) as (target, target_id):
        spec: dict[str, Any] = {
            "tag": tag,
            "type": "decision",
            "topic": "topic",
            "reasoning": "better",
            "origin": author.origin,
        }
        spec["links"] = {"supersedes": [target]}
        (saved,) = await author.save(
            tag,
            [spec],
            lambda: author.session.memories.supersede(
                target_id, text_of(tag), reasoning="better", origin=author.origin
            ),
        )
        author.decisions[tag] = saved.id


async def set_outcome(author: Author, tag: str) -> None:
    """Set the outcome of a decision, with its reason."""
    async with author.taken(author.decisions) as (target, target_id):
        outcome = author.chance.choice(("SUCCESS", "FAILED", "PARTIAL"))
        with author.change(tag, "outcome", target=target, outcome=outcome, reason=tag) as answer:
            memory = await author.session.memories.set_outcome(
                target_id, cast("Any", outcome), reason=text_of(tag), created_by="llm"
            )
            answer[f"memory {target}"] = plain(memory)


async def correct(author: Author, tag: str) -> None:
    """Correct the text of a decision, and sometimes its reasoning."""
    async with author.taken(author.decisions) as (target, target_id):
        reasoning = author.chance.choice((None, f"because of {tag}"))
        given = {"target": target, "content": tag, "reasoning": reasoning, "reason": "typo"}
        with author.change(tag, "correct", **given) as answer:
            changed = {} if reasoning is None else {"reasoning": reasoning}
            memory = await author.session.memories.update(
                target_id, text_of(tag), **changed, change_reason="typo", origin=author.origin
            )
            answer[f"memory {target}"] = plain(memory)


async def merge(author: Author, tag: str) -> None:
    """Save an insight with the same text again, so that the store merges the two."""
    async with author.taken(author.insights) as (target, _):
        with author.change(tag, "merge", target=target) as answer:
            answer[f"memory {target}"] = plain(await _insight(author, target))


async def link(author: Author, tag: str) -> None:
    """Link two decisions, or strengthen their link."""
    one, other = author.chance.sample(sorted(author.decisions), 2)
    word, confidence = author.chance.choice(("refines", "relates to")), author.chance.choice((0.5, 0.75, 1.0))
    key = one, other, word
    if key in author.doubtful:
        return
    author.links.pop(key, None)
    author.doubtful.add(key)
    given: dict[str, Any] = {"from": one, "to": other, "word": word, "confidence": confidence, "reason": tag}
    with author.change(tag, "link_memories", **given) as answer:
        made = await author.session.memories.link(
            author.decisions[one], author.decisions[other], word, confidence=confidence, reason=tag
        )
        answer[f"link {one} {word} {other}"] = plain(made)
    author.doubtful.discard(key)
    author.links[key] = made.id


async def unlink(author: Author, tag: str) -> None:
    """Remove a link between two existing decisions."""
    async with author.taken(author.standing_links, back=False) as (key, link_id):
        del author.links[key]
        author.doubtful.add(key)
        with author.change(tag, "unlink", **dict(zip(("from", "to", "word"), key, strict=True))):
            await author.session.memories.unlink(link_id)
        author.doubtful.discard(key)


async def delete(author: Author, tag: str) -> None:
    """Delete a decision."""
    async with author.taken(author.decisions, back=False) as (target, target_id):
        author.book.append("deleting", author.space, target_id)
        with author.change(tag, "delete", target=target):
            await author.session.memories.delete(target_id)


async def forget(author: Author, tag: str) -> None:
    """Forget a decision by its id, or a context by its topic."""
    by_topic = bool(author.topics) and author.chance.random() < 0.5
    async with author.turn(), author.taken(author.topics if by_topic else author.decisions, back=False) as one:
        target, target_id = one
        author.book.append("deleting", author.space, target_id)
        with author.change(tag, "forget", target=target):
            if by_topic:
                await author.session.memories.erase(where=Filter(topic=f"about {target}"))
            else:
                await author.session.memories.erase([target_id])


async def prune(author: Author, _tag: str) -> None:
    """Prune automatic links as if some months had passed."""
    await admin.prune(author.session.memories, now=datetime.now(UTC) + timedelta(days=90))


# Records


async def put_record(author: Author, tag: str) -> None:
    """
    Put a record with or without a text, a history and a version.

    A wrong version must be rejected.
    """
    labels = next((one for one in author.records if one[0] == "put"), ("put", tag))
    versions = author.records.pop(labels, {})
    key, text = f"k{author.chance.randrange(4)}", author.chance.choice((None, text_of(tag)))
    given: dict[str, Any] = {"key": key, "value": {"tag": tag, "list": [1, None, 2.5]}, "text": text}
    given |= {"history": author.chance.random() < 0.5, "origin": author.origin}
    records = author.session.records
    wanted = versions.get(key, 0)
    with contextlib.suppress(VersionConflict):
        await records.put(labels, key, "of another version", if_version=wanted + 7)
        author.book.append("untyped", f"a record at another version than {wanted + 7} was overwritten")
    with author.change(tag, "put", labels=labels, records=[given]) as answer:
        record = await records.put(
            labels,
            key,
            given["value"],
            text=text,
            keep_history=given["history"],
            origin=author.origin,
            if_version=author.chance.choice((None, wanted)),
        )
        answer[f"records {'/'.join(labels)}"] = {key: plain(record)}
    author.records[labels] = {**versions, key: record.version}


async def append_records(author: Author, tag: str) -> None:
    """Append values after the last record of a list."""
    labels = next((one for one in author.records if one[0] == "list"), ("list", tag))
    numbers = author.records.pop(labels, {})
    first = max(numbers.values(), default=0) + 1
    keys = {f"{first + place:012d}": first + place for place in range(author.chance.randrange(1, 4))}
    one = {"text": None, "history": False, "origin": author.origin}
    given = [{**one, "key": key, "value": [tag, number]} for key, number in keys.items()]
    with author.change(tag, "put", labels=labels, records=given) as answer:
        made = await author.session.records.append(labels, [one["value"] for one in given], origin=author.origin)
        answer[f"records {'/'.join(labels)}"] = {record.key: plain(record) for record in made}
    author.records[labels] = numbers | keys


async def pop_record(author: Author, tag: str) -> None:
    """Pop the last record of a list."""
    labels = next(one for one, keys in author.records.items() if one[0] == "list" and keys)
    numbers = author.records.pop(labels)
    last = max(numbers)
    with author.change(tag, "remove", labels=labels, keys=[last]):
        found = await author.session.records.pop(labels)
        if found is None or found.key != last:
            author.book.append("untyped", f"{found and found.key} was popped in place of {last}")
    author.records[labels] = {key: one for key, one in numbers.items() if key != last}


async def remove_records(author: Author, tag: str) -> None:
    """Delete one record, delete all records under the same labels, or set an expiry in the past."""
    labels = next(one for one, keys in author.records.items() if one[0] == "put" and keys)
    versions = author.records.pop(labels)
    key, way = author.chance.choice(sorted(versions)), author.chance.choice(("delete", "expire", "all"))
    records = author.session.records
    with author.change(tag, "remove", labels=labels, keys=None if way == "all" else [key]):
        if way == "delete":
            await records.delete(labels, key, if_version=versions[key])
        elif way == "expire":
            await records.expire([(labels, key)], _PAST)
        else:
            await records.delete_all(labels)
    author.records[labels] = {} if way == "all" else {one: at for one, at in versions.items() if one != key}


async def move_record(author: Author, tag: str) -> None:
    """Move a record to other labels."""
    labels = next(one for one, keys in author.records.items() if one[0] == "put" and keys)
    versions = author.records.pop(labels)
    key, to = author.chance.choice(sorted(versions)), ("moved", tag)
    with author.change(tag, "move", labels=labels, key=key, to=to, new_key="m"):
        await author.session.records.move([((labels, key), (to, "m"))])
    author.records[labels] = {one: at for one, at in versions.items() if one != key}


async def sweep_records(author: Author, _tag: str) -> None:
    """Delete expired records."""
    await author.session.records.delete_expired()


# Refs and conversations


def _stored(author: Author, tag: str, refs: Mapping[str, str]) -> Any:
    return author.change(tag, "refer", conversation=author.session.conversation, refs=refs)


async def observe(author: Author, tag: str) -> None:
    """Store a ref from a model's answer."""
    with _stored(author, tag, {f"ref:{tag}@1": digest_of(text_of(tag))}):
        await author.session.observe(f'<ref id="{tag}">{text_of(tag)}</ref>')
    author.refs[tag] = 1, text_of(tag)


async def revise_ref(author: Author, tag: str) -> None:
    """Create a new version of a ref by a put, an append or an edit."""
    async with author.taken(author.refs, back=False) as (ref_id, (version, before)):
        refs, way = author.session.refs, author.chance.choice(("put", "append", "edit"))
        old = before.split(" ", 1)[0]
        # The first word may occur again in the text of an appended version: edit it only if it is unique.
        way = "put" if way == "edit" and before.count(old) != 1 else way
        made = {"put": text_of(tag), "append": f"{before}\n{text_of(tag)}", "edit": before.replace(old, tag, 1)}[way]
        with _stored(author, tag, {f"ref:{ref_id}@{version + 1}": digest_of(made)}):
            if way == "edit":
                refs.edit(ref_id, old, tag)
            else:
                refs.put(ref_id, text_of(tag), append=way == "append")
            await author.session.flush()
        author.refs[ref_id] = version + 1, made


async def wrap(author: Author, tag: str) -> None:
    """Wrap a long text, which the session stores as a descriptor."""
    text = f"{text_of(tag)} ".ljust(_LONG, "x")
    with _stored(author, tag, {f"?{tag}": digest_of(text)}) as answer:
        await author.session.wrap(text)
        refs = author.session.refs
        handle = next(one for one in refs if one.startswith("fd:") and refs.get(one).text == text)
        answer[f"?{tag} of {author.session.conversation}"] = {"handle": handle}


async def fork_conversation(author: Author, tag: str) -> None:
    """Fork the conversation, and store a ref in the fork only."""
    session, name = author.session, f"{author.session.conversation}-f-{tag}"
    async with author.turn():
        there = {
            handle: {"text": digest_of(session.refs.get(handle).text), "attributes": {}} for handle in session.refs
        }
        with author.change(tag, "fork", conversation=name, refs=there):
            forked = session.fork(name)
            await forked.flush()
        try:
            with author.change(f"{tag}-o", "refer", conversation=name, refs={f"ref:{tag}@1": digest_of(text_of(tag))}):
                await forked.observe(f'<ref id="{tag}">{text_of(tag)}</ref>')
        finally:
            await forked.close()
    author.forks.append(name)


async def delete_conversation(author: Author, tag: str) -> None:
    """Delete a fork of the conversation."""
    name = author.forks.pop()
    async with author.turn():
        with author.change(tag, "drop_conversation", conversation=name):
            await admin.delete_conversation(author.book.store, name, namespace=author.space)


async def look(author: Author, _tag: str) -> None:
    """
    Read the memory that any process acknowledged last, by id and by search.

    Log the memory as unseen unless both calls find it.
    """
    store, book = author.session.memories, author.book
    said = [(memory_id, tag) for _, _, memory_id, tag in book.read_last(kind="saved", namespace=store.namespace)]
    if not said:
        return
    memory_id, _ = said[-1]
    hits: Sequence[Hit] = ()
    with contextlib.suppress(MemoryNotFound):
        memory = await store.get(memory_id)
        hits = await store.search(memory.content[:_QUESTION], superseded="keep")
    is_going = any(memory_id == one[2] for one in book.read_last(2**20, kind="deleting", namespace=store.namespace))
    if not is_going and memory_id not in {hit.memory.id for hit in hits}:
        book.append("unseen", store.namespace, memory_id)


@attrs.frozen
class Change:
    """
    A kind of random change, with its weight and its precondition.

    Args:
        make: Makes a change with a tag.
        weight: The relative frequency of this kind.
        is_possible: Returns True if the author has the required items.

    """

    make: Callable[[Author, str], Awaitable[None]]
    weight: int = 2
    is_possible: Callable[[Author], object] = lambda _: True


def _has_records(kind: str) -> Callable[[Author], bool]:
    return lambda author: any(labels[0] == kind and keys for labels, keys in author.records.items())


CHANGES: Final[Mapping[str, Change]] = {
    "decision": Change(save_decision, 5),
    "evidence": Change(save_with_evidence),
    "checkpoint": Change(save_checkpoint, 1),
    "insight": Change(save_insight, 3),
    "context": Change(save_context),
    "many": Change(save_many, 3),
    "remember": Change(remember, 1),
    "supersede": Change(supersede, 3, lambda author: author.decisions),
    "outcome": Change(set_outcome, 3, lambda author: author.decisions),
    "correct": Change(correct, 3, lambda author: author.decisions),
    "merge": Change(merge, 4, lambda author: author.insights),
    "link": Change(link, 3, lambda author: len(author.decisions) > 1),
    "unlink": Change(unlink, 2, lambda author: author.standing_links),
    "delete": Change(delete, 2, lambda author: author.decisions),
    "forget": Change(forget, 1, lambda author: author.decisions),
    "prune": Change(prune, 1),
    "put": Change(put_record, 4),
    "append": Change(append_records, 2),
    "pop": Change(pop_record, 1, _has_records("list")),
    "remove": Change(remove_records, 1, _has_records("put")),
    "move": Change(move_record, 1, _has_records("put")),
    "sweep": Change(sweep_records, 1),
    "ref": Change(observe, 3),
    "revise": Change(revise_ref, 3, lambda author: author.refs),
    "wrap": Change(wrap, 1),
    "fork": Change(fork_conversation, 1, lambda author: author.book.store),
    "conversation": Change(delete_conversation, 1, lambda author: author.forks),
    "look": Change(look, 6),
}
"""All kinds of changes, by name."""

EVERY_CHANGE: Final = tuple(
    kind
    for name in CHANGES
    for kind in ({"move": ("put", "put", "move", "put"), "link": ("decision", "link")}.get(name, (name,)))
)
"""Each kind at least once, in an order in which the required items exist."""
