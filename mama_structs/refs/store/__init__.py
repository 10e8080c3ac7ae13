"""The ref store: handles, text, editing, truncation and export."""
