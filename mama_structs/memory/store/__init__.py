"""The memory store: its public methods, scopes and extraction."""
