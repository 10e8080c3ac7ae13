"""Embedders: what turns texts into vectors, and how alike two vectors are."""
