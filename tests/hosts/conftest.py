"""Fixtures for the tests of several hosts."""

import socket

import pytest


@pytest.fixture
def no_network(monkeypatch):
    """Forbid network access, including telemetry, except to databases on this machine."""
    connect = socket.socket.connect

    def refuse(of: socket.socket, address: object) -> None:
        if isinstance(address, tuple) and address[0] != "127.0.0.1":
            raise AssertionError(f"connects to {address}")
        connect(of, address)

    monkeypatch.setattr(socket.socket, "connect", refuse)
