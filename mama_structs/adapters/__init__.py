"""Adapters for agent frameworks and model providers: one module or package each, behind an extra."""
