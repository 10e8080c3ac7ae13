"""Messages of providers and frameworks."""
