"""Tools for models: schemas, argument validation, built-in tools, and exposure."""
