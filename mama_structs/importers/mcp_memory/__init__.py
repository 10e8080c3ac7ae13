"""Importer of the knowledge graph of MCP's memory server."""
