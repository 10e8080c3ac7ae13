"""Migration of MAMA v1.0 databases, and its rollback."""
