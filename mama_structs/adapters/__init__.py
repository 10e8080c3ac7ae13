"""A session's tools for agent frameworks and model providers: one module each, thin, and behind an extra each."""
