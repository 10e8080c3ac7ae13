"""Import of mem0's vector stores."""
