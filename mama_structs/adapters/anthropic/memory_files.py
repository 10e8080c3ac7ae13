"""Files of Anthropic's memory tool (``/memories``), stored as records of a session."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from mama_structs.adapters.anthropic.memory_texts import FileError, content, inserted, listing, replaced
from mama_structs.errors import InvalidArgument, VersionConflict
from mama_structs.memory.types.record import HostRecord, Place
from mama_structs.session.session import Session

_ROOT: Final = "/memories"
# Maximum attempts of an edit with version conflicts.
_TRIES: Final = 8


@attrs.frozen
class MemoryFiles:
    """The files of a session below some labels, and the commands of the model on them."""

    # A folder is a label. It exists as long as it contains a file.

    session: Session
    labels: tuple[str, ...]

    async def run(self, arguments: Mapping[str, Any]) -> str:
        """Run a command with the model's arguments and return the answer for the model."""
        try:
            told: str = await getattr(self, f"_{arguments['command']}")(arguments)
        except InvalidArgument as error:
            raise FileError(f"Such a file cannot be kept: {error}") from error
        return told

    async def clear(self) -> str:
        """Delete all files."""
        await self.session.records.delete_all(self.labels)
        return "All memory cleared"

    async def _view(self, arguments: Mapping[str, Any]) -> str:
        path, names = _named(arguments)
        record = await self._read(names)
        if record is None:
            found = await self._below(names)
            if names and not found:
                raise _missing(path)
            begin = len(self.labels) + len(names)
            return listing(path, {(*one.labels, one.key)[begin:]: _size(one.value) for one in found})
        return content(path, _text_of(record, path), arguments.get("view_range"))

    async def _create(self, arguments: Mapping[str, Any]) -> str:
        path, names = _named(arguments)
        text = _text(arguments, "file_text")
        taken = FileError(f"File {path} already exists")
        if not names or await self._below(names, limit=1):
            raise taken
        await self._check_folders(names)
        try:
            await self._write(names, text, version=0)
        except VersionConflict as error:
            raise taken from error
        return f"File created successfully at: {path}"

    async def _str_replace(self, arguments: Mapping[str, Any]) -> str:
        old, new = _text(arguments, "old_str"), _text(arguments, "new_str")
        return await self._edit(arguments, lambda path, text: replaced(path, text, old=old, new=new))

    async def _insert(self, arguments: Mapping[str, Any]) -> str:
        new, at = _text(arguments, "insert_text"), arguments.get("insert_line")
        if not isinstance(at, int):
            raise FileError("insert_line is required and must be a whole number")
        return await self._edit(arguments, lambda path, text: inserted(path, text, new=new, at=at))

    async def _delete(self, arguments: Mapping[str, Any]) -> str:
        path, names = _named(arguments)
        if not names:
            raise FileError(f"Cannot delete the {_ROOT} directory itself")
        await self.session.records.put_many([], delete=await self._files(path, names))
        return f"Successfully deleted {path}"

    async def _rename(self, arguments: Mapping[str, Any]) -> str:
        (old_path, old), (new_path, new) = _named(arguments, "old_path"), _named(arguments, "new_path")
        if not old:
            raise FileError(f"Cannot rename the {_ROOT} directory itself")
        taken = FileError(f"The destination {new_path} already exists")
        if not new or await self._read(new) or await self._below(new, limit=1):
            raise taken
        files = await self._files(old_path, old)
        if new[: len(old)] == old:
            raise FileError(f"Cannot rename {old_path} to a path inside itself")
        await self._check_folders(new)
        begin = len(self.labels) + len(old)
        moves = [(one, self._place((*new, *(*one[0], one[1])[begin:]))) for one in files]
        try:
            moved = await self.session.records.move(moves)
        except VersionConflict as error:
            raise taken from error
        if not moved:
            # Deleted concurrently.
            raise _missing(old_path)
        return f"Successfully renamed {old_path} to {new_path}"

    def _place(self, names: tuple[str, ...]) -> Place:
        return (*self.labels, *names[:-1]), names[-1]

    async def _read(self, names: tuple[str, ...]) -> HostRecord | None:
        return await self.session.records.get(*self._place(names)) if names else None

    async def _below(self, names: tuple[str, ...], *, limit: int | None = None) -> Sequence[HostRecord]:
        return await self.session.records.list((*self.labels, *names), limit=limit)

    async def _files(self, path: str, names: tuple[str, ...]) -> list[Place]:
        """Return the place of a file, or the places of all files of a folder."""
        if await self._read(names):
            return [self._place(names)]
        found = [(one.labels, one.key) for one in await self._below(names)]
        if not found:
            raise FileError(f"The path {path} does not exist")
        return found

    async def _check_folders(self, names: tuple[str, ...]) -> None:
        """Raise if a parent of the path is a file."""
        folders = [names[:end] for end in range(1, len(names))]
        found = await self.session.records.get_many(map(self._place, folders))
        for folder, record in zip(folders, found, strict=True):
            if record is not None:
                raise FileError(f"The path {'/'.join((_ROOT, *folder))} is not a directory.")

    async def _edit(self, arguments: Mapping[str, Any], change: Callable[[str, str], tuple[str, str]]) -> str:
        """Edit a file, and retry on concurrent changes instead of overwriting them."""
        path, names = _named(arguments)
        for _ in range(_TRIES):
            record = await self._read(names)
            if record is None:
                is_folder = not names or await self._below(names, limit=1)
                raise FileError(f"The path {path} is not a file.") if is_folder else _missing(path)
            text, answer = change(path, _text_of(record, path))
            try:
                await self._write(names, text, version=record.version)
            except VersionConflict:
                continue
            return answer
        raise FileError(f"The file {path} was changed by others {_TRIES} times meanwhile. View it and try again.")

    async def _write(self, names: tuple[str, ...], text: str, *, version: int) -> None:
        most = self.session.settings.memory.max_content
        await self.session.records.put(
            *self._place(names),
            text,
            text=[text[begin : begin + most] for begin in range(0, len(text), most)],
            origin="model",
            created_by="llm",
            history=True,
            if_version=version,
        )


def _missing(path: str) -> FileError:
    return FileError(f"The path {path} does not exist. Please provide a valid path.")


def _text(arguments: Mapping[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise FileError(f"{name} is required and must be a text")
    return value


def _named(arguments: Mapping[str, Any], name: str = "path") -> tuple[str, tuple[str, ...]]:
    """Return the path as the model wrote it and its components, () for the root."""
    path = _text(arguments, name)
    if not f"{path}/".startswith(f"{_ROOT}/"):
        raise FileError(f"Path must start with {_ROOT}, got: {path}")
    root, *names = posixpath.normpath(path)[1:].split("/")
    if f"/{root}" != _ROOT:
        raise FileError(f"Path {path} would escape {_ROOT} directory")
    return path, tuple(names)


def _text_of(record: HostRecord, path: str) -> str:
    if not isinstance(record.value, str):
        # A host has stored another value under this key.
        raise FileError(f"Unsupported file type for {path}")
    return record.value


def _size(value: object) -> int:
    return len(value.encode()) if isinstance(value, str) else 0
