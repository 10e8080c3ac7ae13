"""Connections between references, memory and refs in a session."""

import pytest

from mama_structs import (
    DescriptorSettings,
    Filter,
    HashEmbedder,
    ReferenceOptions,
    Session,
    Settings,
    ToolSelector,
    ToolSettings,
)
from mama_structs.adapters.shared.tool_results import answer_tool_call
from mama_structs.errors import HandleNotFound, InvalidArgument, InvalidHandle, UnknownTool
from mama_structs.testing import FakeSource
from mama_structs.tools.deprecated import reset_warnings

SAVED = {"topic": "auth", "content": "Use JWT for logins", "reasoning": "stateless"}
DECISION = {"topic": "auth", "decision": "Use JWT for logins", "reasoning": "stateless"}


@pytest.fixture
async def session():
    async with Session.open(embedder=HashEmbedder(), sources=[FakeSource({"2-1": {"id": "2-1"}})]) as session:
        yield session


# Memory ids as references


async def test_memory_ids_are_resolved_like_entity_ids(session):
    """A decision shows its outcome."""
    saved = await session.memories.save_decision(**SAVED)
    insight = await session.memories.save_insight("tokens cannot be revoked")
    await session.memories.set_outcome(saved.id, "FAILED", reason="a stolen token")
    result = await session.resolver.enrich({"basis": [saved.id, insight.id]})

    entry = result["references"][saved.id]
    assert ("decision", "auth", "Use JWT for logins", "FAILED", "a stolen token") == tuple(
        entry[name] for name in ("reference_type", "topic", "content", "outcome", "outcome_reason")
    )
    assert ("insight", "tokens cannot be revoked") == tuple(
        result["references"][insight.id][name] for name in ("reference_type", "content")
    )


async def test_unknown_memory_id_is_failed_reference(session):
    result = await session.resolver.enrich({"basis": "decision_auth_1748826613522_4spx"})

    assert "Entity not found" == result["references"]["decision_auth_1748826613522_4spx"]["error"]


async def test_memory_reference_is_never_cached(session):
    saved = await session.memories.save_decision(**SAVED)
    before = await session.resolver.enrich({"basis": saved.id})
    await session.memories.set_outcome(saved.id, "PARTIAL", reason="half of it")
    after = await session.resolver.enrich({"basis": saved.id})

    assert "outcome" not in before["references"][saved.id]
    assert "PARTIAL" == after["references"][saved.id]["outcome"]


async def test_memory_id_in_text_is_a_mention(session):
    saved = await session.memories.save_decision(**SAVED)
    naming = await session.memories.save_insight(f"see {saved.id}: it was wrong")

    assert [naming.id] == [memory.id for memory in await session.memories.list(where=Filter(mentions=saved.id))]


# Decisions about entities


async def test_references_contain_three_newest_decisions_about_entity(session):
    ids = [(await session.memories.save_decision(f"plan {n} for 2-1", topic="t", reasoning="why")).id for n in range(4)]
    await session.memories.save_insight("2-1 is cold")
    await session.memories.set_outcome(ids[3], "SUCCESS")
    result = await session.resolver.enrich({"planetId": "2-1"}, ReferenceOptions(include_memories=True))

    assert [
        {"id": ids[3], "decision": "[SUCCESS] plan 3 for 2-1"},
        {"id": ids[2], "decision": "plan 2 for 2-1"},
        {"id": ids[1], "decision": "plan 1 for 2-1"},
    ] == result["references"]["2-1"]["remembered"]


# Evidence


async def test_evidence_outlives_its_conversation(tmp_path):
    async with Session.open(tmp_path, embedder=HashEmbedder(), conversation="one") as session:
        await session.observe('<ref id="plan">\n 1. shields\r\n</ref>')
        saved = await session.memories.save_decision(**SAVED, evidence=["ref:plan", "https://example.org/#x"])
        text = session.refs.get("ref:plan").text
        session.refs.delete("ref:plan")
    async with Session.open(tmp_path, embedder=HashEmbedder(), conversation="two") as session:
        evidence = await session.memories.evidence(saved.id)

    assert [("ref:plan@1", text), ("https://example.org/#x", None)] == [(one.source, one.text) for one in evidence]


@pytest.mark.parametrize("given", ["ref:plan", {"$ref": "ref:plan"}])
async def test_tool_accepts_evidence_handle_alone_and_in_list(session, given):
    """Evidence stores the handle, not only its text."""
    await session.observe('<ref id="plan">1. shields</ref>')
    answers = [await session.call("save/decision", {**DECISION, "evidence": form}) for form in ([given], given)]

    for saved in answers:
        (piece,) = await session.memories.evidence(saved["id"])
        assert ("ref:plan@1", "1. shields") == (piece.source, piece.text)


async def test_tool_replaces_handle_in_content_by_its_text(session):
    await session.observe('<ref id="lesson">tokens cannot be revoked</ref>')
    saved = await session.call("save/insight", {"content": {"$ref": "ref:lesson"}})

    assert "tokens cannot be revoked" == (await session.memories.get(saved["id"])).content


@pytest.mark.parametrize(
    ("tool", "arguments", "field"),
    [
        ("save/insight", {"content": "ref:lesson"}, "content"),
        ("save/checkpoint", {"summary": "ref:lesson"}, "content"),
        ("save/decision", {"topic": "t", "decision": "so: {{ref:lesson}}", "reasoning": "ref:lesson"}, "content"),
    ],
)
async def test_memory_stores_text_of_handle_instead_of_handle(session, tool, arguments, field):
    """The handle would be lost with its conversation."""
    await session.observe('<ref id="lesson">tokens cannot be revoked</ref>')
    saved = await session.call(tool, arguments)
    memory = await session.memories.get(saved["id"])

    assert getattr(memory, field).removeprefix("so: ") == "tokens cannot be revoked"
    assert "ref:lesson" not in f"{memory.content} {memory.metadata}"


async def test_tool_rejects_unknown_handle_in_content(session):
    with pytest.raises(HandleNotFound):
        await session.call("save/insight", {"content": "ref:nope"})

    assert 0 == await session.memories.count()


async def test_unknown_evidence_handle_saves_nothing(session):
    """The error names the most similar handle."""
    await session.observe('<ref id="plan">1. shields</ref>')
    with pytest.raises(HandleNotFound) as caught:
        await session.call("save/decision", {**DECISION, "evidence": ["ref:paln"]})

    assert ("ref:plan",) == caught.value.nearest
    assert 0 == await session.memories.count()


@pytest.mark.parametrize("given", [" ref:plan", "REF:plan", "`ref:plan`", "<ref:plan@1>", "ref:plan\n", "[Ref:plan]"])
async def test_evidence_handle_is_recognized_inside_quotes_and_brackets(session, given):
    """Also in capitals."""
    await session.observe('<ref id="plan">1. shields</ref>')
    saved = await session.memories.save_decision(**SAVED, evidence=[given])

    assert ["ref:plan@1"] == [one.source for one in await session.memories.evidence(saved.id)]


@pytest.mark.parametrize("given", ["ref: plan", "ref:plan, fd:1", "ref:plan@01", "fd:", "fd:x", "ref: see the wiki"])
async def test_malformed_evidence_handle_is_rejected(session, given):
    """As plain text it would be meaningless without its conversation."""
    await session.observe('<ref id="plan">1. shields</ref>')
    with pytest.raises(InvalidHandle):
        await session.memories.save_decision(**SAVED, evidence=[given])

    assert 0 == await session.memories.count()


async def test_model_cannot_name_evidence_by_hash(session):
    """Models never see a hash, so it is made up."""
    await session.observe('<ref id="plan">1. shields</ref>')
    saved = await session.memories.save_decision(**SAVED, evidence=["ref:plan"])
    forged = saved.evidence[0].replace("plan@1", "forged@7")
    with pytest.raises(InvalidArgument, match="must not name a text by its hash"):
        await session.call("save/decision", {**DECISION, "evidence": [forged]})

    assert 1 == await session.memories.count()


@pytest.mark.parametrize("words", ["reference", "refs:x", "see ref:x", "https://example.org/ref:x"])
async def test_text_similar_to_handle_is_stored_as_text(session, words):
    saved = await session.memories.save_decision(**SAVED, evidence=[words])

    assert (words,) == saved.evidence


async def test_fork_resolves_evidence_with_its_own_handles(session):
    await session.observe('<ref id="plan">first</ref>')
    fork = session.fork()
    await fork.observe('<ref id="plan">second</ref>')
    saved = [await one.call("save/decision", {**DECISION, "evidence": ["ref:plan"]}) for one in (session, fork)]
    texts = [(await session.memories.evidence(answer["id"]))[0].text for answer in saved]
    await fork.close()

    assert ["first", "second"] == texts


# Tools


async def test_message_selects_visible_memory_tools(session):
    """Tools of the host and of refs are always visible."""

    async def ping() -> str:
        """Answer."""
        return "pong"

    session.tools.add(ping)
    names = [tool.name for tool in session.tools_for("continue from yesterday")]

    assert "load/checkpoint" == names[0]
    assert {"ping", "read_fd", "save/decision"} <= set(names)
    assert "evolve/outcome" not in names
    assert set(session.tools) == {tool.name for tool in session.tools_for("fix the failing test")}
    assert "pong" == await session.call("ping")


async def test_hidden_tool_can_be_called(session):
    saved = await session.call("save/decision", DECISION)
    session.tools_for("continue from yesterday")
    changed = await session.call("evolve/outcome", {"decision_id": saved["id"], "outcome": "SUCCESS"})

    assert "SUCCESS" == changed["outcome"]


async def test_force_static_shows_all_tools_for_every_message():
    settings = Settings(tools=ToolSettings(dynamic="force_static"))
    async with Session.open(embedder=HashEmbedder(), settings=settings) as session:
        assert session.tools.names == tuple(tool.name for tool in session.tools_for("continue from yesterday"))


async def test_session_without_memory_tools_has_working_memories():
    """The session has no deprecated memory tools either."""
    async with Session.open(embedder=HashEmbedder(), settings=Settings(tools=ToolSettings(memory=False))) as session:
        assert ("read_fd", "list_refs", "get_ref", "search_fd", "edit_ref", "put_ref") == session.tools.names
        with pytest.raises(UnknownTool):
            await session.call("list_decisions")
        await session.memories.save_decision(**SAVED)


async def test_session_and_fork_use_given_tool_selector():
    async with Session.open(embedder=HashEmbedder(), tool_selector=ToolSelector(cues=())) as session:
        fork = session.fork()
        for one in (session, fork):
            assert set(one.tools) == {tool.name for tool in one.tools_for("continue from yesterday")}
        await fork.close()
    with pytest.raises(InvalidArgument, match="tool_selector must be a ToolSelector"):
        Session.open(tool_selector="words")


async def test_deprecated_tools_are_hidden_but_callable(session):
    """A setting makes them visible."""
    reset_warnings()
    with pytest.warns(DeprecationWarning, match="list_decisions"):
        answer = await session.call("list_decisions")
    settings = Settings(tools=ToolSettings(deprecated=True))
    async with Session.open(embedder=HashEmbedder(), settings=settings) as other:
        shown = set(other.tools) - set(session.tools)

    assert answer["success"]
    assert "list_decisions" not in session.tools
    assert {
        *("save_decision", "recall_decision", "suggest_decision", "list_decisions"),
        *("update_outcome", "save_checkpoint", "load_checkpoint"),
    } == shown


async def test_fork_has_tools_of_host_and_own_ref_tools(session):
    async def ping() -> str:
        """Answer."""
        return "pong"

    session.tools.add(ping)
    fork = session.fork()
    await fork.observe('<ref id="only">here</ref>')
    listed = [await one.call("list_refs") for one in (session, fork)]
    names = fork.tools.names
    await fork.close()

    assert session.tools.names == names
    assert ["only" in text for text in listed] == [False, True]


async def test_host_parameters_are_passed_by_host_only(session):
    async def whoami(ctx: object) -> str:
        """Answer."""
        return str(ctx)

    session.tools.add(whoami)

    assert "me" == await session.call("whoami", {}, host={"ctx": "me"})
    with pytest.raises(InvalidArgument):
        await session.call("whoami", {"ctx": "me"})


async def test_loaded_memories_leave_space_for_refs():
    """Descriptors of memory texts are evicted, because they can be loaded again."""
    settings = Settings(descriptors=DescriptorSettings(max_handles=20))
    async with Session.open(embedder=HashEmbedder(), settings=settings) as session:
        ids = [(await session.memories.save_insight(f"{n} " + "long " * 400)).id for n in range(30)]
        answers = [await session.call("load/context", {"id": one}) for one in ids]
        ingested = await session.observe('<ref id="plan">1. shields</ref>')

        assert all(answer["more"][0]["fd"] for answer in answers)
        assert ["plan"] == [ref.id for ref in ingested.refs]
        # Memory tools use at most half of the quota of handles, plus the handles of the last answer.
        assert session.refs.usage.handles <= 20 // 2 + 3
        assert "long long" in await session.call("read_fd", {"fd": answers[-1]["more"][0]["fd"]})


async def test_host_tool_with_deprecated_name_replaces_deprecated_tool(session):
    """The host's tool is never hidden, and its answers are unchanged."""

    async def update_outcome(path: str) -> dict[str, str]:
        """Save the weights of a model."""
        return {"note": f"use save/decision for {path}"}

    session.tools.add(update_outcome)
    names = [tool.name for tool in session.tools_for("continue from yesterday")]
    answered = await answer_tool_call(session, "update_outcome", {"path": "x"})

    assert "update_outcome" in names
    assert "evolve/outcome" not in names
    assert {"note": "use save/decision for x"} == answered.data
