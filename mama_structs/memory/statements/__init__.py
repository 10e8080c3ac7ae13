"""Comparison of the statements of two memories."""
