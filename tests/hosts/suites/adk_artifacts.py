"""
Google ADK's own tests of artifact services, run on our service.

The test module from ADK's repository, below *MAMA_STRUCTS_TEST_SUITE*, is loaded unchanged. Only the fixture that creates
a service is replaced. The tests of ADK's in-memory service are run; tests of files and buckets are excluded.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from pathlib import Path

import pytest

from mama_structs import HashEmbedder, Session
from mama_structs.adapters.google_adk.artifacts import AdkArtifactService

_SUITE_PATH = Path(os.environ["MAMA_STRUCTS_TEST_SUITE"]) / "test_artifact_service.py"
_spec = importlib.util.spec_from_file_location("adk_test_artifact_service", _SUITE_PATH)
_theirs = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _theirs
_spec.loader.exec_module(_theirs)

# ADK runs this test on its file service only, because its in-memory service rejects the id. Our service accepts it.
_OWN = {"test_file_allows_reserved_user_as_session_id"}


class _AsInMemory(AdkArtifactService):
    """Our service with the URI format of ADK's in-memory service, because the tests compare URIs."""

    async def _load_versions(self, place):
        found = await super()._load_versions(place)
        return [
            one.model_copy(update={"canonical_uri": one.canonical_uri.replace("artifact://", "memory://", 1)})
            for one in found
        ]


@pytest.fixture
async def artifact_service_factory(tmp_path):
    """Return a function that creates our service on a new session. It ignores the service type that a test requests."""
    async with Session.open(tmp_path / "store", embedder=HashEmbedder()) as session:
        yield lambda *_: _AsInMemory(session)


def _on_ours(test):
    """
    Restrict a test to its in-memory case, in which our service replaces ADK's.

    Return None if the test has no such case.
    """
    marks = getattr(test, "pytestmark", [])
    for at, mark in enumerate(marks):
        if mark.name == "parametrize" and mark.args[0] == "service_type":
            in_memory = _theirs.ArtifactServiceType.IN_MEMORY
            if in_memory not in mark.args[1]:
                return None
            marks[at] = pytest.mark.parametrize("service_type", [in_memory]).mark
    return test


def _is_here(name, test):
    """Return True if the test runs on our service. Other tests need ADK's file or bucket service, or its internals."""
    if not name.startswith("test_") or (name.startswith(("test_file_", "test_gcs_")) and name not in _OWN):
        return False
    return "artifact_service_factory" in inspect.signature(test).parameters and _on_ours(test) is not None


for _name, _test in vars(_theirs).items():
    if _name.startswith("Test") or _is_here(_name, _test):
        globals()[_name] = _test
