"""Values, requests and the engine protocol of memories."""
