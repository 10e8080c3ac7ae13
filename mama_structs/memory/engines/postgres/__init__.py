"""Memory engine on a PostgreSQL server, which many hosts may share."""
