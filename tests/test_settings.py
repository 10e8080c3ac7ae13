"""Settings: bounds of values, environment variables and repr."""

import inspect
import json
import re
import sys
import typing

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs._internal.validation import MAX_SPAN_SECONDS
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


def test_reference_defaults_match_design():
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
def test_invalid_reference_setting_error_has_its_name(name, value):
    """The error names class, setting and value."""
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
def test_boundary_values_are_valid(name, value):
    assert value == getattr(ReferenceSettings(**{name: value}), name)


@pytest.mark.parametrize("value", [None, {}, {"cache_ttl": 5}, ReferenceSettings, Settings()])
def test_section_must_be_of_its_class(value):
    """A mapping would not be validated."""
    with pytest.raises(InvalidSetting, match=r"Settings\.references must be a ReferenceSettings"):
        Settings(references=value)


def test_settings_are_frozen_and_keyword_only():
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
SIZE_LIMITS = st.integers(min_value=0)
DESCRIPTORS = st.builds(
    DescriptorSettings,
    enabled=st.booleans(),
    marks_enabled=st.booleans(),
    page_size=st.integers(min_value=1),
    max_bytes=SIZE_LIMITS,
    max_handles=SIZE_LIMITS,
    search_timeout=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    conversation_ttl=st.floats(min_value=0, exclude_min=True, max_value=MAX_SPAN_SECONDS),
    allow_hidden=st.booleans(),
    files_root=st.text(st.sampled_from("ab/ü")),
)
POLICIES = st.builds(
    LinkingPolicy,
    threshold=st.floats(0, 1),
    max_semantic=SIZE_LIMITS,
    max_temporal=SIZE_LIMITS,
    temporal_window=st.floats(0, 3e9),
    temporal_same_topic=st.booleans(),
    topic_window=st.floats(0, 3e9),
    max_incoming=SIZE_LIMITS,
    min_confidence=st.floats(0, 1),
)


def memory(policies):
    """Return a strategy for memory settings with a linking policy."""
    return st.builds(
        MemorySettings,
        linking=policies,
        exact_up_to=SIZE_LIMITS,
        prune_every=st.floats(0, 3e9),
        prune_below=st.floats(0, 1),
        prune_temporal_after=st.floats(0, 3e9),
        max_content=st.integers(min_value=1),
        max_evidence=SIZE_LIMITS,
        load_embedder_at_open=st.booleans(),
        embedding_cache_entries=SIZE_LIMITS,
        rerank_timeout=st.floats(0.001, 3e9),
        rerank_limit=st.integers(min_value=1),
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
    server=st.builds(ServerSettings, max_connections=st.integers(1, 100), prepared_statements=st.booleans()),
)


@given(st.builds(Settings, references=REFERENCES, descriptors=DESCRIPTORS, memory=memory(POLICIES)))
def test_repr_evaluates_to_equal_settings(settings):
    assert settings == eval(repr(settings))


def test_linking_preset_is_selected_by_name():
    """The name can be passed in code and in the environment."""
    assert LinkingPolicy.strict() == MemorySettings(linking="strict").linking
    assert LinkingPolicy.off() == Settings.from_env({"MAMA_STRUCTS_MEMORY_LINKING": "off"}).memory.linking

    with pytest.raises(InvalidSetting, match="one of default, strict, off"):
        MemorySettings(linking="loose")


@given(SETTINGS, st.sampled_from(["{}", " {}", "{}\n", "\t{} "]))
def test_environment_can_set_every_setting(settings, form):
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
        *((name, value) for name in ("enabled", "marks_enabled") for value in (0, 1, None, "true")),
        *((name, value) for name in ("page_size",) for value in (0, -1, True, 1.0, "5", None)),
        *((name, value) for name in ("max_bytes", "max_handles") for value in (-1, True, 1.0, "5", None)),
        *(("search_timeout", value) for value in (0, -1, True, "2", None, float("nan"), float("inf"))),
        *(("files_root", value) for value in (None, 3, "a\0b", b"x")),
    ],
)
def test_invalid_descriptor_setting_error_has_its_name(name, value):
    """For example, a page size of 0 caused an endless loop in an earlier system."""
    with pytest.raises(InvalidSetting) as caught:
        DescriptorSettings(**{name: value})

    assert f"DescriptorSettings.{name}" == caught.value.name
    assert caught.value.name in str(caught.value)


def test_descriptor_defaults_match_design(tmp_path):
    """A root may be a path object."""
    settings = DescriptorSettings(files_root=tmp_path)

    assert (4_000, True, True) == (settings.page_size, settings.enabled, settings.marks_enabled)
    assert str(tmp_path) == settings.files_root
    assert Settings().descriptors == DescriptorSettings()


def test_empty_environment_returns_defaults(monkeypatch):
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
def test_environment_accepts_several_boolean_words(text, value):
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
def test_invalid_text_in_environment_names_variable(name, text, words):
    """The error does not contain the text, which may be a secret in the wrong variable."""
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
def test_environment_value_is_validated(name, text):
    """A note names the environment."""
    variable = f"MAMA_STRUCTS_REFERENCES_{name}"
    with pytest.raises(InvalidSetting) as caught:
        Settings.from_env({variable: text, "MAMA_STRUCTS_REFERENCES_ENABLED": "1"})

    assert f"ReferenceSettings.{name.lower()}" == caught.value.name
    assert [
        f"read from the environment: MAMA_STRUCTS_REFERENCES_{min('ENABLED', name)}, MAMA_STRUCTS_REFERENCES_{max('ENABLED', name)}"
    ] == (caught.value.__notes__)


def test_misspelt_variable_error_lists_known_ones():
    with pytest.raises(InvalidSetting, match="names no setting") as caught:
        Settings.from_env({"MAMA_STRUCTS_REFERENCES_CACHE_TLL": "5"})

    assert "MAMA_STRUCTS_REFERENCES_CACHE_TLL" == caught.value.name
    assert "MAMA_STRUCTS_REFERENCES_CACHE_TTL" in caught.value.hint


SECTIONS = [*(field.default.factory for field in attrs.fields(Settings)), LinkingPolicy, Settings]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_is_documented(section):
    names = [field.name for field in attrs.fields(section)]

    documented = inspect.getdoc(section).partition("Raises:")[0]
    assert names == re.findall(r"^    (\w+): ", documented, re.MULTILINE)
    assert set(names) == {name for name in typing.get_type_hints(section) if not name.startswith("_")}


@pytest.mark.parametrize("section", SECTIONS)
def test_settings_have_json_form_with_attribute_names(section):
    data = json.loads(section().to_json())

    assert section().to_dict() == data
    assert [field.name for field in attrs.fields(section)] == list(data)


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
def test_answer_settings_reject_small_or_uncounted_budget(values):
    with pytest.raises(InvalidSetting):
        AnswerSettings(**values)


def test_answer_budget_counts_characters_or_tokens():
    words = AnswerSettings(max_tokens=1000, count_tokens=lambda text: len(text.split()))._budget

    assert AnswerSettings()._budget.fits("x" * 8000)
    assert not AnswerSettings()._budget.fits("x" * 8001)
    assert words.fits("word " * 1000)
    assert not words.subtract(1).fits("word " * 1000)
    assert 0 == words.subtract(2000).limit


def test_token_budget_counts_text_with_lone_surrogates():
    """A counter that raises must not disable the budget."""
    budget = AnswerSettings(max_tokens=1000, count_tokens=lambda text: len(text.encode()))._budget

    assert not budget.fits("\ud800" * 1001)
    assert budget.fits("\ud800" * 1000)


def test_function_cannot_be_set_by_environment():
    with pytest.raises(InvalidSetting, match="in code"):
        Settings.from_env({"MAMA_STRUCTS_ANSWERS_COUNT_TOKENS": "len"})
