"""
Programs of users with the async API; checked by mypy and pyright, never executed.

The first ten are those of the API note, in its order.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, assert_type

from mama_structs import (
    Chain,
    Filter,
    Hit,
    Link,
    Memory,
    MemoryStore,
    RefStore,
    Session,
    Settings,
    Source,
    admin,
    as_embedder,
)
from mama_structs.adapters import openai
from mama_structs.importers import ImportReport, import_from
from mama_structs.settings import AnswerSettings, LinkingPolicy, MemorySettings
from mama_structs.types import (
    CopyReport,
    ErasureReport,
    LinkLike,
    MaintenanceReport,
    MemoryLike,
    Page,
    Results,
    SimilarMemory,
    TimeInput,
)

F = TypeVar("F", bound=Callable[..., Any])


class App:
    """Stub of a FastAPI application."""

    def get(self, path: str) -> Callable[[F], F]:
        raise NotImplementedError(path)


async def program_1_decisions(m: MemoryStore) -> None:
    jwt = await m.save_decision("Use JWT for logins", topic="auth", reasoning="No server state")
    await m.set_outcome(jwt, "FAILED", reason="A stolen JWT could not be revoked")
    await m.supersede(jwt, "Keep logins in Redis", reasoning="They can be revoked")
    hit = next(h for h in await m.search("Why did we leave JWT?") if h.superseded_by)
    assert hit.superseded_by is not None
    now = await m.get(hit.superseded_by)
    print(hit.content, "-", hit.memory.outcome_reason, "- now:", now.content)


async def program_2_facts(m: MemoryStore) -> None:
    assert_type(await m.save("Ada works as a nurse", topic="ada"), Memory)
    print([(h.content, h.relevance) for h in await m.search("What is her job?", limit=3)])


async def program_3_list_update_delete(m: MemoryStore) -> None:
    page = await m.list(type="insight", limit=50)
    assert_type(page, Page[Memory])
    print(await m.count(), page.next_cursor)
    await m.update(page[0], "Ada works as a doctor")
    assert_type(await m.delete(page[0]), int)
    assert_type(await m.erase(where=Filter(topic="ada")), ErasureReport)


async def program_4_time_and_filters(m: MemoryStore) -> None:
    hits = await m.search("tea", since=timedelta(days=7), where=Filter(tags="food", origin="user"))
    assert_type(hits, Results[Hit])


async def program_5_fastapi(app: App) -> None:
    @app.get("/{user}/search")
    async def search(user: str, q: str) -> list[dict[str, Any]]:
        async with Session.open("web.mama", namespace=user) as session:
            return (await session.memories.search(q, limit=5)).to_dicts()


async def load_customer(customer_id: str) -> dict[str, Any] | None:
    return {"id": customer_id}


async def program_7_references() -> None:
    customers = Source.from_function("customer", load_customer, fields=["customer_id"])
    async with Session.open(sources=[customers]) as s:

        @s.with_references
        async def order(order_id: str) -> dict[str, Any]:
            return {"customer_id": "c-1", "id": order_id}

        print((await order("o-1", include_references=True))["references"])


async def program_8_openai(s: Session, client: Any, messages: list[Any]) -> None:
    messages = await openai.add_recall(s, messages)
    answer = await client.responses.create(model="gpt-5", input=messages, tools=openai.tools(s))
    messages += [*answer.output, *await openai.handle(s, answer)]


async def program_9_structs_node() -> None:
    async with Session.open("player.mama", structs="http://localhost:1317") as s:
        print(await s.call("structs_query_player", {"player_id": "1-11", "include_references": True}))


async def program_10_refs(s: Session) -> None:
    ref = (await s.observe('<ref id="app.py">print(1)</ref>')).refs[0]
    print(s.refs.read(ref, page=1).text)
    await s.refs.to_file(ref, "app.py")


async def pages_are_read_to_the_end(m: MemoryStore) -> None:
    page = await m.list(limit=100, order="oldest")
    while page.next_cursor is not None:
        page = await m.list(limit=100, order="oldest", cursor=page.next_cursor)
    async for memory in m.iter_all(topic="auth"):
        assert_type(memory, Memory)


async def helpers_accept_ids_and_objects(m: MemoryStore, memory: MemoryLike, link: LinkLike, at: TimeInput) -> None:
    assert_type(await m.get(memory), Memory)
    assert_type(await m.history(memory), Chain)
    assert_type(await m.links(memory), Page[Link])
    assert_type(await m.similar(memory, threshold=0.8), Results[SimilarMemory])
    await m.similar(content="tea")
    await m.save("Ada likes tea", created_at=at, valid_until=timedelta(days=30))
    await m.unlink(link)
    await m.get(3)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


async def save_methods_accept_one_positional_argument(m: MemoryStore) -> None:
    await m.save_decision("Use JWT", "auth", "stateless")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    await m.save_checkpoint("Half done", "auth")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    await m.search("tea", top_k=3)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    await m.update("decision_x", reasoning=None)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    await m.get_all()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]


async def a_session_is_configured() -> None:
    settings = Settings(
        memory=MemorySettings(linking=LinkingPolicy.strict(), rerank_limit=20, judge_timeout=5.0),
        answers=AnswerSettings(max_tokens=2_000, count_tokens=len),
    )
    embedder = as_embedder(lambda texts: [[1.0, 0.0] for _ in texts], name="mine", dimensions=2)
    async with Session.open("player.mama", settings=settings, embedder=embedder, namespace="ada") as s:
        assert_type(s.namespace, str)
        assert_type(s.memories, MemoryStore)
        assert_type(s.refs, RefStore)
        assert_type((await s.recall("What does Ada drink?")).text, str)


async def stores_are_administered(s: Session) -> None:
    assert_type(await admin.maintain(s), MaintenanceReport)
    assert_type(await admin.copy("player.mama", "postgresql://localhost/mama"), CopyReport)
    assert_type(await admin.backup(s, "backup"), Path)
    await admin.delete_conversation(s, "monday")
    assert_type(await admin.prune(s.memories, now=timedelta(days=1)), int)


async def memories_are_imported(s: Session) -> None:
    report = await import_from(s.memories, "mem0", Path("history.db"), dry_run=True)
    assert_type(report, ImportReport)
    assert_type(report.added, int)
    assert_type(report.to_json(), str)
