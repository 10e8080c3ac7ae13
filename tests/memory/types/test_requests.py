"""Request classes: the arguments of each memory type are defined in one place."""

import inspect
from datetime import UTC, datetime

import attrs
import pytest

from mama_structs.errors import InvalidArgument
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.requests import (
    CheckpointRequest,
    ContextRequest,
    DecisionRequest,
    InsightRequest,
    check_evidence,
    parse_request,
)


@pytest.mark.parametrize(
    ("method", "form"),
    [
        (MemoryStore.save_decision, DecisionRequest),
        (MemoryStore.save_checkpoint, CheckpointRequest),
        (MemoryStore.save_insight, InsightRequest),
        (MemoryStore.save_context, ContextRequest),
    ],
)
def test_method_has_arguments_of_its_request(method, form):
    """Names and defaults of a method's arguments equal those of its request class."""
    taken = {name: one.default for name, one in inspect.signature(method).parameters.items() if name != "self"}
    asked = {
        field.name: inspect.Parameter.empty if field.default is attrs.NOTHING else field.default
        for field in attrs.fields(form)
        if field.init
    }

    assert asked == taken


def test_supersede_has_arguments_of_decision():
    """All except *supersedes*, which is *memory*."""
    taken = set(inspect.signature(MemoryStore.supersede).parameters) - {"self", "memory"}

    assert taken == {field.name for field in attrs.fields(DecisionRequest) if field.init} - {"supersedes"}


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"type": "decision", "topic": "t"}, "save_decision() needs content= and reasoning="),
        ({}, "save_insight() needs content="),
        ({"content": "x", "supersedes": "y"}, "save_insight() has no 'supersedes'"),
        ({"type": "checkpoint", "content": "x", "on_duplicate": "keep"}, "save_checkpoint() has no 'on_duplicate'"),
    ],
)
def test_item_with_wrong_arguments_names_those_of_its_method(item, message):
    with pytest.raises(InvalidArgument) as caught:
        parse_request(item, now=datetime(2026, 1, 1, tzinfo=UTC))

    assert message == caught.value.args[0]


def test_hint_for_unknown_argument_lists_accepted_arguments_only():
    with pytest.raises(InvalidArgument, match="save_insight") as caught:
        parse_request({"content": "x", "xyzzy": 1}, now=datetime(2026, 1, 1, tzinfo=UTC))
    listed = set(caught.value.hint.removeprefix("it takes ").split(", "))

    assert set(inspect.signature(MemoryStore.save_insight).parameters) - {"self"} == listed


@pytest.mark.parametrize("value", [5, b"x", {"a": 1}, None])
def test_invalid_evidence_names_all_accepted_types(value):
    with pytest.raises(InvalidArgument, match="must be a list of texts, memories, refs or descriptors"):
        check_evidence("evidence", value)
