"""
Export of memories to a JSONL file, and import from such a file.

An export is UTF-8 text with one JSON object per line: a header, one line per memory or evidence text, and an end line.
The header contains the namespace and the embedder of the vectors.
A memory line contains the journal record (see `mama_structs.memory.types.codec`) and the vectors: base64 of
little-endian float32, one vector per chunk of the text.
Each evidence text has one line with its hash, before the first memory that refers to it.
The end line contains the number of memories and texts, so that a truncated file is detected.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import stat
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, Self, TypeVar

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from mama_structs._internal import validation as _check
from mama_structs._internal.event_loop import run_in_own_thread
from mama_structs.errors import EmbedderMismatch, InvalidArgument, StoreDamaged, StoreError
from mama_structs.memory.embedding.batch_service import EmbeddingService
from mama_structs.memory.embedding.protocol import normalize_rows
from mama_structs.memory.graph.results import JsonlImport
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.types import codec
from mama_structs.memory.types.codec import (
    STORED_NAMES,
    MemoryRecord,
    are_unit_vectors,
    from_memory_record,
    vectors_to_bytes,
)
from mama_structs.memory.types.engine import EmbedderRecord, Engine, EngineFilter, Reader, Writer, write_in_transactions
from mama_structs.memory.types.model import (
    MAX_STORED_TEXT_BYTES,
    METADATA_TYPES,
    ORIGINS,
    Link,
    LinkMetadata,
    Memory,
    MemoryType,
    OutcomeChange,
    PreviousText,
    PreviousValue,
    evidence_digests,
    find_id_problem,
    find_name_problem,
    is_id,
    is_link_id,
    least_trusted,
    text_digest,
)
from mama_structs.memory.types.record import check_imported_record, note_name, record_from_memory
from mama_structs.memory.types.requests import check_namespace
from mama_structs.memory.upkeep.maintenance import embedder_record
from mama_structs.storage.files import DraftFile

T = TypeVar("T")
Progress = Callable[[int, int], object]

EXPORT_FORMAT: Final = "mama-structs memories"
EXPORT_VERSION: Final = 2
"""Version 2 added evidence texts, the only difference from version 1."""

MAX_LINE_BYTES: Final = 2**28
"""Maximum length of a line in bytes: above any evidence text, and the largest memory with thousands of links."""

SUPPORTED_VERSIONS: Final = range(1, EXPORT_VERSION + 1)
_MAX_DIMENSIONS: Final = 65_536
_MAX_DEPTH: Final = 100
PAGE_MEMORIES: Final = 500
CHUNK_LINES: Final = 256
COMPARE_BATCH_MEMORIES: Final = 32
MAX_CHUNK_BYTES: Final = 2**23


class ExportHeader(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """
    The header line of an export.

    It contains no time of export, so that two exports of the same state are equal.
    """

    format: str
    version: int
    namespace: str
    embedder: EmbedderRecord
    # Set only in exports of format version 1.
    exported_at: datetime | None = None


class ExportEnd(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The last line of an export file."""

    end: bool
    memories: int
    contents: int = 0


class TextLine(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The line of an evidence text with its hash."""

    content: str
    text: str


class _MemoryLine(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    memory: MemoryRecord[msgspec.Raw]
    links: list[msgspec.Raw]
    vectors: str


@attrs.frozen(eq=False)
class ParsedMemoryLine:
    """A parsed memory line, with its line number in the file."""

    number: int
    memory: Memory
    links: tuple[Link, ...]
    vectors: NDArray[np.float32]


_encode: Final = msgspec.json.Encoder().encode
_header_decoder: Final = msgspec.json.Decoder(ExportHeader)
_end_decoder: Final = msgspec.json.Decoder(ExportEnd)
_memory_decoder: Final = msgspec.json.Decoder(_MemoryLine)
_text_decoder: Final = msgspec.json.Decoder(TextLine)
_link_decoder: Final = msgspec.json.Decoder(Link)
_keys_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_field_names: Final[Mapping[type, frozenset[str]]] = {
    form: frozenset(STORED_NAMES.get(field.name, field.name) for field in attrs.fields(form))
    for form in (Memory, PreviousText, *METADATA_TYPES.values(), OutcomeChange, PreviousValue, Link, LinkMetadata)
}


async def export_jsonl(engine: Engine, path: Path, progress: Progress | None) -> int:
    """
    Write all memories to a file in save order, and return their number.

    Memories that are saved during the export are included.
    """
    with contextlib.ExitStack() as stack:
        draft = await run_in_own_thread(lambda: _draft(path, stack))
        header = ExportHeader(
            format=EXPORT_FORMAT, version=EXPORT_VERSION, namespace=engine.namespace, embedder=engine.embedder
        )
        await run_in_own_thread(lambda: draft.write(_encode(header) + b"\n"))
        count = contents = 0
        async for page in iter_export_pages(engine):
            for error in page.lost.values():
                raise error
            await run_in_own_thread(lambda: draft.write(_serialize_page(page.lines)))  # noqa: B023 - awaited
            count += len(page.lines)
            contents += sum(len(one.texts) for one in page.lines)
            if progress is not None:
                progress(count, max(page.total, count))
        end = ExportEnd(end=True, memories=count, contents=contents)
        await run_in_own_thread(lambda: draft.write(_encode(end) + b"\n"))
        await run_in_own_thread(draft.publish)
        return count


def _draft(path: Path, stack: contextlib.ExitStack) -> DraftFile:
    # Register the clean-up here: if the caller is cancelled, it never receives the draft to discard it.
    draft = DraftFile(path)
    stack.callback(draft.discard)
    return draft


def read_export_embedder(path: Path) -> EmbedderRecord:
    """Return the embedder that computed the vectors in an export. Blocks."""
    with contextlib.ExitStack() as stack:
        return _ExportFile.open(path, stack).header.embedder


async def import_jsonl(
    engine: Engine, embedding: EmbeddingService, path: Path, progress: Progress | None
) -> JsonlImport:
    """Validate every line of an export, then import it. Existing memories that are identical are not written again."""
    with contextlib.ExitStack() as stack:
        file = await run_in_own_thread(lambda: _ExportFile.open(path, stack))
        return await _Import(engine, embedding, file, progress).run()


@attrs.frozen(eq=False)
class MemoryExport:
    """A memory with its links and vectors, and the evidence texts that no earlier line contains."""

    memory: Memory
    links: Sequence[Link]
    vectors: bytes
    texts: Mapping[str, str]


@attrs.frozen(eq=False)
class ExportPage:
    """A page of exported memories, the total number of memories, and an error for each unreadable memory, by id."""

    lines: list[MemoryExport]
    total: int
    lost: Mapping[str, StoreDamaged]


async def iter_export_pages(engine: Engine) -> AsyncIterator[ExportPage]:
    """
    Yield the memories in save order, in pages that may be empty.

    Memories that are saved during the export come last.
    """
    # Store ids between plans, because node numbers are valid within one plan only.
    embedder = engine.embedder
    waiting: deque[str] = deque()
    seen: set[str] = set()
    given: set[str] = set()

    def unseen(reader: Reader) -> list[str]:
        nodes = np.sort(reader.window(newest_first=False))
        return [memory_id for memory_id in reader.ids(nodes) if memory_id not in seen]

    # A plan may run more than once, so it has no side effects.
    def page(reader: Reader, wanted: Sequence[str]) -> tuple[ExportPage, list[str]]:
        if engine.embedder != embedder:
            raise StoreError("the embedder was changed while the memories were exported", hint="export them again")
        # Skip memories that were deleted after their ids were read.
        found = zip(wanted, reader.find_many(wanted), strict=True)
        nodes = {node: memory_id for memory_id, node in found if node is not None}
        lines: list[MemoryExport] = []
        lost: dict[str, StoreDamaged] = {}
        known: set[str] = set()
        size = 0
        for one in reader.scan(after=min(nodes) - 1, limit=len(nodes)) if nodes else ():
            # Skip memories that were not requested. If the page is full, skip the rest, which the next page contains.
            if one.node not in nodes or size > MAX_CHUNK_BYTES:
                continue
            new = [
                digest
                for digest in evidence_digests(one.memory.evidence)
                if digest not in given and digest not in known
            ]
            try:
                texts = reader.contents(new)
            except StoreDamaged as error:
                lost[one.memory.id] = error
                continue
            known.update(texts)
            size += sum(map(len, texts.values()))
            # Copy the vectors within the plan, because the engine may change them afterwards.
            lines.append(MemoryExport(one.memory, one.links, vectors_to_bytes(one.vectors), texts))
        passed = {one.memory.id for one in lines} | lost.keys()
        left = [memory_id for memory_id in nodes.values() if memory_id not in passed]
        return ExportPage(lines, reader.count(), lost), left

    # Export all memories first, then the memories saved in the meantime.
    while new := await engine.read(unseen):
        waiting.extend(new)
        seen.update(new)
        while waiting:
            some = list(islice(waiting, PAGE_MEMORIES))
            found, left = await engine.read(lambda reader: page(reader, some))  # noqa: B023 - awaited
            for _ in some:
                waiting.popleft()
            waiting.extendleft(reversed(left))
            given.update(digest for one in found.lines for digest in one.texts)
            yield found


def _serialize_page(lines: Sequence[MemoryExport]) -> bytes:
    """Return the lines of memories. Equal memories produce equal lines."""
    found = []
    for one in lines:
        found += [_encode(TextLine(content=digest, text=text)) + b"\n" for digest, text in one.texts.items()]
        found.append(serialize_memory(one.memory, one.links, one.vectors))
    return b"".join(found)


def serialize_memory(memory: Memory, links: Sequence[Link], vectors: bytes) -> bytes:
    """Return the line of a memory. Equal memories produce equal lines."""
    ordered = sorted(links, key=lambda link: (link.created_at, link.id))
    return (
        _encode(
            {"memory": codec.to_memory_record(memory), "links": ordered, "vectors": base64.b64encode(vectors).decode()}
        )
        + b"\n"
    )


@contextlib.contextmanager
def _add_line_number(number: int) -> Iterator[None]:
    """Add the line number to validation errors that the block raises."""
    try:
        yield
    except InvalidArgument:
        raise
    except ValueError as error:
        raise InvalidArgument(f"line {number}: {error}", hint="nothing was imported") from error


@attrs.define(eq=False)
class _ExportFile:
    """An export file opened for reading. All methods block."""

    file: BinaryIO
    header: ExportHeader
    start: int
    memories: int
    # Line number and byte offset of each evidence text, by its hash.
    texts: dict[str, tuple[int, int]] = attrs.field(factory=dict, init=False)

    @classmethod
    def open(cls, path: Path, stack: contextlib.ExitStack) -> Self:
        """Open an export, and read its first and last line. Closing *stack* closes the file."""
        try:
            # Without O_NONBLOCK, opening a FIFO would block until a writer opens it.
            fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        except (OSError, ValueError) as error:
            said = getattr(error, "strerror", None) or error
            raise InvalidArgument(f"path must be an export of memories, {str(path)!r:.200}: {said}") from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise InvalidArgument(f"path must be a file, and {str(path)!r:.200} is none")
        file = stack.enter_context(os.fdopen(fd, "rb"))
        try:
            with _add_line_number(1):
                line = _read_line(file)
                header = _read_header(line)
            file.seek(max(0, file.seek(0, os.SEEK_END) - 200))
            last = file.read().rstrip(b"\r\n").rpartition(b"\n")[2]
        except OSError as error:
            raise _unreadable_error(error) from error
        try:
            return cls(file, header, len(line), _read_end(last).memories)
        except ValueError as error:
            raise InvalidArgument(
                "the file's last line is not the end of an export: it was cut off", hint="copy or export it again"
            ) from error

    def read(self, number: int, offset: int) -> tuple[list[ParsedMemoryLine | TextLine], int | None]:
        """
        Return the next lines from a position on, and the byte offset after them, or None at the end of the file.

        Args:
            number: The number of the first line.
            offset: The byte offset of the first line.

        """
        lines: list[ParsedMemoryLine | TextLine] = []
        begin = offset
        self.file.seek(offset)
        while len(lines) < CHUNK_LINES and offset - begin < MAX_CHUNK_BYTES:
            with _add_line_number(number):
                line = _read_line(self.file)
                if not line:
                    raise ValueError("it is missing: the file was cut off")
                if line.startswith(b'{"end":'):
                    self._check_end(line, number)
                    return lines, None
                if line.startswith(b'{"content":'):
                    lines.append(text := _read_text(line))
                    if self.texts.setdefault(text.content, (number, offset)) != (number, offset):
                        raise ValueError("it has the hash of an earlier line's text")
                else:
                    lines.append(one := _read_memory(line, self.header, number))
                    if not self.texts.keys() >= set(evidence_digests(one.memory.evidence)):
                        raise ValueError("`$.memory.evidence` names a text that no line before it has")
            number, offset = number + 1, offset + len(line)
        return lines, offset

    def text(self, digest: str) -> str:
        """Read an evidence text again. Its line must have been read before."""
        number, offset = self.texts[digest]
        self.file.seek(offset)
        with _add_line_number(number):
            return _read_text(_read_line(self.file)).text

    def _check_end(self, line: bytes, number: int) -> None:
        said = _read_end(line)
        if said.memories + said.contents != number - 2:
            texts = f" and {said.contents} texts" if said.contents else ""
            raise ValueError(f"the end line counts {said.memories} memories{texts}, and there are {number - 2}")
        if self.file.read(1):
            raise ValueError("it is the last one, and more follows")


def _unreadable_error(error: OSError) -> InvalidArgument:
    return InvalidArgument(f"path cannot be read: {error.strerror or type(error).__name__}")


def _read_line(file: BinaryIO) -> bytes:
    try:
        line = file.readline(MAX_LINE_BYTES + 1)
    except OSError as error:
        raise _unreadable_error(error) from error
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"it is longer than {MAX_LINE_BYTES} bytes")
    if line and not line.endswith(b"\n"):
        raise ValueError("it has no line break at its end: the file was cut off")
    return line


@attrs.define
class _ImportBatch:
    """Result of one transaction of an import, and the work that it left for the next transaction."""

    added: int = 0
    existing: int = 0
    dropped_links: int = 0
    # Links whose targets are memories of later lines.
    waiting: list[Link] = attrs.field(factory=list)
    # Hashes of the evidence texts that must be loaded before the next memories can be stored.
    missing_texts: set[str] = attrs.field(factory=set)


@attrs.define(eq=False)
class _Import:
    """One run of `import_jsonl`."""

    engine: Engine
    embedding: EmbeddingService
    file: _ExportFile
    progress: Progress | None
    ids: set[str] = attrs.field(factory=set, init=False)
    # Links whose targets come in later lines, by target. There are few, because links usually point to older memories.
    waiting: dict[str, list[Link]] = attrs.field(factory=dict, init=False)
    made_by: EmbedderRecord | None = attrs.field(default=None, init=False)
    # Ids of memories in later lines that memories in earlier lines use as evidence.
    awaited_evidence: set[str] = attrs.field(factory=set, init=False)

    async def run(self) -> JsonlImport:
        await self._check()
        as_they_are = self.file.header.embedder == self.engine.embedder
        self.made_by = self.file.header.embedder if as_they_are else embedder_record(self.embedding.embedder)
        done: Counter[str] = Counter()
        async for lines in self._chunks():
            records = [one for one in lines if isinstance(one, ParsedMemoryLine)]
            if records:
                records = records if as_they_are else await self._embed_new(records)
                contents = {one.content: one.text for one in lines if isinstance(one, TextLine)}
                done.update(await self._store_chunk(records, contents))
                self._report_progress(done["added"] + done["existing"])
        done["dropped_links"] += sum(map(len, self.waiting.values()))
        return JsonlImport(**done, embedded=0 if as_they_are else done["added"])

    async def _check(self) -> None:
        """Validate every line, and compare it with the store."""
        links: set[str] = set()
        self._report_progress(0)
        async for lines in self._chunks():
            records = [one for one in lines if isinstance(one, ParsedMemoryLine)]
            for one in records:
                with _add_line_number(one.number):
                    if one.memory.id in self.ids:
                        raise ValueError(f"it has the id of an earlier line, {one.memory.id!r:.200}")
                    own = {link.id for link in one.links}
                    if not links.isdisjoint(own):
                        raise ValueError("it has a link with the id of an earlier line's")
                self.ids.add(one.memory.id)
                links |= own
            await self.engine.read(lambda reader: self._compare(reader, records, links_too=True))  # noqa: B023 - awaited

    async def _chunks(self) -> AsyncIterator[list[ParsedMemoryLine | TextLine]]:
        number = 2
        offset: int | None = self.file.start
        while offset is not None:
            lines, offset = await run_in_own_thread(lambda begin=offset: self.file.read(number, begin))  # type: ignore[misc]  # noqa: B023 - awaited
            number += len(lines)
            if lines:
                yield lines

    async def _store_chunk(self, chunk: Sequence[ParsedMemoryLine], contents: dict[str, str]) -> Mapping[str, int]:
        """Write memories with their evidence texts, and return the counts for the import result."""
        figures: Counter[str] = Counter()
        awaited: dict[str, list[Link]] = {}
        rest = chunk
        while rest:
            taken = await self.engine.write(lambda writer: self._store_batch(writer, rest, contents))  # noqa: B023 - awaited
            for digest in taken.missing_texts:
                # Load the text again, because all memories that used it were deleted after an earlier chunk stored it.
                contents[digest] = await run_in_own_thread(lambda wanted=digest: self.file.text(wanted))  # type: ignore[misc]  # bound
            for link in taken.waiting:
                self.waiting.setdefault(link.to_id, []).append(link)
            for one in rest[: taken.existing + taken.added]:
                for link in self.waiting.pop(one.memory.id, ()):
                    awaited.setdefault(link.from_id, []).append(link)
            rest = rest[taken.existing + taken.added :]
            figures.update(added=taken.added, existing=taken.existing, dropped_links=taken.dropped_links)
        # Group the links by source memory, because adding a link rewrites its whole source memory.
        async for dropped in write_in_transactions(
            self.engine.write, [*awaited.items()], _put_links_and_lower, max_items=CHUNK_LINES
        ):
            figures["dropped_links"] += sum(dropped)
        return figures

    def _compare(
        self, reader: Reader, chunk: Sequence[ParsedMemoryLine], *, links_too: bool = False
    ) -> dict[str, tuple[Link, ...]]:
        """
        Return the links that existing memories lack, by memory id.

        Raise `InvalidArgument` if an imported memory conflicts with a stored one.
        """
        # Look up link ids in the whole store only with *links_too*, because that is slow in a large store.
        ids = list(dict.fromkeys(one.memory.id for one in chunk))
        known = {one: node for one, node in zip(ids, reader.find_many(ids), strict=True) if node is not None}
        nodes = list(known.values())
        stored = dict(zip(known, reader.get(nodes), strict=True))
        own = dict(zip(known, reader.links_of_many(nodes, "out"), strict=True))
        asked = [link.id for one in chunk for link in one.links] if links_too else []
        taken = {link.id for link in reader.find_links(asked) if link is not None}
        places = {
            note_name(record_from_memory(one.memory).place) for one in chunk if one.memory.type is MemoryType.RECORD
        }
        kept = reader.notes_by_name(sorted(places)) if places else {}
        missing = {}
        for one in chunk:
            memory, links = one.memory, one.links
            if kept and memory.type is MemoryType.RECORD and note_name(record_from_memory(memory).place) in kept:
                raise InvalidArgument(
                    f"line {one.number}: a record without text is at the place of {memory.id!r:.200}",
                    hint="import into another namespace, or delete that record first",
                )
            if memory.id in known:
                if not _is_same(stored[memory.id], self._in_own_namespace(memory)):
                    raise InvalidArgument(
                        f"line {one.number}: a memory with the id {memory.id!r:.200} is there with other content",
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

    async def _embed_new(self, chunk: Sequence[ParsedMemoryLine]) -> list[ParsedMemoryLine]:
        """Return the memories of a chunk, new ones with vectors of the current embedder."""
        known = await self.engine.read(lambda reader: self._compare(reader, chunk))
        new = [one.memory for one in chunk if one.memory.id not in known]
        vectors = await saving.embed_memories(self.embedding, new) if new else []
        made = {memory.id: pieces for memory, pieces in zip(new, vectors, strict=True)}
        return [attrs.evolve(one, vectors=made.get(one.memory.id, one.vectors)) for one in chunk]

    def _store_batch(
        self, writer: Writer, rest: Sequence[ParsedMemoryLine], contents: Mapping[str, str]
    ) -> _ImportBatch:
        """Write memories with texts and links, in order, until the transaction should yield to other writers."""
        self._check_embedder()
        taken = _ImportBatch()
        for start in range(0, len(rest), COMPARE_BATCH_MEMORIES):
            some = rest[start : start + COMPARE_BATCH_MEMORIES]
            known = self._compare(writer, some)
            named = {
                digest for one in some if one.memory.id not in known for digest in evidence_digests(one.memory.evidence)
            }
            named.difference_update(contents)
            taken.missing_texts = named - writer.known_contents(sorted(named))
            if taken.missing_texts:
                return taken
            for one in some:
                self._store_memory(writer, one, known.get(one.memory.id), contents, taken)
                if writer.should_yield:
                    return taken
        return taken

    def _store_memory(
        self,
        writer: Writer,
        one: ParsedMemoryLine,
        missing: Sequence[Link] | None,
        contents: Mapping[str, str],
        taken: _ImportBatch,
    ) -> None:
        """Write a memory, or only the *missing* links if it already exists."""
        memory, ready = self._in_own_namespace(one.memory), []
        for link in one.links if missing is None else missing:
            if writer.find(link.to_id) is not None:
                ready.append(link)
            elif link.to_id in self.ids:
                taken.waiting.append(link)
            else:
                taken.dropped_links += 1
        if missing is None:
            # Rate the evidence texts as most trusted, because the trust in the file already takes them into account.
            texts = dict.fromkeys(evidence_digests(memory.evidence), ORIGINS[0])
            memory = saving.apply_trust(writer, memory, ready, texts)
            writer.put(memory, vectors=one.vectors, links=ready, contents=contents)
            taken.added += 1
            self._lower_users(writer, memory)
        else:
            if ready:
                _put_links_and_lower(writer, (memory.id, ready))
            taken.existing += 1

    def _lower_users(self, writer: Writer, memory: Memory) -> None:
        """Lower the trust of earlier imported memories that use the new memory as evidence."""
        if memory.id in self.awaited_evidence:
            for node in writer.window(EngineFilter(evidence=frozenset({memory.id}))).tolist():
                saving.lower_trust(writer, node, memory.trust)
        named = [item for item in memory.evidence if is_id(item) and item in self.ids]
        found = writer.find_many(named) if named else []
        self.awaited_evidence.update(item for item, node in zip(named, found, strict=True) if node is None)

    def _check_embedder(self) -> None:
        stored, given = self.engine.embedder, self.made_by
        if given is not None and stored != given:
            # Without this check, vectors of the previous embedder would be stored as vectors of the new one.
            raise EmbedderMismatch(
                f"the embedder of the memories of {self.engine.namespace!r:.80} was changed to {stored.name}, while an "
                f"import stored vectors of {given.name}",
                stored=(stored.name, stored.fingerprint),
                given=(given.name, given.fingerprint),
                hint="repeat the import: what is there already stays as it is",
            )

    def _in_own_namespace(self, memory: Memory) -> Memory:
        return attrs.evolve(memory, namespace=self.engine.namespace)

    def _report_progress(self, done: int) -> None:
        if self.progress is not None:
            self.progress(done, self.file.memories)


def put_links(writer: Writer, source: tuple[str, Sequence[Link]]) -> int:
    """Write the links of one source memory whose ends both exist, and return the number of omitted links."""
    memory_id, links = source
    node = writer.find(memory_id)
    ready = [link for link in links if node is not None and writer.find(link.to_id) is not None]
    if ready and node is not None:
        writer.put(writer.get([node])[0], links=ready)
    return len(links) - len(ready)


def _put_links_and_lower(writer: Writer, source: tuple[str, Sequence[Link]]) -> int:
    """Write links like `put_links`. The source's trust is lowered to that of the memories it is based on."""
    dropped = put_links(writer, source)
    memory_id, links = source
    (node,) = writer.find_many([memory_id])
    based_on = [link for link in links if link.link_type in saving.TRUST_LINK_TYPES]
    if node is not None and based_on:
        (memory,) = writer.get([node])
        saving.lower_trust(writer, node, saving.apply_trust(writer, attrs.evolve(memory, evidence=()), based_on).trust)
    return dropped


def _is_same(stored: Memory, imported: Memory) -> bool:
    """Return True if two memories are equal. The stored trust may be lower than the imported one."""
    lowered = least_trusted([stored.trust, imported.trust]) == stored.trust
    return lowered and stored == attrs.evolve(imported, trust=stored.trust)


def _read_header(line: bytes) -> ExportHeader:
    """Parse and validate the header line."""
    try:
        known = _decode(_keys_decoder, line)
    except ValueError:
        known = {}
    if bytes(known.get("format", b"")) != _encode(EXPORT_FORMAT):
        raise ValueError("it is not the first line of an export of memories")
    if bytes(known.get("version", b"")) not in {_encode(version) for version in SUPPORTED_VERSIONS}:
        raise ValueError("it was written by a version that this one does not know: upgrade mama-structs")
    header = _decode(_header_decoder, line)
    try:
        is_namespace = check_namespace(header.namespace) == header.namespace
    except InvalidArgument as error:
        raise ValueError(f"`$.namespace` is no name of a namespace: {error.args[0]}") from error
    if not is_namespace:
        raise ValueError("`$.namespace` is not in Unicode's form NFC")
    if not 0 < header.embedder.dimensions <= _MAX_DIMENSIONS:
        raise ValueError(f"`$.embedder.dimensions` must be 1 to {_MAX_DIMENSIONS}, got {header.embedder.dimensions}")
    return header


def _read_end(line: bytes) -> ExportEnd:
    """Parse and validate the end line."""
    said = _decode(_end_decoder, line)
    if not said.end or said.memories < 0 or said.contents < 0:
        raise ValueError("it is not the last line of an export")
    return said


def _read_text(line: bytes) -> TextLine:
    kept = _decode(_text_decoder, line)
    if len(kept.text.encode()) > MAX_STORED_TEXT_BYTES:
        raise ValueError(f"`$.text` must have at most {MAX_STORED_TEXT_BYTES} bytes")
    if text_digest(kept.text) != kept.content:
        raise ValueError("`$.text` does not have the hash that `$.content` says")
    return kept


def _read_memory(line: bytes, header: ExportHeader, number: int) -> ParsedMemoryLine:
    """Parse and validate a memory line. Errors name the violated rule, but contain no text of the memory."""
    raw = _decode(_memory_decoder, line)
    memory = _parse_memory(raw.memory)
    if memory.namespace != header.namespace:
        raise ValueError("`$.memory.namespace` must be that of the first line")
    problem = find_id_problem(memory.id, memory.type)
    if problem is not None:
        raise ValueError(f"`$.memory.id` {problem}")
    memory = attrs.evolve(memory, trust=least_trusted([memory.origin, memory.trust]))
    links = tuple(_parse_link(data, f"$.links[{position}]", memory.id) for position, data in enumerate(raw.links))
    if len({link.id for link in links}) != len(links):
        raise ValueError("`$.links` has two links of one id")
    vectors = _parse_vectors(raw.vectors, header.embedder.dimensions)
    try:
        serialize_memory(memory, links, b"")
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError("it has a value that cannot be written again") from error
    return ParsedMemoryLine(number, memory, links, vectors)


def _parse_memory(raw: MemoryRecord[msgspec.Raw]) -> Memory:
    path = "$.memory.metadata"
    _reject_unknown_fields(raw.metadata, METADATA_TYPES[raw.type], path)
    memory = _validate_fields(from_memory_record(raw, lambda decoder, data: _decode(decoder, data, path)), "$.memory")
    check_imported_record(memory, "$.memory")
    return memory


def _parse_link(data: msgspec.Raw, path: str, memory_id: str) -> Link:
    known = _reject_unknown_fields(data, Link, path)
    if "metadata" in known:
        _reject_unknown_fields(known["metadata"], LinkMetadata, f"{path}.metadata")
    link = _validate_fields(_decode(_link_decoder, data, path), path)
    if not is_link_id(link.id):
        raise ValueError(f"`{path}.id` must have the form link_<24 hexadecimal digits>")
    if link.from_id != memory_id:
        raise ValueError(f"`{path}.from_id` must be the id of the line's memory")
    if link.to_id == memory_id:
        raise ValueError(f"`{path}.to_id` must be another memory's id")
    return link


def _validate_fields(value: T, path: str) -> T:
    """Validate the fields of a memory, a link or a nested object, and return normalised values."""
    changed = {}
    for name, rule in _validators_by_type[type(value)]:
        given = getattr(value, name)
        stored = STORED_NAMES.get(name, name)
        if given is not None and (found := rule(given, f"{path}.{stored}")) is not given:
            changed[name] = found
    return attrs.evolve(value, **changed) if changed else value  # type: ignore[misc]  # of an attrs class


def _parse_vectors(text: str, dimensions: int) -> NDArray[np.float32]:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("`$.vectors` is no base64") from error
    if not data or len(data) % (4 * dimensions):
        raise ValueError(f"`$.vectors` must hold vectors of {dimensions} dimensions, got {len(data)} bytes")
    found = np.frombuffer(data, dtype="<f4").reshape(-1, dimensions).astype(np.float32)
    if are_unit_vectors(found):
        return found
    if not np.isfinite(found).all():
        raise ValueError("`$.vectors` has a number that is not finite")
    vectors, usable = normalize_rows(found)
    if not usable.all():
        raise ValueError("`$.vectors` has a vector of length 0")
    return vectors


def _decode(decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw, path: str = "$") -> T:
    """Decode JSON. Error messages name the path and the violated rule, but contain no value."""
    try:
        return decoder.decode(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    except msgspec.ValidationError as error:
        said = str(error)
        if said.startswith(("Invalid enum value", "Object contains unknown field")):
            # These messages of msgspec quote the value, so cut them before it.
            rule, _, place = said.rpartition(" - at ")
            said = f"{rule.split(' `')[0].split(' ' + chr(39))[0]} - at {place}" if place else rule.split(" `")[0]
        raise ValueError(said.replace("`$", f"`{path}")) from error
    except msgspec.DecodeError as error:
        raise ValueError(f"it is no JSON object: {error}") from error


def _reject_unknown_fields(data: msgspec.Raw, form: type, path: str) -> dict[str, msgspec.Raw]:
    """
    Return the raw fields of an object, or raise an error for unknown fields.

    An import would lose unknown fields. The error is a ValueError.
    """
    found = _decode(_keys_decoder, data, path)
    if not found.keys() <= _field_names[form]:
        raise ValueError(f"`{path}` has an unknown field")
    return found


def _check_depth(value: Any, path: str) -> Any:
    level = [value]
    for _ in range(_MAX_DEPTH):
        several = (
            one.values() if isinstance(one, Mapping) else one for one in level if isinstance(one, Mapping | list)
        )
        if not (level := [item for items in several for item in items]):
            return value
    raise ValueError(f"`{path}` is nested more than {_MAX_DEPTH} deep")


def _check_id(value: str, path: str) -> str:
    problem = find_name_problem(value)
    if problem is not None:
        raise ValueError(f"`{path}` {problem}")
    return value


def _check_ratio(value: float, path: str) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"`{path}` must be a number from 0 to 1")
    return value


def _check_time(moment: datetime, path: str) -> datetime:
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise ValueError(f"`{path}` has no time zone")
    if not _check.MIN_TIME <= moment < _check.MAX_TIME:
        raise ValueError(f"`{path}` must lie between 1970 and 9000")
    return moment if moment.tzinfo is UTC else moment.astimezone(UTC)


def _validate_each(values: tuple[Any, ...], path: str) -> tuple[Any, ...]:
    return tuple(_validate_fields(value, f"{path}[{position}]") for position, value in enumerate(values))


def _check_times(moments: tuple[datetime, ...], path: str) -> tuple[datetime, ...]:
    return tuple(_check_time(moment, f"{path}[{position}]") for position, moment in enumerate(moments))


FIELD_VALIDATORS: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "id": _check_id,
    "to_id": _check_id,
    "metadata": _validate_fields,
    "extra": _check_depth,
    "value": _check_depth,
    "confidence": _check_ratio,
    "outcome_at": _check_time,
    "history": _validate_each,
    "at": _check_time,
    "created_at": _check_time,
    "updated_at": _check_time,
    "valid_until": _check_time,
    "until": _check_time,
    "repeated_at": _check_times,
    "previous_texts": _validate_each,
}
"""Validators by field name. Fields of memories and links without one accept any value."""
_validators_by_type: Final = {
    form: [(name, rule) for name, rule in FIELD_VALIDATORS.items() if STORED_NAMES.get(name, name) in names]
    for form, names in _field_names.items()
}
