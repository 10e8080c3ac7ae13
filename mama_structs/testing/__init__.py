"""
Test utilities: Structs worlds, a fake node, faults, a clock and Hypothesis strategies.

Names are imported on first use, so that importing this package is fast. `mama_structs.testing.strategies` needs the
extra ``testing``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_structs._internal.lazy_import import attach

if TYPE_CHECKING:
    from mama_structs.testing.fakes import FakeClock as FakeClock
    from mama_structs.testing.fakes import FakeSource as FakeSource
    from mama_structs.testing.node.fake_node import FakeNode as FakeNode
    from mama_structs.testing.node.fake_node import NodeRequest as NodeRequest
    from mama_structs.testing.node.faults import Delivery as Delivery
    from mama_structs.testing.node.faults import Fault as Fault
    from mama_structs.testing.node.faults import FaultAnswer as FaultAnswer
    from mama_structs.testing.node.faults import Faults as Faults
    from mama_structs.testing.node.world import Oddities as Oddities
    from mama_structs.testing.node.world import World as World
    from mama_structs.testing.plain_engine import PlainEngine as PlainEngine

_NAMES = {
    "plain_engine": "PlainEngine",
    "node.fake_node": "FakeNode NodeRequest",
    "fakes": "FakeClock FakeSource",
    "node.faults": "Delivery Fault FaultAnswer Faults",
    "node.world": "Oddities World",
}

if not TYPE_CHECKING:  # With __getattr__ in sight, type checkers would accept misspelt names.
    __all__, __getattr__, __dir__ = attach(__name__, _NAMES)
