"""The session: composition, life cycle, tool calls, and the storage backend."""
