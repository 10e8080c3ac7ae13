"""A session's records as the checkpointer of LangGraph; needs the extra ``langgraph``."""

from __future__ import annotations

import builtins
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from mama_structs import sync
from mama_structs.adapters.langgraph.serde import check_serde
from mama_structs.adapters.langgraph.threads import Blob, SavedCheckpoint, ThreadStore, Write
from mama_structs.adapters.shared.loop_bridge import LoopBridge, make_awaitable
from mama_structs.errors import InvalidArgument
from mama_structs.session.session import Session

try:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        WRITES_IDX_MAP,
        BaseCheckpointSaver,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        get_checkpoint_id,
        get_checkpoint_metadata,
        writes_sort_key,
    )
    from langgraph.checkpoint.serde.base import SerializerProtocol
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.langgraph needs LangGraph: pip install 'mama-structs[langgraph]'"
    ) from _missing

# These metadata keys mark threads that store channels as deltas and need the writes of earlier checkpoints.
_DELTA_METADATA_KEYS: Final = frozenset({"counters_since_delta_snapshot", "delta_writes_versioned"})
_PRUNE_STRATEGIES: Final = ("keep_latest", "delete")


class LangGraphCheckpointer(BaseCheckpointSaver[str]):
    """
    Threads of LangGraph agents in a session's records.

    Use: ``create_agent(..., checkpointer=LangGraphCheckpointer(session))``.

    Each checkpoint is one transaction that writes the changed channels only. Search and recall do not find threads.
    Values are serialized by LangGraph's own serializer and nothing is ever unpickled. On reading, only the types that
    LangGraph considers safe and those in *allow* are constructed. Other types are returned as plain data, with a
    warning that names them. The threads and loops in which its methods work are the same as for `LangGraphStore`.

    Args:
        session: The session that stores the threads, as for `LangGraphStore`.
        allow: Classes of the host that a graph's state contains, such as models and dataclasses.
        serde: Another serializer, such as an encrypting one, that replaces LangGraph's with *allow*.

    Raises:
        WrongLoop: As for `LangGraphStore`, and so is `SessionClosed`.
        InvalidArgument: *serde* may unpickle, a channel is larger than about 12 MB, or a name is too long.

    """

    def __init__(
        self, session: Session | sync.Session, *, allow: Iterable[type] = (), serde: SerializerProtocol | None = None
    ) -> None:
        check_serde(serde)
        # Restrict deserialization to *allow*. LangGraph's default would import and call any class that a record names.
        super().__init__(serde=serde or JsonPlusSerializer(allowed_msgpack_modules=tuple(allow)))
        self._bridge = LoopBridge(session)
        self._threads = ThreadStore(self._bridge.session.records)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Run `aget_tuple` and block until it finishes."""
        return self._bridge.run(lambda: self.aget_tuple(config))

    @make_awaitable
    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that *config* names, or None. Without a checkpoint id, return the thread's latest."""
        thread, namespace, checkpoint = _parse_config(config)
        found = await self._threads.get(thread, namespace or "", checkpoint)
        return None if found is None else self._create_tuple(found)

    async def _list(
        self,
        config: RunnableConfig | None,
        *,
        filter: Mapping[str, Any] | None,  # noqa: A002 - LangGraph's parameter name
        before: RunnableConfig | None,
        limit: int | None,
    ) -> builtins.list[CheckpointTuple]:
        def matches(blob: Blob) -> bool:
            metadata = self.serde.loads_typed(blob) if filter else {}
            return all(metadata.get(name) == value for name, value in (filter or {}).items())

        thread, namespace, checkpoint = _parse_config(config) if config else (None, None, None)
        # *before* may have no thread id, because LangGraph omits the id when it replays a subgraph.
        earlier = get_checkpoint_id(before) if before else None
        found = await self._threads.list(
            thread, namespace, checkpoint=checkpoint, before=earlier, limit=limit, where=matches
        )
        return [self._create_tuple(saved) for saved in found]

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """
        Yield checkpoints, newest first, of a thread or of all threads.

        *filter* selects by metadata, *before* by a later checkpoint.
        """
        yield from self._bridge.run(lambda: self._list(config, filter=filter, before=before, limit=limit))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """
        Yield checkpoints, newest first, of a thread or of all threads.

        *filter* selects by metadata, *before* by a later checkpoint.
        """
        for one in await self._bridge.arun(lambda: self._list(config, filter=filter, before=before, limit=limit)):
            yield one

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Run `aput` and block until it finishes."""
        return self._bridge.run(lambda: self.aput(config, checkpoint, metadata, new_versions))

    @make_awaitable
    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint and its changed channels in one transaction, and return its config."""
        thread, namespace, parent = _parse_config(config)
        dumps, values = self.serde.dumps_typed, checkpoint["channel_values"]
        known = get_checkpoint_metadata(config, metadata)
        saved = SavedCheckpoint(
            thread=thread,
            namespace=namespace or "",
            id=checkpoint["id"],
            parent=parent,
            checkpoint=dumps({**checkpoint, "channel_values": {}}),
            metadata=dumps(known),
            versions=checkpoint["channel_versions"],
            run=known.get("run_id"),
            is_delta=not _DELTA_METADATA_KEYS.isdisjoint(known),
        )
        changed = [(name, version, dumps(values[name])) for name, version in new_versions.items() if name in values]
        await self._threads.put(saved, changed)
        return _create_config(saved, saved.id)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Run `aput_writes` and block until it finishes."""
        self._bridge.run(lambda: self.aput_writes(config, writes, task_id, task_path))

    @make_awaitable
    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """
        Store the writes of a task after a checkpoint.

        Existing writes are kept, except for errors and interrupts, which are replaced.
        """
        thread, namespace, checkpoint = _parse_config(config)
        written = [
            Write(task_id, task_path, WRITES_IDX_MAP.get(channel, index), channel, self.serde.dumps_typed(value))
            for index, (channel, value) in enumerate(writes)
        ]
        await self._threads.put_writes(thread, namespace or "", str(checkpoint), written)

    def delete_thread(self, thread_id: str) -> None:
        """Run `adelete_thread` and block until it finishes."""
        self._bridge.run(lambda: self.adelete_thread(thread_id))

    @make_awaitable
    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread."""
        await self._threads.delete(str(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Run `adelete_for_runs` and block until it finishes."""
        self._bridge.run(lambda: self.adelete_for_runs(run_ids))

    @make_awaitable
    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete all checkpoints that belong to these runs. This reads all threads."""
        await self._threads.delete_for_runs(map(str, run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Run `acopy_thread` and block until it finishes."""
        self._bridge.run(lambda: self.acopy_thread(source_thread_id, target_thread_id))

    @make_awaitable
    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy the content of a thread to another thread in one transaction."""
        await self._threads.copy(str(source_thread_id), str(target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Run `aprune` and block until it finishes."""
        self._bridge.run(lambda: self.aprune(thread_ids, strategy=strategy))

    @make_awaitable
    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """
        Delete threads or their old checkpoints.

        ``"delete"`` deletes the threads, ``"keep_latest"`` all but the latest checkpoint of each namespace.
        """
        if isinstance(thread_ids, str) or strategy not in _PRUNE_STRATEGIES:
            raise InvalidArgument('prune takes a sequence of thread ids, and "keep_latest" or "delete"')
        if strategy == "keep_latest":
            await self._threads.prune(map(str, thread_ids))
        for thread in thread_ids if strategy == "delete" else ():
            await self._threads.delete(str(thread))

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002 - LangGraph's interface
        """Return the version after *current*, unique across forks of the thread."""
        number = 0 if current is None else int(str(current).split(".", 1)[0])
        return f"{number + 1:032}.{secrets.token_hex(8)}"

    def _create_tuple(self, saved: SavedCheckpoint) -> CheckpointTuple:
        loads = self.serde.loads_typed
        checkpoint: Checkpoint = loads(saved.checkpoint)
        checkpoint["channel_values"] = {name: loads(blob) for name, blob in saved.channels.items()}
        ordered = sorted(saved.writes, key=lambda one: writes_sort_key(one.path, one.task, one.index))
        return CheckpointTuple(
            config=_create_config(saved, saved.id),
            checkpoint=checkpoint,
            metadata=loads(saved.metadata),
            parent_config=_create_config(saved, saved.parent) if saved.parent else None,
            pending_writes=[(one.task, one.channel, loads(one.value)) for one in ordered],
        )


def _parse_config(config: RunnableConfig) -> tuple[str, str | None, str | None]:
    """Return the thread, namespace and checkpoint ids of a config."""
    names = config.get("configurable") or {}
    if names.get("thread_id") is None:
        raise InvalidArgument("the config names no thread", hint='{"configurable": {"thread_id": "..."}}')
    return str(names["thread_id"]), names.get("checkpoint_ns"), names.get("checkpoint_id")


def _create_config(saved: SavedCheckpoint, checkpoint: str) -> RunnableConfig:
    names = {"thread_id": saved.thread, "checkpoint_ns": saved.namespace, "checkpoint_id": checkpoint}
    return {"configurable": names}
