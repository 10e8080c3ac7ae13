"""``mama-structs ui``: which stores it opens, and how it ends."""

import asyncio
import urllib.error

import pytest

from mama_structs import HashEmbedder, as_embedder
from mama_structs.cli import serve_commands
from mama_structs.cli.main import main
from mama_structs.sync import Session


@pytest.fixture
def store(tmp_path):
    with Session.open(tmp_path / "a.mama", embedder=HashEmbedder()) as session:
        session.memories.save("Ada works as a nurse")
    return tmp_path / "a.mama"


@pytest.fixture
def ends_at_once(monkeypatch):
    """Stop the server immediately after its start."""

    def create():
        stopped = asyncio.Event()
        stopped.set()
        return stopped

    monkeypatch.setattr(serve_commands, "_create_stop_event", create)


def test_missing_store_is_not_created(tmp_path, capsys):
    assert main(["ui", str(tmp_path / "missing.mama")]) == 1
    assert "nothing was created" in capsys.readouterr().err
    assert not (tmp_path / "missing.mama").exists()


def test_unknown_namespace_is_an_error(store, capsys):
    assert main(["ui", str(store), "--namespace", "defualt"]) == 1
    assert "default" in capsys.readouterr().err


@pytest.mark.usefixtures("ends_at_once")
def test_store_of_another_embedder_is_shown_without_it(tmp_path, capsys):
    own = as_embedder(lambda texts: [[1.0, 0.0]] * len(texts), name="own", dimensions=2)
    with Session.open(tmp_path / "own.mama", embedder=own) as session:
        session.memories.save("Ada works as a nurse")

    assert main(["ui", str(tmp_path / "own.mama")]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("http://127.0.0.1:")
    assert "by words only" in shown.err


@pytest.mark.usefixtures("ends_at_once")
def test_browser_opens_on_request(store, monkeypatch, capsys):
    def open_text_browser(url):
        """Load the page before it returns, as a text browser does."""
        with urllib.request.urlopen(url, timeout=5) as response:
            answers.append((url, response.status))
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(url, timeout=5)
        return False

    answers = []
    monkeypatch.setattr("webbrowser.open", open_text_browser)
    assert main(["ui", str(store), "--open"]) == 0
    shown = capsys.readouterr()
    ((url, status),) = answers
    assert (status, "no browser" in shown.err) == (200, True)
    # Other users see the command line of the browser, so its address works only once.
    assert url not in shown.out
