"""
Fixtures: Chromium, and processes of ``mama-structs ui`` that serve a store.

The tests are skipped without Playwright or without a browser. ``MAMA_STRUCTS_TEST_SCREENSHOTS`` names a directory for
screenshots of the pages.
"""

import asyncio
import contextlib
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest
from ui_helpers import fill_store

from mama_structs import HashEmbedder, MemorySettings, Session, Settings

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# Without these, Chromium needs a user namespace and connects to its vendor's servers.
OPTIONS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@attrs.frozen
class Pages:
    """A running server: the address with its token, and the address without it."""

    url: str

    @property
    def origin(self):
        return self.url.partition("/?")[0]


@contextlib.contextmanager
def served(store, *options):
    """Run ``mama-structs ui`` on a store, and yield its `Pages`."""
    command = [sys.executable, "-m", "mama_structs", "ui", str(store), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Pages(process.stdout.readline().strip())
        finally:
            process.terminate()
            process.communicate(timeout=20)


def run_in_thread(work):
    """Run a coroutine in a thread, because Playwright has a running event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


@pytest.fixture(scope="session")
def filled(tmp_path_factory):
    """The directory of a store with memories of all kinds, and with hostile texts."""
    store = tmp_path_factory.mktemp("filled") / "agent.mama"
    run_in_thread(fill_store(store))
    return store


@pytest.fixture(scope="session")
def large(tmp_path_factory):
    """The directory of a store with 10,000 memories."""
    store = tmp_path_factory.mktemp("large") / "agent.mama"
    # Linking these similar texts takes ten times as long as storing them.
    settings = Settings(memory=MemorySettings(linking="off"))

    async def fill():
        async with Session.open(store, embedder=HashEmbedder(), settings=settings) as session:
            rows = [
                {
                    "type": "insight",
                    "content": f"Observation {n} about part {n % 97} of the machine",
                    "topic": f"part-{n % 400}",
                }
                for n in range(10_000)
            ]
            await session.memories.save_many(rows)

    run_in_thread(fill())
    return store


@pytest.fixture(scope="session")
def pages(filled):
    with served(filled) as running:
        yield running


@pytest.fixture
def writable_pages(filled, tmp_path):
    """Pages with ``--write`` of a copy of the store."""
    copied = shutil.copytree(filled, tmp_path / "agent.mama")
    with served(copied, "--write") as running:
        yield running


@pytest.fixture(scope="session")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: nox -s ui")
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(PROGRAMS)} is installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=OPTIONS)
        yield browser
        browser.close()


def is_expected(message):
    """Return True for the console's message that the page of an unknown memory has the status 404."""
    return "decision_unknown" in message.location.get("url", "")


@pytest.fixture
def enter(chromium):
    """Return a function that opens a tab, and enters with the token. Errors of its console fail the test."""
    with contextlib.ExitStack() as closing:
        messages = []

        def open_tab(pages, **options):
            context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
            closing.callback(context.close)
            tab = context.new_page()
            tab.on("console", lambda message: is_expected(message) or messages.append(message.text))
            tab.on("pageerror", lambda error: messages.append(str(error)))
            tab.on("dialog", lambda dialog: (messages.append(f"dialog: {dialog.message}"), dialog.dismiss()))
            tab.goto(pages.url)
            tab.wait_for_url(pages.origin + "/")
            return tab

        yield open_tab
        # Chromium reports each response with an error status, such as that of a page that does not exist.
        assert [] == [message for message in messages if not message.startswith("Failed to load resource")]
