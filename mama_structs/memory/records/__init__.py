"""Host records: the record store and its plans."""
