"""
Row storage in SQLite or PostgreSQL, file locks and safe file access.

Only this package opens diskcache.
"""
