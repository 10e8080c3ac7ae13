"""``mama-structs init``: connects coding agents to a store by editing their configuration files."""
