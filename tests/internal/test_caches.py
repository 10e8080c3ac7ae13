"""The reference-counting registry."""

import threading

import pytest

from mama_structs._internal.caches import RefCountedRegistry


def test_join_creates_once_and_last_leave_returns_value():
    registry, made = RefCountedRegistry(), []

    def make():
        made.append(object())
        return made[-1]

    assert registry.acquire("a", make) is registry.acquire("a", make)
    assert registry.acquire("b", make) is made[1]
    assert (2, 1, 0) == tuple(map(registry.count_users, "abc"))
    assert [None, made[0]] == [registry.release("a"), registry.release("a")]
    assert registry.acquire("a", make) is made[2]


def test_failed_creation_is_not_counted():
    """The next user tries again."""
    registry = RefCountedRegistry()

    with pytest.raises(ZeroDivisionError):
        registry.acquire("a", lambda: 1 / 0)

    assert 0 == registry.count_users("a")
    assert 1 == registry.acquire("a", lambda: 1)


def test_concurrent_join_waits_and_shares():
    """A join of another key does not wait."""
    registry, begun, go_on, found = RefCountedRegistry(), threading.Event(), threading.Event(), []

    def slow():
        begun.set()
        go_on.wait(600)
        return object()

    threads = [threading.Thread(target=lambda: found.append(registry.acquire("a", slow))) for _ in range(2)]
    for thread in threads:
        thread.start()
    begun.wait(600)

    assert "other" == registry.acquire("b", lambda: "other")

    go_on.set()
    for thread in threads:
        thread.join()

    assert found[0] is found[1]
    assert 2 == registry.count_users("a")
