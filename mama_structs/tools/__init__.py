"""Tools for models: schemas from type hints, argument validation, built-in tools, and exposure."""
