"""
The behaviours that all frameworks share: one row a behaviour, one column a framework.

Each test runs a scripted conversation with the real framework. ``MAMA_STRUCTS_TEST_WRITE_BEHAVIOURS=1`` records the results
of a run in docs/internals/behaviours.json and prints them into docs/frameworks/overview.md.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import enum
import itertools
import json
import math
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import msgspec
import pytest
from behaviour_table import behaviour
from framework_drivers import FRAMEWORKS, TruncatingModel, sent_schemas
from host_helpers import call, texts_of_users

from mama_structs import HashEmbedder, MemoryStore, Session
from mama_structs.errors import StoreError
from mama_structs.refs.messages.media import Media, parse_media
from mama_structs.testing.scripted_model import ModelRequest, ModelTurn, ScriptedModel
from mama_structs.tools.tool import ToolAnnotations

CODE = "def aim(targets):\n    return targets[:3]"
MARKED = f'Here it is:\n<ref id="aim" lang="python">\n{CODE}\n</ref>'
MALFORMED = 'Here it is: <ref id="my aim">def aim(): ...'
FENCE = "`" * 3
IN_FENCE = f'{FENCE}\n<ref id="aim">\n{CODE}\n</ref>\n{FENCE}'
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 100
PDF = b"%PDF-1.7\n\xff\xfe" + bytes(range(256)) * 10
IMAGE = {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}
REDIS = "Keep login sessions in Redis"
WHY = "a stolen token could not be revoked"
QUESTION = "Where do we keep the login sessions?"


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Disable all network access, including telemetry."""

    def refuse(_socket: socket.socket, address: object) -> None:
        raise AssertionError(f"connects to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def framework(request):
    """The framework whose cell a test belongs to."""
    name = request.node.get_closest_marker("behaviour").kwargs["framework"]
    return next(one for one in FRAMEWORKS if one.name == name)


@pytest.fixture
async def session():
    async with Session.open() as session:
        yield session


@pytest.fixture
async def filled():
    """A session with a decision and a checkpoint."""
    async with Session.open() as session:
        await session.memories.save_decision(REDIS, topic="auth", reasoning=WHY)
        await session.memories.save_checkpoint("The parser reads headers", next_steps=["read bodies"])
        yield session


async def measure(text: str) -> dict[str, int]:
    """Count characters."""
    return {"characters": len(text)}


async def play(drive: Any, session: Session, *script: Any) -> list[Any]:
    """Run a script as one turn, and return the answers of the tools."""
    return (await drive(session, ScriptedModel(*script), "go")).outputs


# Types in


class Kind(enum.Enum):
    RAID = "raid"
    TRADE = "trade"


@dataclass
class Player:
    """A player."""

    name: str
    guild: str | None = None


@behaviour("types in")
async def test_types_in_arguments_are_described_and_converted(session, drive):
    """The model is sent types, bounds and descriptions, and the tool receives Python objects."""
    received: list[Any] = []

    async def plan(  # noqa: PLR0917, D417 - the parameters of a tool; some are described elsewhere
        player: Player,
        kind: Kind,
        day: date,
        sizes: list[int],
        speed: Literal["slow", "fast"],
        count: Annotated[int, msgspec.Meta(ge=1, le=5, description="How many fleets.")] = 2,
        note: str | None = None,
    ) -> str:
        """
        Plan a raid.

        Args:
            day: The day of the raid.

        """
        received.append((player, kind, day, sizes, speed, count, note))
        return "planned"

    session.tools.add(plan)
    given: dict[str, Any] = {
        "player": {"name": "Ada", "guild": None}, "kind": "raid", "day": "2026-11-29", "sizes": [1, 2], "speed": "fast",
        "count": 5, "note": None,
    }  # fmt: skip
    model = ScriptedModel(call("plan", **given), call("plan", **{**given, "count": 99}), "Done.")
    planned, rejected = (await drive(session, model, "go")).outputs
    schema = json.dumps(sent_schemas(model)["plan"])

    assert "planned" == planned
    assert [(Player("Ada"), Kind.RAID, date(2026, 11, 29), [1, 2], "fast", 5, None)] == received
    assert "invalid_argument" in rejected
    assert "count" in rejected
    for described in ('"raid"', '"fast"', "How many fleets.", "The day of the raid.", "date", '"integer"'):
        assert described in schema


@behaviour("types in")
async def test_types_in_field_of_pydantic_is_described_and_checked(session, drive):
    """Bounds and descriptions of `Field` are in the schema, and a value outside of the bounds is rejected."""
    field = pytest.importorskip("pydantic").Field
    received = []

    async def fly(count: Annotated[int, field(ge=1, le=5, description="How many fleets.")]) -> str:
        received.append(count)
        return "flown"

    fly.__annotations__["count"] = Annotated[int, field(ge=1, le=5, description="How many fleets.")]
    session.tools.add(fly)
    model = ScriptedModel(call("fly", count=5), call("fly", count=99), "Done.")
    flown, rejected = (await drive(session, model, "go")).outputs

    assert "How many fleets." in json.dumps(sent_schemas(model)["fly"])
    assert "flown" == flown
    assert "invalid_argument" in rejected
    assert [5] == received


@behaviour("types in")
async def test_types_in_wrong_call_is_explained_and_can_be_corrected(session, drive):
    """A missing argument, an unknown id and an unknown tool argument return an error with a hint. The run continues."""

    def story():
        yield call("save__decision", topic="auth", decision="Use JWT")
        request = yield call("save__decision", topic="auth", decision="Use JWT", reasoning="No state")
        known = json.loads(request.results[-1])["id"]
        yield call("evolve__outcome", decision_id=known[:-1], outcome="SUCCESS")
        yield call("evolve__outcome", decision_id=known, outcome="SUCCESS")
        yield "Done."

    run = await drive(session, ScriptedModel(story()), "We use JWT")
    missing, _, unknown, _ = run.outputs

    assert ["Done."] == run.answers
    assert "reasoning is required" in missing
    assert "not_found" in unknown
    assert "did you mean" in unknown
    assert 1 == await session.memories.count()


# Types out


@dataclass
class Fleet:
    owner: str
    sizes: tuple[int, ...]
    built: datetime
    kind: Kind = Kind.RAID


@behaviour("types out")
async def test_types_out_results_are_json_of_the_announced_type(session, drive):
    """Dataclasses, dates, enums, sets and numbers reach the model as JSON, and invalid Unicode does not fail."""
    built = datetime(2026, 11, 29, 12, tzinfo=UTC)

    async def fleet() -> Fleet:
        """Return a fleet."""
        return Fleet("Ada", (1, 2), built)

    async def numbers() -> dict[str, Any]:
        """Return numbers."""
        return {"ratio": 0.1, "none": None, "text": "a\ud800é"}

    async def texts() -> list[str]:
        """Return texts."""
        return ["a", "b"]

    for tool in (fleet, numbers, texts):
        session.tools.add(tool)
    calls = [call("fleet"), call("numbers"), call("texts")]
    one, other, several = await play(drive, session, ModelTurn(calls=calls), "Done.")
    listed = json.loads(several) if isinstance(several, str) else several

    assert {"owner": "Ada", "sizes": [1, 2], "built": "2026-11-29T12:00:00Z", "kind": "raid"} == json.loads(one)
    jsonschema.validate(json.loads(one), session.tools["fleet"].output_schema)
    assert {"ratio": 0.1, "none": None, "text": "a?é"}.items() <= json.loads(other).items()
    assert ["a", "b"] == listed


@behaviour("types out")
async def test_types_out_huge_integer_is_complete(session, drive):
    """An integer above 64 bits reaches the model with all its digits."""

    async def supply() -> dict[str, int]:
        """Return the supply."""
        return {"supply": 2**70}

    session.tools.add(supply)
    (shown,) = await play(drive, session, call("supply"), "Done.")

    assert str(2**70) == str(json.loads(shown)["supply"])


@behaviour("types out")
async def test_types_out_not_a_number_is_valid_json(session, drive):
    """NaN and infinity are no JSON, so the model is not sent the bare words."""

    async def ratios() -> dict[str, float]:
        """Return ratios."""
        return {"a": math.nan, "b": math.inf, "c": 0.5}

    session.tools.add(ratios)
    (shown,) = await play(drive, session, call("ratios"), "Done.")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    assert 0.5 == json.loads(shown, parse_constant=refuse)["c"]


# Strict schemas


def is_strict(schema: dict[str, Any], *, requires_all: bool) -> bool:
    """Return True if all objects of a schema allow no other properties, and, if wanted, require all."""
    objects = [schema] if "properties" in schema else []
    pending: list[Any] = [*schema.values()]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            objects += [one] if isinstance(one.get("properties"), dict) else []
            pending += one.values()
        elif isinstance(one, list):
            pending += one
    return all(
        one.get("additionalProperties") is False
        and (not requires_all or set(one["properties"]) == set(one.get("required", ())))
        for one in objects
    )


@behaviour("strict")
async def test_strict_optional_arguments_may_be_null(session, drive, framework):
    """The strict schema accepts a call with null or without the argument; both mean that it was not given."""
    received = []

    async def plan(leader: str, count: int = 2, tags: list[str] | None = None) -> str:
        """Plan a raid."""
        received.append((leader, count, tags))
        return "planned"

    session.tools.add(plan)
    model = ScriptedModel(call("plan", leader="Ada", count=None, tags=None), "Done.")
    (planned,) = (await drive(session, model, "go")).outputs
    schema = sent_schemas(model)["plan"]

    assert is_strict(schema, requires_all=framework.is_strict_complete)
    jsonschema.validate(
        {"leader": "Ada"} | ({"count": None, "tags": None} if framework.is_strict_complete else {}), schema
    )
    assert "planned" == planned
    assert [("Ada", 2, None)] == received


# Interruption


@behaviour("interruption")
async def test_interruption_cancelled_run_stops_calls_and_leaves_session_usable(session, drive):
    """The running call is cancelled, later calls of the message do not start, and another run works."""
    began, notes = asyncio.Event(), []

    async def wait() -> None:
        """Wait."""
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            notes.append("cancelled")
            raise

    async def write(text: str) -> str:
        """Write a note."""
        notes.append(text)
        return "written"

    session.tools.add(wait)
    session.tools.add(write)
    calls = [call("wait"), call("write", text="later")]
    running = asyncio.create_task(play(drive, session, ModelTurn(calls=calls), "Done."))
    await asyncio.wait_for(began.wait(), 30)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    for _ in range(50):
        await asyncio.sleep(0)

    assert running.cancelled()
    assert ["cancelled"] == notes
    async with asyncio.timeout(30):
        assert "written" in str(await play(drive, session, call("write", text="new"), "Done."))


# Cut-off calls


@behaviour("cut-off calls")
async def test_cut_off_call_does_not_run(session, drive):
    """An answer that the token limit ended inside its last call: the call does not run, and earlier ones may."""
    heard: list[str] = []

    async def shout(text: str) -> str:
        """Shout a text."""
        heard.append(text)
        return text.upper()

    session.tools.add(shout)
    calls = [call("shout", text="Ada"), call("shout", text="Ada went home")]
    model = TruncatingModel(ModelTurn(calls=calls), "Sorry.", is_cut_off=True)
    try:
        run = await drive(session, model, "go")
    except Exception as error:
        # A framework may end the run instead, with an error that names the limit.
        assert re.search("token|incomplete|length", str(error))  # noqa: PT017 - not every framework raises
    else:
        assert ["Sorry."] == run.answers
        # Haystack drops the call.
        assert len(run.outputs) < 2 or re.search("cut off|no JSON|Invalid JSON", str(run.outputs[-1]))

    assert heard in ([], ["Ada"])


# Unknown items


@behaviour("unknown items")
async def test_unknown_item_does_not_affect_calls_and_refs(session, drive):
    """It is skipped: the call after it runs, the refs of the text are stored, and the conversation continues."""
    session.tools.add(measure)
    script = [ModelTurn(MARKED, [call("measure", text="abc")]), "Done.", "Again."]
    run = await drive(session, TruncatingModel(*script, has_unknown_item=True), "go", "and then?")

    assert ["Done.", "Again."] == run.answers
    assert 3 == json.loads(run.outputs[0].partition("\n<ref_notes>")[0])["characters"]
    assert CODE == session.refs.get("aim").text


# Media


def media_of(output: Any) -> list[Media]:
    """Return the images in the answer of a tool, in the form of any framework."""
    blocks = output if isinstance(output, list | tuple) else [output]
    found = []
    for one in blocks:
        if isinstance(one, dict):
            found.append(parse_media(one))
        elif isinstance(getattr(one, "image_url", None), str):
            found.append(parse_media({"type": "image_url", "image_url": one.image_url}))
        elif isinstance(getattr(one, "uri", None), str):
            found.append(parse_media({"type": "image_url", "image_url": one.uri}))
        elif isinstance(getattr(one, "data", None), bytes):
            kind = getattr(one, "media_type", None) or one.mime_type
            found.append(Media("image", kind, data=base64.b64encode(one.data).decode()))
    return [one for one in found if one is not None]


def written(output: Any) -> str:
    """Return the texts in the answer of a tool."""
    contents = output if isinstance(output, list) else [output]
    return "\n".join(str(getattr(one, "text", one)) for one in contents)


@behaviour("media")
async def test_media_image_of_tool_is_shown_or_stored(session, drive):
    """An image next to a text reaches the model as an image, or is stored under a handle if it cannot be shown."""

    async def show() -> Any:
        """Return a picture."""
        return [{"type": "text", "text": "The map"}, IMAGE]

    session.tools.add(show)
    (shown,) = await play(drive, session, call("show"), "ok")

    assert "The map" in written(shown)
    if images := media_of(shown):
        assert [(PNG, "image/png")] == [(one.content, one.mime_type) for one in images]
    else:
        assert "kept as fd:1" in written(shown)
        assert PNG == session.refs.get("fd:1").data
    assert not isinstance(shown, str) or len(shown) < 400


@behaviour("media")
async def test_media_file_of_tool_is_stored_under_handle(session, drive):
    """A file that models cannot read in a tool result is stored unchanged and named."""

    async def report() -> bytes:
        """Return a report."""
        return PDF

    session.tools.add(report)
    (shown,) = await play(drive, session, call("report"), "ok")

    assert "application/pdf" in written(shown)
    if "fd:1" in written(shown):
        assert PDF == session.refs.get("fd:1").data
    else:
        assert base64.b64encode(PDF).decode() in written(shown)


# Handles


@behaviour("handles")
async def test_handle_of_ref_and_descriptor_is_substituted(session, drive):
    """A tool receives the text of `ref:x` and of `fd:1`, not the handle."""
    session.tools.add(measure)
    page = "shields first\n" * 2_000
    await session.wrap(page)
    calls = [call("put_ref", ref_id="plan", text=CODE), call("measure", text="ref:plan"), call("measure", text="fd:1")]
    _, ref, descriptor = await play(drive, session, ModelTurn(calls=calls), "Done.")

    assert len(CODE) == json.loads(ref)["characters"]
    assert len(page) == json.loads(descriptor)["characters"]


@behaviour("handles")
async def test_handle_that_does_not_exist_is_rejected(session, drive):
    """The tool does not run with the words of the handle."""
    received = []

    async def keep(text: str) -> str:
        """Keep a text."""
        received.append(text)
        return "kept"

    session.tools.add(keep)
    (told,) = await play(drive, session, call("keep", text="fd:99"), "Done.")

    assert [] == received
    assert "fd:99" in told


@behaviour("handles", sees_answers="all")
async def test_handle_of_ref_in_same_message_is_substituted(session, drive):
    """Refs are stored before the calls that follow them, without a call of `observe` by the host."""
    session.tools.add(measure)
    calls = (call("get_ref", ref_id="aim"), call("measure", text="ref:aim"), call("get_ref", ref_id="aim@2"))
    found, measured, second = await play(drive, session, ModelTurn(MARKED, calls), "Done.")

    assert CODE in found
    assert len(CODE) == json.loads(measured)["characters"]
    assert ["measure got the text of ref:aim@1"] == json.loads(measured)["ref_notes"]
    assert "not_found" in second
    assert ("ref:aim@1",) == session.refs.versions("aim")


@behaviour("handles", sees_answers="last")
async def test_handle_of_ref_in_final_answer_is_available_in_next_turn(session, drive):
    """Refs of an answer without calls are stored once."""
    await play(drive, session, MARKED)

    assert CODE == session.refs.get("aim").body.text
    assert 1 == len(session.refs)


@behaviour("handles")
async def test_handle_calls_of_one_message_run_in_order(session, drive):
    """A read after a write returns the written data, even if the write is slow."""
    notes = []

    async def write(note: str) -> str:
        """Write a note."""
        for _ in range(30):
            await asyncio.sleep(0)
        notes.append(note)
        return "written"

    async def read() -> str:
        """Read the notes."""
        return ",".join(notes)

    session.tools.add(write)
    session.tools.add(read, annotations=ToolAnnotations(read_only=True))
    calls = (call("write", note="a"), call("read"), call("write", note="b"), call("read"))

    assert ["written", "a", "written", "a,b"] == await play(drive, session, ModelTurn("Both.", calls), "Done.")


@behaviour("handles")
async def test_handle_search_finds_memory_saved_in_same_message(session, drive):
    """A save and a search in one message run in order."""
    save = call("save__decision", topic="auth", decision="Use JWT", reasoning="No state")
    _, found = await play(drive, session, ModelTurn("", (save, call("search__by_topic", topic="auth"))), "Done.")

    assert "Use JWT" in found


# Recall


# The scripted model gets the user texts and call results so far, and returns a text or a call.
Step = str | tuple[str, dict[str, Any]]


async def converse(drive: Any, session: Session, model: Callable[[list[str], list[str]], Step], *turns: str, **options: Any) -> Any:  # fmt: skip
    """Run a model that is a function, and return the user texts of each request, the answers, and the conversation."""

    def step(request: ModelRequest) -> Step:
        return model([*texts_of_users(request.messages)], request.results)

    script = ScriptedModel(*[step] * 20)
    run = await drive(session, script, *turns, **options)
    return [[*texts_of_users(one.messages)] for one in script.requests], run.answers, run.history


def is_block(text: str) -> bool:
    return text.startswith("<recalled>") and text.endswith("</recalled>")


def blocks_in(texts: list[str]) -> list[str]:
    return [text for text in texts if is_block(text)]


def own_texts(texts: list[str]) -> list[str]:
    return [text for text in texts if not is_block(text)]


def quotes_recalled_block(texts: list[str], _outputs: list[str]) -> str:
    """Scripted model that answers with the last recalled block of its input, or else with 'I do not know'."""
    return [*blocks_in(texts), "I do not know"][-2:][0]


@behaviour("recall")
async def test_recall_resumes_from_saved_checkpoint(filled, drive):
    """The model gets the last checkpoint without a call, works, and saves a new one."""

    def works(texts: list[str], outputs: list[str]) -> Step:
        if outputs:
            return "Saved"
        assert "read bodies" in blocks_in(texts)[0]
        return call("save__checkpoint", summary="The parser reads bodies", open_files=[], next_steps=["tests"])

    requests, answers, _ = await converse(drive, filled, works, "continue from yesterday")

    assert ["Saved"] == answers
    assert "The parser reads bodies" == (await filled.memories.latest_checkpoint()).content
    assert [1, 1] == [len(blocks_in(texts)) for texts in requests]


@behaviour("recall")
async def test_recall_text_is_separate_from_user_text(filled, drive):
    """A relevant decision is a separate text next to the user's text, which is unchanged."""
    ((*texts,),), answers, _ = await converse(drive, filled, quotes_recalled_block, QUESTION)

    assert [QUESTION] == own_texts(texts)
    assert answers == blocks_in(texts)
    assert REDIS in answers[0]
    assert WHY in answers[0]


@behaviour("recall")
async def test_recall_adds_nothing_when_nothing_is_relevant(filled, drive):
    """Without relevant memories there is no recall block."""
    said = "How tall is the Eiffel tower?"
    requests, answers, _ = await converse(drive, filled, quotes_recalled_block, said)

    assert [[said]] == requests
    assert ["I do not know"] == answers


@behaviour("recall")
async def test_recall_stays_in_place_and_runs_once_per_message(filled, drive, framework, monkeypatch):
    """Each request of a conversation begins with the previous one, and recall runs once per message."""
    searches = []
    search = MemoryStore.search

    async def counted(self: MemoryStore, *args: Any, **kwargs: Any) -> Any:
        searches.append(args)
        return await search(self, *args, **kwargs)

    def looks_first(texts: list[str], outputs: list[str]) -> Step:
        return "Fine" if len(outputs) == len(own_texts(texts)) else call("list_refs", category=None)

    monkeypatch.setattr(MemoryStore, "search", counted)
    turns = [QUESTION, "Are you sure about the login sessions?", "Thanks", QUESTION]
    requests, _, _ = await converse(drive, filled, looks_first, *turns)

    assert len(turns) == len(searches)
    assert turns == own_texts(requests[-1])
    assert all(later[: len(earlier)] == earlier for earlier, later in itertools.pairwise(requests))
    # A server cannot assign a request to a conversation, so it recalls the same facts again.
    assert framework.sees_answers == "none" or 1 == sum(REDIS in text for text in requests[-1])


@behaviour("recall")
async def test_recall_in_reopened_conversation_contains_fact_once(tmp_path, drive, framework):
    """After a restart the model sees an earlier fact once: in its history, or recalled again."""
    history: Any = ()
    for said in (QUESTION, "And why do we keep the login sessions there?"):
        async with Session.open(tmp_path, conversation="monday", embedder=HashEmbedder()) as session:
            if not history:
                await session.memories.save_decision(REDIS, topic="auth", reasoning=WHY)
            requests, _, history = await converse(drive, session, quotes_recalled_block, said, history=history)

    assert framework.sees_answers == "none" or 1 == sum(REDIS in text for text in requests[-1])


@behaviour("recall")
async def test_recall_that_fails_does_not_fail_turn(filled, drive, monkeypatch, caplog):
    """The model is called without recalled text, and the error is logged."""

    async def broken(*_args: Any, **_kwargs: Any) -> None:
        raise StoreError("the disk is gone")

    monkeypatch.setattr(MemoryStore, "search", broken)
    _, answers, _ = await converse(drive, filled, quotes_recalled_block, QUESTION)

    assert ["I do not know"] == answers
    assert "the disk is gone" in caplog.text


# Notes


@behaviour("notes", sees_answers="all")
@pytest.mark.parametrize(
    ("marked", "words"), [(MALFORMED, "'my aim' is no id"), (IN_FENCE, "in code"), ('<ref id="aim">x', "not closed")]
)
async def test_note_on_malformed_markup_is_reported_once(session, drive, marked, words):
    """The next tool answer contains the diagnostic, and the one after it does not."""
    session.tools.add(measure)
    first, second, third = await play(
        drive,
        session,
        ModelTurn(marked, (call("measure", text="abc"), call("measure", text="abcd"))),
        ModelTurn("Let me see.", (call("measure", text="abcde"),)),
        "Done.",
    )
    told = json.loads(first)

    assert 3 == told.pop("characters")
    assert ["ref_notes"] == list(told)
    assert words in "\n".join(told["ref_notes"])
    assert [{"characters": 4}, {"characters": 5}] == [json.loads(second), json.loads(third)]


@behaviour("notes", sees_answers="all")
async def test_note_on_markup_in_code_fence_explains_failing_call(session, drive):
    """A call that refers to markup in a code fence gets an explanation."""
    (answered,) = await play(drive, session, ModelTurn(IN_FENCE, (call("get_ref", ref_id="aim"),)), "Done.")

    assert "there is no ref:aim" in answered
    assert "put the tags outside" in answered


@behaviour("notes", sees_answers="last")
async def test_note_on_final_answer_is_reported_in_next_turn(session, drive):
    """A diagnostic of an answer without calls is reported by the first tool of the next turn."""
    await play(drive, session, MALFORMED)
    # A graph with a checkpointer continues the conversation, so its history contains all answers.
    *_, answered = await play(drive, session, ModelTurn("Again.", (call("list_refs", category=None),)), "Done.")

    assert re.search(r"\n<ref_notes>\n'my aim' is no id.*\n</ref_notes>$", answered, re.DOTALL)


# The table


def test_table_has_no_missing_and_no_failed_cell(table):
    """Every cell of docs/internals/behaviours.json has a passed result of this suite's tests, or a reason."""
    for row, framework in itertools.product(table.ROWS, FRAMEWORKS):
        if row not in framework.not_applicable:
            cell = table.read()["cells"].get(row, {}).get(framework.name)

            assert cell, f"{framework.name} has no result of {row}: run the suite with {table.WRITE_VARIABLE}=1"
            assert [] == cell["failed"], f"{framework.name}, {row}"


def test_table_of_page_has_recorded_results(table):
    """The overview shows the recorded results."""
    page = table.PAGE_PATH.read_text(encoding="utf-8")

    assert page == table.insert(page, table.read())


@pytest.fixture
def table():
    import behaviour_table  # noqa: PLC0415 - the module, whose names are like those of this one

    assert Path(behaviour_table.FIGURES).exists()
    return behaviour_table
