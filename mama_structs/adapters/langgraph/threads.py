"""Storage of checkpoint threads in a session's records, independent of the framework."""

from __future__ import annotations

import base64
import builtins
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import attrs

from mama_structs.errors import InvalidArgument, VersionConflict
from mama_structs.memory.records.record_store import RecordStore
from mama_structs.memory.types.record import NewRecord, Record

_ROOT_LABELS: Final = ("langgraph", "threads")
# Labels in deletion order: checkpoints come first, so that an interrupted deletion leaves no checkpoint without values.
_CHECKPOINTS_LABEL: Final = "checkpoints"
_VALUES_LABEL: Final = "values"
_WRITES_LABEL: Final = "writes"
# Maximum percent-encoded length of a namespace in a label, about six nested graphs. Longer namespaces are hashed.
_MAX_LABEL_CHARS: Final = 300
_Place: TypeAlias = tuple[tuple[str, ...], str]
# A serialized value: name of the encoding, and bytes.
Blob: TypeAlias = tuple[str, bytes]
Version: TypeAlias = str | int | float


@attrs.frozen
class Write:
    """One value that a task wrote to a channel; *index* is negative for errors and interrupts."""

    task: str
    path: str
    index: int
    channel: str
    value: Blob


@attrs.frozen
class SavedCheckpoint:
    """A checkpoint, with the values of its *channels* and the *writes* after it."""

    thread: str
    namespace: str
    id: str
    parent: str | None
    checkpoint: Blob
    metadata: Blob
    versions: Mapping[str, Version]
    run: str | None
    is_delta: bool
    channels: Mapping[str, Blob] = attrs.field(factory=dict)
    writes: Sequence[Write] = ()


class ThreadStore:
    """
    Checkpoints, channel values and pending writes, by thread and namespace.

    Each version of a channel's value is stored once, regardless of how many checkpoints refer to it.
    """

    def __init__(self, records: RecordStore) -> None:
        self._records = records

    async def put(self, saved: SavedCheckpoint, values: Iterable[tuple[str, Version, Blob]]) -> None:
        """Store a checkpoint and the new channel values in one transaction."""
        value = {
            "namespace": saved.namespace,
            "parent": saved.parent,
            "checkpoint": _encode_blob(saved.checkpoint),
            "metadata": _encode_blob(saved.metadata),
            "versions": dict(saved.versions),
            "run": saved.run,
            "delta": saved.is_delta,
        }
        labels = _create_labels(saved.thread, _VALUES_LABEL, saved.namespace)
        await self._records.put_many(
            [
                *(
                    NewRecord(labels, _create_version_key(name, version), _encode_blob(blob))
                    for name, version, blob in values
                ),
                NewRecord(_create_labels(saved.thread, _CHECKPOINTS_LABEL, saved.namespace), saved.id, value),
            ]
        )

    async def put_writes(self, thread: str, namespace: str, checkpoint: str, writes: Sequence[Write]) -> None:
        """
        Store the writes of a task.

        If a task is repeated, its first values remain stored. Only its errors and interrupts are replaced.
        """
        labels = _create_labels(thread, _WRITES_LABEL, namespace)
        given = {f"{checkpoint} {one.task} {one.index}": one for one in writes}
        packed = {key: {**attrs.asdict(write), "value": _encode_blob(write.value)} for key, write in given.items()}
        while True:
            known = await self._records.get_many([(labels, key) for key in given])
            new = [key for key, there in zip(given, known, strict=True) if there is None or given[key].index < 0]
            puts = [NewRecord(labels, key, packed[key], if_version=0 if given[key].index >= 0 else None) for key in new]
            # After a conflict, read and retry, because another process has stored the first values of the task.
            with contextlib.suppress(VersionConflict):
                await self._records.put_many(puts)
                return

    async def get(self, thread: str, namespace: str, checkpoint: str | None) -> SavedCheckpoint | None:
        """Return a checkpoint, by default the namespace's latest, or None if it does not exist."""
        labels = _create_labels(thread, _CHECKPOINTS_LABEL, namespace)
        latest = [] if checkpoint else await self._records.list(labels, nested=False, reverse=True, limit=1)
        found = await self._records.get(labels, checkpoint) if checkpoint else next(iter(latest), None)
        return None if found is None else await self._load_values(_parse_checkpoint(found))

    async def list(
        self,
        thread: str | None,
        namespace: str | None,
        *,
        checkpoint: str | None,
        before: str | None,
        limit: int | None,
        where: Callable[[Blob], bool],
    ) -> builtins.list[SavedCheckpoint]:
        """Return matching checkpoints, newest first. *where* is a predicate on their metadata."""

        def is_match(record: Record) -> bool:
            return (checkpoint is None or record.key == checkpoint) and where(_decode_blob(record.value["metadata"]))

        found: builtins.list[Record] = []
        if limit is None or limit > 0:
            for labels in await self._list_namespaces(thread, namespace):
                found += await self._records.list(
                    labels, nested=False, reverse=True, cursor=before, limit=limit, predicate=is_match
                )
        found.sort(key=lambda record: record.key, reverse=True)
        return [
            one for record in found[:limit] if (one := await self._load_values(_parse_checkpoint(record))) is not None
        ]

    async def delete(self, thread: str) -> None:
        """Delete a thread."""
        await self._records.delete_all((*_ROOT_LABELS, thread))

    async def delete_for_runs(self, runs: Iterable[str]) -> None:
        """Delete the checkpoints of these runs in all threads, in one transaction."""
        gone = frozenset(runs)
        await self._delete_unselected(
            await self._list_namespaces(None, None), lambda every: [s for s in every if s.run not in gone]
        )

    async def copy(self, source: str, target: str) -> None:
        """Copy the content of a thread to another thread in one transaction."""
        records = await self._records.list((*_ROOT_LABELS, source))
        copies = [
            NewRecord((*_ROOT_LABELS, target, *one.labels[len(_ROOT_LABELS) + 1 :]), one.key, one.value)
            for one in records
        ]
        await self._records.put_many(copies)

    async def prune(self, threads: Iterable[str]) -> None:
        """Delete all but the latest checkpoint of each namespace, in one transaction."""

        def latest(every: Sequence[SavedCheckpoint]) -> Sequence[SavedCheckpoint]:
            if any(saved.is_delta for saved in every):
                raise InvalidArgument(
                    "a thread whose channels are rebuilt from earlier checkpoints (DeltaChannel) cannot be pruned",
                    hint='strategy="delete" deletes it',
                )
            return every[-1:]

        await self._delete_unselected(
            [one for thread in threads for one in await self._list_namespaces(thread, None)], latest
        )

    async def _delete_unselected(
        self,
        namespaces: Iterable[tuple[str, ...]],
        select: Callable[[Sequence[SavedCheckpoint]], Sequence[SavedCheckpoint]],
    ) -> None:
        """Delete the checkpoints that *select* omits, with their writes and unused values."""
        gone: builtins.list[_Place] = []
        for labels in namespaces:
            thread, _, namespace = labels[len(_ROOT_LABELS) :]
            every = [_parse_checkpoint(record) for record in await self._records.list(labels, nested=False)]
            kept = select(every)
            kept_ids = {saved.id for saved in kept}
            dropped = [saved for saved in every if saved.id not in kept_ids]
            for saved in dropped:
                gone += [(labels, saved.id), *((write.labels, write.key) for write in await self._list_writes(saved))]
            # Delete no other values, because a running graph stores values before the checkpoint that refers to them.
            unnamed = _create_version_keys(dropped) - _create_version_keys(kept)
            gone += [((*_ROOT_LABELS, thread, _VALUES_LABEL, namespace), key) for key in sorted(unnamed)]
        await self._records.put_many([], delete=gone)

    async def _list_namespaces(self, thread: str | None, namespace: str | None) -> builtins.list[tuple[str, ...]]:
        """
        Return the checkpoint labels of a thread and namespace.

        None selects all threads or namespaces.
        """
        if thread is not None and namespace is not None:
            return [_create_labels(thread, _CHECKPOINTS_LABEL, namespace)]
        below = _ROOT_LABELS if thread is None else (*_ROOT_LABELS, thread, _CHECKPOINTS_LABEL)
        ending = None if namespace is None else _create_labels("", _CHECKPOINTS_LABEL, namespace)[-1]
        return [
            labels
            for labels in await self._records.labels(below)
            if labels[len(_ROOT_LABELS) + 1] == _CHECKPOINTS_LABEL and ending in (None, labels[-1])
        ]

    async def _list_writes(self, saved: SavedCheckpoint) -> Sequence[Record]:
        """Return the records of the writes after a checkpoint."""
        labels = _create_labels(saved.thread, _WRITES_LABEL, saved.namespace)
        return await self._records.list(labels, nested=False, prefix=f"{saved.id} ")

    async def _load_values(self, saved: SavedCheckpoint) -> SavedCheckpoint | None:
        """Return a checkpoint with its channel values and writes, or None if it was deleted."""
        labels = _create_labels(saved.thread, _VALUES_LABEL, saved.namespace)
        values = await self._records.get_many([(labels, _create_version_key(*one)) for one in saved.versions.items()])
        behind = await self._list_writes(saved)
        there = (_create_labels(saved.thread, _CHECKPOINTS_LABEL, saved.namespace), saved.id)
        if None in values and (await self._records.get(*there)) is None:
            # The checkpoint was deleted concurrently. Without this check, the checkpoint's channels would look empty.
            return None
        channels = {
            name: _decode_blob(found.value)
            for name, found in zip(saved.versions, values, strict=True)
            if found is not None
        }
        writes = [Write(**{**one.value, "value": _decode_blob(one.value["value"])}) for one in behind]
        return attrs.evolve(saved, channels=channels, writes=writes)


def _create_labels(thread: str, kind: str, namespace: str) -> tuple[str, ...]:
    # The root graph has the namespace "", which is not a valid label. A leading dot makes it valid.
    is_long = len(quote(namespace, safe="")) > _MAX_LABEL_CHARS
    return (*_ROOT_LABELS, thread, kind, f"+{sha256(namespace.encode()).hexdigest()}" if is_long else f".{namespace}")


def _create_version_keys(checkpoints: Iterable[SavedCheckpoint]) -> set[str]:
    return {_create_version_key(*one) for saved in checkpoints for one in saved.versions.items()}


def _create_version_key(channel: str, version: Version) -> str:
    return f"{version} {channel}"


def _encode_blob(blob: Blob) -> builtins.list[str]:
    return [blob[0], base64.b64encode(blob[1]).decode("ascii")]


def _decode_blob(packed: Sequence[str]) -> Blob:
    return packed[0], base64.b64decode(packed[1])


def _parse_checkpoint(record: Record) -> SavedCheckpoint:
    value: dict[str, Any] = record.value
    return SavedCheckpoint(
        thread=record.labels[len(_ROOT_LABELS)],
        namespace=value["namespace"],
        id=record.key,
        parent=value["parent"],
        checkpoint=_decode_blob(value["checkpoint"]),
        metadata=_decode_blob(value["metadata"]),
        versions=value["versions"],
        run=value["run"],
        is_delta=value["delta"],
    )
