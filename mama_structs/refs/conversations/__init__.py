"""Conversations on disk: their changes, recall logs and lifecycle."""
