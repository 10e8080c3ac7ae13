"""The engine that keeps memories on a PostgreSQL server, which many hosts share."""
