"""
Reference source for an HTTP API with an OpenAPI 3 description.

Each route for one entity defines a type.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import attrs

from mama_structs._internal.event_loop import LoopGuard
from mama_structs._internal.validation import parse_base_url
from mama_structs.errors import EntityNotFound, InvalidArgument, MalformedResponse, SessionClosed, repr_short
from mama_structs.references.rate_limit import RateLimiter, get_rate_limiter
from mama_structs.references.schemes import INFORMATIVE_FIELD_NAMES, EntitySource, IdScheme

if TYPE_CHECKING:
    from mama_structs.references.http_api import HttpClient, HttpResponse

_ENTITY_PATH_PATTERN: Final = re.compile(
    r"(?P<before>(?:/[^/{}]+)*/(?P<collection>[^/{}]+))/\{(?P<parameter>[^/{}]+)\}/?"
)
_WORD_BOUNDARY_PATTERN: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")
_IRREGULAR_SINGULARS: Final = {"people": "person", "children": "child", "men": "man", "women": "woman", "data": "data"}
# Maximum number of consecutive ``$ref`` references to follow.
_MAX_REFERENCE_STEPS: Final = 32
_MAX_BRIEF_FIELDS: Final = 6
_NOT_FOUND_STATUSES: Final = frozenset({404, 410})
_MAX_CONNECTIONS: Final = 10
_TIMEOUT_SECONDS: Final = 10.0
_MAX_RETRIES: Final = 3
_MAX_RESPONSE_BYTES: Final = 16 * 2**20
_SCALAR_TYPES: Final = frozenset({"string", "integer", "number", "boolean"})


@attrs.frozen
class EntityRoute:
    """
    Route that returns one entity. Its path ends in its only parameter.

    *envelope* is the field of the answer that contains the entity.
    """

    kind: str
    path: str
    parameter: str
    envelope: str | None
    schema: Mapping[str, Any]


def from_openapi(
    spec: Mapping[str, Any] | str | os.PathLike[str],
    *,
    fields: Mapping[str, str] | None = None,
    base_url: str | None = None,
    headers: Mapping[str, str] | None = None,
    session: Any = None,
    name: str | None = None,
) -> EntitySource:
    """
    Return a source for an HTTP API with an OpenAPI 3 description.

    Each ``GET`` path that ends in its only parameter (``/users/{userId}``) defines a type, named after the schema
    of its answer, or else after the path (``user``). The id of an entity is ``type:id``.
    Fields named after the parameter or the type (``user_id``, ``userId``, ``*_user_id``, and plurals) are
    references, and so are fields that the ``links`` of an operation map to a type.

    Args:
        spec: The document: a mapping, JSON text, or the path of a JSON file.
        fields: Further fields with the type of each, as in `IdScheme`.
        base_url: The base URL of the paths; None for the document's first server.
        headers: Sent with every request, such as ``Authorization``.
        session: The host's `aiohttp.ClientSession`; None for connections that close with the source.
        name: The scheme's name; None for the API's title.

    Raises:
        InvalidArgument: The document is invalid, it has no such path, or a server's URL is missing.

    """
    document = read_document(spec)
    own = document.title if name is None else name
    return OpenApiSource(document, fields=fields, base_url=base_url, headers=headers, session=session, name=own)


def read_document(spec: object) -> ApiDocument:
    """
    Return an OpenAPI 3 document from a mapping, a path or JSON text.

    Raise `InvalidArgument` if it is not one.
    """
    hint = (
        "give the document as a dict (yaml.safe_load reads one that is YAML), as JSON text, or the path of a JSON file"
    )
    if isinstance(spec, os.PathLike) or (isinstance(spec, str) and not spec.lstrip().startswith("{")):
        try:
            spec = Path(spec).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"spec cannot be read: {type(error).__name__}", hint=hint) from error
    if isinstance(spec, str):
        try:
            spec = json.loads(spec)
        except (ValueError, RecursionError) as error:
            raise InvalidArgument("spec is no JSON", hint=hint) from error
    if not isinstance(spec, Mapping) or not str(spec.get("openapi", "")).startswith("3."):
        raise InvalidArgument("spec must be an OpenAPI 3 document", hint=hint)
    return ApiDocument(spec)


class ApiDocument:
    """An OpenAPI document: resolves local references, and reads its routes and schemas."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._spec = spec
        self.routes: dict[str, EntityRoute] = {}
        paths = [path for path in _as_mapping(spec.get("paths")) if isinstance(path, str)]
        for path in sorted(paths, key=lambda one: (one.count("/"), one)):
            route = self._make_route(path)
            if route is not None:
                self.routes.setdefault(route.kind, route)

    @property
    def server(self) -> str | None:
        """The URL of the first server, None if it is relative or contains variables."""
        servers = self._spec.get("servers")
        first = _as_mapping(servers[0]).get("url") if isinstance(servers, list) and servers else None
        return first if isinstance(first, str) and "://" in first and "{" not in first else None

    @property
    def title(self) -> str:
        """The title of the API, or "openapi"."""
        title = _as_mapping(self._spec.get("info")).get("title")
        return title if isinstance(title, str) and title else "openapi"

    def map_reference_fields(self) -> dict[str, str]:
        """
        Map field names to the entity types that they refer to.

        The mapping is derived from naming conventions and from the links of the operations.
        """
        fields: dict[str, str] = {}
        for kind, route in self.routes.items():
            words = kind.split("_")
            camel = words[0] + "".join(word.capitalize() for word in words[1:])
            stems = [f"{kind}_id", f"{camel}Id", f"*_{kind}_id", f"*{camel[:1].upper()}{camel[1:]}Id"]
            if route.parameter.lower() not in ("id", "key", "name", "slug", "uuid"):
                stems.append(route.parameter)
            fields |= {form: kind for stem in stems for form in (stem, f"{stem}s")}
        return fields | dict(self._iter_linked_fields())

    def brief_fields(self, kind: str) -> tuple[str, ...]:
        """Return the most informative fields of a type."""
        properties = self._collect_properties(self.routes[kind].schema)
        plain = [name for name, schema in properties.items() if name != "id" and self._is_scalar(schema)]
        telling = [
            name for name in plain if _split_words(name)[-1:] and _split_words(name)[-1] in INFORMATIVE_FIELD_NAMES
        ]
        related = [name for name in plain if name not in telling and _split_words(name)[-1:] in (["id"], ["ids"])]
        return tuple((telling or plain)[:_MAX_BRIEF_FIELDS] + related[:_MAX_BRIEF_FIELDS])

    def _iter_linked_fields(self) -> Iterator[tuple[str, str]]:
        """Yield the field names in the links of operations, each with the entity type that the link leads to."""
        by_operation: dict[str, str] = {}
        for kind, route in self.routes.items():
            operation = _as_mapping(_as_mapping(_as_mapping(self._spec.get("paths")).get(route.path)).get("get"))
            if isinstance(operation.get("operationId"), str):
                by_operation[operation["operationId"]] = kind
        for item in _as_mapping(self._spec.get("paths")).values():
            for operation in _as_mapping(item).values():
                for response in _as_mapping(_as_mapping(operation).get("responses")).values():
                    for link in _as_mapping(self._dereference(response).get("links")).values():
                        told = self._dereference(link)
                        aim = by_operation.get(str(told.get("operationId")))
                        for value in _as_mapping(told.get("parameters")).values():
                            if aim is not None and isinstance(value, str) and value.startswith("$response.body#/"):
                                yield value.rpartition("/")[2], aim

    def _make_route(self, path: str) -> EntityRoute | None:
        matched = _ENTITY_PATH_PATTERN.fullmatch(path)
        item = _as_mapping(_as_mapping(self._spec.get("paths")).get(path))
        operation = item.get("get")
        if matched is None or not isinstance(operation, Mapping):
            return None
        envelope: str | None = None
        name: str | None
        name, schema = self._find_answer_schema(operation)
        if not {"object", "null"}.issuperset(_schema_types(schema)):
            # The operation returns an array or a scalar, not an entity.
            return None
        properties = self._collect_properties(schema)
        inner = [(key, one) for key, one in properties.items() if not self._is_scalar(one)]
        if "id" not in properties and len(inner) == 1 and self._collect_properties(self._dereference(inner[0][1])):
            # The entity is the only object in the answer, as in {"data": {...}}.
            envelope, name, schema = inner[0][0], _schema_name(inner[0][1]), self._dereference(inner[0][1])
        kind = "_".join(_split_words(name or "")) or _to_singular("_".join(_split_words(matched["collection"])))
        return EntityRoute(kind, path, matched["parameter"], envelope, schema) if kind else None

    def _find_answer_schema(self, operation: Mapping[str, Any]) -> tuple[str | None, Mapping[str, Any]]:
        """Return the name and the schema of an operation's successful answer."""
        # In YAML, a status without quotes is a number.
        responses = {str(status): one for status, one in _as_mapping(operation.get("responses")).items()}
        good = next((responses[key] for key in ("200", "2XX", "default") if key in responses), None)
        content = _as_mapping(self._dereference(good).get("content"))
        media = next((_as_mapping(one) for kind, one in content.items() if "json" in kind), {})
        schema = _as_mapping(media.get("schema"))
        return _schema_name(schema), self._dereference(schema)

    def _dereference(self, node: object) -> Mapping[str, Any]:
        """Return *node* with its local reference (``$ref``) resolved."""
        for _ in range(_MAX_REFERENCE_STEPS):
            found = _as_mapping(node)
            reference = found.get("$ref")
            if not isinstance(reference, str):
                return found
            node = self._spec
            for part in reference.removeprefix("#/").split("/"):
                node = _as_mapping(node).get(part.replace("~1", "/").replace("~0", "~"))
        return {}

    def _collect_properties(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return the properties of an object, including the properties of its ``allOf`` schemas."""
        found: dict[str, Any] = {}
        parts = [schema]
        for part in parts:
            found |= _as_mapping(part.get("properties"))
            made_of = part.get("allOf")
            # Visit each schema once, so that recursive schemas terminate.
            for inner in map(self._dereference, made_of if isinstance(made_of, list) else ()):
                if not any(inner is met for met in parts):
                    parts.append(inner)
        return found

    def _is_scalar(self, schema: object) -> bool:
        return not _SCALAR_TYPES.isdisjoint(_schema_types(self._dereference(schema)))


class OpenApiSource:
    """
    Source for the entities of an HTTP API.

    Created by `from_openapi`, which documents the arguments.
    """

    fetch_many: None = None

    def __init__(
        self,
        document: ApiDocument,
        *,
        fields: Mapping[str, str] | None = None,
        base_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        session: Any = None,
        name: str = "openapi",
    ) -> None:
        where = document.server if base_url is None else base_url
        if where is None:
            raise InvalidArgument("spec names no server with a whole URL", hint="give base_url=")
        if not document.routes:
            raise InvalidArgument(
                "spec has no path that gives one entity for its id, such as GET /users/{userId}",
                hint="write a Source of your own: IdScheme(fields={...})",
            )
        for kind in (fields or {}).values():
            if kind not in document.routes:
                known = ", ".join(document.routes)
                raise InvalidArgument(f"fields names the type {repr_short(kind)}, which spec does not have", hint=known)
        self.base_url: str = parse_base_url(where)
        self.routes: Mapping[str, EntityRoute] = document.routes
        self.scheme: IdScheme = IdScheme(
            name=name,
            fields={**document.map_reference_fields(), **(fields or {})},
            types=frozenset(document.routes),
            brief={kind: document.brief_fields(kind) for kind in document.routes},
        )
        self._headers = _check_headers(headers)
        self._session = session
        self._home: LoopGuard | None = None
        self._api: HttpClient | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<OpenApiSource {self.base_url}: {', '.join(self.routes)}>"

    def _join_gate(self, user: object, limit: int) -> RateLimiter:
        """
        Register *user* and its maximum of concurrent queries with the rate limiter of the API.

        Return the limiter.
        """
        own = id(self) if self._session is not None else None
        gate = get_rate_limiter((self.base_url, self._headers, own), is_shared=own is None, clock=time.monotonic)
        gate.register(user, limit)
        return gate

    async def fetch(self, key: str) -> Mapping[str, Any]:
        """Return the API's answer for ``type:id``, or raise `EntityNotFound` for 404 and 410."""
        kind, _, bare = key.partition(":")
        route = self.routes.get(kind)
        # Reject an id that consists of dots, because URLs normalise "." and ".." to a different path.
        if route is None or not bare.strip("."):
            raise EntityNotFound(key)
        target = route.path.rstrip("/").replace(f"{{{route.parameter}}}", quote(bare, safe=""))

        def judge(answer: HttpResponse) -> Mapping[str, Any]:
            if answer.status in _NOT_FOUND_STATUSES:
                raise EntityNotFound(key)
            if answer.is_error:
                answer.raise_error()
            payload = answer.payload
            entity = payload.get(route.envelope, payload) if route.envelope and isinstance(payload, dict) else payload
            if not isinstance(entity, dict):
                raise MalformedResponse(f"the answer of {route.path} is no object")
            return entity

        return await self._connect().send_get(route.path, target, judge)

    def flatten(self, entity_id: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002 - required by the protocol
        """Return the answer unchanged, because it already contains the entity's fields."""
        return answer

    async def close(self) -> None:
        """Close the connections that the source opened. Idempotent."""
        self._closed = True
        api, self._api = self._api, None
        if api is not None:
            api.limiter.unregister(self)
            if self._session is None:
                await api.session.close()
                # Wait for one iteration of the event loop, in which aiohttp closes the transports.
                await asyncio.sleep(0)

    def _connect(self) -> HttpClient:
        if self._closed:
            raise SessionClosed(f"{self!r} is closed", hint="make a new source")
        if self._home is None:
            self._home = LoopGuard("source")
        self._home.check()
        if self._api is None:
            from mama_structs.references import http_api as http  # noqa: PLC0415 - aiohttp is imported on first use

            session = self._session or http.open_session(max_connections=_MAX_CONNECTIONS)
            self._api = http.HttpClient(
                session=session,
                base_url=self.base_url,
                timeout=_TIMEOUT_SECONDS,
                retries=_MAX_RETRIES,
                max_response_bytes=_MAX_RESPONSE_BYTES,
                limiter=self._join_gate(self, http.count_connections(session, _MAX_CONNECTIONS)),
                backoff=http.Backoff(),
                headers=dict(self._headers),
            )
        return self._api


def _check_headers(headers: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Return validated headers. Error messages omit the values, which may be secret."""
    for name, value in (headers or {}).items():
        if not (isinstance(name, str) and isinstance(value, str) and f"{name}{value}".isprintable()):
            raise InvalidArgument(f"headers must map names to texts of one line, and {repr_short(name)} does not")
    return tuple(sorted((headers or {}).items()))


def _as_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _schema_types(schema: Mapping[str, Any]) -> list[str]:
    """Return the JSON types that a schema allows."""
    told = schema.get("type")
    return [one for one in (told if isinstance(told, list) else [told]) if isinstance(one, str)]


def _schema_name(schema: object) -> str | None:
    reference = _as_mapping(schema).get("$ref")
    return reference.rpartition("/")[2] if isinstance(reference, str) else None


def _split_words(name: str) -> list[str]:
    return [word.lower() for word in _WORD_BOUNDARY_PATTERN.split(name) if word]


def _to_singular(word: str) -> str:
    if word in _IRREGULAR_SINGULARS:
        return _IRREGULAR_SINGULARS[word]
    for ending, instead in (("ies", "y"), ("sses", "ss"), ("uses", "us"), ("xes", "x"), ("ches", "ch"), ("shes", "sh")):
        if word.endswith(ending):
            return word.removesuffix(ending) + instead
    return word.removesuffix("s") if not word.endswith("ss") else word
