"""Async functions as tools for a model: schemas, checked arguments, our own tools, and which of them are seen."""
