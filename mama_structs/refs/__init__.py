"""Refs (marked parts of a model's answers) and descriptors (large texts under handles)."""
