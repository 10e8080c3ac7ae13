"""Files of Anthropic's memory tool (``/memories``), stored as records of a session."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from mama_structs.adapters.anthropic.memory_texts import (
    FileError,
    format_content,
    format_listing,
    insert_lines,
    replace_text,
)
from mama_structs.errors import InvalidArgument, VersionConflict
from mama_structs.memory.types.record import Record, RecordPlace
from mama_structs.session.session import Session

_ROOT: Final = "/memories"
# Maximum number of attempts for an edit that fails because of version conflicts.
_MAX_EDIT_ATTEMPTS: Final = 8


@attrs.frozen
class MemoryFiles:
    """Memory files under a label prefix, and the model's commands (view, create, ...) on them."""

    # Folders are labels, so a folder exists only while it contains a file.

    session: Session
    labels: tuple[str, ...]

    async def run(self, arguments: Mapping[str, Any]) -> str:
        """Run the memory command in the model's arguments, and return the answer for the model."""
        try:
            answer: str = await getattr(self, f"_{arguments['command']}")(arguments)
        except InvalidArgument as error:
            raise FileError(f"Such a file cannot be kept: {error}") from error
        return answer

    async def clear(self) -> str:
        """Delete all files."""
        await self.session.records.delete_all(self.labels)
        return "All memory cleared"

    async def _view(self, arguments: Mapping[str, Any]) -> str:
        path, names = _parse_path(arguments)
        record = await self._read(names)
        if record is None:
            found = await self._list_below(names)
            if names and not found:
                raise _create_missing_error(path)
            begin = len(self.labels) + len(names)
            return format_listing(path, {(*one.labels, one.key)[begin:]: _count_bytes(one.value) for one in found})
        return format_content(path, _read_text(record, path), arguments.get("view_range"))

    async def _create(self, arguments: Mapping[str, Any]) -> str:
        path, names = _parse_path(arguments)
        text = _get_text_argument(arguments, "file_text")
        taken = FileError(f"File {path} already exists")
        if not names or await self._list_below(names, limit=1):
            raise taken
        await self._check_folders(names)
        try:
            await self._write(names, text, version=0)
        except VersionConflict as error:
            raise taken from error
        return f"File created successfully at: {path}"

    async def _str_replace(self, arguments: Mapping[str, Any]) -> str:
        old, new = _get_text_argument(arguments, "old_str"), _get_text_argument(arguments, "new_str")
        return await self._edit(arguments, lambda path, text: replace_text(path, text, old=old, new=new))

    async def _insert(self, arguments: Mapping[str, Any]) -> str:
        new, at = _get_text_argument(arguments, "insert_text"), arguments.get("insert_line")
        if not isinstance(at, int):
            raise FileError("insert_line is required and must be a whole number")
        return await self._edit(arguments, lambda path, text: insert_lines(path, text, new=new, at=at))

    async def _delete(self, arguments: Mapping[str, Any]) -> str:
        path, names = _parse_path(arguments)
        if not names:
            raise FileError(f"Cannot delete the {_ROOT} directory itself")
        await self.session.records.put_many([], delete=await self._find_places(path, names))
        return f"Successfully deleted {path}"

    async def _rename(self, arguments: Mapping[str, Any]) -> str:
        (old_path, old), (new_path, new) = _parse_path(arguments, "old_path"), _parse_path(arguments, "new_path")
        if not old:
            raise FileError(f"Cannot rename the {_ROOT} directory itself")
        taken = FileError(f"The destination {new_path} already exists")
        if not new or await self._read(new) or await self._list_below(new, limit=1):
            raise taken
        files = await self._find_places(old_path, old)
        if new[: len(old)] == old:
            raise FileError(f"Cannot rename {old_path} to a path inside itself")
        await self._check_folders(new)
        begin = len(self.labels) + len(old)
        moves = [(one, self._get_place((*new, *(*one[0], one[1])[begin:]))) for one in files]
        try:
            moved = await self.session.records.move(moves)
        except VersionConflict as error:
            raise taken from error
        if not moved:
            # The file was deleted concurrently, after it was read.
            raise _create_missing_error(old_path)
        return f"Successfully renamed {old_path} to {new_path}"

    def _get_place(self, names: tuple[str, ...]) -> RecordPlace:
        return (*self.labels, *names[:-1]), names[-1]

    async def _read(self, names: tuple[str, ...]) -> Record | None:
        return await self.session.records.get(*self._get_place(names)) if names else None

    async def _list_below(self, names: tuple[str, ...], *, limit: int | None = None) -> Sequence[Record]:
        return await self.session.records.list((*self.labels, *names), limit=limit)

    async def _find_places(self, path: str, names: tuple[str, ...]) -> list[RecordPlace]:
        """Return labels and key of a file's record, or of the records of all files in a folder."""
        if await self._read(names):
            return [self._get_place(names)]
        found = [(one.labels, one.key) for one in await self._list_below(names)]
        if not found:
            raise FileError(f"The path {path} does not exist")
        return found

    async def _check_folders(self, names: tuple[str, ...]) -> None:
        """Raise if a parent of the path is a file."""
        folders = [names[:end] for end in range(1, len(names))]
        found = await self.session.records.get_many(map(self._get_place, folders))
        for folder, record in zip(folders, found, strict=True):
            if record is not None:
                raise FileError(f"The path {'/'.join((_ROOT, *folder))} is not a directory.")

    async def _edit(self, arguments: Mapping[str, Any], change: Callable[[str, str], tuple[str, str]]) -> str:
        """Edit a file, and retry on concurrent changes instead of overwriting them."""
        path, names = _parse_path(arguments)
        for _ in range(_MAX_EDIT_ATTEMPTS):
            record = await self._read(names)
            if record is None:
                is_folder = not names or await self._list_below(names, limit=1)
                raise FileError(f"The path {path} is not a file.") if is_folder else _create_missing_error(path)
            text, answer = change(path, _read_text(record, path))
            try:
                await self._write(names, text, version=record.version)
            except VersionConflict:
                continue
            return answer
        raise FileError(
            f"The file {path} was changed by others {_MAX_EDIT_ATTEMPTS} times meanwhile. View it and try again."
        )

    async def _write(self, names: tuple[str, ...], text: str, *, version: int) -> None:
        most = self.session.settings.memory.max_content
        await self.session.records.put(
            *self._get_place(names),
            text,
            text=[text[begin : begin + most] for begin in range(0, len(text), most)],
            origin="model",
            created_by="llm",
            keep_history=True,
            if_version=version,
        )


def _create_missing_error(path: str) -> FileError:
    return FileError(f"The path {path} does not exist. Please provide a valid path.")


def _get_text_argument(arguments: Mapping[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise FileError(f"{name} is required and must be a text")
    return value


def _parse_path(arguments: Mapping[str, Any], name: str = "path") -> tuple[str, tuple[str, ...]]:
    """Return the path as the model wrote it, and the path's components, which are () for the root folder."""
    path = _get_text_argument(arguments, name)
    if not f"{path}/".startswith(f"{_ROOT}/"):
        raise FileError(f"Path must start with {_ROOT}, got: {path}")
    root, *names = posixpath.normpath(path)[1:].split("/")
    if f"/{root}" != _ROOT:
        raise FileError(f"Path {path} would escape {_ROOT} directory")
    return path, tuple(names)


def _read_text(record: Record, path: str) -> str:
    if not isinstance(record.value, str):
        # The host has stored a value other than a string under this key.
        raise FileError(f"Unsupported file type for {path}")
    return record.value


def _count_bytes(value: object) -> int:
    return len(value.encode()) if isinstance(value, str) else 0
