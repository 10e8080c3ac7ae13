"""A model's answer shows rows, and the references of exactly these rows. Only these references are queried."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import DescriptorSettings, IdScheme, Session, Settings, Source, with_descriptors
from mama_structs.settings import AnswerSettings
from mama_structs.structs.scheme import STRUCTS_SCHEME
from mama_structs.testing import FakeNode

LIST_TOOLS = {"players": "Player", "planets": "Planet", "structs": "Struct", "fleets": "Fleet"}
REFERENCES = {"include_references": True}


def written(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def find_named(answer, key):
    """Return the ids of the references that the rows of an answer contain."""
    rows = written(answer[key])
    return [one for one in answer["references"] if f'"{one}"' in rows]


@pytest.fixture
async def chain():
    async with FakeNode.world(seed=1, players=85) as node, Session.open(structs=node.url) as session:
        yield node, session


async def test_list_tools_show_the_references_of_shown_rows_only(chain, capsys):
    """Each reference is named by a shown row, in brief form, and the node is asked for no other entity."""
    node, session = chain
    lines = ["list | rows shown | references shown | named by a shown row | queries"]
    for name, key in LIST_TOOLS.items():
        session.resolver.invalidate()
        node.reset_counters()
        answer = await session.call(f"structs_list_{name}", REFERENCES)
        shown, named, queries = answer["references"], find_named(answer, key), node.count("*") - 1
        lines.append(f"{name} | {len(answer[key])} | {len(shown)} | {len(named) / len(shown):.0%} | {queries}")

        assert len(written(answer)) <= 8_000
        assert len(answer[key]) >= 10
        assert list(shown) == named
        assert queries <= len(shown)
        for entry in shown.values():
            brief = STRUCTS_SCHEME.brief_fields(entry["reference_type"])
            assert {name for name in brief if entry.get(name) in ("", "0", 0)} == set()
            assert len(entry) > 2
    with capsys.disabled():
        print("", *lines, sep="\n")  # noqa: T201 - the measured table


async def test_shown_rows_have_all_their_references(chain):
    """No shown row lacks a reference, except for those that a limit of the call omits."""
    _, session = chain
    answer = await session.call("structs_list_players", REFERENCES)
    relations = ("guildId", "planetId", "fleetId", "substationId")

    wanted = {row[name] for row in answer["Player"] for name in relations if row[name]}
    assert wanted == set(answer["references"])
    assert answer["references_meta"]["omitted"] == 0


async def test_rows_left_out_are_in_their_handle_without_references(chain):
    """The handle has all rows, and the metadata says that reading it adds no references."""
    node, session = chain
    answer = await session.call("structs_list_players", REFERENCES)
    cut = answer["shortened"]["/Player"]
    rows = [json.loads(line) for line in session.refs.get(cut["fd"]).text.splitlines()]
    node.reset_counters()
    await session.call("read_fd", {"fd": cut["fd"], "mode": "line", "start": cut["shown"] + 1})

    assert (len(answer["Player"]), 87) == (cut["shown"], len(rows))
    assert answer["references_meta"]["searched"].startswith("only the shown part")
    assert node.count("*") == 0


async def test_short_answers_have_complete_references(chain):
    """An answer that fits is complete, with all fields of its references."""
    _, session = chain
    answer = await session.call("structs_list_guilds", REFERENCES)

    assert "shortened" not in answer
    assert "references_meta" not in answer
    assert all("creator" in entry or "gridAttributes" in entry for entry in answer["references"].values())


async def test_direct_calls_and_unlimited_answers_are_complete(chain):
    """The host's own code gets all rows, and references up to the limits of the call."""
    _, session = chain
    direct = await session.tools["structs_list_players"](include_references=True)
    unlimited = await session.call("structs_list_players", REFERENCES, max_chars=None)

    assert (87, 50) == (len(direct["Player"]), len(direct["references"]))
    assert direct == unlimited


@pytest.mark.parametrize("max_chars", [2_000, 8_000])
@pytest.mark.parametrize(("name", "key"), LIST_TOOLS.items())
async def test_second_level_shows_rows_and_complete_references(chain, name, key, max_chars):
    """References of two levels are in their short form, and not reduced to a line."""
    _, session = chain
    answer = await session.call(
        f"structs_list_{name}", {"include_references": "all", "reference_depth": 2}, max_chars=max_chars
    )

    assert len(answer[key]) > 0
    assert len(answer["references"]) > 0
    assert all(isinstance(entry, dict) for entry in answer["references"].values())
    assert max_chars * 0.6 < len(written(answer)) <= max_chars


async def test_second_level_is_limited_to_what_fits(chain):
    """References of references are queried only as far as the answer can show them."""
    node, session = chain
    answer = await session.call("structs_list_players", {**REFERENCES, "reference_depth": 2})

    assert node.count("*") - 1 <= len(answer["references"])
    assert all(isinstance(entry, dict) for entry in answer["references"].values())
    assert {"guild", "reactor"} <= {entry["reference_type"] for entry in answer["references"].values()}


@pytest.mark.parametrize("limit", [3_000, 9_000])
async def test_token_budgets_hold(chain, limit):
    """The same holds for a budget in tokens."""
    node, _ = chain
    settings = Settings(answers=AnswerSettings(max_tokens=limit // 3, count_tokens=lambda text: -(-len(text) // 3)))
    async with Session.open(structs=node.url, settings=settings) as session:
        session.resolver.invalidate()
        node.reset_counters()
        answer = await session.call("structs_list_players", REFERENCES)

    assert len(written(answer)) <= limit + 2
    assert list(answer["references"]) == find_named(answer, "Player")
    assert node.count("*") - 1 <= len(answer["references"])


def make_things(sizes, queries):
    def fetch(thing_id):
        queries.append(thing_id)
        return {"name": "n" * sizes[int(thing_id) % len(sizes)], "zero": 0, "other": "o" * 300}

    scheme = IdScheme(name="things", fields={"thing_id": "thing", "things": "thing"}, brief={"thing": ("name",)})
    return Source(scheme, fetch=fetch, cache=False)


async def call_list(sizes, rows, *, form, queries, **arguments):
    """Call a tool that returns rows as a list payload, as a mapping without a known list, or as a bare list."""
    async with Session.open(sources=[make_things(sizes, queries)]) as session:

        @session.with_references(kind="list" if form == "list" else "auto")
        async def list_rows():
            return rows if form == "bare" else {"rows": rows}

        session.tools.add(list_rows)
        answer = await session.call("list_rows", {**REFERENCES, "max_references": 50, **arguments})
    return answer, answer["items" if form == "bare" else "rows"]


@given(
    form=st.sampled_from(["list", "auto", "bare"]),
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=5),
    padding=st.integers(0, 300),
    count=st.integers(0, 120),
    shared=st.integers(1, 3),
)
async def test_references_belong_to_shown_rows_for_any_sizes(form, sizes, padding, count, shared):
    """For all sizes of rows and entities, the answer fits, and its rows and references belong together."""
    queries = []
    rows = [{"number": n, "thing_id": str(n // shared), "text": "t" * padding} for n in range(count)]
    answer, shown = await call_list(sizes, rows, form=form, queries=queries)

    ids = list(dict.fromkeys(f"thing:{row['thing_id']}" for row in shown))
    assert len(written(answer)) <= 8_000
    assert ids[:50] == list(answer["references"])
    assert all(isinstance(entry, dict) for entry in answer["references"].values())
    assert len(queries) == len(set(queries)) <= 50
    if count:
        assert len(shown) > 0
    if len(sizes) == 1:
        assert len(queries) == len(answer["references"])


@pytest.mark.parametrize("form", ["list", "auto", "bare"])
async def test_list_shortens_one_long_entity_only(form):
    """The text of one entity does not use the room of other rows and references."""
    sizes = [5_000 if n == 8 else 20 for n in range(200)]
    rows = [{"number": n, "thing_id": str(n), "text": "t" * 60} for n in range(200)]
    answer, shown = await call_list(sizes, rows, form=form, queries=[])

    entries = answer["references"]
    assert 25 <= len(shown) == len(entries)
    assert len(entries["thing:8"]["name"]) in range(400, 600)
    assert all(20 == len(entry["name"]) for key, entry in entries.items() if key != "thing:8")
    assert 6_000 <= len(written(answer)) <= 8_000


async def test_rows_are_reduced_when_later_entities_are_longer():
    """The second round of queries is planned with the size of small entities."""
    queries = []
    rows = [{"number": n, "thing_id": str(n), "text": "t" * 60} for n in range(200)]
    answer, shown = await call_list([5 if n < 10 else 300 for n in range(200)], rows, form="list", queries=queries)

    assert len(shown) == len(answer["references"]) < len(queries)
    assert all(300 == len(entry["name"]) for entry in [*answer["references"].values()][10:])
    assert len(written(answer)) >= 7_000


async def test_row_whose_references_do_not_fit_is_shown():
    """At least one row is shown. The references that do not fit are listed."""
    rows = [{"number": n, "things": [str(20 * n + k) for k in range(20)]} for n in range(20)]
    answer, shown = await call_list([450], rows, form="auto", queries=[])

    assert [0] == [row["number"] for row in shown]
    assert 10 < len(answer["references"]) < 20
    assert {"answer_budget": 20 - len(answer["references"])} == answer["references_meta"]["omitted_by"]


async def test_second_level_without_ids_needs_no_room():
    """Depth 2 shows as many rows as depth 1 if the entities contain no ids."""
    rows = [{"number": n, "thing_id": str(n), "text": "t" * 60} for n in range(200)]
    counts = [len((await call_list([20], rows, form="list", queries=[], reference_depth=depth))[1]) for depth in (1, 2)]

    assert counts[0] == counts[1] > 30


async def test_references_of_a_list_need_two_rounds_of_queries():
    """A slow source delays the answer by at most two batches."""
    batches = []

    async def fetch_many(ids):
        batches.append(len(ids))
        return {one: {"name": "n" * 40} for one in ids}

    source = Source(IdScheme(name="things", fields={"thing_id": "thing"}), fetch_many=fetch_many)
    async with Session.open(sources=[source]) as session:

        @session.with_references(kind="list")
        async def list_rows() -> dict:
            return {"rows": [{"number": n, "thing_id": str(n), "text": "t" * 60} for n in range(200)]}

        session.tools.add(list_rows)
        answer = await session.call("list_rows", REFERENCES)

    assert 2 == len(batches)
    assert sum(batches) == len(answer["references"]) == len(answer["rows"])


async def test_second_round_is_skipped_when_it_would_miss_the_deadline():
    """The answer has fewer rows, and no failed reference."""

    async def fetch_many(ids):
        await asyncio.sleep(0.3)
        return {one: {"name": "n" * 40} for one in ids}

    source = Source(IdScheme(name="things", fields={"thing_id": "thing"}), fetch_many=fetch_many)
    async with Session.open(sources=[source]) as session:

        @session.with_references(kind="list", deadline=0.5)
        async def list_rows() -> dict:
            return {"rows": [{"number": n, "thing_id": str(n), "text": "t" * 60} for n in range(200)]}

        session.tools.add(list_rows)
        answer = await session.call("list_rows", REFERENCES)

    assert 5 < len(answer["rows"]) == len(answer["references"])
    assert 0 == answer["references_meta"]["failed"]


async def test_references_that_do_not_fit_are_omitted_and_listed():
    """One entity with many ids stays complete. Its last references are omitted instead of shortened to a line."""
    queries = []
    async with Session.open(sources=[make_things([400], queries)]) as session:

        @session.with_references(max_references=50)
        async def get_box() -> dict:
            return {"id": "box", "things": [str(n) for n in range(50)]}

        session.tools.add(get_box)
        answer = await session.call("get_box", REFERENCES)

    assert 50 == len(answer["things"])
    assert len(queries) == len(answer["references"])
    assert all(400 == len(entry["name"]) for entry in answer["references"].values())
    assert {"answer_budget": 50 - len(queries)} == answer["references_meta"]["omitted_by"]
    assert f"thing:{len(queries)}" == answer["references_meta"]["omitted_ids"][0]


async def test_hidden_text_without_ids_adds_no_metadata():
    """A shortened part without references needs no remark."""
    async with Session.open(sources=[make_things([10], [])]) as session:

        @session.with_references
        async def get_log() -> dict:
            return {"id": "log", "thing_id": "1", "text": "all quiet\n" * 2_000}

        session.tools.add(get_log)
        answer = await session.call("get_log", REFERENCES)

    assert ["/text"] == [pointer for pointer in answer["shortened"] if pointer]
    assert ["thing:1"] == list(answer["references"])
    assert "references_meta" not in answer


async def test_long_answers_without_references_stay_complete():
    """An answer that fits reserves no room for references that it does not have."""
    async with Session.open(sources=[make_things([10], [])]) as session:

        @session.with_references(kind="list")
        async def list_rows() -> dict:
            return {"rows": [{"id": f"r{n}", "text": "t" * 60} for n in range(93)]}

        session.tools.add(list_rows)
        answer = await session.call("list_rows", REFERENCES)

    assert len(written(answer)) > 7_600
    assert (93, {}) == (len(answer["rows"]), answer["references"])
    assert "shortened" not in answer


async def test_descriptors_above_references_show_the_same_rows(chain):
    """The decorator `with_descriptors` shortens the result to the rows whose references were fetched."""
    node, session = chain
    page = await session.tools["structs_list_players"]()

    @with_descriptors
    @session.with_references(kind="list")
    async def list_players() -> dict:
        return page

    session.tools.add(list_players)
    node.reset_counters()
    answer = await session.call("list_players", REFERENCES)

    assert list(answer["references"]) == find_named(answer, "Player")
    assert all(isinstance(entry, dict) for entry in answer["references"].values())
    assert node.count("*") <= len(answer["references"])


async def test_rows_longer_than_the_budget_have_no_references():
    """A row that does not fit is in its handle, and nothing is queried for it."""
    queries = []
    async with Session.open(sources=[make_things([10], queries)]) as session:

        @session.with_references(kind="list")
        async def list_rows() -> dict:
            return {"rows": [{"id": f"r{n}", "thing_id": str(n), "text": "t" * 9_000} for n in range(5)]}

        session.tools.add(list_rows)
        answer = await session.call("list_rows", REFERENCES)

    assert ([], {}, []) == (answer["rows"], answer["references"], queries)
    assert answer["references_meta"]["searched"].startswith("only the shown part")


# Bare lists


@pytest.fixture
async def lists():
    async with Session.open(sources=[make_things([10], [])]) as session:

        @session.with_references
        async def list_rows() -> list:
            return [{"id": f"r{n}", "thing_id": str(n)} for n in range(3)]

        @session.with_references
        async def list_images() -> list:
            return [{"type": "text", "text": "A picture"}, b"\x89PNG\r\n\x1a\n...."]

        session.tools.add(list_rows)
        session.tools.add(list_images)
        yield session


async def test_bare_list_has_references_for_models(lists):
    """The rows are under `items`, beside their references."""
    answer = await lists.call("list_rows", REFERENCES)

    assert ["r0", "r1", "r2"] == [row["id"] for row in answer["items"]]
    assert ["thing:0", "thing:1", "thing:2"] == list(answer["references"])


async def test_bare_list_is_unchanged_without_references_and_for_hosts(lists):
    """A call without references, and a direct call, return the list itself."""
    plain = await lists.call("list_rows", {})
    direct = await lists.tools["list_rows"](include_references=True)

    assert isinstance(plain, list)
    assert isinstance(direct, list)


async def test_bare_list_of_content_blocks_is_unchanged(lists):
    """Texts and images are content, not rows."""
    answer = await lists.call("list_images", REFERENCES)

    assert ["text", "image"] == [block["type"] for block in answer]


class Rows(list):
    """A list of a library, such as a page of rows."""


@pytest.mark.parametrize(
    ("result", "items"),
    [
        (Rows([{"thing_id": "1"}]), [{"thing_id": "1"}]),
        ({("a", "1")}, [["a", "1"]]),
        (frozenset({"b", "a"}), ["a", "b"]),
        ([b"hi", {"thing_id": "1"}], ["hi", {"thing_id": "1"}]),
    ],
    ids=["subclass", "set", "frozenset", "bytes"],
)
async def test_call_returns_items_for_sets_and_list_subclasses(lists, result, items):
    """Sets and subclasses are lists for a model, with or without references."""

    @lists.with_references
    async def list_any() -> object:
        return result

    lists.tools.add(list_any)
    plain = await lists.call("list_any", {})
    answer = await lists.call("list_any", REFERENCES)

    assert items == plain == answer["items"]
    assert (["thing:1"] if any(isinstance(one, dict) for one in items) else []) == list(answer["references"])


async def test_bare_list_has_references_without_a_budget():
    """With `descriptors.enabled=False` nothing is shortened, and the form is the same."""
    settings = Settings(descriptors=DescriptorSettings(enabled=False))
    async with Session.open(sources=[make_things([10], [])], settings=settings) as session:

        @session.with_references
        async def list_rows() -> list:
            return [{"id": f"r{n}", "thing_id": str(n)} for n in range(60)]

        session.tools.add(list_rows)
        answer = await session.call("list_rows", REFERENCES)

    assert (60, 50) == (len(answer["items"]), len(answer["references"]))
