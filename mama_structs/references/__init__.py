"""Ids in payloads, and the entities that they stand for."""
