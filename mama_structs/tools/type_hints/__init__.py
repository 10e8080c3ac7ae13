"""Type hints of tools: their schemas, and the conversion of arguments."""
