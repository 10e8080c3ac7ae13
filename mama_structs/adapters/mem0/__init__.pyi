"""Types of `mama_structs.adapters.mem0`; written by ``scripts/sync_stub.py``, never by hand."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import date
from typing import Any

from mama_structs.adapters._mem0_memory import AsyncMemory
from mama_structs.adapters._mem0_payloads import Message
from mama_structs.sync import Session

__all__ = ["AsyncMemory", "Memory"]

class Memory:
    def __init__(
        self,
        session: Session,
        *,
        extract: Callable[[Sequence[Message]], Sequence[str] | Awaitable[Sequence[str]]] | None = None,
    ) -> None: ...
    def add(
        self,
        messages: str | Message | Sequence[Message],
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        expiration_date: date | str | None = None,
        infer: bool = True,
        **others: Any,
    ) -> dict[str, Any]: ...
    def get(self, memory_id: str) -> dict[str, Any] | None: ...
    def get_all(
        self, *, filters: Mapping[str, Any] | None = None, top_k: int = 20, **others: Any
    ) -> dict[str, Any]: ...
    def search(
        self,
        query: str,
        *,
        top_k: int = 20,
        filters: Mapping[str, Any] | None = None,
        threshold: float | None = 0.1,
        explain: bool = False,
        **others: Any,
    ) -> dict[str, Any]: ...
    def update(
        self,
        memory_id: str,
        text: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        expiration_date: date | str | None = ...,
        data: str | None = None,
    ) -> dict[str, Any]: ...
    def delete(self, memory_id: str) -> dict[str, Any]: ...
    def delete_all(
        self, user_id: str | None = None, agent_id: str | None = None, run_id: str | None = None
    ) -> dict[str, Any]: ...
    def history(self, memory_id: str) -> list[dict[str, Any]]: ...
    def reset(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Memory: ...
    def __exit__(self, *raised: object) -> None: ...
