"""Code shared by the importers: safe file access, the import model, and the writer."""
