"""Conformance tests for stores."""
