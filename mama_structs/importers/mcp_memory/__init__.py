"""Import of the file of the MCP memory server."""
