"""Changes by a person in a real browser: correct a memory, set an outcome in two tabs, erase another."""

from urllib.parse import quote

from ui_helpers import take_screenshot


def open_memory(tab, pages, topic, name):
    tab.goto(f"{pages.origin}/topics?topic={quote(topic)}")
    tab.locator("ol.cards").get_by_role("link", name=name).first.click()
    tab.wait_for_url("**/memory?**")


def test_person_corrects_a_memory(enter, writable_pages):
    tab = enter(writable_pages)
    open_memory(tab, writable_pages, "caching", "Cache product pages")
    tab.get_by_text("Correct it").click()
    tab.get_by_role("textbox", name="Text", exact=True).fill("Cache product pages for one minute")
    take_screenshot(tab, "correct-1280-light")
    tab.get_by_role("button", name="Save the correction").click()
    tab.get_by_role("link", name="Go on to the memory").click()

    assert "Cache product pages for one minute" == tab.locator("h1").inner_text()
    assert "ten minutes" in " ".join(tab.locator(".diff").all_inner_texts())
    assert "inline" == tab.locator(".diff del").evaluate("node => getComputedStyle(node).display")
    assert ["ten minutes"] == [text.strip() for text in tab.locator(".diff del").all_inner_texts()]


def test_second_tab_does_not_overwrite_the_first(enter, writable_pages):
    first = enter(writable_pages)
    open_memory(first, writable_pages, "auth", "Keep logins in Redis")
    second = first.context.new_page()
    second.goto(first.url)
    for tab, outcome in ((first, "PARTIAL"), (second, "FAILED")):
        tab.get_by_text("Set the outcome").click()
        tab.get_by_label("Outcome", exact=True).select_option(outcome)
        tab.get_by_label("Reason (needed").fill(f"It is {outcome}")
        tab.get_by_role("button", name="Save the outcome").click()
        tab.wait_for_load_state()

    assert "The outcome was set" == first.locator("h1").inner_text()
    assert "The memory has changed" == second.locator("h1").inner_text()
    assert "It is FAILED" == second.get_by_label("Reason", exact=True).input_value()


def test_person_erases_a_memory(enter, writable_pages):
    tab = enter(writable_pages)
    open_memory(tab, writable_pages, "ada", "Ada works as a nurse")
    tab.get_by_role("link", name="Erase from the disk").click()
    take_screenshot(tab, "erase-1280-light")
    tab.get_by_role("button", name="Erase this memory").click()
    tab.wait_for_url("**/receipt?**")
    take_screenshot(tab, "receipt-1280-light")

    assert "The memory was erased" == tab.locator("h1").inner_text()
    assert "nurse" not in tab.content()
    tab.reload()
    assert "The memory was erased" == tab.locator("h1").inner_text()
    tab.goto(f"{writable_pages.origin}/topics?topic=ada")
    assert "nurse" not in tab.content()
