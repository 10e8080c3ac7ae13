"""Syntax trees of the package's modules."""

from __future__ import annotations

import ast
import functools


@functools.cache
def tree_of(file):
    """Return the syntax tree of a file. It is cached, because several tests read all files."""
    return ast.parse(file.read_text(encoding="utf-8"))
