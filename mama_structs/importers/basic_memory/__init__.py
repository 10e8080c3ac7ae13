"""Import of basic-memory's notes."""
