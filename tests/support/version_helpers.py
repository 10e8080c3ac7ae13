"""The writing calls of a session, for tests that upgrade the store while the session is open."""


async def fill(session):
    """Store one object of each kind, and return the ids of two memories and of their link."""
    first = await session.memories.save_decision("Use JWT for logins", topic="auth", reasoning="stateless")
    second = await session.memories.save_insight("raids doubled")
    link = await session.memories.link(first.id, second.id, "refines")
    await session.records.put(("raid",), "plan", {"step": 1}, text="shields first")
    await session.observe('<ref id="plan">shields, then fleets</ref>')
    await session.flush()
    return first.id, second.id, link.id


async def _add_ref(session, *_):
    session.refs.add("written behind")
    await session.flush()


async def _delete_ref(session, *_):
    session.refs.delete("ref:plan")
    await session.flush()


# Write operations by name. Each is a function of the session and the result of `fill`.
# Refs are last, because their rows stay pending until the next write.
WRITES = {
    "save_decision": lambda session, *_: session.memories.save_decision(
        "Use sessions", topic="auth", reasoning="can be ended"
    ),
    "save_many": lambda session, *_: session.memories.save_many(
        [{"type": "insight", "content": content} for content in ("one", "two")]
    ),
    "supersede": lambda session, first, *_: session.memories.supersede(first, "Use sessions", reasoning="can be ended"),
    "set_outcome": lambda session, first, *_: session.memories.set_outcome(first, "SUCCESS"),
    "update": lambda session, first, *_: session.memories.update(first, "Use PASETO for logins"),
    "link": lambda session, first, second, _: session.memories.link(second, first, "depends on"),
    "unlink": lambda session, _first, _second, link: session.memories.unlink(link),
    "delete": lambda session, first, *_: session.memories.delete(first),
    "erase": lambda session, first, *_: session.memories.erase(first),
    "records.put": lambda session, *_: session.records.put(("raid",), "plan", {"step": 2}),
    "records.put, new": lambda session, *_: session.records.put(("raid",), "new", {"step": 2}, text="fleets"),
    "records.append": lambda session, *_: session.records.append(("log",), [{"at": 1}]),
    "records.delete": lambda session, *_: session.records.delete(("raid",), "plan"),
    "observe": lambda session, *_: session.observe('<ref id="plan">fleets first</ref>'),
    "refs.add": _add_ref,
    "refs.delete": _delete_ref,
}


async def accepted_writes(session, known, error, match):
    """Return the names of the calls that did not raise *error* with a message that contains *match*."""
    accepted = []
    for name, call in WRITES.items():
        try:
            await call(session, *known)
        except error as raised:
            if match in str(raised):
                continue
            raise
        accepted.append(name)
    return accepted
