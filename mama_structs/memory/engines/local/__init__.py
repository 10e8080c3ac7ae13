"""The embedded engine: a journal, which is the truth, and views, which are derived from it."""
