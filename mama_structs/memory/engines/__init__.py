"""Storage engines of memories."""
