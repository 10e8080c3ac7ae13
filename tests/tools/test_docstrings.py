"""Parsing of Google-style docstrings."""

import pytest

from mama_structs.tools.schema import split_docstring


@pytest.mark.parametrize(
    ("docstring", "text", "entries"),
    [
        (None, "", {}),
        ("One line.", "One line.", {}),
        ("Do.\n\n    Args:\n        a: First.\n\n        b (int, optional): Second:\n            more.\n", "Do.", {"a": "First.", "b": "Second: more."}),
        ("Do.\n\nArguments:\n    a, b: Both.\n    *c: Rest.\n\nRaises:\n    E: Why.", "Do.\n\nRaises:\n    E: Why.", {"a": "Both.", "b": "Both.", "c": "Rest."}),
        ("Do.\n\nArgs:\n    nothing that reads as an entry\n", "Do.", {}),
        ("Do.\n\nArgs:\n    a:\n        Below.\n", "Do.", {"a": "Below."}),
        ("Do.\n\nArgs:\n", "Do.", {}),
        ("Args: are in the text.", "Args: are in the text.", {}),
    ],
)  # fmt: skip
def test_split_docstring_separates_text_and_parameter_descriptions(docstring, text, entries):
    assert (text, entries) == split_docstring(docstring)
