"""
Test utilities: worlds of Structs data, a fake node, fault injection, a clock and Hypothesis strategies.

Names are imported on first use, so that importing this package is fast. `mama_structs.testing.strategies` needs the
extra ``testing``.
"""

from mama_structs._internal.lazy_import import make_lazy_exports

__getattr__, __dir__, __all__ = make_lazy_exports(__name__)
