"""
Programs of users with the synchronous API; checked by mypy and pyright, never executed.

The first ten are those of the API note, in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, assert_type

from mama_structs import Filter, Hit, Link, Memory, Source, sync
from mama_structs.adapters import openai
from mama_structs.sync import Session, admin
from mama_structs.types import (
    CheckReport,
    ErasureReport,
    Evidence,
    Excerpt,
    ExtractionResult,
    MemoryDetails,
    NewRecord,
    Page,
    Record,
    Results,
    TraversedMemory,
)

F = TypeVar("F", bound=Callable[..., Any])


class App:
    """Stub of a FastAPI or Flask application."""

    def get(self, path: str) -> Callable[[F], F]:
        raise NotImplementedError(path)


def program_1_decisions(m: sync.MemoryStore) -> None:
    jwt = m.save_decision("Use JWT for logins", topic="auth", reasoning="No server state")
    assert_type(jwt, Memory)
    m.set_outcome(jwt, "FAILED", reason="A stolen JWT could not be revoked")
    m.supersede(jwt, "Keep logins in Redis", reasoning="They can be revoked")
    hit = next(h for h in m.search("Why did we leave JWT?") if h.superseded_by)
    assert_type(hit, Hit)
    assert hit.superseded_by is not None
    print(hit.content, "-", hit.memory.outcome_reason, "- now:", m.get(hit.superseded_by).content)


def program_2_facts(m: sync.MemoryStore) -> None:
    m.save("Ada works as a nurse", topic="ada")
    print([(h.content, h.relevance) for h in m.search("What is her job?", limit=3)])


def program_3_list_update_delete(m: sync.MemoryStore) -> None:
    page = m.list(type="insight", limit=50)
    assert_type(page, Page[Memory])
    assert_type(page.next_cursor, str | None)
    print(m.count(), page.next_cursor)
    assert_type(m.update(page[0], "Ada works as a doctor", reasoning="She said so"), Memory)
    assert_type(m.delete(page[0]), int)
    assert_type(m.erase(where=Filter(topic="ada")), ErasureReport)


def program_4_time_and_filters(m: sync.MemoryStore) -> None:
    hits = m.search("tea", since=timedelta(days=7), where=Filter(tags="food", origin="user"))
    assert_type(hits, Results[Hit])
    m.search("tea", since=date(2026, 1, 1), as_of=datetime(2026, 2, 1, tzinfo=UTC))
    m.list(since="2026-01-01", where=Filter(until="2026-02-01", extra={"ticket": 12}))


def program_5_fastapi(app: App) -> None:
    @app.get("/{user}/search")
    def search(user: str, q: str) -> list[dict[str, Any]]:
        with Session.open("web.mama", namespace=user) as session:
            return session.memories.search(q, limit=5).to_dicts()


def program_6_flask(app: App, m: sync.MemoryStore, jsonify: Callable[[Any], object], query: str) -> None:
    @app.get("/search")
    def search() -> object:
        return jsonify(m.search(query).to_dicts())


def load_customer(customer_id: str) -> dict[str, Any] | None:
    return {"id": customer_id}


def program_7_references() -> None:
    customers = Source.from_function("customer", load_customer, fields=["customer_id"])
    with Session.open(sources=[customers]) as s:

        @s.with_references
        def order(order_id: str) -> dict[str, Any]:
            return {"customer_id": "c-1", "id": order_id}

        print(order("o-1", include_references=True)["references"])
        order(1)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]


def program_8_openai(s: Session, client: Any, messages: list[Any]) -> None:
    messages = openai.add_recall(s, messages)
    answer = client.responses.create(model="gpt-5", input=messages, tools=openai.tools(s))
    messages += [*answer.output, *openai.handle(s, answer)]


def program_9_structs_node() -> None:
    with Session.open("player.mama", structs="http://localhost:1317") as s:
        print(s.call("structs_query_player", {"player_id": "1-11", "include_references": True}))


def program_10_refs(s: Session) -> None:
    ref = s.observe('<ref id="app.py">print(1)</ref>').refs[0]
    excerpt = s.refs.read(ref, page=1)
    assert_type(excerpt, Excerpt)
    print(excerpt.text)
    s.refs.to_file(ref, "app.py")


def objects_are_accepted_wherever_ids_are(m: sync.MemoryStore) -> None:
    memory = m.save("Ada likes tea", tags=["food"], extra={"ticket": 12})
    hit = m.search("tea")[0]
    assert_type(m.details(hit), MemoryDetails)
    assert_type(m.evidence(memory.id), Results[Evidence])
    link = m.link(memory, hit, "refines")
    assert_type(link, Link)
    assert_type(m.links(memory), Page[Link])
    assert_type(m.traverse(hit, max_depth=1, limit=None), Results[TraversedMemory])
    m.unlink(link)
    m.save_insight(
        "Ada drinks it cold",
        evidence=[memory, "https://example.org"],
        links=[{"to_id": hit.id, "relationship": "refines"}],
    )
    m.history(memory)
    m.history(topic="ada")


def save_methods_accept_one_positional_argument(m: sync.MemoryStore) -> None:
    m.save_decision("Use JWT", "auth", "stateless")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    m.save("Ada likes tea", "insight")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    m.search("tea", top_k=3)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    m.save("Ada likes tea", type="decision")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    m.add("Ada likes tea")  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]


def memories_have_typed_fields_of_every_type(m: sync.MemoryStore) -> None:
    for memory in m.iter_all(type=["decision", "insight"]):
        assert_type(memory.reasoning, str | None)
        assert_type(memory.tags, tuple[str, ...])
        assert_type(memory.to_dict(), dict[str, Any])
        assert_type(memory.to_json(), str)


def records_of_the_host(s: Session) -> None:
    s.records.put("settings", "theme", {"dark": True})
    s.records.put_many([NewRecord(["settings"], "language", "en")])
    record = s.records.get("settings", "theme")
    assert_type(record, Record | None)
    s.records.delete_expired()


def a_conversation_is_extracted(s: Session, messages: list[Mapping[str, str]]) -> None:
    result = s.remember(messages, extract=lambda transcript: [{"type": "insight", "insight": "Ada likes tea"}])
    assert_type(result, ExtractionResult)
    print(len(result.saved), result.skipped_messages)


def stores_are_administered(s: Session) -> None:
    assert_type(admin.check(s), CheckReport)
    assert_type(admin.check("player.mama").ok, bool)
    assert_type(admin.list_namespaces("player.mama"), tuple[str, ...])
    assert_type(admin.export_jsonl(s, Path("memories.jsonl")), int)
    admin.backup(s, "backup")
