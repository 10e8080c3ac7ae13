"""
Adapters for agent frameworks and model providers, one module or package each.

Each needs the optional extra of its framework.
"""
