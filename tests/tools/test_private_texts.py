"""Errors and logs do not contain texts that a model passes as wrong arguments."""

import asyncio
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mama_structs import HashEmbedder, RefStore, Session
from mama_structs.errors import InvalidArgument, InvalidParameter, MamaStructsError, repr_short
from mama_structs.references.schemes import IdScheme
from mama_structs.tools.tool import ErrorText

MARK = "vault7391"
PRIVATE_TEXT = f"the {MARK} opens at dawn"
WRONG = [
    PRIVATE_TEXT,
    [PRIVATE_TEXT],
    {"text": PRIVATE_TEXT},
    {PRIVATE_TEXT: 1},
    [{"to_id": PRIVATE_TEXT, "relationship": PRIVATE_TEXT}],
    [{"id": "x", PRIVATE_TEXT: 1}],
    [[PRIVATE_TEXT], 1, None],
    f"{PRIVATE_TEXT}\ud800",
    f"{PRIVATE_TEXT}\0",
    PRIVATE_TEXT * 400,
    f"({PRIVATE_TEXT}",
    f"ref:{PRIVATE_TEXT}",
    f"fd:{PRIVATE_TEXT}",
    {"$ref": f"ref:{PRIVATE_TEXT}"},
    f"{{{{ref:{PRIVATE_TEXT}}}}}",
    f'{{"a": "{PRIVATE_TEXT}',
    f'["{PRIVATE_TEXT}", 1]',
    f'{{"a":"{MARK}"}}',
    PRIVATE_TEXT.encode(),
]
RIGHT = {"number": 0.5, "integer": 1, "array": ["x"], "boolean": True, "string": "x"}


class LogRecorder(logging.Handler):
    """A log handler that stores each message with its arguments and exception."""

    def __init__(self):
        super().__init__()
        self.said = []

    def emit(self, record):
        self.said.append(f"{record.getMessage()} {record.args!r} {record.exc_info!r}")


@pytest.fixture(scope="module")
def call():
    """Yield a function that calls a tool and returns the texts of the call's errors and log records."""
    log, heard = logging.getLogger(), LogRecorder()
    level = log.level
    with asyncio.Runner() as runner:
        session = runner.run(Session.open(embedder=HashEmbedder(), structs="http://127.0.0.1:9").__aenter__())
        session.refs.put("plan", "Step one\nStep two")
        log.addHandler(heard)
        log.setLevel(logging.DEBUG)

        def told(name, arguments):
            heard.said.clear()
            try:
                answer = runner.run(session.call(name, arguments))
            except MamaStructsError as error:
                return [str(error), repr(error), str(error.hint), *heard.said]
            # Return only the error's message, because its attribute `fd` contains the handle that the model passed.
            said = [answer.partition("<message>")[2]] if isinstance(answer, ErrorText) else []
            return [*said, *heard.said]

        told.tools = {name: tool.input_schema for name, tool in session.tools.items()}
        yield told
        log.setLevel(level)
        log.removeHandler(heard)
        runner.run(session.close())


def test_tool_errors_and_log_do_not_repeat_wrong_arguments(call):
    """Covers each argument of each tool, with each kind of wrong value."""
    for name, schema in call.tools.items():
        if name.startswith("structs_") and name not in {"structs_query_planet", "structs_list_planets"}:
            continue
        needed = {one: RIGHT[schema["properties"][one].get("type", "string")] for one in schema.get("required", ())}
        needed |= {one: "plan" for one in ("fd", "ref_id") if one in needed}
        wrong = [{**needed, one: value} for one in schema["properties"] for value in WRONG]
        for arguments in [
            *wrong,
            {**needed, PRIVATE_TEXT: 1},
            dict.fromkeys(schema["properties"], PRIVATE_TEXT),
            PRIVATE_TEXT,
            f'{{"a": "{PRIVATE_TEXT}',
        ]:
            assert not [said for said in call(name, arguments) if MARK in said], (name, f"{arguments!r:.120}")


def test_unknown_tool_error_does_not_repeat_text(call):
    assert not [said for said in call(PRIVATE_TEXT, {}) if MARK in said]


def test_failed_edit_does_not_repeat_text():
    """The candidate lines are in the model's answer, but not in the error's message."""
    store = RefStore()
    store.put("x", f"{PRIVATE_TEXT}\n{PRIVATE_TEXT}")
    for old in (PRIVATE_TEXT, PRIVATE_TEXT.upper()):
        with pytest.raises(InvalidParameter) as told:
            store.edit("x", old, "y")
        assert MARK not in repr(told.value).casefold()


async def test_methods_do_not_repeat_wrong_arguments(tmp_path):
    """Covers methods for records, ids, handles, functions and messages."""
    async with Session.open(tmp_path / "a.mama", embedder=HashEmbedder()) as session:
        asked = [
            lambda: session.memories.save_many([{"type": "insight", "content": PRIVATE_TEXT, PRIVATE_TEXT: 1}]),
            lambda: session.memories.save_insight(PRIVATE_TEXT, links=[{"to_id": "x", PRIVATE_TEXT: 1}]),
            lambda: session.memories.get(PRIVATE_TEXT),
            lambda: session.memories.set_outcome(PRIVATE_TEXT, PRIVATE_TEXT, reason=PRIVATE_TEXT),
            lambda: session.memories.search("x", since=PRIVATE_TEXT),
            lambda: session.resolver.fetch(PRIVATE_TEXT),
            lambda: session.observe({"role": PRIVATE_TEXT, "content": PRIVATE_TEXT}),
            lambda: session.observe([{"type": PRIVATE_TEXT, "text": PRIVATE_TEXT}]),
            lambda: session.call(PRIVATE_TEXT, {}),
            lambda: session.refs.get(f"ref:{PRIVATE_TEXT}"),
            lambda: session.refs.edit("plan", PRIVATE_TEXT, PRIVATE_TEXT),
            lambda: session.tools.add(PRIVATE_TEXT),
            lambda: Session.open(files_root=PRIVATE_TEXT * 200),
        ]
        for number, ask in enumerate(asked):
            with pytest.raises(MamaStructsError) as told:
                await ask()
            assert MARK not in f"{told.value} {told.value!r} {told.value.hint}", number


def test_id_scheme_errors_do_not_repeat_fields():
    for field in ("pattern", "type_of", "hints", "deny", "brief"):
        for wrong in ([PRIVATE_TEXT, 1], f"({PRIVATE_TEXT}", PRIVATE_TEXT.encode()):
            with pytest.raises(InvalidArgument) as told:
                IdScheme(**{"name": "x", "pattern": "a", "type_of": str, field: 5 if field == "deny" else wrong})
            assert MARK not in f"{told.value} {told.value!r}"


@settings(max_examples=30)
@given(
    st.recursive(
        st.text(min_size=1).map(lambda text: f"{MARK} {text}") | st.just(PRIVATE_TEXT.encode()),
        lambda inner: st.lists(inner, min_size=1) | st.dictionaries(st.text(), inner, min_size=1) | st.tuples(inner),
    )
)
def test_shown_describes_text_of_several_words_by_kind_and_length(value):
    assert MARK not in repr_short(value)


def test_shown_repeats_numbers_names_and_ids():
    told = [
        "7", "'0,7'", "''", "[]", "None", "True", "'decision_boats_1_3188da2e'", "'ref:x@1'", "'src/a.py'",
        "a text of 3 characters", "a text of 65 characters", "a text of 20 characters", "a list of length 2", "a object",
    ]  # fmt: skip
    values = [
        7, "0,7", "", [], None, True, "decision_boats_1_3188da2e", "ref:x@1", "src/a.py",
        "a b", "x" * 65, "postgres://u:secret@", ["a", "b"], object(),
    ]  # fmt: skip

    assert told == [repr_short(value) for value in values]
