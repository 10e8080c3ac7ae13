"""Private helpers that do not depend on the concepts of this package."""
