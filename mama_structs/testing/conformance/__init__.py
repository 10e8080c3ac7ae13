"""Conformance tests for memory stores."""
