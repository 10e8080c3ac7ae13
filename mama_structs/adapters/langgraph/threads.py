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
from mama_structs.records import HostRecord, NewRecord, RecordStore

_ROOT: Final = ("langgraph", "threads")
# Threads are deleted in this order: an interrupted deletion leaves no checkpoint without its values.
_CHECKPOINTS: Final = "checkpoints"
_VALUES: Final = "values"
_WRITES: Final = "writes"
# Maximum percent-encoded length of a namespace that is stored as a label, about six nested graphs. Longer ones are
# hashed.
_LONG: Final = 300
_Place: TypeAlias = tuple[tuple[str, ...], str]
# A serialized value: the name of the encoding, and the bytes.
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


class Threads:
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
            "checkpoint": _packed(saved.checkpoint),
            "metadata": _packed(saved.metadata),
            "versions": dict(saved.versions),
            "run": saved.run,
            "delta": saved.is_delta,
        }
        labels = _labels(saved.thread, _VALUES, saved.namespace)
        await self._records.put_many(
            [
                *(NewRecord(labels, _version_key(name, version), _packed(blob)) for name, version, blob in values),
                NewRecord(_labels(saved.thread, _CHECKPOINTS, saved.namespace), saved.id, value),
            ]
        )

    async def put_writes(self, thread: str, namespace: str, checkpoint: str, writes: Sequence[Write]) -> None:
        """
        Store the writes of a task.

        If a task is repeated, its first values are kept, but errors and interrupts are replaced.
        """
        labels = _labels(thread, _WRITES, namespace)
        given = {f"{checkpoint} {one.task} {one.index}": one for one in writes}
        packed = {key: {**attrs.asdict(write), "value": _packed(write.value)} for key, write in given.items()}
        while True:
            known = await self._records.get_many([(labels, key) for key in given])
            new = [key for key, there in zip(given, known, strict=True) if there is None or given[key].index < 0]
            puts = [NewRecord(labels, key, packed[key], if_version=0 if given[key].index >= 0 else None) for key in new]
            # On a conflict another process stored the first values: read them and retry.
            with contextlib.suppress(VersionConflict):
                await self._records.put_many(puts)
                return

    async def get(self, thread: str, namespace: str, checkpoint: str | None) -> SavedCheckpoint | None:
        """Return a checkpoint, by default the namespace's latest, or None if it does not exist."""
        labels = _labels(thread, _CHECKPOINTS, namespace)
        latest = [] if checkpoint else await self._records.list(labels, nested=False, last_first=True, limit=1)
        found = await self._records.get(labels, checkpoint) if checkpoint else next(iter(latest), None)
        return None if found is None else await self._whole(_saved(found))

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
        """Return checkpoints that match the arguments and *where* of their metadata, newest first."""

        def wanted(record: HostRecord) -> bool:
            return (checkpoint is None or record.key == checkpoint) and where(_unpacked(record.value["metadata"]))

        found: builtins.list[HostRecord] = []
        if limit is None or limit > 0:
            for labels in await self._namespaces(thread, namespace):
                found += await self._records.list(
                    labels, nested=False, last_first=True, after=before, limit=limit, where=wanted
                )
        found.sort(key=lambda record: record.key, reverse=True)
        return [one for record in found[:limit] if (one := await self._whole(_saved(record))) is not None]

    async def delete(self, thread: str) -> None:
        """Delete a thread."""
        await self._records.delete_all((*_ROOT, thread))

    async def delete_for_runs(self, runs: Iterable[str]) -> None:
        """Delete the checkpoints of these runs in all threads, in one transaction."""
        gone = frozenset(runs)
        await self._keep_only(await self._namespaces(None, None), lambda every: [s for s in every if s.run not in gone])

    async def copy(self, source: str, target: str) -> None:
        """Copy a thread to another in one transaction."""
        records = await self._records.list((*_ROOT, source))
        copies = [NewRecord((*_ROOT, target, *one.labels[len(_ROOT) + 1 :]), one.key, one.value) for one in records]
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

        await self._keep_only([one for thread in threads for one in await self._namespaces(thread, None)], latest)

    async def _keep_only(
        self,
        namespaces: Iterable[tuple[str, ...]],
        chosen: Callable[[Sequence[SavedCheckpoint]], Sequence[SavedCheckpoint]],
    ) -> None:
        """Delete the checkpoints that are not chosen, with their writes and unreferenced values."""
        gone: builtins.list[_Place] = []
        for labels in namespaces:
            thread, _, namespace = labels[len(_ROOT) :]
            every = [_saved(record) for record in await self._records.list(labels, nested=False)]
            kept = chosen(every)
            kept_ids = {saved.id for saved in kept}
            dropped = [saved for saved in every if saved.id not in kept_ids]
            for saved in dropped:
                gone += [(labels, saved.id), *((write.labels, write.key) for write in await self._behind(saved))]
            # Delete only values of deleted checkpoints: a running graph has values that no checkpoint refers to yet.
            unnamed = _version_keys(dropped) - _version_keys(kept)
            gone += [((*_ROOT, thread, _VALUES, namespace), key) for key in sorted(unnamed)]
        await self._records.put_many([], delete=gone)

    async def _namespaces(self, thread: str | None, namespace: str | None) -> builtins.list[tuple[str, ...]]:
        """Return the labels of all checkpoints of a thread and namespace; None selects all."""
        if thread is not None and namespace is not None:
            return [_labels(thread, _CHECKPOINTS, namespace)]
        below = _ROOT if thread is None else (*_ROOT, thread, _CHECKPOINTS)
        ending = None if namespace is None else _labels("", _CHECKPOINTS, namespace)[-1]
        return [
            labels
            for labels in await self._records.labels(below)
            if labels[len(_ROOT) + 1] == _CHECKPOINTS and ending in (None, labels[-1])
        ]

    async def _behind(self, saved: SavedCheckpoint) -> Sequence[HostRecord]:
        """Return the records of the writes after a checkpoint."""
        labels = _labels(saved.thread, _WRITES, saved.namespace)
        return await self._records.list(labels, nested=False, prefix=f"{saved.id} ")

    async def _whole(self, saved: SavedCheckpoint) -> SavedCheckpoint | None:
        """Return a checkpoint with its channel values and writes, or None if it was deleted."""
        labels = _labels(saved.thread, _VALUES, saved.namespace)
        values = await self._records.get_many([(labels, _version_key(*one)) for one in saved.versions.items()])
        behind = await self._behind(saved)
        there = (_labels(saved.thread, _CHECKPOINTS, saved.namespace), saved.id)
        if None in values and (await self._records.get(*there)) is None:
            # The checkpoint and its values were deleted concurrently. Otherwise the channels would appear empty.
            return None
        channels = {
            name: _unpacked(found.value)
            for name, found in zip(saved.versions, values, strict=True)
            if found is not None
        }
        writes = [Write(**{**one.value, "value": _unpacked(one.value["value"])}) for one in behind]
        return attrs.evolve(saved, channels=channels, writes=writes)


def _labels(thread: str, kind: str, namespace: str) -> tuple[str, ...]:
    # A root graph has an empty namespace, which is not a valid label, so a dot is prepended.
    is_long = len(quote(namespace, safe="")) > _LONG
    return (*_ROOT, thread, kind, f"+{sha256(namespace.encode()).hexdigest()}" if is_long else f".{namespace}")


def _version_keys(checkpoints: Iterable[SavedCheckpoint]) -> set[str]:
    return {_version_key(*one) for saved in checkpoints for one in saved.versions.items()}


def _version_key(channel: str, version: Version) -> str:
    return f"{version} {channel}"


def _packed(blob: Blob) -> builtins.list[str]:
    return [blob[0], base64.b64encode(blob[1]).decode("ascii")]


def _unpacked(packed: Sequence[str]) -> Blob:
    return packed[0], base64.b64decode(packed[1])


def _saved(record: HostRecord) -> SavedCheckpoint:
    value: dict[str, Any] = record.value
    return SavedCheckpoint(
        thread=record.labels[len(_ROOT)],
        namespace=value["namespace"],
        id=record.key,
        parent=value["parent"],
        checkpoint=_unpacked(value["checkpoint"]),
        metadata=_unpacked(value["metadata"]),
        versions=value["versions"],
        run=value["run"],
        is_delta=value["delta"],
    )
