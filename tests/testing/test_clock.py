import pytest

from mama_structs.errors import InvalidArgument
from mama_structs.testing import FakeClock


def test_a_fake_clock_moves_only_when_told():
    """The clock shows its start and what was added."""
    clock = FakeClock(start=5.0)
    clock.advance(2.5)

    assert 7.5 == clock.now() == clock.now()
    assert 0.0 == FakeClock().now()


def test_a_fake_clock_never_goes_back():
    """Monotonic time cannot be taken back."""
    with pytest.raises(InvalidArgument, match="seconds"):
        FakeClock().advance(-1)
