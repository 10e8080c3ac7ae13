"""Settings: one frozen class a concern, validated when made."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, TypeVar

import attrs

from mama_structs._internal.budget import Budget
from mama_structs._internal.validation import CENTURY, choice, flag, refused, seconds, setting, share, texts, whole
from mama_structs.errors import InvalidSetting, shown

_PREFIX = "MAMA_STRUCTS_"
_OF_TESTS: Final = f"{_PREFIX}TEST_"
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})

Section = TypeVar("Section")


def _as_path(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _path(name: str, value: object) -> None:
    if not isinstance(value, str) or "\0" in value:
        raise refused(name, "must be text without NUL", value)


def _instance(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise refused(name, f"must be a {kind.__name__}", value)


_FLAG: Final = setting(flag)
_COUNT: Final = setting(whole, 0)
_OPTIONAL_COUNT: Final = attrs.validators.optional(_COUNT)
_POSITIVE: Final = setting(whole, 1)
_SECONDS: Final = setting(seconds)
_SECONDS_OR_ZERO: Final = setting(seconds, zero=True)
_SPAN: Final = setting(seconds, zero=True, most=CENTURY)
_SHARE: Final = setting(share)


@attrs.frozen(kw_only=True)
class ReferenceSettings:
    """
    How one `Resolver` works.

    Args:
        enabled: False switches references off everywhere.
        max_parallel_queries: Upstream queries at once, however many tools run.
        query_timeout: Seconds one query has, counted from when it may start.
        cache_ttl: Seconds an answer may be reused; 0 reuses none.
        cache_until: ``"ttl"``, or ``"block"``: until a newer block was seen, and *cache_ttl* at the most.
        cache_entries: Answers kept at the most.
        cache_bytes: Bytes of JSON kept at the most.
        not_found_ttl: Seconds for which "there is no such entity" may be repeated from the cache.
        include_memories: Whether every call with references adds the newest decisions about each, as
            `ReferenceOptions` does for one.
        parameters: What models are shown of what a tool takes for references: ``"main"`` for *include_references*,
            *reference_types* and *reference_depth*, ``"all"`` for the limits, too; each is taken either way.

    Raises:
        InvalidSetting: A value breaks its rule.

    """

    enabled: bool = attrs.field(default=True, validator=_FLAG)
    max_parallel_queries: int = attrs.field(default=5, validator=_POSITIVE)
    query_timeout: float = attrs.field(default=2.0, validator=_SECONDS)
    cache_ttl: float = attrs.field(default=30.0, validator=_SECONDS_OR_ZERO)
    cache_until: Literal["ttl", "block"] = attrs.field(default="ttl", validator=setting(choice, ("ttl", "block")))
    cache_entries: int = attrs.field(default=4096, validator=_COUNT)
    cache_bytes: int = attrs.field(default=32 * 2**20, validator=_COUNT)
    not_found_ttl: float = attrs.field(default=5.0, validator=_SECONDS_OR_ZERO)
    include_memories: bool = attrs.field(default=False, validator=_FLAG)
    parameters: Literal["main", "all"] = attrs.field(default="main", validator=setting(choice, ("main", "all")))


@attrs.frozen(kw_only=True)
class DescriptorSettings:
    """
    How one `RefStore` works.

    Args:
        enabled: Whether large results become descriptors and models have the tools for these and for refs.
        references_enabled: Whether models are told how to mark parts of their answers, and marks are stored.
        page_size: Characters of a page.
        max_bytes: Bytes of content (UTF-8) that one conversation may hold.
        max_handles: Handles that one conversation may hold, each version of a ref counted.
        search_timeout: Seconds that a search may take.
        conversation_ttl: Seconds after its last use until a conversation of the session's namespace is deleted, when a
            session opens or maintains; None for never.
        allow_hidden: Whether models may write files and directories whose names begin with a dot.
        root: The same as *files* of `Session.open`, for hosts that are set up by variables.
        wrap_over: Deprecated: *max_chars* of `AnswerSettings`, which may be less than 1,000 here.
        preview_head: Deprecated, and without effect: a preview has the room that *max_chars* gives.
        preview_tail: As above.

    Raises:
        InvalidSetting: A value breaks its rule.

    """

    enabled: bool = attrs.field(default=True, validator=_FLAG)
    references_enabled: bool = attrs.field(default=True, validator=_FLAG)
    page_size: int = attrs.field(default=4_000, validator=_POSITIVE)
    max_bytes: int = attrs.field(default=64 * 2**20, validator=_COUNT)
    max_handles: int = attrs.field(default=10_000, validator=_COUNT)
    search_timeout: float = attrs.field(default=2.0, validator=_SECONDS)
    conversation_ttl: float | None = attrs.field(
        default=None, validator=attrs.validators.optional(setting(seconds, most=CENTURY)), metadata={"like": 0.0}
    )
    allow_hidden: bool = attrs.field(default=False, validator=_FLAG)
    root: str = attrs.field(default="", converter=_as_path, validator=setting(_path))
    wrap_over: int | None = attrs.field(default=None, validator=_OPTIONAL_COUNT)
    preview_head: int | None = attrs.field(default=None, validator=_OPTIONAL_COUNT)
    preview_tail: int | None = attrs.field(default=None, validator=_OPTIONAL_COUNT)

    def __attrs_post_init__(self) -> None:
        """Say what took the place of settings that are gone."""
        for name in ("wrap_over", "preview_head", "preview_tail"):
            if getattr(self, name) is not None:
                what = f"DescriptorSettings.{name} is deprecated: Settings(answers=AnswerSettings(max_chars=...))"
                warnings.warn(what, DeprecationWarning, stacklevel=3)


# Less holds neither an error with its hint nor an answer that says where to go on.
_LEAST_ANSWER: Final = 1_000


def _callable(name: str, value: object) -> None:
    if not callable(value):
        raise refused(name, "must be a function of a text that returns a whole number", value)


@attrs.frozen(kw_only=True)
class AnswerSettings:
    """
    How long what a model reads may be: the answer of every tool, and the list of handles in the system prompt.

    Args:
        max_chars: Characters that an answer has at the most; 1,000 or more.
        max_tokens: Tokens that it has at the most, in place of *max_chars*; needs *count_tokens*. 1,000 or more.
        count_tokens: Tells how many tokens a text has; called often, so it should be quick.

    Raises:
        InvalidSetting: A value breaks its rule, or there is one of *max_tokens* and *count_tokens* without the other.

    """

    max_chars: int = attrs.field(default=8_000, validator=setting(whole, _LEAST_ANSWER))
    max_tokens: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(setting(whole, _LEAST_ANSWER))
    )
    count_tokens: Callable[[str], int] | None = attrs.field(
        default=None, validator=attrs.validators.optional(setting(_callable))
    )

    def __attrs_post_init__(self) -> None:
        """Refuse a number of tokens that nobody counts."""
        if (self.max_tokens is None) is not (self.count_tokens is None):
            raise InvalidSetting(
                "max_tokens and count_tokens need each other",
                name="max_tokens",
                hint="AnswerSettings(max_tokens=2_000, count_tokens=lambda text: len(encoding.encode(text)))",
            )

    @property
    def budget(self) -> Budget:
        """What an answer may have."""
        if self.max_tokens is not None and self.count_tokens is not None:
            return Budget(self.max_tokens, size=functools.partial(_counted, self.count_tokens))
        return Budget(self.max_chars)


def _counted(count: Callable[[str], int], text: str) -> int:
    """Count a text's tokens; half a surrogate pair, which many a tokenizer refuses, as what stands in its place."""
    try:
        return count(text)
    except (UnicodeError, TypeError):
        return count(text.encode("utf-8", "replace").decode())


def answers_budget(descriptors: DescriptorSettings, answers: AnswerSettings) -> Budget:
    """Return what an answer may have, by these settings."""
    return answers.budget if descriptors.wrap_over is None else Budget(descriptors.wrap_over)


@attrs.frozen(kw_only=True)
class LinkingPolicy:
    """
    Which links a save makes automatically; `default`, `strict` and `off` are the presets.

    Args:
        threshold: How probable it must be, 0 to 1, that two memories belong to one matter.
        max_semantic: Association links that one save makes at the most.
        max_temporal: Temporal links that one save makes at the most.
        temporal_window: Seconds before a memory in which others are linked to it in time; 0 links none.
        temporal_same_topic: Whether temporal links need the same topic.
        topic_window: Seconds within which two decisions of one topic are associated, alike or not; 0 for never.
        max_incoming: A memory with so many incoming automatic links takes no more.
        minimum: The least confidence of an automatic link.

    Raises:
        InvalidSetting: A value breaks its rule.

    """

    threshold: float = attrs.field(default=0.75, validator=_SHARE)
    max_semantic: int = attrs.field(default=5, validator=_COUNT)
    max_temporal: int = attrs.field(default=3, validator=_COUNT)
    temporal_window: float = attrs.field(default=3600.0, validator=_SPAN)
    temporal_same_topic: bool = attrs.field(default=False, validator=_FLAG)
    topic_window: float = attrs.field(default=0.0, validator=_SPAN)
    max_incoming: int = attrs.field(default=32, validator=_COUNT)
    minimum: float = attrs.field(default=0.3, validator=_SHARE)

    @classmethod
    def default(cls) -> LinkingPolicy:
        """Return the default: at most 8 links a save, semantic ones at a probability of 0.75 or more."""
        return cls()

    @classmethod
    def strict(cls) -> LinkingPolicy:
        """Return a policy with fewer and surer links: probability 0.85, and 15 minutes within one topic."""
        return cls(threshold=0.85, temporal_window=15 * 60.0, temporal_same_topic=True, topic_window=7 * 24 * 3600.0)

    @classmethod
    def off(cls) -> LinkingPolicy:
        """Return a policy that makes no links."""
        return cls(max_semantic=0, max_temporal=0)

    @classmethod
    def preset(cls, name: str) -> LinkingPolicy:
        """
        Return a preset by its name: ``default``, ``strict`` or ``off``.

        Raises:
            InvalidSetting: There is no such preset.

        """
        presets = {"default": cls.default, "strict": cls.strict, "off": cls.off}
        if name not in presets:
            message = f"linking must be a LinkingPolicy or one of {', '.join(presets)}, got {shown(name)}"
            raise InvalidSetting(message, name="linking")
        return presets[name]()


def _as_policy(value: Any) -> Any:
    return LinkingPolicy.preset(value) if isinstance(value, str) else value


@attrs.frozen(kw_only=True)
class MemorySettings:
    """
    How one `MemoryStore` works.

    Args:
        linking: Which links a save makes by itself: a `LinkingPolicy`, or the name of a preset.
        exact_up_to: Up to so many memories vectors are compared one by one, which is exact; above, HNSW serves.
        traversal_entries: Results of traversals that are kept for reuse.
        traversal_ttl: Seconds that they may be reused.
        prune_every: Seconds after which `Session.maintain` prunes again.
        prune_below: Automatic links with a stored confidence below this are pruned, 0 to 1.
        prune_temporal_after: Seconds after which automatic temporal links are pruned.
        max_content: Characters that the text of one memory may have.
        max_evidence: Bytes (UTF-8) that a text may have which is kept as evidence.
        embedding_cache: Texts whose vectors are kept for reuse.
        rerank_seconds: Seconds for which a search waits for its reranker, where the session has one.
        judge_seconds: Seconds for which a save waits for its judge, where the session has one.
        rerank_at_most: So many of the best hits are reranked.
        snapshot_every: Changes after which what is derived from the journal is written aside, and an eighth of all
            at the least.

    Raises:
        InvalidSetting: A value breaks its rule.

    """

    linking: LinkingPolicy = attrs.field(
        factory=LinkingPolicy, converter=_as_policy, validator=setting(_instance, LinkingPolicy)
    )
    exact_up_to: int = attrs.field(default=5_000, validator=_COUNT)
    traversal_entries: int = attrs.field(default=100, validator=_COUNT)
    traversal_ttl: float = attrs.field(default=300.0, validator=_SPAN)
    prune_every: float = attrs.field(default=7 * 86400.0, validator=_SPAN)
    prune_below: float = attrs.field(default=0.2, validator=_SHARE)
    prune_temporal_after: float = attrs.field(default=30 * 86400.0, validator=_SPAN)
    max_content: int = attrs.field(default=1_000_000, validator=_POSITIVE)
    max_evidence: int = attrs.field(default=16 * 2**20, validator=_COUNT)
    embedding_cache: int = attrs.field(default=2_048, validator=_COUNT)
    rerank_seconds: float = attrs.field(default=2.0, validator=_SECONDS)
    judge_seconds: float = attrs.field(default=10.0, validator=_SECONDS)
    rerank_at_most: int = attrs.field(default=50, validator=_POSITIVE)
    snapshot_every: int = attrs.field(default=10_000, validator=_POSITIVE)


_PROFILES: Final = ("all", "memory")
_TOOL_NAME: Final = 64


def _as_profile(value: Any) -> Any:
    if isinstance(value, str) and value not in _PROFILES:
        return tuple(name.strip() for name in value.split(","))
    return value if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)


def _profile(name: str, value: object) -> None:
    if value not in _PROFILES and not (isinstance(value, tuple) and texts(name, value, longest=_TOOL_NAME)):
        raise refused(name, "must be 'all', 'memory' or names of tools", value)


@attrs.frozen(kw_only=True)
class ToolSettings:
    """
    Which tools a session has, and which of them a model sees.

    Args:
        profile: Which ready-made tools there are: ``"all"``; ``"memory"`` for those of memories alone; or the names of
            those that there are to be. The other tools are hidden from models, and calling one is calling an unknown
            tool. Every profile has the tools that the host adds, and those of v1.0.
        forget: Whether models have ``evolve/forget``, by which memories are gone for good.
        memory: Whether a session has the tools that save, load, search and evolve memories.
        dynamic: ``"auto"`` shows what a message asks for where whoever runs the model can follow, ``"force_static"``
            always shows all, ``"force_dynamic"`` shows what a message asks for whoever runs the model.
        deprecated: Whether models see the tools of v1.0, which work either way.

    Raises:
        InvalidSetting: A value breaks its rule.

    """

    profile: Literal["all", "memory"] | tuple[str, ...] = attrs.field(
        default="all", converter=_as_profile, validator=setting(_profile)
    )
    forget: bool = attrs.field(default=False, validator=_FLAG)
    memory: bool = attrs.field(default=True, validator=_FLAG)
    dynamic: Literal["auto", "force_static", "force_dynamic"] = attrs.field(
        default="auto", validator=setting(choice, ("auto", "force_static", "force_dynamic"))
    )
    deprecated: bool = attrs.field(default=False, validator=_FLAG)


def with_its_tools(settings: Settings) -> Settings:
    """Return settings without descriptors where the profile of tools has none that reads on: it would be lost."""
    profile = settings.tools.profile
    if profile == "all" or (isinstance(profile, tuple) and "read_fd" in profile):
        return settings
    return attrs.evolve(settings, descriptors=attrs.evolve(settings.descriptors, enabled=False))


@attrs.frozen(kw_only=True)
class TelemetrySettings:
    """
    What is told of a session's work; without it, spans and metrics for a host that has set up OpenTelemetry itself.

    Args:
        enabled: Whether to load OpenTelemetry (extra ``otel``) where the host has not, as where variables set it up.

    Raises:
        InvalidSetting: A value breaks its rule.

    """

    enabled: bool = attrs.field(default=False, validator=_FLAG)


@attrs.frozen(kw_only=True)
class ServerSettings:
    """
    How a process uses the PostgreSQL server of its sessions; what the first of them says holds for all of that URL.

    Args:
        connections: Connections at once at the most; as many calls are answered at once.
        connect_timeout: Seconds that connecting may take.
        wait: Seconds to wait for a free connection, and for who else writes there.
        statement_timeout: Seconds that the server may work at one statement.
        lease: Seconds after which a conversation is free that a host had open that died; renewed three times as often.
        prepared: Whether statements are prepared once a connection; False for a pooler that does not keep them.
        halfvec: Whether a namespace that is made keeps its vectors in half the bytes, which rounds each number to 11
            bits. One that is there stays as it is.

    Raises:
        InvalidSetting: A value breaks its rule.

    """

    connections: int = attrs.field(default=8, validator=_POSITIVE)
    connect_timeout: float = attrs.field(default=5.0, validator=_SECONDS)
    wait: float = attrs.field(default=10.0, validator=_SECONDS)
    statement_timeout: float = attrs.field(default=30.0, validator=_SECONDS)
    lease: float = attrs.field(default=30.0, validator=_SECONDS)
    prepared: bool = attrs.field(default=True, validator=_FLAG)
    halfvec: bool = attrs.field(default=False, validator=_FLAG)


@attrs.frozen(kw_only=True)
class Settings:
    """
    All settings of a `Session`, one section for each part.

    Args:
        references: How references are resolved.
        descriptors: How refs and large results are kept.
        memory: How memories are linked, searched and kept.
        tools: Which tools a model sees.
        answers: How long what a model reads may be.
        telemetry: What is told of the work.
        server: How a PostgreSQL server is used, where memories are on one.

    """

    references: ReferenceSettings = attrs.field(
        factory=ReferenceSettings, validator=setting(_instance, ReferenceSettings)
    )
    descriptors: DescriptorSettings = attrs.field(
        factory=DescriptorSettings, validator=setting(_instance, DescriptorSettings)
    )
    memory: MemorySettings = attrs.field(factory=MemorySettings, validator=setting(_instance, MemorySettings))
    tools: ToolSettings = attrs.field(factory=ToolSettings, validator=setting(_instance, ToolSettings))
    answers: AnswerSettings = attrs.field(factory=AnswerSettings, validator=setting(_instance, AnswerSettings))
    telemetry: TelemetrySettings = attrs.field(
        factory=TelemetrySettings, validator=setting(_instance, TelemetrySettings)
    )
    server: ServerSettings = attrs.field(factory=ServerSettings, validator=setting(_instance, ServerSettings))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """
        Read settings from variables such as ``MAMA_STRUCTS_REFERENCES_CACHE_TTL=10``.

        A variable's name is ``MAMA_STRUCTS_``, the section, ``_`` and the setting, in capitals. What begins with
        ``MAMA_STRUCTS_TEST_`` is left to this package's own tests.

        Args:
            environ: The variables; ``os.environ`` by default.

        Raises:
            InvalidSetting: A value breaks its rule, or a variable that begins with ``MAMA_STRUCTS_`` names no setting.

        """
        environ = os.environ if environ is None else environ
        sections = {f"{_PREFIX}{field.name.upper()}_": field for field in attrs.fields(cls)}
        for variable in environ:
            if variable.startswith(_PREFIX) and not variable.startswith((*sections, _OF_TESTS)):
                hint = f"names begin with {', '.join(sections)}"
                raise InvalidSetting(f"{variable} names no setting", name=variable, hint=hint)
        read = {one.name: _section_from_env(prefix, one.default.factory, environ) for prefix, one in sections.items()}
        return cls(**read)


def _section_from_env(prefix: str, kind: type[Section], environ: Mapping[str, str]) -> Section:
    fields = {f"{prefix}{field.name.upper()}": field for field in attrs.fields(kind)}  # type: ignore[arg-type]
    values = {}
    for variable, text in environ.items():
        if not variable.startswith(prefix):
            continue
        if variable not in fields:
            raise InvalidSetting(f"{variable} names no setting", name=variable, hint=f"known: {', '.join(fields)}")
        field = fields[variable]
        # A setting that is an object has presets, which the environment names.
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
    """Read *text* as a value of the type that the default has."""
    try:
        if isinstance(like, bool):
            if text.lower() in _TRUE | _FALSE:
                return text.lower() in _TRUE
            raise ValueError(text)
        return type(like)(text)  # type: ignore[call-arg]
    except ValueError:
        expected = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[type(like)]
        # The value may be meant for another variable, and secret: it is not repeated.
        raise InvalidSetting(f"{variable} must be {expected}", name=variable) from None
