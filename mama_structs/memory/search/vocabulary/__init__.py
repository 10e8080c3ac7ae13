"""Words of queries per language, and their loader."""
