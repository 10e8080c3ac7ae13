"""Parsing of a text into statements: subject, values, polarity, quantifiers, roles and cues."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs

from mama_structs._internal.caches import cache_by_text
from mama_structs.memory.statements.lexicons import UNSPACED_LANGUAGES, Lexicon, Polarity, load_lexicon
from mama_structs.memory.types.duplicates import normalize_wording
from mama_structs.memory.types.languages import detect_language, may_be_unlisted
from mama_structs.memory.types.text_analysis import normalize

MAX_COMPARED_CHARS: Final = 2_000
"""Maximum number of characters of a text that are compared."""

_MAX_CACHED_TEXTS: Final = 1_024
_MAX_CACHED_WORDS: Final = 16_384
_MAX_SENTENCES: Final = 24
_MAX_DENIED_WORDS_AFTER: Final = 4
_MAX_DENIED_WORDS_BEFORE: Final = 3
# Words with a common prefix of this length count as inflected forms of one word.
_KEY_CHARS: Final = 7
_HANGUL_KEY_CHARS: Final = 2
_KOREAN_VERB_ENDINGS: Final = frozenset("다지는")
_DEFAULT_LANGUAGE: Final = "en"
_LATIN_LANGUAGES: Final = frozenset({"de", "es", "fr"})
PARTICLE_LANGUAGES: Final = frozenset({"ja", "ko"})
"""Languages in which a particle marks the subject, and the verb comes last."""
_FIRST_SYLLABLE: Final = 0xAC00
# Syllables in order of code points differ in the final consonant first.
_FINAL_CONSONANTS: Final = 28

_TOKEN_PATTERN: Final = re.compile(
    r"(?:(?<![\w-])-)?\d[\d.,:]*(?:-\d+)*(?:[%$£¥₩€₽]|[^\W\d_]+)?|[^\W\d_](?:[\w'-]|\.(?=\w))*|[%$£¥₩€₽]"
)
_NUMBER_PATTERN: Final = re.compile(r"(-?\d[\d,.:]*(?:-\d+)*)(.*)")
_ENTITY_ID_PATTERN: Final = re.compile(r"\d+-\d+(?!-?\d)")
_SENTENCE_PATTERN: Final = re.compile(r"(?<=[.!?;])\s+|[\u3002\uff01\uff1f\uff1b\n]+")
_HANGUL_PATTERN: Final = re.compile(r"[가-힣]")
_CASED_NAME_PATTERN: Final = re.compile(r"[^\W\d_]*[^\W\d_A-Z][A-Z]|[A-Z]{2}|\w*_|\w*\d")
_QUOTES: Final = str.maketrans({"\u2019": "'", "\u2018": "'", "`": "'", "\u2212": "-", "\u2013": "-", "\u2014": "-"})
_UNSPACED_NUMBERS: Final = frozenset("零〇一二三四五六七八九十百千两")
# The words before a colon are the subject. Before a dash, more than two words or a number can be a whole statement.
_HEADING_PATTERN: Final = re.compile(r"\s*(?:([^.:;,!?\n]{1,60}?):|([^\W\d]\S*(?:\s[^\W\d]\S*)?)\s-)\s")
_DECIMAL_COMMA_LANGUAGES: Final = frozenset({"de", "fr", "es", "ru"})
_DECIMAL_COMMA_PATTERN: Final = re.compile(r"-?\d+(?:\.\d{3})*,\d+|-?\d{1,3}(?:\.\d{3})+")
_THOUSANDS_PATTERN: Final = re.compile(r",(?=\d{3}(?!\d))")
# A word or number in front of a Korean particle.
_FOREIGN_PATTERN: Final = re.compile(r"[a-z][\x21-\x7e]*(?=[가-힣])")
_HONORIFICS: Final = re.compile(r"(?<=[一-鿿ァ-ヺー])(?:さん|様|君|ちゃん|氏)")
_PERSON_PATTERN: Final = re.compile(rf"([一-鿿]+|[ァ-ヺー]+){_HONORIFICS.pattern}")

_KOREAN_ROLES: Final = (
    ("에게서", "from"), ("에서는", "from"), ("에서", "from"), ("부터", "from"), ("으로", "to"), ("에게", "to"),
    ("한테", "to"), ("까지", "to"), ("께서", "agent"), ("보다", "than"), ("은", "agent"), ("는", "agent"),
    ("이", "agent"), ("가", "agent"), ("을", "object"), ("를", "object"), ("로", "to"), ("에", "to"),
)  # fmt: skip
_JAPANESE_ROLES: Final = {
    "が": "agent", "は": "agent", "を": "object", "に": "to", "へ": "to", "まで": "to", "から": "from", "より": "than",
}  # fmt: skip


@attrs.frozen(eq=False)
class ParsedStatement:
    """One parsed sentence, or a whole short text."""

    lexicon: Lexicon
    forms: tuple[str, ...]
    """All words in lower case, in text order."""
    stems: tuple[str, ...]
    """Stems of the content words, in text order."""
    keys: tuple[str, ...]
    """The key of each stem."""
    content: frozenset[str]
    """Keys of the content words. Inflected forms of one word have the same key."""
    key_at: Mapping[str, int]
    """Position in *forms* of the first word with each key."""
    subject: frozenset[str]
    """Keys and labels before the verb, or an empty set if no verb was found."""
    verb_at: int
    """Position of the first known verb in *forms*, or -1."""
    verb: str
    """Stem of this verb; for a form of "to be", the empty string."""
    values: Mapping[str, frozenset[str]]
    """Numbers, dates, weekdays and months, grouped by unit. The name of a unit of measurement starts with "#"."""
    measures: Mapping[str, frozenset[tuple[str, str]]]
    """Unit and value in the base unit of each measurement, by dimension."""
    unit_keys: Mapping[str, str]
    """Dimension of each key that is the unit of a number."""
    labels: frozenset[str]
    """Entity ids, names with digits, single letters, and numbers that name a thing."""
    names: frozenset[str]
    """Keys of the proper names."""
    negations: tuple[tuple[Polarity, ...], ...]
    """The negations, each with the antonym pairs it belongs to."""
    denied: frozenset[str]
    """Keys of the words in the scope of a negation."""
    quantifiers: frozenset[str]
    polarities: frozenset[Polarity]
    polarity_keys: Mapping[str, tuple[Polarity, ...]]
    """Antonym pairs by the key of the word, including words without content."""
    roles: Mapping[str, str]
    """Grammatical role of each key, in languages that mark the role with a particle."""
    ends: frozenset[str]
    """Cues that an earlier statement is no longer true. *changes* has weaker cues."""
    changes: frozenset[str]
    adds: bool

    @property
    def numbers(self) -> frozenset[str]:
        """All values, without their units."""
        return frozenset().union(*self.values.values())

    @property
    def entities(self) -> frozenset[str]:
        """Entity ids, such as ``1-11``."""
        return frozenset(label for label in self.labels if label[0].isdigit())

    @property
    def codes(self) -> frozenset[str]:
        """Names that contain digits."""
        return frozenset(label for label in self.labels if len(label) > 1 and label[0].isalpha())


@attrs.frozen(eq=False)
class ParsedText:
    """A parsed text."""

    normal: str
    """The text in the form in which copies are equal."""
    language: str
    statements: tuple[ParsedStatement, ...]
    """The sentences. Empty for a language without word lists."""
    whole: ParsedStatement | None
    """All sentences as one statement, or None for a language without word lists."""


def parse_text(text: str, language: str | None = None) -> ParsedText:
    """
    Parse the first 2,000 characters of a text.

    Args:
        text: Any text.
        language: ISO 639-1 code. By default, the language is detected.

    """
    return _parse(text[:MAX_COMPARED_CHARS], language)


@cache_by_text(_MAX_CACHED_TEXTS)
def _parse(text: str, language: str | None) -> ParsedText:
    if language is None:
        language = detect_known_language(text)
    lexicon = load_lexicon(language)
    normal = normalize_wording(text)
    if lexicon is None:
        return ParsedText(normal, language, (), None)
    plain = normalize_text(text)
    whole = _parse_statement(plain, lexicon)
    sentences = split_sentences(plain)
    several = len(sentences) > 1
    return ParsedText(
        normal, language, tuple(_parse_statement(one, lexicon) for one in sentences) if several else (whole,), whole
    )


@cache_by_text(_MAX_CACHED_TEXTS)
def detect_known_language(text: str) -> str:
    """Return the language code of a text, or an empty string for a language without word lists."""
    return "" if may_be_unlisted(text) else detect_language(text)


def common_language(first: str, second: str) -> str | None:
    """Return the language in which texts of two languages are compared, or None for texts that are not comparable."""
    # A text in Latin script without evidence of its language counts as English.
    if first == second or (first in _LATIN_LANGUAGES and second == _DEFAULT_LANGUAGE):
        return first
    return second if first == _DEFAULT_LANGUAGE and second in _LATIN_LANGUAGES else None


def normalize_text(text: str) -> str:
    """Return a text with uniform quotation marks and dashes, in NFKC."""
    return normalize("NFKC", text.translate(_QUOTES))


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a normalized text, or the whole text if it has at most one."""
    sentences = [sentence for sentence in _SENTENCE_PATTERN.split(text) if sentence.strip()][:_MAX_SENTENCES]
    return sentences if len(sentences) > 1 else [text]


@attrs.define
class _Word:
    form: str
    written: str
    role: str = ""
    is_person: bool = False


def _normalize_number(text: str, language: str) -> str:
    """Return a number without separators of thousands, and with a decimal point."""
    if language not in _DECIMAL_COMMA_LANGUAGES:
        return _THOUSANDS_PATTERN.sub("", text)
    return text.replace(".", "").replace(",", ".") if _DECIMAL_COMMA_PATTERN.fullmatch(text) else text


def _parse_statement(text: str, lexicon: Lexicon) -> ParsedStatement:
    cues = text.lower()
    text = lexicon.replace_phrases(text)
    words, negations = split_words(text, lexicon)
    builder = _Builder(lexicon)
    heading = _HEADING_PATTERN.match(text)
    if heading is not None:
        builder.verb_at = len(split_words(heading[1] or heading[2], lexicon)[0])
    for position, word in enumerate(words):
        builder.add(words, position, word)
    builder.find_names(words)
    return ParsedStatement(
        lexicon=lexicon,
        forms=tuple(word.form for word in words),
        stems=tuple(builder.stems),
        keys=tuple(map(make_key, builder.stems)),
        content=frozenset(builder.key_at),
        key_at=builder.key_at,
        subject=builder.find_subject(words),
        verb_at=builder.verb_at,
        verb=builder.verb,
        values={unit: frozenset(some) for unit, some in builder.values.items()},
        measures={dimension: frozenset(some) for dimension, some in builder.measures.items()},
        unit_keys=builder.unit_keys,
        labels=frozenset(builder.labels),
        names=frozenset(builder.names),
        negations=(*negations, *builder.negations),
        denied=builder.find_denied(words),
        quantifiers=frozenset(builder.quantifiers),
        polarities=frozenset(builder.polarities),
        polarity_keys=builder.polarity_keys,
        roles=builder.roles,
        ends=frozenset(lexicon.end_pattern.findall(cues)),
        changes=frozenset(lexicon.change_pattern.findall(cues)),
        adds=lexicon.addition_pattern.search(cues) is not None,
    )


def split_words(text: str, lexicon: Lexicon) -> tuple[list[_Word], list[tuple[Polarity, ...]]]:
    """Return the words of a sentence, and the negations that are parts of words."""
    language = lexicon.language
    if language in UNSPACED_LANGUAGES:
        people = frozenset(_PERSON_PATTERN.findall(text))
        text = _HONORIFICS.sub("", text)
        negations = [_polarities_of(found, lexicon) for found in lexicon.negation_pattern.findall(text)]
        # Removing the negation makes the rest equal to the affirmative sentence.
        words = _split_unspaced(lexicon.negation_pattern.sub("", text), lexicon)
        for word in words:
            word.is_person = word.written in people
        return words, negations
    negations = [_polarities_of(found, lexicon) for found in lexicon.negation_pattern.findall(text)]
    words = []
    for written in _TOKEN_PATTERN.findall(text):
        form = written.lower()
        if language == "ko":
            foreign = _FOREIGN_PATTERN.match(form)
            words.append(_Word(foreign[0] if foreign else form, written, _korean_role(form)))
        elif "'" in written:
            # One part of "n't" or "l'" is empty.
            words.extend(word for word in _split_apostrophe(form, written, language) if word.form)
        else:
            words.append(_Word(form, written))
    return words, negations


def _split_apostrophe(form: str, written: str, language: str) -> Iterator[_Word]:
    before, _, after = form.partition("'")
    if language == "fr":
        yield _Word(before, written[: len(before)])
        yield _Word(after, written[len(before) + 1 :])
    elif form.endswith("n't"):
        yield _Word(form[:-3], written[:-3])
        yield _Word("not", "not")
    else:
        yield _Word(before, written[: len(before)])


@cache_by_text(_MAX_CACHED_WORDS)
def _korean_role(form: str) -> str:
    return next((role for ending, role in _KOREAN_ROLES if len(form) > len(ending) and form.endswith(ending)), "")


def _split_unspaced(text: str, lexicon: Lexicon) -> list[_Word]:
    words: list[_Word] = []
    is_in_run = False
    for found in lexicon.segment_pattern.findall(text):
        is_run = (
            len(found) == 1
            and "\u4e00" <= found <= "\u9fff"
            and found not in lexicon.function
            and found not in lexicon.polarities
            and found not in _UNSPACED_NUMBERS
        )
        if is_run and is_in_run:
            words[-1].form = words[-1].written = words[-1].form + found
        else:
            role = _JAPANESE_ROLES.get(found) or _JAPANESE_ROLES.get(found[:1], "")
            if words and role:
                words[-1].role = role
            words.append(_Word(found.lower(), found))
        is_in_run = is_run
    return words


def _polarities_of(form: str, lexicon: Lexicon) -> tuple[Polarity, ...]:
    return lexicon.polarities.get(form.strip().lower(), ())


class _Builder:
    """Collects the features of a sentence."""

    def __init__(self, lexicon: Lexicon) -> None:
        self.lexicon = lexicon
        self.stems: list[str] = []
        self.key_at: dict[str, int] = {}
        self.values: dict[str, set[str]] = {}
        self.measures: dict[str, set[tuple[str, str]]] = {}
        self.unit_keys: dict[str, str] = {}
        self.value_positions: list[tuple[int, str]] = []
        self.labels: set[str] = set()
        self.names: set[str] = set()
        self.negations: list[tuple[Polarity, ...]] = []
        self.quantifiers: set[str] = set()
        self.polarities: set[Polarity] = set()
        self.polarity_keys: dict[str, tuple[Polarity, ...]] = {}
        self.roles: dict[str, str] = {}
        self.verb_at = -1
        self.verb = ""

    def add(self, words: Sequence[_Word], position: int, word: _Word) -> None:
        """Classify one word."""
        lexicon, form = self.lexicon, word.form
        if self._add_value(words, position, form):
            return
        stem = lexicon.stem(form)
        polarities = find_polarities(form, stem, lexicon)
        self.polarities.update(polarities)
        key = make_key(stem)
        if polarities:
            self.polarity_keys[key] = polarities
        if not _is_noun(words, position, lexicon):
            self._find_verb(position, form, stem)
        if form in lexicon.negations:
            self.negations.append(polarities)
        elif form in lexicon.quantifiers:
            self.quantifiers.add(lexicon.quantifiers[form])
        elif _is_label(word, position, lexicon):
            self.labels.add(form)
            self.value_positions.append((position, form))
        if is_content_word(form, stem, polarities, lexicon):
            self.stems.append(stem)
            self.key_at.setdefault(key, position)
            if word.role:
                self.roles.setdefault(key, word.role)

    def _add_value(self, words: Sequence[_Word], position: int, form: str) -> bool:
        """Record a number, weekday or month. Return False for another word."""
        lexicon = self.lexicon
        named = _find_calendar_value(form, lexicon)
        if named is not None and not (form == "may" and words[position].written.islower()):
            self._put_value(*named, position)
            return True
        for entity in find_entity_labels(form):
            self.labels.add(entity)
            self.value_positions.append((position, entity))
            return True
        text = lexicon.numbers.get(form, form)
        if form not in lexicon.numbers and form[0] in _UNSPACED_NUMBERS and lexicon.language in UNSPACED_LANGUAGES:
            self._put_value(self._unit_after(words, position), form, position)
            return True
        found = _NUMBER_PATTERN.fullmatch(text)
        if found is None:
            return False
        number = _normalize_number(found[1].rstrip(",.:-") or found[1], lexicon.language)
        suffix = found[2].lstrip(".")
        if self._add_measure(words, position, number, suffix):
            return True
        unit = suffix or self._unit_after(words, position)
        # Reduce a Korean counter to its first syllable, because the rest is a grammatical particle.
        self._put_value(unit[:1] if _HANGUL_PATTERN.match(unit) else unit, number, position)
        return True

    def _add_measure(self, words: Sequence[_Word], position: int, number: str, suffix: str) -> bool:
        """Record a number with a unit of measurement. Return False for another number."""
        lexicon = self.lexicon
        after = words[position + 1].form if position + 1 < len(words) else ""
        before = words[position - 1].form if position else ""
        if not suffix and any(lexicon.calendar.get(word, ("",))[0] == "month" for word in (after, before)):
            return False
        unit, rest = lexicon.find_unit(suffix or after)
        unit_word = "" if suffix else after
        if unit is None and (symbol := lexicon.units.get(before)) is not None and symbol.precedes_number:
            unit, unit_word = symbol, before
        if unit is None:
            return False
        if unit_word:
            self.unit_keys[make_key(lexicon.stem(unit_word))] = f"{unit.dimension}{rest}"
        self._put_value(f"#{unit.name}", number, position)
        self.measures.setdefault(unit.dimension, set()).add((unit.name, unit.convert(number)))
        return True

    def _unit_after(self, words: Sequence[_Word], position: int) -> str:
        if position + 1 >= len(words):
            return ""
        after = words[position + 1].form
        before = words[position - 1].form if position else ""
        if any(self.lexicon.calendar.get(word, ("",))[0] == "month" for word in (after, before)):
            return "day"
        if after[0].isdigit() or after in self.lexicon.function or after in self.lexicon.numbers:
            return ""
        return self.lexicon.stem(after)

    def _put_value(self, unit: str, value: str, position: int) -> None:
        self.values.setdefault(unit, set()).add(value)
        self.value_positions.append((position, value))

    def _find_verb(self, position: int, form: str, stem: str) -> None:
        if self.verb_at >= 0:
            return
        if form in self.lexicon.copulas:
            self.verb_at, self.verb = position, ""
        elif stem in self.lexicon.single_valued or stem in self.lexicon.multi_valued or stem in self.lexicon.verbs:
            self.verb_at, self.verb = position, stem

    def find_names(self, words: Sequence[_Word]) -> None:
        """Find proper names: capitalized words inside of a sentence, and words like ``fooBar`` or ``FOO``."""
        for key, position in self.key_at.items():
            written = words[position].written
            if (
                words[position].is_person
                or _CASED_NAME_PATTERN.match(written)
                or (position and written[:1].isupper() and not written[:1].isdigit())
            ):
                self.names.add(key)

    def find_denied(self, words: Sequence[_Word]) -> frozenset[str]:
        """Return the keys of the words after a negating word, or before a negating suffix."""
        denied: set[int] = set()
        for at, word in enumerate(words):
            if word.form in self.lexicon.negations:
                denied.update(range(at + 1, at + 1 + _MAX_DENIED_WORDS_AFTER))
            elif is_negating(word.form, self.lexicon):
                denied.update(range(at - _MAX_DENIED_WORDS_BEFORE, at + 1))
        return frozenset(key for key, at in self.key_at.items() if at in denied)

    def find_subject(self, words: Sequence[_Word]) -> frozenset[str]:
        """Return the keys and values before the verb; in Japanese and Korean, up to the subject's particle."""
        end = self.verb_at
        if self.lexicon.language in PARTICLE_LANGUAGES:
            end = next((at + 1 for at, word in enumerate(words) if word.role == "agent"), max(end, 0))
        if end <= 0:
            return frozenset()
        own = [key for key, at in self.key_at.items() if at < end]
        return frozenset([*own, *(f"#{value}" for at, value in self.value_positions if at < end)])


def _is_noun(words: Sequence[_Word], position: int, lexicon: Lexicon) -> bool:
    """Return True after a determiner, and at the beginning in front of a number."""
    if position:
        return words[position - 1].form in lexicon.determiners
    return len(words) > 1 and words[1].form[0].isdigit()


def _is_label(word: _Word, position: int, lexicon: Lexicon) -> bool:
    """Return True for a name with digits and for a single letter that is no article or pronoun."""
    form = word.form
    is_word = form in lexicon.function and (not position or form == "i" or not word.written.isupper())
    return may_be_label(form) and not (len(form) == 1 and is_word)


def may_be_label(form: str) -> bool:
    """Return True for a name with digits and for a single letter."""
    if len(form) == 1:
        return form.isascii() and form.isalpha()
    return form[0].isalpha() and not form.isalpha() and any(map(str.isdigit, form))


@cache_by_text(_MAX_CACHED_WORDS)
def make_key(stem: str) -> str:
    """Return the part of a stem that its inflected forms have in common."""
    if not _HANGUL_PATTERN.match(stem):
        return stem[:_KEY_CHARS]
    if len(stem) == _HANGUL_KEY_CHARS and stem[-1] in _KOREAN_VERB_ENDINGS:
        stem = stem[:1]
    # A verb's last syllable has another final consonant in each of its forms.
    last = ord(stem[:_HANGUL_KEY_CHARS][-1]) - _FIRST_SYLLABLE
    return stem[:_HANGUL_KEY_CHARS][:-1] + chr(_FIRST_SYLLABLE + last - last % _FINAL_CONSONANTS)


def is_negating(form: str, lexicon: Lexicon) -> bool:
    """Return True for a negating word, and for one with a negating suffix."""
    return form in lexicon.negations or lexicon.negation_pattern.search(form) is not None


def find_entity_labels(form: str) -> tuple[str, ...]:
    """Return the entity id at the beginning of a word, if there is one."""
    found = _ENTITY_ID_PATTERN.match(form)
    return () if found is None else (found[0],)


def find_polarities(form: str, stem: str, lexicon: Lexicon) -> tuple[Polarity, ...]:
    """Return the antonym pairs of a word."""
    known = lexicon.polarities.get(form) or lexicon.polarities.get(stem, ())
    if known or lexicon.language != "ko":
        return known
    return next((lexicon.polarities[form[:size]] for size in (4, 3, 2) if form[:size] in lexicon.polarities), ())


def is_content_word(form: str, stem: str, polarities: tuple[Polarity, ...], lexicon: Lexicon) -> bool:
    """Return True for a word with content, unless it is a value."""
    is_hiragana = "\u3041" <= form[0] <= "\u309f"
    return not (
        form in lexicon.negations
        or form in lexicon.quantifiers
        or form in lexicon.function
        or form in lexicon.copulas
        or stem in lexicon.function
        or (is_hiragana and not polarities)
        or (len(form) == 1 and form.isascii())
    )


def may_be_value(form: str, lexicon: Lexicon) -> bool:
    """Return True for a word that is a number, weekday, month or entity id, at least in some places."""
    return (
        _find_calendar_value(form, lexicon) is not None
        or form in lexicon.numbers
        or _NUMBER_PATTERN.fullmatch(form) is not None
        or (form[0] in _UNSPACED_NUMBERS and lexicon.language in UNSPACED_LANGUAGES)
    )


def _find_calendar_value(form: str, lexicon: Lexicon) -> tuple[str, str] | None:
    """Return the unit and the value of a weekday or month."""
    if form in lexicon.calendar:
        return lexicon.calendar[form]
    return lexicon.calendar.get(form[:3]) if lexicon.language == "ko" and form[2:3] == "요" else None
