"""The OpenAPI source, tested over real sockets."""

import contextlib
import json

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import Resolver, Session
from mama_structs.errors import EntityNotFound, InvalidArgument, MamaStructsError, RateLimited, SessionClosed
from mama_structs.sources import from_openapi
from mama_structs.sources.openapi import read_document

USER = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "name": {"type": "string"}, "bio": {"type": "string"}},
}
ISSUE = {
    "allOf": [
        {"type": "object", "properties": {"id": {"type": "integer"}, "title": {"type": "string"}}},
        {
            "type": "object",
            "properties": {
                "state": {"type": "string"},
                "reporter": {"type": "string"},
                "team_id": {"type": "integer"},
                "labels": {"type": "array"},
            },
        },
    ]
}


def answering(schema, **more):
    """Return an OpenAPI operation whose response has this schema."""
    content = {"application/json": {"schema": schema}}
    return {"get": {"responses": {"200": {"description": "ok", "content": content, **more}}}}


SPEC = {
    "openapi": "3.1.0",
    "info": {"title": "Tracker", "version": "1"},
    "servers": [{"url": "https://tracker.example.org/api"}],
    "paths": {
        "/users": answering({"type": "array"}),
        "/users/{userId}": {
            "get": {"operationId": "getUser", **answering({"$ref": "#/components/schemas/User"})["get"]},
        },
        "/users/{userId}/issues/{n}": answering({"type": "object"}),
        "/issues/{key}": answering(
            {"$ref": "#/components/schemas/Issue"},
            links={"by": {"operationId": "getUser", "parameters": {"userId": "$response.body#/reporter"}}},
        ),
        "/teams/{id}/": answering({"type": "object", "properties": {"data": {"$ref": "#/components/schemas/Team"}}}),
        "/companies/{companyId}": answering({"type": "object"}),
        "/loop/{id}": answering({"$ref": "#/components/schemas/Loop"}),
    },
    "components": {
        "schemas": {
            "User": USER,
            "Issue": ISSUE,
            "Team": {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}},
            "Loop": {"$ref": "#/components/schemas/Loop"},
        }
    },
}
ENTITIES = {
    "/api/users/u1": {"id": "u1", "name": "Ada", "bio": "x"},
    "/api/users/a%2Fb": {"id": "a/b", "name": "Odd"},
    "/api/issues/7": {"id": 7, "title": "Broken", "state": "open", "reporter": "u1", "team_id": 3},
    "/api/teams/3": {"data": {"id": 3, "name": "Core"}},
}


@contextlib.asynccontextmanager
async def serving(answers=None):
    """Serve the API on a local port, and yield its URL and the list of received requests."""
    asked = []

    async def answer(request):
        asked.append((request.raw_path, request.headers.get("Authorization")))
        found = (answers or ENTITIES).get(request.raw_path)
        if isinstance(found, web.Response):
            return found.__class__(status=found.status, headers=found.headers, text=found.text)
        return web.json_response(found) if found is not None else web.json_response({}, status=404)

    app = web.Application()
    app.router.add_get("/{anything:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/api", asked
    finally:
        await runner.cleanup()


async def test_enrich_fetches_entities_by_type_path():
    """Reference fields come from type names and from links."""
    async with serving() as (url, asked):
        source = from_openapi(SPEC, base_url=url, headers={"Authorization": "Bearer t"})
        async with Resolver([source]) as resolver:
            answer = await resolver.enrich(
                {"id": 7, "type": "issue", "reporter": "u1", "team_id": 3, "title": "Broken"}
            )

    assert {"user:u1": ("user", "Ada"), "team:3": ("team", "Core")} == {
        key: (entry["reference_type"], entry["name"]) for key, entry in answer["references"].items()
    }
    assert {("/api/users/u1", "Bearer t"), ("/api/teams/3", "Bearer t")} == set(asked)
    assert "Bearer" not in repr(source)


async def test_session_tool_result_gets_references_from_api():
    """Each entity is fetched once."""
    async with (
        serving() as (url, asked),
        Session.open(sources=[from_openapi(json.dumps(SPEC), base_url=url)]) as session,
    ):

        @session.with_references
        async def issues() -> dict:
            return {"issues": [{"id": 7, "reporter": "u1"}, {"id": 8, "reporter": "u1", "company_id": "nowhere"}]}

        session.tools.add(issues)
        answer = await session.call("issues", {"include_references": True})

    assert "Ada" == answer["references"]["user:u1"]["name"]
    assert "Entity not found" == answer["references"]["company:nowhere"]["error"]
    assert 2 == len(asked)


@pytest.mark.parametrize(
    ("bare", "path"), [("a/b", "/api/users/a%2Fb"), ("u1?x=1#y", None), ("ü", None), ("%2e%2e", None)]
)
async def test_id_is_escaped_as_one_path_segment(bare, path):
    async with serving() as (url, asked), Resolver([from_openapi(SPEC, base_url=url)]) as resolver:
        with contextlib.suppress(EntityNotFound):
            await resolver.fetch(f"user:{bare}")

    assert (
        [path] == [one for one, _ in asked] if path else all(one.count("/") == 3 and "?" not in one for one, _ in asked)
    )


@pytest.mark.parametrize("bare", [".", "..", "..."])
async def test_id_of_dots_only_is_not_found_without_request(bare):
    """Such a path segment would lead to another path."""
    async with serving() as (url, asked), Resolver([from_openapi(SPEC, base_url=url)]) as resolver:
        with pytest.raises(EntityNotFound):
            await resolver.fetch(f"user:{bare}")

    assert [] == asked


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (web.Response(status=410), EntityNotFound),
        (web.Response(status=401, text="no"), MamaStructsError),
        (web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}), MamaStructsError),
        (web.Response(text="<html>"), MamaStructsError),
        (web.Response(text="[1]"), MamaStructsError),
        (web.Response(text='{"a": NaN}'), MamaStructsError),
        (web.Response(status=429, headers={"Retry-After": "60"}), RateLimited),
    ],
)
async def test_error_answer_raises_typed_error(answer, error):
    """Only 404 and 410 mean that there is no such entity."""
    async with (
        serving({"/api/users/u1": answer}) as (url, asked),
        Resolver([from_openapi(SPEC, base_url=url)]) as one,
    ):
        with pytest.raises(error):
            await one.fetch("user:u1")

    assert 1 == len(asked)


async def test_closed_source_raises_session_closed():
    """Closing twice has no effect."""
    async with serving() as (url, _):
        source = from_openapi(SPEC, base_url=url)
        assert "Ada" == (await source.fetch("user:u1"))["name"]
        await source.close()
        await source.close()
        with pytest.raises(SessionClosed):
            await source.fetch("user:u1")


def test_document_defines_types_paths_and_fields():
    """A type is named after its schema or its path. A path with two parameters defines none."""
    document = read_document(SPEC)

    assert {"user", "issue", "team", "company", "loop"} == set(document.routes)
    assert ("Tracker", "https://tracker.example.org/api") == (document.title, document.server)
    assert ("title", "state", "team_id") == document.brief_fields("issue")
    fields = document.map_reference_fields()
    assert "user" == fields["reporter"] == fields["userId"] == fields["user_ids"] == fields["*_user_id"]
    assert "company" == fields["companyId"] == fields["company_id"]
    assert not fields.keys() & {"id", "key", "n"}


def test_document_accepts_numeric_status():
    """YAML parsers return the number 200 for an unquoted status."""
    answer = answering({"$ref": "#/components/schemas/User"})["get"]["responses"]["200"]
    document = read_document({**SPEC, "paths": {"/u/{id}": {"get": {"responses": {200: answer}}}}})

    assert ["user"] == list(document.routes)
    assert ("name",) == document.brief_fields("user")


def test_document_ignores_paths_without_object_answer():
    """Arrays and texts are not entities, and a type needs a name."""
    paths = {
        "/issues/by/{state}": answering({"type": "array", "items": ISSUE}),
        "/motd/{day}": answering({"type": ["string", "null"]}),
        "/__/{id}": answering({"type": "object"}),
        "/issues/{key}": answering({"type": ["object", "null"]}),
        7: answering({"type": "object"}),
    }

    assert ["issue"] == list(read_document({**SPEC, "paths": paths}).routes)


def test_document_reads_recursive_schema_once():
    loop = {"allOf": [{"$ref": "#/components/schemas/A"}] * 2, "properties": {"name": {"type": "string"}}}
    paths = {"/as/{id}": answering({"$ref": "#/components/schemas/A"}), "/bs/{id}": answering({"allOf": 3})}
    document = read_document({"openapi": "3.0.0", "paths": paths, "components": {"schemas": {"A": loop}}})

    assert (("name",), ()) == (document.brief_fields("a"), document.brief_fields("b"))


@pytest.mark.parametrize(
    ("spec", "options", "says"),
    [
        ("no such file", {}, "cannot be read"),
        ("{", {}, "no JSON"),
        ({"swagger": "2.0"}, {}, "OpenAPI 3"),
        ({"openapi": "3.0.0", "paths": {}}, {"base_url": "http://localhost"}, "no path"),
        ({**SPEC, "servers": []}, {}, "no server"),
        ({**SPEC, "servers": [{"url": "/v1"}]}, {}, "no server"),
        (SPEC, {"base_url": "ftp://x"}, "base_url"),
        (SPEC, {"fields": {"x": "nothing"}}, "'nothing'"),
        (SPEC, {"headers": {"A": "b\nc"}}, "headers"),
    ],
)
def test_from_openapi_rejects_document_without_entities(spec, options, says):
    """The error names the problem, but never the value of a header."""
    with pytest.raises(InvalidArgument, match=says) as caught:
        from_openapi(spec, **options)
    assert "b\nc" not in str(caught.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "get",
                        "paths",
                        "/a/{b}",
                        "responses",
                        "200",
                        "content",
                        "application/json",
                        "schema",
                        "$ref",
                        "links",
                        "allOf",
                        "properties",
                        "parameters",
                        "type",
                    ]
                ),
                inner,
            )
        ),
        max_leaves=30,
    )
)
def test_document_of_any_shape_is_read_without_error(paths):
    document = read_document(
        {"openapi": "3.0.0", "paths": {"/a/{b}": paths, "/c/{id}": {"get": paths}}, "info": paths, "servers": paths}
    )

    assert document.map_reference_fields() is not None
    assert all(document.brief_fields(kind) is not None for kind in document.routes)
    assert document.title
