"""Row storage in SQLite (the only package that opens diskcache) or PostgreSQL, file locks and safe file access."""
