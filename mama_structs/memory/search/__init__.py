"""Planning, scoring and ordering of a search."""
