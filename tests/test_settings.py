"""Settings: every bound, the environment, and what they look like."""

import sys
import typing

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs._internal.validation import CENTURY
from mama_structs.errors import InvalidArgument, InvalidSetting
from mama_structs.settings import (
    AnswerSettings,
    DescriptorSettings,
    LinkingPolicy,
    MemorySettings,
    ReferenceSettings,
    ServerSettings,
    Settings,
    TelemetrySettings,
    ToolSettings,
)

FIELDS = [field.name for field in attrs.fields(ReferenceSettings)]


def test_defaults_are_those_of_the_design():
    """Five queries at once, two seconds each, thirty seconds of cache."""
    settings = ReferenceSettings()

    assert (True, 5, 2.0, 30.0, "ttl") == (
        settings.enabled, settings.max_parallel_queries, settings.query_timeout, settings.cache_ttl, settings.cache_until,
    )  # fmt: skip
    assert settings == Settings().references


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("enabled", value) for value in (0, 1, None, "true")),
        *(("max_parallel_queries", value) for value in (0, -1, True, 1.0, "5", None, float("inf"))),
        *(("query_timeout", value) for value in (0, 0.0, -1, True, "2", None, float("nan"), float("inf"), 10**400)),
        *(("cache_ttl", value) for value in (-0.001, True, "30", None, float("nan"), float("inf"), 10**400)),
        *(("not_found_ttl", value) for value in (-1, False, "5", None, float("nan"), -float("inf"))),
        *(("cache_until", value) for value in ("height", "TTL", "", None, True, [])),
        *(("cache_entries", value) for value in (-1, True, 0.5, "1", None)),
        *(("cache_bytes", value) for value in (-1, False, 0.5, "1", None)),
    ],
    ids=lambda value: value if value in FIELDS else type(value).__name__,
)
def test_a_value_that_breaks_its_rule_is_refused_by_name(name, value):
    """The error names the class, the setting and the value, also as an attribute."""
    with pytest.raises(InvalidSetting) as caught:
        ReferenceSettings(**{name: value})

    assert f"ReferenceSettings.{name}" == caught.value.name
    assert caught.value.name in str(caught.value)
    assert isinstance(caught.value, InvalidArgument)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enabled", False), ("max_parallel_queries", 1), ("query_timeout", 1e-9), ("query_timeout", sys.float_info.max), ("cache_ttl", 0),
        ("cache_ttl", 1), ("not_found_ttl", 0.0), ("cache_until", "block"), ("cache_entries", 0), ("cache_bytes", 0), ("cache_bytes", 2**70),
    ],
)  # fmt: skip
def test_the_bounds_themselves_are_allowed(name, value):
    """Each rule allows its own ends."""
    assert value == getattr(ReferenceSettings(**{name: value}), name)


@pytest.mark.parametrize("value", [None, {}, {"cache_ttl": 5}, ReferenceSettings, Settings()])
def test_a_section_must_be_of_its_class(value):
    """A mapping is no section: it would go unchecked."""
    with pytest.raises(InvalidSetting, match=r"Settings\.references must be a ReferenceSettings"):
        Settings(references=value)


def test_settings_are_frozen_and_by_name_only():
    """Settings are values, and no order of theirs has to be known."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Settings().references = ReferenceSettings()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        ReferenceSettings().cache_ttl = 1
    with pytest.raises(TypeError):
        ReferenceSettings(False)
    with pytest.raises(TypeError):
        Settings(ReferenceSettings())


REFERENCES = st.builds(
    ReferenceSettings,
    enabled=st.booleans(),
    max_parallel_queries=st.integers(min_value=1),
    query_timeout=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    cache_ttl=st.floats(min_value=0, allow_infinity=False),
    cache_until=st.sampled_from(["ttl", "block"]),
    cache_entries=st.integers(min_value=0),
    cache_bytes=st.integers(min_value=0),
    not_found_ttl=st.floats(min_value=0, allow_infinity=False),
    include_memories=st.booleans(),
)
SIZES = st.integers(min_value=0)
DESCRIPTORS = st.builds(
    DescriptorSettings,
    enabled=st.booleans(),
    references_enabled=st.booleans(),
    page_size=st.integers(min_value=1),
    max_bytes=SIZES,
    max_handles=SIZES,
    search_timeout=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    conversation_ttl=st.floats(min_value=0, exclude_min=True, max_value=CENTURY),
    allow_hidden=st.booleans(),
    root=st.text(st.sampled_from("ab/ü")),
)
POLICIES = st.builds(
    LinkingPolicy,
    threshold=st.floats(0, 1),
    max_semantic=SIZES,
    max_temporal=SIZES,
    temporal_window=st.floats(0, 3e9),
    temporal_same_topic=st.booleans(),
    topic_window=st.floats(0, 3e9),
    max_incoming=SIZES,
    minimum=st.floats(0, 1),
)


def memory(policies):
    """Settings of memories with some policy."""
    return st.builds(
        MemorySettings,
        linking=policies,
        exact_up_to=SIZES,
        traversal_entries=SIZES,
        traversal_ttl=st.floats(0, 3e9),
        prune_every=st.floats(0, 3e9),
        prune_below=st.floats(0, 1),
        prune_temporal_after=st.floats(0, 3e9),
        max_content=st.integers(min_value=1),
        max_evidence=SIZES,
        embedding_cache=SIZES,
        rerank_seconds=st.floats(0.001, 3e9),
        rerank_at_most=st.integers(min_value=1),
        snapshot_every=st.integers(min_value=1),
    )


TOOLS = st.builds(
    ToolSettings,
    profile=st.sampled_from(["all", "memory", "save/decision, read_fd"]),
    forget=st.booleans(),
    memory=st.booleans(),
    dynamic=st.sampled_from(["auto", "force_static", "force_dynamic"]),
    deprecated=st.booleans(),
)
PRESETS = {"default": LinkingPolicy.default(), "strict": LinkingPolicy.strict(), "off": LinkingPolicy.off()}
SETTINGS = st.builds(
    Settings,
    references=REFERENCES,
    descriptors=DESCRIPTORS,
    memory=memory(st.sampled_from(list(PRESETS.values()))),
    tools=TOOLS,
    telemetry=st.builds(TelemetrySettings, enabled=st.booleans()),
    server=st.builds(ServerSettings, connections=st.integers(1, 100), prepared=st.booleans()),
)


@given(st.builds(Settings, references=REFERENCES, descriptors=DESCRIPTORS, memory=memory(POLICIES)))
def test_the_repr_can_be_pasted_back(settings):
    """The repr makes equal settings again."""
    assert settings == eval(repr(settings))


def test_a_preset_of_linking_is_known_by_its_name():
    """A name stands for a policy, in code as in the environment, and another name is refused with the known ones."""
    assert LinkingPolicy.strict() == MemorySettings(linking="strict").linking
    assert LinkingPolicy.off() == Settings.from_env({"MAMA_STRUCTS_MEMORY_LINKING": "off"}).memory.linking

    with pytest.raises(InvalidSetting, match="one of default, strict, off"):
        MemorySettings(linking="loose")


@given(SETTINGS, st.sampled_from(["{}", " {}", "{}\n", "\t{} "]))
def test_the_environment_can_say_every_setting(settings, form):
    """Each setting has a variable, whose text may have space around it; others' variables are left alone."""
    names = {policy: name for name, policy in PRESETS.items()}
    environ = {
        f"MAMA_STRUCTS_{section.upper()}_{name.upper()}": form.format(
            names[value]
            if isinstance(value, LinkingPolicy)
            else ", ".join(value)
            if isinstance(value, tuple)
            else value
        )
        for section in ("references", "descriptors", "memory", "tools", "telemetry", "server")
        for name, value in attrs.asdict(getattr(settings, section), recurse=False).items()
        if value is not None
    }

    assert settings == Settings.from_env({**environ, "PATH": "/bin", "REFERENCES_CACHE_TTL": "x"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("enabled", "references_enabled") for value in (0, 1, None, "true")),
        *((name, value) for name in ("page_size",) for value in (0, -1, True, 1.0, "5", None)),
        *((name, value) for name in ("max_bytes", "max_handles") for value in (-1, True, 1.0, "5", None)),
        *(("search_timeout", value) for value in (0, -1, True, "2", None, float("nan"), float("inf"))),
        *(("root", value) for value in (None, 3, "a\0b", b"x")),
    ],
)
def test_a_descriptor_setting_that_breaks_its_rule_is_refused_by_name(name, value):
    """A page of no character, for one: the earlier system accepted it and then never ended."""
    with pytest.raises(InvalidSetting) as caught:
        DescriptorSettings(**{name: value})

    assert f"DescriptorSettings.{name}" == caught.value.name
    assert caught.value.name in str(caught.value)


def test_the_defaults_of_descriptors_are_those_of_the_design(tmp_path):
    """Pages of 4,000 characters; a root may be given as a path."""
    settings = DescriptorSettings(root=tmp_path)

    assert (4_000, True, True) == (settings.page_size, settings.enabled, settings.references_enabled)
    assert str(tmp_path) == settings.root
    assert Settings().descriptors == DescriptorSettings()


def test_an_empty_environment_gives_the_defaults(monkeypatch):
    """Without variables the defaults hold; the process's own environment is read when none is given."""
    assert Settings() == Settings.from_env({})
    monkeypatch.setenv("MAMA_STRUCTS_REFERENCES_CACHE_TTL", "7.5")
    assert 7.5 == Settings.from_env().references.cache_ttl
    assert 30.0 == Settings.from_env({}).references.cache_ttl


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", True),
        ("true", True),
        ("TRUE", True),
        ("Yes", True),
        ("on", True),
        ("0", False),
        ("false", False),
        ("No", False),
        ("OFF", False),
    ],
)
def test_yes_and_no_have_several_words(text, value):
    """The usual words for true and false are understood, in any case."""
    assert value is Settings.from_env({"MAMA_STRUCTS_REFERENCES_ENABLED": text}).references.enabled


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("ENABLED", "maybe", "true or false"),
        ("ENABLED", "", "true or false"),
        ("MAX_PARALLEL_QUERIES", "five", "a whole number"),
        ("MAX_PARALLEL_QUERIES", "5.0", "a whole number"),
        ("MAX_PARALLEL_QUERIES", "", "a whole number"),
        ("CACHE_BYTES", "9" * 5000, "a whole number"),
        ("QUERY_TIMEOUT", "2s", "a number"),
        ("QUERY_TIMEOUT", "", "a number"),
        ("CACHE_TTL", "1,5", "a number"),
    ],
)
def test_a_text_that_says_nothing_is_refused_with_its_variable(name, text, words):
    """The error names the variable and what was expected, but not the text, which may be a secret in the wrong place."""
    variable = f"MAMA_STRUCTS_REFERENCES_{name}"
    with pytest.raises(InvalidSetting, match=f"{variable} must be {words}") as caught:
        Settings.from_env({variable: text})

    assert variable == caught.value.name
    assert not text or text not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MAX_PARALLEL_QUERIES", "0"),
        ("QUERY_TIMEOUT", "nan"),
        ("CACHE_TTL", "inf"),
        ("CACHE_TTL", "-1"),
        ("CACHE_UNTIL", "BLOCK"),
        ("CACHE_UNTIL", ""),
    ],
)
def test_a_value_from_the_environment_obeys_the_rules(name, text):
    """What breaks a rule is refused, and a note says that it came from the environment."""
    variable = f"MAMA_STRUCTS_REFERENCES_{name}"
    with pytest.raises(InvalidSetting) as caught:
        Settings.from_env({variable: text, "MAMA_STRUCTS_REFERENCES_ENABLED": "1"})

    assert f"ReferenceSettings.{name.lower()}" == caught.value.name
    assert [
        f"read from the environment: MAMA_STRUCTS_REFERENCES_{min('ENABLED', name)}, MAMA_STRUCTS_REFERENCES_{max('ENABLED', name)}"
    ] == (caught.value.__notes__)


def test_a_misspelt_setting_is_refused_with_the_known_ones():
    """A variable of a section that names no setting is a mistake, not something to ignore."""
    with pytest.raises(InvalidSetting, match="names no setting") as caught:
        Settings.from_env({"MAMA_STRUCTS_REFERENCES_CACHE_TLL": "5"})

    assert "MAMA_STRUCTS_REFERENCES_CACHE_TLL" == caught.value.name
    assert "MAMA_STRUCTS_REFERENCES_CACHE_TTL" in caught.value.hint


def test_every_setting_is_documented():
    """The docstring has a line for each setting, and type hints resolve."""
    assert [name for name in FIELDS if f"{name}: " not in ReferenceSettings.__doc__] == []
    assert set(FIELDS) == set(typing.get_type_hints(ReferenceSettings))


@pytest.mark.parametrize(
    "values",
    [
        {"max_chars": 999},
        {"max_chars": "8000"},
        {"max_tokens": 2000},
        {"count_tokens": len},
        {"max_tokens": 10, "count_tokens": len},
        {"max_tokens": 2000, "count_tokens": "len"},
    ],
)
def test_a_budget_for_answers_that_holds_nothing_or_that_nobody_counts_is_refused(values):
    """An answer needs room for an error with its hint, and tokens need somebody who counts them."""
    with pytest.raises(InvalidSetting):
        AnswerSettings(**values)


def test_a_budget_counts_characters_or_what_the_host_counts():
    """The budget for answers is in characters, or in tokens where the host counts them."""
    words = AnswerSettings(max_tokens=1000, count_tokens=lambda text: len(text.split())).budget

    assert AnswerSettings().budget.holds("x" * 8000)
    assert not AnswerSettings().budget.holds("x" * 8001)
    assert words.holds("word " * 1000)
    assert not words.less(1).holds("word " * 1000)
    assert 0 == words.less(2000).limit


def test_a_counter_that_takes_no_half_of_a_surrogate_pair_still_counts():
    """A counter that fails would let through what it was to measure."""
    budget = AnswerSettings(max_tokens=1000, count_tokens=lambda text: len(text.encode())).budget

    assert not budget.holds("\ud800" * 1001)
    assert budget.holds("\ud800" * 1000)


def test_a_function_cannot_come_from_the_environment():
    """Settings that only code can give are refused where a variable names them."""
    with pytest.raises(InvalidSetting, match="in code"):
        Settings.from_env({"MAMA_STRUCTS_ANSWERS_COUNT_TOKENS": "len"})


@pytest.mark.parametrize("name", ["wrap_over", "preview_head", "preview_tail"])
def test_settings_that_are_gone_say_what_took_their_place(name):
    """They are taken with a warning, and what breaks their rule is refused as before."""
    with pytest.warns(DeprecationWarning, match=f"{name} is deprecated.*max_chars"):
        DescriptorSettings(**{name: 5})
    with pytest.raises(InvalidSetting):
        DescriptorSettings(**{name: -1})
