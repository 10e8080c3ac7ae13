"""The memory store: saving and search, scopes, extraction, and its factory."""
