"""The pages in a real browser: every page at two widths and in two colour schemes, and what a person does with them."""

import http.server
import threading
import time
from urllib.parse import quote

import pytest
from ui_helpers import take_screenshot

axe_module = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe: nox -s ui")

PATHS = {
    "overview": "/",
    "search": "/search?q=Why+did+we+leave+JWT",
    "browse": "/search",
    "memory": "memory of JWT",
    "topics": "/topics",
    "chain": "/topics?topic=auth",
    "recall": "/recall?message=Why+did+we+leave+JWT+for+logins%3F",
    "conversations": "/conversations",
    "conversation": "/conversations?name=monday",
    "records": "/records",
    "error": "/memory?id=decision_unknown",
    "other namespace": "/search?namespace=user%3Aada",
}
# The rules of WCAG 2.2, levels A and AA.
RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}}


def go(tab, pages, name):
    if name == "memory":
        tab.goto(f"{pages.origin}/search?q={quote('Use JWT for logins')}")
        tab.get_by_role("link", name="Use JWT for logins").first.click()
    else:
        tab.goto(pages.origin + PATHS[name])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_every_page_fits_and_is_accessible(enter, pages, width, scheme):
    # The rule checker adds a script to the page, which the content policy forbids.
    tab = enter(pages, viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
    found = {}
    for name in PATHS:
        go(tab, pages, name)
        take_screenshot(tab, f"{name}-{width}-{scheme}")
        if tab.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found[name] = "scrolls sideways"
        checked = axe_module.Axe().run(tab, options=RULES)
        found |= {
            f"{name}: {one['id']}": [node["html"][:200] for node in one["nodes"]]
            for one in checked.response["violations"]
        }

    assert {} == {name: what for name, what in found.items() if not name.startswith("error: ")}


def test_hostile_texts_are_only_texts(enter, pages):
    tab = enter(pages)
    for name in PATHS:
        go(tab, pages, name)
        assert 0 == tab.locator("main script, main img[onerror], main [onclick], main iframe").count()
    tab.goto(f"{pages.origin}/search?q={quote('<script>alert(1)</script>')}")
    assert "<script>alert(1)</script>" in tab.locator("main").inner_text()


def test_pages_work_without_scripts(enter, pages, chromium):
    with_scripts = enter(pages)
    context = chromium.new_context(java_script_enabled=False)
    context.add_cookies(with_scripts.context.cookies())
    tab = context.new_page()
    for name in PATHS:
        go(tab, pages, name)
        assert tab.locator("h1").count() == 1
    tab.goto(f"{pages.origin}/search")
    tab.locator("[data-search]").fill("Keep logins in Redis")
    tab.locator("[data-search]").press("Enter")
    assert "Keep logins in Redis" in tab.locator("article").first.inner_text()
    context.close()


def test_keyboard_reaches_content_and_search(enter, pages):
    tab = enter(pages)
    tab.goto(f"{pages.origin}/search")
    tab.keyboard.press("Tab")
    assert "Skip to the content" == tab.evaluate("document.activeElement.textContent")
    tab.keyboard.press("Enter")
    assert "main" == tab.evaluate("document.activeElement.id")
    tab.keyboard.press("/")
    assert tab.evaluate("document.activeElement.hasAttribute('data-search')")
    tab.keyboard.type("Redis")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**q=Redis**")
    tab.locator("article a").first.focus()
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/memory?**")


def test_address_without_token_shows_nothing(chromium, pages):
    tab = chromium.new_context().new_page()
    response = tab.goto(pages.origin)
    assert 403 == response.status
    assert "complete address" in tab.inner_text("body")
    tab.context.close()


@pytest.fixture
def other_site():
    """The address of a page of another site, whose HTML the test sets as ``html``."""

    class Handler(http.server.BaseHTTPRequestHandler):
        html = ""

        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(Handler.html.encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Handler.address = f"http://localhost:{server.server_port}/"
    yield Handler
    server.shutdown()
    server.server_close()


def test_other_sites_can_neither_frame_nor_post(enter, writable_pages, other_site, chromium):
    inside = enter(writable_pages)
    inside.goto(f"{writable_pages.origin}/search?q=Redis")
    before = inside.locator("article").count()
    tab = inside.context.new_page()
    origin = writable_pages.origin
    other_site.html = (
        f'<iframe src="{origin}/"></iframe><form method="post" action="{origin}/search"><button>x</button></form>'
    )
    tab.goto(other_site.address)
    time.sleep(0.2)
    framed = [frame.url for frame in tab.frames if frame.url.startswith(origin)]
    assert all("Overview" not in (frame.content()) for frame in tab.frames if frame.url in framed)
    tab.get_by_role("button").click()
    assert "another site" in tab.inner_text("body")
    inside.reload()
    assert before == inside.locator("article").count()


def test_link_of_a_notebook_enters(chromium, pages, other_site):
    """A click on a link of another site enters, although the cookie is not sent to the first request."""
    other_site.html = f'<a href="{pages.url}">open</a>'
    tab = chromium.new_context().new_page()
    tab.goto(other_site.address)
    tab.get_by_role("link").click()
    tab.wait_for_url(pages.origin + "/")
    assert "Overview" in tab.locator("h1").inner_text()
    tab.context.close()
