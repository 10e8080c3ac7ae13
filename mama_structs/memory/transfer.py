"""Memories written to a file with all that belongs to them, and read from one."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Self

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs._async import in_own_thread
from mama_structs.errors import EmbedderMismatch, InvalidArgument, StoreError
from mama_structs.memory import export_lines
from mama_structs.memory.codec import vectors_to_bytes
from mama_structs.memory.contents import digests_in
from mama_structs.memory.embedding.service import EmbeddingService
from mama_structs.memory.engine import EmbedderRecord, Engine, Reader, Writer
from mama_structs.memory.export_lines import Header, KeptText, Record
from mama_structs.memory.maintenance import record_of
from mama_structs.memory.model import Link, Memory
from mama_structs.memory.results import Imported
from mama_structs.memory.text import embedded_text
from mama_structs.storage.files import DraftFile

Progress = Callable[[int, int], object]

_PAGE: Final = 500
_CHUNK: Final = 256
_CHUNK_BYTES: Final = 2**23
_SAME_TEXT: Final = "it has the hash of an earlier line's text"


async def export_jsonl(backend: Engine, path: Path, progress: Progress | None) -> int:
    """
    Write all memories to a file, in order of saving, and return how many.

    The form is that of `mama_structs.memory.export_lines`.
    What is saved meanwhile is in it if its turn had not come.

    Args:
        backend: What keeps the memories.
        path: The file; one that is there is replaced when the new one is whole and durable.
        progress: Called with how many memories are written, and of how many.

    Raises:
        StoreFull: There is no room for the file; nothing is left of it.
        StoreError: The file cannot be written, the store not be read, or the memories were embedded anew meanwhile;
            nothing is left of it.

    """
    with contextlib.ExitStack() as stack:
        draft = await in_own_thread(lambda: _draft(path, stack))
        header = export_lines.write_header(backend.namespace, backend.embedder)
        await in_own_thread(lambda: draft.write(header))
        exporting, count, contents = _Exporting(backend), 0, 0
        while (page := await exporting.next()) is not None:
            await in_own_thread(lambda: draft.write(b"".join(_written(page))))
            count += len(page.lines)
            contents += sum(len(one.contents) for one in page.lines)
            if progress is not None:
                progress(count, max(page.total, count))
        end = export_lines.write_end(count, contents)
        await in_own_thread(lambda: draft.write(end))
        await in_own_thread(draft.publish)
        return count


def embedder_of(path: Path) -> EmbedderRecord:
    """
    Return which embedder made the vectors in an export; blocks for a moment.

    Raises:
        InvalidArgument: The file is no export.

    """
    with contextlib.ExitStack() as stack:
        return _ExportFile.open(path, stack).header.embedder


async def import_jsonl(backend: Engine, embedding: EmbeddingService, path: Path, progress: Progress | None) -> Imported:
    """
    Add the memories of a file that `export_jsonl` wrote, into whatever namespace the backend keeps.

    Every line is read and compared with the store before anything is written.
    What is there already, the same, stays as it is, so that an interrupted import is simply repeated; links of such a
    memory that are missing are added.

    Args:
        backend: What keeps the memories.
        embedding: Embeds anew where another embedder made the file's vectors.
        path: The file.
        progress: Called with how many memories were taken, and of how many.

    Raises:
        InvalidArgument: There is no such file, a line breaks a rule, or a memory or link of that id is there with
            other content; the message names the line. Nothing was imported.
        EmbeddingFailed: The embedder failed; what was imported before stays.
        EmbedderMismatch: The memories were embedded anew meanwhile; what was imported before stays.
        StoreError: The store cannot be read or written; what was imported before stays.

    """
    with contextlib.ExitStack() as stack:
        file = await in_own_thread(lambda: _ExportFile.open(path, stack))
        return await _Import(backend, embedding, file, progress).run()


def _draft(path: Path, stack: contextlib.ExitStack) -> DraftFile:
    # Put on the stack here: a caller that was cancelled meanwhile never gets it.
    draft = DraftFile(path)
    stack.callback(draft.discard)
    return draft


@attrs.frozen(eq=False)
class _Exported:
    """A memory with its links and vectors, and the texts that it is the first to name."""

    memory: Memory
    links: tuple[Link, ...]
    vectors: bytes
    contents: Mapping[str, str]


@attrs.frozen(eq=False)
class _Page:
    """What one look at the store gives: memories, and how many there are."""

    lines: Sequence[_Exported]
    total: int


@attrs.define(eq=False)
class _Exporting:
    """
    How far an export has come.

    It goes by ids: nodes mean something within one plan only, and may be numbered anew between two.
    """

    backend: Engine
    embedder: EmbedderRecord = attrs.field(init=False, default=attrs.Factory(lambda self: self.backend.embedder, True))
    waiting: deque[str] = attrs.field(init=False, factory=deque)
    seen: set[str] = attrs.field(init=False, factory=set)
    written: set[str] = attrs.field(init=False, factory=set)

    async def next(self) -> _Page | None:
        """Return the next memories, None where there are no more; a page may be empty."""
        if not self.waiting:
            # All at first, then what was saved meanwhile.
            self.waiting.extend(await self.backend.read(self._unseen))
            self.seen.update(self.waiting)
        return await self.backend.read(self._page) if self.waiting else None

    def _unseen(self, reader: Reader) -> list[str]:
        nodes = np.sort(reader.window(newest_first=False))
        return [memory_id for memory_id in reader.ids(nodes) if memory_id not in self.seen]

    def _page(self, reader: Reader) -> _Page:
        if self.backend.embedder != self.embedder:
            raise StoreError("the memories were embedded anew while they were exported", hint="export them again")
        wanted = [self.waiting.popleft() for _ in range(min(_PAGE, len(self.waiting)))]
        # What was deleted meanwhile is found no more.
        nodes = {node: memory_id for memory_id in wanted if (node := reader.find(memory_id)) is not None}
        found = reader.scan(after=min(nodes) - 1, limit=len(nodes)) if nodes else []
        lines: list[_Exported] = []
        size = 0
        for one in found:
            # Texts may be long: the rest has its turn later, as where others have come to be in between.
            if one.node not in nodes or size > _CHUNK_BYTES:
                continue
            contents = self._contents(reader, one.memory)
            size += sum(map(len, contents.values()))
            # The vectors are copied here: later they may be the engine's to change.
            lines.append(_Exported(one.memory, one.links, vectors_to_bytes(one.vectors), contents))
        written = {line.memory.id for line in lines}
        self.waiting.extendleft(memory_id for memory_id in reversed(nodes.values()) if memory_id not in written)
        return _Page(lines, reader.count())

    def _contents(self, reader: Reader, memory: Memory) -> dict[str, str]:
        """Return the texts that a memory's evidence names, without those that were given before."""
        found = reader.contents([digest for digest in digests_in(memory.evidence) if digest not in self.written])
        self.written.update(found)
        return found


def _written(page: _Page) -> list[bytes]:
    lines = []
    for one in page.lines:
        lines += [export_lines.write_content(digest, text) for digest, text in one.contents.items()]
        lines.append(export_lines.write_memory(one.memory, one.links, one.vectors))
    return lines


@attrs.frozen(eq=False)
class _Numbered:
    """A record, and where it stands: its line's number and the byte at which that begins."""

    number: int
    offset: int
    record: Record


@attrs.frozen(eq=False)
class _Chunk:
    """Some lines that follow one another."""

    records: Sequence[_Numbered]
    contents: Mapping[str, str]
    # Where each text stands, as for a record.
    places: Mapping[str, tuple[int, int]]

    def __len__(self) -> int:
        return len(self.records) + len(self.contents)


@attrs.define(eq=False)
class _ExportFile:
    """An export that is read; its calls block."""

    path: Path
    file: BinaryIO
    header: Header
    start: int
    memories: int

    @classmethod
    def open(cls, path: Path, stack: contextlib.ExitStack) -> Self:
        """
        Open an export, and read its first and its last line.

        Args:
            path: The file.
            stack: What closes it.

        Raises:
            InvalidArgument: It is none.

        """
        try:
            # Without O_NONBLOCK the opening of a FIFO waits for its other end.
            fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        except (OSError, ValueError) as error:
            said = getattr(error, "strerror", None) or error
            raise InvalidArgument(f"path must be an export of memories, {str(path)!r:.200}: {said}") from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise InvalidArgument(f"path must be a file, and {str(path)!r:.200} is none")
        file = stack.enter_context(os.fdopen(fd, "rb"))
        try:
            line = _read_line(file)
            header = export_lines.read_header(line)
            return cls(path, file, header, len(line), _memories_in(file))
        except InvalidArgument:
            raise
        except ValueError as error:
            raise _refused(1, error) from error
        except OSError as error:
            raise _unreadable(error) from error

    def read(self, number: int, offset: int) -> tuple[_Chunk, int | None]:
        """
        Return the memories and texts of some lines, and the byte at which the next line begins, None at the file's end.

        Args:
            number: The first line's number, the header being line 1.
            offset: The byte at which it begins.

        Raises:
            InvalidArgument: A line breaks a rule.

        """
        found: list[_Numbered] = []
        contents: dict[str, str] = {}
        places: dict[str, tuple[int, int]] = {}
        chunk = _Chunk(found, contents, places)
        begin = offset
        self.file.seek(offset)
        while len(chunk) < _CHUNK and offset - begin < _CHUNK_BYTES:
            try:
                line = _read_line(self.file)
                if not line:
                    raise ValueError("it is missing: the file was cut off")
                if export_lines.is_end(line):
                    self._check_end(line, number)
                    return chunk, None
                if export_lines.is_content(line):
                    kept = export_lines.read_content(line)
                    if kept.digest in contents:
                        raise ValueError(_SAME_TEXT)
                    contents[kept.digest], places[kept.digest] = kept.text, (number, offset)
                else:
                    found.append(_Numbered(number, offset, export_lines.read_memory(line, self.header)))
            except InvalidArgument:
                raise
            except ValueError as error:
                raise _refused(number, error) from error
            number, offset = number + 1, offset + len(line)
        return chunk, offset

    def read_at(self, places: Sequence[tuple[int, int]]) -> list[_Numbered]:
        """Return the memories of lines whose numbers and bytes are known."""
        found = []
        for number, offset in places:
            self.file.seek(offset)
            try:
                found.append(_Numbered(number, offset, export_lines.read_memory(_read_line(self.file), self.header)))
            except InvalidArgument:
                raise
            except ValueError as error:
                raise _refused(number, error) from error
        return found

    def content_at(self, number: int, offset: int) -> KeptText:
        """Return the text of a line whose number and byte are known."""
        self.file.seek(offset)
        try:
            return export_lines.read_content(_read_line(self.file))
        except InvalidArgument:
            raise
        except ValueError as error:
            raise _refused(number, error) from error

    def _check_end(self, line: bytes, number: int) -> None:
        said = export_lines.read_end(line)
        if said.memories + said.contents != number - 2:
            texts = f" and {said.contents} texts" if said.contents else ""
            raise ValueError(f"it says that there are {said.memories} memories{texts}, and there are {number - 2}")
        if self.file.read(1):
            raise ValueError("it is the last one, and more follows")


def _unreadable(error: OSError) -> InvalidArgument:
    return InvalidArgument(f"path cannot be read: {error.strerror or type(error).__name__}")


def _read_line(file: BinaryIO) -> bytes:
    try:
        line = file.readline(export_lines.LONGEST_LINE + 1)
    except OSError as error:
        raise _unreadable(error) from error
    if len(line) > export_lines.LONGEST_LINE:
        raise ValueError(f"it is longer than {export_lines.LONGEST_LINE} bytes")
    if line and not line.endswith(b"\n"):
        raise ValueError("it has no line break at its end: the file was cut off")
    return line


def _memories_in(file: BinaryIO) -> int:
    """Return how many memories the last line says that there are: a file that was cut off is noticed at once."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 200))
    last = file.read().rstrip(b"\r\n").rpartition(b"\n")[2]
    try:
        return export_lines.read_end(last).memories
    except ValueError as error:
        raise InvalidArgument(
            "the file's last line is not the end of an export: it was cut off", hint="copy or export it again"
        ) from error


def _refused(number: int, error: ValueError) -> InvalidArgument:
    return InvalidArgument(f"line {number}: {error}", hint="nothing was imported")


@attrs.frozen(eq=False)
class _Taken:
    """What one transaction of an import did: its figures, and the lines whose links could not all be made yet."""

    added: int = 0
    known: int = 0
    dropped: int = 0
    later: Sequence[tuple[int, int]] = ()


class _Absent(Exception):
    """
    Texts that memories name are neither at hand nor in the store.

    Args:
        digests: Their hashes.

    """

    def __init__(self, digests: Collection[str]) -> None:
        super().__init__(len(digests))
        self.digests = digests


@attrs.define(eq=False)
class _Import:
    """One run of `import_jsonl`."""

    backend: Engine
    embedding: EmbeddingService
    file: _ExportFile
    progress: Progress | None
    ids: set[str] = attrs.field(factory=set, init=False)
    places: dict[str, tuple[int, int]] = attrs.field(factory=dict, init=False)
    made_by: EmbedderRecord | None = attrs.field(default=None, init=False)

    async def run(self) -> Imported:
        await self._check()
        as_they_are = self.file.header.embedder == self.backend.embedder
        self.made_by = self.file.header.embedder if as_they_are else record_of(self.embedding.embedder)
        added = known = dropped = embedded = 0
        later: list[tuple[int, int]] = []
        async for chunk in self._chunks():
            if not chunk.records:
                continue
            vectors = {} if as_they_are else await self._embedded(chunk.records)
            taken = await self._taken(chunk, vectors)
            added, known, dropped = added + taken.added, known + taken.known, dropped + taken.dropped
            embedded += 0 if as_they_are else taken.added
            later.extend(taken.later)
            self._tell(added + known)
        for start in range(0, len(later), _CHUNK):
            places = later[start : start + _CHUNK]
            again = await in_own_thread(lambda: self.file.read_at(places))  # noqa: B023 - awaited
            dropped += await self.backend.write(lambda writer: self._link(writer, again))  # noqa: B023 - awaited
        return Imported(added=added, known=known, embedded=embedded, dropped_links=dropped)

    async def _check(self) -> None:
        """Read every line, and compare it with the store."""
        links: set[str] = set()
        self._tell(0)
        async for chunk in self._chunks():
            self._check_contents(chunk)
            for one in chunk.records:
                own = {link.id for link in one.record.links}
                if one.record.memory.id in self.ids:
                    raise _refused(one.number, ValueError(f"it has the id of an earlier line, {_shown(one)}"))
                if not links.isdisjoint(own):
                    raise _refused(one.number, ValueError("it has a link with the id of an earlier line's"))
                self.ids.add(one.record.memory.id)
                links |= own
            await self.backend.read(lambda reader: self._compare(reader, chunk.records, links_too=True))  # noqa: B023 - awaited

    def _check_contents(self, chunk: _Chunk) -> None:
        for digest, (number, offset) in chunk.places.items():
            if digest in self.places:
                raise _refused(number, ValueError(_SAME_TEXT))
            self.places[digest] = (number, offset)
        for one in chunk.records:
            for digest in digests_in(one.record.memory.evidence):
                if digest not in self.places or self.places[digest][0] > one.number:
                    said = "`$.memory.evidence` names a text that no line before it has"
                    raise _refused(one.number, ValueError(said))

    async def _chunks(self) -> AsyncIterator[_Chunk]:
        number = 2
        offset: int | None = self.file.start
        while offset is not None:
            chunk, offset = await in_own_thread(lambda begin=offset: self.file.read(number, begin))  # type: ignore[misc]  # noqa: B023 - awaited
            number += len(chunk)
            if len(chunk):
                yield chunk

    async def _taken(self, chunk: _Chunk, vectors: Mapping[str, NDArray[np.float32]]) -> _Taken:
        """Write the memories of a chunk with the texts that they name."""
        contents = dict(chunk.contents)
        while True:
            try:
                return await self.backend.write(lambda writer: self._take(writer, chunk.records, vectors, contents))
            except _Absent as absent:
                # An earlier chunk had them, and somebody has deleted since what named them.
                for digest in absent.digests:
                    number, offset = self.places[digest]
                    kept = await in_own_thread(lambda at=(number, offset): self.file.content_at(*at))  # type: ignore[misc]  # bound
                    contents[kept.digest] = kept.text

    def _compare(
        self, reader: Reader, chunk: Sequence[_Numbered], *, links_too: bool = False
    ) -> dict[str, tuple[Link, ...]]:
        """
        Return the links that are missing, by memory, for the memories that are there already.

        Args:
            reader: The store.
            chunk: What is compared with it.
            links_too: Whether to look everywhere for links that are missing: each look takes longer the more links
                there are.

        Raises:
            InvalidArgument: A memory or link of that id is there, and not the same.

        """
        ids = list(dict.fromkeys(one.record.memory.id for one in chunk))
        known = {one: node for one, node in zip(ids, reader.find_many(ids), strict=True) if node is not None}
        nodes = list(known.values())
        stored = dict(zip(known, reader.get(nodes), strict=True))
        own = dict(zip(known, reader.links_of_many(nodes, "out"), strict=True))
        asked = [link.id for one in chunk for link in one.record.links] if links_too else []
        taken = {link.id for link in reader.find_links(asked) if link is not None}
        missing = {}
        for one in chunk:
            memory, links = one.record.memory, one.record.links
            if memory.id in known:
                if stored[memory.id] != self._own(memory):
                    raise InvalidArgument(
                        f"line {one.number}: a memory with the id {_shown(one)} is there with other content",
                        hint="import into another namespace, or delete that memory first",
                    )
                there = {link.id for link in own[memory.id]}
                links = missing[memory.id] = tuple(link for link in links if link.id not in there)
            for link in links if links_too else ():
                if link.id in taken:
                    raise InvalidArgument(
                        f"line {one.number}: a link with the id {link.id!r:.80} is there between other memories",
                        hint="import into another namespace",
                    )
        return missing

    async def _embedded(self, chunk: Sequence[_Numbered]) -> dict[str, NDArray[np.float32]]:
        """Return vectors for those of the memories that are not there."""
        known = await self.backend.read(lambda reader: self._compare(reader, chunk))
        new = [one.record.memory for one in chunk if one.record.memory.id not in known]
        vectors = await self.embedding.documents([embedded_text(memory) for memory in new]) if new else []
        return {memory.id: pieces for memory, pieces in zip(new, vectors, strict=True)}

    def _take(
        self,
        writer: Writer,
        chunk: Sequence[_Numbered],
        vectors: Mapping[str, NDArray[np.float32]],
        contents: Mapping[str, str],
    ) -> _Taken:
        """Write memories with the texts that they name, and those of their links whose other end is there."""
        self._check_embedder()
        known = self._compare(writer, chunk)
        named = {
            digest
            for one in chunk
            if one.record.memory.id not in known
            for digest in digests_in(one.record.memory.evidence)
        }
        wanted_texts = sorted(named.difference(contents))
        absent = sorted(set(wanted_texts) - writer.known_contents(wanted_texts))
        if absent:
            raise _Absent(absent)
        dropped, later = 0, []
        for one in chunk:
            memory = self._own(one.record.memory)
            wanted = known.get(memory.id, one.record.links)
            ready = [link for link in wanted if writer.find(link.to_id) is not None]
            waiting = sum(link.to_id in self.ids for link in wanted) - sum(link.to_id in self.ids for link in ready)
            dropped += len(wanted) - len(ready) - waiting
            if waiting:
                later.append((one.number, one.offset))
            if memory.id not in known:
                made = vectors.get(memory.id, one.record.vectors)
                writer.put(memory, vectors=made, links=ready, contents=contents)
            elif ready:
                writer.put(memory, links=ready)
        return _Taken(added=len(chunk) - len(known), known=len(known), dropped=dropped, later=later)

    def _link(self, writer: Writer, chunk: Sequence[_Numbered]) -> int:
        """Add the links that had to wait, and return how many lead to a memory that was deleted meanwhile."""
        dropped = 0
        for memory_id, missing in self._compare(writer, chunk).items():
            node = writer.find(memory_id)
            wanted = [link for link in missing if link.to_id in self.ids]
            ready = [link for link in wanted if writer.find(link.to_id) is not None]
            dropped += len(wanted) - len(ready)
            if ready and node is not None:
                writer.put(writer.get([node])[0], links=ready)
        return dropped

    def _check_embedder(self) -> None:
        """See that nobody has embedded everything anew since: the vectors at hand would be taken for the new one's."""
        stored, given = self.backend.embedder, self.made_by
        if given is not None and stored != given:
            raise EmbedderMismatch(
                f"the memories of {self.backend.namespace!r:.80} were embedded anew, by {stored.name}, while others "
                f"were imported with vectors of {given.name}",
                stored=(stored.name, stored.fingerprint),
                given=(given.name, given.fingerprint),
                hint="repeat the import: what is there already stays as it is",
            )

    def _own(self, memory: Memory) -> Memory:
        return attrs.evolve(memory, namespace=self.backend.namespace)

    def _tell(self, done: int) -> None:
        if self.progress is not None:
            self.progress(done, self.file.memories)


def _shown(one: _Numbered) -> str:
    return f"{one.record.memory.id!r:.200}"
