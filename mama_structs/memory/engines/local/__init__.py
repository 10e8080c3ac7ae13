"""Local engine: a journal, which is the source of truth, and views derived from it."""
