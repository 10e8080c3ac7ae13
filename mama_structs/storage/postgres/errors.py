"""Conversion of asyncpg errors to typed errors, and redaction of server URLs."""

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
_REACH: Final = "check that the server is running and reachable; acknowledged changes are stored"
_ADDRESS: Final = (
    "postgresql://user:password@host:port/database, with reserved characters percent-encoded (@ as %40, / as %2F); "
    "check its options and the files that they name, too"
)
_POOLER: Final = "if a pooler without prepared statements is in between: ServerSettings(prepared=False)"
# Keys are SQLSTATE codes, or their first two characters (the error class).
_HINTS: Final = {
    "28": "check the user, the password and the server's pg_hba.conf",
    "3D": "create the database first: createdb",
    "26": _POOLER,
    "42P05": _POOLER,
    "42704": "the server does not know an option of the address, or has no pgvector any more",
    "42501": "grant the user the rights that the docs list",
    "0A": "the server does not support this: check its version and the version of pgvector",
}
# A URL may list several hosts, separated by commas.
_HOST: Final = r"(?:\[[\da-fA-F:.%]*\]|[^:@/?#\[\],]*)(?::\d*)?"
_SHOWN: Final = re.compile(
    rf"postgres(?:ql)?://(?:(?P<user>[^:@/?#]*)(?::[^@/?#]*)?@)?(?P<hosts>{_HOST}(?:,{_HOST})*)"
    r"(?P<path>(?:/[^@?#]*)?)(?:\?[^@#]*)?"
)
_CUT: Final = ("08", "57P01", "57P02", "57P03", "57P05", "25P03", "25P04")
_BUSY: Final = ("40", "53300", "53400", "55P03", "57014")


def located(url: str) -> str:
    """Return a server's URL without password and options, safe to display."""
    # If the URL is malformed, the extent of the password is unknown, so show nothing of it.
    found = _SHOWN.fullmatch(url)
    if found is None:
        return "postgresql://"
    user = f"{unquote(found['user'])}@" if found["user"] else ""
    return printable(f"postgresql://{user}{found['hosts']}{found['path']}")


def server_error(  # noqa: PLR0911 - one return per kind of error
    error: BaseException, where: str, *, waited: float = 0.0, namespace: str | None = None, role: str | None = None
) -> MamaStructsError:
    """
    Return the typed error for *error*. It contains no statement, value or password.

    *namespace* is the namespace that the transaction writes, *role* the database role; None if unknown.
    """
    if isinstance(error, MamaStructsError):
        return error
    if isinstance(error, asyncpg.PostgresError):
        denied = _denied(error, where, namespace, role)
        return denied or _from_server(error, where, waited)
    if isinstance(error, TimeoutError):
        return StoreUnreachable(f"{where} gave no answer for {waited:.0f} s", hint=_REACH)
    if isinstance(error, ssl.SSLError) or (isinstance(error, ConnectionError) and "rejected SSL" in str(error)):
        hint = "check the server's certificate, and sslmode in the URL"
        return StoreUnreachable(f"{where} cannot be reached: its certificate or TLS was rejected", hint=hint)
    if isinstance(error, OSError):
        return StoreUnreachable(f"{where} cannot be reached: {error.strerror or type(error).__name__}", hint=_REACH)
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        hint = "check which server is the primary; saves succeed again as soon as there is one"
        return StoreUnreachable(f"no server of {where} matches target_session_attrs", hint=hint)
    if isinstance(error, (asyncpg.ClientConfigurationError, OverflowError)) or type(error) in {
        ValueError,
        UnicodeError,
    }:
        return InvalidArgument(f"the address {where} cannot be used", hint=_ADDRESS)
    if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
        return StoreError(f"{where}: a query argument has a wrong type")
    if isinstance(error, (asyncpg.InterfaceError, asyncpg.InternalClientError)):
        # asyncpg raises it from the first call on a connection that is already closed.
        return StoreUnreachable(f"the connection to {where} was cut", hint=_REACH)
    return StoreError(f"{where} failed: {type(error).__name__}")


def _denied(error: asyncpg.PostgresError, where: str, namespace: str | None, role: str | None) -> StoreReadOnly | None:
    """Return the error for a write denied by row-level security, or None for other errors."""
    if error.sqlstate != "42501" or namespace is None or role is None:
        return None
    return StoreReadOnly(
        f"the role {role!r:.80} may not write the namespace {namespace!r:.80} of {where}",
        namespace=namespace,
        role=role,
        hint="open a namespace that the policies of this role allow, or read this one with reads=[...]",
    )


def _from_server(error: asyncpg.PostgresError, where: str, waited: float) -> MamaStructsError:  # noqa: PLR0911 - table
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
        # Only namespace names get here with NUL: the texts of memories are encoded.
        return InvalidArgument(f"{where} cannot store a name with NUL", hint="use another name for the namespace")
    if state == "53100":
        return StoreFull(f"{where} has no room left on its disk", hint="free disk space on the server")
    if state == "25006":
        hint = "it is a replica, or set to default_transaction_read_only: name the primary to write"
        return StoreReadOnly(f"{where} can only be read", hint=hint)
    if state.startswith(("XX001", "XX002", "58030")):
        hint = "restore a backup; nothing was changed"
        return StoreDamaged(f"{where} reports damage ({state})", file=where, findings=(state,), hint=hint)
    advice = _HINTS.get(state) or _HINTS.get(state[:2])
    kind = StoreReadOnly if state == "42501" else StoreError
    return kind(f"{where} rejected a statement: SQLSTATE {state} ({type(error).__name__})", hint=advice)
