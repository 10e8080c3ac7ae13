"""
The Claude Agent SDK's tests of functions that use a session store: list, read, fork, rename, delete, import, resume.

`MAMA_STRUCTS_TEST_SUITE` is the unpacked sdist. Our store replaces the SDK's in-memory store, and adds the methods that
only the tests call. The tests run on asyncio, which sessions need, and not on trio.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
from pathlib import Path

import pytest
from claude_agent_sdk import InMemorySessionStore as Reference

from mama_structs import HashEmbedder, Session
from mama_structs.adapters.claude_agent import session_store

_NAMES = ("helpers_store", "import", "resume", "summary")
_OPENED = []
_MODULES = []


class Store:
    """Our store, which its first call opens. Its synchronous methods return data that the last change has cached."""

    def __init__(self):
        self._session = None
        self._entries = {}
        self._sessions = 0

    async def _store(self):
        if self._session is None:
            self._session = await Session.open(embedder=HashEmbedder())
            _OPENED.append(self._session)
        return session_store(self._session)

    async def append(self, key, entries):
        store = await self._store()
        await store.append(key, entries)
        await self._look(store, key)

    async def load(self, key):
        return await (await self._store()).load(key)

    async def list_sessions(self, project_key):
        return await (await self._store()).list_sessions(project_key)

    async def list_session_summaries(self, project_key):
        return await (await self._store()).list_session_summaries(project_key)

    async def delete(self, key):
        store = await self._store()
        await store.delete(key)
        await self._look(store, key)

    async def list_subkeys(self, key):
        return await (await self._store()).list_subkeys(key)

    async def _look(self, store, key):
        self._entries[tuple(sorted(key.items()))] = await store.load(key)
        self._sessions = len(await store.list_sessions(key["project_key"]))

    def get_entries(self, key):
        return self._entries.get(tuple(sorted(key.items()))) or []

    @property
    def size(self):
        return self._sessions


_SETS_A_CLOCK = pytest.mark.xfail(
    raises=AttributeError, strict=True, reason="it sets the times of the reference's rows"
)
_COUNTS_TURNS = pytest.mark.skip(reason="it counts the turns of the loop until a store without any disk has answered")
_EXCUSED = {
    "test_continue_picks_most_recent": _SETS_A_CLOCK,
    "test_continue_skips_sidechain_sessions": _SETS_A_CLOCK,
    "test_continue_tie_break_is_deterministic": _SETS_A_CLOCK,
    "test_load_concurrency_is_bounded": _COUNTS_TURNS,
    "test_gap_fill_bounded_concurrency": _COUNTS_TURNS,
    "test_cancelled_after_mkdtemp_cleans_temp_dir": _COUNTS_TURNS,
}


def _of_stores(tests):
    """Remove tests that use no store, and run the remaining tests in the event loop of the fixtures."""
    for name, test in [("", tests), *vars(tests).items()]:
        if name.startswith("test_") and Reference.__name__ not in inspect.getsource(test):
            delattr(tests, name)
        elif test is tests or name.startswith("test_"):
            marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name != "anyio"]
            test.pytestmark = [*marks, _EXCUSED[name].mark] if name in _EXCUSED else marks
    return tests


for _name in _NAMES:
    _path = Path(os.environ["MAMA_STRUCTS_TEST_SUITE"]) / "tests" / f"test_session_{_name}.py"
    _spec = importlib.util.spec_from_file_location(f"claude_{_name}", _path)
    _module = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_module)
    _MODULES.append(_module)
    for _key, _value in vars(_module).items():
        # Append the module's name, because classes of several modules have the same name.
        if _key.startswith("Test") and isinstance(_value, type):
            globals()[f"{_key}{_name.title().replace('_', '')}"] = _of_stores(_value)
        elif type(_value).__name__ == "FixtureFunctionDefinition":
            globals()[_key] = _value


@pytest.fixture(autouse=True)
async def stores(monkeypatch):
    """Replace the SDK's reference store with ours."""
    for module in _MODULES:
        for name, value in vars(module).items():
            if value is Reference:
                monkeypatch.setattr(module, name, Store)
    yield
    while _OPENED:
        await _OPENED.pop().close()
