"""
The pytest plugin: the fixture ``mama_structs_node`` and its marker.

Every run of every user loads this module, so it imports nothing but pytest; the rest comes with the first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mama_structs.testing.fake_node import FakeNode


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "mama_structs_node(seed=0, players=40, **options): "
        "the world and the options of the FakeNode that the fixture mama_structs_node gives; "
        "with world= or entities= the node has exactly these.",
    )


@pytest.fixture
def mama_structs_node(request: pytest.FixtureRequest) -> Iterator[FakeNode]:
    """
    Give a `mama_structs.testing.FakeNode` that listens, for sync and async tests alike.

    It runs in a thread with a loop of its own.
    The marker of the same name sets its options, by name; the closest one counts.
    What it cannot mean is a `pytest.UsageError`.
    """
    marker = request.node.get_closest_marker("mama_structs_node")
    with _made(marker).in_thread() as node:
        yield node


def _made(marker: pytest.Mark | None) -> FakeNode:
    """Return the node that a marker describes, or raise a `pytest.UsageError` of one line."""
    from mama_structs.errors import InvalidArgument  # noqa: PLC0415 - see the module's docstring
    from mama_structs.testing.fake_node import FakeNode  # noqa: PLC0415

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
