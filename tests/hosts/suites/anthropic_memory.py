"""
The Anthropic SDK's tests of its memory tool, run on ours.

The tests read and write files in a folder, so the tools here copy a session's files to that folder and back.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio import Path as AsyncPath

from mama_structs import HashEmbedder, Session, sync
from mama_structs.adapters.anthropic.memory_backend import memory_tool
from mama_structs.types import Record

SUITE = Path(os.environ["MAMA_STRUCTS_TEST_SUITE"]) / "tests/lib/tools/memory_tools/test_filesystem.py"
LABELS = ("anthropic", "memories")


def _loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("anthropic_memory_suite", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_suite = _loaded(SUITE)
# Some tests check folder permissions with the SDK's own tool. Remove its classes, so that these tests fail.
_suite.BetaLocalFilesystemMemoryTool = _suite.BetaAsyncLocalFilesystemMemoryTool = None
TestSync = _suite.TestBetaLocalFilesystemMemoryTool
TestAsync = _suite.TestBetaAsyncLocalFilesystemMemoryTool


def _place(path: str) -> tuple[tuple[str, ...], str]:
    *folders, name = path.split("/")
    return (*LABELS, *folders), name


def _path(record: Record) -> str:
    return "/".join((*record.labels[len(LABELS) :], record.key))


def _in_folder(root: Path) -> dict[str, str]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes().decode()
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def _show(root: Path, files: dict[str, str]) -> None:
    shutil.rmtree(root)
    root.mkdir()
    for key, text in files.items():
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(text.encode())


@pytest.fixture
def sync_local_filesystem_tool(tmp_path: Path) -> Iterator[Any]:
    with sync.Session.open(tmp_path / "agent.mama", embedder=HashEmbedder()) as session:
        tool = memory_tool(session)

        class MirroredTool:
            base_path = tmp_path / "shown"
            memory_root = base_path / "memories"

            def __getattr__(self, command: str) -> Any:
                def call(given: Any) -> Any:
                    for key, text in _in_folder(self.memory_root).items():
                        session.records.put(*_place(key), text)
                    answer = getattr(tool, command)(given)
                    _show(self.memory_root, {_path(one): one.value for one in session.records.list(LABELS)})
                    return answer

                return call

        MirroredTool.memory_root.mkdir(parents=True)
        yield MirroredTool()


@pytest.fixture
async def async_local_filesystem_tool(tmp_path: Path) -> Any:
    async with Session.open(tmp_path / "agent.mama", embedder=HashEmbedder()) as session:
        tool = memory_tool(session)

        root = tmp_path / "shown/memories"

        class MirroredTool:
            base_path = AsyncPath(root.parent)
            memory_root = AsyncPath(root)

            def __getattr__(self, command: str) -> Any:
                async def call(given: Any) -> Any:
                    for key, text in _in_folder(root).items():
                        await session.records.put(*_place(key), text)
                    answer = await getattr(tool, command)(given)
                    _show(root, {_path(one): one.value for one in await session.records.list(LABELS)})
                    return answer

                return call

        root.mkdir(parents=True)
        yield MirroredTool()
