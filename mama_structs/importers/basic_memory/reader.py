"""
Reader of basic-memory notes: a folder of Markdown files.

A note may have frontmatter, observations and relations.
A note becomes a context with its title as the topic and its text as the content.
An observation becomes an insight that is linked to its note. A relation or ``[[link]]`` becomes a link between notes.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import attrs

from mama_structs.errors import InvalidArgument
from mama_structs.importers.basic_memory.frontmatter import check_installed, read_fields
from mama_structs.importers.basic_memory.note_parser import (
    Observation,
    find_observations,
    find_relations,
    parse_tags,
    split_frontmatter,
)
from mama_structs.importers.shared.import_model import (
    ImportedData,
    ImportedLink,
    ImportedMemory,
    compute_digest,
    to_relationship,
    to_topic,
)
from mama_structs.importers.shared.json_values import repair_json
from mama_structs.importers.shared.safe_files import (
    MAX_FOLDER_BYTES,
    MAX_NOTE_BYTES,
    FolderEntry,
    import_error,
    list_files,
    read_bytes,
)
from mama_structs.importers.shared.value_readers import read_time
from mama_structs.memory.types.model import from_milliseconds
from mama_structs.memory.types.text_analysis import normalize

KIND: Final = "basic-memory"
SOURCE: Final = "basic-memory"
"""The source of the imported memories; `MemoryStore.erase` can select them by it."""
NOTES: Final = "notes"
OBSERVATIONS: Final = "observations"
RELATIONS: Final = "relations"
OTHER_FILES: Final = "other files"
NOTE_RELATION: Final = "refers to"

SEPARATORS: Final = re.compile(r"[\s_-]+")


@attrs.frozen(kw_only=True)
class Note:
    """A Markdown file: its path, the fields of its frontmatter, and its text without the frontmatter."""

    path: str
    title: str
    kind: str
    permalink: str | None
    tags: tuple[str, ...]
    frontmatter: str
    body: str
    at: datetime


def read(path: Path) -> ImportedData:
    """
    Read a folder of notes, or one note. Blocks.

    Raises:
        InvalidArgument: There is no such folder or file, there is no note in it, or PyYAML is not installed.
        MigrationError: A file or the folder exceeds a limit of `mama_structs.importers.shared.safe_files`.

    """
    check_installed()
    outside = ImportedData(KIND, path, (NOTES, OBSERVATIONS, RELATIONS))
    notes = []
    root = path if path.is_dir() else path.parent
    size = 0
    for file, problem in _iter_files(path):
        name = file.relative_to(root).as_posix()
        if problem is not None or file.suffix.lower() != ".md":
            outside.skip(OTHER_FILES, name, "no_note", problem or "it is not a Markdown file")
            continue
        outside.found[NOTES] += 1
        # Do not follow a symbolic link that has replaced the file since the folder was listed.
        data = read_bytes(file, "a note", limit=MAX_NOTE_BYTES, follow=file == path)
        size += len(data)
        if size > MAX_FOLDER_BYTES:
            what = f"must have notes of at most {MAX_FOLDER_BYTES:,} bytes in total"
            raise import_error(path, what, "import its folders one by one")
        notes.append(_parse_note(file, name, data, outside))
    if not notes:
        raise InvalidArgument(f"{str(path)!r:.200} has no notes: no file in it ends in .md")
    keys = _assign_keys(notes, outside)
    index = NoteIndex.from_notes(notes)
    for note in notes:
        key = keys[note.path]
        outside.memories.append(_note_memory(note, key))
        for observation in find_observations(note.body):
            outside.found[OBSERVATIONS] += 1
            own = f"{key}#{compute_digest(observation.category or '', observation.content)}"
            outside.memories.append(_observation_memory(note, observation, own))
            outside.links.append(
                ImportedLink(what=OBSERVATIONS, from_key=own, to_key=key, relationship=NOTE_RELATION, is_explicit=False)
            )
        for relation in find_relations(note.body):
            target = index.find(relation.target, note.path)
            if target == note.path:
                name = f"{key} {relation.word} {key}"
                outside.skip(RELATIONS, name, "refused", "it links a note to itself")
                continue
            outside.found[RELATIONS] += 1
            word, whole = to_relationship(relation.word)
            reason = "; ".join(filter(None, (whole, relation.context))) or None
            to_key = f"[[{relation.target}]]" if target is None else keys[target]
            outside.links.append(
                ImportedLink(what=RELATIONS, from_key=key, to_key=to_key, relationship=word, reason=reason)
            )
    return outside


def _iter_files(path: Path) -> Iterator[FolderEntry]:
    """Yield the non-hidden files of a folder. If the path is a file, yield only that file."""
    if path.is_dir():
        yield from list_files(path, hidden=False)
    elif path.exists():
        is_note = path.is_file() and not path.is_symlink()
        yield FolderEntry(path, None if is_note else "it is not a regular file")
    else:
        raise InvalidArgument(f"path must be a folder of notes, and {str(path)!r:.200} is not there")


def _parse_note(file: Path, name: str, data: bytes, outside: ImportedData) -> Note:
    """Parse a note, and report its problems to *outside*."""
    changed = file.stat().st_mtime_ns // 1_000_000
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("utf-8-sig", "replace")
        outside.add_odd(NOTES, name, "not_utf8", "it has bytes that are not UTF-8: they are shown as U+FFFD")
    # basic-memory removes NULs, too.
    text = normalize("NFC", text.replace("\0", "").replace("\r\n", "\n").replace("\r", "\n"))
    front, body = split_frontmatter(text)
    try:
        # YAML can escape lone surrogates.
        fields, problem = repair_json(read_fields(front or ""))
    except ValueError as error:
        outside.add_odd(NOTES, name, "no_yaml", f"the block at its start is part of its text: {error}")
        fields, problem, front, body = {}, None, None, text
    if problem is not None:
        outside.add_odd(NOTES, name, "no_json", problem)
    created = _field_text(fields.get("created"))
    said = None if created is None else _parse_time(created)
    if created is not None and said is None:
        outside.add_odd(NOTES, name, "no_time", "when it was created is no time: it has that of its file")
    return Note(
        path=name,
        title=_field_text(fields.get("title")) or file.stem,
        kind=_field_text(fields.get("type")) or "note",
        permalink=_field_text(fields.get("permalink")),
        tags=parse_tags(fields.get("tags")),
        frontmatter=front or "",
        body=body.strip("\n"),
        at=said or from_milliseconds(max(changed, 0)),
    )


def _parse_time(text: str) -> datetime | None:
    """Return a time in UTC. As in basic-memory, a time without a zone is local."""
    with contextlib.suppress(ValueError, OverflowError):
        text = datetime.fromisoformat(text).astimezone(UTC).isoformat()
    return read_time(text).at


def _field_text(value: str | list[str] | None) -> str | None:
    return (", ".join(value) if isinstance(value, list) else value) or None


def _assign_keys(notes: list[Note], outside: ImportedData) -> dict[str, str]:
    """Return the key of each note by path: the permalink, which survives a move, or else the path."""
    keys: dict[str, str] = {}
    taken: set[str] = set()
    for note in notes:
        key = note.permalink or note.path
        if key in taken:
            outside.add_odd(NOTES, note.path, "same_permalink", "another note has its permalink")
            key = note.path
        taken.add(key)
        keys[note.path] = key
    return keys


def _note_memory(note: Note, key: str) -> ImportedMemory:
    said = {"permalink": note.permalink, "path": note.path, "type": note.kind, "frontmatter": note.frontmatter}
    return ImportedMemory(
        what=NOTES,
        key=key,
        record={
            "type": "context",
            "content": note.body.strip() or note.title,
            "topic": to_topic(note.title),
            "source": SOURCE,
            "created_at": note.at,
        },
        extra={KIND: {**said, "tags": list(note.tags)}},
    )


def _observation_memory(note: Note, observation: Observation, key: str) -> ImportedMemory:
    return ImportedMemory(
        what=OBSERVATIONS,
        key=key,
        record={
            "type": "insight",
            "content": observation.content,
            "category": observation.category,
            "tags": observation.tags,
            "source": SOURCE,
            "created_at": note.at,
        },
        extra={KIND: {"permalink": note.permalink, "path": note.path, "context": observation.context}},
    )


@attrs.frozen
class NoteIndex:
    """Maps each name that a link may use for a note (permalink, title, path or file name) to note paths."""

    paths: Mapping[str, list[str]]

    @classmethod
    def from_notes(cls, notes: list[Note]) -> NoteIndex:
        """Build the index. For each name, the paths are sorted by depth, then by path."""
        paths: defaultdict[str, list[str]] = defaultdict(list)
        ordered = sorted(notes, key=lambda one: (one.path.count("/"), one.path))
        for note in ordered:
            names = (note.permalink or "", note.title, note.path, Path(note.path).stem)
            for name in dict.fromkeys(map(_normalize_name, filter(None, names))):
                paths[name].append(note.path)
        for note in ordered:
            # A permalink begins with the project. Without it, it is the path of a note before it was moved.
            _, _, name = (note.permalink or "").partition("/")
            if name:
                paths[_normalize_name(name)].append(note.path)
        return cls(paths)

    def find(self, target: str, path: str) -> str | None:
        """
        Return the path of the note that a link in the note *path* refers to, or None.

        If several notes match, the one closest to the root is returned.
        """
        if target.startswith(("./", "../", "/")):
            beside = "" if target.startswith("/") else posixpath.dirname(path)
            target = posixpath.normpath(posixpath.join(beside, target.lstrip("/")))
        for name in (target, target.split("#")[0]):
            if found := self.paths.get(_normalize_name(name)):
                return found[0]
        return None


def _normalize_name(name: str) -> str:
    """Normalize case and separators, because the title, permalink and path of a note may differ in them."""
    plain = normalize("NFC", name).strip().casefold().removesuffix(".md")
    return SEPARATORS.sub("-", plain)
