"""Leases of names on a server: exclusive, renewed and lost."""

import pytest
from postgres_helpers import administer, wait_until

from mama_structs.errors import StoreBusy
from mama_structs.storage.postgres.leases import Leases
from mama_structs.storage.postgres.pool import PostgresPool
from mama_structs.storage.postgres.store import PostgresStorage

EXPIRE = "UPDATE mama_structs.leases SET expires = clock_timestamp() - interval '1 s'"


def leases(url, *, seconds=600):
    """Return the lease manager of one host."""
    return Leases(PostgresPool.open(url), seconds=seconds)


def storage(url, held):
    """Return the row storage of one host. The first part of a key is the name of its lease."""
    return PostgresStorage(
        PostgresPool.open(url), namespace="default", lease_name_of=lambda key: key.partition("/")[0], leases=held
    )


@pytest.fixture
def hosts(database):
    """Two hosts that do not renew their leases automatically."""
    two = [leases(database), leases(database)]
    yield two
    for one in two:
        one.close()


def test_claim_is_exclusive_until_release(hosts):
    """A claimed name is busy for every host, including the holder."""
    here, there = hosts
    here.claim("a", "default")
    for one in hosts:
        with pytest.raises(StoreBusy):
            one.claim("a", "default")
    there.claim("b", "default")

    assert {"a", "b"} == here.find_claimed_names() == there.find_claimed_names()
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

    assert set() == here.lost_names
    assert {"a", "other"} == here.find_claimed_names()


def test_close_releases_all_names(database, hosts):
    """The names of a closed host are free immediately."""
    other = leases(database)
    other.claim("a", "default")
    other.claim("b", "default")
    other.close()
    other.close()

    hosts[0].claim("a", "default")
    assert {"a"} == hosts[0].find_claimed_names()


def test_expired_lease_can_be_claimed_by_another_host(database, hosts):
    """A lease that is not renewed expires by the server's clock, and its former holder records it as lost."""
    here, there = hosts
    here.claim("a", "default")
    administer(database, EXPIRE)

    assert set() == there.find_claimed_names()
    there.claim("a", "default")
    here.renew()
    assert {"a"} == here.lost_names
    assert set() == there.lost_names


def test_expired_lease_is_renewed_when_no_host_claimed_it(database, hosts):
    """A host that was disconnected keeps its name unless another host has claimed it."""
    here, there = hosts
    here.claim("a", "default")
    administer(database, EXPIRE)
    here.renew()

    assert set() == here.lost_names
    with pytest.raises(StoreBusy):
        there.claim("a", "default")


def test_leases_are_renewed_automatically(database):
    """A running host keeps its names."""
    held = leases(database, seconds=0.3)
    held.claim("a", "default")
    administer(database, EXPIRE)
    wait_until(held.find_claimed_names)

    assert set() == held.lost_names
    held.close()


async def test_rows_under_lost_lease_are_rejected(database, hosts):
    """Rows under other names are stored, and the loss is reported until the name is claimed again."""
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


async def test_claim_later_claims_name_with_first_write(database, hosts):
    """The name is claimed with its first row, and can be lost from then on."""
    here, there = hosts
    store = storage(database, here)
    here.claim_later("a", "default")
    assert frozenset() == here.find_claimed_names()

    store.enqueue([("a/1", b"1")])
    await store.flush()
    assert {"a"} == there.find_claimed_names()
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
    assert {"b"} == there.find_claimed_names()
    await store.close()
