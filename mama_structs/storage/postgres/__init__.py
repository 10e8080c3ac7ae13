"""Row storage on a PostgreSQL server: connection pool, write queues, leases and schema migrations."""
