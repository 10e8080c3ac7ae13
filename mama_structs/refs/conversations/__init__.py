"""Conversations: their rows, their log, and the log of recalled facts."""
