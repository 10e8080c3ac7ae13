"""Parsing of docstrings of Google, NumPy and Sphinx style."""

import pytest

from mama_structs.tools.docstrings import split_docstring


@pytest.mark.parametrize(
    ("docstring", "text", "entries"),
    [
        (None, "", {}),
        ("One line.", "One line.", {}),
        ("Do.\n\n    Args:\n        a: First.\n\n        b (int, optional): Second:\n            more.\n", "Do.", {"a": "First.", "b": "Second: more."}),
        ("Do.\n\nArguments:\n    a, b: Both.\n    *c: Rest.\n\nRaises:\n    E: Why.", "Do.\n\nRaises:\n    E: Why.", {"a": "Both.", "b": "Both.", "c": "Rest."}),
        ("Do.\n\nArgs:\n    nothing that reads as an entry\n\nMore.", "Do.\n\nArgs:\n    nothing that reads as an entry\n\nMore.", {}),
        ("Do.\n\nArgs:\n    a (dict[str, tuple(int)]): First.\n    b (f(g(h))): Second (of two).\n    c (list of (int, str)): Third: last.", "Do.", {"a": "First.", "b": "Second (of two).", "c": "Third: last."}),
        ("Do.\n\nArgs:\n    - a: First,\n      more.\n    - `b` (int): Second.\n", "Do.", {"a": "First, more.", "b": "Second."}),
        ("Do.\n\nParameters:\n- a: First.\n* b: Second.\n\nMore.", "Do.\n\nMore.", {"a": "First.", "b": "Second."}),
        ("Do.\n\nArgs:\n    - first item\n    - second item", "Do.\n\nArgs:\n    - first item\n    - second item", {}),
        ("Do.\n\nArgs:\n    a:\n        Below.\n", "Do.", {"a": "Below."}),
        ("Do.\n\nArgs:\n", "Do.", {}),
        ("Args: are in the text.", "Args: are in the text.", {}),
        ("Do.\n\nArgs:\n    a: First.\n\nUse it often.", "Do.\n\nUse it often.", {"a": "First."}),
        ("Do.\n\nParameters\n----------\na : int, optional\n    First,\n    more.\nb, *c\n    Both.\n\nReturns\n-------\nint\n    It.", "Do.\n\nReturns\n-------\nint\n    It.", {"a": "First, more.", "b": "Both.", "c": "Both."}),
        ("Do.\n\nParameters\n----------\na : int\n    First.\n\nUse it often.", "Do.\n\nUse it often.", {"a": "First."}),
        ("Do.\n\nParameters\n----------\na : int\n    First.\n\nOther Parameters\n----------------\nb\n    Second.", "Do.", {"a": "First.", "b": "Second."}),
        ("Parameters\nare explained elsewhere.", "Parameters\nare explained elsewhere.", {}),
        ("Do.\n\n:param a: First,\n    more.\n:type a: int\n:param int b: Second.\n:key c: Third.\n:returns: It.", "Do.\n\n:returns: It.", {"a": "First, more.", "b": "Second.", "c": "Third."}),
        ("Do: a\n:mod:`x` is used.", "Do: a\n:mod:`x` is used.", {}),
    ],
)  # fmt: skip
def test_split_docstring_separates_text_and_parameter_descriptions(docstring, text, entries):
    assert (text, entries) == split_docstring(docstring)
