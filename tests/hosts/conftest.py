"""What tests of several hosts share."""

import socket

import pytest


@pytest.fixture
def no_network(monkeypatch):
    """Nothing here may talk to anybody, telemetry included, but for a database of the tests."""
    connect = socket.socket.connect

    def refuse(of: socket.socket, address: object) -> None:
        if isinstance(address, tuple) and address[0] != "127.0.0.1":
            raise AssertionError(f"connects to {address}")
        connect(of, address)

    monkeypatch.setattr(socket.socket, "connect", refuse)
