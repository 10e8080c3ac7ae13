"""Text extraction from the messages of model providers and frameworks."""
