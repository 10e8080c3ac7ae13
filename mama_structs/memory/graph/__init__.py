"""Traversal of the memory graph, its results, and plots."""
