"""
Memories of MAMA v1.0 taken over, and given back.

`migrate` reads an old database and adds what it holds; `rollback` takes away again what that added.
"""

from mama_structs.memory.migration.report import MigrationReport, OddRow, RollbackReport, TableCount
from mama_structs.memory.migration.rollback import rollback
from mama_structs.memory.migration.run import migrate, migrate_old
from mama_structs.memory.migration.source import OldDatabase, read_old

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
