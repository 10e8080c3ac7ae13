"""Refs (marked parts of a model's answer) and descriptors (large inputs and results stored under handles)."""
