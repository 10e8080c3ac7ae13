"""Memories, links, search and graph."""
