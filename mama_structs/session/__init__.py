"""The session: composition, life cycle and tool calls."""
