"""Async functions as tools for a model: a schema from the signature, strict arguments, JSON-able results."""

from mama_structs.jsonable import to_jsonable
from mama_structs.tools.tool import Tool, ToolAnnotations
from mama_structs.tools.toolset import ToolSet

__all__ = ["Tool", "ToolAnnotations", "ToolSet", "to_jsonable"]
