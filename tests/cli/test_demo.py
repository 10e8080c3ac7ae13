import asyncio
import json

import attrs
import pytest

from mama_structs import MamaStructsError, Session
from mama_structs import demo as scenario
from mama_structs._plain import json_size
from mama_structs.cli import main
from mama_structs.demo import DemoRun, at_once, one_by_one, play, printable, shortened, table, tell
from mama_structs.testing import Fault, World

SMALL = ["--latency", "0"]


@pytest.fixture(scope="module")
def story():
    return asyncio.run(play(latency=0))


def moved(story):
    """The story of a chain whose fleet left between the runs."""
    facts = story.without.facts | {"fleet": {"id": "9-11", "status": "away", "place": ""}}
    return attrs.evolve(story, without=attrs.evolve(story.without, facts=facts))


def test_five_calls_become_one(capsys):
    """The figures say what the agent is spared, as one JSON object."""
    code = main(["demo", "--json", *SMALL])
    figures = json.loads(capsys.readouterr().out)

    assert 0 == code
    assert {"without", "with", "repeat", "same_facts"} == figures.keys()
    assert [5, 1, 1] == [figures[run]["agent_calls"] for run in ("without", "with", "repeat")]
    assert figures["same_facts"] is True
    for run in ("without", "with", "repeat"):
        assert {"agent_calls", "upstream_queries", "bytes", "seconds"} == figures[run].keys()
        assert 0 < figures[run]["seconds"] < 30
        assert 0 < figures[run]["bytes"]


def test_upstream_queries_are_bounded(story):
    """Without references a call is a query; with them nothing is asked twice, and 50 references at the most."""
    assert 5 == story.without.upstream_queries == len(story.without.asked)
    assert 4 == story.player_only.upstream_queries
    assert 1 + 50 >= story.with_references.upstream_queries
    assert len(set(story.with_references.asked)) == story.with_references.upstream_queries


def test_the_repeat_costs_the_node_no_reference(story):
    """While answers are kept, the page alone is asked for again, where it is over a second old."""
    assert 1 >= story.repeat.upstream_queries == len(story.repeat.asked)
    assert story.with_references.upstream_queries == story.repeat.from_cache + story.repeat.upstream_queries


def test_runs_do_not_help_each_other(story):
    """Each way begins with an empty cache."""
    assert 0 == story.without.from_cache == story.with_references.from_cache == story.player_only.from_cache


def test_the_facts_are_those_of_the_world(story):
    """What both ways find out is what the world holds."""
    world = World.generate(seed=1, players=12)
    player = world.get("player", "1-11")
    mates = [row["name"] for row in world.rows("player") if row["guildId"] == player["guildId"]]
    mates.remove(player["name"])

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
        "guild_mates": mates,
    } == story.with_references.facts


def test_bytes_are_those_of_the_answers(story):
    """What the agent read is counted as compact JSON."""
    assert sum(json_size(call.answer) for call in story.without.calls) == story.without.figures["bytes"]


@pytest.mark.parametrize("options", [["--seed", "3"], ["--players", "40"], ["--seed", "7", "--players", "13"]])
def test_every_world_has_the_scenario(options, capsys):
    """Another seed or size changes names and numbers, not the result."""
    assert 0 == main(["demo", "--json", *SMALL, *options])
    assert json.loads(capsys.readouterr().out)["same_facts"] is True


def test_people_see_both_answers_and_the_cost(capsys):
    """The text shows the question, the calls, the section with the references, the facts, and the table."""
    code = main(["demo", *SMALL])
    text = capsys.readouterr().out

    assert 0 == code
    assert "Who is player 1-11" in text
    assert 3 == text.count("> structs_list_players(") + text.count("> structs_query_player(")
    assert '  "references": {\n    "0-' in text
    assert "the same both ways" in text
    assert "calls the agent made  upstream queries  bytes the agent read" in text
    assert "and the node was asked for " in " ".join(text.split())
    assert text.isascii()


def test_a_difference_is_said(story):
    """Where the runs found different facts, both are shown."""
    text = tell(moved(story))

    assert "NOT the same" in text
    assert "status away" in text
    assert "status onStation" in text


def test_a_difference_is_an_error(story, monkeypatch, capsys):
    """The figures are printed all the same, and the exit code tells."""

    async def different(**_):
        return moved(story)

    monkeypatch.setattr(scenario, "play", different)

    code = main(["demo", "--json"])
    captured = capsys.readouterr()

    assert 1 == code
    assert json.loads(captured.out)["same_facts"] is False
    assert captured.err.startswith("mama-structs: the runs found different facts (")


def test_the_price_is_said_either_way(story):
    """Whether the one call is also the faster one depends on the node, and the notes say which."""
    slow = attrs.evolve(story, with_references=attrs.evolve(story.with_references, seconds=story.without.seconds + 4))
    fast = attrs.evolve(story, with_references=attrs.evolve(story.with_references, seconds=0.0))

    assert "as soon as a turn takes 1000 ms" in " ".join(tell(slow).split())
    assert "the faster way even so" in " ".join(tell(fast).split())


# A real node, whose counters nobody can see


@pytest.mark.mama_structs_node(seed=1, players=12)
def test_a_node_of_ones_own(mama_structs_node, capsys):
    """With --base-url the first player with guild, planet and fleet is the one in question."""
    chosen = next(
        row["id"]
        for row in mama_structs_node.data.rows("player")
        if row["guildId"] and row["planetId"] and row["fleetId"]
    )

    code = main(["demo", "--base-url", mama_structs_node.url])
    text = capsys.readouterr().out

    assert 0 == code
    assert f"Who is player {chosen}," in text
    assert "and the node was asked for " in " ".join(text.split())


@pytest.mark.mama_structs_node(seed=1, players=12)
def test_a_player_of_ones_choice(mama_structs_node, capsys):
    """With --player there is no choosing: the player is queried, and looked for on the pages of the list."""
    code = main(["demo", "--base-url", mama_structs_node.url, "--player", "1-11", "--json"])
    figures = json.loads(capsys.readouterr().out)

    assert 0 == code
    assert [5, 1] == [figures[run]["agent_calls"] for run in ("without", "with")]
    assert figures["without"]["upstream_queries"] + figures["with"]["upstream_queries"] + 4 + 2 == len(
        mama_structs_node.requests
    )


def test_a_player_on_another_page(capsys):
    """The demo reads the page of the list that the player in question is on."""
    assert 0 == main(["demo", *SMALL, "--players", "60", "--player", "1-7"])

    text = capsys.readouterr().out
    assert "Who is player 1-7," in text
    assert 'structs_list_players(pagination_limit=16, pagination_key="' in text
    assert "the same both ways" in text


def test_the_bundled_player_is_found_in_a_large_world(capsys):
    """Player 1-11 is the one in question also where more than a page of players comes before it."""
    assert 0 == main(["demo", "--json", *SMALL, "--players", "300"])
    assert json.loads(capsys.readouterr().out)["same_facts"] is True


@pytest.mark.mama_structs_node(seed=1, players=60)
def test_a_fitting_player_is_looked_for_on_every_page(mama_structs_node, capsys):
    """Where nobody on the first page has guild, planet and fleet, the pages behind it are read."""
    players = mama_structs_node.data.ids("player")
    for player_id in players[:20]:
        mama_structs_node.data.get("player", player_id)["guildId"] = ""
    chosen = next(
        player_id
        for player_id in players
        if all(mama_structs_node.data.get("player", player_id)[field] for field in ("guildId", "planetId", "fleetId"))
    )

    assert 0 == main(["demo", "--base-url", mama_structs_node.url])
    assert f"Who is player {chosen}," in capsys.readouterr().out


def test_the_slowest_node_that_is_allowed_is_fast_enough(capsys):
    """At the highest latency that the command line takes, every reference comes in time."""
    assert 0 == main(["demo", "--json", "--latency", "400", "--players", "40"])
    assert json.loads(capsys.readouterr().out)["same_facts"] is True


@pytest.mark.mama_structs_node(seed=1, players=12)
def test_names_of_a_chain_do_not_reach_the_terminal_raw(mama_structs_node, capsys):
    """Control characters in names are shown as escapes."""
    mama_structs_node.data.get("player", "1-11")["name"] = "\x1b[31mred\nline\x9b"

    code = main(["demo", "--base-url", mama_structs_node.url, "--player", "1-11"])
    text = capsys.readouterr().out

    assert 0 == code
    assert "\\x1b[31mred\\nline\\x9b" in text
    assert text.replace("\n", "").isprintable()


@pytest.mark.mama_structs_node(entities={"1-1": {"id": "1-1", "guildId": "", "planetId": "", "fleetId": "9-1"}})
def test_a_node_without_a_fitting_player(mama_structs_node, capsys):
    """Where nobody has a guild, a planet and a fleet, there is no scenario."""
    assert 1 == main(["demo", "--base-url", mama_structs_node.url])
    assert "none of the first 1 players has a guild, a planet and a fleet" in capsys.readouterr().err


async def test_a_failed_reference_is_no_fact(mama_structs_node):
    """A reference that could not be resolved ends the demo with what happened."""
    mama_structs_node.faults.add(Fault.error(status=500, code=13, message="boom"), on="/structs/fleet/9-11")

    async with Session.open(structs=mama_structs_node.url, settings=scenario._WHOLE) as session:
        with pytest.raises(MamaStructsError, match=r"the reference to 9-11 is missing: .*boom"):
            await at_once(DemoRun(session), "1-11")


async def test_the_node_counts_too(mama_structs_node):
    """A session that miscounts its queries is found out."""

    class Miscounting:
        requests = ()

    async with Session.open(structs=mama_structs_node.url, settings=scenario._WHOLE) as session:
        with pytest.raises(MamaStructsError, match="the session counted 5 queries and the node 0"):
            await DemoRun(session, Miscounting()).measure(one_by_one, "1-11")


# Text


def test_numbers_of_a_table_stand_right():
    """The first column is words, the others are numbers."""
    assert "run  calls\n---  -----\na        1\nbc      10" == table(("run", "calls"), [("a", "1"), ("bc", "10")])
    assert "a    b   n\n---  -  --\nbcd  e  10" == table(("a", "b", "n"), [("bcd", "e", "10")], words=2)


def test_what_is_left_out_is_counted():
    """Every row and reference that is not shown is counted, every field that is not shown leaves dots."""
    answer = {
        "Player": [{"id": "1-1", "pfp": "x"}, {"id": "1-2"}],
        "pagination": {"next_key": None},
        "references": {"0-1": {"reference_type": "guild", "id": "0-1"}, "0-2": {"id": "0-2"}},
    }

    assert (
        "{\n"
        '  "Player": [\n    {"id": "1-1", ...},\n    ... 1 more\n  ],\n'
        '  "pagination": {"next_key": null},\n'
        '  "references": {\n    "0-1": {"reference_type": "guild", "id": "0-1"},\n    ... 1 more\n  }\n'
        "}"
    ) == shortened(answer, {"1-1", "0-1"})


def test_what_is_whole_has_no_dots():
    """Where nothing is left out, nothing says so."""
    assert '{\n  "Player": [\n    {"id": "1-1"}\n  ]\n}' == shortened({"Player": [{"id": "1-1"}]}, {"1-1"})


def test_printable_text_stays():
    """Only what a terminal would obey is escaped."""
    assert "häuser 星" == printable("häuser 星")
    assert "\\x1b\\x07\\u202e" == printable("\x1b\x07\u202e")
