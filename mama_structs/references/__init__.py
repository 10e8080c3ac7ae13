"""Detection of ids in payloads and resolution of the entities that they identify."""
