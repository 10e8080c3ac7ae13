"""Request classes: the arguments of each memory type are defined in one place."""

import inspect

import attrs
import pytest

from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.requests import CheckpointRequest, ContextRequest, DecisionRequest, InsightRequest


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
    """All except *supersedes*, which is *memory*, and *on_duplicate*, which does not apply."""
    taken = set(inspect.signature(MemoryStore.supersede).parameters) - {"self", "memory"}

    assert taken == {field.name for field in attrs.fields(DecisionRequest) if field.init} - {
        "supersedes",
        "on_duplicate",
    }
