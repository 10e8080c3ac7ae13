"""Ref store: handles, entries, pages, search, editing, rendering and file export."""
