"""Importer of basic-memory notes."""
