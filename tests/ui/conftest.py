"""Fixtures: a session, and clients of its pages."""

import pytest
from ui_helpers import opened_browser

from mama_structs import HashEmbedder, Session


@pytest.fixture
async def session(tmp_path):
    async with Session.open(tmp_path / "a.mama", embedder=HashEmbedder(), conversation="monday") as opened:
        yield opened


@pytest.fixture
async def browser(session):
    """A client of read-only pages."""
    async with opened_browser(session) as client:
        yield client


@pytest.fixture
async def writing_browser(session):
    """A client of pages with ``write=True``."""
    async with opened_browser(session, write=True) as client:
        yield client
