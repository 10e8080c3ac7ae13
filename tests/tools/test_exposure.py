"""Selection of the memory tools for a message."""

import collections
import functools
import json
import pathlib
import re
import unicodedata

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument
from mama_structs.tools import exposure as exposure_module
from mama_structs.tools.exposure import (
    ALWAYS_EXPOSED,
    NO_CONTEXT,
    OTHER_KIND,
    Cue,
    SelectionRule,
    ToolSelection,
    ToolSelector,
    extract_features,
    normalize_message,
)
from mama_structs.tools.wire_names import DEPRECATED_SUCCESSORS, MEMORY_TOOLS

LINES = (pathlib.Path(__file__).parents[1] / "data" / "exposure" / "messages.jsonl").read_text(encoding="utf-8")
MESSAGES = [json.loads(line) for line in LINES.splitlines()]
EXPOSURE = ToolSelector()
DEFAULT_CUES, DEFAULT_CONTEXTS = EXPOSURE.cues, EXPOSURE.rules
DECISIONS = (pathlib.Path(__file__).parents[1] / "data" / "exposure" / "decisions.txt").read_text(encoding="utf-8")
DATA = pathlib.Path(exposure_module.__file__).parent / "data"
HOST = ("read_fd", "structs_query_player", "save/file", "search/logs", "evolve/plan", "loadit")
NAMES = (*HOST[:3], *MEMORY_TOOLS, *DEPRECATED_SUCCESSORS, *HOST[3:])


@functools.cache
def detected(text):
    return EXPOSURE.detect(text)


def kind_of(text):
    return detected(text).kind


# Labelled messages


@pytest.mark.once
@pytest.mark.parametrize("which", "abcdegijklmtuv")
def test_detect_finds_labelled_kind_for_90_percent_of_messages(which):
    rows = [row for row in MESSAGES if row["list"] == which]
    wrong = [row["text"] for row in rows if kind_of(row["text"]) != row["kind"]]

    assert len(rows) > 80
    assert len(wrong) <= 0.1 * len(rows), wrong


def test_select_never_hides_needed_tool_of_labelled_message():
    wrong = [
        row["text"]
        for row in MESSAGES
        if not {*row["needed"]} <= {*EXPOSURE.select(MEMORY_TOOLS, detected(row["text"]))}
    ]

    assert [] == wrong


def test_detect_narrows_tools_for_half_of_the_relevant_messages():
    about = [row for row in MESSAGES if row["kind"] is not None and row["list"] not in "fh"]
    narrowed = [row for row in about if detected(row["text"]).tool_names != "all"]

    assert len(narrowed) >= 0.5 * len(about)


def test_labelled_messages_cover_both_languages_and_all_kinds():
    counts = collections.Counter((row["language"], row["kind"]) for row in MESSAGES)

    assert len(MESSAGES) >= 3_000
    assert len(MESSAGES) == len({row["text"] for row in MESSAGES})
    assert all({*row["needed"]} <= {*MEMORY_TOOLS} for row in MESSAGES)
    for language in ("en", "ko"):
        assert min(counts[language, kind] for kind in (None, "resuming", "deciding", "searching", "tracking")) >= 30


def test_detect_ignores_unicode_form_apostrophes_and_surrounding_spaces():
    for row in MESSAGES[::6]:
        said = detected(row["text"])
        decomposed = unicodedata.normalize("NFD", row["text"]).replace("n't", "n\u2019t")

        assert said == EXPOSURE.detect(f"  {decomposed}\n"), row["text"]


# Requests, and texts that resemble requests


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("어제 작업 이어서 하자", "resuming"),
        ("pick up where we left off", "resuming"),
        ("which should we choose?", "deciding"),
        ("what was the decision?", "searching"),
        ("어제 결정한 것 찾아줘", "searching"),
        ("어떻게했지", "searching"),
        ("this is a failure", "tracking"),
        ("it failed, mark it", "tracking"),
        ("research the market", None),
        ("discontinue the product", None),
        ("", None),
        ("   \n", None),
        ("We decided yesterday that ids are strings, now fix the parser", None),
    ],
)
def test_detect_distinguishes_requests_from_matching_substrings(text, kind):
    assert kind == kind_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "what does this mean:\n```\nwhat did we decide yesterday?\n```",
        "translate `continue from yesterday` into German",
        "put 「어제 작업 이어서 하자」 into the ticket",
        'the button says "which should we choose?", make it blue',
        "fix this\n2026-11-22 10:00:00 resume the last session\nERROR decision failed, mark it",
        "> what did we decide about caching?\nplease answer this mail",
    ],
)
def test_detect_ignores_quotations_code_and_logs(text):
    assert NO_CONTEXT == EXPOSURE.detect(text)


def test_detect_reads_message_in_quotation_marks():
    assert "resuming" == kind_of('"continue from yesterday"')


@pytest.mark.parametrize(
    ("plain", "negated"),
    [
        ("continue from yesterday", "do not continue from yesterday"),
        ("record the decision: no ORM", "don't record the decision: no ORM"),
        ("그걸로 결정하자", "아직 결정하지 마"),
        ("이 결정 저장해줘", "이 결정 저장하지 말고 기다려"),
    ],
)
def test_detect_ignores_negated_request(plain, negated):
    """The negation may be before or after the verb."""
    assert kind_of(plain) is not None
    assert kind_of(negated) is None


@pytest.mark.parametrize(
    "text",
    [
        "continue from yesterday, then save a checkpoint",
        "find the caching decision and replace it with redis",
        "mark the raid plan as failed and search for similar failures",
        "어제 작업 이어서 하고 왜 JWT 버렸는지도 찾아줘",
        "JWT 왜 버렸지? 교훈으로 저장해줘",
    ],
)
def test_detect_allows_all_tools_when_message_has_two_requests(text):
    context = EXPOSURE.detect(text)

    assert context.confidence < 0.7
    assert ("all", ()) == (context.tool_names, context.priority)


def test_detect_ignores_kind_that_another_request_overrules():
    """Regression: the comparison with the remaining kinds raised an error."""
    cues = (
        Cue(kind="deciding", pattern="keep", weight=0.79),
        Cue(kind=OTHER_KIND, pattern="paint", weight=0.9),
        Cue(kind="searching", pattern="look", weight=0.5),
    )

    assert "searching" == ToolSelector(cues=cues).detect("keep it, paint it, look").kind


def test_select_rarely_hides_needed_tool_of_combined_messages():
    """At most one percent of the pairs of labelled messages has a needed tool hidden."""
    rows = [row for row in MESSAGES if row["needed"] and len(row["text"]) < 160]
    pairs = list(zip(rows, rows[::-1], strict=True))[: len(rows) // 2 : 2]
    hidden = [
        f"{first['text']} {second['text']}"
        for first, second in pairs
        if not {*first["needed"], *second["needed"]}
        <= {*EXPOSURE.select(MEMORY_TOOLS, EXPOSURE.detect(f"{first['text']} {second['text']}"))}
    ]

    assert len(pairs) > 200
    assert len(hidden) <= 0.01 * len(pairs), hidden


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Timestamps are UTC from now on, remember that.", "deciding"),
        ("we go with NATS because it is simpler. note that down", "deciding"),
        ("배포는 화요일에만 하기로 했어. 기록해줘", "deciding"),
        ("로그는 JSON으로 갑시다, 남겨 주세요", "deciding"),
        ("remember that the staging password rotates on mondays", None),
        ("스테이징 비번은 월요일마다 바뀌어. 기억해줘", None),
        ("let's keep it simple and store the result in a list", None),
        ("로그 파일에 에러를 기록해줘", None),
    ],
)
def test_detect_distinguishes_saving_a_choice_from_saving_a_fact(text, kind):
    assert kind == kind_of(text)


@pytest.mark.parametrize("text", ["last session에서 하던 작업 이어서 go", "그 strategy failed였어"])
def test_english_cue_matches_word_with_korean_particle(text):
    english = ToolSelector(cues=[cue for cue in DEFAULT_CUES if cue.language == "en"])

    assert english.detect(text).kind is not None


# Provider messages


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "continue from yesterday"},
        {"role": "user", "content": [{"type": "text", "text": "continue from yesterday"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "continue from yesterday"}, {"type": "image"}]},
        {"role": "user", "parts": [{"text": "continue from yesterday"}]},
        [{"type": "text", "text": "continue from yesterday"}],
        ["continue from yesterday"],
        [
            {"role": "system", "content": "what did we decide?"},
            {"role": "user", "content": "what did we decide?"},
            {"role": "assistant", "content": "which should we choose?"},
            {"role": "user", "content": "continue from yesterday"},
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "tool", "content": "which should we choose?"},
            {"role": "user", "content": [{"type": "tool_result", "content": "which should we choose?"}]},
        ],
        {"messages": [{"role": "user", "content": "continue from yesterday"}], "model": "m"},
        {"input": "continue from yesterday"},
        {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "continue from yesterday"}]},
        {"type": "human", "content": "continue from yesterday"},
    ],
)
def test_detect_uses_last_user_text_of_provider_message(message):
    """Messages may be dicts or objects."""

    def as_object(value):
        if isinstance(value, dict):
            return attrs.make_class("Message", list(value))(*map(as_object, value.values()))
        return [as_object(item) for item in value] if isinstance(value, list) else value

    assert "resuming" == EXPOSURE.detect(message).kind
    assert EXPOSURE.detect(message) == EXPOSURE.detect(as_object(message))


@pytest.mark.parametrize(
    "message",
    [
        None,
        42,
        [],
        {},
        object(),
        {"role": "assistant", "content": "continue from yesterday"},
        {"role": "user", "content": None},
        {"role": "user", "content": 3},
        [{"type": "tool_result", "content": "continue from yesterday"}],
        {"kind": "response", "parts": [{"content": "continue from yesterday"}]},
    ],
)
def test_detect_returns_no_context_for_message_without_user_text(message):
    assert NO_CONTEXT == EXPOSURE.detect(message)


# Selection of tools


def test_select_returns_context_tools_and_core_with_first_tool_first():
    expected = {
        "resuming": {"load/context", "search/recent"},
        "deciding": {"save/insight", "search/by_context", "search/by_topic", "evolve/supersede"},
        "searching": {"search/by_topic", "search/by_context", "search/recent", "load/context"},
        "tracking": {name for name in MEMORY_TOOLS if name.startswith("evolve/")}
        | {"search/by_topic", "search/recent"},
    }
    texts = {
        "resuming": "continue from yesterday",
        "deciding": "which one should we choose?",
        "searching": "what was the decision on caching?",
        "tracking": "mark the caching decision as failed",
    }
    for kind, text in texts.items():
        context = EXPOSURE.detect(text)

        assert kind == context.kind
        assert context.confidence >= 0.7
        assert expected[kind] | {*ALWAYS_EXPOSED} == context.tool_names
        assert context.priority[0] == EXPOSURE.select(NAMES, context)[0]


def test_select_hides_only_memory_tools():
    """A deprecated name is hidden with its successor."""
    seen = EXPOSURE.select(NAMES, EXPOSURE.detect("continue from yesterday"))

    assert {*HOST} <= {*seen}
    assert {"load_checkpoint", "save_checkpoint", "save_decision", "list_decisions"} == {*seen} & {
        *DEPRECATED_SUCCESSORS
    }
    assert "evolve/outcome" not in seen


def test_select_keeps_order_without_context():
    assert NAMES == EXPOSURE.select(NAMES, EXPOSURE.detect("fix the build"))


@given(
    names=st.lists(st.sampled_from(NAMES), unique=True),
    text=st.sampled_from([row["text"] for row in MESSAGES]) | st.text(max_size=200),
)
def test_select_drops_only_memory_tools_and_keeps_order_for_any_text(names, text):
    context = EXPOSURE.detect(text)
    seen = EXPOSURE.select(names, context)
    rest = [name for name in seen if name not in context.priority]

    assert len({*seen}) == len(seen)
    assert {*names} - {*seen} <= {*MEMORY_TOOLS, *DEPRECATED_SUCCESSORS} - {*ALWAYS_EXPOSED}
    assert rest == [name for name in names if name in rest]
    assert 0 <= context.confidence <= 1
    assert (context.tool_names == "all") == (context.confidence < 0.7 or context.kind is None)


# Learned weights


def test_learned_weights_detect_kind_but_hide_nothing():
    cues_alone = ToolSelector(cues=DEFAULT_CUES[:-1])
    named = [
        row["text"]
        for row in MESSAGES[-400::4]
        if kind_of(row["text"]) is not None and cues_alone.detect(row["text"]).kind is None
    ]

    assert named
    assert all(detected(text).tool_names == "all" for text in named)


# Data files with cues and weights


def test_detect_matches_recorded_decisions():
    """The recorded decisions are from before cues and weights were data files."""
    names = [*MEMORY_TOOLS]
    for row, line in zip(MESSAGES, DECISIONS.splitlines(), strict=True):
        kind, confidence, allowed, *priority = line.split()
        context = detected(row["text"])
        # Add `save/checkpoint`: every context allows it, but the recorded decisions are older than this tool.
        tools = "all" if allowed == "all" else {"save/checkpoint", *(names[int(number)] for number in allowed)}
        # Add two `evolve/` tools: the recorded decisions are older than these tools.
        if "9" in allowed and "8" in allowed:
            tools |= {"evolve/correct", "evolve/forget"}

        assert (kind, float(confidence)) == (str(context.kind), context.confidence), row["text"]
        assert tools == (context.tool_names if allowed == "all" else {*context.tool_names}), row["text"]
        assert tuple(names[int(number)] for number in "".join(priority)) == context.priority, row["text"]


def lines_of(name):
    return [line for line in (DATA / name).read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]


@pytest.mark.parametrize("language", ["en", "ko"])
def test_cue_file_lines_are_all_used(language):
    """Each line is a named part, the header of a cue, or an alternative of its pattern."""
    lines = lines_of(f"cues_{language}.txt")
    cues = [cue for cue in DEFAULT_CUES if cue.language == language]
    heads = [line for line in lines if line[0] not in "= "]
    parts = [line[1:] for line in lines if line[0] == "="]

    assert [f"{cue.kind} {cue.weight:g}{'' if cue.is_request else ' tells'}" for cue in cues] == heads
    assert len(parts) == len({*parts})
    assert all(any(f"{{{part}}}" in line for line in lines) for part in parts)
    for line in lines:
        alternative = line[2:].partition("{")[0]
        assert line == line.rstrip()
        assert line[0] != " " or any(alternative in cue.pattern for cue in cues), line
        assert line[0] != " " or line[:3] != "   "
    assert all("{" not in re.sub(r"\{\d+,?\d*\}", "", cue.pattern) for cue in cues)


def test_weights_file_has_described_numbers_and_five_letters_per_feature():
    """Each feature also occurs in a labelled message."""
    rows = [line.split("\t") for line in lines_of("weights.tsv")]
    numbers = [row for row in rows if len(row) == 3]
    entries = [row for row in rows if len(row) == 2]
    found = {piece for row in MESSAGES for piece in extract_features(normalize_message(row["text"]).words)}

    assert len(rows) == len(numbers) + len(entries)
    assert 19 + 2 == len(numbers) == len({name for name, _, _ in numbers})
    assert all(float(number) > 0 for name, number, _ in numbers if name != "bias")
    assert all(meaning for _, _, meaning in numbers)
    assert len(entries) == len({piece for piece, _ in entries})
    assert all(re.fullmatch("[A-Za-z]{5}", letters) for _, letters in entries)
    assert {piece.replace("_", " ") for piece, _ in entries} <= found


def test_contexts_file_lines_are_all_used():
    lines = lines_of("contexts.txt")
    rules = [f"{rule.kind} {','.join(rule.tools)} {','.join(rule.priority)}" for rule in DEFAULT_CONTEXTS]

    assert rules == [line for line in lines if line[0] not in "= "]
    for line in lines:
        assert line[0] != " " or any(line[2:].partition("{")[0] in rule.doubt_words for rule in DEFAULT_CONTEXTS), line


def test_request_pattern_file_lines_are_all_used():
    """Each line is a named part, a name, or an alternative of its pattern."""
    lines = lines_of("asking.txt")
    patterns = exposure_module._load_request_patterns()

    assert [*patterns] == [line for line in lines if line[0] not in "= "]
    assert all(any(f"{{{line[1:]}}}" in other for other in lines) for line in lines if line[0] == "=")
    for line in lines:
        alternative = line[2:].partition("{")[0]
        assert line[0] != " " or any(alternative in pattern.pattern for pattern in patterns.values()), line


# Custom cues


def test_exposure_accepts_cues_in_additional_language():
    exposure = ToolSelector(
        cues=(*DEFAULT_CUES, Cue(kind="resuming", words=("mach weiter", "wo waren wir"), language="de"))
    )

    assert "resuming" == exposure.detect("Wo waren wir gestern?").kind
    assert "resuming" == exposure.detect("machweiter bitte").kind
    assert exposure.detect("das Kilo waren wir los").kind is None
    assert "resuming" == exposure.detect("continue from yesterday").kind


def test_exposure_accepts_custom_context():
    rule = SelectionRule(kind="planning", tools=("search/*",), priority=("search/recent",), doubt_words="but")
    exposure = ToolSelector(cues=[Cue(kind="planning", pattern=r"\bplan\b", weight=0.9)], rules=[rule], always=())

    assert ToolSelection(
        "planning", 0.9, frozenset(n for n in MEMORY_TOOLS if n.startswith("search/")), rule.priority
    ) == (exposure.detect("Plan the week"))
    assert "all" == exposure.detect("plan the week, but slowly").tool_names
    assert exposure.detect("planets").kind is None


def test_detect_applies_masks_and_other_requests():
    """A cue without a kind removes words; one of the kind `OTHER_KIND` competes."""
    base = (Cue(kind="searching", words=("look",), weight=0.9),)
    masked = ToolSelector(cues=(*base, Cue(kind=None, words=("look out",))))
    rivalled = ToolSelector(cues=(*base, Cue(kind=OTHER_KIND, words=("paint",))))

    assert "searching" == masked.detect("look here").kind
    assert masked.detect("look out").kind is None
    assert rivalled.detect("look here").confidence > 0.7 > rivalled.detect("paint it, then look").confidence


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cue(kind="searching", pattern="("), "regular expression"),
        (lambda: Cue(kind="searching"), "either words or a pattern"),
        (lambda: Cue(kind="searching", words=("a",), pattern="a"), "either words or a pattern"),
        (lambda: Cue(kind="searching", words="weiter"), "words must be a tuple"),
        (lambda: Cue(kind="searching", words=(" ",)), "words must be a tuple"),
        (lambda: Cue(kind="searching", words=(3,)), "words must be a tuple"),
        (lambda: Cue(kind="searching", pattern=3), "pattern must be a text"),
        (lambda: Cue(kind="searching", pattern="a*"), "must not match the empty text"),
        (lambda: Cue(kind="searching", words=("a",), weight=0), "weight must be"),
        (lambda: Cue(kind="searching", words=("a",), weight=1.1), "weight must be"),
        (lambda: Cue(kind=3, words=("a",)), "kind must be"),
        (lambda: SelectionRule(kind="a", tools="save/*"), "tools must be a tuple"),
        (
            lambda: SelectionRule(kind="a", tools=("save/*",), doubt_words="("),
            "doubt_words must be a regular expression",
        ),
        (lambda: SelectionRule(kind="a", tools=("save/*",), doubt_words=3), "doubt_words must be a regular expression"),
        (lambda: ToolSelector(threshold=2), "threshold must be"),
        (lambda: ToolSelector(threshold="0.7"), "threshold must be"),
        (lambda: ToolSelector(cues=("decide",)), "cues must be objects of Cue"),
        (lambda: ToolSelector(rules=3), "rules must be objects of SelectionRule"),
        (lambda: ToolSelector(cues=(), rules=DEFAULT_CONTEXTS * 2), "rules must have distinct kinds"),
        (lambda: ToolSelector(cues=(Cue(kind="planning", words=("plan",)),)), "the kind of a cue must be one of"),
        (lambda: ToolSelector(always="save/decision"), "always must be a tuple"),
    ],
)
def test_cue_context_and_exposure_reject_invalid_arguments(make, message):
    with pytest.raises(InvalidArgument, match=message):
        make()


# Hostile and long texts


@given(st.text())
def test_detect_returns_context_for_any_text(text):
    assert isinstance(EXPOSURE.detect(text), ToolSelection)


def test_detect_reads_both_ends_of_long_message_and_allows_all_tools():
    """The unread middle may contain another request."""
    filler = "the quick brown fox jumps over the lazy dog. " * 20_000
    for text in (f"continue from yesterday. {filler}", f"{filler} continue from yesterday"):
        context = EXPOSURE.detect(text)

        assert ("resuming", "all") == (context.kind, context.tool_names)
    assert "resuming" == EXPOSURE.detect(f"continue from yesterday\n```\n{filler}\nwhat did we decide?\n```").kind


HOSTILE = (
    "a",
    " ",
    "\n",
    '"',
    "`",
    "```",
    "_a",
    "or ",
    "까 ",
    "할지 ",
    "- ",
    "did we we we ",
    "what did we decide yesterday? ",
    "결정 뭐 했어 어제 ",
    "we'll always ",
    "record that: ",
    "로 가자 기록 ",
)


@pytest.mark.parametrize("unit", HOSTILE)
def test_detect_takes_bounded_steps_for_long_message(unit, steps):
    short, long = (unit * (length // len(unit)) for length in (10_000, 1_000_000))

    assert steps(EXPOSURE.detect, long) <= 1.1 * steps(EXPOSURE.detect, short) + 50
