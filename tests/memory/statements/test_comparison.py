"""Comparison of statements in eight languages: copies, opposites, other values and changes."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.memory.statements.comparison import (
    StatementRelation,
    can_fold,
    compare,
    compare_parsed,
    same_subject_other_value,
)
from mama_structs.memory.statements.lexicons import load_lexicon
from mama_structs.memory.statements.parser import parse_text
from mama_structs.memory.types.duplicates import normalize_wording
from mama_structs.memory.types.languages import LANGUAGES

OPPOSITES = [
    ("The café accepts cards.", "The café does not accept cards."),
    ("The gate is open on Sundays.", "The gate is closed on Sundays."),
    ("Every order is checked by hand.", "Not every order is checked by hand."),
    ("All members may vote.", "Some members may not vote."),
    ("Nobody has paid the fee.", "Everybody has paid the fee."),
    ("At least two reviewers approve each change.", "At most two reviewers approve each change."),
    ("The concert starts before noon.", "The concert starts after noon."),
    ("v2 depends on v1", "v1 depends on v2"),
    ("Julia owes Kasper 90 euros.", "Kasper owes Julia 90 euros."),
    ("The dog is older than the cat.", "The cat is older than the dog."),
    ("The dog chased the cat.", "The dog was chased by the cat."),
    ("The heater works at night.", "The heater does n't work at night."),
    ("도서관은 일요일에 문을 연다.", "도서관은 일요일에 문을 닫는다."),
    ("사용자는 커피를 마신다.", "사용자는 커피를 마시지 않는다."),
    ("v2는 v1에 의존한다.", "v1은 v2에 의존한다."),
    ("참가자는 열 명 이상이다.", "참가자는 열 명 이하이다."),
    ("Der Dienst unterstützt Wiederholungen.", "Der Dienst unterstützt keine Wiederholungen."),
    ("Anna hilft Bernd.", "Bernd hilft Anna."),
    ("Der Kurs hat mindestens fünf Teilnehmer.", "Der Kurs hat höchstens fünf Teilnehmer."),
    ("El tren sale antes de las nueve.", "El tren sale después de las nueve."),
    ("María debe dinero a Juan.", "Juan debe dinero a María."),
    ("El cliente admite reintentos.", "El cliente no admite reintentos."),
    ("Le musée est ouvert le mardi.", "Le musée est fermé le mardi."),
    ("Le service prend en charge les pannes.", "Le service ne prend pas en charge les pannes."),
    ("Luc paie Anne.", "Anne paie Luc."),
    ("Клиент поддерживает повторы.", "Клиент не поддерживает повторы."),
    ("Иван учит Петра.", "Пётр учит Ивана."),
    ("v2 зависит от v1.", "v1 зависит от v2."),
    ("クライアントは再試行に対応しています。", "クライアントは再試行に対応していません。"),
    ("田村さんが森さんを指導する。", "森さんが田村さんを指導する。"),
    ("客户端支持重试。", "客户端不支持重试。"),
    ("至少需要三个人。", "至多需要三个人。"),
    ("小王比小李高。", "小李比小王高。"),
]
OTHER_VALUES = [
    ("The boat carries six people.", "The boat carries eight people."),
    ("The user's son is named Felix.", "The user's son is named Arthur."),
    ("The cat sleeps in the kitchen.", "The cat sleeps in the bedroom."),
    ("Backups run at 2:00.", "Backups run at 4:00."),
    ("The password expires after 90 days.", "The password expires after 30 days."),
    ("Team meetings are held weekly.", "Team meetings are held monthly."),
    ("Use Poetry for packaging", "Use Hatch for packaging"),
    ("서버는 부산에 있다.", "서버는 대전에 있다."),
    ("수업은 열 시에 시작한다.", "수업은 열한 시에 시작한다."),
    ("팀장은 지훈입니다.", "팀장은 서연입니다."),
    ("Die Sitzung dauert zwei Stunden.", "Die Sitzung dauert drei Stunden."),
    ("出発は七時です。", "出発は九時です。"),
    ("The timeout is 30 seconds.", "The timeout is 30 minutes."),
    ("The limit is $5.", "The limit is €5."),
    ("The meeting is at 3 pm.", "The meeting is at 3 am."),
    ("The temperature is 5 degrees.", "The temperature is -5 degrees."),
    ("Das Limit ist 30 Sekunden.", "Das Limit ist 30 Minuten."),
    ("Le délai est de 30 secondes.", "Le délai est de 30 minutes."),
    ("El límite es de 30 segundos.", "El límite es de 30 minutos."),
    ("Таймаут — 30 секунд.", "Таймаут — 30 минут."),
    ("한도는 5달러다.", "한도는 5유로다."),
    ("タイムアウトは30秒です。", "タイムアウトは30分です。"),
    ("限额是5美元。", "限额是5欧元。"),
    ("サーバーのポートは8080です。", "サーバーのポートは9090です。"),
    ("キャッシュはRedisです。", "キャッシュはMemcachedです。"),
    ("オフィスは東京にあります。", "オフィスは大阪にあります。"),
    ("アンナはベルリンに住んでいます。", "アンナはパリに住んでいます。"),
    ("担当者は田中さんです。", "担当者は佐藤さんです。"),
    ("缓存是Redis。", "缓存是Memcached。"),
    ("办公室在东京。", "办公室在大阪。"),
    ("安娜住在柏林。", "安娜住在巴黎。"),
    ("The deploy runs on Monday — approved by Kim.", "The deploy runs on Friday — approved by Kim."),
    ("The retry limit is 5 \u2013 see the wiki.", "The retry limit is 6 \u2013 see the wiki."),
    ("Nutzer wohnt in Berlin \u2013 seit Mai.", "Nutzer wohnt in Köln \u2013 seit Mai."),
    ("Server port - 8080", "Server port - 9090"),
    ("Das zulässige Gewicht ist 15 kg.", "Das zulässige Gewicht ist 1,5 kg."),
    ("La limite est de 1,5 km.", "La limite est de 15 km."),
    ("El límite es de 2,5 kg.", "El límite es de 25 kg."),
    ("Допустимый вес — 15 кг.", "Допустимый вес — 1,5 кг."),
]
CHANGES = [
    ("X runs on port 5432", "We moved X to port 5433"),
    ("The user lives in Ghent.", "The user moved from Ghent to Bruges."),
    ("The user plays tennis.", "The user no longer plays tennis."),
    ("The tool is named Falcon.", "Falcon is now called Kestrel."),
    ("Our office is in Harrow Lane.", "The office has moved to Copper Street."),
    ("팀장은 지훈이다.", "팀장이 지훈에서 서연으로 바뀌었다."),
    ("Das Lager ist in Bremen.", "Das Lager ist von Bremen nach Kiel umgezogen."),
    ("Пользователь пьёт молоко.", "Пользователь больше не пьёт молоко."),
]
COMPATIBLE = [
    ("The pump in hall A is blue.", "The pump in hall B is blue."),
    ("Train 12 leaves at six.", "Train 18 leaves at eight."),
    ("Heron run 0412: AUC 0.871 on validation.", "Heron run 0419: AUC 0.861 on validation."),
    ("The user likes jazz.", "The user likes hiking."),
    ("The user went to Rome in 2018.", "The user went to Rome in 2021."),
    ("Marta is allergic to hazelnuts.", "Marta is allergic to penicillin."),
    ("Some lights are on.", "Some lights are off."),
    ("The pool opens at eight.", "The pool closes at nine."),
    ("The user's mother lives in Turin.", "The user's brother lives in Milan."),
    ("민수는 축구를 좋아한다.", "민수는 영화를 좋아한다."),
    ("3번 방에는 창문이 있다.", "5번 방에는 책상이 있다."),
    ("The timeout is 60 seconds.", "The timeout is 1 minute."),
    ("The limit is $5.", "The limit is 5 dollars."),
    ("The lease is 12 months.", "The lease is 1 year."),
    ("The cache is 1 GiB.", "The cache is 1024 MiB."),
    ("The cache is 1024 MB.", "The cache is 1 GB."),
    ("Retention is 30 days.", "Retention is 1 month."),
    ("Requests time out after 30 seconds", "Requests time out after 30 minutes"),
    ("東京にオフィスがあります。", "大阪にオフィスがあります。"),
    ("机の上に本があります。", "机の上に鍵があります。"),
    ("田中さんは親切です。", "田中さんは医者です。"),
    ("アンナは本を買いました。", "アンナは車を買いました。"),
    ("李明是医生。", "李明是父亲。"),
    ("东京有办公室。", "大阪有办公室。"),
]
TEXTS = st.sampled_from(
    [text for pairs in (OPPOSITES, OTHER_VALUES, CHANGES, COMPATIBLE) for pair in pairs for text in pair]
)
WORDS = (
    "n't l' d' qu' 1 1-2 1-1-1 3. 4, % $5 a I A- a.b C# ' may May 요일 월요일 v2는 は が 不 三人 ½ x- not don't nicht pas не "
    "않는다 ません 没有 by is runs Paris moved from to no longer some all most 이다 가 ㄱ 힣"
)
PIECES = st.sampled_from(WORDS.split())


@pytest.mark.parametrize(("older", "newer"), [*OPPOSITES, *OTHER_VALUES])
def test_compare_finds_contradictions(older, newer):
    """Opposites and other values contradict in both orders, and are never folded."""
    for one, other in ((newer, older), (older, newer)):
        assert StatementRelation.CONTRADICTS is compare(one, other).relation
        assert same_subject_other_value(one, other)
        assert not can_fold(one, other)


@pytest.mark.parametrize(("older", "newer"), CHANGES)
def test_compare_finds_replacements(older, newer):
    """A statement of a change replaces the earlier statement."""
    assert StatementRelation.REPLACES is compare(newer, older).relation
    assert same_subject_other_value(newer, older)
    assert not can_fold(newer, older)


@pytest.mark.parametrize(("older", "newer"), COMPATIBLE)
def test_compare_ignores_statements_on_other_subjects(older, newer):
    """Similar statements on other things, or with several possible values, do not conflict."""
    assert StatementRelation.NONE is compare(newer, older).relation
    assert not can_fold(newer, older)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The backup runs at four.", "the  backup runs at four"),
        ("The lift, too, is inspected.", "The lift too is inspected"),
        ("\u201cHarbour\u201d is Nadia\u2019s name.", '"Harbour" is Nadia\'s name…'),
        ("All invoices are PDF/A - no exceptions.", "All invoices are PDF/A: no exceptions."),
        ("钥匙在抽屉里。", "钥匙在抽屉里"),
        ("Avaimet ovat laatikossa.", "avaimet ovat laatikossa!"),
    ],
)
def test_compare_finds_copies_with_other_signs(one, other):
    """Case, whitespace, signs and punctuation after words do not count, in any language."""
    assert (StatementRelation.COPY, 1.0) == (compare(one, other).relation, compare(one, other).probability)
    assert can_fold(one, other)


@pytest.mark.parametrize(
    ("one", "other"), [("It costs 5.5.", "It costs 55."), ("x -5", "x 5"), ("3 - 5", "3 5"), ("a.b", "ab"), ("C", "C#")]
)
def test_signs_next_to_digits_and_inside_words_count(one, other):
    """These texts are not equal."""
    assert normalize_wording(one) != normalize_wording(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Kahvila ei ota kortteja.", "Kahvila ottaa kortteja."),
        ("Клієнт не підтримує повтори.", "Клієнт підтримує повтори."),
        ("Il server non supporta i tentativi.", "Il server supporta i tentativi."),
        ("O servidor não suporta tentativas.", "O servidor suporta tentativas."),
        ("De server ondersteunt geen pogingen.", "De server ondersteunt pogingen."),
        ("Serwer nie obsługuje ponowień.", "Serwer obsługuje ponowienia."),
        ("De poort is 8080.", "De poort is 9090."),
    ],
)
def test_compare_claims_nothing_in_other_languages(one, other):
    """Languages without word lists have copies only."""
    assert StatementRelation.NONE is compare(one, other).relation
    assert StatementRelation.COPY is compare(one, one.lower()).relation
    assert not can_fold(one, other)


@pytest.mark.parametrize(
    ("newer", "older"),
    [
        ("Twice a day, the greenhouse gets watered.", "The greenhouse is watered twice a day."),
        ("Bernd and Anna are friends.", "Anna and Bernd are friends."),
        ("Anna kommt heute.", "Heute kommt Anna."),
    ],
)
def test_near_copy_has_lower_probability(newer, older):
    """The same words in another order are no copy."""
    found = compare(newer, older)

    assert StatementRelation.NEAR_COPY is found.relation
    assert found.probability < 1


@given(one=TEXTS, other=TEXTS)
def test_folding_is_symmetric_and_excludes_conflicts(one, other):
    """Texts that can be folded never conflict, in either order."""
    assert can_fold(one, other) == can_fold(other, one)
    if can_fold(one, other):
        for first, second in ((one, other), (other, one)):
            assert compare(first, second).relation in {StatementRelation.COPY, StatementRelation.NEAR_COPY}


@given(one=st.text(max_size=80), other=st.text(max_size=80))
def test_compare_accepts_any_text(one, other):
    """No text raises, equal texts are copies, and a copy is equality of the normalized texts."""
    assert StatementRelation.COPY is compare(one, one).relation
    assert (StatementRelation.COPY is compare(one, other).relation) == (
        normalize_wording(one) == normalize_wording(other)
    )
    assert normalize_wording(normalize_wording(one)) == normalize_wording(one)


@given(
    one=st.lists(PIECES, max_size=6).map(" ".join),
    other=st.lists(PIECES, max_size=6).map(" ".join),
    language=st.sampled_from(LANGUAGES),
)
def test_compare_accepts_parts_of_words(one, other, language):
    """Single signs, affixes and numbers of any language raise in no language."""
    compare_parsed(parse_text(one, language), parse_text(other, language))
    compare(one, other)


@pytest.mark.parametrize(
    ("one", "other"), [("It does n't work", "It does not work"), ("Vu par l' equipe", "vu par l\u2019 equipe")]
)
def test_compare_ignores_empty_parts_of_contractions(one, other):
    """Some corpora separate "n't" and "l'" by a space."""
    assert can_fold(one, other)


def test_long_texts_are_compared_by_sentence():
    """A conflict in one sentence is found, and only the first 2,000 characters count."""
    rest = " ".join(f"Shelf {number} has a blue label." for number in range(10))
    older, newer = f"{rest} The archive door is locked at night.", f"The archive door is not locked at night. {rest}"

    assert StatementRelation.CONTRADICTS is compare(newer, older).relation
    assert StatementRelation.NONE is compare("x " * 1_000 + newer, "y " * 1_000 + older).relation


@pytest.mark.parametrize("language", LANGUAGES)
def test_lexicon_of_each_language_is_complete(language):
    """Every language has negations, quantifiers, antonyms, cues, numbers and the calendar."""
    lexicon = load_lexicon(language)

    assert lexicon.negations or lexicon.negation_pattern.pattern
    assert {"all", "most", "some"} <= set(lexicon.quantifiers.values())
    assert 7 == len({value for unit, value in lexicon.calendar.values() if unit == "weekday"})
    assert 12 == len({value for unit, value in lexicon.calendar.values() if unit == "month"})
    assert len(lexicon.polarities) > 40
    assert {"duration", "length", "mass", "money"} <= {unit.dimension for unit in lexicon.units.values()}
    assert lexicon.end_pattern.search("") is None
    assert None is load_lexicon("")


@pytest.mark.parametrize("part", [".", "not ", "a-", "1.", "不"])
def test_parse_text_is_linear_in_hostile_text(part):
    """A text of double the length needs at most about double the number of function calls."""
    counts = [count_calls(part * count + "x") for count in (1_000, 2_000)]

    assert counts[1] <= 2.2 * counts[0]


def count_calls(text):
    """Return the number of function calls with which a text is parsed."""
    parse_text(text)
    count = 0

    def note(_frame, event, _argument):
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(note)
    try:
        parse_text(text)
        normalize_wording(text)
    finally:
        sys.setprofile(None)
    return count
