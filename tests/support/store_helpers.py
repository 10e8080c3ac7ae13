"""A correct memory store in one file, and incorrect variants, as subjects of the conformance suite."""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar


class FileStore:
    """A correct store. It appends a line per change synchronously, and reads the whole file in each call."""

    lacks: ClassVar = {}

    def open(self, location):
        self.folder = Path(location)
        self.folder.mkdir(exist_ok=True)
        self.path = self.folder / "log"

    def close(self):
        """Do nothing: the store has no resources."""

    @contextlib.contextmanager
    def locked(self):
        with (self.folder / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def append(self, *entry):
        line = json.dumps([datetime.now(UTC).isoformat(), *entry]).encode() + b"\n"
        with self.locked():
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            try:
                size = os.fstat(file).st_size
                if os.write(file, line) < len(line):
                    os.ftruncate(file, size)
                    raise OSError("no room for a line")
                os.fsync(file)
            finally:
                os.close(file)

    def lines(self):
        text = self.path.read_text() if self.path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def rows(self, as_of=None):
        """Return text and metadata by namespace and id."""
        found = {}
        for at, what, namespace, own, *given in self.lines():
            if as_of is not None and at > as_of.isoformat():
                break
            if what == "delete":
                found.pop((namespace, own), None)
            elif what == "save":
                found[namespace, own] = given
            elif (namespace, own) in found:
                found[namespace, own] = [given[0], found[namespace, own][1]]
        return found

    def of(self, namespace, as_of=None):
        return {own: row for (space, own), row in self.rows(as_of).items() if space == namespace}

    def save(self, namespace, key, text, metadata):
        self.append("save", namespace, key, text, metadata)

    def get(self, namespace, key):
        return self.of(namespace).get(key, [None])[0]

    def all(self, namespace):
        return [(own, text) for own, (text, _) in self.of(namespace).items()]

    def search(self, namespace, query, *, limit, where=(), as_of=None):
        return self.ranked(self.of(namespace, as_of), query, dict(where))[:limit]

    def ranked(self, rows, query, where):
        words = set(query.split())
        held = [(own, text) for own, (text, about) in rows.items() if where.items() <= about.items()]
        return sorted(held, key=lambda one: -len(words & set(one[1].split())))

    def replace(self, namespace, key, text):
        self.append("replace", namespace, key, text)

    def delete(self, namespace, key):
        self.append("delete", namespace, key)

    def forget(self, namespace, key):
        with self.locked():
            kept = [line for line in self.lines() if line[2:4] != [namespace, key]]
            draft = self.path.with_name("draft")
            draft.write_text("".join(f"{json.dumps(line)}\n" for line in kept))
            draft.replace(self.path)


class AsyncStore(FileStore):
    """An async variant of the store that assigns its own ids."""

    async def save(self, namespace, key, text, metadata):
        super().save(namespace, f"own-{key}", text, metadata)
        return f"own-{key}"

    async def get(self, namespace, key):
        return super().get(namespace, key)

    async def all(self, namespace):
        return super().all(namespace)


class LackingStore(FileStore):
    """A store that declares which capabilities it lacks. For some of them it has no methods."""

    lacks: ClassVar = {
        "time_travel": "it keeps no past",
        "deleting": "it only grows",
        "replacing": "nothing changes there",
    }
    replace = delete = forget = None


# Each of the following classes violates one requirement.


class LosesTheFifth(FileStore):
    count = 0

    def save(self, *given):
        self.count += 1
        if self.count % 5:
            super().save(*given)


class WritesAtTheEnd(FileStore):
    """Sees its own changes immediately, but writes them only when it is closed."""

    def open(self, location):
        super().open(location)
        self.held = []

    def append(self, *entry):
        self.held.append([datetime.now(UTC).isoformat(), *entry])

    def lines(self):
        return [*super().lines(), *self.held]

    def close(self):
        for _, *entry in self.held:
            super().append(*entry)


class WritesInHalves(FileStore):
    """Writes a text in two steps, so that a kill between them leaves half of the text."""

    def save(self, namespace, key, text, metadata):
        self.append("save", namespace, key, text[: len(text) // 2], metadata)
        time.sleep(0.05)
        self.append("save", namespace, key, text, metadata)


class LeavesItsLock(FileStore):
    def open(self, location):
        super().open(location)
        (self.folder / "mine").touch(exist_ok=False)

    def close(self):
        (self.folder / "mine").unlink()


class DiesOnAFullDisk(FileStore):
    def append(self, *entry):
        try:
            super().append(*entry)
        except OSError:
            os.abort()


class SwallowsErrors(FileStore):
    def append(self, *entry):
        with contextlib.suppress(OSError):
            super().append(*entry)


class KeepsHalfALine(FileStore):
    """Leaves a partial line on a full disk, and cannot read the file afterwards."""

    def append(self, *entry):
        with self.path.open("a") as file:
            file.write(json.dumps([datetime.now(UTC).isoformat(), *entry]) + "\n")

    def lines(self):
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []


class ReadsOnce(FileStore):
    """Reads the file only when the store is opened, and so misses later changes by other writers."""

    def open(self, location):
        super().open(location)
        self.known = super().lines()

    def append(self, *entry):
        super().append(*entry)
        self.known.append([datetime.now(UTC).isoformat(), *entry])

    def lines(self):
        return self.known


class WritesItAll(ReadsOnce):
    """
    Replaces the whole file with its own lines, so the lines of other writers are lost.

    Each process writes a draft of its own, so no reader sees half a file.
    """

    def append(self, *entry):
        self.known.append([datetime.now(UTC).isoformat(), *entry])
        draft = self.path.with_name(f"draft-{os.getpid()}")
        draft.write_text("".join(f"{json.dumps(line)}\n" for line in self.known))
        draft.replace(self.path)


class RefusesASecond(FileStore):
    def open(self, location):
        super().open(location)
        self.held = (self.folder / "held").open("a")
        fcntl.flock(self.held, fcntl.LOCK_EX | fcntl.LOCK_NB)


class MatchesPrefixes(FileStore):
    def of(self, namespace, as_of=None):
        return {own: row for (space, own), row in self.rows(as_of).items() if space.startswith(namespace)}


class MatchesPatterns(FileStore):
    def of(self, namespace, as_of=None):
        pattern = namespace.replace("_", "?").replace("%", "*")
        return {own: row for (space, own), row in self.rows(as_of).items() if fnmatch.fnmatchcase(space, pattern)}


class IgnoresCase(FileStore):
    def of(self, namespace, as_of=None):
        return {own: row for (space, own), row in self.rows(as_of).items() if space.lower() == namespace.lower()}


class SearchesEverywhere(FileStore):
    def search(self, namespace, query, *, limit, where=(), as_of=None):
        rows = {own: row for (_, own), row in self.rows(as_of).items()}
        return self.ranked(rows, query, dict(where))[:limit]


class GetsFromAnywhere(FileStore):
    def get(self, namespace, key):
        return next((text for (_, own), (text, _) in self.rows().items() if own == key), None)


class DeletesEverywhere(FileStore):
    def delete(self, namespace, key):
        for space, own in self.rows():
            if own == key:
                super().delete(space, own)


class DeletesForNow(FileStore):
    """Hides deleted memories only until the store is opened again."""

    def open(self, location):
        super().open(location)
        self.hidden = set()

    def delete(self, namespace, key):
        self.hidden.add((namespace, key))

    def rows(self, as_of=None):
        return {key: row for key, row in super().rows(as_of).items() if key not in self.hidden}


class FindsTheDeleted(FileStore):
    def search(self, namespace, query, *, limit, where=(), as_of=None):
        rows = {line[3]: line[4:] for line in self.lines() if line[1] == "save" and line[2] == namespace}
        return self.ranked(rows, query, dict(where))[:limit]


class KeepsBytes(FileStore):
    forget = FileStore.delete


class KeepsFormerBytes(FileStore):
    """Erases the current text, but not earlier versions."""

    def replace(self, namespace, key, text):
        with (self.folder / "former").open("a") as file:
            file.write(f"{self.get(namespace, key).upper()}\n")
        super().replace(namespace, key, text)


class FindsWhatWas(FileStore):
    """Searches the first version of each text, even if the text was replaced later."""

    def search(self, namespace, query, *, limit, where=(), as_of=None):
        first = {line[3]: line[4:] for line in self.lines() if line[1] == "save" and line[2] == namespace}
        return self.ranked({own: first[own] for own in self.of(namespace, as_of)}, query, dict(where))[:limit]


class SeesTheFuture(FileStore):
    def search(self, namespace, query, *, limit, where=(), as_of=None):
        return super().search(namespace, query, limit=limit, where=where)


class RewritesThePast(FileStore):
    """For a time in the past, selects the memories of that time, but returns their current texts."""

    def of(self, namespace, as_of=None):
        return {own: self.rows()[namespace, own] for own in super().of(namespace, as_of)}


class FiltersAfterwards(FileStore):
    """Filters only the first results of a search (four times *limit*), and so misses matches with lower ranks."""

    def search(self, namespace, query, *, limit, where=(), as_of=None):
        near = super().search(namespace, query, limit=4 * limit, as_of=as_of)
        held = self.of(namespace, as_of)
        return [one for one in near if dict(where).items() <= held[one[0]][1].items()][:limit]


class IgnoresFilters(FileStore):
    def search(self, namespace, query, *, limit, where=(), as_of=None):
        return super().search(namespace, query, limit=limit, as_of=as_of)


class FiltersByPrefix(FileStore):
    def ranked(self, rows, query, where):
        held = {
            own: row
            for own, row in rows.items()
            if all(row[1].get(name, "").startswith(value) for name, value in where.items())
        }
        return super().ranked(held, query, {})


class FindsTwenty(FileStore):
    def search(self, namespace, query, *, limit, where=(), as_of=None):
        return super().search(namespace, query, limit=min(limit, 20), where=where, as_of=as_of)


class FindsOnlyAlike(FileStore):
    """Finds only memories that share a word with the query, like a lexical search."""

    def ranked(self, rows, query, where):
        words = set(query.split())
        return [one for one in super().ranked(rows, query, where) if words & set(one[1].split())]


FAULTS = [
    (LosesTheFifth, "saved_is_found", "not there, or another text: 4 of 20"),
    (LosesTheFifth, "kill_loses_nothing", "acknowledged, and lost"),
    (WritesAtTheEnd, "kill_loses_nothing", "acknowledged, and lost"),
    (WritesAtTheEnd, "full_disk_loses_nothing", "acknowledged, and lost: .* of"),
    (WritesAtTheEnd, "others_see_at_once", "not there, or another text"),
    (WritesInHalves, "kill_loses_nothing", "there, whole or in part, and saved by nobody"),
    (LeavesItsLock, "kill_loses_nothing", "open: FileExistsError"),
    (DiesOnAFullDisk, "full_disk_loses_nothing", "save: its process ended"),
    (SwallowsErrors, "full_disk_loses_nothing", "acknowledged, and lost"),
    (KeepsHalfALine, "full_disk_loses_nothing", "cannot be read while the disk is full: get: JSONDecodeError"),
    (ReadsOnce, "others_see_at_once", "not there, or another text"),
    (WritesItAll, "two_writers_lose_nothing", "acknowledged, and lost"),
    (RefusesASecond, "two_writers_lose_nothing", "open: BlockingIOError"),
    (MatchesPrefixes, "namespaces_are_apart", "listed in 'alice', and of another one"),
    (MatchesPatterns, "namespaces_are_apart", "found in 'al%', and of another one"),
    (IgnoresCase, "namespaces_are_apart", "listed in 'Alice', and of another one"),
    (SearchesEverywhere, "namespaces_are_apart", "found in 'alice', and of another one"),
    (GetsFromAnywhere, "ids_are_of_their_namespace", "read from another namespace: 4 of 4"),
    (DeletesEverywhere, "deleting_stays_inside", "gone from 'alice-2'"),
    (DeletesEverywhere, "ids_are_of_their_namespace", "changed from another namespace: 4 of 4"),
    (DeletesForNow, "deleted_is_gone", "deleted, and read: 6 of 6"),
    (DeletesForNow, "kill_loses_nothing", "deleted, and back"),
    (FindsTheDeleted, "deleted_is_gone", "deleted, and found: 6 of 6"),
    (KeepsBytes, "no_byte_is_left", "words left in log: 84 of 84"),
    (KeepsFormerBytes, "no_byte_is_left", "words left in former: 12 of 84"),
    (FindsWhatWas, "replaced_is_gone", "found as it was before: 4 of 4"),
    (SeesTheFuture, "past_is_without_what_came_later", r"found, and saved later \(between\)"),
    (RewritesThePast, "past_shows_texts_as_they_were", "not shown as it was: 4 of 4"),
    (FiltersAfterwards, "filters_are_exact", "topic, limit 10: 0 hits, where there are 10"),
    (IgnoresFilters, "filters_are_exact", "topic 'tax': of others"),
    (FiltersByPrefix, "filters_are_exact", "topic 'tax': of others"),
    (FindsTwenty, "limit_is_exact", "limit 45: 20 hits, of 60 memories"),
    (FindsOnlyAlike, "limit_is_exact", "limit 45: 30 hits, of 60 memories"),
]
"""A store, a check that must fail for it, and the expected message."""
