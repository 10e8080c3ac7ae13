"""Stored conversations of earlier versions remain readable."""

import json
from pathlib import Path

from mama_structs import DescriptorSettings
from mama_structs.refs.conversations.conversation_log import ConversationKey, load
from mama_structs.storage.sqlite_store import SqliteStorage

# Stored rows of a conversation, its fork and its texts, written by commit 9572899.
ROWS = json.loads((Path(__file__).parents[2] / "data" / "conversation.json").read_text())


async def test_load_reads_conversation_of_earlier_version(tmp_path):
    """Includes attributes of refs, descriptors, deletions, and the view of a fork."""
    storage = SqliteStorage.open(tmp_path / "store")
    try:
        storage.enqueue([(key, text.encode()) for key, text in ROWS.items()])
        await storage.flush()
        main, _ = await load(storage, ConversationKey("default", "main"), DescriptorSettings())
        child, _ = await load(storage, ConversationKey("default", "child"), DescriptorSettings())
    finally:
        await storage.close()
    first, second, third, fourth = main.iter_entries()

    tag = {"type": "code", "lang": "python"}
    assert ("ref:a@1", "code", tag, "x = 1") == (first.versioned_handle, first.category, first.attributes, first.text)
    assert ("ref:a@2", "two", 4_000) == (second.versioned_handle, second.text, second.page_size)
    assert ("ref:b@1", {"title": "ü"}, False) == (third.versioned_handle, third.attributes, third.is_complete)
    assert ("fd:1", "host", "long", 2026) == (
        fourth.versioned_handle,
        fourth.source,
        fourth.text,
        fourth.created_at.year,
    )
    assert 3 == main.next_fd
    assert ["ref:a@2", "ref:b@1", "fd:1", "ref:c@1"] == [entry.versioned_handle for entry in child.iter_entries()]
