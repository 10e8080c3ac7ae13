"""A fake Structs node with a generated world."""
