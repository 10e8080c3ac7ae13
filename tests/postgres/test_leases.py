"""Who has a name on a server: one at a time, for as long as it renews."""

import pytest
from postgres_helpers import administer, wait_until

from mama_structs.errors import StoreBusy
from mama_structs.storage.postgres.leases import Leases
from mama_structs.storage.postgres.pool import Server
from mama_structs.storage.postgres.store import ServerStorage

EXPIRE = "UPDATE mama_structs.leases SET expires = clock_timestamp() - interval '1 s'"


def leases(url, *, seconds=600):
    """Those of one host."""
    return Leases(Server.open(url), seconds=seconds)


def storage(url, held):
    """A store of one host, whose rows' names are the first part of their keys."""
    return ServerStorage(Server.open(url), namespace="default", part_of=lambda key: key.partition("/")[0], leases=held)


@pytest.fixture
def hosts(database):
    """Two hosts, which never renew by themselves."""
    two = [leases(database), leases(database)]
    yield two
    for one in two:
        one.close()


def test_a_name_is_had_once(hosts):
    """What one has nobody else gets, itself included, until it lets go."""
    here, there = hosts
    here.claim("a", "default")
    for one in hosts:
        with pytest.raises(StoreBusy):
            one.claim("a", "default")
    there.claim("b", "default")

    assert {"a", "b"} == here.claimed() == there.claimed()
    here.release("a").result()
    assert here.release("a") is None
    there.claim("a", "default")
    there.release("a")
    there.claim("a", "default")


@pytest.mark.parametrize("is_released", [False, True])
def test_renewal_during_a_claim_does_not_lose_the_name(hosts, monkeypatch, is_released):
    """A renewal that overlaps a first claim, or a release and a further claim, does not report the name as lost."""
    here, _ = hosts
    here.claim("other", "default")
    claim, running = here._claim, here._server.run

    def renew_before(name):
        here.renew()
        return claim(name)

    def claim_after(plan, **options):
        found = running(plan, **options)
        found.result()
        here._server.run = running
        here.release("a").result()
        here.claim("a", "default")
        return running(lambda _: {"other"}, **options)

    if is_released:
        here.claim("a", "default")
        monkeypatch.setattr(here._server, "run", claim_after)
        here.renew()
    else:
        monkeypatch.setattr(here, "_claim", renew_before)
        here.claim("a", "default")

    assert set() == here.lost
    assert {"a", "other"} == here.claimed()


def test_who_closes_lets_go_of_everything(database, hosts):
    """The names of a host that is closed are free at once."""
    other = leases(database)
    other.claim("a", "default")
    other.claim("b", "default")
    other.close()
    other.close()

    hosts[0].claim("a", "default")
    assert {"a"} == hosts[0].claimed()


def test_a_dead_hosts_name_is_free_after_a_time(database, hosts):
    """What is not renewed ends by the server's clock, and is nobody's."""
    here, there = hosts
    here.claim("a", "default")
    administer(database, EXPIRE)

    assert set() == there.claimed()
    there.claim("a", "default")
    here.renew()
    assert {"a"} == here.lost
    assert set() == there.lost


def test_a_lease_that_nobody_took_is_renewed_however_late(database, hosts):
    """A host that was away for long goes on where nobody came in between."""
    here, there = hosts
    here.claim("a", "default")
    administer(database, EXPIRE)
    here.renew()

    assert set() == here.lost
    with pytest.raises(StoreBusy):
        there.claim("a", "default")


def test_leases_renew_themselves(database):
    """As long as a host lives its names are its own."""
    held = leases(database, seconds=0.3)
    held.claim("a", "default")
    administer(database, EXPIRE)
    wait_until(held.claimed)

    assert set() == held.lost
    held.close()


async def test_nothing_is_written_under_a_lease_that_is_lost(database, hosts):
    """Rows of who was taken over are refused, those of its other names are stored, and it is told once and for all."""
    here, there = hosts
    store = storage(database, here)
    for name in ("a", "b"):
        here.claim(name, "default")
    store.enqueue([("a/1", b"before"), ("b/1", b"before")])
    await store.flush()
    administer(database, EXPIRE)
    there.claim("a", "default")
    store.enqueue([("a/1", b"late"), ("b/1", b"late")])
    with pytest.raises(StoreBusy, match="taken a conversation over"):
        await store.flush()
    with pytest.raises(StoreBusy, match="taken a conversation over"):
        store.enqueue([("a/2", b"later")])
    store.enqueue([("b/2", b"later")])
    await store.flush()

    assert {"a/1": b"before", "b/1": b"late", "b/2": b"later"} == await store.read(["a/1", "a/2", "b/1", "b/2"])
    here.release("a")
    with pytest.raises(StoreBusy, match="uses this part"):
        here.claim("a", "default")
    there.release("a").result()
    here.claim("a", "default")
    store.enqueue([("a/2", b"again")])
    await store.flush()
    assert {"a/2": b"again"} == await store.read(["a/2"])
    await store.close()


async def test_a_name_that_nobody_knows_is_claimed_with_what_is_written_first(database, hosts):
    """Nothing is asked when it is taken; with its first row it is claimed, and from then on it can be lost."""
    here, there = hosts
    store = storage(database, here)
    here.claim_later("a", "default")
    assert frozenset() == here.claimed()

    store.enqueue([("a/1", b"1")])
    await store.flush()
    assert {"a"} == there.claimed()
    with pytest.raises(StoreBusy):
        there.claim("a", "default")
    administer(database, EXPIRE)
    there.claim("a", "default")
    there.release("a").result()
    store.enqueue([("a/2", b"2")])
    with pytest.raises(StoreBusy, match="taken a conversation over"):
        await store.flush()
    here.claim_later("b", "default")
    here.renew()

    assert {"a/1": b"1"} == await store.read(["a/1", "a/2"])
    assert {"b"} == there.claimed()
    await store.close()
