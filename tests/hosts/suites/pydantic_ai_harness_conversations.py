"""
The Pydantic AI harness's own tests of conversation stores, run on sessions.

`MAMA_STRUCTS_TEST_SUITE` is the ``tests`` directory of its repository. The path of a database becomes the directory of a
session. Tests without a store are excluded. Tests that inspect the tables of the reference store must fail there, and
not earlier.
"""

from __future__ import annotations

import importlib.util
import os
import sqlite3
from pathlib import Path

import pytest

from mama_structs import HashEmbedder, Session
from mama_structs.adapters.pydantic_ai_harness import conversation_store

_spec = importlib.util.spec_from_file_location(
    "harness_conversations", Path(os.environ["MAMA_STRUCTS_TEST_SUITE"]) / "step_persistence" / "test_conversations.py"
)
_suite = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_suite)

_EXCUSED = {
    "test_roundtrip_search_paging_and_media": (
        sqlite3.OperationalError,
        "its last line counts rows of a table of media",
    ),
    "test_corrupt_history_is_not_an_empty_session": (sqlite3.OperationalError, "it damages a row of a table"),
    "test_delete_removes_run_data_but_not_other_conversations": (AssertionError, "runs are kept by another store"),
}


def _on_sessions(test):
    raised, reason = _EXCUSED.get(test.__name__, (None, None))
    return test if reason is None else pytest.mark.xfail(raises=raised, reason=reason, strict=True)(test)


globals().update(
    {
        name: _on_sessions(test)
        for name, test in vars(_suite).items()
        if name.startswith("test_") and "SqliteConversationStore" in test.__code__.co_names
    }
)


@pytest.fixture(autouse=True)
async def stores(monkeypatch):
    """Replace the reference store with ours. Its constructor opens nothing, as in the reference store."""
    sessions = {}

    class Store:
        def __init__(self, *, database):
            self.database = database

        def __getattr__(self, name):
            async def call(**arguments):
                if self.database not in sessions:
                    directory = self.database.with_suffix(".mama")
                    sessions[self.database] = await Session.open(directory, embedder=HashEmbedder())
                return await getattr(conversation_store(sessions[self.database]), name)(**arguments)

            return call

    monkeypatch.setattr(_suite, "SqliteConversationStore", Store)
    yield
    for session in sessions.values():
        await session.close()
