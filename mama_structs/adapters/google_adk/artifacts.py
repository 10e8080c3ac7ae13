"""Google ADK's artifact service on a session's records; needs the extra ``google-adk``."""

from __future__ import annotations

from typing import Any, Final

import attrs

from mama_structs import sync
from mama_structs.adapters.google_adk.common import HOST_LABEL, convert_errors, hash_name
from mama_structs.adapters.shared.loop_bridge import LoopBridge
from mama_structs.errors import VersionConflict
from mama_structs.memory.types.record import NewRecord
from mama_structs.session.session import Session

try:
    from google.adk.artifacts import BaseArtifactService, artifact_util
    from google.adk.artifacts.base_artifact_service import ArtifactVersion, ensure_part
    from google.adk.errors.input_validation_error import InputValidationError
    from google.genai import types
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.google_adk needs the Agent Development Kit: pip install 'mama-structs[google-adk]'"
    ) from _missing

_USER_PREFIX: Final = "user:"
_ABOUT_KEY: Final = "about"
# An artifact is stored in chunks of this length, whose JSON fits into a record's value.
_MAX_PIECE_CHARS: Final = 1_000_000
_MAX_REFERENCE_DEPTH: Final = 5  # maximum number of references to follow; ADK's own services have the same limit
# When an ADK session is rewound, ADK saves this empty part for an artifact that did not exist at that point.
_REWIND_PLACEHOLDER: Final = types.Part(inline_data=types.Blob(mime_type="application/octet-stream", data=b""))


class AdkArtifactService(BaseArtifactService):
    """
    Versioned files of an ADK app: ``Runner(artifact_service=...)``.

    An artifact of any size is saved atomically under the next version, even if several processes save at the same time.
    Without a session, or with a name that begins with ``user:``, it belongs to the user, and is listed with that
    prefix. Other artifacts can refer to it by its URI (``artifact://...``). Search does not find artifacts.
    Every method raises `InputValidationError` if a name violates ADK's rules or is too long.

    Args:
        session: The session that stores the artifacts. An async one may be used in any event loop while its own runs.

    """

    def __init__(self, session: Session | sync.Session) -> None:
        self._bridge = LoopBridge(session)
        self._records = self._bridge.session.records

    async def save_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: types.Part | dict[str, Any],
        session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
    ) -> int:
        """
        Save text, bytes, or a reference to a file or another artifact, and return its version.

        The first version is 0.

        Raises:
            InputValidationError: The artifact is none of these, it refers to an artifact of another user or session, or
                its metadata is not JSON.

        """
        place = _ArtifactPlace.from_arguments(app_name, user_id, session_id, filename)
        part = ensure_part(artifact)
        mime_type = _get_mime_type(part, place)
        with convert_errors():
            body = part.model_dump_json(exclude_none=True)
            return await self._bridge.arun(lambda: self._save(place, body, mime_type, custom_metadata or {}))

    async def load_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None, version: int | None = None
    ) -> types.Part | None:
        """Return a version of an artifact, following references, or None if it does not exist."""
        place = _ArtifactPlace.from_arguments(app_name, user_id, session_id, filename)
        return await self._bridge.arun(lambda: self._load(place, version))

    async def list_artifact_keys(self, *, app_name: str, user_id: str, session_id: str | None = None) -> list[str]:
        """Return the sorted names of a user's artifacts and, if passed, a session's artifacts."""
        scopes = [_create_scope_labels(app_name, user_id, owner) for owner in {None, session_id}]

        async def names() -> list[str]:
            labels = [found for scope in scopes for found in await self._records.labels(scope)]
            found = await self._records.get_many([(one, _ABOUT_KEY) for one in labels])
            return sorted(one.value["filename"] for one in found if one is not None)

        with convert_errors():
            return await self._bridge.arun(names)

    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Delete an artifact with all its versions."""
        place = _ArtifactPlace.from_arguments(app_name, user_id, session_id, filename)
        with convert_errors():
            await self._bridge.arun(lambda: self._delete(place))

    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """Return the version numbers of an artifact, oldest first."""
        return [
            one.version
            for one in await self._load_versions(_ArtifactPlace.from_arguments(app_name, user_id, session_id, filename))
        ]

    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """Return the metadata of each version of an artifact, oldest first."""
        return await self._load_versions(_ArtifactPlace.from_arguments(app_name, user_id, session_id, filename))

    async def get_artifact_version(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None, version: int | None = None
    ) -> ArtifactVersion | None:
        """Return the metadata of one version of an artifact, by default the newest."""
        found = await self._load_versions(_ArtifactPlace.from_arguments(app_name, user_id, session_id, filename))
        return next((one for one in reversed(found) if version in (None, one.version)), None)

    async def _load_versions(self, place: _ArtifactPlace) -> list[ArtifactVersion]:
        with convert_errors():
            found = await self._bridge.arun(lambda: self._records.history(place.labels, _ABOUT_KEY))
        return [ArtifactVersion.model_validate(one.value["about"]) for one in reversed(found)]

    async def _save(self, place: _ArtifactPlace, body: str, mime_type: str | None, metadata: dict[str, Any]) -> int:
        """Save an artifact as its next version. Retry if another process saves the same version."""
        pieces = [body[start : start + _MAX_PIECE_CHARS] for start in range(0, len(body), _MAX_PIECE_CHARS)]
        while True:
            newest = await self._records.get(place.labels, _ABOUT_KEY)
            version = 0 if newest is None else newest.value["about"]["version"] + 1
            about = ArtifactVersion(version=version, canonical_uri=place.uri(version), mime_type=mime_type)
            # Add the metadata without pydantic, which would serialize NaN as null.
            about_json = about.model_dump(mode="json") | {"custom_metadata": metadata}
            value = {"filename": place.filename, "pieces": len(pieces), "about": about_json}
            was = 0 if newest is None else newest.version
            new = [NewRecord(place.labels, _ABOUT_KEY, value, keep_history=True, if_version=was)]
            new += [NewRecord(*at, piece) for at, piece in zip(_list_piece_places(place, value), pieces, strict=True)]
            try:
                await self._records.put_many(new)
            except VersionConflict:
                continue
            return version

    async def _delete(self, place: _ArtifactPlace) -> None:
        """Delete all versions in one transaction, and retry if a version was added concurrently."""
        while versions := await self._records.history(place.labels, _ABOUT_KEY):
            pieces = [at for one in versions for at in _list_piece_places(place, one.value)]
            try:
                await self._records.put_many([], delete=[(place.labels, _ABOUT_KEY, versions[0].version), *pieces])
            except VersionConflict:
                continue
            return

    async def _load(self, place: _ArtifactPlace, version: int | None) -> types.Part | None:
        """Return an artifact, following references."""
        for remaining in range(_MAX_REFERENCE_DEPTH, -1, -1):
            with convert_errors():
                part = await self._load_part(place, version)
            if part is None or not artifact_util.is_artifact_ref(part):
                break
            target = _resolve_reference(part, place, remaining=remaining)
            version = target.version
            place = _ArtifactPlace.from_arguments(target.app_name, target.user_id, target.session_id, target.filename)
        return None if part == _REWIND_PLACEHOLDER else part

    async def _load_part(self, place: _ArtifactPlace, version: int | None) -> types.Part | None:
        """Return a version of an artifact, by default the newest, or None if it does not exist."""
        versions = await self._records.history(place.labels, _ABOUT_KEY)
        value = next((one.value for one in versions if version in (None, one.value["about"]["version"])), None)
        pieces = [] if value is None else await self._records.get_many(_list_piece_places(place, value))
        # A concurrent deletion of the version may have deleted some of its chunks.
        whole = [one.value for one in pieces if one is not None]
        return types.Part.model_validate_json("".join(whole)) if whole and len(whole) == len(pieces) else None


@attrs.frozen
class _ArtifactPlace:
    """Identity of an artifact. *session_id* is set even if the artifact belongs to the user."""

    app_name: str
    user_id: str
    session_id: str | None
    filename: str

    @classmethod
    def from_arguments(cls, app_name: str, user_id: str, session_id: str | None, filename: str) -> _ArtifactPlace:
        """Normalize ADK's arguments, so that all spellings of an artifact give the same identity."""
        name = filename if session_id is not None or filename.startswith(_USER_PREFIX) else f"{_USER_PREFIX}{filename}"
        if name in ("", _USER_PREFIX):
            raise InputValidationError("filename must not be empty.")
        # ADK's session services strip ids, so " s1" and "s1" must be the same session here, too.
        return cls(app_name, user_id, None if session_id is None else session_id.strip(), name)

    @property
    def owner(self) -> str | None:
        """The id of the session that owns the artifact, or None if the user owns it."""
        return None if self.filename.startswith(_USER_PREFIX) else self.session_id

    @property
    def labels(self) -> tuple[str, ...]:
        return (*_create_scope_labels(self.app_name, self.user_id, self.owner), hash_name(self.filename))

    def uri(self, version: int) -> str:
        return artifact_util.get_artifact_uri(self.app_name, self.user_id, self.filename, version, self.owner)


def _create_scope_labels(app_name: str, user_id: str, session_id: str | None) -> tuple[str, ...]:
    """Return the labels of a session's or user's artifacts, without the artifact name."""
    artifact_util.validate_path_segment(app_name, "app_name")
    artifact_util.validate_path_segment(user_id, "user_id")
    labels = (HOST_LABEL, "artifacts", app_name, user_id)
    if session_id is None:
        return (*labels, "user")
    artifact_util.validate_path_segment(session_id, "session_id")
    return (*labels, "session", session_id.strip())


def _list_piece_places(place: _ArtifactPlace, value: dict[str, Any]) -> list[tuple[tuple[str, ...], str]]:
    """Return the labels and key of each record that stores a chunk of an artifact version."""
    version = value["about"]["version"]
    return [(place.labels, f"{version}.{number}") for number in range(value["pieces"])]


def _get_mime_type(part: types.Part, place: _ArtifactPlace) -> str | None:
    """
    Return the MIME type of an artifact, or None for a reference to another artifact.

    Raise for parts that ADK does not support as artifacts.
    """
    if part.inline_data is not None and part.inline_data.data is not None:
        return part.inline_data.mime_type
    if part.text is not None:
        return "text/plain"
    if part.file_data is None or not part.file_data.file_uri:
        raise InputValidationError("Not supported artifact type: it has no text, no data and no file.")
    if not artifact_util.is_artifact_ref(part):
        return part.file_data.mime_type
    _resolve_reference(part, place, remaining=1)
    return None


def _resolve_reference(part: types.Part, place: _ArtifactPlace, *, remaining: int) -> artifact_util.ParsedArtifactUri:
    """Return the artifact that a reference points to; raise if that artifact has another user or session."""
    return artifact_util.resolve_artifact_reference(
        file_uri=(part.file_data and part.file_data.file_uri) or "",
        app_name=place.app_name,
        user_id=place.user_id,
        session_id=place.session_id,
        remaining_depth=remaining,
    )
