"""Indexes derived from the journal: tables, vectors, words and links."""
