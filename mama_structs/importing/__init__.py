"""Memories of other programs: read from their files as they leave them, and taken over."""
