"""
The chain's 56 REST routes as pure functions of a `World`.

They reproduce the unexpected behaviour of the real interface: a not-found is a 500, and filtered lists are filtered
after paging. An unknown attribute name reads the first attribute, and paging has the oddities of the Cosmos SDK.
"""

from __future__ import annotations

import base64
import contextlib
import difflib
import hashlib
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from mama_structs.errors import InvalidArgument
from mama_structs.structs.ids import EntityType
from mama_structs.testing.node.world import ATTRIBUTES, CHAIN_STORES, ChainStore, World

NOT_FOUND: Final = "codespace structs code 1050: object not found"
_BECH32: Final = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_MAX_RANK_ROWS: Final = 25
_PUBLIC_KEY_BYTES: Final = 33
_SIGNATURE_BYTES: Final = 64

Body = dict[str, Any]
RowPredicate = Callable[[str, Any, str], bool]

DEFAULT_LIMIT: Final = 100
_MAX_UINT64: Final = 2**64 - 1
_TRUE_TEXTS: Final = ("1", "t", "T", "TRUE", "true", "True")
_FALSE_TEXTS: Final = ("0", "f", "F", "FALSE", "false", "False")


class ErrorAnswer(Exception):
    """Raised by a route to answer with an error instead of data."""

    def __init__(self, *, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status: int = status
        self.code: int = code
        self.message: str = message


def _make_type_mismatch(parameter: str, error: str) -> ErrorAnswer:
    return ErrorAnswer(status=400, code=3, message=f"type mismatch, parameter: {parameter}, error: {error}")


def parse_uint(text: str, *, parameter: str) -> int:
    """Parse a uint64 as Go does. Only ASCII digits are accepted."""
    if text.isascii() and text.isdecimal() and int(text) <= _MAX_UINT64:
        return int(text)
    raise _make_type_mismatch(parameter, f'strconv.ParseUint: parsing "{text}": invalid syntax')


def _parse_bool(text: str, *, parameter: str) -> bool:
    if text in _TRUE_TEXTS or text in _FALSE_TEXTS:
        return text in _TRUE_TEXTS
    raise _make_type_mismatch(parameter, f'strconv.ParseBool: parsing "{text}": invalid syntax')


def _parse_bytes(text: str, *, parameter: str) -> bytes:
    for alphabet in (None, b"-_"):
        with contextlib.suppress(ValueError):
            return base64.b64decode(text, altchars=alphabet, validate=True)
    raise _make_type_mismatch(parameter, "illegal base64 data at input byte 0")


@attrs.frozen
class PageRequest:
    """The pagination parameters of a query."""

    key: bytes = b""
    """The position to continue from, as in ``next_key``; empty for the beginning."""
    offset: int = 0
    limit: int = 0
    """The number of rows to read; 0 means 100, and also counts the total."""
    count_total: bool = False
    """True to count all rows; ignored with a key."""
    reverse: bool = False

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> PageRequest:
        """Parse the parameters named ``pagination.*``. All other parameters are ignored."""
        given = {name: query.get(f"pagination.{name}") for name in _PARSERS}
        return cls(
            **{name: _PARSERS[name](text, parameter=f"pagination.{name}") for name, text in given.items() if text}
        )


_PARSERS: Final[Mapping[str, Any]] = {
    "key": _parse_bytes,
    "offset": parse_uint,
    "limit": parse_uint,
    "count_total": _parse_bool,
    "reverse": _parse_bool,
}


@attrs.frozen
class PageRows:
    """The row numbers of a page, with the data for its ``pagination``."""

    row_numbers: tuple[int, ...]
    next_key: bytes | None
    """The raw key of the next page's first row, None on the last page."""
    total: int
    """The number of all rows, 0 if they were not counted."""

    def pagination(self) -> dict[str, str | None]:
        """Return the ``pagination`` member of an answer."""
        next_key = None if self.next_key is None else base64.b64encode(self.next_key).decode()
        return {"next_key": next_key, "total": str(self.total)}


def paginate(keys: Sequence[bytes], request: PageRequest, *, error_code: int = 13) -> PageRows:
    """
    Select the rows of a page. *keys* are all raw keys of a store in byte order.

    *error_code* is the gRPC code of errors.
    """
    if request.key and request.offset:
        raise ErrorAnswer(
            status=500, code=error_code, message="invalid request, either offset or key is expected, got both"
        )
    limit = request.limit or DEFAULT_LIMIT
    numbers: range = range(len(keys))
    if request.key:
        at = bisect_left(keys, request.key)
        # In reverse order, the page begins with the row of the key and continues with smaller keys.
        numbers = range(min(at, len(keys) - 1), -1, -1) if request.reverse else range(at, len(keys))
    elif request.reverse:
        numbers = range(len(keys) - 1, -1, -1)
    counted = (request.count_total or not request.limit) and not request.key
    rest = numbers[request.offset :]
    return PageRows(
        row_numbers=tuple(rest[:limit]),
        next_key=keys[rest[limit]] if len(rest) > limit else None,
        total=len(keys) if counted else 0,
    )


@attrs.frozen
class RouteRequest:
    """Input of a route's function: the world, the path parameters, the query parameters, and the block height."""

    world: World
    path: Mapping[str, str]
    parameters: Mapping[str, str]
    height: int


@attrs.frozen
class Route:
    """
    A path pattern with ``{name}`` for parameters, and the function that computes the answer.

    The function returns the body or raises `ErrorAnswer`.
    """

    pattern: str
    answer: Callable[[RouteRequest], Body]

    @property
    def kind(self) -> str:
        """
        The name of the route's type.

        It is the path segment after ``/structs/``; for a route of another module it is the last segment.
        """
        return self.pattern.split("/")[2 if self.pattern.startswith("/structs/") else -1]


@attrs.frozen
class RouteMatch:
    """
    The route that matches a path (or None), the path parameters, and the names of the request.

    Tests use these names to count, delay or fail requests.
    """

    route: Route | None
    parameters: Mapping[str, str]
    names: tuple[str, ...]


def match_route(path: str) -> RouteMatch:
    """Find the route of a percent-decoded path, and the names of a request for it."""
    for route, expression in _ROUTE_PATTERNS:
        if found := expression.fullmatch(path):
            parameters = found.groupdict()
            return RouteMatch(route, parameters, (path, *parameters.values(), route.pattern, route.kind, "*"))
    return RouteMatch(None, {}, (path, "*"))


def check_request_name(argument: str, name: object) -> str:
    """Return *name* if a request can have this name (see `Faults.add`). Otherwise raise `InvalidArgument`."""
    if not isinstance(name, str):
        raise InvalidArgument(f"{argument} must be the name of requests, got {name!r:.80}")
    if name == "*" or name in _ROUTE_TYPES or _PARAMETER_PATTERN.fullmatch(name) or name in _NAMES_IN_PATHS:
        return name
    if name.startswith("/") and ("{" not in name or name in _ROUTE_TEMPLATES):
        return name
    near = difflib.get_close_matches(name, [*_ROUTE_TEMPLATES] if name.startswith("/") else [*_ROUTE_TYPES], n=1)
    raise InvalidArgument(
        f"{argument}: no request can be called {name!r:.80}",
        hint=f"did you mean {near[0]}?"
        if near
        else 'give a path such as /structs/player/1-11, an id, a route\'s pattern, a type such as player, or "*"',
    )


def compute_body(world: World, route_match: RouteMatch, parameters: Mapping[str, str], *, height: int) -> Body:
    """Return the body of the answer, or raise `ErrorAnswer`."""
    if route_match.route is None:
        raise make_not_implemented_error()
    return route_match.route.answer(RouteRequest(world, route_match.parameters, parameters, height))


def make_not_implemented_error() -> ErrorAnswer:
    """Return the error with which the gateway answers an unknown path or method."""
    return ErrorAnswer(status=501, code=12, message="Not Implemented")


def _make_not_found_error() -> ErrorAnswer:
    return ErrorAnswer(status=500, code=2, message=NOT_FOUND)


def _select_page(
    query: RouteRequest, table: ChainStore, keys: Sequence[str], *, prefix: str = ""
) -> tuple[list[str], Body]:
    """Return the keys of the rows on the requested page, and the ``pagination`` member."""
    if table.name == "struct_type":
        raw = [int(key).to_bytes(8, "big") for key in keys]
    else:
        raw = [key.removeprefix(prefix).encode() for key in keys]
    page = paginate(raw, PageRequest.from_query(query.parameters), error_code=table.error_code)
    return [keys[number] for number in page.row_numbers], page.pagination()


def _make_list_body(query: RouteRequest, table: ChainStore, keys: Sequence[str], pagination: Body | None) -> Body:
    rows = [query.world.tables[table.name][key] for key in keys]
    if table.fields is not None:
        rows = [dict(zip(table.fields, row, strict=True)) for row in zip(keys, rows, strict=True)]
    return {table.key: rows, "pagination": pagination} | ({"status": []} if table.status else {})


def _make_entity_route(name: str) -> Route:
    table = CHAIN_STORES[name]

    def answer(query: RouteRequest) -> Body:
        entity_id = query.path["id"]
        # Look in the store first: the chain answers "not found" even for invalid ids and ids of other types.
        if query.world.get(name, entity_id) is None:
            raise _make_not_found_error()
        return query.world.envelope(entity_id)

    return Route(f"/structs/{table.name}/{{id}}", answer)


def _make_list_route(
    name: str, pattern: str = "", keep_row: RowPredicate | None = None, *, filter_before_paging: bool = False
) -> Route:
    """
    Return a route that lists a store.

    *keep_row* filters the rows by the path parameters: before paging if *filter_before_paging*, otherwise after it.
    """
    table = CHAIN_STORES[name]

    def answer(query: RouteRequest) -> Body:
        def fits(key: str) -> bool:
            return keep_row is None or keep_row(key, query.world.get(name, key), *query.path.values())

        keys = query.world.ids(name)
        if filter_before_paging:
            keys = list(filter(fits, keys))
        chosen, pagination = _select_page(query, table, keys)
        return _make_list_body(query, table, list(filter(fits, chosen)), pagination)

    return Route(pattern or f"/structs/{name}", answer)


def _make_indexed_route(pattern: str, name: str, field: str) -> Route:
    """Return a route that lists the rows in which *field* equals the path parameter."""
    return _make_list_route(name, pattern, lambda _, row, wanted: row.get(field) == wanted, filter_before_paging=True)


def _make_record_route(pattern: str, name: str, key: Callable[[Mapping[str, str]], str]) -> Route:
    """Return a route to one record. *key* computes its key from the path parameters."""

    def answer(query: RouteRequest) -> Body:
        record = query.world.get(name, key(query.path))
        if record is None:
            raise _make_not_found_error()
        return {CHAIN_STORES[name].key: record}

    return Route(pattern, answer)


def _get_value(query: RouteRequest, store: str, key: str) -> str:
    value: str = query.world.tables.get(store, {}).get(key, "0")
    return value


def _make_value_route(name: str, parameter: str) -> Route:
    """Return a route to a single value, which is zero if the store does not contain it."""

    def answer(query: RouteRequest) -> Body:
        key = query.path[parameter]
        return {f"{name}Record": {parameter: key, "value": _get_value(query, name, key)}}

    return Route(f"/structs/{name}/{{{parameter}}}", answer)


def _make_attribute_route(store: str, parameter: str) -> Route:
    names = ATTRIBUTES[store]

    def answer(query: RouteRequest) -> Body:
        name = query.path["attributeType"]
        number = names.index(name) if name in names else 0
        return {"attribute": _get_value(query, store, f"{number}-{query.path[parameter]}")}

    return Route(f"/structs/{store}/{{{parameter}}}/{{attributeType}}", answer)


def _answer_address(query: RouteRequest) -> Body:
    address = query.path["address"]
    return query.world.get("address", address) or {"address": address, "playerId": "1-0", "permissions": "0"}


def _answer_rank_permissions(query: RouteRequest) -> Body:
    """
    List the rank permissions of an object.

    If the path names a guild, the list is truncated instead of paged.
    """
    table = CHAIN_STORES["guild_rank_permission"]
    prefix = "".join(f"{part}/" for part in query.path.values())
    keys = [key for key in query.world.ids(table.name) if key.startswith(prefix)]
    if "guild_id" in query.path:
        return _make_list_body(query, table, keys[:_MAX_RANK_ROWS], None)
    return _make_list_body(query, table, *_select_page(query, table, keys, prefix=prefix))


def _make_module_address(text: str) -> str:
    """Return a fake address of a chain module, which is longer than an account address."""
    digest = hashlib.sha256(text.encode()).digest() * 2
    return "structs1" + "".join(_BECH32[byte % 32] for byte in digest[:58])


def _make_association_routes(name: str, owners: str, parameter: str) -> tuple[Route, Route]:
    """
    Return the routes to one and to all addresses of a kind.

    These addresses are computed from an object id without a record, so every id has one.
    """

    def association(object_id: str) -> Body:
        return {"address": _make_module_address(f"{name}/{object_id}"), "objectId": object_id}

    def one(query: RouteRequest) -> Body:
        return {"internalAddressAssociation": [association(query.path[parameter])], "pagination": None}

    def every(query: RouteRequest) -> Body:
        ids, pagination = _select_page(query, CHAIN_STORES[owners], query.world.ids(owners))
        return {"internalAddressAssociation": [*map(association, ids)], "pagination": pagination}

    return Route(f"/structs/{name}/{{{parameter}}}", one), Route(f"/structs/{name}", every)


def _answer_signature_check(query: RouteRequest) -> Body:
    """Check the formats of the key and the signature, and that the address is known. Do not verify the signature."""

    def is_wrong(name: str, size: int) -> bool:
        try:
            return len(bytes.fromhex(query.path[name])) != size
        except ValueError:
            return True

    key_error = is_wrong("proofPubKey", _PUBLIC_KEY_BYTES)
    signature_error = is_wrong("proofSignature", _SIGNATURE_BYTES)
    unknown = query.world.get("address", query.path["address"]) is None
    return {
        "pubkeyFormatError": key_error,
        "signatureFormatError": signature_error,
        "addressPubkeyMismatch": unknown,
        "signatureInvalid": key_error or signature_error,
        "valid": not (key_error or signature_error or unknown),
    }


def _answer_latest_block(query: RouteRequest) -> Body:
    header = {"chain_id": "structstestnet-mama", "height": str(query.height)}
    return {"block_id": {"hash": "", "part_set_header": None}, "block": {"header": header}, "sdk_block": None}


_ENTITY_STORES: Final = tuple(str(member) for member in EntityType if member.has_ids)
_LISTED_STORES: Final = tuple(name for name in CHAIN_STORES if name != "guild_rank_permission")

# This route belongs to the Cosmos SDK, so the 56 routes do not include it.
LATEST_BLOCK_ROUTE: Final = Route("/cosmos/base/tendermint/v1beta1/blocks/latest", _answer_latest_block)

STRUCTS_ROUTES: Final = (
    *map(_make_entity_route, _ENTITY_STORES),
    *map(_make_list_route, _LISTED_STORES),
    _make_record_route(
        "/structs/infusion/{destinationId}/{address}",
        "infusion",
        lambda path: f"{path['destinationId']}/{path['address']}",
    ),
    Route("/structs/address/{address}", _answer_address),
    _make_record_route(
        "/structs/struct_type/{id}", "struct_type", lambda path: str(parse_uint(path["id"], parameter="id"))
    ),
    _make_list_route(
        "address", "/structs/address_by_player/{playerId}", lambda _, row, player: row.get("playerId") == player
    ),
    _make_list_route(
        "planet", "/structs/planet_by_player/{playerId}", lambda _, row, player: row.get("owner") == player
    ),
    _make_indexed_route("/structs/agreement_by_provider/{providerId}", "agreement", "providerId"),
    _make_indexed_route("/structs/allocation_by_source/{sourceId}", "allocation", "sourceObjectId"),
    _make_indexed_route("/structs/allocation_by_destination/{destinationId}", "allocation", "destinationId"),
    _make_indexed_route("/structs/infusion_by_destination/{destinationId}", "infusion", "destinationId"),
    _make_record_route(
        "/structs/fleet_by_index/{index}", "fleet", lambda path: f"9-{parse_uint(path['index'], parameter='index')}"
    ),
    _make_value_route("grid", "attributeId"),
    _make_attribute_route("struct_attribute", "structId"),
    _make_attribute_route("planet_attribute", "planetId"),
    _make_value_route("permission", "permissionId"),
    _make_list_route(
        "permission", "/structs/permission/object/{objectId}", lambda key, _, wanted: key.split("@")[0] == wanted
    ),
    _make_list_route(
        "permission", "/structs/permission/player/{playerId}", lambda key, _, wanted: key.split("@")[-1] == wanted
    ),
    Route("/structs/guild_rank_permission/object/{object_id}", _answer_rank_permissions),
    Route("/structs/guild_rank_permission/object/{object_id}/guild/{guild_id}", _answer_rank_permissions),
    _make_record_route(
        "/structs/guild_membership_application/{guildId}/{playerId}",
        "guild_membership_application",
        lambda path: f"{path['playerId']}@{path['guildId']}",
    ),
    *_make_association_routes("guild_bank_collateral_address", "guild", "guildId"),
    *_make_association_routes("provider_collateral_address", "provider", "providerId"),
    *_make_association_routes("provider_earnings_address", "provider", "providerId"),
    Route("/structs/validate_signature/{address}/{proofPubKey}/{proofSignature}/{message}", _answer_signature_check),
    Route("/structs/structs/params", lambda _: {"params": {}}),
    Route("/blockheight", lambda query: {"blockHeight": str(query.height)}),
)

ROUTES: Final = (*STRUCTS_ROUTES, LATEST_BLOCK_ROUTE)

_ROUTE_PATTERNS: Final = tuple(
    (route, re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]*)", route.pattern), re.DOTALL)) for route in ROUTES
)
_ROUTE_TYPES: Final = dict.fromkeys(route.kind for route in ROUTES)
_ROUTE_TEMPLATES: Final = dict.fromkeys(route.pattern for route in ROUTES)
_NAMES_IN_PATHS: Final = frozenset({*ATTRIBUTES["struct_attribute"], *ATTRIBUTES["planet_attribute"]})
_PARAMETER_PATTERN: Final = re.compile(r"[0-9].*|structs[a-z]*1.+|[0-9a-fA-F]{16,}", re.DOTALL)
