"""
Migration of MAMA v1.0 databases, and its rollback.

`migrate_v1` reads an old database and imports its memories; `rollback_v1` deletes the memories of a migration again.
"""

from mama_structs.importers.mama_v1.migration import migrate_v1, rollback_v1
from mama_structs.importers.mama_v1.migration_report import (
    MigrationReport,
    MigrationWarning,
    RollbackReport,
    TableCount,
)
from mama_structs.importers.mama_v1.old_database import V1Database, read_v1

__all__ = [
    "MigrationReport",
    "MigrationWarning",
    "RollbackReport",
    "TableCount",
    "V1Database",
    "migrate_v1",
    "read_v1",
    "rollback_v1",
]
