"""Placeholder until the transfer is written."""
