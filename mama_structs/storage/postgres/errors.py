"""Conversion of asyncpg errors to typed errors, and removal of secrets from server URLs."""

from __future__ import annotations

import re
import ssl
from typing import Final
from urllib.parse import unquote

import asyncpg

from mama_structs._internal.validation import to_printable
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

RETRY_HINT: Final = "nothing was stored; try again"
UNREACHABLE_HINT: Final = "check that the server is running and reachable; acknowledged changes are stored"
URL_HINT: Final = (
    "postgresql://user:password@host:port/database, with reserved characters percent-encoded (@ as %40, / as %2F); "
    "check its options and the files that they name, too"
)
POOLER_HINT: Final = "if a pooler without prepared statements is in between: ServerSettings(prepared_statements=False)"
# Keys are SQLSTATE codes, or error classes, which are the first two characters of codes.
SQLSTATE_HINTS: Final = {
    "28": "check the user, the password and the server's pg_hba.conf",
    "3D": "create the database first: createdb",
    "26": POOLER_HINT,
    "42P05": POOLER_HINT,
    "42704": "the server does not know an option of the address, or has no pgvector any more",
    "42501": "grant the user the rights that the docs list",
    "0A": "the server does not support this: check its version and the version of pgvector",
}
# Matches one host. A URL may contain several hosts, separated by commas.
HOST_PATTERN: Final = r"(?:\[[\da-fA-F:.%]*\]|[^:@/?#\[\],]*)(?::\d*)?"
URL_PATTERN: Final = re.compile(
    rf"postgres(?:ql)?://(?:(?P<user>[^:@/?#]*)(?::[^@/?#]*)?@)?(?P<hosts>{HOST_PATTERN}(?:,{HOST_PATTERN})*)"
    r"(?P<path>(?:/[^@?#]*)?)(?:\?[^@#]*)?"
)
DISCONNECT_STATES: Final = ("08", "57P01", "57P02", "57P03", "57P05", "25P03", "25P04")
BUSY_STATES: Final = ("40", "53300", "53400", "55P03", "57014")


def redact_url(url: str) -> str:
    """Return a server's URL without password and options, so that it can be displayed."""
    # If the URL is malformed, the end of the password is unknown, so return no part of the URL.
    found = URL_PATTERN.fullmatch(url)
    if found is None:
        return "postgresql://"
    user = f"{unquote(found['user'])}@" if found["user"] else ""
    return to_printable(f"postgresql://{user}{found['hosts']}{found['path']}")


def to_store_error(  # noqa: PLR0911 - one return per kind of error
    error: BaseException, location: str, *, waited: float = 0.0, namespace: str | None = None, role: str | None = None
) -> MamaStructsError:
    """
    Return the typed error for *error*. It contains no statement, value or password.

    *namespace* is the namespace that the transaction writes, *role* the database role. Both may be None if unknown.
    """
    if isinstance(error, MamaStructsError):
        return error
    if isinstance(error, asyncpg.PostgresError):
        denied = _write_denied_error(error, location, namespace, role)
        return denied or _from_postgres_error(error, location, waited)
    if isinstance(error, TimeoutError):
        return StoreUnreachable(f"{location} gave no answer for {waited:.0f} s", hint=UNREACHABLE_HINT)
    if isinstance(error, ssl.SSLError) or (isinstance(error, ConnectionError) and "rejected SSL" in str(error)):
        hint = "check the server's certificate, and sslmode in the URL"
        return StoreUnreachable(f"{location} cannot be reached: its certificate or TLS was rejected", hint=hint)
    if isinstance(error, OSError):
        return StoreUnreachable(
            f"{location} cannot be reached: {error.strerror or type(error).__name__}", hint=UNREACHABLE_HINT
        )
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        hint = "check which server is the primary; saves succeed again as soon as there is one"
        return StoreUnreachable(f"no server of {location} matches target_session_attrs", hint=hint)
    if isinstance(error, (asyncpg.ClientConfigurationError, OverflowError)) or type(error) in {
        ValueError,
        UnicodeError,
    }:
        return InvalidArgument(f"the address {location} cannot be used", hint=URL_HINT)
    if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
        return StoreError(f"{location}: a query argument has a wrong type")
    if isinstance(error, (asyncpg.InterfaceError, asyncpg.InternalClientError)):
        # asyncpg raises this error for a connection that was closed before the call.
        return StoreUnreachable(f"the connection to {location} was cut", hint=UNREACHABLE_HINT)
    return StoreError(f"{location} failed: {type(error).__name__}")


def _write_denied_error(
    error: asyncpg.PostgresError, location: str, namespace: str | None, role: str | None
) -> StoreReadOnly | None:
    """Return the typed error if row-level security denied a write, else None."""
    if error.sqlstate != "42501" or namespace is None or role is None:
        return None
    return StoreReadOnly(
        f"the role {role!r:.80} may not write the namespace {namespace!r:.80} of {location}",
        namespace=namespace,
        role=role,
        hint="open a namespace that the policies of this role allow, or read this one with read_namespaces=[...]",
    )


def _from_postgres_error(error: asyncpg.PostgresError, location: str, waited: float) -> MamaStructsError:  # noqa: PLR0911 - table
    state = error.sqlstate or "XX000"
    if state.startswith(DISCONNECT_STATES):
        return StoreUnreachable(f"{location} ended the connection or takes none ({state})", hint=UNREACHABLE_HINT)
    if state.startswith("53300"):
        return StoreBusy(
            f"{location} has no connection left", waited=waited, hint="raise max_connections, or use a pooler"
        )
    if state.startswith(BUSY_STATES):
        what = {"55P03": "another host held the lock", "57014": "a statement took too long"}
        message = f"{location}: {what.get(state, 'another transaction was in the way')} ({state}, {waited:.1f} s)"
        return StoreBusy(message, waited=waited, hint=RETRY_HINT)
    if state == "22021":
        # Only the name of a namespace can contain NUL here, because texts of memories are escaped.
        return InvalidArgument(f"{location} cannot store a name with NUL", hint="use another name for the namespace")
    if state == "53100":
        return StoreFull(f"{location} has no room left on its disk", hint="free disk space on the server")
    if state == "25006":
        hint = "it is a replica, or set to default_transaction_read_only: name the primary to write"
        return StoreReadOnly(f"{location} can only be read", hint=hint)
    if state.startswith(("XX001", "XX002", "58030")):
        hint = "restore a backup; nothing was changed"
        return StoreDamaged(f"{location} reports damage ({state})", file=location, findings=(state,), hint=hint)
    advice = SQLSTATE_HINTS.get(state) or SQLSTATE_HINTS.get(state[:2])
    kind = StoreReadOnly if state == "42501" else StoreError
    return kind(f"{location} rejected a statement: SQLSTATE {state} ({type(error).__name__})", hint=advice)
