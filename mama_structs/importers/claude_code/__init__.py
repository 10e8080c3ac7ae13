"""Importer of Claude Code transcripts."""
