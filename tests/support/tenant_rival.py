"""
A second role on a test's database, which deletes, expires and erases in its own namespace while the test runs.

`start` passes a database to the worker process. `stop` takes it back, and fails if the role lost one of its refs.
The process reads database URLs, one per line, and works on one until an empty line, which it answers with ``ok``.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime

NAMESPACE = "rivals"
# Refs that must remain readable in every round. The tests store equal texts in their own namespaces.
KEPT = {"plan": "shields first", "a": "1", "b": "x"}
PAUSE_SECONDS = 0.1
_process: list[subprocess.Popen[str]] = []


def start(url: str) -> None:
    """Start the work of the second role on a database. It continues until `stop`."""
    if not _process:
        command = [sys.executable, __file__]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment.pop("MAMA_STRUCTS_TEST_ENGINE", None)
        _process.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        )
        # The process ends when its input ends, so no test needs to wait for it.
    _send(url)


def stop() -> None:
    """End the work after the current round, but after at least one round. Raise if the role lost a ref."""
    _send("")
    answer = _process[0].stdout.readline() if _process[0].stdout is not None else ""
    if answer != "ok\n":
        _process.pop().kill()
        raise AssertionError(f"the second role lost refs, or could not delete: {answer or 'see its traceback'}")


def _send(line: str) -> None:
    pipe = _process[0].stdin
    assert pipe is not None
    pipe.write(f"{line}\n")
    pipe.flush()


async def one_round(url: str, number: int) -> None:
    """Delete, expire and erase once, and check that the remaining refs can be read."""
    from mama_structs import Filter, HashEmbedder, Session  # noqa: PLC0415 - not needed in the process of the tests
    from mama_structs.session.backend import open_backend  # noqa: PLC0415 - as above

    def opened(conversation: str) -> Session:
        return Session.open(url, embedder=HashEmbedder(), namespace=NAMESPACE, conversation=conversation)

    async with opened("kept") as session:
        for ref_id, text in KEPT.items():
            session.refs.put(ref_id, text)
        own = session.refs.put("own", f"deleted in round {number}")
        session.refs.delete(own.versioned_handle)
    async with opened("expired") as session:
        session.refs.put("a", f"expired in round {number}")
        session.refs.put("evidence", f"forgotten in round {number}")
        await session.memories.save_decision(f"choice {number}", topic="x", reasoning="y", evidence=["ref:evidence"])
        erased = await session.memories.erase(where=Filter(topic="x"))
        assert erased.memories
        assert erased.refs
    async with open_backend(url) as home:
        assert await home.expire(NAMESPACE, datetime.now(UTC).replace(year=2100))
    async with opened("kept") as session:
        for ref_id, text in KEPT.items():
            session.refs.put(ref_id, text)
    async with opened("kept") as session:
        assert KEPT == {ref_id: session.refs.get(f"ref:{ref_id}").text for ref_id in KEPT}


def main() -> None:
    """Work on the database URLs from the input one after the other, until the input ends."""
    for line in iter(sys.stdin.readline, ""):
        if line == "\n":
            continue
        is_over = threading.Event()
        threading.Thread(target=lambda over=is_over: (sys.stdin.readline(), over.set()), daemon=True).start()
        number = 0
        while number == 0 or not is_over.wait(PAUSE_SECONDS):
            asyncio.run(one_round(line.strip(), number))
            number += 1
        print("ok", flush=True)  # noqa: T201 - the answer to the parent process


if __name__ == "__main__":
    main()
