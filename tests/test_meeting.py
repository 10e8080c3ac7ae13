"""Where the three parts of a session meet: ids of memories, evidence, what is shown, what is hidden."""

import pytest

from mama_structs import (
    DescriptorSettings,
    Exposure,
    HashEmbedder,
    ReferenceOptions,
    Session,
    Settings,
    ToolSettings,
)
from mama_structs.adapters.shared.tool_results import answer
from mama_structs.errors import HandleNotFound, InvalidArgument, InvalidHandle, UnknownTool
from mama_structs.testing import FakeSource
from mama_structs.tools.deprecated import forget_warnings

DECISION = {"topic": "auth", "decision": "Use JWT for logins", "reasoning": "stateless"}


@pytest.fixture
async def session():
    async with Session.open(embedder=HashEmbedder(), sources=[FakeSource({"2-1": {"id": "2-1"}})]) as session:
        yield session


# Ids of memories


async def test_ids_of_memories_are_resolved_like_any_entity(session):
    """A result that names memories comes back with what they say, and with what became of a decision."""
    saved = await session.memories.save_decision(**DECISION)
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


async def test_a_memory_that_is_not_there_is_not_found(session):
    """An id of the right form that nothing has is a failed reference, not an error."""
    result = await session.resolver.enrich({"basis": "decision_auth_1748826613522_4spx"})

    assert "Entity not found" == result["references"]["decision_auth_1748826613522_4spx"]["error"]


async def test_what_a_reference_says_of_a_memory_is_never_old(session):
    """A memory that changes between two calls is read anew: it is at hand, and no cache holds it."""
    saved = await session.memories.save_decision(**DECISION)
    before = await session.resolver.enrich({"basis": saved.id})
    await session.memories.set_outcome(saved.id, "PARTIAL", reason="half of it")
    after = await session.resolver.enrich({"basis": saved.id})

    assert "outcome" not in before["references"][saved.id]
    assert "PARTIAL" == after["references"][saved.id]["outcome"]


async def test_a_memory_that_names_another_is_about_it(session):
    """The ids of memories are mentions, too."""
    saved = await session.memories.save_decision(**DECISION)
    naming = await session.memories.save_insight(f"see {saved.id}: it was wrong")

    assert [naming.id] == [memory.id for memory in await session.memories.about(saved.id)]


# What is remembered of an entity


async def test_references_carry_the_newest_decisions_about_an_entity(session):
    """At most three decisions, newest first, an id and a line each; other memories are not among them."""
    ids = [(await session.memories.save_decision("t", f"plan {n} for 2-1", "why")).id for n in range(4)]
    await session.memories.save_insight("2-1 is cold")
    await session.memories.set_outcome(ids[3], "SUCCESS")
    result = await session.resolver.enrich({"planetId": "2-1"}, ReferenceOptions(include_memories=True))

    assert [
        {"id": ids[3], "decision": "[SUCCESS] plan 3 for 2-1"},
        {"id": ids[2], "decision": "plan 2 for 2-1"},
        {"id": ids[1], "decision": "plan 1 for 2-1"},
    ] == result["references"]["2-1"]["remembered"]


# Evidence


async def test_evidence_is_kept_when_its_conversation_is_gone(tmp_path):
    """The text lives on with the decision, exactly, in another session of another conversation."""
    async with Session.open(tmp_path, embedder=HashEmbedder(), conversation="one") as session:
        await session.observe('<ref id="plan">\n 1. shields\r\n</ref>')
        saved = await session.memories.save_decision(**DECISION, evidence=["ref:plan", "https://example.org/#x"])
        text = session.refs.get("ref:plan").text
        session.refs.delete("ref:plan")
    async with Session.open(tmp_path, embedder=HashEmbedder(), conversation="two") as session:
        evidence = await session.memories.evidence_of(saved.id)

    assert [("ref:plan@1", text), ("https://example.org/#x", None)] == [(one.source, one.text) for one in evidence]


@pytest.mark.parametrize("given", ["ref:plan", {"$ref": "ref:plan"}])
async def test_a_tool_takes_a_handle_as_evidence_in_either_form(session, given):
    """The text of a handle is what it stands for; as evidence the handle itself is meant, in a list or alone."""
    await session.observe('<ref id="plan">1. shields</ref>')
    answers = [await session.call("save/decision", {**DECISION, "evidence": form}) for form in ([given], given)]

    for saved in answers:
        (piece,) = await session.memories.evidence_of(saved["id"])
        assert ("ref:plan@1", "1. shields") == (piece.source, piece.text)


async def test_the_text_of_a_handle_can_be_a_memorys_content(session):
    """In every other argument the text takes the reference's place."""
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
async def test_a_memory_holds_the_text_of_a_handle_and_never_the_handle(session, tool, arguments, field):
    """What is saved as plain text under a handle's name is the text: the handle ends with its conversation."""
    await session.observe('<ref id="lesson">tokens cannot be revoked</ref>')
    saved = await session.call(tool, arguments)
    memory = await session.memories.get(saved["id"])

    assert getattr(memory, field).removeprefix("so: ") == "tokens cannot be revoked"
    assert "ref:lesson" not in f"{memory.content} {memory.metadata}"


async def test_a_memory_of_a_handle_that_nothing_has_is_refused(session):
    """A dangling handle is no content."""
    with pytest.raises(HandleNotFound):
        await session.call("save/insight", {"content": "ref:nope"})

    assert 0 == await session.memories.count()


async def test_a_handle_that_nothing_has_is_refused_and_nothing_is_saved(session):
    """A misspelt handle is a mistake, and the error names the nearest."""
    await session.observe('<ref id="plan">1. shields</ref>')
    with pytest.raises(HandleNotFound) as caught:
        await session.call("save/decision", {**DECISION, "evidence": ["ref:paln"]})

    assert ("ref:plan",) == caught.value.nearest
    assert 0 == await session.memories.count()


@pytest.mark.parametrize("given", [" ref:plan", "REF:plan", "`ref:plan`", "<ref:plan@1>", "ref:plan\n", "[Ref:plan]"])
async def test_a_handle_is_known_whatever_stands_around_it(session, given):
    """Blanks, quotes, brackets and capitals leave no doubt about what is meant."""
    await session.observe('<ref id="plan">1. shields</ref>')
    saved = await session.memories.save_decision(**DECISION, evidence=[given])

    assert ["ref:plan@1"] == [one.source for one in await session.memories.evidence_of(saved.id)]


@pytest.mark.parametrize("given", ["ref: plan", "ref:plan, fd:1", "ref:plan@01", "fd:", "fd:x", "ref: see the wiki"])
async def test_what_begins_like_a_handle_and_is_none_is_refused(session, given):
    """As plain words it would be gone with its conversation, and nobody would know."""
    await session.observe('<ref id="plan">1. shields</ref>')
    with pytest.raises(InvalidHandle):
        await session.memories.save_decision(**DECISION, evidence=[given])

    assert 0 == await session.memories.count()


async def test_a_model_cannot_name_a_kept_text_by_its_hash(session):
    """Nobody shows it one, so it made the source up."""
    await session.observe('<ref id="plan">1. shields</ref>')
    saved = await session.memories.save_decision(**DECISION, evidence=["ref:plan"])
    forged = saved.evidence[0].replace("plan@1", "forged@7")
    with pytest.raises(InvalidArgument, match="must not name a text by its hash"):
        await session.call("save/decision", {**DECISION, "evidence": [forged]})

    assert 1 == await session.memories.count()


@pytest.mark.parametrize("words", ["reference", "refs:x", "see ref:x", "https://example.org/ref:x"])
async def test_words_that_look_a_little_like_a_handle_are_words(session, words):
    """Only what begins as a handle does is one."""
    saved = await session.memories.save_decision(**DECISION, evidence=[words])

    assert (words,) == saved.evidence


async def test_a_fork_saves_what_its_own_handles_stand_for(session):
    """Memories are shared, handles are not: the same id stands for another text in a fork."""
    await session.observe('<ref id="plan">first</ref>')
    fork = session.fork()
    await fork.observe('<ref id="plan">second</ref>')
    saved = [await one.call("save/decision", {**DECISION, "evidence": ["ref:plan"]}) for one in (session, fork)]
    texts = [(await session.memories.evidence_of(answer["id"]))[0].text for answer in saved]
    await fork.close()

    assert ["first", "second"] == texts


# Which tools there are, and which are shown


async def test_a_message_decides_which_memory_tools_are_shown(session):
    """What resumes comes first and other memory tools stay away; tools of the host and of refs never do."""

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


async def test_a_tool_that_is_not_shown_still_works(session):
    """What a model remembers from before is not refused."""
    saved = await session.call("save/decision", DECISION)
    session.tools_for("continue from yesterday")
    changed = await session.call("evolve/outcome", {"decision_id": saved["id"], "outcome": "SUCCESS"})

    assert "SUCCESS" == changed["outcome"]


async def test_a_host_can_switch_the_choice_off():
    """With force_static every message gives all tools, in one order."""
    settings = Settings(tools=ToolSettings(dynamic="force_static"))
    async with Session.open(embedder=HashEmbedder(), settings=settings) as session:
        assert session.tools.names == tuple(tool.name for tool in session.tools_for("continue from yesterday"))


async def test_a_host_can_do_without_memory_tools():
    """Then there are neither those nor the deprecated ones, and memories still work."""
    async with Session.open(embedder=HashEmbedder(), settings=Settings(tools=ToolSettings(memory=False))) as session:
        assert ("read_fd", "list_refs", "get_ref", "search_fd", "edit_ref", "put_ref") == session.tools.names
        with pytest.raises(UnknownTool):
            await session.call("list_decisions")
        await session.memories.save_decision(**DECISION)


async def test_the_exposure_is_the_hosts_to_give():
    """A session decides by the cues that it was opened with, and so does its fork."""
    async with Session.open(embedder=HashEmbedder(), exposure=Exposure(cues=())) as session:
        fork = session.fork()
        for one in (session, fork):
            assert set(one.tools) == {tool.name for tool in one.tools_for("continue from yesterday")}
        await fork.close()
    with pytest.raises(InvalidArgument, match="exposure must be an Exposure"):
        Session.open(exposure="words")


async def test_deprecated_tools_work_without_being_shown(session):
    """They are not among the tools, and can be called; with the setting they are shown, too."""
    forget_warnings()
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


async def test_a_fork_has_the_tools_on_its_own_refs_and_the_hosts(session):
    """Tools that a host added come along, and the fork's own work on the fork."""

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


async def test_a_host_passes_its_own_parameters(session):
    """What a tool wants of the host comes from the host, not from the model."""

    async def whoami(ctx: object) -> str:
        """Answer."""
        return str(ctx)

    session.tools.add(whoami)

    assert "me" == await session.call("whoami", {}, host={"ctx": "me"})
    with pytest.raises(InvalidArgument):
        await session.call("whoami", {"ctx": "me"})


async def test_reading_memories_leaves_room_for_what_a_model_marks():
    """Texts of memories that have handles make room for others: they can be loaded again, and refs cannot."""
    settings = Settings(descriptors=DescriptorSettings(max_handles=20))
    async with Session.open(embedder=HashEmbedder(), settings=settings) as session:
        ids = [(await session.memories.save_insight(f"{n} " + "long " * 400)).id for n in range(30)]
        answers = [await session.call("load/context", {"id": one}) for one in ids]
        ingested = await session.observe('<ref id="plan">1. shields</ref>')

        assert all(answer["more"][0]["fd"] for answer in answers)
        assert ["plan"] == [ref.id for ref in ingested.refs]
        # Half of the room, and what the last answer left out.
        assert session.refs.usage.handles <= 20 // 2 + 3
        assert "long long" in await session.call("read_fd", {"fd": answers[-1]["more"][0]["fd"]})


async def test_a_hosts_tool_with_a_name_of_v1_0_is_the_hosts(session):
    """It is never hidden, takes the place of the old one, and its answers stay as they are."""

    async def update_outcome(path: str) -> dict[str, str]:
        """Save the weights of a model."""
        return {"note": f"use save/decision for {path}"}

    session.tools.add(update_outcome)
    names = [tool.name for tool in session.tools_for("continue from yesterday")]
    answered = await answer(session, "update_outcome", {"path": "x"})

    assert "update_outcome" in names
    assert "evolve/outcome" not in names
    assert {"note": "use save/decision for x"} == answered.data
