"""
Google ADK's own tests of artifact services, run on ours.

The module of its repository, below *MAMA_STRUCTS_SUITE*, is loaded unchanged except for the fixture that creates a
service. The tests of ADK's in-memory service are run; tests of files and buckets are excluded.
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

_SUITE_PATH = Path(os.environ["MAMA_STRUCTS_SUITE"]) / "test_artifact_service.py"
_spec = importlib.util.spec_from_file_location("adk_test_artifact_service", _SUITE_PATH)
_theirs = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _theirs
_spec.loader.exec_module(_theirs)

# Allowed by the file service, but not by the in-memory one.
_OWN = {"test_file_allows_reserved_user_as_session_id"}


class _AsInMemory(AdkArtifactService):
    """Formats a version's URI like the in-memory service, because the tests compare it."""

    async def _load_versions(self, place):
        found = await super()._load_versions(place)
        return [
            one.model_copy(update={"canonical_uri": one.canonical_uri.replace("artifact://", "memory://", 1)})
            for one in found
        ]


@pytest.fixture
async def artifact_service_factory(tmp_path):
    """Return the service of a new session, for any of ADK's own services."""
    async with Session.open(tmp_path / "store", embedder=HashEmbedder()) as session:
        yield lambda *_: _AsInMemory(session)


def _on_ours(test):
    """Return only the in-memory service of a test's parameters, which ours replaces, or None without it."""
    marks = getattr(test, "pytestmark", [])
    for at, mark in enumerate(marks):
        if mark.name == "parametrize" and mark.args[0] == "service_type":
            in_memory = _theirs.ArtifactServiceType.IN_MEMORY
            if in_memory not in mark.args[1]:
                return None
            marks[at] = pytest.mark.parametrize("service_type", [in_memory]).mark
    return test


def _is_here(name, test):
    """Return True if a test is run; others create a file or bucket service, or inspect its internals."""
    if not name.startswith("test_") or (name.startswith(("test_file_", "test_gcs_")) and name not in _OWN):
        return False
    return "artifact_service_factory" in inspect.signature(test).parameters and _on_ours(test) is not None


for _name, _test in vars(_theirs).items():
    if _name.startswith("Test") or _is_here(_name, _test):
        globals()[_name] = _test
