"""Assignment of texts to namespaces when formerly shared rows are migrated."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from mama_structs.refs.conversations.conversation_log import (
    CHANGE_PREFIX,
    START_PREFIX,
    ConversationKey,
    ConversationLog,
    find_text_keys,
)
from mama_structs.refs.store.ref_store import RefStore
from mama_structs.storage.postgres import shared_rows
from mama_structs.storage.sealed_rows import NewValue, PreparedChanges, seal

STEPS = st.tuples(st.sampled_from(["put", "put", "delete", "fork"]), st.integers(0, 3), st.integers(0, 5))
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Capture:
    """A store that records the written rows by key."""

    def __init__(self):
        self.rows = {}

    def enqueue(self, rows, *, namespace):
        assert "raids" == namespace
        changes = rows.changes if isinstance(rows, PreparedChanges) else dict(rows)
        self.rows |= {key: change.value if isinstance(change, NewValue) else change for key, change in changes.items()}


def stored(rows, prefix):
    """Return the rows below a prefix in the form in which the server returns them."""
    return [
        {"namespace": "raids", "key": key, "value": seal(key, row)}
        for key, row in rows.items()
        if key.startswith(prefix)
    ]


@given(steps=st.lists(STEPS, max_size=25))
def test_needed_texts_equal_reachable_texts(steps):
    """The migration copies exactly the texts that the garbage collection finds reachable, forks included."""
    capture = Capture()
    log = ConversationLog(capture, ConversationKey("raids", "0"))
    stores = [(RefStore(), log)]
    stores[0][0]._keep(log, directory=None)
    for what, who, value in steps:
        refs, log = stores[who % len(stores)]
        if what == "put":
            refs.put("a", f"text {value}")
        elif what == "delete" and (handles := list(refs)):
            refs.delete(handles[value % len(handles)])
        elif what == "fork" and len(stores) < 4:
            fork, its = refs.fork(), log.fork(str(len(stores)), NOW)
            fork._keep(its, directory=None)
            stores.append((fork, its))
    rows = {key: row for key, row in capture.rows.items() if key.startswith((START_PREFIX, CHANGE_PREFIX))}
    known, all_readable = shared_rows._read_conversations(stored(rows, START_PREFIX), stored(rows, CHANGE_PREFIX))
    needed = shared_rows._find_needed_texts(known).get("raids", set())

    assert all_readable
    assert {key.removeprefix("texts/") for key in find_text_keys(rows)} == needed
