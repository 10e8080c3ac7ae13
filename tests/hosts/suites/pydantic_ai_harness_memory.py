"""
The Pydantic AI harness's own tests of memory stores, run on sessions.

`MAMA_STRUCTS_TEST_SUITE` is the ``tests`` directory of its repository. Sessions replace its three bundled stores: one on a
directory, one on another namespace of that directory, and a temporary one. Tests of the files, tables and
constructors of one bundled store are excluded.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from mama_structs import HashEmbedder, Session
from mama_structs.adapters.pydantic_ai_harness import memory_store

_spec = importlib.util.spec_from_file_location(
    "harness_stores", Path(os.environ["MAMA_STRUCTS_TEST_SUITE"]) / "memory" / "test_stores.py"
)
_suite = importlib.util.module_from_spec(_spec)
# Dataclasses with postponed annotations look up their module.
sys.modules[_spec.name] = _suite
_spec.loader.exec_module(_suite)

_ALSO = ("test_bundled_stores_implement_public_protocols", "test_sqlite_store_serializes_cas_across_instances")
globals().update(
    {name: test for name, test in vars(_suite).items() if name.startswith("test_local_store") or name in _ALSO}
)


@pytest.fixture(autouse=True)
async def stores(tmp_path, monkeypatch):
    """Replace the three bundled stores with ours."""
    directory = tmp_path / "agent.mama"
    async with AsyncExitStack() as opened:
        places = ((directory, "default"), (directory, "other"), (None, "default"), (directory, "default"))
        first, second, third, again = [
            memory_store(
                await opened.enter_async_context(
                    Session.open(
                        location, namespace=namespace, embedder=HashEmbedder(), conversation=f"number {number}"
                    )
                )
            )
            for number, (location, namespace) in enumerate(places)
        ]
        shared = iter((first, again))
        monkeypatch.setattr(_suite, "_local_stores", lambda _path: [first, second, third])
        monkeypatch.setattr(_suite, "SqliteMemoryStore", lambda **_options: next(shared))
        yield
