"""Parser for ``<ref>`` tags, fenced code blocks and content types."""
