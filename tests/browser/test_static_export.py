"""The file of ``mama-structs view`` in a real browser."""

import subprocess
import sys

import pytest


@pytest.fixture
def open_file(chromium, tmp_path):
    """Return a function that writes the page of a store, and opens it. Errors of its console fail the test."""
    messages = []

    def open_page(store):
        command = [sys.executable, "-m", "mama_structs", "view", str(store), "-o", str(tmp_path / "page.html")]
        subprocess.run(command, check=True, capture_output=True)
        tab = chromium.new_page(viewport={"width": 400, "height": 900})
        tab.on("console", lambda message: messages.append(message.text))
        tab.on("pageerror", lambda error: messages.append(str(error)))
        tab.goto((tmp_path / "page.html").as_uri())
        return tab

    yield open_page
    assert [] == messages


def count_shown(tab):
    return tab.locator("#memories > article:not([hidden])").count()


def test_exported_page_filters_and_follows_links(open_file, filled):
    """Words, types and outcomes filter; links lead to memories, also to those that the filter hides."""
    tab = open_file(filled)
    total = count_shown(tab)
    tab.get_by_label("Outcome").select_option("FAILED")
    assert (1, f"1 of {total} shown") == (count_shown(tab), tab.locator("#count").inner_text())
    tab.locator("article:not([hidden])").get_by_role("link", name="Keep logins in Redis").first.click()
    tab.wait_for_selector("article:not([hidden]):target")
    assert total == count_shown(tab)

    tab.get_by_label("words").fill("FRIDAYS office")
    tab.wait_for_selector(f"#count:not(:text('{total} of'))")
    assert "The office closes" in tab.locator("article:not([hidden])").first.inner_text()
    assert not tab.evaluate("document.documentElement.scrollWidth > innerWidth")
    assert 0 == tab.locator("main script, main img").count()


def test_exported_page_of_many_memories(open_file, large):
    tab = open_file(large)
    # Digits alone may also occur in ids, which contain times and hashes.
    tab.get_by_label("words").fill("observation part-399")
    tab.wait_for_selector("#count:text('25 of 10,000')", timeout=60_000)
