"""Versioned key-value records."""
