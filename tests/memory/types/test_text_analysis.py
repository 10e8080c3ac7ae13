"""Text analysis for the word index and for queries."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.memory.types.text_analysis import (
    BIGRAM_PREFIX,
    _extract_terms,
    analyse_text,
    detect_scripts,
    query_terms,
    question_percentage,
    weighted_terms,
)

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "retrieval"


def terms(text):
    """Return the terms of a text in order, with repetitions."""
    return [term for term, _ in _extract_terms(text)]


def meet(first, second):
    """Return the terms that two texts share, except bigrams of syllables."""
    return {term for term in set(terms(first)) & set(terms(second)) if not term.startswith(BIGRAM_PREFIX)}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("caching", "cached"),
        ("Decisions", "decision"),
        ("the planet's shield", "planets"),
        ("player\u2019s", "players"),
        ("lantern_sid", "the lantern"),
        ("lantern_sid", "LANTERN_SID"),
        ("X-Lantern-Key", "x-lantern-key header"),
        ("X-Lantern-Key", "which key"),
        ("maxRetries", "max retries"),
        ("HTTPServer", "http server"),
        ("config.max_retries", "retries"),
        ("m.room", "M.ROOM events"),
        ("v1.2.3", "1.2.3"),
        ("planet 1-11", "1-11 fell"),
        ("10,000 rows", "10000"),
        ("p95 rose", "P95"),
        ("utf-8", "UTF-8"),
        ("Cafe\u0301", "café"),
        ("\uff21\uff22\uff23", "abc"),
        ("STRASSE", "straße"),
        ("결정을", "결정은"),
        ("결정에서는", "결정"),
        ("값이", "값을"),
        ("Notion에 적는다", "notion"),
        ("API키를", "api"),
        ("세션으로", "세션이"),
        ("추가했다", "추가하기로"),
        ("시작됩니다", "시작한다"),
        (unicodedata.normalize("NFD", "결정을"), "결정"),
        ("Postgres에서는 느리다", "postgres"),
        ("我养了一只猫。", "猫叫什么名字?"),
        ("他買了車", "車是誰的"),
        ("犬を飼っている", "その犬の名前は"),
        ("38,000원을 냈다", "38000"),
        ("价格38,000元", "38000"),
        ("She watches YouTube", "youtube"),
        ("a new iPhone", "iphone"),
        ("NumPy's arrays", "numpy"),
        ("two APIs", "api"),
        ("met O'Neill", "oneill"),
        ("मैं घर गया।", "गया"),
        ("בית־ספר", "ספר"),
        ("שָׁלוֹם", "שלום"),
        ("مُحَمَّد", "محمد"),
        ("녹이면 된다", "녹는다"),
        ("We'll sail", "they've a sail"),
        ("I bought a violin", "what did she buy?"),
        ("the children's room", "a child"),
        ("where she lives", "does she live?"),
        ("el camión rojo", "camion"),
        ("naïve", "Naive"),
    ],
)
def test_word_forms_share_a_term(first, second):
    assert meet(first, second)


@pytest.mark.parametrize(
    ("first", "second"), [("1-11", "1-12"), ("v1.2.3", "v1.2.4"), ("결과", "결혼"), ("cache", "cash"), ("을", "결정을")]
)
def test_similar_looking_words_share_no_term(first, second):
    assert not meet(first, second)


@pytest.mark.parametrize("text", ["lantern_sid", "x-lantern-key", "m.room", "v1.2.3", "1-11", "2026-03-04", "p95"])
def test_identifier_is_a_term(text):
    """An identifier is a term in addition to its parts."""
    assert text in terms(f"It was {text.upper()} that failed.")


def test_identifier_parts_are_terms():
    assert ["lantern_sid", "lantern", "sid"] == terms("lantern_sid")


def test_hangul_words_give_syllable_pairs():
    """A compound is found by its components."""
    assert BIGRAM_PREFIX + "연결" in terms("자동연결을")
    assert BIGRAM_PREFIX + "연결" in terms("연결")


def test_syllable_pair_differs_from_word():
    """A two-syllable word and the same two syllables inside a longer word are different terms."""
    assert not meet("연결", "자동연결")


@pytest.mark.parametrize("text", ["保存する場所", "データベース", "数据库连接", "ฐานข้อมูล"])
def test_scripts_without_spaces_give_character_pairs(text):
    """Such text is found by any two adjacent characters, and by a single ideograph."""
    found = terms(text)

    assert BIGRAM_PREFIX + unicodedata.normalize("NFKC", text)[:2] in found
    assert {one for one in text if "\u4e00" <= one} == {term for term in found if not term.startswith(BIGRAM_PREFIX)}


@pytest.mark.parametrize(
    ("text", "percentage"),
    [
        ("Where is it?", 100),
        ("v1.2 is out! Really?!", 42),
        ("He said (why?) nothing.", 18),
        ("\uc5b4\ub514\uc608\uc694\uff1f \uc5ec\uae30\uc694\u3002", 57),
        ("See https://example.org/?page=2", 0),
        ("Where? No idea", 45),
        ("", 0),
        ("?!", 0),
        ("?" * 1_000 + "x", 0),
        ("We moved the gateway to port 5433, can you update the file?", 41),
        ("We moved it, which is what we wanted, and could you check?", 29),
        ("What port do we use now, and how do we change it?", 100),
        ("Who moved the gateway, and why?", 100),
        ("When the gateway failed, what did we do?", 35),
        ("Could you check the gateway, which is slow?", 100),
        ("포트를 5433으로 옮겼는데 설정을 바꿔 줄래?", 100),
        ("Haben wir das geändert? Ja.", 90),
        ("Which port?\nThe log is below", 40),
        ("Which port do\nwe use?", 100),
        ("A statement without a mark\nWhere is it?", 29),
        ("It is on port 80, right?", 29),
    ],
)
def test_question_percentage_counts_characters_of_questions(text, percentage):
    """Question marks of all scripts count, and only the clause that asks."""
    assert percentage == question_percentage(text)


STATEMENTS = st.sampled_from(["The gateway uses port 80.", "v1.2 is out!", "\uc5ec\uae30\uc5d0 \uc788\ub2e4.", "Done"])
QUESTIONS = st.sampled_from(
    ["Where is it?", "Can you check, and why not?", "\uc5b4\ub514\uc608\uc694?", "Who did what?"]
)


@given(text=st.text(), statements=st.lists(STATEMENTS), questions=st.lists(QUESTIONS, min_size=1))
def test_question_percentage_is_0_for_statements_and_100_for_questions(text, statements, questions):
    """Any text has a percentage from 0 to 100."""
    assert 0 <= question_percentage(text) <= 100
    assert 0 == question_percentage("\n".join(statements))
    assert 100 == question_percentage(" ".join(questions))
    assert (100 if not statements else 1) <= question_percentage("\n".join([*questions, *statements][:9])) <= 100


def test_question_percentage_is_small_for_long_message_with_closing_question():
    """A closing question does not turn a long message into a question."""
    assert 5 > question_percentage(
        "We moved the gateway to another port because of the outage. " * 30 + "Is that fine?"
    )


@pytest.mark.parametrize("piece", ["a, ", "and ", "what a ", ", what is is ", "\n", "is "])
def test_question_percentage_takes_linear_time(piece):
    """Repeated beginnings of a question do not cause exponential backtracking."""
    assert 0 <= question_percentage(piece * 100_000 + "?") <= 100
    assert 0 <= question_percentage("x" + piece * 300 + "?") <= 100


def test_mixed_text_gives_terms_of_both_languages():
    """Hangul and Latin parts of a sentence are separated."""
    found = terms("Redis를 쓰지 않고 SQLite로 바꿨다")

    assert {"redi", "sqlite"} <= {term.rstrip("s") for term in found} | set(found)


def test_query_omits_stop_words():
    """Stop words would match any text."""
    assert {"cach", "polici"} == set(query_terms("What is the cache policy?"))
    assert "어떻게" not in query_terms("결정은 어떻게 했나")
    assert {"weather"} == set(query_terms("They're what we'll weather"))
    assert {"may", "2025"} == set(query_terms("was it in May 2025?"))
    assert {"kredit"} == set(query_terms("Wann wird der Kredit eine"))
    assert {"猫"} == set(query_terms("猫的呢?"))
    assert {"犬", BIGRAM_PREFIX + "犬で"} == set(query_terms("犬ですか?"))
    assert {"가격", BIGRAM_PREFIX + "가격", BIGRAM_PREFIX + "격은"} == set(query_terms("가격은 얼마인가요"))


@pytest.mark.parametrize(
    "word", ["누구야", "누구지", "누구랑", "뭔가요", "뭐였지", "언제였어", "얼마야", "며칠이지", "몇시야"]
)
def test_korean_question_word_with_ending_is_stop_word(word):
    """A memory does not contain the question word, so it would lower the share of matching words."""
    assert query_terms("가격") == query_terms(f"가격 {word}")


@pytest.mark.parametrize("word", ["누나", "몇몇", "왜가리", "언어"])
def test_korean_noun_like_question_word_is_content_word(word):
    """A sister, a heron and a language begin like question words."""
    assert word in query_terms(f"가격 {word}")


@pytest.mark.parametrize("text", ["what is it", "to be or not to be", "왜 그", "무엇을 어떻게"])
def test_query_of_stop_words_keeps_them(text):
    """Documents contain them, so such a query still has results."""
    wanted = query_terms(text)

    assert wanted
    assert set(wanted) <= set(weighted_terms(text))


def test_repetition_counts_in_documents_only():
    """A text that repeats a word is more about it. A query is not."""
    assert 3 * weighted_terms("shield")["shield"] == pytest.approx(weighted_terms("shield shield shield")["shield"])
    assert query_terms("shield") == query_terms("shield shield shield")


def test_words_weigh_more_than_pairs_and_stop_words():
    weights = weighted_terms("결정 the shield")

    assert weights["shield"] == weights["결정"] > max(weights[BIGRAM_PREFIX + "결정"], weights["the"])


@given(st.text())
def test_terms_of_any_text_have_positive_weights(text):
    """All three functions return the same terms, none of them empty or too long."""
    found = terms(text)

    assert set(found) == set(weighted_terms(text))
    assert set(query_terms(text)) <= set(found)
    assert bool(found) == bool(query_terms(text))
    assert all(weight > 0 for weight in [*weighted_terms(text).values(), *query_terms(text).values()])
    assert all(0 < len(term) <= 200 for term in found)


@given(st.text(alphabet="aB1_-.' 가나다은를\u0301字", max_size=30))
def test_terms_ignore_case_and_composition(text):
    """Capitals and decomposed characters change no term, except in camel case."""
    low = text.lower()

    assert terms(unicodedata.normalize("NFC", low)) == terms(unicodedata.normalize("NFD", low))
    assert terms(low) == terms(unicodedata.normalize("NFKC", low))


@given(st.lists(st.text(alphabet="abc가나12", min_size=1, max_size=5), max_size=6))
def test_terms_of_separated_words_are_independent(words):
    """Text between spaces gives the same terms at any position."""
    apart = [term for word in words for term in terms(word)]

    assert apart == terms("  ".join(words))


@given(st.lists(st.text(alphabet="abc가나다는12字.", min_size=1, max_size=5), max_size=6), st.data())
def test_subset_of_words_gives_terms_of_that_text(words, data):
    """A text is analysed once for all its subsets."""
    analysis = analyse_text(" ".join(words))
    some = [word for word in analysis.words if data.draw(st.booleans())]

    assert query_terms(" ".join(words)) == analysis.compute_query_terms()
    assert query_terms(" ".join(some)) == analysis.compute_query_terms(some)


def test_known_words_are_not_analysed_again(steps):
    """Cached words take only a few steps per word."""
    text = "Policies, the planet's caching: maxRetries (config.max_retries) 결정을 자동연결에서는, 1,000원. " * 20
    weighted_terms(text)

    assert steps(weighted_terms, text) <= 3 * len(text.split())


@pytest.mark.once
@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "가",
        "字",
        "a.",
        "a-",
        "_",
        "1,111,",
        "aB",
        "\u0315\u0300",
        "e\u0315\u0300",
        "é가",
        "\ufdfa",
        "-",
        "' ",
        "1가",
    ],
)
def test_hostile_text_takes_linear_time(piece, steps):
    """
    Four times the text needs four times the steps.

    Tested with text without spaces, combining marks alone, and very long identifiers.
    """
    short, long = (piece * (length // len(piece)) for length in (25_000, 100_000))

    assert steps(weighted_terms, long) <= 6 * steps(weighted_terms, short)


@pytest.mark.skipif(not SHARED.exists(), reason="the retrieval sample is not beside this checkout")
def test_korean_paraphrases_share_more_terms_than_other_sentences():
    """Tested with the first half of the Korean pairs."""
    lines = (SHARED / "korean" / "pairs.jsonl").read_text(encoding="utf-8").splitlines()[:40]
    right = 0
    for pair in map(json.loads, lines):
        query, paraphrase, unrelated = (weighted_terms(pair[key]) for key in ("query", "paraphrase", "unrelated"))
        right += _cosine(query, paraphrase) > _cosine(query, unrelated)

    assert right >= 35


def _cosine(first, second):
    dot = sum(weight * second.get(term, 0.0) for term, weight in first.items())
    return dot / (sum(w * w for w in first.values()) * sum(w * w for w in second.values())) ** 0.5


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ("Where is the fleet?", "Die Flotte wartet.", True),
        ("Where is the fleet?", "함대는 궤도에 있다", False),
        ("함대 fleet 위치 position", "함대는 궤도에 있다", True),
        ("함대 fleet 위치 position", "The fleet is in orbit", True),
        ("艦隊はどこ", "舰队在轨道上", True),
        ("Где флот?", "Where is the fleet?", False),
        ("Daon Pay 장애가 왜 났는지", "The outage of Daon Pay", False),
    ],
)
def test_scripts_show_whether_texts_can_share_words(first, second, shared):
    """A script counts if it makes up a quarter of a text. Single foreign names do not."""
    assert shared == bool(detect_scripts(first) & detect_scripts(second))


@given(st.text())
def test_scripts_of_any_text_fit_a_byte(text):
    """Only letters have scripts."""
    assert 0 <= detect_scripts(text) <= 0xFF
    assert 0 == detect_scripts("12, 3!")
