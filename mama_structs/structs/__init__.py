"""
Structs chain: ids, models, client, reference source and predefined tools.

The tools only read. Tools for actions and workflows do not exist: actions are transactions, which need a private key,
and the agent's framework runs workflows.
"""

from mama_structs._internal.lazy_import import make_lazy_exports

__getattr__, __dir__, __all__ = make_lazy_exports(__name__)
