"""Isolation of database roles by the policies of the guide, and migration of formerly shared rows."""

import json
import uuid
from pathlib import Path

import pytest
from memory_helpers import SMALL
from postgres_helpers import administer, in_database, schema_script, team, team_block

from mama_structs import Filter, Session, admin
from mama_structs.errors import StoreReadOnly
from mama_structs.refs.conversations.conversation_log import ENCODER, ConversationKey, decode_start_row
from mama_structs.session.backend import open_backend
from mama_structs.storage.sealed_rows import seal

READS = "Let a team read another namespace"
SHARED = "texts that both teams store"
TEXTS = "SELECT key FROM mama_structs.rows WHERE namespace = 'trade' AND key LIKE 'texts/%' ORDER BY key"
NAMESPACED = """
SELECT table_name AS name FROM information_schema.columns
WHERE table_schema = 'mama_structs' AND column_name = 'namespace'
"""
IS_SEEN = """
CREATE SCHEMA aside;
GRANT USAGE ON SCHEMA aside TO PUBLIC;
CREATE FUNCTION aside.is_seen(one mama_structs.rows) RETURNS bool LANGUAGE sql AS $$
    SELECT one.key NOT LIKE '%ref:plan%'
$$
"""
EARLIER = json.loads(Path(__file__).with_name("rows_of_561ec94.json").read_text("utf-8"))


def opened(url, namespace, conversation="talk", **options):
    return Session.open(url, embedder=SMALL, namespace=namespace, conversation=conversation, **options)


async def store_refs(url, namespace, **refs):
    async with opened(url, namespace) as session:
        for ref_id, text in refs.items():
            session.refs.put(ref_id, text)


async def refs_of(url, namespace, conversation="talk"):
    async with opened(url, namespace, conversation) as session:
        return {handle: session.refs.get(handle).text for handle in session.refs}


@pytest.fixture
def teams(own_database):
    """The URLs of two roles: the first may access only the namespace ``raids``, the second only ``trade``."""
    with team(own_database, "raids") as raids, team(own_database, "trade") as trade:
        yield raids, trade


async def delete_ref(url):
    async with opened(url, "raids") as session:
        session.refs.delete("ref:own")


async def delete_conversation(url):
    async with open_backend(url) as home:
        await home.delete("talk", namespace="raids")


async def expire_conversations(url):
    async with open_backend(url) as home:
        await home.expire("raids", (await home.conversations("raids"))[0].last_used_at.replace(year=2100))


async def forget(url):
    async with opened(url, "raids") as session:
        await session.memories.save_decision(
            "shields first", topic="x", reasoning="y", evidence=["ref:own", "ref:both"]
        )
        await session.memories.erase(where=Filter(topic="x"))


@pytest.mark.parametrize("delete", [delete_ref, delete_conversation, expire_conversations, forget])
async def test_role_keeps_its_texts_when_another_role_deletes(teams, own_database, delete):
    """Deleting, expiring and forgetting by one role deletes no text of another role, even if it is equal."""
    raids, trade = teams
    await store_refs(raids, "raids", own="of the raiders", both=SHARED)
    await store_refs(trade, "trade", plan="of the traders", both=SHARED)
    before = administer(own_database, TEXTS)
    await delete(raids)

    assert before == administer(own_database, TEXTS)
    assert {"ref:plan@1": "of the traders", "ref:both@1": SHARED} == await refs_of(trade, "trade")
    gone = administer(own_database, "SELECT count(*) AS n FROM mama_structs.rows WHERE key LIKE 'texts/%' "
                                    "AND namespace = 'raids'")  # fmt: skip
    assert gone[0]["n"] < 2, "its own text is deleted"


@pytest.mark.parametrize("rule", ["key NOT LIKE '%ref:plan%'", "aside.is_seen(rows)"])
async def test_reclaim_deletes_nothing_when_a_policy_hides_rows(own_database, rule):
    """A text is kept if a policy on the key or the whole row may hide the changes that refer to it."""
    administer(own_database, script=IS_SEEN)
    with team(own_database, "raids") as url:
        await store_refs(url, "raids", plan="needed", own="deleted")
        role = url.partition("://")[2].partition("@")[0]
        hide = f"CREATE POLICY hides ON mama_structs.rows AS RESTRICTIVE TO {role} USING ({rule})"
        administer(own_database, hide)
        async with opened(url, "raids", "other") as session:
            session.refs.put("x", "y")
            session.refs.delete("ref:x")
        administer(own_database, "DROP POLICY hides ON mama_structs.rows")

        assert {"ref:plan@1": "needed", "ref:own@1": "deleted"} == await refs_of(url, "raids")


async def test_reclaim_deletes_nothing_when_the_parent_of_a_fork_is_missing(own_database):
    """A fork uses texts that only rows of its parent refer to, so nothing is deleted while these are missing."""
    async with opened(own_database, "raids") as session:
        session.refs.put("plan", "inherited")
        async with session.fork("branch"):
            pass
    rows = "(key LIKE 'refs/%' OR key LIKE 'conversations/raids\\%.talk')"
    administer(own_database, f"CREATE TABLE aside AS SELECT * FROM mama_structs.rows WHERE {rows}")
    administer(own_database, f"DELETE FROM mama_structs.rows WHERE {rows}")
    async with opened(own_database, "raids", "other") as session:
        session.refs.put("x", "y")
        session.refs.delete("ref:x")
    administer(own_database, "INSERT INTO mama_structs.rows SELECT * FROM aside")

    assert {"ref:plan@1": "inherited"} == await refs_of(own_database, "raids", "branch")


@pytest.mark.parametrize("conversation", ["talk", None])
async def test_open_raises_when_the_role_may_not_write_the_namespace(teams, conversation):
    """The error names the namespace and the role, and mentions no other host."""
    raids, _ = teams
    role = raids.partition("://")[2].partition("@")[0]
    with pytest.raises(StoreReadOnly) as caught:
        await (await opened(raids, "trade", conversation)).close()

    assert ("trade", role) == (caught.value.namespace, caught.value.role)
    assert "'trade'" in str(caught.value)
    assert role in str(caught.value)


async def test_role_that_may_only_select_reads_and_cannot_write(own_database):
    """Without the right to insert, a session can read its namespace, and each write raises an error with the role."""
    with team(own_database, "raids") as url:
        role = url.partition("://")[2].partition("@")[0]
        await store_refs(url, "raids", plan="readable")
        administer(own_database, f"REVOKE INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA mama_structs FROM {role}")
        async with opened(url, "raids") as session:
            assert "readable" == session.refs.get("ref:plan").text
            with pytest.raises(StoreReadOnly) as caught:
                await session.memories.save_context("not here")

    assert ("raids", role) == (caught.value.namespace, caught.value.role)


async def test_rows_are_written_when_those_of_another_namespace_are_denied(own_database):
    """A namespace that the role may not write any more does not block rows of another session in the process."""
    written = "SELECT key FROM mama_structs.rows WHERE namespace = 'trade' AND key LIKE '%ref:late@1'"
    hide = "CREATE POLICY later ON mama_structs.rows AS RESTRICTIVE FOR INSERT WITH CHECK (namespace <> 'raids')"
    with team(own_database, "raids'' OR namespace = ''trade") as url:
        denied, allowed = await opened(url, "raids"), await opened(url, "trade")
        administer(own_database, hide)
        denied.refs.put("late", "denied")
        allowed.refs.put("late", "written")
        with pytest.raises(StoreReadOnly, match="'raids'"):
            await allowed.flush()

        assert 1 == len(administer(own_database, written))
        async with open_backend(url) as home:
            await home.expire("trade", (await home.conversations("trade"))[0].last_used_at)
        administer(own_database, "DROP POLICY later ON mama_structs.rows")
        await allowed.close()
        await denied.close()
    assert {"ref:late@1": "denied"} == await refs_of(own_database, "raids")


async def test_close_succeeds_when_a_role_that_may_only_select_has_recalled(own_database):
    """A recall stores nothing about the conversation if the role is read-only."""
    with team(own_database, "raids") as url:
        role = url.partition("://")[2].partition("@")[0]
        async with opened(url, "raids") as session:
            await session.memories.save_context("shields first")
        administer(own_database, f"REVOKE INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA mama_structs FROM {role}")
        async with opened(url, "raids") as session:
            assert "shields first" in str(await session.recall("shields first"))


async def test_reads_grant_of_the_guide_shows_memories_and_no_refs(own_database):
    """With the block for *reads* a role finds memories and evidence of another namespace, but cannot write there."""
    async with opened(own_database, "shared") as session:
        session.refs.put("secret", "a ref of the shared namespace")
        kept = await session.memories.save_decision(
            "use tokens", topic="auth", reasoning="stateless", evidence=["ref:secret"]
        )
    with team(own_database, "raids") as url:
        role = url.partition("://")[2].partition("@")[0]
        # Run both scripts again, as an administrator does after an update of the package.
        for script in (team_block(role, "raids", heading=READS), team_block(role, "raids").split("\n", 2)[2]) * 2:
            administer(own_database, script=script)
        administer(own_database, script=team_block(role, "raids", heading=READS))
        async with opened(url, "raids", read_namespaces=["shared"]) as session:
            await session.memories.save_context("our own note on tokens")
            hits = await session.memories.search("tokens")
            assert {"raids", "shared"} == {hit.memory.namespace for hit in hits}
            assert (await session.memories.get(kept.id)).evidence
        seen = administer(url, "SET app.across = 'on'", "SELECT DISTINCT namespace FROM mama_structs.rows")
        assert [] == [row for row in seen if row["namespace"] != "raids"]
        with pytest.raises(StoreReadOnly):
            await (await opened(url, "shared")).close()


async def test_assign_copies_texts_to_the_new_namespace(teams, own_database):
    """A moved conversation and the fork that remains are both complete for the role of their namespace."""
    raids, trade = teams
    await store_refs(raids, "raids", plan="moved words")
    async with opened(raids, "raids") as session, session.fork("branch") as fork:
        fork.refs.put("more", "of the branch")
    async with open_backend(own_database) as home:
        assert 1 == await home.assign("talk", origin="raids", namespace="trade")

    assert {"ref:plan@1": "moved words"} == await refs_of(trade, "trade")
    async with open_backend(trade) as home:
        await home.delete("talk", namespace="trade")
    assert {"ref:plan@1": "moved words", "ref:more@1": "of the branch"} == await refs_of(raids, "raids", "branch")


async def test_copy_to_a_server_makes_forks_independent_of_other_namespaces(own_database, tmp_path):
    """A directory may contain a fork whose parent was moved to another namespace by an earlier version."""
    async with opened(tmp_path / "a", "raids") as session:
        session.refs.put("plan", "inherited")
        async with session.fork("branch") as fork:
            fork.refs.put("more", "of the branch")
    source, target = ConversationKey("raids", "talk"), ConversationKey("trade", "talk")

    def move(rows):
        for name, row in rows.items(source.changes):
            rows.delete(name)
            rows.put(name.replace(source.changes, target.changes), row)
        for key, own, parent in ((source, target, None), (ConversationKey("raids", "branch"),) * 2 + (target,)):
            start = decode_start_row(rows.get(key.start))
            rows.delete(key.start)
            rows.put(own.start, ENCODER.encode(start.with_key(own, parent)))

    async with open_backend(tmp_path / "a") as home:
        await home.storage.transact(move)
    expected = {"ref:plan@1": "inherited", "ref:more@1": "of the branch"}
    assert expected == await refs_of(tmp_path / "a", "raids", "branch")
    await admin.copy(tmp_path / "a", own_database)

    with team(own_database, "raids") as raids:
        assert expected == await refs_of(raids, "raids", "branch")


# Migration.


@pytest.fixture
def earlier_database(empty_database):
    """The URL of a database in the state that commit 561ec94 produced."""
    script = [schema_script(4)]
    for namespace, key, value in EARLIER["rows"]:
        script.append(f"INSERT INTO rows VALUES ('{namespace}', '{key}', decode('{value}', 'base64'))")
    administer(empty_database, script=";".join(script))
    return empty_database


async def held(url):
    """Return the texts of all conversations of a database."""
    found = []
    for namespace in await admin.list_namespaces(url):
        known = await admin.list_conversations(url, namespace=namespace)
        found += [[namespace, one.name, await refs_of(url, namespace, one.name)] for one in known]
    return sorted(found, key=str)


async def test_migration_gives_every_shared_row_a_namespace(earlier_database):
    """Rows of an earlier version are readable, and no row remains in the empty namespace."""
    assert EARLIER["held"] == await held(earlier_database)
    for table in administer(earlier_database, NAMESPACED):
        left = administer(
            earlier_database, f"SELECT count(*) AS n FROM mama_structs.{table['name']} WHERE namespace = ''"
        )
        assert 0 == left[0]["n"]
    with pytest.raises(Exception, match="have_namespace"):
        administer(earlier_database, "INSERT INTO mama_structs.rows VALUES ('', 'texts/a', '')")
    async with opened(earlier_database, "raids") as session:
        assert [] == [*(await admin.check(session)).issues]


async def test_migrated_namespaces_do_not_depend_on_each_other(earlier_database):
    """Each role keeps its rows, even a fork whose parent was moved to another namespace and deleted there."""
    expected = [one for one in EARLIER["held"] if one[0] == "raids"]
    await admin.list_namespaces(earlier_database)
    with team(earlier_database, "raids") as raids, team(earlier_database, "trade") as trade:
        async with open_backend(trade) as home:
            await home.delete("moved", namespace="trade")

        assert expected == await held(raids)
        assert [] == await held(trade)


async def test_migration_moves_texts_of_unreadable_rows_to_a_table_of_the_owner(earlier_database):
    """A text that only an unreadable row may refer to is kept, and other roles cannot read it."""
    unknown = seal("texts/unknown", b"named by nobody who can be read")
    damage = "UPDATE mama_structs.rows SET value = 'x' WHERE key LIKE 'refs/talk/0000000002/%'"
    administer(
        earlier_database,
        damage,
        f"INSERT INTO mama_structs.rows VALUES ('', 'texts/unknown', decode('{unknown.hex()}', 'hex'))",
    )
    async with opened(earlier_database, "default") as session:
        assert "shared words" == session.refs.get("ref:plan").text
    kept = administer(earlier_database, "SELECT key FROM mama_structs.unassigned_rows ORDER BY key")
    assert "texts/unknown" in {row["key"] for row in kept}
    with team(earlier_database, "raids") as url:
        assert [] == administer(url, "SET app.across = 'on'", "SELECT * FROM mama_structs.unassigned_rows")


async def test_migration_keeps_the_text_of_a_row_with_a_wrong_checksum(earlier_database):
    """The hash in a row with a wrong checksum still assigns its text to the namespace."""
    digest = "SELECT substring(convert_from(value, 'SQL_ASCII') from '[0-9a-f]{64}') AS hash FROM mama_structs.rows "
    where = "WHERE key LIKE 'refs/talk/0000000002/%'"
    named = administer(
        earlier_database, digest.replace("convert_from(value, 'SQL_ASCII')", "encode(value, 'escape')") + where
    )
    administer(earlier_database, f"UPDATE mama_structs.rows SET value = set_byte(value, 6, 1) {where}")
    await admin.list_namespaces(earlier_database)

    sql = f"SELECT namespace FROM mama_structs.rows WHERE key = 'texts/{named[0]['hash']}'"
    assert ["default"] == [row["namespace"] for row in administer(earlier_database, sql)]


async def test_migration_succeeds_when_the_owner_may_not_create_schemas(earlier_database):
    """The owner of the schema and its tables needs no privilege on the database."""
    role = f"owner_{uuid.uuid4().hex[:12]}"
    tables = administer(earlier_database, "SELECT tablename AS name FROM pg_tables WHERE schemaname = 'mama_structs'")
    administer(earlier_database, f"CREATE ROLE {role} LOGIN", f"ALTER SCHEMA mama_structs OWNER TO {role}",
               *[f"ALTER TABLE mama_structs.{table['name']} OWNER TO {role}" for table in tables])  # fmt: skip
    expected = {"a", "branch", "left behind"}
    try:
        url = in_database(earlier_database, Path(earlier_database).name, user=role)
        async with open_backend(url) as home:
            found = {one.name for one in await home.conversations("raids")}
    finally:
        administer(earlier_database, f"REASSIGN OWNED BY {role} TO postgres", f"DROP ROLE {role}")

    assert expected <= found


async def test_open_raises_when_the_role_does_not_own_an_earlier_database(earlier_database):
    """Only the owner of the tables can migrate them, and the error for other roles says so."""
    role = f"reader_{uuid.uuid4().hex[:12]}"
    administer(earlier_database, f"CREATE ROLE {role} LOGIN", f"GRANT USAGE ON SCHEMA mama_structs TO {role}",
               f"GRANT SELECT ON ALL TABLES IN SCHEMA mama_structs TO {role}")  # fmt: skip
    try:
        with pytest.raises(StoreReadOnly, match="does not own"):
            await (await opened(in_database(earlier_database, Path(earlier_database).name, user=role), "raids")).close()
    finally:
        administer(earlier_database, f"DROP OWNED BY {role}", f"DROP ROLE {role}")
