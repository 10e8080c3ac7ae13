"""
What a conversation is worth remembering: a model of the host proposes, and every record is checked (DESIGN section 6a).

Neither the model's answer nor what was said is trusted: a record names the messages that it comes from, is as trusted
as the least of them, and links only to what the model was shown.
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
"""Records that are taken of one answer."""
_CHARS: Final = 24_000  # of the messages in one prompt
_LONGEST: Final = 4_000  # of one message
_ASKED: Final = 2_000  # of what memories are searched by
_KNOWN: Final = 10
_RELEVANT: Final = 0.3
_LINE: Final = 280
_ANSWER: Final = 400_000
_TRIES: Final = 200
# As `model.new_id` writes them, and v1.0 did: who shows them shows memories.
_MEMORY_ID: Final = re.compile(r"\b(?:decision|checkpoint|insight|context)_\S{1,200}_\d{10,}_[0-9a-z]{4,8}\b")
_PATH: Final = re.compile(r"\$\S*(?=`$)")
_EXPECTED: Final = re.compile(r"Expected `[\w |<>=.-]+`(?: of length [<>=]+ \d+)?(?:, got `[\w-]+`)?")

Extract = Callable[[str, Mapping[str, Any]], Any]
"""Gives a prompt and a JSON schema to a model, and returns its answer: text, or what it is as data; may be async."""


@attrs.frozen
class Utterance:
    """
    The text of one message.

    Args:
        speaker: The role of the message.
        origin: The least trusted author of the text; a user's message may show the text of a tool or of a page.
        text: The text.
        source: The name of the message in evidence.

    """

    speaker: Literal["user", "model", "tool"]
    origin: Origin
    text: str = attrs.field(repr=False)
    source: str

    @functools.cached_property
    def terms(self) -> frozenset[str]:
        """The words of it that searches know."""
        return frozenset(query_terms(self.text))


_Text = Annotated[str, Meta(min_length=1, max_length=2000)]


class ProposedLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A link that a model proposes; `learning.json` says the same for models."""

    to_id: Annotated[str, Meta(min_length=1, max_length=MAX_ID)]
    # None of them retires what it leads to.
    relationship: Literal["contradicts", "supports", "explains", "depends on", "relates to"]


class ProposedRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record that a model proposes; `learning.json` says the same for models."""

    type: Literal["decision", "insight", "context"]
    content: _Text
    topic: Annotated[str, Meta(min_length=1, max_length=MAX_TOPIC)] | None = None
    reasoning: _Text | None = None
    confidence: Annotated[float, Meta(ge=0, le=1)] | None = None
    messages: Annotated[list[Annotated[int, Meta(ge=1)]], Meta(min_length=1, max_length=20)]
    links: Annotated[list[ProposedLink], Meta(max_length=5)] = []


@functools.cache
def schema() -> Mapping[str, Any]:
    """Return the JSON schema of an answer, as models get it."""
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
    Have a model propose what is worth remembering of what was said, and save what holds against the rules.

    Args:
        memories: Where it is saved.
        said: The conversation.
        extract: See `Extract`.
        is_recalled: Tells what the conversation was only told from memory.
        origin: The most that any of it is trusted; None for what each message's speaker is.

    """
    if not callable(extract):
        raise InvalidArgument(f"extract must be a function of a prompt and a schema, got {type(extract).__name__}")
    most = ORIGINS[0] if origin is None else _check.choice("origin", origin, ORIGINS)
    news = [one for one in said if not (_shows_memories(one) or is_recalled(one.text))]
    refused: list[RefusedRecord] = []
    drafts: list[PreparedSave] = []
    for batch in _batches([attrs.evolve(one, origin=least_trusted((one.origin, most))) for one in news]):
        known = await _known(memories, batch)
        prompt = _prompt(batch, known, today=f"{memories._shared.now:%Y-%m-%d}")  # noqa: SLF001 - a plan of its own
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
    """Why a record is not saved."""


def _shows_memories(one: Utterance) -> bool:
    """Return True for a result of a tool that contains ids of memories."""
    return one.speaker == "tool" and _MEMORY_ID.search(one.text) is not None


def _batches(said: Iterable[Utterance]) -> Iterator[list[Utterance]]:
    """Give the messages that fit into one prompt each."""
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
    """Return what the memories say on the matter."""
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
    """Quote a text; of a long one the beginning and the end."""
    if len(text) <= _LONGEST:
        return quoted(text)
    half = _LONGEST // 2
    return f"{quoted(text[:half])} ({len(text) - 2 * half} characters are left out here) {quoted(text[-half:])}"


# What the model answers


async def _answer(extract: Extract, prompt: str) -> object:
    # The schema is the caller's to change, as some providers want it in another form.
    given: dict[str, Any] = json.loads(json.dumps(schema()))
    is_async = inspect.iscoroutinefunction(extract)
    return await called(
        lambda: extract(prompt, given), lambda answer: answer, is_async=is_async, in_thread=in_own_thread
    )


def _records_in(answer: object) -> Iterator[object]:
    """Give the records of an answer; what holds none is given as it is, to be refused."""
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
    """Return the JSON in a text, whatever stands around it; of one that is cut off the records that are whole."""
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


# What is taken of it


async def _draft(
    memories: MemoryStore,
    record: object,
    batch: Sequence[Utterance],
    known: Sequence[Memory],
    is_recalled: Callable[[str], bool],
) -> PreparedSave:
    """Return a record as it is to be saved, or raise why it is not."""
    asked = _checked(record)
    beyond = [number for number in asked.messages if number > len(batch)]
    if beyond:
        raise _Refusal(f"it comes from message {beyond[0]}, and there are {len(batch)}")
    if is_recalled(asked.content):
        raise _Refusal("it only repeats what was recalled")
    own = {memory.id for memory in known if memory.namespace == memories.namespace}
    if any(link.to_id not in own for link in asked.links):
        raise _Refusal("it links to what is no known memory of this namespace")
    sources = _sources(asked, batch)
    origin = least_trusted([*(one.origin for one in sources), *_trusts_of_known(asked, sources, known)])
    for memory in known:
        # A copy of the same origin is merged where it is saved.
        is_elsewhere = memory.namespace != memories.namespace or memory.origin != origin
        if (
            is_elsewhere
            and same_words(memory.content, asked.content)
            and least_trusted((memory.origin, origin)) == origin
        ):
            raise _Refusal(f"it is known already, as {memory.id}")
    draft = await memories._draft(request_of(_request(asked, origin)))  # noqa: SLF001 - a plan of its own
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
        # What was proposed may be a memory's content, which no reason repeats.
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
    """Return what `MemoryStore.save_many` would take."""
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
    Return the messages that a record comes from: those that it names, and each that says more of it than they do.

    A tool's result may have talked the model into naming the user for what only it says.
    """
    named = {batch[number - 1] for number in asked.messages}
    says_more = _says_more(asked, named)
    return [one for one in batch if one in named or says_more(one.terms)]


def _trusts_of_known(asked: ProposedRecord, sources: Iterable[Utterance], known: Iterable[Memory]) -> Iterator[Origin]:
    """Yield the trust of each known memory that contains more of a record than its messages do."""
    # The prompt shows these memories. A page among them may have talked the model into naming the user.
    says_more = _says_more(asked, sources)
    for memory in known:
        if says_more(query_terms(memory.content[:_LINE])):
            yield least_trusted([memory.origin, memory.trust])


def _says_more(asked: ProposedRecord, sources: Iterable[Utterance]) -> Callable[[Iterable[str]], bool]:
    """Return a test for words that contain more of the text of a record than the messages do together."""
    words = set(itertools.chain.from_iterable(one.terms for one in sources))

    def worth(terms: Mapping[str, float], words: Iterable[str]) -> float:
        return sum(terms.get(word, 0.0) for word in words)

    texts = [query_terms(text) for text in (asked.content, asked.reasoning) if text]
    said = [(terms, worth(terms, words)) for terms in texts]
    return lambda words: any(worth(terms, words) > most for terms, most in said)
