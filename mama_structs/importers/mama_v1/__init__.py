"""
What is left of MAMA v1.0: its memories taken over and given back, and its seven tools.

`migrate` reads an old database and adds what it holds; `rollback` takes away again what that added.
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
