"""
Migration of MAMA v1.0 databases, and its rollback.

`migrate` reads an old database and imports its memories; `rollback` deletes the memories of a migration again.
"""

from mama_structs.importers.mama_v1.migration import migrate, migrate_old, rollback
from mama_structs.importers.mama_v1.migration_report import MigrationReport, OddRow, RollbackReport, TableCount
from mama_structs.importers.mama_v1.old_database import OldDatabase, read_old

__all__ = [
    "MigrationReport",
    "OddRow",
    "OldDatabase",
    "RollbackReport",
    "TableCount",
    "migrate",
    "migrate_old",
    "read_old",
    "rollback",
]
