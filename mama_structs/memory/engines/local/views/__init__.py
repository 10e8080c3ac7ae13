"""Views: indexes derived from the journal, and their snapshots."""
