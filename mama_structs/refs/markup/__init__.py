"""Parser of ref tags in model output, and content types."""
