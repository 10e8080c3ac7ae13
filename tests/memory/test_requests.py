"""What may be asked to be saved is spelt once for each type of memory."""

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
def test_a_method_takes_what_its_request_takes(method, form):
    """Its arguments are handed on as they are: their names and defaults are the request's."""
    taken = {name: one.default for name, one in inspect.signature(method).parameters.items() if name != "self"}
    asked = {
        field.name: inspect.Parameter.empty if field.default is attrs.NOTHING else field.default
        for field in attrs.fields(form)
        if field.init
    }

    assert asked == taken


def test_supersede_takes_what_a_decision_takes():
    """All but *supersedes*, which its *id* is, and what becomes of copies: it is never one."""
    taken = set(inspect.signature(MemoryStore.supersede).parameters) - {"self", "id"}

    assert taken == {field.name for field in attrs.fields(DecisionRequest) if field.init} - {
        "supersedes",
        "on_duplicate",
    }
