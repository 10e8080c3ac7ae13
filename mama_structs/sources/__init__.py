"""Reference sources for systems other than the Structs chain."""
