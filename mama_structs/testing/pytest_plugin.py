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
    The marker of the same name sets its options, the closest one counts.
    """
    from mama_structs.testing.fake_node import FakeNode  # noqa: PLC0415 - see the module's docstring

    marker = request.node.get_closest_marker("mama_structs_node")
    options = dict(marker.kwargs) if marker else {}
    exact = options.keys() & {"world", "entities"}
    node = FakeNode(**options) if exact else FakeNode.world(**options)
    with node.in_thread():
        yield node
