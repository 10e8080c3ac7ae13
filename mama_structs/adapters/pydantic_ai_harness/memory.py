"""Memory files of the harness in a session's records."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from pydantic_ai_harness.memory import (
    MemoryConflictError,
    MemoryFile,
    MemoryMutation,
    MemoryOperation,
    MemoryOperationConflictError,
    MemorySearchMatch,
    MemorySearchResult,
)

from mama_structs import sync
from mama_structs.adapters.pydantic_ai_harness.search import create_snippets, score_files
from mama_structs.adapters.shared.loop_bridge import LoopBridge, make_awaitable
from mama_structs.errors import InvalidArgument, VersionConflict, repr_short
from mama_structs.memory.types.model import Origin
from mama_structs.memory.types.record import NewRecord, Record
from mama_structs.session.session import Session

_FILE_LABELS: Final = ("pydantic-ai", "memory")
_OPERATION_LABELS: Final = ("pydantic-ai", "memory-operations")
# Expiry of receipts. Until then, a host may safely repeat a call whose outcome it does not know.
_RECEIPT_TTL: Final = timedelta(days=30)
# Expiry of tombstones, which is also the maximum time between reading and writing a file.
# A tombstone continues the record's version count, so that a re-created file gets no earlier record version.
_TOMBSTONE_TTL: Final = timedelta(hours=1)
_PATH_SEGMENT_PATTERN: Final = re.compile(r"(?!\.$)(?!.*\.\.)[A-Za-z0-9_.-]{1,200}")


class SessionMemoryStore:
    """Files of the harness's memory in a session's records; see `memory_store`."""

    def __init__(self, session: Session | sync.Session, origin: Origin) -> None:
        self._bridge = LoopBridge(session)
        self._records = self._bridge.session.records
        self._now = self._bridge.session.refs._now
        self._max_text = session.settings.memory.max_content
        self._origin = origin

    @make_awaitable
    async def read(self, path: str, *, max_chars: int) -> MemoryFile | None:
        """Return the beginning of a file, or None if it does not exist."""
        place = _parse_path(path)
        _check_positive("max_chars", max_chars)
        record, _ = await self._load_file(*place)
        if record is None:
            return None
        file = record.value
        return MemoryFile(
            content=file["content"][:max_chars],
            version=file["version"],
            operation_id=file["operation"],
            truncated=len(file["content"]) > max_chars,
            metadata=file["metadata"],
        )

    async def _load_file(self, labels: tuple[str, ...], key: str) -> tuple[Record | None, int]:
        """Return the record of an existing file, or None, and its version for the next write."""
        record = await self._records.get(labels, key)
        return (None, 0) if record is None else (record if _is_file(record) else None, record.version)

    @make_awaitable
    async def get_operation(self, operation: MemoryOperation) -> MemoryMutation | None:
        """Return the earlier result of an operation, or None."""
        receipt = await self._records.get(_OPERATION_LABELS, operation.id)
        if receipt is None:
            return None
        if receipt.value["fingerprint"] != operation.fingerprint:
            raise MemoryOperationConflictError("the operation id was already used for another operation")
        return MemoryMutation(version=receipt.value["version"], replayed=True, existed=receipt.value["existed"])

    @make_awaitable
    async def write(
        self, path: str, content: str, *, expected_version: str | None, operation: MemoryOperation | None = None
    ) -> MemoryMutation:
        """Write a file if its version is *expected_version*, or if it does not exist (None)."""
        return await self.write_with_metadata(
            path, content, expected_version=expected_version, metadata=None, operation=operation
        )

    @make_awaitable
    async def write_with_metadata(
        self,
        path: str,
        content: str,
        *,
        expected_version: str | None,
        metadata: Mapping[str, str] | None,
        operation: MemoryOperation | None = None,
    ) -> MemoryMutation:
        """Write a file as `write` does, with metadata of the writer."""
        if not isinstance(content, str):
            raise InvalidArgument(f"content must be a str, got {type(content).__name__}")
        about = dict(metadata or {})
        if not all(isinstance(text, str) for pair in about.items() for text in pair):
            raise InvalidArgument("metadata must map strings to strings")
        return await self._change(path, {"content": content, "metadata": about or None}, expected_version, operation)

    @make_awaitable
    async def delete(
        self, path: str, *, expected_version: str | None, operation: MemoryOperation | None = None
    ) -> MemoryMutation:
        """Delete a file if it has the expected version."""
        return await self._change(path, None, expected_version, operation)

    async def _change(
        self, path: str, file: dict[str, Any] | None, expected: str | None, operation: MemoryOperation | None
    ) -> MemoryMutation:
        """
        Replace or delete a file.

        If the operation was already applied, return its earlier result.
        """
        place = _parse_path(path)
        if operation is not None and (before := await self.get_operation(operation)) is not None:
            return before
        done = await self._apply_change(place, file, expected, operation)
        # On a conflict, check whether a concurrent call has applied the same operation.
        if done is None and operation is not None:
            done = await self.get_operation(operation)
        if done is None:
            raise MemoryConflictError(f"{repr_short(path)} is not at the expected version")
        return done

    async def _apply_change(
        self,
        place: tuple[tuple[str, ...], str],
        file: dict[str, Any] | None,
        expected: str | None,
        operation: MemoryOperation | None,
    ) -> MemoryMutation | None:
        """Replace a file and write the receipt in one transaction; return None on a conflict."""
        record, version = await self._load_file(*place)
        if expected != (None if record is None else record.value["version"]):
            return None
        # Versions are random, so they are never reused, even after a deletion.
        token = None if file is None else secrets.token_hex(8)
        puts = []
        if file is not None:
            value = {**file, "version": token, "operation": None if operation is None else operation.id}
            text = file["content"][: self._max_text]
            puts.append(NewRecord(*place, value, text=text, origin=self._origin, if_version=version))
        elif record is not None:
            puts.append(NewRecord(*place, None, expires_at=self._now() + _TOMBSTONE_TTL, if_version=version))
        if operation is not None:
            receipt = {"fingerprint": operation.fingerprint, "version": token, "existed": record is not None}
            until = self._now() + _RECEIPT_TTL
            puts.append(NewRecord(_OPERATION_LABELS, operation.id, receipt, expires_at=until, if_version=0))
        try:
            await self._records.put_many(puts)
        except VersionConflict:
            return None
        return MemoryMutation(version=token, replayed=False, existed=record is not None)

    @make_awaitable
    async def list_paths(self, prefix: str = "", *, limit: int) -> list[str]:
        """Return the sorted paths that begin with *prefix*."""
        labels, _ = _parse_prefix(prefix)
        _check_positive("limit", limit)
        files = await self._records.list(labels, predicate=_is_file)
        return sorted(path for path in map(_create_path, files) if path.startswith(prefix))[:limit]

    @make_awaitable
    async def search(
        self, prefix: str, query: str, *, limit: int, max_files: int, max_chars: int, max_file_chars: int
    ) -> MemorySearchResult:
        """Search the files directly below a prefix by keywords and vector similarity."""
        labels, begin = _parse_prefix(prefix)
        if not query.split() or min(limit, max_files, max_chars, max_file_chars) <= 0:
            return MemorySearchResult(matches=[], scanned=0, truncated=False)
        listed = await self._records.list(labels, nested=False, prefix=begin, limit=max_files + 1, predicate=_is_file)
        texts = {one.key: one.value["content"][:max_file_chars] for one in listed[:max_files]}
        cut = {one.key for one in listed[:max_files] if len(one.value["content"]) > max_file_chars}

        def may_be_found(record: Record) -> bool:
            # Match only the text that the search returns, not the truncated rest.
            return record.key in texts and record.key not in cut

        among: dict[str, Any] = {"nested": False, "predicate": may_be_found, "limit": limit}
        hits = [
            *(await self._records.nearest(query, labels, **among)),
            *(await self._records.search(query, labels, **among)),
        ]
        scores = score_files(query, texts, hits)
        found = sorted(scores, key=lambda name: (-scores[name], name))
        matches = [
            MemorySearchMatch(path="/".join((*labels[len(_FILE_LABELS) :], name)), snippet=snippet, score=scores[name])
            for name, snippet in create_snippets(query, {name: texts[name] for name in found[:limit]}, max_chars)
        ]
        is_whole = len(listed) <= max_files and len(matches) == len(found) and not cut
        return MemorySearchResult(matches=matches, scanned=len(texts), truncated=not is_whole)


def _parse_path(path: str) -> tuple[tuple[str, ...], str]:
    """Convert a path to the labels and the key of its record."""
    *directory, name = path.split("/") if isinstance(path, str) else [""]
    if not all(_PATH_SEGMENT_PATTERN.fullmatch(one) for one in (*directory, name)):
        raise InvalidArgument(
            f"path must be names of A-Z, a-z, 0-9, _, . and -, with / between, got {repr_short(path)}",
            hint="none is empty, '.', or has '..' in it",
        )
    return (*_FILE_LABELS, *directory), name


def _parse_prefix(prefix: str) -> tuple[tuple[str, ...], str]:
    """Return the labels and the key prefix of the paths that begin with a prefix."""
    if not prefix:
        return _FILE_LABELS, ""
    labels, name = _parse_path(prefix.removesuffix("/"))
    return ((*labels, name), "") if prefix.endswith("/") else (labels, name)


def _create_path(record: Record) -> str:
    return "/".join((*record.labels[len(_FILE_LABELS) :], record.key))


def _is_file(record: Record) -> bool:
    """Return True if the record is a file, not a tombstone."""
    return record.value is not None


def _check_positive(name: str, value: int) -> None:
    if value <= 0:
        raise InvalidArgument(f"{name} must be positive, got {repr_short(value)}")
