"""Batched wake-ups of event loops, and complete replacement of rows."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import weakref
from concurrent.futures import Future

from mama_structs.storage.sqlite_store import SqliteStorage, await_job


async def test_outcome_wakes_all_waiters_with_one_call(monkeypatch):
    """Jobs that finish before the loop runs again cause one wake-up, and cancelled waiters are skipped."""
    loop, calls = asyncio.get_running_loop(), []
    own = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *args: (calls.append(1), own(*args))[1])
    jobs = [Future() for _ in range(64)]
    waiting = [asyncio.ensure_future(await_job(job)) for job in jobs]
    await asyncio.sleep(0)
    waiting[3].cancel()
    for number, job in enumerate(jobs):
        job.set_result(number)
    found = await asyncio.gather(*waiting, return_exceptions=True)

    assert 1 == len(calls)
    assert isinstance(found.pop(3), asyncio.CancelledError)
    assert [number for number in range(64) if number != 3] == found
    assert "again" == await await_job(done("again"))


def done(result):
    job = Future()
    job.set_result(result)
    return job


def test_closed_loop_with_waiters_is_garbage_collected():
    """A job that finishes after its loop was closed raises nothing and keeps no reference to the loop."""
    loop = asyncio.new_event_loop()
    jobs = [Future(), Future()]
    tasks = [loop.create_task(await_job(job)) for job in jobs]
    loop.run_until_complete(asyncio.sleep(0))
    jobs[0].set_result(1)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()
    jobs[1].set_result(2)
    gone = weakref.ref(loop)
    del loop, tasks, task, jobs
    gc.collect()

    assert gone() is None


async def test_put_replaces_all_columns_of_existing_row(tmp_path):
    """A new value replaces a row of this package or another program, including all metadata columns."""
    storage = SqliteStorage.open(tmp_path)
    await storage.transact(lambda rows: (rows.put("a", b"1"), rows.put("b", b"2")))
    await storage.close()
    planted = sqlite3.connect(tmp_path / "cache.db")
    planted.execute("UPDATE Cache SET mode = 4, filename = 'x', size = 5, tag = 't', expire_time = 1 WHERE key = 'a'")
    planted.commit()
    planted.close()
    storage = SqliteStorage.open(tmp_path)
    await storage.transact(lambda rows: (rows.put("a", b"3"), rows.put("b", b"4")))
    found = await storage.read(["a", "b"])
    await storage.close()
    looked = sqlite3.connect(tmp_path / "cache.db")
    rows = looked.execute("SELECT key, mode, filename, size, tag, expire_time, access_count FROM Cache").fetchall()
    settings = dict(looked.execute("SELECT key, value FROM Settings WHERE key IN ('count', 'size')"))
    looked.close()

    assert {"a": b"3", "b": b"4"} == found
    assert [("a", 1, None, 0, None, None, 0), ("b", 1, None, 0, None, None, 0)] == sorted(rows)
    assert {"count": 2, "size": 0} == settings
