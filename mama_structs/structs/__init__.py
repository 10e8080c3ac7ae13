"""Structs chain: ids, models, client, reference source and predefined tools."""

from mama_structs._internal.lazy_import import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
