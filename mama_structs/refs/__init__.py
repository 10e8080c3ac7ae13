"""Refs and descriptors: what a model marked in its answers, and what was too large to show."""
