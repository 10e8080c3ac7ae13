"""
Row storage in SQLite or PostgreSQL, file locks, and safe file access.

No other package opens diskcache.
"""
