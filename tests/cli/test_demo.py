import asyncio
import json
from pathlib import Path

import attrs
import pytest

from mama_structs import MamaStructsError, Session, Settings
from mama_structs._internal.jsonable import to_json_text
from mama_structs._internal.reprs import align_columns
from mama_structs.cli import demo as scenario
from mama_structs.cli.demo import (
    DemoRun,
    abbreviate,
    query_player_one_by_one,
    query_player_with_references,
    render_story,
    run_demo,
)
from mama_structs.cli.demo_memory import run_memory_demo
from mama_structs.cli.main import main
from mama_structs.testing import Fault, World

SMALL = ["--latency", "0"]
ROOT = Path(__file__).parents[2]
MAX_MEMORY_LINES = 25
TABLE = 64


@pytest.fixture(scope="module")
def story():
    return asyncio.run(run_demo(latency=0))


def moved(story):
    """Return the demo result as if a fleet had moved between the two runs, so that the facts of the runs differ."""
    facts = story.one.without_references.facts | {"fleet": {"id": "9-11", "status": "away", "place": ""}}
    return attrs.evolve(
        story, one=attrs.evolve(story.one, without_references=attrs.evolve(story.one.without_references, facts=facts))
    )


def test_demo_json_shows_saved_calls(capsys):
    """The output is one JSON object with the costs for one player and for a list."""
    code = main(["demo", "--json", *SMALL])
    figures = json.loads(capsys.readouterr().out)

    assert 0 == code
    assert ["memory", "player", "list", "same_facts"] == list(figures)
    assert {"without": 4, "with": 1} == {way: run["agent_calls"] for way, run in figures["player"].items()}
    assert {"without": 17, "with": 1, "repeat": 1} == {way: run["agent_calls"] for way, run in figures["list"].items()}
    assert figures["same_facts"] is True
    for run in (*figures["player"].values(), *figures["list"].values()):
        assert {"agent_calls", "upstream_queries", "chars", "tokens", "seconds"} == run.keys()
        assert 0 < run["seconds"] < 30
        assert run["chars"] // 4 == run["tokens"] > 0


async def test_demo_uses_default_settings(mama_structs_node):
    """Each answer is within the budget, so the counts are those of a real model."""
    story = await run_demo(base_url=mama_structs_node.url)
    calls = [call for run in story.runs.values() for call in run.calls]

    assert Settings().answers.max_chars >= max(call.chars for call in calls)
    assert all(call.chars == len(to_json_text(call.answer)) for call in calls)


def test_demo_upstream_queries_are_bounded(story):
    """Without references a call is a query; with them each entity is queried once."""
    for question in (story.one, story.page):
        assert (
            len(question.without_references.calls)
            == question.without_references.upstream_queries
            == len(question.without_references.requested_paths)
        )
        assert question.without_references.upstream_queries == question.with_references.upstream_queries
        assert len(set(question.with_references.requested_paths)) == question.with_references.upstream_queries


def test_demo_repeat_uses_cached_references(story):
    """With a warm cache at most the page itself is queried again, if it is more than a second old."""
    assert 1 >= story.repeat.upstream_queries == len(story.repeat.requested_paths)
    assert story.page.with_references.upstream_queries == story.repeat.from_cache + story.repeat.upstream_queries


def test_demo_runs_do_not_share_a_cache(story):
    """Each run starts with an empty cache."""
    assert {0} == {run.from_cache for run in story.runs.values() if run is not story.repeat}


def test_demo_facts_match_the_world(story):
    """Both variants find the data of the generated world."""
    world = World.generate(seed=1, players=12)
    player = world.get("player", "1-11")

    assert story.same_facts
    assert {
        "player": {"id": "1-11", "name": player["name"]},
        "guild": {
            "id": player["guildId"],
            "name": world.get("guild", player["guildId"])["name"],
            "owner": world.get("guild", player["guildId"])["owner"],
        },
        "planet": {
            "id": player["planetId"],
            "ore": world.envelope(player["planetId"])["gridAttributes"]["ore"],
            "owner": "1-11",
        },
        "fleet": {
            "id": "9-11",
            "status": world.get("fleet", "9-11")["status"],
            "place": world.get("fleet", "9-11")["locationId"],
        },
    } == story.one.with_references.facts
    assert {
        row["id"]: {
            "name": row["name"],
            **{kind: world.get(kind, row[f"{kind}Id"])["name"] for kind in ("guild", "planet") if row[f"{kind}Id"]},
        }
        for row in world.rows("player")
    } == story.page.with_references.facts


async def test_demo_reads_truncated_rows_by_handle(mama_structs_node):
    """With long names the list is truncated. The agent reads the rest and finds the same facts."""
    for row in mama_structs_node.data.rows("player"):
        mama_structs_node.data.get("player", row["id"])["name"] = "n" * 900
    story = await run_demo(base_url=mama_structs_node.url)

    assert "read_fd" in {call.tool for call in story.page.with_references.calls}
    assert story.same_facts


@pytest.mark.parametrize("options", [["--seed", "3"], ["--players", "40"], ["--seed", "7", "--players", "13"]])
def test_demo_works_with_any_world(options, capsys):
    """Another seed or size changes names and numbers only."""
    assert 0 == main(["demo", "--json", *SMALL, *options])
    assert json.loads(capsys.readouterr().out)["same_facts"] is True


@pytest.mark.parametrize("columns", ["80", "100"])
def test_demo_text_shows_memory_in_few_lines(columns, capsys, monkeypatch):
    """The text has three saves, a failure, a replacement, a recall, a search and two commands, in this order."""
    monkeypatch.setenv("COLUMNS", columns)
    code = main(["demo"])
    printed = capsys.readouterr().out
    text = " ".join(printed.split())

    assert 0 == code
    places = [
        'decision: "Use JWT for logins", because "No server state"',
        'insight: "Ada works as a nurse"',
        "checkpoint: ",
        'FAILED: "A stolen JWT could not be revoked"',
        'decision: "Keep logins in Redis", because "They can be revoked"',
        "<recalled>",
        'FAILED because "A stolen JWT could not be revoked"',
        "</recalled>",
        "A search for ",
        '"Ada works as a nurse" (relevance ',
        "mama-structs demo --references",
        "mama-structs --help",
    ]
    assert sorted(text.rindex(place) for place in places) == [text.rindex(place) for place in places]
    assert len(printed.splitlines()) <= MAX_MEMORY_LINES
    assert all(len(line) <= int(columns) for line in printed.splitlines())
    assert text.isascii()


async def test_demo_memory_figures_match_the_text():
    demo = await run_memory_demo()

    assert 4 == demo.figures["saved"]
    assert len(demo.recalled_text) == demo.figures["recall"]["chars"] > 0
    assert "Ada works as a nurse" == demo.figures["search"]["hit"]
    assert 0.3 <= demo.figures["search"]["relevance"] <= 1


@pytest.mark.parametrize("page", ["README.md", "docs/get-started/quickstart.md"])
async def test_demo_uses_the_memories_of_the_first_pages(page):
    """A reader finds the same decisions on the pages and in the demo."""
    demo = await run_memory_demo()
    text = (ROOT / page).read_text(encoding="utf-8")

    assert demo.failed.content in text
    assert demo.failed.outcome_reason in text
    assert demo.replacement.content in text
    assert demo.replacement.reasoning in text


def test_demo_references_text_shows_answers_and_costs(capsys):
    """The text has an answer with references, and the costs."""
    code = main(["demo", "--references", *SMALL])
    text = " ".join(capsys.readouterr().out.split())

    assert 0 == code
    places = [
        "References: Who is player 1-11",
        ' "references": { "0-',
        "What references cost",
        "the players on this page",
        "calls queries characters tokens",
    ]
    assert sorted(text.rindex(place) for place in places) == [text.rindex(place) for place in places]
    assert 2 == text.count("> structs_query_player(")
    assert 2 == text.count("Both ways find out the same")
    assert 2 == text.count("* The price: ")
    assert "and the node was asked for " in text
    assert text.isascii()


@pytest.mark.parametrize("options", [["--player", "1-11"], ["--latency", "0"], ["--base-url", "http://127.0.0.1:1"]])
def test_demo_rejects_node_options_without_references(options, capsys):
    """Without --references and --json no node is queried, so the options would have no effect."""
    with pytest.raises(SystemExit) as exited:
        main(["demo", *options])

    assert 2 == exited.value.code
    assert f"{options[0]}: only allowed with --references or --json" in capsys.readouterr().err


@pytest.mark.parametrize("width", [40, 80, 100])
def test_demo_text_fits_the_terminal(story, width):
    """Lines wrap between words at the terminal's width; only long words, such as a call with an id, are wider."""
    text, unwrapped = render_story(story, width=width), render_story(story, width=10_000)

    assert [] == [line for line in text.splitlines() if len(line) > width and " " in line.strip()]
    # If the terminal is narrower than the table, each row is printed as lines, without losing text.
    marks = str.maketrans("", "", "=-(),:")
    assert sorted(text.translate(marks).split()) == sorted(unwrapped.translate(marks).split()) or width < TABLE
    assert all(f"{run.chars:,}" in text for run in story.runs.values())


def test_demo_shows_both_results_when_they_differ(story):
    """If the runs found different facts, both are in the text."""
    text = render_story(moved(story))

    assert "NOT find out the same" in text
    assert "status away" in text
    assert "status onStation" in text


def test_demo_exits_with_1_when_results_differ(story, monkeypatch, capsys):
    """The costs are printed, too."""

    async def different(**_):
        return moved(story)

    monkeypatch.setattr(scenario, "run_demo", different)

    code = main(["demo", "--json"])
    captured = capsys.readouterr()

    assert 1 == code
    assert json.loads(captured.out)["same_facts"] is False
    assert captured.err.startswith("mama-structs: the runs found different facts (")


def test_demo_describes_cost_and_savings(story):
    """The text has the additional characters of references and, if there are any, the savings."""
    one = story.one.with_references
    text = " ".join(render_story(story).split())

    assert f"{one.chars:,} characters instead of {story.one.without_references.calls[0].chars:,}" in text
    assert "it saves 3 calls." in text
    assert (
        f"it saves 16 calls and {story.page.without_references.chars - story.page.with_references.chars:,} char" in text
    )


# A real node, which does not count its queries for the demo


@pytest.mark.mama_structs_node(seed=1, players=12)
def test_demo_chooses_first_suitable_player_of_real_node(mama_structs_node, capsys):
    """With --base-url the first player with guild, planet and fleet is used."""
    chosen = next(
        row["id"]
        for row in mama_structs_node.data.rows("player")
        if row["guildId"] and row["planetId"] and row["fleetId"]
    )

    code = main(["demo", "--references", "--base-url", mama_structs_node.url])
    text = capsys.readouterr().out

    assert 0 == code
    assert f"Who is player {chosen}," in text
    assert "and the node was asked for " in " ".join(text.split())


@pytest.mark.mama_structs_node(seed=1, players=12)
def test_demo_uses_player_option(mama_structs_node, capsys):
    """With --player the player is queried, and its page of the list is searched."""
    code = main(["demo", "--base-url", mama_structs_node.url, "--player", "1-11", "--json"])
    figures = json.loads(capsys.readouterr().out)

    assert 0 == code
    assert [4, 1] == [figures["player"][run]["agent_calls"] for run in ("without", "with")]
    asked = [run["upstream_queries"] for question in ("player", "list") for run in figures[question].values()]
    assert sum(asked) + 2 == len(mama_structs_node.requests)


async def test_demo_reads_page_of_player():
    """The list question uses the page with the demo's player."""
    story = await run_demo(players=60, player_id="1-7", latency=0)
    calls = [run.calls[0] for run in (story.page.without_references, story.page.with_references)]

    assert "Who is player 1-7," in story.one.text
    assert all("pagination_key" in call.arguments for call in calls)
    assert story.same_facts


def test_demo_finds_bundled_player_in_large_world(capsys):
    """Player 1-11 is found even if more than a page of players precedes it."""
    assert 0 == main(["demo", "--json", *SMALL, "--players", "300"])
    assert json.loads(capsys.readouterr().out)["same_facts"] is True


@pytest.mark.mama_structs_node(seed=1, players=60)
def test_demo_searches_all_pages_for_suitable_player(mama_structs_node, capsys):
    """If no player on the first page has guild, planet and fleet, later pages are read."""
    players = mama_structs_node.data.ids("player")
    for player_id in players[:20]:
        mama_structs_node.data.get("player", player_id)["guildId"] = ""
    chosen = next(
        player_id
        for player_id in players
        if all(mama_structs_node.data.get("player", player_id)[field] for field in ("guildId", "planetId", "fleetId"))
    )

    assert 0 == main(["demo", "--references", "--base-url", mama_structs_node.url])
    assert f"Who is player {chosen}," in capsys.readouterr().out


def test_demo_maximum_latency_is_within_deadline(capsys):
    """At the maximum --latency every reference arrives in time."""
    assert 0 == main(["demo", "--json", "--latency", "400", "--players", "40"])
    assert json.loads(capsys.readouterr().out)["same_facts"] is True


@pytest.mark.mama_structs_node(seed=1, players=12)
def test_demo_escapes_control_characters_in_names(mama_structs_node, capsys):
    """Control characters in names are escaped."""
    mama_structs_node.data.get("player", "1-11")["name"] = "\x1b[31mred\nline\x9b"

    code = main(["demo", "--references", "--base-url", mama_structs_node.url, "--player", "1-11"])
    text = capsys.readouterr().out

    assert 0 == code
    assert "\\x1b[31mred\\nline\\x9b" in text
    assert text.replace("\n", "").isprintable()


@pytest.mark.mama_structs_node(entities={"1-1": {"id": "1-1", "guildId": "", "planetId": "", "fleetId": "9-1"}})
def test_demo_without_suitable_player_fails(mama_structs_node, capsys):
    """Without a player with guild, planet and fleet the demo ends with an error."""
    assert 1 == main(["demo", "--references", "--base-url", mama_structs_node.url])
    assert "none of the first 1 players has a guild, a planet and a fleet" in capsys.readouterr().err


async def test_demo_fails_when_reference_failed(mama_structs_node):
    """The error has the reason of an unresolved reference."""
    mama_structs_node.faults.add(Fault.error(status=500, code=13, message="boom"), on="/structs/fleet/9-11")

    async with Session.open(structs=mama_structs_node.url) as session:
        with pytest.raises(MamaStructsError, match=r"the reference to 9-11 is missing: .*boom"):
            await query_player_with_references(DemoRun(session), "1-11")


async def test_demo_checks_query_count_with_node(mama_structs_node):
    """A session that miscounts its queries is detected."""

    class Miscounting:
        requests = ()

    async with Session.open(structs=mama_structs_node.url) as session:
        with pytest.raises(MamaStructsError, match="the session counted 4 queries and the node 0"):
            await DemoRun(session, Miscounting()).measure(query_player_one_by_one, "1-11")


# Text output of the demo


def test_demo_table_aligns_numbers_right():
    """The first column is text, the others are numbers."""
    assert "run  calls\n---  -----\na        1\nbc      10" == align_columns(
        ("run", "calls"), [("a", "1"), ("bc", "10")]
    )
    assert "a    b   n\n---  -  --\nbcd  e  10" == align_columns(("a", "b", "n"), [("bcd", "e", "10")], left_columns=2)


def test_demo_abbreviated_answer_has_ellipses():
    """Every part and every reference has a line, and omitted fields are replaced by dots."""
    answer = {"Player": {"id": "1-1", "pfp": "x"}, "references": {"0-1": {"reference_type": "guild", "id": "0-1"}}}

    assert (
        '{\n  "Player": {"id": "1-1", ...},\n'
        '  "references": {\n    "0-1": {"reference_type": "guild", "id": "0-1"}\n  }\n}'
    ) == abbreviate(answer)
