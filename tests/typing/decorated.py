"""Types of decorated tools; checked by mypy and pyright, never executed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_type

from mama_structs import IdScheme, Session, Source, with_descriptors, with_references


@with_references
async def look(player_id: str, *, deep: bool = False) -> dict[str, int]:
    return {player_id: int(deep)}


@with_references(kind="list", max_references=20)
async def listing(page: int = 1) -> dict[str, int]:
    return {"page": page}


@with_references
def plain(player_id: str, *, deep: bool = False) -> dict[str, int]:
    return {player_id: int(deep)}


@with_references(kind="list")
def plain_listing(page: int = 1) -> dict[str, int]:
    return {"page": page}


@with_descriptors
def long(page: int = 1) -> list[int]:
    return [page]


@with_descriptors()
async def longer(page: int = 1) -> list[int]:
    return [page]


class Agent:
    @with_references
    def plain_method(self, planet_id: str) -> dict[str, int]:
        return {planet_id: 1}

    @with_references
    async def method(self, planet_id: str) -> dict[str, int]:
        return {planet_id: 1}


async def the_tools_own_parameters_are_kept() -> None:
    assert_type(await look("1-11"), dict[str, int])
    assert_type(await look("1-11", deep=True), dict[str, int])
    assert_type(await listing(page=2), dict[str, int])
    await look(11)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]
    await look()  # type: ignore[call-overload] # pyright: ignore[reportCallIssue]
    await look("1-11", deeper=True)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue]


async def the_keywords_are_gained() -> None:
    assert_type(await look("1-11", include_references=False), dict[str, int])
    assert_type(await look("1-11", include_references=True), dict[str, int] | dict[str, Any])
    assert_type(
        await look(
            "1-11",
            deep=True,
            include_references="primary",
            reference_depth=2,
            reference_types=["planet"],
            max_references=3,
            max_references_per_entity=1,
        ),
        dict[str, int] | dict[str, Any],
    )
    assert_type(await listing(max_references=3), dict[str, int] | dict[str, Any])
    await look("1-11", include_references="some")  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]
    await look("1-11", include_references=True, reference_depth="2")  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]


async def plain_functions_are_awaited() -> None:
    assert_type(await plain("1-11", deep=True), dict[str, int])
    assert_type(await plain("1-11", include_references=True), dict[str, int] | dict[str, Any])
    assert_type(await plain_listing(page=2), dict[str, int])
    assert_type(await Agent().plain_method("2-1"), dict[str, int])
    assert_type(await long(page=2), list[int] | str)
    assert_type(await longer(page=2), list[int] | str)
    await plain(11)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]
    await long("2")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def a_source_takes_plain_and_async_functions(scheme: IdScheme) -> None:
    async def fetch(key: str) -> Mapping[str, Any]:
        return {"key": key}

    Source(scheme, fetch=fetch)
    Source(scheme, fetch=lambda key: {"key": key}, fetch_many=lambda keys: {key: {"key": key} for key in keys})
    Source(scheme, fetch=len)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


async def methods_bind() -> None:
    assert_type(await Agent().method("2-1"), dict[str, int])
    assert_type(await Agent().method("2-1", include_references=True), dict[str, int] | dict[str, Any])
    await Agent().method()  # type: ignore[call-overload] # pyright: ignore[reportCallIssue]


async def a_session_binds() -> None:
    async with Session.open() as session:

        @session.with_references
        async def bound(number: int) -> dict[str, int]:
            return {"n": number}

        @session.with_references
        def plain(number: int) -> dict[str, int]:
            return {"n": number}

        @session.with_references(subject="number", metadata=True)
        async def other(number: int) -> dict[str, int]:
            return {"n": number}

        assert_type(await bound(3), dict[str, int])
        assert_type(await plain(3), dict[str, int])
        assert_type(await other(3, include_references=True), dict[str, int] | dict[str, Any])
    assert_type(await Session.open(), Session)
