import pytest

from mama_structs.errors import InvalidArgument
from mama_structs.testing import FakeClock


def test_fake_clock_advances_only_manually():
    clock = FakeClock(start=5.0)
    clock.advance(2.5)

    assert 7.5 == clock.now() == clock.now()
    assert 0.0 == FakeClock().now()


def test_fake_clock_rejects_negative_advance():
    with pytest.raises(InvalidArgument, match="seconds"):
        FakeClock().advance(-1)
