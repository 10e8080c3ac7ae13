"""The overview: figures, health, and the memories that wait for a person."""

import numpy as np
import pytest
from ui_helpers import HOSTILE

from mama_structs import HashEmbedder, Session
from mama_structs.ui.statistics import count_by_period


async def test_overview_counts_and_links(session, browser):
    """Counts are links to the search with their condition; conflicts, duplicates and hostile texts are shown safely."""
    memories = session.memories
    failed = await memories.save_decision("Use JWT", topic=HOSTILE, reasoning="r")
    await memories.set_outcome(failed, "FAILED", reason="bad")
    await memories.set_outcome(
        await memories.save_decision("Use XML", topic="x", reasoning="r"), "FAILED", reason="bad"
    )
    await memories.save_context("The staging database is reset every night")
    await memories.save_context("The staging database is no longer reset every night")
    await memories.save(HOSTILE, origin="outside")
    await memories.save(HOSTILE, origin="outside")
    await memories.save_checkpoint("The state of the work", next_steps=[HOSTILE])
    status, page = await browser.get("/")

    assert status == 200
    assert (
        'href="/search?outcome=FAILED&amp;namespace=default"><bdi>failed</bdi></a></th>\n<td class="number">2<' in page
    )
    assert 1 == page.count("memories with the same words")
    assert 'href="/search?origin=outside&amp;namespace=default"' in page
    assert "2 memories with the same words" in page
    assert "Does the newer memory replace the older one?" in page
    assert "The state of the work" in page
    assert "<script>alert" not in page
    assert "<img src=x" not in page


async def test_overview_limits_conflicts(session, browser):
    """The number of shown conflicts is bounded, and a link shows more."""
    for n in range(2):
        await session.memories.save_context(f"The staging database {n} is reset every night")
        await session.memories.save_context(f"The staging database {n} is no longer reset every night")
    _, page = await browser.get("/?conflicts=1")

    assert (1, True) == (page.count('aria-label="Conflict"'), "conflicts=5&amp;" in page)
    assert 1 < (await browser.get("/"))[1].count('aria-label="Conflict"')
    assert 400 == (await browser.get("/?conflicts=0"))[0]


async def test_overview_checks_the_store_on_demand(browser):
    assert "No damage found" not in (await browser.get("/"))[1]
    status, page = await browser.get("/?check=1&namespace=default")
    assert (status, "No damage found" in page, "has no memories yet" in page) == (200, True, True)


async def test_overview_lists_namespaces(tmp_path, session, browser):
    async with Session.open(tmp_path / "a.mama", embedder=HashEmbedder(), namespace="user:<i>") as other:
        await other.memories.save("one")
    page = (await browser.get("/"))[1]
    assert 'href="/?namespace=user%3A%3Ci%3E"' in page
    assert "user:<i>" not in page


@pytest.mark.parametrize(("days", "unit"), [(0, "day"), (35, "day"), (60, "week"), (400, "month"), (2000, "year")])
def test_growth_uses_the_shortest_unit_that_fits(days, unit):
    """No memory is lost, and weeks start on Monday."""
    end = 1_795_000_000_000
    growth = count_by_period(np.array([end - days * 86_400_000, end, end], np.int64))

    assert growth.unit == unit
    assert [3, 3 if days == 0 else 2] == [sum(one.count for one in growth.periods), growth.peak]
    assert unit != "week" or growth.periods[0].start.weekday() == 0
