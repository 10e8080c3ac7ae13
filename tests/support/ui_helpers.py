"""Client of the pages of a store, with the cookie of a browser."""

import contextlib
import os
import re
from pathlib import Path

import aiohttp
import attrs
from yarl import URL

from mama_structs import HashEmbedder, Session
from mama_structs.ui.access import Access

SCREENSHOTS = os.environ.get("MAMA_STRUCTS_TEST_SCREENSHOTS")
HOSTILE = "<script>alert(1)</script> <img src=x onerror=alert(2)> \u202eabc\x1b[31m & \"'"


@attrs.frozen
class Browser:
    """A client with the cookie of a server. `get` and `post` return the status and the text."""

    server: object
    http: aiohttp.ClientSession

    @property
    def origin(self):
        return self.server.url.partition("/?")[0]

    @property
    def access(self):
        return Access(port=URL(self.server.url).port, token=URL(self.server.url).query["token"])

    async def get(self, path, **options):
        async with self.http.get(self.origin + path, **options) as response:
            return response.status, await response.text()

    async def post(self, path, form, **options):
        headers = {"Origin": self.origin} | options.pop("headers", {})
        token = {"form_token": self.access.form_token}
        async with self.http.post(self.origin + path, data=token | form, headers=headers, **options) as response:
            return response.status, await response.text()


@contextlib.asynccontextmanager
async def opened_browser(session, **options):
    """Start the pages of a session, and yield a client that has entered with the token."""
    cookies = aiohttp.CookieJar(unsafe=True)
    async with await session.ui(**options) as server, aiohttp.ClientSession(cookie_jar=cookies) as http:
        (await http.get(server.url)).close()
        yield Browser(server, http)


async def fill_store(store):
    """Fill a store with memories of all types, outcomes, replacements, a conflict, a conversation and hostile texts."""
    async with Session.open(store, embedder=HashEmbedder(), conversation="monday") as session:
        memories = session.memories
        jwt = await memories.save_decision(
            "Use JWT for logins",
            topic="auth",
            reasoning="No server state, so any host can check a login",
            tags=["security"],
        )
        await memories.set_outcome(jwt, "FAILED", reason="A stolen JWT could not be revoked before it expired")
        redis = await memories.supersede(jwt, "Keep logins in Redis", reasoning="They can be revoked at once")
        await memories.set_outcome(redis, "SUCCESS", reason="Revoking works within a second")
        cache = await memories.save_decision(
            "Cache product pages for ten minutes", topic="caching", reasoning="Slow database"
        )
        await memories.set_outcome(cache, "PARTIAL", reason="Prices were stale")
        await memories.save_insight("Refresh tokens double the number of requests to the database", topic="auth")
        await memories.save("Ada works as a nurse in Oslo", topic="ada")
        await memories.save("Ada works as a teacher in Oslo", topic="ada")
        await memories.save_context("The office closes at 18:00 on Fridays", topic="office", origin="outside")
        await memories.save_context(HOSTILE, topic=f"topic {HOSTILE}"[:100], origin="outside", tags=["<b>tag</b>"])
        await memories.save_checkpoint(
            "Login service: Redis is in place, the load test is open",
            next_steps=["run the load test"],
            open_files=["auth.py"],
        )
        for number in range(60):
            await memories.save_insight(
                f"Sensor {number} reads {number * 7 % 50} degrees at the north gate", topic="sensors"
            )
        await session.recall("Why did we leave JWT for logins?")
        await session.observe('My plan: <ref id="plan">first the load test, then delete JWT</ref>')
        await session.observe('Better: <ref id="plan">first delete JWT, then the load test</ref>')
        await session.observe(f'<ref id="hostile">{HOSTILE}</ref>')
        await session.wrap({"rows": [{"number": number, "text": "x" * 50} for number in range(400)]})
        await session.records.put(("settings", "ui"), "theme", {"dark": True, "size": 3})
        await session.records.put(("settings", "ui"), "theme", {"dark": False, "size": 3})
        await session.records.put(("settings", "<b>"), HOSTILE[:40], {"text": HOSTILE})
    async with Session.open(store, namespace="user:ada", embedder=HashEmbedder(), conversation="tuesday") as session:
        await session.memories.save("Ada likes green tea")


def take_screenshot(tab, name):
    """Store a screenshot of the whole page, if a directory is set."""
    if SCREENSHOTS:
        tab.screenshot(path=Path(SCREENSHOTS) / f"{re.sub(r'[^a-z0-9-]+', '-', name)}.png", full_page=True)
