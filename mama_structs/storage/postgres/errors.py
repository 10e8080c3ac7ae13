"""Which error of ours a failure of a PostgreSQL server is, and how a server is named without its password."""

from __future__ import annotations

import re
import ssl
from typing import Final
from urllib.parse import unquote

import asyncpg

from mama_structs._internal.validation import printable
from mama_structs.errors import (
    InvalidArgument,
    MamaStructsError,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
)

_AGAIN: Final = "nothing was stored; try again"
_REACH: Final = "look whether the server runs and can be reached; what was acknowledged is stored"
_ADDRESS: Final = (
    "postgresql://user:password@host:port/database, in which %40 stands for @, %2F for / and so on; "
    "look at its options and the files that they name, too"
)
_POOLER: Final = "where a pooler stands between that keeps no prepared statements: ServerSettings(prepared=False)"
# By SQLSTATE, or the class that its first two characters are.
_HINTS: Final = {
    "28": "look at user, password and the server's pg_hba.conf",
    "3D": "make the database first: createdb",
    "26": _POOLER,
    "42P05": _POOLER,
    "42704": "the server does not know an option of the address, or has no pgvector any more",
    "42501": "grant the user the rights that the docs list",
    "0A": "the server cannot do this: look at its version and that of pgvector",
}
# Several hosts may be named, parted by commas.
_HOST: Final = r"(?:\[[\da-fA-F:.%]*\]|[^:@/?#\[\],]*)(?::\d*)?"
_SHOWN: Final = re.compile(
    rf"postgres(?:ql)?://(?:(?P<user>[^:@/?#]*)(?::[^@/?#]*)?@)?(?P<hosts>{_HOST}(?:,{_HOST})*)"
    r"(?P<path>(?:/[^@?#]*)?)(?:\?[^@#]*)?"
)
_CUT: Final = ("08", "57P01", "57P02", "57P03", "57P05", "25P03", "25P04")
_BUSY: Final = ("40", "53300", "53400", "55P03", "57014")


def located(url: str) -> str:
    """Return a server's address as it may be shown: without password and options."""
    # Where a sign of a password is not written as it should be, nobody can tell what the password is.
    found = _SHOWN.fullmatch(url)
    if found is None:
        return "postgresql://"
    user = f"{unquote(found['user'])}@" if found["user"] else ""
    return printable(f"postgresql://{user}{found['hosts']}{found['path']}")


def server_error(  # noqa: PLR0911 - a table
    error: BaseException, where: str, *, waited: float = 0.0, namespace: str | None = None, role: str | None = None
) -> MamaStructsError:
    """
    Return the typed error for *error*. It contains no statement, value or password.

    *namespace* and *role* name the namespace that the transaction writes and the database role, where they are known.
    """
    if isinstance(error, MamaStructsError):
        return error
    if isinstance(error, asyncpg.PostgresError):
        denied = _denied(error, where, namespace, role)
        return denied or _from_server(error, where, waited)
    if isinstance(error, TimeoutError):
        return StoreUnreachable(f"{where} gave no answer for {waited:.0f} s", hint=_REACH)
    if isinstance(error, ssl.SSLError) or (isinstance(error, ConnectionError) and "rejected SSL" in str(error)):
        hint = "look at the server's certificate, and at sslmode in the address"
        return StoreUnreachable(f"{where} cannot be reached: its certificate or TLS is refused", hint=hint)
    if isinstance(error, OSError):
        return StoreUnreachable(f"{where} cannot be reached: {error.strerror or type(error).__name__}", hint=_REACH)
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        hint = "look which one is the primary; saves go on when there is one"
        return StoreUnreachable(f"no server of {where} is what target_session_attrs asks for", hint=hint)
    if isinstance(error, (asyncpg.ClientConfigurationError, OverflowError)) or type(error) in {
        ValueError,
        UnicodeError,
    }:
        return InvalidArgument(f"the address {where} cannot be used", hint=_ADDRESS)
    if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
        return StoreError(f"{where} was asked with an argument of a wrong type")
    if isinstance(error, (asyncpg.InterfaceError, asyncpg.InternalClientError)):
        # It is raised for a connection that is closed, by whichever call notices it first.
        return StoreUnreachable(f"the connection to {where} was cut", hint=_REACH)
    return StoreError(f"{where} failed: {type(error).__name__}")


def _denied(error: asyncpg.PostgresError, where: str, namespace: str | None, role: str | None) -> StoreReadOnly | None:
    """Return the error for a write in a namespace that the database denies to a role."""
    if error.sqlstate != "42501" or namespace is None or role is None:
        return None
    return StoreReadOnly(
        f"the role {role!r:.80} may not write the namespace {namespace!r:.80} of {where}",
        namespace=namespace,
        role=role,
        hint="open a namespace that the policies of this role allow, or read this one with reads=[...]",
    )


def _from_server(error: asyncpg.PostgresError, where: str, waited: float) -> MamaStructsError:  # noqa: PLR0911 - a table
    state = error.sqlstate or "XX000"
    if state.startswith(_CUT):
        return StoreUnreachable(f"{where} ended the connection or takes none ({state})", hint=_REACH)
    if state.startswith("53300"):
        return StoreBusy(
            f"{where} has no connection left", waited=waited, hint="raise max_connections, or use a pooler"
        )
    if state.startswith(_BUSY):
        what = {"55P03": "another host held the lock", "57014": "a statement took too long"}
        message = f"{where}: {what.get(state, 'another transaction was in the way')} ({state}, {waited:.1f} s)"
        return StoreBusy(message, waited=waited, hint=_AGAIN)
    if state == "22021":
        # Of a memory's texts none comes here as it is.
        return InvalidArgument(f"{where} can have no name that holds NUL", hint="take another name for the namespace")
    if state == "53100":
        return StoreFull(f"{where} has no room left on its disk", hint="make room on the server")
    if state == "25006":
        hint = "it is a replica, or set to default_transaction_read_only: name the primary to write"
        return StoreReadOnly(f"{where} can only be read", hint=hint)
    if state.startswith(("XX001", "XX002", "58030")):
        hint = "put a backup in its place; nothing was changed"
        return StoreDamaged(f"{where} reports damage ({state})", file=where, findings=(state,), hint=hint)
    advice = _HINTS.get(state) or _HINTS.get(state[:2])
    kind = StoreReadOnly if state == "42501" else StoreError
    return kind(f"{where} refused with SQLSTATE {state} ({type(error).__name__})", hint=advice)
