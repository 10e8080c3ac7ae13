"""Views derived from the journal: memory table, vector index, word index and links."""
