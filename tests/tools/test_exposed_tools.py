"""The tools that are visible to the model: version numbers, change subscribers and the log of changes."""

import logging

import attrs
import pytest

from mama_structs.errors import InvalidArgument
from mama_structs.tools.exposed_tools import ExposedToolNames, ExposedTools
from mama_structs.tools.exposure import MEMORY_TOOLS, ToolSelector
from mama_structs.tools.tool import Tool, ToolSet

RESUMING, ORDINARY = "continue from yesterday", "fix the build"
SEARCHING = "what was the decision on caching?"


async def run():
    """Do nothing."""


@pytest.fixture
def tools():
    tools = ToolSet()
    for name in ("read_fd", *MEMORY_TOOLS):
        tools.add(run, name=name)
    return tools


@pytest.fixture
def exposed(tools):
    return ExposedTools(tools)


def test_version_increases_only_with_changed_names(exposed):
    first = exposed.current
    same = exposed.for_message(ORDINARY)
    narrow = exposed.for_message(RESUMING)
    again = exposed.for_message("어제 작업 이어서 하자")
    wide = exposed.for_message(None)

    assert (1, 1, 2, 2, 3) == tuple(each.version for each in (first, same, narrow, again, wide))
    assert (False, False, True, True, False) == tuple(each.is_narrowed for each in (first, same, narrow, again, wide))
    assert {"read_fd", "save/decision", "save/checkpoint", "load/checkpoint", "load/context", "search/recent"} == {
        *narrow.names
    }
    assert "load/checkpoint" == narrow.names[0]
    assert wide is exposed.current
    assert [*wide.names] == [tool.name for tool in exposed.tools()]


def test_repr_shows_version_counts_and_mode(exposed, tools):
    first = repr(exposed)
    narrow = exposed.for_message(RESUMING)
    tools.add(run, name="save/file")

    assert f"<ExposedTools version 1: {len(tools) - 1} of {len(tools) - 1} tools, auto>" == first
    assert f"<ExposedTools version 2: {len(narrow.names)} of {len(tools)} tools, auto>" == repr(exposed)


def test_added_tool_is_visible(exposed, tools):
    """A memory tool is visible only if the context allows it."""
    told = []
    exposed.subscribe(told.append)
    narrow = exposed.for_message(RESUMING)
    tools.add(run, name="save/file")

    assert "save/file" in exposed.current.names
    assert [narrow.version, narrow.version + 1] == [each.version for each in told]
    assert exposed.current is told[-1]

    tools.add(attrs.evolve(Tool.from_function(run, name="update_outcome"), deprecated=True))

    assert "update_outcome" not in exposed.current.names
    assert narrow.version + 1 == exposed.current.version
    assert exposed.current.is_narrowed


def test_tool_set_without_memory_tools_is_never_narrowed(exposed):
    tools = ToolSet()
    tools.add(run, name="read_fd")

    assert not ExposedTools(tools).for_message(RESUMING).is_narrowed
    assert () == ExposedTools(ToolSet()).for_message(RESUMING).names


def test_force_static_shows_all_tools_and_logs_decision(tools, caplog):
    exposed = ExposedTools(tools, mode="force_static")
    with caplog.at_level(logging.INFO, logger="mama_structs"):
        offered = exposed.for_message(RESUMING)

    assert (1, tools.names, False, "resuming") == (
        offered.version,
        offered.names,
        offered.is_narrowed,
        offered.selection.kind,
    )
    assert "resuming" in caplog.text


def test_log_contains_numbers_but_no_message_text(exposed, caplog):
    with caplog.at_level(logging.INFO, logger="mama_structs"):
        exposed.for_message("what did we decide on the secretword?")
        exposed.for_message("secretword")

    assert [logging.INFO] * 2 == [record.levelno for record in caplog.records]
    assert ["searching", None] == [record.args[0] for record in caplog.records]
    assert "8 of 13 exposed, version 2" in caplog.messages[0]
    assert "13 of 13 exposed, version 3" in caplog.messages[1]
    assert "secretword" not in caplog.text


def test_subscribers_are_called_on_changes_until_unsubscribed(exposed):
    told = []
    leave, leave_too = exposed.subscribe(told.append), exposed.subscribe(told.append)
    exposed.for_message(ORDINARY)

    assert [] == told

    narrow = exposed.for_message(RESUMING)
    leave()
    leave()
    wide = exposed.for_message(ORDINARY)
    leave_too()
    exposed.for_message(RESUMING)

    assert [narrow, narrow, wide] == told


def test_failing_subscriber_is_logged_and_others_are_called(exposed, caplog):
    told = []

    def fail(_exposed):
        raise RuntimeError("no client")

    exposed.subscribe(fail)
    exposed.subscribe(told.append)
    narrow = exposed.for_message(RESUMING)

    assert [narrow] == told
    assert ["ERROR"] == [record.levelname for record in caplog.records if record.levelno > logging.INFO]


def test_subscriber_may_choose_for_another_message(exposed):
    """Later subscribers are called for the newest choice only."""
    told = []

    def widen(change):
        if change.is_narrowed:
            exposed.for_message(ORDINARY)

    exposed.subscribe(widen)
    exposed.subscribe(told.append)
    exposed.for_message(RESUMING)

    assert [3] == [each.version for each in told]
    assert 3 == exposed.current.version


def test_unsubscribing_in_callback_skips_nobody(exposed):
    told = []

    def once(change):
        told.append(change)
        leave()

    leave = exposed.subscribe(once)
    exposed.subscribe(told.append)
    exposed.for_message(RESUMING)
    exposed.for_message(ORDINARY)

    assert [2, 2, 3] == [each.version for each in told]


async def test_subscribe_rejects_async_callback(exposed):
    with pytest.raises(InvalidArgument, match="must be a function that is not async"):
        exposed.subscribe(run)
    with pytest.raises(InvalidArgument, match="must be a function"):
        exposed.subscribe("callback")


def test_unknown_mode_is_rejected(tools):
    with pytest.raises(InvalidArgument, match="mode must be one of auto, force_static, force_dynamic, got 'static'"):
        ExposedTools(tools, mode="static")


def test_given_exposure_is_used(tools):
    exposure = ToolSelector(cues=())
    exposed = ExposedTools(tools, selector=exposure, mode="force_dynamic")

    assert exposure is exposed.selector
    assert "force_dynamic" == exposed.mode
    assert not exposed.for_message(SEARCHING).is_narrowed
    assert isinstance(exposed.current, ExposedToolNames)


def test_tool_names_for_does_not_change_list(exposed, tools):
    told = []
    exposed.subscribe(told.append)
    before = exposed.current
    names = exposed.tool_names_for(RESUMING)

    assert (before, []) == (exposed.current, told)
    assert "load/checkpoint" == names[0]
    assert {"read_fd", "save/checkpoint", "save/decision"} <= {*names}
    assert "search/by_topic" not in names
    assert tools.names == exposed.tool_names_for(ORDINARY)
    assert tools.names == ExposedTools(tools, mode="force_static").tool_names_for(RESUMING)
