"""Sources of references made from a database or an API description."""
