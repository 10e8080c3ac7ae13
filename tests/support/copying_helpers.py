"""A store with every kind of content, for tests that copy it."""

from memory_helpers import SMALL

from mama_structs import Session, admin
from mama_structs.memory.types.record import is_index_note

ADA = "user:ada"
TEXT = "the whole log " * 20


def opened(place, namespace="default", conversation="talk"):
    return Session.open(place, embedder=SMALL, namespace=namespace, conversation=conversation)


async def filled(place):
    """Fill a store with versions, outcomes, links, evidence, duplicates, records, refs and forks."""
    async with opened(place) as session:
        store = session.memories
        await session.observe(f'<ref id="log">{TEXT}</ref>')
        jwt = await store.save_decision("Use JWT for logins", topic="auth", reasoning="stateless", evidence=["ref:log"])
        redis = await store.supersede(jwt.id, "Keep logins in Redis", reasoning="can be ended", evidence=["ref:log"])
        await store.set_outcome(redis.id, "FAILED", reason="it was too slow")
        tea = await store.save_insight("tea is served at four")
        await store.save_insight("tea is served at four", on_duplicate="merge")
        await store.update(tea.id, "tea is served at five")
        # Include a link whose target was saved after its source.
        await store.link(jwt.id, tea.id, "reminds_of", reason="both are hot")
        await store.save_checkpoint("half way", next_steps=["the rest"])
        gone = await store.save_context("nobody is to know this")
        await store.erase(gone.id)
        await store._shared.write(lambda writer: writer.set_note("own/note", "kept beside"))
        await session.records.put(("users", "ada"), "food", "kimchi", text="ada eats kimchi", keep_history=True)
        await session.records.put(("users", "ada"), "food", "pizza", text="ada eats pizza", keep_history=True)
        await session.records.append(("threads", "1"), range(70))
        await session.observe('<ref id="plan">first the shield</ref> and <ref id="gone">deleted soon</ref>')
        session.refs.delete("ref:gone")
        async with session.fork("branch") as fork:
            await fork.observe('<ref id="plan">then the ore</ref>')
        await session.recall("what of the logins?")
    async with opened(place, ADA) as session:
        await session.memories.save_context("ada likes short answers")
        await session.observe('<ref id="own">of ada</ref>')


async def exported(place):
    """Return the export of each namespace, and the content of each conversation."""
    found = {}
    for name in await admin.list_namespaces(place):
        file = place.with_suffix(".jsonl")
        async with opened(place, name, f"to look {name}") as session:
            await admin.export_jsonl(session.memories, file)
            notes = await session.memories._shared.read(lambda reader: reader.notes())
        # Each store derives the index of records itself.
        found[name] = file.read_bytes(), {one: text for one, text in notes.items() if not is_index_note(one)}
        for info in await admin.list_conversations(place, namespace=name):
            async with opened(place, name, info.name) as session:
                told = session._conversation.recall_log._rows
                refs = [(one.versioned_handle, one.text, one.attributes) for one in session.refs.list()]
                found[name, info.name] = info.handle_count, info.bytes, info.created_at, refs, told
    return found
