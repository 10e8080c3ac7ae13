from .openapi import from_openapi as from_openapi
from .sqlite import from_sqlite as from_sqlite
