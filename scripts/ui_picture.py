"""
Draw ``docs/pictures/ui-memory.png``: the page of a failed decision.

``python scripts/ui_picture.py`` writes the file. It needs the extras ``semantic`` and ``ui``, Pillow, Playwright and
Chromium.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from PIL import Image
from playwright.async_api import async_playwright

from mama_structs import Session

TARGET = Path(__file__).parents[1] / "docs" / "pictures" / "ui-memory.png"
SIZE = {"width": 1280, "height": 935}


async def fill_store(session: Session) -> str:
    """Save memories of a shop's agent, and return the id of the failed decision."""
    memories = session.memories
    jwt = await memories.save_decision(
        "Use JWT for logins in the shop's API",
        topic="auth",
        reasoning="No server state, so any of the four hosts can check a login without a round trip",
        tags=["security", "api"],
        created_at=datetime(2026, 8, 31, 10, 15, tzinfo=UTC),
    )
    await memories.save_insight(
        "Refresh tokens doubled the number of requests to the user database",
        topic="auth",
        created_at=datetime(2026, 9, 4, 10, 34, tzinfo=UTC),
    )
    await memories.set_outcome(
        jwt, "FAILED", reason="A stolen JWT stayed valid for 11 hours, because nothing could revoke it"
    )
    redis = await memories.supersede(
        jwt,
        "Keep logins as sessions in Redis, with a lifetime of 30 minutes",
        reasoning="A session can be revoked at once, and Redis already runs for the cart",
        created_at=datetime(2026, 9, 11, 10, 37, tzinfo=UTC),
    )
    await memories.set_outcome(redis, "SUCCESS", reason="Revoking took 0.4 s in a drill")
    return jwt.id


async def draw() -> None:
    """Write the picture."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as place:
        async with (
            Session.open(Path(place) / "shop.mama") as session,
            await session.ui() as server,
            async_playwright() as driver,
        ):
            memory_id = await fill_store(session)
            browser = await driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            tab = await browser.new_page(viewport=SIZE, color_scheme="light")
            await tab.goto(server.url)
            await tab.goto(f"{server.url.partition('?')[0]}memory?id={memory_id}")
            await tab.screenshot(path=TARGET)
            await browser.close()
    # A palette makes the file a third as large.
    Image.open(TARGET).quantize(256, Image.Quantize.MAXCOVERAGE).save(TARGET, optimize=True)


if __name__ == "__main__":
    asyncio.run(draw())
