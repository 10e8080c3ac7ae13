"""Importer of claude-mem databases."""
