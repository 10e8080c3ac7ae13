"""
Google ADK's own tests of artifact services, on ours.

The module of its repository is loaded as it is, from below *MAMA_STRUCTS_SUITE*; only the fixture that makes a service
is another one. What ADK tests on its service in memory is run; tests on files and buckets are left out.
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

_PLACE = Path(os.environ["MAMA_STRUCTS_SUITE"]) / "test_artifact_service.py"
_spec = importlib.util.spec_from_file_location("adk_test_artifact_service", _PLACE)
_theirs = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _theirs
_spec.loader.exec_module(_theirs)

# What the service on files allows, and the one in memory does not.
_OWN = {"test_file_allows_reserved_user_as_session_id"}


class _AsInMemory(AdkArtifactService):
    """Writes a version's URI as the service in memory does, which the tests compare."""

    async def _versions(self, place):
        found = await super()._versions(place)
        return [
            one.model_copy(update={"canonical_uri": one.canonical_uri.replace("artifact://", "memory://", 1)})
            for one in found
        ]


@pytest.fixture
async def artifact_service_factory(tmp_path):
    """Give the service of a new session, whichever of ADK's own is asked for."""
    async with Session.open(tmp_path / "store", embedder=HashEmbedder()) as session:
        yield lambda *_: _AsInMemory(session)


def _on_ours(test):
    """Leave of the services that a test is run on only the one in memory, in whose place ours is; None without it."""
    marks = getattr(test, "pytestmark", [])
    for at, mark in enumerate(marks):
        if mark.name == "parametrize" and mark.args[0] == "service_type":
            in_memory = _theirs.ArtifactServiceType.IN_MEMORY
            if in_memory not in mark.args[1]:
                return None
            marks[at] = pytest.mark.parametrize("service_type", [in_memory]).mark
    return test


def _is_here(name, test):
    """Tell whether a test is run; the others make a service on files or buckets by its class, or look into it."""
    if not name.startswith("test_") or (name.startswith(("test_file_", "test_gcs_")) and name not in _OWN):
        return False
    return "artifact_service_factory" in inspect.signature(test).parameters and _on_ours(test) is not None


for _name, _test in vars(_theirs).items():
    if _name.startswith("Test") or _is_here(_name, _test):
        globals()[_name] = _test
