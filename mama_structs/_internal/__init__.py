"""Private helpers without domain terms."""
