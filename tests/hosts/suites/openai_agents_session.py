"""
The OpenAI Agents SDK's tests of its SQLite session, run on ours.

The tests open sessions without an event loop and use a session in several loops, so each runs on a session of
`mama_structs.sync`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mama_structs import HashEmbedder, sync
from mama_structs.adapters.openai_agents.session import ConversationSession

# The SDK's tests import each other from the package "tests". Hide our package of this name during the import.
_ours = {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] == "tests"}
sys.path.insert(0, os.environ["MAMA_STRUCTS_TEST_SUITE"])
_setup, *_suites = [
    importlib.import_module(f"tests.{name}")
    for name in ("conftest", "memory.test_session", "memory.test_session_limit")
]
sys.modules.update({name: module for name, module in _ours.items() if name not in sys.modules})

_opened: list[sync.Session] = []


class _Session(ConversationSession):
    """Our session. Its directory is next to the database that a test names, or temporary if a test names none."""

    def __init__(self, session_id: str, db_path: Path | None = None, **options: Any) -> None:
        begin = super().__init__

        def opened() -> sync.Session:
            own = sync.Session.open(db_path and f"{db_path}.mama", embedder=HashEmbedder())
            _opened.append(own)
            begin(own, session_id, **options)
            return own

        self._own = _beside(opened)

    def close(self) -> None:
        _beside(self._own.close)


def _beside(work: Callable[[], Any]) -> Any:
    """Run blocking work in another thread, because the SDK's tests block their event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


for _suite in _suites:
    _suite.SQLiteSession = _Session
    globals().update({name: test for name, test in vars(_suite).items() if name.startswith("test_")})
globals().update({name: made for name, made in vars(_setup).items() if isinstance(made, type(pytest.fixture(id)))})


@pytest.fixture(autouse=True)
def close_all() -> Iterator[None]:
    """Close all sessions, because a failed test leaves its sessions open."""
    yield
    while _opened:
        _beside(_opened.pop().close)
