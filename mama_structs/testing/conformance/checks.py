"""
Checks that a store under test must pass.

Each check reports one line per problem, and nothing on success.
"""

from __future__ import annotations

import contextlib
import functools
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, get_args

import attrs

from mama_structs.testing.conformance.ack_log import HANG_TIMEOUT_SECONDS, AckLog
from mama_structs.testing.conformance.process import StoreFailed, StoreProcess, list_store_files
from mama_structs.testing.conformance.sample_texts import make_long_text, make_text, make_words

Capability = Literal[
    "deleting", "replacing", "durability", "full_disk", "two_writers", "isolation", "scoped_ids", "forgetting",
    "time_travel", "filters",
]  # fmt: skip
"""Capabilities that a store may lack."""
CAPABILITIES: Final[tuple[str, ...]] = get_args(Capability)

_MAX_SEARCHED_MEMORIES: Final = 24
"""Maximum number of memories for which a check searches. Some stores search slowly."""
_MOMENT_PAUSE_SECONDS: Final = 0.05
"""Seconds to wait before and after the time for which a check later searches the past."""
_POLL_SECONDS: Final = 0.002
# A wrong comparison (by prefix, LIKE pattern or ignoring case) would treat some of these names as equal.
_SIMILAR_NAMES: Final = ("alice", "alice-2", "Alice", "al_ce", "al%", "alice/notes", "алиса")


@attrs.define
class ConformanceRun:
    """One run of a check on one store, with its findings."""

    driver: str
    location: str
    directory: Path
    seed: int
    rounds: int
    lacks: Mapping[str, str]
    # Prepended to each namespace name, so that checks can share a store.
    prefix: str = ""
    findings: list[str] = attrs.field(factory=list)

    def add_finding(self, message: str, count: int = 1, total: int | None = None) -> None:
        """Report a problem that occurred *count* times (of *total*), unless *count* is 0."""
        if count:
            self.findings.append(message if total is None else f"{message}: {count} of {total}")

    def get_namespace(self, name: str) -> str:
        """Return *name* with the namespace prefix of this run prepended."""
        return f"{self.prefix}{name}"

    def start_process(self) -> StoreProcess:
        """Start a process and open the store in it. The caller must end the process."""
        store = StoreProcess.start(self.driver, self.location, self.directory / "log")
        try:
            store("open")
        except BaseException:
            store.kill()
            raise
        return store

    @contextlib.contextmanager
    def open_store(self) -> Iterator[StoreProcess]:
        """Open the store in a new process, and close it afterwards."""
        store = self.start_process()
        try:
            yield store
            store("close")
        except BaseException:
            store.kill()
            raise
        store.wait_for_exit()

    def save_memories(
        self, store: StoreProcess, space: str, name: str, count: int, *, topic: str = "some", about: Sequence[str] = ()
    ) -> dict[str, str]:
        """Save memories, and return their texts by id."""
        texts = [make_text(f"{name}-{number}", about) for number in range(count)]
        rows = [[space, f"{name}-{at}", text, _make_metadata(topic)] for at, text in enumerate(texts)]
        ids = store("save_all", rows)
        if len(set(ids)) < count:
            raise StoreFailed(f"save: gave {len(set(ids))} ids to {count} memories")
        return dict(zip(ids, texts, strict=True))


CheckFunction = Callable[[ConformanceRun], None]


@attrs.frozen
class Check:
    """A check: its name, the capabilities that it needs from a store, and its function."""

    name: str
    needs: tuple[str, ...]
    run: CheckFunction

    @property
    def sentence(self) -> str:
        """The property that the check verifies. It is the docstring of the check's function."""
        return (self.run.__doc__ or "").strip().rstrip(".")

    def find_excuse(self, lacks: Mapping[str, str]) -> str | None:
        """Return the store's reason for lacking a needed capability, or None if the store has all of them."""
        return next((lacks[one] for one in self.needs if one in lacks), None)


CHECKS: Final[dict[str, Check]] = {}


def _register_check(*needs: str) -> Callable[[CheckFunction], CheckFunction]:
    def register(work: CheckFunction) -> CheckFunction:
        CHECKS[work.__name__] = Check(work.__name__, needs, work)
        return work

    return register


def _make_metadata(topic: str, kind: str = "context") -> dict[str, str]:
    return {"topic": topic, "kind": kind}


def _get_ids(found: Sequence[Sequence[str]]) -> list[str]:
    return [one[0] for one in found]


def _search(store: StoreProcess, space: str, query: str, **named: Any) -> list[tuple[str, str]]:
    return [(one, text) for one, text in store("search", space, query, {"limit": 10, **named})]


def _check_readable_and_found(trial: ConformanceRun, store: StoreProcess, space: str, texts: Mapping[str, str]) -> None:
    """Verify that each memory has its expected text and is found by a search for that text."""
    some = dict(list(texts.items())[:_MAX_SEARCHED_MEMORIES])
    trial.add_finding(
        "not there, or another text", sum(store("get", space, one) != texts[one] for one in some), len(some)
    )
    lost = sum(one not in _get_ids(_search(store, space, text)) for one, text in some.items())
    trial.add_finding("not found by a search for its text", lost, len(some))


# Saving, replacing, deleting


@_register_check()
def saved_is_found(trial: ConformanceRun) -> None:
    """A saved memory can be read and found by the next call, and also after the store is reopened."""
    space = trial.get_namespace("alice")
    with trial.open_store() as store:
        texts = trial.save_memories(store, space, "one", 20)
        _check_readable_and_found(trial, store, space, texts)
    with trial.open_store() as store:
        _check_readable_and_found(trial, store, space, texts)
        listed = [tuple(one) for one in store("all", space)]
        trial.add_finding("listed twice, not, or with another text", len(set(texts.items()) ^ set(listed)), len(texts))
        trial.add_finding("listed twice", len(listed) - len(set(listed)), len(texts))


@_register_check()
def limit_is_exact(trial: ConformanceRun) -> None:
    """A search returns exactly the requested number of memories, or all of them if there are fewer."""
    space, about = trial.get_namespace("alice"), make_words("matter", 2)
    with trial.open_store() as store:
        texts = trial.save_memories(store, space, "near", 30, about=about) | trial.save_memories(
            store, space, "far", 30
        )
        for limit in (1, 10, 45, 60, 100):
            found = _get_ids(_search(store, space, " ".join(about), limit=limit))
            wanted = min(limit, len(texts))
            if len(set(found)) != wanted or len(found) != wanted:
                trial.add_finding(f"limit {limit}: {len(set(found))} hits, of {len(texts)} memories")


@_register_check("replacing")
def replaced_is_gone(trial: ConformanceRun) -> None:
    """A replaced memory is read and found with its new text only, also after the store is reopened."""
    space = trial.get_namespace("alice")
    with trial.open_store() as store:
        texts = trial.save_memories(store, space, "one", 12)
        chosen = list(texts)[:4]
        old = {one: texts[one] for one in chosen}
        for one in chosen:
            texts[one] = make_text(f"new-{one}")
            store("replace", space, one, texts[one])
        _check_replaced(trial, store, space, texts, old)
    with trial.open_store() as store:
        _check_replaced(trial, store, space, texts, old)
        trial.add_finding("memories before and after", len(store("all", space)) != len(texts))


def _check_replaced(
    trial: ConformanceRun, store: StoreProcess, space: str, texts: Mapping[str, str], old: Mapping[str, str]
) -> None:
    _check_readable_and_found(trial, store, space, texts)
    still = sum(text in [shown for _, shown in _search(store, space, text)] for text in old.values())
    trial.add_finding("found as it was before", still, len(old))


@_register_check("deleting")
def deleted_is_gone(trial: ConformanceRun) -> None:
    """A deleted memory is not read, listed or found, even after the store is reopened, and no other memory is lost."""
    space = trial.get_namespace("alice")
    with trial.open_store() as store:
        texts = trial.save_memories(store, space, "one", 16)
        gone = {one: texts.pop(one) for one in list(texts)[:6]}
        for one in gone:
            store("delete", space, one)
        _check_deleted(trial, store, space, texts, gone)
    with trial.open_store() as store:
        _check_deleted(trial, store, space, texts, gone)


def _check_deleted(
    trial: ConformanceRun, store: StoreProcess, space: str, texts: Mapping[str, str], gone: Mapping[str, str]
) -> None:
    _check_readable_and_found(trial, store, space, texts)
    trial.add_finding("deleted, and read", sum(store("get", space, one) is not None for one in gone), len(gone))
    trial.add_finding("deleted, and listed", len(set(_get_ids(store("all", space))) & set(gone)), len(gone))
    found = sum(one in _get_ids(_search(store, space, text, limit=50)) for one, text in gone.items())
    trial.add_finding("deleted, and found", found, len(gone))


# Durability


@attrs.define
class _ExpectedContent:
    """The content that a store must have after the changes in a log. Each id has one or more allowed texts."""

    written_texts: dict[str, set[str]] = attrs.field(factory=lambda: defaultdict(set))
    acknowledged_texts: dict[str, dict[str, set[str]]] = attrs.field(factory=lambda: defaultdict(dict))
    deleted_ids: dict[str, set[str]] = attrs.field(factory=lambda: defaultdict(set))
    errors: list[str] = attrs.field(factory=list)

    def apply(self, lines: Sequence[Sequence[Any]]) -> _ExpectedContent:
        """Apply the lines of a log in order, and return this object."""
        for line in lines:
            match line:
                case ["saving", space, tag]:
                    self.written_texts[space].add(make_text(tag))
                case ["saved", space, own, tag]:
                    self.acknowledged_texts[space][own] = {make_text(tag)}
                case ["replacing", space, own, tag]:
                    self.written_texts[space].add(make_text(tag))
                    self.acknowledged_texts[space][own].add(make_text(tag))
                case ["replaced", space, own, tag]:
                    self.acknowledged_texts[space][own] = {make_text(tag)}
                case ["deleting", space, own]:
                    # A memory whose deletion has started but is not acknowledged may exist or not.
                    self.acknowledged_texts[space].pop(own)
                case ["deleted", space, own]:
                    self.deleted_ids[space].add(own)
                case ["refused", kind, error]:
                    self.errors.append(f"{kind}: {error}")
        return self

    @property
    def count(self) -> int:
        """The number of memories that must exist, because their saving was acknowledged."""
        return sum(map(len, self.acknowledged_texts.values()))

    def compare(self, trial: ConformanceRun, store: StoreProcess) -> None:
        """Add a finding for each kind of difference between the store's content and the expected content."""
        lost = wrong = unknown = back = missed = 0
        searched = 0
        for space, written in self.written_texts.items():
            kept, listed = self.acknowledged_texts[space], [tuple(one) for one in store("all", space)]
            there = dict(listed)
            lost += len(set(kept) - set(there))
            wrong += sum(there[one] not in texts for one, texts in kept.items() if one in there)
            unknown += len(listed) - len(there) + sum(text not in written for text in there.values())
            back += len(self.deleted_ids[space] & set(there))
            some = [one for one in kept if one in there][-_MAX_SEARCHED_MEMORIES:]
            searched += len(some)
            missed += sum(one not in _get_ids(_search(store, space, there[one])) for one in some)
        trial.add_finding("acknowledged, and lost", lost, self.count)
        trial.add_finding("acknowledged, and with another text", wrong, self.count)
        trial.add_finding("there, whole or in part, and saved by nobody", unknown, self.count)
        trial.add_finding("deleted, and back", back, sum(map(len, self.deleted_ids.values())))
        trial.add_finding("there, and not found by a search for its text", missed, searched)


def _start_stream(trial: ConformanceRun, store: StoreProcess, name: str, spaces: Sequence[str], count: int) -> Path:
    """Start random changes in the store's process without waiting for them to finish. Return the log's path."""
    path = trial.directory / f"{name}.book"
    kinds = [kind for kind, needs in (("replace", "replacing"), ("delete", "deleting")) if needs not in trial.lacks]
    store.send_call("stream", str(path), f"{trial.prefix}{name}-{trial.seed}", spaces, count, kinds)
    return path


@_register_check("durability")
def kill_loses_nothing(trial: ConformanceRun) -> None:
    """Acknowledged saves, replacements and deletions survive repeated kill -9, and searches find all memories."""
    chance = random.Random(trial.seed)  # noqa: S311 - reproducible by seed
    spaces, lines = [trial.get_namespace("alice"), trial.get_namespace("bob")], list[list[Any]]()
    for number in range(trial.rounds):
        store = trial.start_process()
        path, wanted = _start_stream(trial, store, f"r{number}", spaces, 10_000), chance.randrange(5, 45)
        until = time.monotonic() + HANG_TIMEOUT_SECONDS
        while len(AckLog.read(path)) < 2 * wanted and store.process.poll() is None and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        time.sleep(chance.uniform(0, 0.01))
        store.kill()
        lines += AckLog.read(path)
    expected = _ExpectedContent().apply(lines)
    trial.add_finding(f"refused: {expected.errors[0] if expected.errors else ''}", len(expected.errors), len(lines))
    trial.add_finding("nothing was acknowledged", expected.count == 0)
    with trial.open_store() as store:
        expected.compare(trial, store)
        trial.save_memories(store, spaces[0], "after", 1)


@_register_check("durability", "full_disk")
def full_disk_loses_nothing(trial: ConformanceRun) -> None:
    """On a full disk, memories are readable and acknowledged saves persist; with free space, all calls work again."""
    space = trial.get_namespace("alice")
    store = trial.start_process()
    try:
        texts = trial.save_memories(store, space, "before", 12)
        # First allow 48 KiB, so that some saves succeed, and then no write at all.
        for room, count in ((48 * 1024, 60), (0, 5)):
            store("limit", room)
            for number in range(count):
                tag = f"full-{room}-{number}"
                try:
                    texts[store("save", space, tag, make_long_text(tag), _make_metadata("some"))] = make_long_text(tag)
                except StoreFailed:
                    if store.process.poll() is not None:
                        raise
                    break
        _check_readable_on_full_disk(trial, store, space, texts)
    finally:
        store.kill()
    with trial.open_store() as store:
        there = {tuple(one) for one in store("all", space)}
        trial.add_finding("acknowledged, and lost", len(set(texts.items()) - there), len(texts))
        whole = {make_text(f"before-{at}") for at in range(12)} | {
            make_long_text(f"full-{room}-{number}") for room in (48 * 1024, 0) for number in range(60)
        }
        trial.add_finding("there only in part", sum(text not in whole for _, text in there), len(there))
        _check_readable_and_found(trial, store, space, texts)
        _check_readable_and_found(trial, store, space, trial.save_memories(store, space, "after", 3))


def _check_readable_on_full_disk(
    trial: ConformanceRun, store: StoreProcess, space: str, texts: Mapping[str, str]
) -> None:
    """Verify that the memories from before the disk was full can be read while it is full."""
    for one, text in list(texts.items())[:12]:
        try:
            is_read = store("get", space, one) == text
        except StoreFailed as failed:
            trial.add_finding(f"cannot be read while the disk is full: {failed}")
            return
        trial.add_finding("another text while the disk is full", not is_read)


# Several processes


@_register_check("durability", "two_writers")
def two_writers_lose_nothing(trial: ConformanceRun) -> None:
    """When two processes write to a store concurrently, no call fails, and a third process finds all changes."""
    space = trial.get_namespace("alice")
    with trial.open_store() as one, trial.open_store() as other:
        paths = [_start_stream(trial, store, name, [space], 40) for store, name in ((one, "one"), (other, "other"))]
        one.wait_for_result("stream")
        other.wait_for_result("stream")
    expected = _ExpectedContent().apply([line for path in paths for line in AckLog.read(path)])
    trial.add_finding(f"refused: {expected.errors[0] if expected.errors else ''}", len(expected.errors), 80)
    with trial.open_store() as store:
        expected.compare(trial, store)


@_register_check("two_writers")
def others_see_at_once(trial: ConformanceRun) -> None:
    """The saves and deletions of one process are visible to the next call of another process."""
    space = trial.get_namespace("alice")
    with trial.open_store() as one, trial.open_store() as other:
        # The other process reads first. If it never invalidates its cache, the check fails.
        first = trial.save_memories(one, space, "first", 4)
        _check_readable_and_found(trial, other, space, first)
        texts = trial.save_memories(one, space, "one", 6) | trial.save_memories(other, space, "other", 6)
        _check_readable_and_found(trial, other, space, texts)
        _check_readable_and_found(trial, one, space, texts)
        for gone, text in () if "deleting" in trial.lacks else first.items():
            one("delete", space, gone)
            trial.add_finding("deleted by another process, and read", other("get", space, gone) is not None)
            trial.add_finding("deleted by another process, and found", gone in _get_ids(_search(other, space, text)))


# Isolation


@_register_check("isolation")
def namespaces_are_apart(trial: ConformanceRun) -> None:
    """Listing or searching a namespace returns no memory of another namespace, regardless of their names."""
    spaces = [trial.get_namespace(name) for name in _SIMILAR_NAMES]
    with trial.open_store() as store:
        own = {space: trial.save_memories(store, space, f"n{at}", 3) for at, space in enumerate(spaces)}
        empty = trial.get_namespace("ali")
        for space in [*spaces, empty]:
            mine = set(own.get(space, {}).values())
            trial.add_finding(
                f"listed in {space!r}, and of another one", len({text for _, text in store("all", space)} - mine)
            )
            missed = len(mine - {text for _, text in store("all", space)})
            trial.add_finding(f"missing in {space!r}", missed)
            seen = set[str]()
            for texts in own.values():
                seen |= {text for _, text in _search(store, space, next(iter(texts.values())), limit=50)}
            trial.add_finding(f"found in {space!r}, and of another one", len(seen - mine))


@_register_check("isolation", "deleting")
def deleting_stays_inside(trial: ConformanceRun) -> None:
    """Deleting all memories of a namespace leaves all other namespaces unchanged."""
    spaces = [trial.get_namespace(name) for name in _SIMILAR_NAMES]
    with trial.open_store() as store:
        own = {space: trial.save_memories(store, space, "same", 3) for space in spaces}
        for one in own[spaces[0]]:
            store("delete", spaces[0], one)
        trial.add_finding("deleted, and listed", len(store("all", spaces[0])))
        for space in spaces[1:]:
            trial.add_finding(f"gone from {space!r}", 3 - len(store("all", space)))
            _check_readable_and_found(trial, store, space, own[space])


@_register_check("isolation", "scoped_ids")
def ids_are_of_their_namespace(trial: ConformanceRun) -> None:
    """An id from one namespace does not read, replace or delete anything when it is used in another namespace."""
    mine, other = trial.get_namespace("alice"), trial.get_namespace("bob")
    with trial.open_store() as store:
        texts = trial.save_memories(store, mine, "mine", 4)
        trial.save_memories(store, other, "other", 4)
        shown = sum(store("get", other, one) is not None for one in texts)
        trial.add_finding("read from another namespace", shown, len(texts))
        calls = {"deleting": ("delete",), "replacing": ("replace", make_text("theirs"))}
        for name, *given in [call for needs, call in calls.items() if needs not in trial.lacks]:
            for one in texts:
                # Rejecting the call with an error is also correct.
                with contextlib.suppress(StoreFailed):
                    store(name, other, one, *given)
        changed = sum(store("get", mine, one) != text for one, text in texts.items())
        trial.add_finding("changed from another namespace", changed, len(texts))


# Forgetting


@_register_check("forgetting", "deleting")
def no_byte_is_left(trial: ConformanceRun) -> None:
    """No word of a forgotten text or of its earlier versions remains in any file of the closed store."""
    space = trial.get_namespace("alice")
    with trial.open_store() as store:
        trial.save_memories(store, space, "stays", 10)
        chosen = dict(list(trial.save_memories(store, space, "goes", 6).items()))
        forgotten = list(chosen.values())
        if "replacing" not in trial.lacks:
            first = next(iter(chosen))
            forgotten.append(make_text("before-it-goes"))
            store("replace", space, first, forgotten[-1])
        found = _find_words_in_files(trial, forgotten)
        for one in chosen:
            store("forget", space, one)
    if not found:
        trial.add_finding("no text was found in the files before, so that this check shows nothing")
    left = _find_words_in_files(trial, forgotten)
    files = sorted({path.name for paths in left.values() for path in paths})
    trial.add_finding(
        f"words left in {', '.join(files[:4])}", len(left), len({w for text in forgotten for w in text.split()})
    )


def _find_words_in_files(trial: ConformanceRun, texts: Sequence[str]) -> dict[str, list[Path]]:
    """
    Return, for each word of the texts, the files of the store that contain it.

    Words are searched case-insensitively, as UTF-8 and UTF-16.
    """
    words = {word: (word.encode(), word.encode("utf-16-le")) for text in texts for word in text.split()}
    found = defaultdict[str, list[Path]](list)
    for path in list_store_files(trial.location):
        held = path.read_bytes().lower()
        for word, forms in words.items():
            if any(form in held for form in forms):
                found[word].append(path)
    return found


# Time travel


@contextlib.contextmanager
def _pause_around_now() -> Iterator[str]:
    """Yield the current time, with a pause before and after it, so that no change has the same timestamp."""
    time.sleep(_MOMENT_PAUSE_SECONDS)
    yield datetime.now(UTC).isoformat()
    time.sleep(_MOMENT_PAUSE_SECONDS)


@_register_check("time_travel")
def past_is_without_what_came_later(trial: ConformanceRun) -> None:
    """A search as of a past time finds the memories that existed then, and none that were saved later."""
    space, about = trial.get_namespace("alice"), make_words("matter", 2)
    with trial.open_store() as store:
        with _pause_around_now() as nothing:
            pass
        first = trial.save_memories(store, space, "first", 5, about=about)
        with _pause_around_now() as then:
            pass
        later = trial.save_memories(store, space, "later", 5, about=about)
        query = " ".join(about)
        for name, moment, wanted in (
            ("before all", nothing, set[str]()),
            ("between", then, set(first)),
            ("now", None, {*first, *later}),
        ):
            named = {"limit": 20} if moment is None else {"limit": 20, "as_of": moment}
            found = set(_get_ids(_search(store, space, query, **named)))
            trial.add_finding(f"found, and saved later ({name})", len(found - wanted))
            trial.add_finding(f"not found ({name})", len(wanted - found), len(wanted))


@_register_check("time_travel", "replacing")
def past_shows_texts_as_they_were(trial: ConformanceRun) -> None:
    """A search as of a time before a text was replaced returns the original text, also in a new process."""
    space = trial.get_namespace("alice")
    with trial.open_store() as store:
        texts = trial.save_memories(store, space, "first", 4)
        with _pause_around_now() as then:
            pass
        for one in texts:
            store("replace", space, one, make_text(f"new-{one}"))
    with trial.open_store() as store:
        shown: dict[str, str] = {}
        for text in texts.values():
            shown |= dict(_search(store, space, text, as_of=then))
        wrong = sum(shown.get(one) != text for one, text in texts.items())
        trial.add_finding("not shown as it was", wrong, len(texts))


# Filters


@_register_check("filters")
def filters_are_exact(trial: ConformanceRun) -> None:
    """A filtered search returns the requested number of matches and nothing else, even if many others are nearer."""
    space, about = trial.get_namespace("alice"), make_words("matter", 3)
    # A wrong comparison (by prefix, LIKE pattern or ignoring case) would treat some of these names as equal.
    counts = {"tax": 12, "taxes": 3, "Tax": 3, "ta%": 3, "t_x": 3}
    query = " ".join(about)
    with trial.open_store() as store:
        trial.save_memories(store, space, "near", 150, topic="raid", about=about)
        own = {
            topic: set(trial.save_memories(store, space, topic, count, topic=topic)) for topic, count in counts.items()
        }
        kinds = [f"kind-{at}" for at in range(6)]
        rows = [[space, tag, make_text(tag), _make_metadata("tax", "decision")] for tag in kinds]
        decided = set(store("save_all", rows))
        own["tax"] |= decided
        asked = functools.partial(_search, store, space, query)
        for topic, wanted in own.items():
            _check_filtered(trial, f"topic {topic!r}", asked(limit=50, where={"topic": topic}), wanted, len(wanted))
        _check_filtered(trial, "topic, limit 10", asked(limit=10, where={"topic": "tax"}), own["tax"], 10)
        both = asked(limit=50, where={"topic": "tax", "kind": "decision"})
        _check_filtered(trial, "topic and kind", both, decided, len(decided))
        _check_filtered(trial, "a topic of none", asked(limit=10, where={"topic": "none"}), set(), 0)


def _check_filtered(
    trial: ConformanceRun, name: str, hits: Sequence[Sequence[str]], wanted: set[str], count: int
) -> None:
    found = set(_get_ids(hits))
    trial.add_finding(f"{name}: of others", len(found - wanted))
    if len(found & wanted) != count:
        trial.add_finding(f"{name}: {len(found & wanted)} hits, where there are {count}")
