"""The ref tools: each answer fits into the budget, and following the continuations returns the complete content."""

import itertools
import json
from datetime import UTC, datetime

import pytest
from answer_helpers import answer_in, message_in
from hypothesis import example, given
from hypothesis import strategies as st

from mama_structs import RefStore, Session
from mama_structs._internal.jsonable import to_json_text
from mama_structs.settings import AnswerSettings
from mama_structs.tools.ref_tools import make_ref_tools

SMALL = 1_000
# Token limit for the prompt and the descriptions of the ref tools. Never raise it.
MOST_TOKENS = 1_000
NUMBERS = st.integers(1, 9) | st.sampled_from([100, 4_000, 10**6, 10**9, 0, -1, 10**30])
SIGNS = st.sampled_from(["a", "b", "\n", "\r\n", "\x00", "é", "😀", "</fd_content>", "x" * 700, '"' * 300, "a\n" * 400])
CONTENTS = st.lists(SIGNS, max_size=12).map("".join)
WORDS = st.sampled_from(
    ["a", "x", "\n", "</fd_content>", "é", "nowhere", "q" * 2_000, '"' * 900, ".", "a*", "(a|x)+\n"]
)
HANDLES = st.sampled_from(["fd:1", "ref:a", "a", "ref:b@1", "ref:", "fd:7", "é", "&" * 5_000, "ref:" + "<" * 500])
SETTINGS_BY_NAME = {
    "characters": AnswerSettings(max_chars=SMALL),
    "bytes": AnswerSettings(max_tokens=SMALL, count_tokens=lambda text: len(text.encode())),
    "words of four": AnswerSettings(max_tokens=SMALL, count_tokens=lambda text: -(-len(text) // 4)),
    "as it comes": AnswerSettings(),
}
ARGUMENTS = {
    "read_fd": {
        "fd": HANDLES,
        "mode": st.sampled_from(["page", "line", "char", "all"]),
        "start": NUMBERS,
        "count": NUMBERS,
        "page": NUMBERS,
        "read_all": st.booleans(),
        "extract_to_new_fd": st.booleans(),
    },
    "list_refs": {"category": st.sampled_from(["code", "data", "text", "x" * 9_000]), "start": NUMBERS},
    "get_ref": {"ref_id": HANDLES},
    "edit_ref": {"ref_id": HANDLES, "old": WORDS, "new": WORDS},
    "put_ref": {"ref_id": HANDLES, "text": CONTENTS},
    "search_fd": {
        "fd": HANDLES,
        "query": WORDS,
        "regex": st.booleans(),
        "case_sensitive": st.booleans(),
        "context": NUMBERS,
        "limit": NUMBERS,
        "start": NUMBERS,
    },
}
CALLS = st.sampled_from(sorted(ARGUMENTS)).flatmap(
    lambda name: st.tuples(st.just(name), st.fixed_dictionaries({}, optional=ARGUMENTS[name] | {"x" * 999: st.none()}))
)


class Desk:
    """A store and its ref tools."""

    def __init__(self, answers=None, **settings):
        self.store = RefStore(answers=answers, **settings)
        self.tools = {tool.name: tool for tool in make_ref_tools(self.store)}

    async def call(self, name, **arguments):
        answer = await self.tools[name].run(arguments)
        assert self.store.answers._budget.fits(answer)
        return answer

    async def follow(self, name, **arguments):
        """Call a tool and follow the continuations in its answers. Return all answers."""
        answers = []
        while arguments is not None:
            answers.append(answer_in(await self.call(name, **arguments)))
            name, arguments = "read_fd" if name == "get_ref" else name, answers[-1].next
        return answers


@given(
    size=st.sampled_from(sorted(SETTINGS_BY_NAME)),
    content=CONTENTS,
    title=st.text(st.sampled_from("&<'😀a"), max_size=300),
    calls=st.lists(CALLS, min_size=1, max_size=4),
)
async def test_answers_fit_budget_for_any_content_and_arguments(size, content, title, calls):
    """The budget is in characters, or in tokens of any kind."""
    desk = Desk(SETTINGS_BY_NAME[size])
    desk.store.add(content)
    desk.store.observe(f'<ref id="a" title="{title}" type="text">{content}</ref>')
    desk.store.observe(f'<ref id="b" title="{title}" lang="{title[:100]}">{content}</ref>')
    for name, arguments in calls:
        await desk.call(name, **arguments)
    assert desk.store.answers._budget.fits(desk.store.system_prompt(handles=True).partition("</file_descr")[2][22:])


@given(
    size=st.sampled_from(sorted(SETTINGS_BY_NAME)),
    content=CONTENTS.map(lambda text: text.replace("\0", "")),
    count=NUMBERS,
)
@example(size="characters", content="ab\r\n" * 3_000, count=5_000)
@example(size="bytes", content="😀" * 3_000, count=2_001)
async def test_continuations_return_complete_content(size, content, count):
    """Covers page mode, char mode, the parameter `read_all`, and a ref."""
    desk = Desk(SETTINGS_BY_NAME[size])
    desk.store.observe(f'<ref id="a">\n{content}\n</ref>')
    stored = desk.store.get("a").body.text
    calls = [
        ("read_fd", {"mode": "page", "count": max(1, count)}),
        ("read_fd", {"mode": "char", "count": max(50, count)}),
        ("read_fd", {"read_all": True}),
    ]
    for name, arguments in calls:
        answers = await desk.follow(name, fd="ref:a@1", **arguments)
        assert stored == "".join(answer.text for answer in answers)
        places = [tuple(map(int, a.get("chars").split("-"))) for a in answers if a.get("chars") != "none"]
        assert all(one[1] + 1 == other[0] for one, other in itertools.pairwise(places))
        assert [len(stored) - place[1] for place in places] == [int(a.get("remaining_chars") or 0) for a in answers][
            : len(places)
        ]
    assert stored == "".join(answer.text for answer in await desk.follow("get_ref", ref_id="a"))


@pytest.mark.parametrize("size", sorted(SETTINGS_BY_NAME))
async def test_line_mode_returns_parseable_json_lines(size):
    rows = [{"id": f"2-{n}", "name": f"</fd_content> {'é' * (n % 90)}"} for n in range(400)]
    desk = Desk(SETTINGS_BY_NAME[size])
    desk.store.add("".join(f"{to_json_text(row)}\n" for row in rows))
    answers = await desk.follow("read_fd", fd="fd:1", mode="line", count=10**9)
    lines = [line.partition("\t") for answer in answers for line in answer.text.strip("\n").split("\n")]

    assert list(range(1, 401)) == [int(number) for number, _, _ in lines]
    assert rows == [json.loads(line) for _, _, line in lines]


async def test_line_mode_truncates_long_line_and_continues_by_characters():
    desk = Desk()
    desk.store.add(f"one\n{'x' * 20_000}\nthree\n")
    first, second, *others = await desk.follow("read_fd", fd="fd:1", mode="line", count=3)
    rest = others[: [answer.get("chars").endswith("-20005") for answer in others].index(True) + 1]

    assert "\n1\tone\n" == first.text
    assert ("true", "char") == (second.get("truncated"), second.next["mode"])
    assert "x" * 20_000 + "\n" == second.text.removeprefix("\n2\t") + "".join(answer.text for answer in rest)
    assert "three" in others[len(rest)].text


@pytest.mark.parametrize("size", sorted(SETTINGS_BY_NAME))
@pytest.mark.parametrize("arguments", [{"count": 2}, {"mode": "char", "count": 810}, {"mode": "line", "count": 60}])
async def test_continuations_read_large_parts(size, arguments):
    """The size left in one answer must not limit the following answers."""
    desk = Desk(SETTINGS_BY_NAME[size])
    desk.store.add("a line of some twenty-eight\n" * 600)
    answers = await desk.follow("read_fd", fd="fd:1", **arguments)

    assert len(answers) < 600 * 28 // 250


@pytest.mark.parametrize("category", ["code", "text"])
async def test_list_refs_continuation_keeps_category(category):
    desk = Desk()
    for number in range(150):
        desk.store.observe(f'<ref id="c{number}" lang="python">{number}</ref><ref id="t{number}">{number}</ref>')
    answers = await desk.follow("list_refs", category=category)
    ids = [answer_in(row).get("id") for answer in answers for row in answer.text.strip("\n").split("\n")]

    assert len(answers) > 1
    assert sorted(ref.id for ref in desk.store.list(category=category)) == sorted(ids)


async def test_read_all_of_large_content_returns_one_budget_and_remaining_size():
    desk = Desk()
    await desk.store.run_in_thread(lambda refs: refs.add("line of text\n" * 800_000))
    answer = answer_in(await desk.call("read_fd", fd="fd:1", read_all=True))

    assert 7_000 < len(answer.text) < 8_000
    assert answer.text.endswith("\n")
    assert str(800_000 * 13 - len(answer.text)) == answer.get("remaining_chars")


@pytest.mark.once
async def test_list_refs_states_when_each_ref_was_created_and_updated():
    """The list is in order of creation, so its times are those of the first versions."""
    times = iter(datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3))
    store = RefStore(clock=lambda: next(times))
    for ref_id, text in (("zeta", "1"), ("alpha", "1"), ("zeta", "2")):
        store.put(ref_id, text)
    (tool,) = [one for one in make_ref_tools(store) if one.name == "list_refs"]
    _, zeta, alpha, _ = str(await tool.function()).split("\n")

    assert zeta.startswith('<ref id="zeta" created="2026-01-01T00:00:00+00:00" updated="2026-01-03T00:00:00+00:00"')
    assert alpha.startswith('<ref id="alpha" created="2026-01-02T00:00:00+00:00" lines="1"')


async def test_list_refs_returns_ten_thousand_refs_in_parts():
    desk = Desk()
    tags = [f'<ref id="r{number}">{number}</ref>' for number in range(9_999)]
    for start in range(0, len(tags), 1_000):
        desk.store.observe("".join(tags[start : start + 1_000]))
    desk.store.observe('<ref id="r5">again</ref>')
    answers = await desk.follow("list_refs")
    ids = [answer_in(row).get("id") for answer in answers for row in answer.text.strip("\n").split("\n")]

    assert {"9999"} == {answer.get("count") for answer in answers}
    assert ["r0", "r1", "r2"] == ids[:3]
    assert [f"r{number}" for number in range(9_999)] == ids
    prompt = desk.store.system_prompt(handles=True)
    listed = answer_in(prompt[prompt.index("<stored_handles") :])
    assert ("9999", listed.get("shown")) == (listed.get("count"), str(listed.text.count("<ref ")))
    assert "r5" == answer_in(listed.text.split("\n")[1]).get("id")


@pytest.mark.once
async def test_search_fd_continuation_finds_each_match_once():
    desk = Desk()
    desk.store.add("".join(f"{number} needle {'x' * 300}\n" for number in range(300)))
    found, start = [], 1
    while start is not None:
        answer = answer_in(
            await desk.call("search_fd", fd="fd:1", query="Needle", limit=10**6, context=10**6, start=start)
        )
        chars = [int(part.partition('"')[0]) for part in answer.text.split('char="')[1:]]
        found += chars
        start = int(answer.get("next").removeprefix("the same with start=")) if answer.get("next") else None
        if len(found) > 20:
            break

    content = desk.store.get("fd:1").text
    assert found == [place + 1 for place in range(len(content)) if content.startswith("needle", place)][: len(found)]
    assert len(found) > 20


async def test_tools_accept_ref_id_without_prefix():
    desk = Desk()
    desk.store.observe('<ref id="x">needle</ref>')

    assert "needle" == answer_in(await desk.call("read_fd", fd="x")).text
    assert 'count="1"' in await desk.call("search_fd", fd="x@1", query="NEEDLE")
    assert "there is no ref:y (nearest: ref:x)" == message_in(await desk.call("read_fd", fd="y"))


async def test_error_does_not_repeat_long_argument():
    desk = Desk(SETTINGS_BY_NAME["characters"])
    for name, arguments in (
        ("read_fd", {"fd": "ref:" + "x" * 10**6}),
        ("get_ref", {"ref_id": '"' * 10**6}),
        ("search_fd", {"fd": "x" * 60, "query": "(" * 10**6, "regex": True}),
        ("read_fd", {"fd": "x", **{f"{'y' * 500}{n}": 1 for n in range(50)}}),
    ):
        assert "fd_error" == answer_in(await desk.call(name, **arguments)).name


async def test_edit_ref_and_put_ref_create_versions():
    """An invalid edit returns an error, and nothing is stored."""
    desk = Desk()
    desk.store.observe('<ref id="x">one\ntwo</ref>')

    assert '<ref_stored id="x" version="2" lines="2" chars="9"/>' == await desk.call(
        "edit_ref", ref_id="ref:x", old="two", new="three"
    )
    assert 'id="page" version="1"' in await desk.call("put_ref", ref_id="page", text='a <ref id="y">b</ref>')
    assert ["ref:x@1", "ref:x@2", "ref:page@1"] == list(desk.store)
    assert 'a <ref id="y">b</ref>' == desk.store.get("page").text
    assert "see line 2: three" in message_in(await desk.call("edit_ref", ref_id="x", old="thre!", new=""))
    assert "line number" in message_in(await desk.call("edit_ref", ref_id="x", old="1\tone", new=""))
    assert 'type="not_found"' in await desk.call("edit_ref", ref_id="nothing", old="a", new="b")
    assert 3 == len(desk.store)


async def test_prompt_and_descriptions_of_ref_tools_are_short():
    """They have at most 1,000 tokens of four characters."""
    async with Session.open() as session:
        shown = [tool for tool in session.tools.values() if "/" not in tool.name]
        texts = [
            session.refs.system_prompt(),
            *(
                to_json_text({"name": t.name, "description": t.description, "input_schema": t.input_schema})
                for t in shown
            ),
        ]

    assert ["read_fd", "list_refs", "get_ref", "search_fd", "edit_ref", "put_ref"] == [tool.name for tool in shown]
    assert MOST_TOKENS >= sum(map(len, texts)) // 4
    assert "fd_to_file" not in "".join(texts)
    for taught in ("append", "edit_ref", "put_ref", "markup", "{{ref:", "exactly ref:parser", "\\ref:parser"):
        assert taught in texts[0]
    assert "$ref" not in texts[0]


async def test_prompt_explains_file_export_only_with_files_directory(tmp_path):
    async with Session.open(files_root=tmp_path) as session:
        assert "fd_to_file(" in session.system_prompt()


async def test_descriptions_say_when_to_use_and_not_to_use_each_tool():
    for tool in Desk().tools.values():
        assert tool.name == "list_refs" or all(words in tool.description for words in ("Use it", ", not "))
        undescribed = {name for name, one in tool.input_schema["properties"].items() if not one.get("description")}
        assert undescribed <= {
            *(
                "mode",
                "start",
                "count",
                "query",
                "regex",
                "case_sensitive",
                "limit",
                "category",
                "ref_id",
                "new",
                "text",
            )
        }


async def test_row_of_truncated_result_is_read_unchanged():
    """A row may contain characters that files or answers cannot contain."""
    rows = [{"n": n, "text": f"\x7f\x85\x9b\ufffe\ud800é😀 {'x' * 100}"} for n in range(200)]

    async def table() -> dict:
        return {"rows": rows}

    async with Session.open() as session:
        session.tools.add(table)
        shortened = (await session.call("table"))["shortened"]
        for pointer in ("", "/rows"):
            answers = [answer_in(await session.call("read_fd", {"fd": shortened[pointer]["fd"], "read_all": True}))]
            while arguments := answers[-1].next:
                answers.append(answer_in(await session.call("read_fd", arguments)))
            text = "".join(answer.text for answer in answers)

            assert rows == (json.loads(text)["rows"] if pointer == "" else [*map(json.loads, text.split("\n"))])
