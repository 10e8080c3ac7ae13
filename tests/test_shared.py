"""Reference counts: what several use under one key."""

import threading

import pytest

from mama_structs._internal.refcount import Registry


def test_the_first_makes_and_the_last_leaves():
    """One thing for each key, and only the last user is told to close it."""
    registry, made = Registry(), []

    def make():
        made.append(object())
        return made[-1]

    assert registry.join("a", make) is registry.join("a", make)
    assert registry.join("b", make) is made[1]
    assert (2, 1, 0) == tuple(map(registry.users, "abc"))
    assert [None, made[0]] == [registry.leave("a"), registry.leave("a")]
    assert registry.join("a", make) is made[2]


def test_what_cannot_be_made_is_used_by_nobody():
    """A failure is the caller's, and the next one tries anew."""
    registry = Registry()

    with pytest.raises(ZeroDivisionError):
        registry.join("a", lambda: 1 / 0)

    assert 0 == registry.users("a")
    assert 1 == registry.join("a", lambda: 1)


def test_who_comes_meanwhile_waits_and_shares():
    """While one thread makes it, another one of the same key waits, and one of another key does not."""
    registry, begun, go_on, found = Registry(), threading.Event(), threading.Event(), []

    def slow():
        begun.set()
        go_on.wait(600)
        return object()

    threads = [threading.Thread(target=lambda: found.append(registry.join("a", slow))) for _ in range(2)]
    for thread in threads:
        thread.start()
    begun.wait(600)

    assert "other" == registry.join("b", lambda: "other")

    go_on.set()
    for thread in threads:
        thread.join()

    assert found[0] is found[1]
    assert 2 == registry.users("a")
