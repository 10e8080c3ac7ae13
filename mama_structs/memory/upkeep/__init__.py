"""Erasure, export, copying and maintenance of memories."""
