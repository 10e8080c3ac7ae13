"""Types of `mama_structs.sync` and of adapters with both kinds of session; checked, never executed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_type

from mama_structs import Memory, Session, importers, sync
from mama_structs.adapters import anthropic, openai
from mama_structs.types import CheckReport, Page


@sync.with_references
def order(order_id: str, *, deep: bool = False) -> dict[str, int]:
    return {order_id: int(deep)}


@sync.with_references(kind="list", max_references=20)
def orders(page: int = 1) -> dict[str, int]:
    return {"page": page}


@sync.with_references
async def fetch(order_id: str) -> dict[str, int]:
    return {order_id: 1}


class Shop:
    @sync.with_references
    def order(self, order_id: str) -> dict[str, int]:
        return {order_id: 1}


def plain_functions_stay_plain() -> None:
    assert_type(order("o-1", deep=True), dict[str, int])
    assert_type(order("o-1", include_references=True), dict[str, int] | dict[str, Any])
    assert_type(orders(page=2), dict[str, int])
    assert_type(Shop().order("o-1"), dict[str, int])
    order(11)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]


async def async_functions_stay_async() -> None:
    assert_type(await fetch("o-1"), dict[str, int])
    assert_type(await fetch("o-1", include_references=True), dict[str, int] | dict[str, Any])


def a_sync_session_returns_values(session: sync.Session) -> None:
    @session.with_references
    def bound(number: int) -> dict[str, int]:
        return {"n": number}

    assert_type(bound(3), dict[str, int])
    assert_type(session.memories.save("shields help"), Memory)
    assert_type(session.memories.list(), Page[Memory])
    assert_type(sync.admin.check(session), CheckReport)
    assert_type(importers.import_from(session.memories, "mem0", "mem0.json"), importers.ImportReport)
    assert_type(importers.rollback_v1(session.memories), importers.RollbackReport)
    assert_type(openai.add_recall(session, "hello"), list[Any])
    assert_type(openai.handle(session, []), list[dict[str, Any]])
    assert_type(anthropic.add_recall(session, []), list[Mapping[str, Any]])
    assert_type(anthropic.handle(session, []), dict[str, Any] | None)


async def an_async_session_is_awaited(session: Session) -> None:
    assert_type(await importers.import_from(session.memories, "mem0", "mem0.json"), importers.ImportReport)
    assert_type(await importers.rollback_v1(session.memories), importers.RollbackReport)
    assert_type(await openai.add_recall(session, "hello"), list[Any])
    assert_type(await openai.handle(session, []), list[dict[str, Any]])
    assert_type(await anthropic.add_recall(session, []), list[Mapping[str, Any]])
    assert_type(await anthropic.handle(session, []), dict[str, Any] | None)
