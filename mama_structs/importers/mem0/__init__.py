"""Importer of mem0 memories."""
