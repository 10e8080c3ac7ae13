"""Adapter for LangChain."""

from mama_structs._internal.lazy_import import make_lazy_exports

__getattr__, __dir__, __all__ = make_lazy_exports(__name__)
