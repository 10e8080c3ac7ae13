"""Settings: one frozen class for each area, validated on creation."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, TypeVar

import attrs

from mama_structs._internal.budget import Budget
from mama_structs._internal.jsonable import JsonMixin
from mama_structs._internal.validation import (
    MAX_SPAN_SECONDS,
    check_bool,
    check_choice,
    check_integer,
    check_ratio,
    check_seconds,
    check_texts,
    invalid_argument,
    setting_validator,
)
from mama_structs.errors import InvalidSetting, repr_short

__all__ = [
    "AnswerSettings",
    "DescriptorSettings",
    "LinkingPolicy",
    "MemorySettings",
    "ReferenceSettings",
    "ServerSettings",
    "Settings",
    "TelemetrySettings",
    "ToolSettings",
]

ENV_PREFIX = "MAMA_STRUCTS_"
TEST_ENV_PREFIX: Final = f"{ENV_PREFIX}TEST_"
TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})

Section = TypeVar("Section")


def _convert_path(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _check_path(name: str, value: object) -> None:
    if not isinstance(value, str) or "\0" in value:
        raise invalid_argument(name, "must be text without NUL", value)


def _check_instance(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise invalid_argument(name, f"must be a {kind.__name__}", value)


BOOL_VALIDATOR: Final = setting_validator(check_bool)
COUNT_VALIDATOR: Final = setting_validator(check_integer, 0)
POSITIVE_COUNT_VALIDATOR: Final = setting_validator(check_integer, 1)
SECONDS_VALIDATOR: Final = setting_validator(check_seconds)
OPTIONAL_SECONDS_VALIDATOR: Final = setting_validator(check_seconds, allow_zero=True)
SPAN_VALIDATOR: Final = setting_validator(check_seconds, allow_zero=True, maximum=MAX_SPAN_SECONDS)
RATIO_VALIDATOR: Final = setting_validator(check_ratio)


@attrs.frozen(kw_only=True)
class ReferenceSettings(JsonMixin):
    """
    Settings of one `Resolver`.

    Args:
        enabled: False disables references everywhere.
        max_parallel_queries: Maximum number of concurrent upstream queries of all tools.
        query_timeout: Timeout of one query in seconds, counted from the time at which it may start.
        cache_ttl: Seconds for which an answer may be reused; 0 disables reuse.
        cache_until: ``"ttl"``, or ``"block"``: until a newer block is seen, and at most *cache_ttl*.
        cache_entries: Maximum number of cached answers.
        cache_bytes: Maximum size of the cached answers, in bytes of JSON.
        not_found_ttl: Seconds for which a "not found" result may be reused.
        include_memories: Whether every call with references adds the newest decisions about each entity, as
            `ReferenceOptions` does for one call.
        parameters: The reference parameters that models see in tool schemas: ``"main"`` for *include_references*,
            *reference_types* and *reference_depth*, ``"all"`` for the limits, too. All are accepted in both cases.

    Raises:
        InvalidSetting: A value breaks its rule.

    """

    enabled: bool = attrs.field(default=True, validator=BOOL_VALIDATOR)
    max_parallel_queries: int = attrs.field(default=5, validator=POSITIVE_COUNT_VALIDATOR)
    query_timeout: float = attrs.field(default=2.0, validator=SECONDS_VALIDATOR)
    cache_ttl: float = attrs.field(default=30.0, validator=OPTIONAL_SECONDS_VALIDATOR)
    cache_until: Literal["ttl", "block"] = attrs.field(
        default="ttl", validator=setting_validator(check_choice, ("ttl", "block"))
    )
    cache_entries: int = attrs.field(default=4096, validator=COUNT_VALIDATOR)
    cache_bytes: int = attrs.field(default=32 * 2**20, validator=COUNT_VALIDATOR)
    not_found_ttl: float = attrs.field(default=5.0, validator=OPTIONAL_SECONDS_VALIDATOR)
    include_memories: bool = attrs.field(default=False, validator=BOOL_VALIDATOR)
    parameters: Literal["main", "all"] = attrs.field(
        default="main", validator=setting_validator(check_choice, ("main", "all"))
    )


@attrs.frozen(kw_only=True)
class DescriptorSettings(JsonMixin):
    """
    Settings of one `RefStore`.

    Args:
        enabled: Whether large results become descriptors, and models have the tools for descriptors and refs.
        marks_enabled: Whether the prompt asks models to mark parts of their answers, and marks are stored.
        suggest_refs: Whether a note with the next tool result suggests ids for the code blocks that a model did not
            mark, at most three for each answer.
        page_size: Characters per page.
        max_bytes: Maximum content of one conversation, in bytes (UTF-8).
        max_handles: Maximum number of handles of one conversation; each version of a ref counts.
        search_timeout: Timeout of a search in seconds.
        conversation_ttl: Seconds after the last use until a conversation of the session's namespace expires. It is
            deleted when a session opens or runs maintenance. None for never.
        allow_hidden: Whether models may write files and directories whose names begin with a dot.
        files_root: The same as *files_root* of `Session.open`, for hosts that are configured by environment variables.

    Raises:
        InvalidSetting: A value breaks its rule.

    """

    enabled: bool = attrs.field(default=True, validator=BOOL_VALIDATOR)
    marks_enabled: bool = attrs.field(default=True, validator=BOOL_VALIDATOR)
    suggest_refs: bool = attrs.field(default=False, validator=BOOL_VALIDATOR)
    page_size: int = attrs.field(default=4_000, validator=POSITIVE_COUNT_VALIDATOR)
    max_bytes: int = attrs.field(default=64 * 2**20, validator=COUNT_VALIDATOR)
    max_handles: int = attrs.field(default=10_000, validator=COUNT_VALIDATOR)
    search_timeout: float = attrs.field(default=2.0, validator=SECONDS_VALIDATOR)
    conversation_ttl: float | None = attrs.field(
        default=None,
        validator=attrs.validators.optional(setting_validator(check_seconds, maximum=MAX_SPAN_SECONDS)),
        metadata={"like": 0.0},
    )
    allow_hidden: bool = attrs.field(default=False, validator=BOOL_VALIDATOR)
    files_root: str = attrs.field(default="", converter=_convert_path, validator=setting_validator(_check_path))


# A smaller answer has no room for an error with its hint, or for the call that reads the remaining content.
MIN_ANSWER_SIZE: Final = 1_000


def _check_callable(name: str, value: object) -> None:
    if not callable(value):
        raise invalid_argument(name, "must be a function of a text that returns a whole number", value)


@attrs.frozen(kw_only=True)
class AnswerSettings(JsonMixin):
    """
    Limits for the length of tool answers, and of the list of handles in the prompt.

    Args:
        max_chars: Maximum number of characters of an answer; 1,000 or more.
        max_tokens: Maximum number of tokens, used instead of *max_chars*; requires *count_tokens*. 1,000 or more.
        count_tokens: Returns the number of tokens of a text. Called often, so it should be fast.

    Raises:
        InvalidSetting: A value breaks its rule, or only one of *max_tokens* and *count_tokens* is set.

    """

    max_chars: int = attrs.field(default=8_000, validator=setting_validator(check_integer, MIN_ANSWER_SIZE))
    max_tokens: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(setting_validator(check_integer, MIN_ANSWER_SIZE))
    )
    count_tokens: Callable[[str], int] | None = attrs.field(
        default=None, validator=attrs.validators.optional(setting_validator(_check_callable))
    )

    def __attrs_post_init__(self) -> None:
        """Raise `InvalidSetting` unless both `max_tokens` and `count_tokens` are set, or neither."""
        if (self.max_tokens is None) is not (self.count_tokens is None):
            raise InvalidSetting(
                "max_tokens and count_tokens need each other",
                name="max_tokens",
                hint="AnswerSettings(max_tokens=2_000, count_tokens=lambda text: len(encoding.encode(text)))",
            )

    @property
    def _budget(self) -> Budget:
        """Maximum size of an answer, in tokens if `max_tokens` is set, else in characters."""
        if self.max_tokens is not None and self.count_tokens is not None:
            return Budget(self.max_tokens, size=functools.partial(_count_tokens, self.count_tokens))
        return Budget(self.max_chars)


def _count_tokens(count: Callable[[str], int], text: str) -> int:
    """
    Count the tokens of a text.

    Lone surrogates, which many tokenizers reject, are replaced first.
    """
    try:
        return count(text)
    except (UnicodeError, TypeError):
        return count(text.encode("utf-8", "replace").decode())


@attrs.frozen(kw_only=True)
class LinkingPolicy(JsonMixin):
    """
    Rules for the links that a save creates automatically.

    Presets: `default`, `strict` and `off`.

    Args:
        threshold: Minimum probability, 0 to 1, that two memories are about the same subject.
        max_semantic: Maximum number of association links that one save creates, besides those that store conflicts.
        max_temporal: Maximum number of temporal links that one save creates.
        temporal_window: Temporal links lead to memories of the last *temporal_window* seconds; 0 disables them.
        temporal_same_topic: Whether temporal links need the same topic.
        topic_window: Seconds within which two decisions of one topic are associated, similar or not; 0 for never.
        max_incoming: A memory with this many incoming automatic links gets no more.
        min_confidence: Minimum confidence of an automatic link.

    Raises:
        InvalidSetting: A value breaks its rule.

    """

    threshold: float = attrs.field(default=0.75, validator=RATIO_VALIDATOR)
    max_semantic: int = attrs.field(default=5, validator=COUNT_VALIDATOR)
    max_temporal: int = attrs.field(default=3, validator=COUNT_VALIDATOR)
    temporal_window: float = attrs.field(default=3600.0, validator=SPAN_VALIDATOR)
    temporal_same_topic: bool = attrs.field(default=False, validator=BOOL_VALIDATOR)
    topic_window: float = attrs.field(default=0.0, validator=SPAN_VALIDATOR)
    max_incoming: int = attrs.field(default=32, validator=COUNT_VALIDATOR)
    min_confidence: float = attrs.field(default=0.3, validator=RATIO_VALIDATOR)

    @classmethod
    def default(cls) -> LinkingPolicy:
        """Return the default policy: at most 8 links per save, semantic links from probability 0.75."""
        return cls()

    @classmethod
    def strict(cls) -> LinkingPolicy:
        """
        Return a stricter policy.

        Semantic links need a probability of 0.85, temporal links the same topic and at most 15 minutes between.
        """
        return cls(threshold=0.85, temporal_window=15 * 60.0, temporal_same_topic=True, topic_window=7 * 24 * 3600.0)

    @classmethod
    def off(cls) -> LinkingPolicy:
        """Return a policy that creates no links."""
        return cls(max_semantic=0, max_temporal=0)

    @classmethod
    def preset(cls, name: str) -> LinkingPolicy:
        """
        Return the policy with this name: ``default``, ``strict`` or ``off``.

        Args:
            name: The name of the preset: ``default``, ``strict`` or ``off``.

        Raises:
            InvalidSetting: There is no such preset.

        """
        presets = {"default": cls.default, "strict": cls.strict, "off": cls.off}
        if name not in presets:
            message = f"linking must be a LinkingPolicy or one of {', '.join(presets)}, got {repr_short(name)}"
            raise InvalidSetting(message, name="linking")
        return presets[name]()


def _convert_policy(value: Any) -> Any:
    return LinkingPolicy.preset(value) if isinstance(value, str) else value


@attrs.frozen(kw_only=True)
class MemorySettings(JsonMixin):
    """
    Settings of one `MemoryStore`.

    Args:
        linking: Rules for automatic links: a `LinkingPolicy`, or the name of a preset.
        exact_up_to: Up to this number of memories, vectors are compared exactly; above it, an HNSW index is used.
        prune_every: Seconds after which `admin.maintain` prunes again.
        prune_below: Automatic links with a stored confidence below this value, 0 to 1, are pruned.
        prune_temporal_after: Seconds after which automatic temporal links are pruned.
        max_content: Maximum number of characters of one memory's text.
        max_evidence: Maximum size of an evidence text, in bytes (UTF-8).
        load_embedder_at_open: If True, a thread loads the embedder's model while the session opens. If False, the model
            is loaded when a vector is needed, so a session that uses no memories does not need its memory.
        embedding_cache_entries: Maximum number of texts whose vectors are cached.
        rerank_timeout: Timeout of the reranker in seconds, if the session has one.
        judge_timeout: Timeout of the judge in seconds, if the session has one.
        rerank_limit: Maximum number of top hits that are reranked.
        record_versions: Maximum number of former versions of a record that `RecordStore.history` returns. A put with
            *keep_history* deletes older ones.
        record_versions_ttl: Seconds after which a replaced version is left out, and deleted by the next put; None for
            never.
        snapshot_every: Changes after which a snapshot of the views is written; at least an eighth of all changes.

    Raises:
        InvalidSetting: A value breaks its rule.

    """

    linking: LinkingPolicy = attrs.field(
        factory=LinkingPolicy, converter=_convert_policy, validator=setting_validator(_check_instance, LinkingPolicy)
    )
    exact_up_to: int = attrs.field(default=5_000, validator=COUNT_VALIDATOR)
    prune_every: float = attrs.field(default=7 * 86400.0, validator=SPAN_VALIDATOR)
    prune_below: float = attrs.field(default=0.2, validator=RATIO_VALIDATOR)
    prune_temporal_after: float = attrs.field(default=30 * 86400.0, validator=SPAN_VALIDATOR)
    max_content: int = attrs.field(default=1_000_000, validator=POSITIVE_COUNT_VALIDATOR)
    max_evidence: int = attrs.field(default=16 * 2**20, validator=COUNT_VALIDATOR)
    load_embedder_at_open: bool = attrs.field(default=True, validator=BOOL_VALIDATOR)
    embedding_cache_entries: int = attrs.field(default=2_048, validator=COUNT_VALIDATOR)
    rerank_timeout: float = attrs.field(default=2.0, validator=SECONDS_VALIDATOR)
    judge_timeout: float = attrs.field(default=10.0, validator=SECONDS_VALIDATOR)
    rerank_limit: int = attrs.field(default=50, validator=POSITIVE_COUNT_VALIDATOR)
    record_versions: int = attrs.field(default=1_000, validator=COUNT_VALIDATOR)
    record_versions_ttl: float | None = attrs.field(
        default=None,
        validator=attrs.validators.optional(setting_validator(check_seconds, maximum=MAX_SPAN_SECONDS)),
    )
    snapshot_every: int = attrs.field(default=10_000, validator=POSITIVE_COUNT_VALIDATOR)


PROFILE_NAMES: Final = ("all", "memory")
MAX_TOOL_NAME_CHARS: Final = 64


def _convert_profile(value: Any) -> Any:
    if isinstance(value, str) and value not in PROFILE_NAMES:
        return tuple(name.strip() for name in value.split(","))
    return value if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)


def _check_profile(name: str, value: object) -> None:
    if value not in PROFILE_NAMES and not (
        isinstance(value, tuple) and check_texts(name, value, max_chars=MAX_TOOL_NAME_CHARS)
    ):
        raise invalid_argument(name, "must be 'all', 'memory' or names of tools", value)


@attrs.frozen(kw_only=True)
class ToolSettings(JsonMixin):
    """
    Settings for the tools of a session, and for the tools that a model sees.

    Args:
        profile: The built-in tools that exist: ``"all"``, ``"memory"`` for the memory tools only, or a list of names.
            Other built-in tools are hidden from models, and calling one is calling an unknown tool. Tools that the host
            adds and those of v1.0 exist in every profile.
        forget: Whether models have ``evolve/forget``, which erases memories permanently.
        memory: Whether a session has the tools that save, load, search and evolve memories.
        dynamic: ``"auto"`` shows the tools for the current message if the framework can follow changes,
            ``"force_static"`` always shows all, ``"force_dynamic"`` always shows the tools for the current message.
        deprecated: Whether models see the tools of v1.0, which can be called in both cases.

    Raises:
        InvalidSetting: A value breaks its rule.

    """

    profile: Literal["all", "memory"] | tuple[str, ...] = attrs.field(
        default="all", converter=_convert_profile, validator=setting_validator(_check_profile)
    )
    forget: bool = attrs.field(default=False, validator=BOOL_VALIDATOR)
    memory: bool = attrs.field(default=True, validator=BOOL_VALIDATOR)
    dynamic: Literal["auto", "force_static", "force_dynamic"] = attrs.field(
        default="auto", validator=setting_validator(check_choice, ("auto", "force_static", "force_dynamic"))
    )
    deprecated: bool = attrs.field(default=False, validator=BOOL_VALIDATOR)


def disable_unreadable_descriptors(settings: Settings) -> Settings:
    """Disable descriptors if the tool profile lacks `read_fd`, which reads them."""
    profile = settings.tools.profile
    if profile == "all" or (isinstance(profile, tuple) and "read_fd" in profile):
        return settings
    return attrs.evolve(settings, descriptors=attrs.evolve(settings.descriptors, enabled=False))


@attrs.frozen(kw_only=True)
class TelemetrySettings(JsonMixin):
    """
    Settings for OpenTelemetry.

    By default, spans and metrics are recorded if the host has loaded it.

    Args:
        enabled: Whether to load OpenTelemetry (extra ``otel``), for hosts that configure it by environment variables.

    Raises:
        InvalidSetting: A value breaks its rule.

    """

    enabled: bool = attrs.field(default=False, validator=BOOL_VALIDATOR)


@attrs.frozen(kw_only=True)
class ServerSettings(JsonMixin):
    """
    Settings for a PostgreSQL server.

    The first session of a URL sets them for the whole process.

    Args:
        max_connections: Maximum number of connections, and so of concurrent calls.
        connect_timeout: Timeout for connecting, in seconds.
        pool_timeout: Seconds to wait for a free connection, and for other writers.
        statement_timeout: Timeout of one statement on the server, in seconds.
        lease_seconds: Seconds after which a conversation of a crashed host is released. Leases are renewed three times
            as often.
        prepared_statements: Whether statements are prepared once per connection; False for a pooler without support for
            them.
        half_precision: Whether a new namespace stores its vectors in half precision, which rounds each number to 11
            bits. Existing namespaces keep their format.

    Raises:
        InvalidSetting: A value breaks its rule.

    """

    max_connections: int = attrs.field(default=8, validator=POSITIVE_COUNT_VALIDATOR)
    connect_timeout: float = attrs.field(default=5.0, validator=SECONDS_VALIDATOR)
    pool_timeout: float = attrs.field(default=10.0, validator=SECONDS_VALIDATOR)
    statement_timeout: float = attrs.field(default=30.0, validator=SECONDS_VALIDATOR)
    lease_seconds: float = attrs.field(default=30.0, validator=SECONDS_VALIDATOR)
    prepared_statements: bool = attrs.field(default=True, validator=BOOL_VALIDATOR)
    half_precision: bool = attrs.field(default=False, validator=BOOL_VALIDATOR)


@attrs.frozen(kw_only=True)
class Settings(JsonMixin):
    """
    All settings of a `Session`, one section for each part.

    Args:
        references: Resolving of references.
        descriptors: Storing of refs and large results.
        memory: Linking, search and storage of memories.
        tools: Tools that a model sees.
        answers: Limits for the length of tool answers.
        telemetry: OpenTelemetry.
        server: Use of a PostgreSQL server, if memories are on one.

    """

    references: ReferenceSettings = attrs.field(
        factory=ReferenceSettings, validator=setting_validator(_check_instance, ReferenceSettings)
    )
    descriptors: DescriptorSettings = attrs.field(
        factory=DescriptorSettings, validator=setting_validator(_check_instance, DescriptorSettings)
    )
    memory: MemorySettings = attrs.field(
        factory=MemorySettings, validator=setting_validator(_check_instance, MemorySettings)
    )
    tools: ToolSettings = attrs.field(factory=ToolSettings, validator=setting_validator(_check_instance, ToolSettings))
    answers: AnswerSettings = attrs.field(
        factory=AnswerSettings, validator=setting_validator(_check_instance, AnswerSettings)
    )
    telemetry: TelemetrySettings = attrs.field(
        factory=TelemetrySettings, validator=setting_validator(_check_instance, TelemetrySettings)
    )
    server: ServerSettings = attrs.field(
        factory=ServerSettings, validator=setting_validator(_check_instance, ServerSettings)
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """
        Read settings from variables such as ``MAMA_STRUCTS_REFERENCES_CACHE_TTL=10``.

        A variable's name is ``MAMA_STRUCTS_``, the section, ``_`` and the setting, in capitals. Names that begin with
        ``MAMA_STRUCTS_TEST_`` are ignored: this package's own tests use them.

        Args:
            environ: The variables; ``os.environ`` by default.

        Raises:
            InvalidSetting: A value breaks its rule, or a variable that begins with ``MAMA_STRUCTS_`` names no setting.

        """
        environ = os.environ if environ is None else environ
        sections = {f"{ENV_PREFIX}{field.name.upper()}_": field for field in attrs.fields(cls)}
        for variable in environ:
            if variable.startswith(ENV_PREFIX) and not variable.startswith((*sections, TEST_ENV_PREFIX)):
                hint = f"names begin with {', '.join(sections)}"
                raise InvalidSetting(f"{variable} names no setting", name=variable, hint=hint)
        read = {one.name: _read_section(prefix, one.default.factory, environ) for prefix, one in sections.items()}
        return cls(**read)


def _read_section(prefix: str, kind: type[Section], environ: Mapping[str, str]) -> Section:
    fields = {f"{prefix}{field.name.upper()}": field for field in attrs.fields(kind)}  # type: ignore[arg-type]
    values = {}
    for variable, text in environ.items():
        if not variable.startswith(prefix):
            continue
        if variable not in fields:
            raise InvalidSetting(f"{variable} names no setting", name=variable, hint=f"known: {', '.join(fields)}")
        field = fields[variable]
        # An environment variable can set an object only by the name of its preset.
        default = "" if isinstance(field.default, attrs.Factory) else field.default  # type: ignore[arg-type]
        like = field.metadata.get("like", default)
        if like is None:
            raise InvalidSetting(f"{variable} cannot be set from the environment", name=variable, hint="set it in code")
        values[field.name] = _parse(variable, text.strip(), like=like)
    try:
        return kind(**values)
    except InvalidSetting as error:
        error.add_note(f"read from the environment: {', '.join(sorted(v for v in fields if v in environ))}")
        raise


def _parse(variable: str, text: str, *, like: object) -> object:
    """Convert *text* to the type of *like*, which is the default of the setting."""
    try:
        if isinstance(like, bool):
            if text.lower() in TRUE_WORDS | FALSE_WORDS:
                return text.lower() in TRUE_WORDS
            raise ValueError(text)
        return type(like)(text)  # type: ignore[call-arg]
    except ValueError:
        expected = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[type(like)]
        # Omit the value from the message, because it may be a secret meant for another variable.
        raise InvalidSetting(f"{variable} must be {expected}", name=variable) from None
