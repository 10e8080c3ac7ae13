"""Fake Structs node for tests: its data, routes, faults and HTTP server."""
