"""
Pytest plugin with fixtures and markers.

The fixtures are ``mama_session``, ``mama_clock`` and ``mama_structs_node``; two of them have markers.
Every pytest run of every user loads this module, so it imports only pytest. Other imports happen on first use.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mama_structs import Session, sync
    from mama_structs.testing.fakes import FakeClock
    from mama_structs.testing.node.fake_node import FakeNode

# 2026-01-01 in UTC.
_START_TIMESTAMP = 1_767_225_600.0
_ASYNC_FIXTURE_NAME = "_mama_session_of_the_tests_loop"


async def _open_async_session(
    tmp_path: Path, mama_clock: FakeClock, request: pytest.FixtureRequest
) -> AsyncIterator[Session]:
    from mama_structs import Session  # noqa: PLC0415 - see the module docstring

    async with Session.open(tmp_path / "agent.mama", **_get_session_options(request)) as session:
        mama_clock.drive(session)
        yield session


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers and the async fixture."""
    config.addinivalue_line(
        "markers",
        "mama_structs_node(seed=0, players=40, **options): "
        "the world and the options of the FakeNode that the fixture mama_structs_node gives; "
        "with world= or entities= the node has exactly these.",
    )
    config.addinivalue_line(
        "markers", "mama_session(**options): what Session.open is given for the session of the fixture mama_session."
    )
    # In strict mode, pytest-asyncio runs only fixtures made by its own decorator.
    # If pytest-asyncio is active, it is already imported.
    made = sys.modules.get("pytest_asyncio") if config.pluginmanager.hasplugin("asyncio") else None
    fixtures: Any = types.ModuleType("mama_structs_async_fixtures")
    fixtures.session = (pytest.fixture if made is None else made.fixture)(name=_ASYNC_FIXTURE_NAME)(_open_async_session)
    config.pluginmanager.register(fixtures)


def _get_session_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the options of the test's marker, with an embedder that gives the same results on all machines."""
    from mama_structs import HashEmbedder  # noqa: PLC0415 - see the module docstring

    marker = request.node.get_closest_marker("mama_session")
    if marker is not None and marker.args:
        raise pytest.UsageError(
            f"@pytest.mark.mama_session takes its options by name, such as namespace='x', got {marker.args[0]!r:.80}"
        )
    return {"embedder": HashEmbedder(), **({} if marker is None else marker.kwargs)}


@pytest.fixture
def mama_clock() -> FakeClock:
    """
    Return a `FakeClock` that starts at 2026-01-01 (UTC).

    `mama_session` uses it.
    """
    from mama_structs.testing.fakes import FakeClock  # noqa: PLC0415 - see the module docstring

    return FakeClock(start=_START_TIMESTAMP)


@pytest.fixture
def mama_session(
    request: pytest.FixtureRequest, tmp_path: Path, mama_clock: FakeClock
) -> Iterator[Session | sync.Session]:
    """
    Yield an open session in the test's own directory.

    Async tests get a `Session` of their loop, other tests a `sync.Session`.
    It embeds with `HashEmbedder`, and uses ``mama_clock``.
    The keyword arguments of the marker ``mama_session`` are further options of `Session.open`.
    """
    if inspect.iscoroutinefunction(request.function):
        yield request.getfixturevalue(_ASYNC_FIXTURE_NAME)
        return
    from mama_structs import sync  # noqa: PLC0415 - see the module docstring

    with sync.Session.open(tmp_path / "agent.mama", **_get_session_options(request)) as session:
        mama_clock.drive(session)
        yield session


@pytest.fixture
def mama_structs_node(request: pytest.FixtureRequest) -> Iterator[FakeNode]:
    """
    Yield a listening `FakeNode`, for sync and async tests.

    It runs in a thread with its own event loop.
    The keyword arguments of the marker ``mama_structs_node`` are its options. The closest marker applies.
    Invalid options raise a `pytest.UsageError`.
    """
    marker = request.node.get_closest_marker("mama_structs_node")
    with _make_node(marker).in_thread() as node:
        yield node


def _make_node(marker: pytest.Mark | None) -> FakeNode:
    """Return a node with the options of a marker. Invalid options raise a `pytest.UsageError`."""
    from mama_structs.errors import InvalidArgument  # noqa: PLC0415 - see the module docstring
    from mama_structs.testing.node.fake_node import FakeNode  # noqa: PLC0415

    if marker is None:
        return FakeNode.world()
    if marker.args:
        raise pytest.UsageError(
            f"@pytest.mark.mama_structs_node takes its options by name, such as players=40, got {marker.args[0]!r:.80}"
        )
    exact = [name for name in ("world", "entities") if name in marker.kwargs]
    generated = [name for name in ("seed", "players") if name in marker.kwargs]
    if exact and generated:
        raise pytest.UsageError(
            f"@pytest.mark.mama_structs_node: {exact[0]} and {generated[0]} exclude each other: "
            f"{generated[0]} is for a generated world"
        )
    try:
        return FakeNode(**marker.kwargs) if exact else FakeNode.world(**marker.kwargs)
    except (InvalidArgument, TypeError) as error:
        raise pytest.UsageError(f"@pytest.mark.mama_structs_node: {error}") from error
