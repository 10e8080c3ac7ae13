"""
Extract memories from a conversation (DESIGN section 6a).

A model of the host proposes records, and each of them is validated.
Neither the model's answer nor the messages are trusted. A record names its source messages, gets the trust of the least
trusted of them, and may link only to memories that the prompt showed.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Annotated, Any, Final, Literal

import attrs
import msgspec
from msgspec import Meta

from mama_structs._internal import validation as _check
from mama_structs._internal.event_loop import call_maybe_sync, run_in_own_thread
from mama_structs._internal.jsonable import to_jsonable
from mama_structs._internal.prompt_quoting import quote
from mama_structs.errors import InvalidArgument, MamaStructsError
from mama_structs.memory.save.save_plan import PreparedSave
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.duplicates import has_same_words
from mama_structs.memory.types.model import (
    MAX_STORED_TEXT_BYTES,
    ORIGINS,
    Memory,
    Origin,
    StoredEvidence,
    least_trusted,
    text_digest,
)
from mama_structs.memory.types.reports import ExtractionResult, RejectedMemory
from mama_structs.memory.types.requests import MAX_REQUEST_ID_CHARS, MAX_TOPIC_CHARS, parse_request
from mama_structs.memory.types.text_analysis import query_terms

MAX_RECORDS_PER_ANSWER: Final = 20
"""The maximum number of records accepted from one answer."""
MAX_PROMPT_CHARS: Final = 24_000  # maximum number of characters of all messages in one prompt
MAX_MESSAGE_CHARS: Final = 4_000  # maximum number of characters of one message
MAX_QUERY_CHARS: Final = 2_000  # maximum number of characters of the query for known memories
MAX_KNOWN_MEMORIES: Final = 10
MIN_KNOWN_RELEVANCE: Final = 0.12  # the messages of a batch are long, so few of their words are in a memory
MAX_KNOWN_CHARS: Final = 280
MAX_ANSWER_CHARS: Final = 400_000
MAX_JSON_ATTEMPTS: Final = 200
# Ids of `model.new_id` and of v1.0. A tool result that contains one shows memories, so it is not new information.
MEMORY_ID_PATTERN: Final = re.compile(r"\b(?:decision|checkpoint|insight|context)_\S{1,200}_\d{10,}_[0-9a-z]{4,8}\b")
ERROR_PATH_PATTERN: Final = re.compile(r"\$\S*(?=`$)")
EXPECTED_TYPE_PATTERN: Final = re.compile(r"Expected `[\w |<>=.-]+`(?: of length [<>=]+ \d+)?(?:, got `[\w-]+`)?")

Extract = Callable[[str, Mapping[str, Any]], Any]
"""Sends a prompt and a JSON schema to a model and returns the answer as text or as data. May be async."""


@attrs.frozen
class Utterance:
    """
    The text of one message.

    Args:
        speaker: The role of the message.
        origin: The least trusted author of the text; a user's message may quote a tool or a web page.
        text: The text.
        source: The name of the message in evidence.

    """

    speaker: Literal["user", "model", "tool"]
    origin: Origin
    text: str = attrs.field(repr=False)
    source: str

    @functools.cached_property
    def terms(self) -> frozenset[str]:
        """The search terms of the text."""
        return frozenset(query_terms(self.text))


_RecordText = Annotated[str, Meta(min_length=1, max_length=2000)]


class ProposedLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A link proposed by a model. The schema in `learning.json` mirrors this class."""

    to_id: Annotated[str, Meta(min_length=1, max_length=MAX_REQUEST_ID_CHARS)]
    # The choices exclude relationships that would supersede the target memory.
    relationship: Literal["contradicts", "supports", "explains", "depends on", "relates to"]


class ProposedRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record proposed by a model. The schema in `learning.json` mirrors this class."""

    type: Literal["decision", "insight", "context"]
    content: _RecordText
    topic: Annotated[str, Meta(min_length=1, max_length=MAX_TOPIC_CHARS)] | None = None
    reasoning: _RecordText | None = None
    confidence: Annotated[float, Meta(ge=0, le=1)] | None = None
    messages: Annotated[list[Annotated[int, Meta(ge=1)]], Meta(min_length=1, max_length=20)]
    links: Annotated[list[ProposedLink], Meta(max_length=5)] = []


@functools.cache
def load_schema() -> Mapping[str, Any]:
    """Return the JSON schema of an answer, as models receive it."""
    found: Mapping[str, Any] = json.loads(_read_data_file("learning.json"))
    return found


def _read_data_file(name: str) -> str:
    return files("mama_structs.memory.store").joinpath("data", name).read_text(encoding="utf-8")


async def extract_memories(
    memories: MemoryStore,
    messages: Sequence[Utterance],
    extract: Extract,
    *,
    is_recalled: Callable[[str], bool],
    origin: Origin | None = None,
) -> ExtractionResult:
    """
    Ask a model to extract memories from a conversation, and save the valid ones.

    Args:
        memories: The store to save to.
        messages: The messages of the conversation.
        extract: See `Extract`.
        is_recalled: Returns True for a text that the conversation only received from memory.
        origin: The upper limit of the trust; None for the limit of each message's speaker.

    """
    if not callable(extract):
        raise InvalidArgument(f"extract must be a function of a prompt and a schema, got {type(extract).__name__}")
    if not _accepts_two_arguments(extract):
        raise InvalidArgument(
            "extract must accept two arguments, a prompt and a schema",
            hint="def extract(prompt, schema), or lambda prompt, schema: ...",
        )
    max_trust = ORIGINS[0] if origin is None else _check.check_choice("origin", origin, ORIGINS)
    new_messages = [one for one in messages if not (_shows_memories(one) or is_recalled(one.text))]
    rejected: list[RejectedMemory] = []
    drafts: list[PreparedSave] = []
    for batch in _split_batches(
        [attrs.evolve(one, origin=least_trusted((one.origin, max_trust))) for one in new_messages]
    ):
        known = await _find_known_memories(memories, batch)
        prompt = _render_prompt(batch, known, today=f"{memories._shared.now:%Y-%m-%d}")
        for place, record in enumerate(_iter_records(await _call_model(extract, prompt))):
            try:
                if place >= MAX_RECORDS_PER_ANSWER:
                    raise RecordRejected(f"an answer may have {MAX_RECORDS_PER_ANSWER} records")
                drafts.append(await _draft_save(memories, record, batch, known, is_recalled))
            except (InvalidArgument, RecordRejected) as error:
                rejected.append(RejectedMemory(reason=str(error.args[0]), proposal=record))
    saved = await memories._save_drafts(drafts, judged=True) if drafts else []
    pairs = list(zip(saved, drafts, strict=True))
    return ExtractionResult(
        saved=tuple(memory for memory, draft in pairs if memory.id == draft.memory.id),
        duplicates=tuple(memory for memory, draft in pairs if memory.id != draft.memory.id),
        rejected=tuple(rejected),
        skipped_messages=len(messages) - len(new_messages),
    )


class RecordRejected(Exception):
    """A validation failure; its message is the reason why the record is not saved."""


def _shows_memories(message: Utterance) -> bool:
    """Return True if the message is a tool result that contains ids of memories."""
    return message.speaker == "tool" and MEMORY_ID_PATTERN.search(message.text) is not None


def _split_batches(messages: Iterable[Utterance]) -> Iterator[list[Utterance]]:
    """Split the messages into batches that fit into one prompt each."""
    batch: list[Utterance] = []
    remaining_chars = MAX_PROMPT_CHARS
    for one in messages:
        size = min(len(one.text), MAX_MESSAGE_CHARS)
        if batch and size > remaining_chars:
            yield batch
            batch, remaining_chars = [], MAX_PROMPT_CHARS
        batch.append(one)
        remaining_chars -= size
    if batch:
        yield batch


async def _find_known_memories(memories: MemoryStore, batch: Sequence[Utterance]) -> list[Memory]:
    """Return the stored memories that are relevant to a batch of messages."""
    text = "\n".join(one.text[:MAX_MESSAGE_CHARS] for one in batch if one.speaker != "tool")[-MAX_QUERY_CHARS:]
    if not text.strip():
        return []
    hits = await memories.search(text, limit=MAX_KNOWN_MEMORIES, min_relevance=MIN_KNOWN_RELEVANCE)
    return [hit.memory for hit in hits]


def _render_prompt(batch: Sequence[Utterance], known: Sequence[Memory], *, today: str) -> str:
    conversation_lines = [
        f"[{number}] {one.origin}: {_quote_message(one.text)}" for number, one in enumerate(batch, start=1)
    ]
    lines = [f"- {memory.id}: {quote(memory.content, max_chars=MAX_KNOWN_CHARS)}" for memory in known]
    return _read_data_file("learning.txt").format(
        today=today,
        most=MAX_RECORDS_PER_ANSWER,
        known="\n".join(lines) or "(nothing)",
        conversation="\n".join(conversation_lines),
    )


def _quote_message(text: str) -> str:
    """Quote a text. The middle of a long text is left out."""
    if len(text) <= MAX_MESSAGE_CHARS:
        return quote(text)
    half = MAX_MESSAGE_CHARS // 2
    return f"{quote(text[:half])} ({len(text) - 2 * half} characters are left out here) {quote(text[-half:])}"


# Parsing the model's answer


def _accepts_two_arguments(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind("", {})
    except ValueError:
        # Some built-in functions have no signature.
        return True
    except TypeError:
        return False
    return True


async def _call_model(extract: Extract, prompt: str) -> object:
    # Pass a copy, because the host may modify the schema to the form that its provider requires.
    schema_copy: dict[str, Any] = json.loads(json.dumps(load_schema()))
    is_async = inspect.iscoroutinefunction(extract)
    return await call_maybe_sync(
        lambda: extract(prompt, schema_copy), lambda answer: answer, is_async=is_async, run_in_thread=run_in_own_thread
    )


def _iter_records(answer: object) -> Iterator[object]:
    """
    Yield the records of an answer.

    A mapping without ``records`` is yielded as one record. If the answer contains no list of records, None is yielded,
    which validation rejects.
    """
    if isinstance(answer, bytes):
        answer = answer.decode(errors="replace")
    found = _parse_json(answer[:MAX_ANSWER_CHARS]) if isinstance(answer, str) else answer
    if not isinstance(found, str | list | tuple | Mapping | None):
        try:
            found = to_jsonable(found)
        except MamaStructsError:
            found = None
    if isinstance(found, Mapping):
        found = found.get("records", [found])
    yield from found if isinstance(found, list | tuple) else [None]


def _parse_json(text: str) -> object:
    """Parse the JSON value inside a text. Of truncated JSON, return the complete records."""
    records: list[object] = []
    decoder, place = json.JSONDecoder(), 0
    for _ in range(MAX_JSON_ATTEMPTS):
        begins = [at for at in (text.find("{", place), text.find("[", place)) if at >= 0]
        if not begins:
            break
        try:
            value, place = decoder.raw_decode(text, min(begins))
        except (ValueError, RecursionError):
            place = min(begins) + 1
            continue
        if not records and (_is_record_list(value) or (isinstance(value, dict) and "records" in value)):
            return value
        if isinstance(value, dict):
            records.append(value)
    return records or None


def _is_record_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


# Validation


async def _draft_save(
    memories: MemoryStore,
    record: object,
    batch: Sequence[Utterance],
    known: Sequence[Memory],
    is_recalled: Callable[[str], bool],
) -> PreparedSave:
    """Return the prepared save of a proposed record, or raise `RecordRejected` with the reason."""
    proposal = _validate_record(record)
    beyond = [number for number in proposal.messages if number > len(batch)]
    if beyond:
        raise RecordRejected(f"it comes from message {beyond[0]}, and there are {len(batch)}")
    if is_recalled(proposal.content):
        raise RecordRejected("it only repeats what was recalled")
    own = {memory.id for memory in known if memory.namespace == memories.namespace}
    if any(link.to_id not in own for link in proposal.links):
        raise RecordRejected("it links to a memory that is not known in this namespace")
    sources = _find_source_messages(proposal, batch)
    origin = least_trusted([*(one.origin for one in sources), *_iter_known_trusts(proposal, sources, known)])
    for memory in known:
        # The save itself merges a copy with the same origin in this namespace, so look for other copies only.
        is_elsewhere = memory.namespace != memories.namespace or memory.origin != origin
        if (
            is_elsewhere
            and has_same_words(memory.content, proposal.content)
            and least_trusted((memory.origin, origin)) == origin
        ):
            raise RecordRejected(f"it is known already, as {memory.id}")
    draft = await memories._draft(parse_request(_build_request(proposal, origin), now=memories._shared.now))
    texts = {text_digest(one.text): one for one in sources if len(one.text.encode()) <= MAX_STORED_TEXT_BYTES}
    return attrs.evolve(
        draft,
        memory=attrs.evolve(
            draft.memory, evidence=tuple(str(StoredEvidence(one.source, digest)) for digest, one in texts.items())
        ),
        contents={digest: one.text for digest, one in texts.items()},
        trusts={digest: one.origin for digest, one in texts.items()},
    )


def _validate_record(record: object) -> ProposedRecord:
    try:
        proposal = msgspec.convert(to_jsonable(record), ProposedRecord)
    except MamaStructsError:
        raise RecordRejected("it is no data that JSON can hold") from None
    except msgspec.ValidationError as error:
        # Do not repeat the proposed value in the reason, because it may contain text of a memory.
        path, wanted = ERROR_PATH_PATTERN.search(str(error)), EXPECTED_TYPE_PATTERN.match(str(error))
        where = "" if path is None or not path[0].isascii() else f" at {path[0]:.80}"
        what = f": {wanted[0]}" if wanted is not None else ""
        raise RecordRejected(f"it is not of the form that was asked for{where}{what}") from None
    if proposal.type == "decision" and proposal.topic is None:
        raise RecordRejected("a decision needs a topic")
    if not proposal.content.strip():
        raise RecordRejected("its content is blank")
    return proposal


def _build_request(proposal: ProposedRecord, origin: Origin) -> dict[str, Any]:
    """Return the arguments of the record for `MemoryStore.save_many`."""
    given: dict[str, Any] = {"type": proposal.type, "created_by": "llm", "origin": origin, "on_duplicate": "merge"}
    links = [{"to_id": link.to_id, "relationship": link.relationship} for link in proposal.links]
    if proposal.type == "decision":
        confidence = {} if proposal.confidence is None else {"confidence": proposal.confidence}
        given |= {"content": proposal.content, "reasoning": proposal.reasoning or "", **confidence, "links": links}
    else:
        given |= {"content": proposal.content, **({"links": links} if proposal.type == "insight" else {})}
    return given if proposal.type == "insight" or proposal.topic is None else {**given, "topic": proposal.topic}


def _find_source_messages(proposal: ProposedRecord, batch: Sequence[Utterance]) -> list[Utterance]:
    """
    Return the messages from which a record comes.

    These are the messages that the record names, and other messages that cover more of its words than all named ones
    together. Otherwise a tool result could make the model name a user's message as the source of the tool's text.
    """
    named = {batch[number - 1] for number in proposal.messages}
    says_more = _covers_more(proposal, named)
    return [one for one in batch if one in named or says_more(one.terms)]


def _iter_known_trusts(
    proposal: ProposedRecord, sources: Iterable[Utterance], known: Iterable[Memory]
) -> Iterator[Origin]:
    """
    Yield the trust of each known memory that covers more of a record than the record's sources do.

    The source messages are compared as one text.
    """
    # A known memory in the prompt may quote a web page that makes the model name a wrong source message.
    says_more = _covers_more(proposal, sources)
    for memory in known:
        if says_more(query_terms(memory.content[:MAX_KNOWN_CHARS])):
            yield least_trusted([memory.origin, memory.trust])


def _covers_more(proposal: ProposedRecord, sources: Iterable[Utterance]) -> Callable[[Iterable[str]], bool]:
    """Return a predicate that is True for terms that cover more of a record's text than *sources* do."""
    words = set(itertools.chain.from_iterable(one.terms for one in sources))

    def worth(terms: Mapping[str, float], words: Iterable[str]) -> float:
        return sum(terms.get(word, 0.0) for word in words)

    texts = [query_terms(text) for text in (proposal.content, proposal.reasoning) if text]
    said = [(terms, worth(terms, words)) for terms in texts]
    return lambda words: any(worth(terms, words) > most for terms, most in said)
