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
from mama_structs._internal.event_loop import called, in_own_thread
from mama_structs._internal.jsonable import to_jsonable
from mama_structs._internal.prompt_quoting import quoted
from mama_structs.errors import InvalidArgument, MamaStructsError
from mama_structs.memory.save.save_plan import PreparedSave
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.duplicates import same_words
from mama_structs.memory.types.extraction_result import Learned, RefusedRecord
from mama_structs.memory.types.model import MAX_KEPT, ORIGINS, KeptItem, Memory, Origin, digest_of, least_trusted
from mama_structs.memory.types.requests import MAX_ID, MAX_TOPIC, request_of
from mama_structs.memory.types.text_analysis import query_terms

MOST: Final = 20
"""The maximum number of records accepted from one answer."""
_CHARS: Final = 24_000  # characters of all messages in one prompt
_LONGEST: Final = 4_000  # characters of one message
_ASKED: Final = 2_000  # characters of the query that searches for known memories
_KNOWN: Final = 10
_RELEVANT: Final = 0.3
_LINE: Final = 280
_ANSWER: Final = 400_000
_TRIES: Final = 200
# The ids of `model.new_id` and of v1.0. A tool result that contains one shows memories, so it is no new information.
_MEMORY_ID: Final = re.compile(r"\b(?:decision|checkpoint|insight|context)_\S{1,200}_\d{10,}_[0-9a-z]{4,8}\b")
_PATH: Final = re.compile(r"\$\S*(?=`$)")
_EXPECTED: Final = re.compile(r"Expected `[\w |<>=.-]+`(?: of length [<>=]+ \d+)?(?:, got `[\w-]+`)?")

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


_Text = Annotated[str, Meta(min_length=1, max_length=2000)]


class ProposedLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A link proposed by a model. The schema in `learning.json` mirrors this class."""

    to_id: Annotated[str, Meta(min_length=1, max_length=MAX_ID)]
    # Excludes relationships that would supersede the target.
    relationship: Literal["contradicts", "supports", "explains", "depends on", "relates to"]


class ProposedRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record proposed by a model. The schema in `learning.json` mirrors this class."""

    type: Literal["decision", "insight", "context"]
    content: _Text
    topic: Annotated[str, Meta(min_length=1, max_length=MAX_TOPIC)] | None = None
    reasoning: _Text | None = None
    confidence: Annotated[float, Meta(ge=0, le=1)] | None = None
    messages: Annotated[list[Annotated[int, Meta(ge=1)]], Meta(min_length=1, max_length=20)]
    links: Annotated[list[ProposedLink], Meta(max_length=5)] = []


@functools.cache
def schema() -> Mapping[str, Any]:
    """Return the JSON schema of an answer, as models receive it."""
    found: Mapping[str, Any] = json.loads(_data("learning.json"))
    return found


def _data(name: str) -> str:
    return files("mama_structs.memory.store").joinpath("data", name).read_text(encoding="utf-8")


async def learn(
    memories: MemoryStore,
    said: Sequence[Utterance],
    extract: Extract,
    *,
    is_recalled: Callable[[str], bool],
    origin: Origin | None = None,
) -> Learned:
    """
    Ask a model to extract memories from a conversation, and save the valid ones.

    Args:
        memories: The store to save to.
        said: The messages of the conversation.
        extract: See `Extract`.
        is_recalled: Returns True for a text that the conversation only received from memory.
        origin: The upper limit of the trust; None for the limit of each message's speaker.

    """
    if not callable(extract):
        raise InvalidArgument(f"extract must be a function of a prompt and a schema, got {type(extract).__name__}")
    most = ORIGINS[0] if origin is None else _check.choice("origin", origin, ORIGINS)
    news = [one for one in said if not (_shows_memories(one) or is_recalled(one.text))]
    refused: list[RefusedRecord] = []
    drafts: list[PreparedSave] = []
    for batch in _batches([attrs.evolve(one, origin=least_trusted((one.origin, most))) for one in news]):
        known = await _known(memories, batch)
        prompt = _prompt(batch, known, today=f"{memories._shared.now:%Y-%m-%d}")  # noqa: SLF001 - store internals
        for place, record in enumerate(_records_in(await _answer(extract, prompt))):
            try:
                if place >= MOST:
                    raise _Refusal(f"an answer may have {MOST} records")
                drafts.append(await _draft(memories, record, batch, known, is_recalled))
            except (InvalidArgument, _Refusal) as error:
                refused.append(RefusedRecord(reason=str(error.args[0]), record=record))
    saved = await memories._save_all(drafts, judged=True) if drafts else []  # noqa: SLF001 - as above
    pairs = list(zip(saved, drafts, strict=True))
    return Learned(
        new=tuple(memory for memory, draft in pairs if memory.id == draft.memory.id),
        merged=tuple(memory for memory, draft in pairs if memory.id != draft.memory.id),
        refused=tuple(refused),
        passed_over=len(said) - len(news),
    )


class _Refusal(Exception):
    """A validation failure; its message is the reason why the record is not saved."""


def _shows_memories(one: Utterance) -> bool:
    """Return True for a result of a tool that contains ids of memories."""
    return one.speaker == "tool" and _MEMORY_ID.search(one.text) is not None


def _batches(said: Iterable[Utterance]) -> Iterator[list[Utterance]]:
    """Split the messages into batches that fit into one prompt each."""
    batch: list[Utterance] = []
    room = _CHARS
    for one in said:
        size = min(len(one.text), _LONGEST)
        if batch and size > room:
            yield batch
            batch, room = [], _CHARS
        batch.append(one)
        room -= size
    if batch:
        yield batch


async def _known(memories: MemoryStore, batch: Sequence[Utterance]) -> list[Memory]:
    """Return relevant memories that are already stored."""
    text = "\n".join(one.text[:_LONGEST] for one in batch if one.speaker != "tool")[-_ASKED:]
    if not text.strip():
        return []
    hits = await memories.search(text, limit=_KNOWN, min_relevance=_RELEVANT)
    return [hit.memory for hit in hits]


def _prompt(batch: Sequence[Utterance], known: Sequence[Memory], *, today: str) -> str:
    told = [f"[{number}] {one.origin}: {_shown(one.text)}" for number, one in enumerate(batch, start=1)]
    lines = [f"- {memory.id}: {quoted(memory.content, most=_LINE)}" for memory in known]
    return _data("learning.txt").format(
        today=today, most=MOST, known="\n".join(lines) or "(nothing)", conversation="\n".join(told)
    )


def _shown(text: str) -> str:
    """Quote a text; a long text is reduced to its beginning and its end."""
    if len(text) <= _LONGEST:
        return quoted(text)
    half = _LONGEST // 2
    return f"{quoted(text[:half])} ({len(text) - 2 * half} characters are left out here) {quoted(text[-half:])}"


# Parsing the model's answer


async def _answer(extract: Extract, prompt: str) -> object:
    # Pass a copy: the caller may modify the schema, because some providers need another form.
    given: dict[str, Any] = json.loads(json.dumps(schema()))
    is_async = inspect.iscoroutinefunction(extract)
    return await called(
        lambda: extract(prompt, given), lambda answer: answer, is_async=is_async, in_thread=in_own_thread
    )


def _records_in(answer: object) -> Iterator[object]:
    """
    Yield the records of an answer.

    An answer without records is yielded as it is, so that validation rejects it.
    """
    if isinstance(answer, bytes):
        answer = answer.decode(errors="replace")
    found = _json_in(answer[:_ANSWER]) if isinstance(answer, str) else answer
    if not isinstance(found, str | list | tuple | Mapping | None):
        try:
            found = to_jsonable(found)
        except MamaStructsError:
            found = None
    if isinstance(found, Mapping):
        found = found.get("records", [found])
    yield from found if isinstance(found, list | tuple) else [None]


def _json_in(text: str) -> object:
    """Return the JSON value inside a text, or the complete records of truncated JSON."""
    records: list[object] = []
    decoder, place = json.JSONDecoder(), 0
    for _ in range(_TRIES):
        begins = [at for at in (text.find("{", place), text.find("[", place)) if at >= 0]
        if not begins:
            break
        try:
            value, place = decoder.raw_decode(text, min(begins))
        except (ValueError, RecursionError):
            place = min(begins) + 1
            continue
        if not records and (_is_records(value) or (isinstance(value, dict) and "records" in value)):
            return value
        if isinstance(value, dict):
            records.append(value)
    return records or None


def _is_records(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


# Validation


async def _draft(
    memories: MemoryStore,
    record: object,
    batch: Sequence[Utterance],
    known: Sequence[Memory],
    is_recalled: Callable[[str], bool],
) -> PreparedSave:
    """Return the prepared save of a proposed record, or raise `_Refusal` with the reason."""
    asked = _checked(record)
    beyond = [number for number in asked.messages if number > len(batch)]
    if beyond:
        raise _Refusal(f"it comes from message {beyond[0]}, and there are {len(batch)}")
    if is_recalled(asked.content):
        raise _Refusal("it only repeats what was recalled")
    own = {memory.id for memory in known if memory.namespace == memories.namespace}
    if any(link.to_id not in own for link in asked.links):
        raise _Refusal("it links to a memory that is not known in this namespace")
    sources = _sources(asked, batch)
    origin = least_trusted([*(one.origin for one in sources), *_trusts_of_known(asked, sources, known)])
    for memory in known:
        # A copy with the same origin is merged by the save itself.
        is_elsewhere = memory.namespace != memories.namespace or memory.origin != origin
        if (
            is_elsewhere
            and same_words(memory.content, asked.content)
            and least_trusted((memory.origin, origin)) == origin
        ):
            raise _Refusal(f"it is known already, as {memory.id}")
    draft = await memories._draft(request_of(_request(asked, origin)))  # noqa: SLF001 - store internals
    texts = {digest_of(one.text): one for one in sources if len(one.text.encode()) <= MAX_KEPT}
    return attrs.evolve(
        draft,
        memory=attrs.evolve(
            draft.memory, evidence=tuple(str(KeptItem(one.source, digest)) for digest, one in texts.items())
        ),
        contents={digest: one.text for digest, one in texts.items()},
        trusts={digest: one.origin for digest, one in texts.items()},
    )


def _checked(record: object) -> ProposedRecord:
    try:
        asked = msgspec.convert(to_jsonable(record), ProposedRecord)
    except MamaStructsError:
        raise _Refusal("it is no data that JSON can hold") from None
    except msgspec.ValidationError as error:
        # Do not repeat the proposed value: it may contain text of a memory.
        path, wanted = _PATH.search(str(error)), _EXPECTED.match(str(error))
        where = "" if path is None or not path[0].isascii() else f" at {path[0]:.80}"
        what = f": {wanted[0]}" if wanted is not None else ""
        raise _Refusal(f"it is not of the form that was asked for{where}{what}") from None
    if asked.type == "decision" and asked.topic is None:
        raise _Refusal("a decision needs a topic")
    if not asked.content.strip():
        raise _Refusal("its content is blank")
    return asked


def _request(asked: ProposedRecord, origin: Origin) -> dict[str, Any]:
    """Return the arguments of the record for `MemoryStore.save_many`."""
    given: dict[str, Any] = {"type": asked.type, "created_by": "llm", "origin": origin, "on_duplicate": "merge"}
    links = [{"to_id": link.to_id, "relationship": link.relationship} for link in asked.links]
    if asked.type == "decision":
        confidence = {} if asked.confidence is None else {"confidence": asked.confidence}
        given |= {"decision": asked.content, "reasoning": asked.reasoning or "", **confidence, "links": links}
    else:
        given |= {"content": asked.content, **({"links": links} if asked.type == "insight" else {})}
    return given if asked.type == "insight" or asked.topic is None else {**given, "topic": asked.topic}


def _sources(asked: ProposedRecord, batch: Sequence[Utterance]) -> list[Utterance]:
    """
    Return the source messages of a record.

    They are the named messages, and others that share more words with the record than those do.
    A tool result may have made the model name a user's message as the source of text that only the tool wrote.
    """
    named = {batch[number - 1] for number in asked.messages}
    says_more = _says_more(asked, named)
    return [one for one in batch if one in named or says_more(one.terms)]


def _trusts_of_known(asked: ProposedRecord, sources: Iterable[Utterance], known: Iterable[Memory]) -> Iterator[Origin]:
    """
    Yield the trust of each known memory that shares more words with a record.

    The comparison is with the record's source messages together.
    """
    # The prompt shows these memories. A memory that quotes a web page may have made the model name a user's message.
    says_more = _says_more(asked, sources)
    for memory in known:
        if says_more(query_terms(memory.content[:_LINE])):
            yield least_trusted([memory.origin, memory.trust])


def _says_more(asked: ProposedRecord, sources: Iterable[Utterance]) -> Callable[[Iterable[str]], bool]:
    """Return a predicate for words that cover more of a record than all its messages do."""
    words = set(itertools.chain.from_iterable(one.terms for one in sources))

    def worth(terms: Mapping[str, float], words: Iterable[str]) -> float:
        return sum(terms.get(word, 0.0) for word in words)

    texts = [query_terms(text) for text in (asked.content, asked.reasoning) if text]
    said = [(terms, worth(terms, words)) for terms in texts]
    return lambda words: any(worth(terms, words) > most for terms, most in said)
