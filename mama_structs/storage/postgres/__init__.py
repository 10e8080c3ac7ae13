"""Rows, leases and migrations on a PostgreSQL server."""
