"""Planning of a save: automatic links, duplicates, conflicts and updates."""
