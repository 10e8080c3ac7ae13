"""
Texts to embed and index for a memory, and terms of English, Korean and mixed text.

A *term* is a stemmed word, an identifier as written (ignoring case), an ideograph, or a pair of adjacent syllables
prefixed with `BIGRAM_PREFIX`. Text is normalized to NFKC. Every function runs in time linear in the text length.
DESIGN section 6 (search) and the measurements in domain/embedders.md explain the kinds of terms. Their weights were
tuned on the retrieval sample (benchmarks/retrieval.py).
"""

from __future__ import annotations

import enum
import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final, Literal, TypeVar

import attrs
import numpy as np
from snowballstemmer.english_stemmer import EnglishStemmer  # type: ignore[import-untyped]  # it ships no types

from mama_structs.memory.types.model import (
    TEXT_SEPARATOR,
    CheckpointMetadata,
    DecisionMetadata,
    InsightMetadata,
    Memory,
    RecordMetadata,
)

MAX_EMBEDDED_CHARS: Final = 65_536
"""Maximum number of embedded characters. Embedders split them into chunks, whose number is limited separately."""

MAX_INDEXED_CHARS: Final = 262_144
"""Maximum number of characters in the word index."""

ANALYSIS_VERSION: Final = 5
"""Version of the analysis rules. Terms and columns that were computed with another version are computed again."""

BIGRAM_PREFIX: Final = "\u0001"
"""Prefix of bigram terms, so that they never equal a word of two syllables."""

_MAX_TERM_CHARS: Final = 64
_MAX_STRIPPED_CHARS: Final = 20
_MAX_CACHED_CHARS: Final = 32
_MAX_CACHED_WORDS: Final = 8_192


class _TermKind(enum.IntEnum):
    """Kind of a term, which determines its weight."""

    WORD = 0
    PART = 1
    ROOT = 2
    BIGRAM = 3
    STOP = 4
    CHARACTER = 5


T = TypeVar("T")
KindedTerms = tuple[tuple[str, _TermKind], ...]
WeightedTerms = tuple[tuple[str, float], ...]

# Bigrams and stop words have low weights, because they would otherwise inflate the length of a text.
_INDEX_WEIGHTS: Final = (1.0, 1.0, 0.5, 0.4, 0.5, 0.4)
_QUERY_WEIGHTS: Final = (1.0, 1.0, 0.5, 1.0, 1.0, 1.0)

_HANGUL_CHARS: Final = "\u1100-\u11ff\u3131-\u318e\ua960-\ua97c\uac00-\ud7a3\ud7b0-\ud7fb"
# Scripts without spaces between words: ideographs, kana, bopomofo, Thai, Lao, Tibetan, Myanmar, Khmer.
_UNSPACED_SCRIPT_CHARS: Final = (
    "\u0e00-\u0e7f\u0e80-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff"
    "\u3105-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_IDEOGRAPH_PATTERN: Final = re.compile("[\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


def _number_regex(letter: str) -> str:
    """Return the regular expression of a number with separators that is not part of a word of *letter*."""
    return rf"(?<!{letter})(?<!,)[0-9]{{1,3}}(?:,[0-9]{{3}})+(?!{letter})"


_ASCII_TOKEN_PATTERN: Final = re.compile(_number_regex(r"\w") + r"|\w+(?:[-.']\w+)*", re.ASCII)


@functools.cache
def _load_token_pattern() -> re.Pattern[str]:
    """Return the pattern of tokens in a text that is not ASCII. It is large, so it is compiled at its first use."""
    # Combining marks, which `\w` does not match. Punctuation that ends sentences is not included.
    marks = "\u200d" + "".join(
        sign for sign in map(chr, range(0x300, 0xE00)) if unicodedata.category(sign).startswith("M")
    )
    # Hangul and ideographs may directly precede or follow a number, for example as the name of a currency.
    letter = rf"[^\W{_HANGUL_CHARS}{_UNSPACED_SCRIPT_CHARS}]"
    letters = rf"(?:{letter}[{marks}]*)+"
    return re.compile(
        rf"(?P<number>{_number_regex(letter)})|(?P<hangul>[{_HANGUL_CHARS}]+)|(?P<dense>[{_UNSPACED_SCRIPT_CHARS}]+)"
        rf"|(?P<latin>{letters}(?:[-.'\u2019]{letters})*)"
    )


_IDENTIFIER_SEPARATOR_PATTERN: Final = re.compile(r"[-._']+")
_CAMEL_CASE_PATTERN: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# Suffixes that the stemmer may change (https://snowballstem.org/algorithms/english). Other words are not stemmed.
_STEMMABLE_PATTERN: Final = re.compile(r"(?:[ceilsy]|ed|ing|[eo]r|ion|is[mt]|[ae]nt)$")
# Accents of Latin, Greek and Cyrillic letters, and vowel marks of Hebrew and Arabic.
_ACCENT_PATTERN: Final = re.compile("[\u0300-\u036f\u0591-\u05c7\u064b-\u0652\u0670]+")
_CONTRACTION_PATTERN: Final = re.compile(r"'(?:s|re|ve|ll|d|m)$", re.IGNORECASE)
_VERSION_NUMBER_PATTERN: Final = re.compile(r"v?\d+(?:[-.]\d+)+", re.ASCII)
_LONG_MARK_RUN_PATTERN: Final = re.compile(r"[^\w\s]{65}")
_NORMALIZE_CHUNK_CHARS: Final = 64

# Korean particles, and the inflected forms of 하다 and 되다 that turn nouns into verbs.
_PARTICLES: Final = (
    "은|는|이|가|을|를|의|에|와|과|도|만|로|으로|에서|에게|에게서|한테|께|께서|부터|까지|보다|처럼|마다|조차|마저|밖에|이나|나|"
    "이라도|라도|이라|라|이란|란|이며|며|이고|이다|다|입니다|였다|이었다|인|일|임|이면|면|에는|에도|에만|에서는|에서도|으로는|으로도|"
    "으로서|으로써|로서|로써|로는|로도|와는|과는|에다|에다가|대로|만큼|뿐|들|들이|들을|들은|들의|끼리|씩|째|쯤|짜리|적|적인|적으로"
)
_VERB_ENDINGS: Final = (
    "하다|한다|합니다|했다|했습니다|하였다|했음|했던|했나|했는지|했고|했지만|하는|하는지|하던|한|할|할지|함|하기|하기로|하기에|하고|하며|하면|"
    "하면서|하지|하지만|해|해서|해도|해야|했을|하려면|하려고|하도록|하게|하자|하니|하나|하여|합니까|"
    "되다|된다|됩니다|됐다|되었다|됐습니다|됐음|되었음|됐던|되는|되던|된|될|됨|되기|되고|되며|되면|되지|돼|돼서|돼도|돼야|되어|되어야|되도록|되게|되니|됐나|"
    "시키다|시킨다|시켰다|시키는|시킬|시켜|시키고|시키면|시키기"
)
_ENDINGS: Final = (
    "습니다|었다|았다|였다|었음|았음|는다|니다|지만|면서|려면|려고|도록|어야|아야|어서|아서|는지|었던|았던|었나|았나|는데|네요|어요|아요|세요|"
    "었습니다|았습니다|나요|가요|인가요|인가|는가|은가|까요|죠|지요|예요|이에요|에요|더라|던가|였나|였나요|였지|였죠|였더라|였는지|"
    "이었나|이었나요|이었지|이었죠|이었더라|이었는지"
)


_SUFFIXES: Final = frozenset(f"{_PARTICLES}|{_VERB_ENDINGS}|{_ENDINGS}".split("|"))
_LONGEST_SUFFIX: Final = max(map(len, _SUFFIXES))
_PARTICLE_SET: Final = frozenset(_PARTICLES.split("|"))


# Ranges of scripts: first code point, bit of the script (0 for none), and weight of a letter.
_LATIN_BIT: Final = 1
_SCRIPT_RANGES: Final = (
    (0x0, 0, 0), (0x41, 1, 1), (0x5B, 0, 0), (0x61, 1, 1), (0x7B, 0, 0), (0xC0, 1, 1), (0x2B0, 0, 0), (0x370, 2, 1),
    (0x400, 4, 1), (0x530, 8, 1), (0x600, 32, 1), (0x900, 64, 1), (0x1100, 128, 2), (0x1200, 64, 1),
    (0x1E00, 1, 1), (0x1F00, 2, 1), (0x2000, 0, 0), (0x2E80, 16, 2), (0x3000, 0, 0), (0x3040, 16, 2), (0x3130, 128, 2),
    (0x3190, 16, 2), (0xA000, 0, 0), (0xAC00, 128, 2), (0xD800, 0, 0), (0xF900, 16, 2), (0xFB00, 0, 0),
    (0x20000, 16, 2), (0x32000, 0, 0),
)  # fmt: skip
_RANGE_STARTS: Final = np.array([first for first, _, _ in _SCRIPT_RANGES[1:]], np.uint32)
_RANGE_BITS: Final = np.array([bit for _, bit, _ in _SCRIPT_RANGES], np.uint8)
_RANGE_WEIGHTS: Final = np.array([share for _, _, share in _SCRIPT_RANGES])
_LATIN_PATTERN: Final = re.compile("[A-Za-z]")
_MAX_ANALYSED_CHARS: Final = 2_000
# Sentence ends. A full stop within a number or a name does not count. A line break ends a sentence, unless the next
# line starts in lower case, because then it only wraps the text.
_SENTENCE_END_PATTERN: Final = re.compile(
    r"(?<![.!?\u2026])[.!?\u2026]++(?=[\"'\u2019\u201d\xbb)\]*_]{0,3}(?:\s|\Z))|[\u3002\uff01\uff1f\u061f]+"
    r"|\n\s*+(?![a-z])|(?<=\w)\Z"
)
_QUESTION_MARKS: Final = frozenset("?\uff1f\u061f")
_WORD_CHARACTER_PATTERN: Final = re.compile(r"\w")
_AUXILIARY_REGEX: Final = (
    "(?:can|could|would|will|should|shall|may|might|must|do|does|did|is|are|was|were|have|has|had|am"
    "|(?:do|does|did|is|are|was|were|could|would|should|has|have)n['\u2019]t|can['\u2019]t|won['\u2019]t)"
)
_SUBJECT_REGEX: Final = (
    "(?:you|we|i|it|they|he|she|there|this|that|these|those|the|my|your|our|his|her|its|any|anyone|anybody|someone|an?)"
)
_INVERSION_REGEX: Final = rf"(?:\s\w+){{0,3}}?(?:['\u2019](?:s|re|d|ll)|\s{_AUXILIARY_REGEX})\s+{_SUBJECT_REGEX}\b"
_CONJUNCTION_REGEX: Final = r"(?:and|but|so|or|then)\s+"
_SEPARATOR_REGEX: Final = r"(?:[,;:(\u2013\u2014]|\s-)\s*"
# An English sentence that is a question from its start, such as "can you", "how many ports do we" or "who moved".
# "When we moved" and "what we moved" are no questions.
_QUESTION_SENTENCE_PATTERN: Final = re.compile(
    rf"\W*(?:(?:also|ok|hey|please|{_CONJUNCTION_REGEX}),?\s*)?(?:{_AUXILIARY_REGEX}\s\w"
    rf"|(?:what|how|why|when|where|who|whom|whose|which){_INVERSION_REGEX}"
    r"|(?:what|how|why|who|whom|whose|which)\b(?!\s(?:we|i|you|they|he|she|it)\b))",
    re.IGNORECASE,
)
# The end of a statement before a clause that asks.
_QUESTION_CLAUSE_PATTERN: Final = re.compile(
    rf"{_SEPARATOR_REGEX}(?:{_CONJUNCTION_REGEX})?(?={_AUXILIARY_REGEX}\s\w|any\s(?:idea|chance|thoughts)\b)"
    rf"|(?:{_SEPARATOR_REGEX}(?:{_CONJUNCTION_REGEX})?|\b{_CONJUNCTION_REGEX})(?={_AUXILIARY_REGEX}\s{_SUBJECT_REGEX}\b"
    rf"|(?:what|how|why|when|where){_INVERSION_REGEX}|(?:what|how)\sabout\b|why\snot\b"
    r"|(?:what|how|why|when|where|who|which|right|okay|ok|yes|no|correct)\s*\Z)",
    re.IGNORECASE,
)
_PERCENT: Final = 100

_ENGLISH_STOP_WORDS: Final = frozenset(
    """
    a about after again all also am an and any anybody anyone anything are arent as at be became because become been
    before being both but by came can cannot cant come comes could couldnt did didnt do does doesnt doing done dont
    each either else ever every everything for from gave get gets getting give given go goes going got had has hasnt
    have havent having he her here hers him his how i id if ill im in into is isnt it its itself ive just let lets
    made make makes many me might mine more most much must my nor not now of off on once one only onto or other
    our ours out over own please put quite rather really said same say says shall she should shouldnt since so some
    somebody something still such take taken takes tell than that thats the their theirs them then there theres
    these they thing things this those though through to too took until up upon us use used using very via want
    wanted wants was wasnt we went were werent what whats when where whether which while who whom whose why will
    with within without wont would wouldnt yet you your yours
    """.split()  # noqa: SIM905 - a list would be a page long
)

# Irregular forms that the stemmer cannot reduce. Questions use the base form: "what did she buy?" for "bought".
# Forms that are also words with another meaning, such as "rose" and "lives", are left out.
_IRREGULAR_FORMS: Final = """
    buy:bought bring:brought build:built break:broke,broken begin:began,begun bite:bitten blow:blew,blown catch:caught
    choose:chose,chosen draw:drew,drawn drink:drank,drunk drive:drove,driven eat:ate,eaten fall:fell,fallen feed:fed
    feel:felt fight:fought find:found fly:flew,flown forget:forgot,forgotten freeze:froze,frozen grow:grew,grown
    hear:heard hold:held hide:hid,hidden keep:kept know:knew,known leave:left lend:lent lose:lost mean:meant meet:met
    pay:paid ride:rode,ridden ring:rang,rung rise:risen run:ran sell:sold send:sent shake:shook,shaken sing:sang,sung
    sink:sank,sunk sit:sat sleep:slept slide:slid speak:spoke,spoken spend:spent stand:stood steal:stole,stolen
    stick:stuck swim:swam,swum swing:swung teach:taught tear:tore,torn think:thought throw:threw,thrown tell:told
    understand:understood wake:woke,woken wear:wore,worn win:won write:wrote,written dig:dug deal:dealt dream:dreamt
    hang:hung learn:learnt lay:laid strike:struck bend:bent bleed:bled breed:bred burn:burnt creep:crept flee:fled
    forgive:forgave,forgiven leap:leapt seek:sought shrink:shrank,shrunk spin:spun spring:sprang sweep:swept
    withdraw:withdrew,withdrawn overcome:overcame become:became prove:proven sew:sewn show:shown rebuild:rebuilt
    misunderstand:misunderstood undertake:undertook child:children man:men woman:women foot:feet tooth:teeth mouse:mice
    goose:geese wife:wives knife:knives shelf:shelves half:halves loaf:loaves thief:thieves wolf:wolves
    criterion:criteria index:indices matrix:matrices analysis:analyses hypothesis:hypotheses
    """
_BASE_BY_IRREGULAR_FORM: Final = {
    form: word for entry in _IRREGULAR_FORMS.split() for word, *forms in [re.split("[:,]", entry)] for form in forms
}

# Stop words in German, French, Spanish, Portuguese, Italian, Dutch and Russian, without accents.
# Words that also exist in English, and abbreviations, are left out.
_EUROPEAN_STOP_WORDS: Final = frozenset(
    """
    der das und ist nicht ein eine einen einem einer eines zu zum zur dem von auf sich wird werden wurde wurden sind bei
    nach aus auch oder aber wie wer wo wann warum weshalb wieso welche welcher welches welchen wieviel viel durch
    le et une dans qui que avec cette ces ou quand comment quel quelle quels quelles pourquoi combien
    el los las en para cual cuales cuando donde quien cuanto cuantos cuanta cuantas como
    um uma nao onde quem quanto quantos quando foi sao em il gli che quale quali dove perche della delle degli nel nella
    de het een dat niet wat waar wanneer waarom welke hoeveel
    не на что по это как где когда кто какои какая какое какие почему сколько для из за от до был была было были он она
    они мы вы их но же ли или
    """.split()  # noqa: SIM905 - a list would be a page long
)

_KOREAN_STOP_WORDS: Final = frozenset(
    """
    것 것은 것을 것이 것들 거 게 걸 수 등 및 그 이 저 때 때는 때문 때문에 더 또 또는 왜 무엇 무엇을 무엇이 뭐
    뭘 뭐가 어떤 어떻게 무슨 언제 어디 어디서 어디에 어느 누가 누구 얼마 얼마나 몇 우리 우리는 우리가 우리의
    나는 내가 대한 대해 대해서 관한 관해 관해서 위해 위한 하는 하다 한다 했다 했나 했던 하고 하지 해서 한 할 함
    되는 된다 됐다 됐나 되어 된 될 됨 있다 있는 있나 있었나 있었다 있는지 없다 없는 없나 없이 않다 않는 않은
    않고 않았나 않기로 같은 같이 그리고 그래서 그런데 하지만 그러나 지금 지금은 이제 현재 모두 모든 다 좀 잘 안
    못 만 뿐 줘 주세요 달라 보여 알려 인가 인가요 일까 였나 이유 이유는 이유가 어떻게든 무엇인가 무엇이었나
    뭔 뭐라고 뭐였 뭘로 무엇이었 누구한테 누구의 언제까지 언제부터 어디로 어디까지 어땠 어때 얼마까지
    며칠 며칠까지 몇번 몇초 몇분 몇시 몇시간 몇일 몇명 몇개 몇년 몇월 몇주 몇달 몇살 하나요 하죠 되나요 있나요 없나요
    주나요 있을까 있을까요 있었더 할수 줄 알려주 알려줘 알려주세요
    """.split()  # noqa: SIM905 - a list would be a page long
)

# Question words are also stop words with any suffix or form of the copula, as in 누구야, 얼마지 and 몇시였어.
_QUESTION_STEMS: Final = frozenset(one for one in _KOREAN_STOP_WORDS if one[0] in "누얼언어무며뭐뭔몇왜")
_QUESTION_ENDINGS: Final = _SUFFIXES | frozenset(
    "야 이야 지 이지 니 이니 냐 이냐 요 이요 래 이래 랑 하고 데 였어 였니 이었어 이었니".split()  # noqa: SIM905
)

# Chinese question words and particles, simplified and traditional. A bigram that contains one is a stop word too.
_STOP_IDEOGRAPHS: Final = frozenset("的了吗嗎呢吧啊嘛什么麼甚怎哪谁誰几幾")

# Bigrams of grammatical suffixes and of question words, in Japanese and Chinese.
_STOP_BIGRAMS: Final = frozenset(
    """
    です ます すか した して まし たか ませ せん った って てい いる いた ある あっ こと から まで のは のが のか には
    では とは ので んで いつ どこ だれ なに なん どの どれ どう どん いく くら らい 多少
    """.split()  # noqa: SIM905 - a list would be a page long
)


class _WordCache(dict[str, T]):
    """
    Cache of analysed words with two generations.

    If the present generation is full, it replaces the previous one. Long words rarely repeat, so they are not cached.
    """

    def __init__(self, analyse: Callable[[str], T]) -> None:
        super().__init__()
        self._analyse = analyse
        self._before: Mapping[str, T] = {}

    def __missing__(self, word: str) -> T:
        known = self._before.get(word)
        found = self._analyse(word) if known is None else known
        if len(word) <= _MAX_CACHED_CHARS:
            # The full generation is copied before it is cleared, because several threads may rotate concurrently.
            if len(self) >= _MAX_CACHED_WORDS:
                self._before = self.copy()
                self.clear()
            self[word] = found
        return found


def embedded_text(memory: Memory) -> str:
    """Return the text to embed: topic, content, and the author's further text fields."""
    # The outcome is left out, because `MemoryStore.set_outcome` stores it as a separate memory.
    # So the decision's vector remains valid, and a search as of a past time does not match a later outcome.
    body = "\n".join(_text_fields(memory))
    topic = _topic_to_words(memory.topic)
    return (f"{topic}: {body}" if topic else body)[:MAX_EMBEDDED_CHARS]


def embedded_texts(memory: Memory) -> list[str]:
    """Return the texts to embed separately. Only records can have several."""
    if not isinstance(memory.metadata, RecordMetadata) or not memory.metadata.text_lengths:
        return [embedded_text(memory)]
    texts, begin = [], 0
    for length in memory.metadata.text_lengths:
        texts.append(memory.content[begin : begin + min(length, MAX_EMBEDDED_CHARS)])
        begin += length + len(TEXT_SEPARATOR)
    return texts


def indexed_text(memory: Memory, *, with_topic: bool = True) -> str:
    """Return the text to index: the embedded text and a checkpoint's files, one part per line."""
    lines = [*_text_fields(memory)]
    if isinstance(memory.metadata, CheckpointMetadata):
        lines.extend(memory.metadata.open_files)
    topic = _topic_to_words(memory.topic)
    # Include both forms of the topic, so that the identifier and its parts are indexed.
    heads = [topic] if topic == memory.topic else [memory.topic or "", topic]
    return "\n".join([*(head for head in heads if head and with_topic), *lines])[:MAX_INDEXED_CHARS]


def _topic_to_words(topic: str | None) -> str:
    """Return a topic with spaces for underscores: ``response_cache`` as ``response cache``."""
    return " ".join((topic or "").replace("_", " ").split())


def _text_fields(memory: Memory) -> Iterator[str]:
    metadata = memory.metadata
    parts: tuple[str | None, ...] = ()
    if isinstance(metadata, DecisionMetadata):
        parts = (metadata.reasoning,)
    elif isinstance(metadata, CheckpointMetadata):
        parts = metadata.next_steps
    elif isinstance(metadata, InsightMetadata):
        parts = (metadata.category, " ".join(metadata.tags))
    yield memory.content
    for part in parts:
        if part is not None and part.strip():
            yield part


@attrs.frozen
class AnalysedWord:
    """Index terms and query terms of one whitespace-separated token."""

    indexed: WeightedTerms
    asked: WeightedTerms
    """Query terms, empty for a stop word."""
    stop_terms: WeightedTerms
    """Query terms that are used if the query consists of stop words only."""


@attrs.frozen
class TextAnalysis:
    """The tokens of a text with their counts. Each distinct token is analysed once."""

    words: Mapping[str, AnalysedWord]
    counts: Mapping[str, int]

    def compute_indexed_terms(self) -> dict[str, float]:
        """Return the index terms of the text with their weights, all greater than 0."""
        sums: dict[str, float] = {}
        for word, times in zip(self.words.values(), self.counts.values(), strict=True):
            for term, weight in word.indexed:
                sums[term] = sums.get(term, 0.0) + times * weight
        return sums

    def compute_query_terms(self, words: Iterable[str] | None = None) -> dict[str, float]:
        """Return the query terms of the text, or of some of its *words*, with their weights."""
        chosen = [self.words[written] for written in (self.words if words is None else words)]
        # Use the maximum weight instead of the sum, because a repeated query word must not count twice.
        return _max_weights(word.asked for word in chosen) or _max_weights(word.stop_terms for word in chosen)


def analyse_text(text: str) -> TextAnalysis:
    """Split a text into analysed tokens, for callers that need its terms in several ways."""
    counts, known = Counter(text.split()), _word_cache
    return TextAnalysis({written: known[written] for written in counts}, counts)


def weighted_terms(text: str) -> dict[str, float]:
    """Return the index terms of a text with their weights, all greater than 0."""
    return analyse_text(text).compute_indexed_terms()


def detect_scripts(text: str) -> int:
    """
    Return a bit mask of the scripts that make up at least a quarter of a text.

    Texts without a common bit have no common words, except words borrowed from a third script.
    """
    if text.isascii():
        return _LATIN_BIT if _LATIN_PATTERN.search(text[:_MAX_ANALYSED_CHARS]) else 0
    codes = np.frombuffer(text[:_MAX_ANALYSED_CHARS].encode("utf-32-le", "surrogatepass"), np.uint32)
    weights = np.bincount(_RANGE_STARTS.searchsorted(codes, "right"), minlength=len(_RANGE_STARTS) + 1) * _RANGE_WEIGHTS
    bits = weights * 4 >= max(weights.sum(), 1e-9)
    return int(np.bitwise_or.reduce(_RANGE_BITS[bits], initial=0))


def question_percentage(text: str) -> int:
    """
    Return the percentage of letters and digits of a text that are in questions, 0 to 100.

    A sentence with a question mark is a question. If an English sentence begins as a statement, as in "We moved it to
    port 80, can you check?", only the clause that asks counts.
    """
    text = text[:_MAX_ANALYSED_CHARS]
    if _QUESTION_MARKS.isdisjoint(text):
        return 0
    asked = start = 0
    for end in _SENTENCE_END_PATTERN.finditer(text):
        if not _QUESTION_MARKS.isdisjoint(end[0]):
            asked += _count_word_characters(text[start + _find_question(text[start : end.start()]) : end.start()])
        start = end.end()
    return _PERCENT * asked // (_count_word_characters(text) or 1)


def _find_question(sentence: str) -> int:
    """Return the index in a sentence with a question mark where the question starts."""
    clause = None if _QUESTION_SENTENCE_PATTERN.match(sentence) else _QUESTION_CLAUSE_PATTERN.search(sentence)
    return 0 if clause is None else clause.end()


def _count_word_characters(text: str) -> int:
    return len(_WORD_CHARACTER_PATTERN.findall(text))


def resolve_terms(query: str | Mapping[str, float]) -> Mapping[str, float]:
    """Return the query terms of a text. A mapping of terms is returned unchanged."""
    return query_terms(query) if isinstance(query, str) else query


def query_terms(text: str) -> Mapping[str, float]:
    """Return the query terms of a text with their weights."""
    return analyse_text(text).compute_query_terms()


def _max_weights(weighed: Iterable[WeightedTerms]) -> dict[str, float]:
    greatest: dict[str, float] = {}
    for terms in weighed:
        for term, weight in terms:
            if greatest.setdefault(term, weight) < weight:
                greatest[term] = weight
    return greatest


def _analyse_word(written: str) -> AnalysedWord:
    indexed: dict[str, float] = {}
    asked: list[tuple[str, float]] = []
    stops: list[tuple[str, float]] = []
    stop = _TermKind.STOP
    for term, kind in _extract_terms(written):
        indexed[term] = indexed.get(term, 0.0) + _INDEX_WEIGHTS[kind]
        (stops if kind is stop else asked).append((term, _QUERY_WEIGHTS[kind]))
    return AnalysedWord(tuple(indexed.items()), tuple(asked), tuple(stops))


_word_cache: Final = _WordCache(_analyse_word)


def _extract_terms(text: str) -> Iterator[tuple[str, _TermKind]]:
    if text.isascii():
        for token in _ASCII_TOKEN_PATTERN.findall(text):
            yield from _latin_terms(token[:_MAX_TERM_CHARS])
        return
    end, number, latin = -1, "", False
    for match in _load_token_pattern().finditer(_normalize_bounded(text)):
        token = match[0]
        attached = match.start() == end
        end = match.end()
        if match["hangul"] is not None:
            if not (attached and latin and token in _PARTICLE_SET):
                for start in range(0, len(token), _MAX_TERM_CHARS):
                    yield from _korean_terms(token[start : start + _MAX_TERM_CHARS])
            if attached and number:
                yield number + token[:1], _TermKind.WORD
            number, latin = "", False
        elif match["dense"] is not None:
            yield from _unspaced_terms(token)
            number, latin = "", False
        else:
            yield from _latin_terms(token[:_MAX_TERM_CHARS])
            latin = True
            digits = token.replace(",", "")
            number = digits if digits.isdecimal() and len(token) <= _MAX_TERM_CHARS else ""


def _normalize_bounded(text: str) -> str:
    """Return *text* in NFKC, or in NFC if NFKC is much longer. NFKC can be 18 times as long as the text."""
    normal = normalize("NFKC", text)
    return normal if len(normal) <= 2 * len(text) + _NORMALIZE_CHUNK_CHARS else normalize("NFC", text)


def normalize(form: Literal["NFC", "NFKC"], text: str) -> str:
    """Return a text in a Unicode normal form, in linear time."""
    # `unicodedata.normalize` sorts a run of combining marks in quadratic time, so a text with a long run is split.
    if _LONG_MARK_RUN_PATTERN.search(text) is None:
        return unicodedata.normalize(form, text)
    pieces = (text[start : start + _NORMALIZE_CHUNK_CHARS] for start in range(0, len(text), _NORMALIZE_CHUNK_CHARS))
    return "".join(unicodedata.normalize(form, piece) for piece in pieces)


def _latin_terms(token: str) -> KindedTerms:
    """Return the terms of a word or identifier in a script that separates words by spaces."""
    if "," in token:
        return ((token.replace(",", ""), _TermKind.WORD),)
    token = token.replace("\u2019", "'")
    if not token.isascii():
        # Remove accents, because many texts omit or vary them.
        token = unicodedata.normalize("NFC", _ACCENT_PATTERN.sub("", unicodedata.normalize("NFD", token)))
    token = _CONTRACTION_PATTERN.sub("", token)
    whole = token.casefold().replace("'", "").strip("-._")
    if not whole:
        return ()
    if _VERSION_NUMBER_PATTERN.fullmatch(whole):
        versions = {whole: _TermKind.WORD, whole.removeprefix("v"): _TermKind.PART}
        return tuple(versions.items())
    pieces = [
        piece
        for part in _IDENTIFIER_SEPARATOR_PATTERN.split(token.replace("'", ""))
        if part
        for piece in _CAMEL_CASE_PATTERN.split(part)
    ]
    if len(pieces) == 1:
        return (_stem_term(whole, _TermKind.WORD),)
    # Index the whole identifier too, because texts often write it in lower case, like a word.
    return ((_stem_cache[whole], _TermKind.WORD), *(_stem_term(piece.casefold(), _TermKind.PART) for piece in pieces))


def _stem_term(word: str, kind: _TermKind) -> tuple[str, _TermKind]:
    return (_stem_cache[word], _TermKind.STOP if word in _ENGLISH_STOP_WORDS or word in _EUROPEAN_STOP_WORDS else kind)


def _stem(word: str) -> str:
    word = _BASE_BY_IRREGULAR_FORM.get(word, word)
    return (
        EnglishStemmer().stemWord(word)
        if _STEMMABLE_PATTERN.search(word) and word.isascii() and word.isalpha()
        else word
    )


_stem_cache: Final = _WordCache(_stem)


def _korean_terms(word: str) -> KindedTerms:
    """Return the terms of a Hangul word: the word without particles, and its bigrams."""
    root = word if word in _KOREAN_STOP_WORDS else _strip_suffixes(word)
    if root in _KOREAN_STOP_WORDS or _is_question_word(word[:_MAX_STRIPPED_CHARS]):
        return ((root, _TermKind.STOP),)
    found = [(root, _TermKind.WORD)]
    # If all syllables but the first form a suffix, index the first syllable too, as in 값이. This also splits 결과.
    if root[1:] in _SUFFIXES:
        found.append((root[0], _TermKind.ROOT))
    # Use bigrams of the whole word, because its stem is not always detected. Bigrams of frequent suffixes weigh little.
    return (*found, *_bigram_terms(word))


def _is_question_word(word: str) -> bool:
    """Return True for a Korean question word with an ending."""
    return any(word[:at] in _QUESTION_STEMS and word[at:] in _QUESTION_ENDINGS for at in range(1, len(word)))


def _strip_suffixes(word: str) -> str:
    """Remove trailing particles and suffixes from *word*, but leave at least two syllables."""
    # Longer strings are not words, and would contain too many suffixes to strip.
    while len(word) <= _MAX_STRIPPED_CHARS:
        lengths = range(min(len(word) - 2, _LONGEST_SUFFIX), 0, -1)
        length = next((length for length in lengths if word[-length:] in _SUFFIXES), 0)
        if not length:
            break
        word = word[:-length]
    return word


def _unspaced_terms(run: str) -> KindedTerms:
    """
    Return the terms of a run of text without spaces: its bigrams, and each ideograph.

    Single ideographs are often words.
    """
    stop, character = _TermKind.STOP, _TermKind.CHARACTER
    ideographs = _IDEOGRAPH_PATTERN.findall(run)
    if len(run) == 1 and not ideographs:
        return ((run, _TermKind.WORD),)
    return (*((one, stop if one in _STOP_IDEOGRAPHS else character) for one in ideographs), *_bigram_terms(run))


def _bigram_terms(run: str) -> list[tuple[str, _TermKind]]:
    bigram, stop = _TermKind.BIGRAM, _TermKind.STOP
    return [
        (
            BIGRAM_PREFIX + one + other,
            stop if one in _STOP_IDEOGRAPHS or other in _STOP_IDEOGRAPHS or one + other in _STOP_BIGRAMS else bigram,
        )
        for one, other in pairwise(run)
    ]
