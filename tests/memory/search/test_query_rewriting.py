"""Rewriting of questions in the first person, and the meaning of a period in a query."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_helpers import every_row

from mama_structs.memory.search.query_rewriting import (
    asks_for_events,
    is_about_period_only,
    is_preference,
    rewrite_first_person,
)
from mama_structs.memory.search.time_expressions import find_period
from mama_structs.memory.search.vocabulary.query_vocabulary import LANGUAGES, load_vocabulary

NOW = datetime(2026, 8, 12, 15, 30, tzinfo=UTC)

REWRITTEN = [
    ("Where do I live?", "Where does the user live?"),
    ("where do i live", "where does the user live"),
    ("What is my shoe size?", "What is the user's shoe size?"),
    ("When am I on call?", "When is the user on call?"),
    ("What did I say about it?", "What did the user say about it?"),
    ("Which car have I ordered?", "Which car has the user ordered?"),
    ("I moved to Berlin. Where did I live before?", "I moved to Berlin. Where did the user live before?"),
    ("Can you tell me where I am from?", "Can you tell me where the user is from?"),
    ("내가 어디 살지?", "사용자가 어디 살지?"),
    ("내 생일이 언제야?", "사용자의 생일이 언제야?"),
    ("제 이름이 뭐예요?", "사용자의 이름이 뭐예요?"),
    ("나는 어디에 살아?", "사용자는 어디에 살아?"),
    ("Wo wohne ich?", "Wo wohnt der Nutzer?"),
    ("Wo arbeite ich?", "Wo arbeitet der Nutzer?"),
    ("Welches Auto fahre ich?", "Welches Auto fährt der Nutzer?"),
    ("Was ist meine Adresse?", "Was ist die Adresse des Nutzers?"),
    ("Où est-ce que j'habite ?", "Où est-ce que l'utilisateur habite ?"),
    ("Quelle est ma couleur préférée ?", "Quelle est la couleur préférée de l'utilisateur ?"),
    ("¿Dónde vivo?", "¿Dónde vive el usuario?"),
    ("¿Cuál es mi color favorito?", "¿Cuál es el color favorito del usuario?"),
    ("¿Cómo me llamo?", "¿Cómo se llama el usuario?"),
    ("Где я живу?", "Где пользователь живёт?"),
    ("Где я работаю?", "Где пользователь работает?"),
    ("Какой мой любимый цвет?", "Какой любимый цвет пользователя?"),
    ("私はどこに住んでいますか", "ユーザーはどこに住んでいますか"),
    ("我住在哪里?", "用户住在哪里?"),
]

UNCHANGED = [
    "",
    "I live in Berlin.",
    "I live in Berlin. What is the weather?",
    "Can I delete the cache?",
    "How do I deploy the service?",
    "Could you tell me which port is used?",
    "What does a double flash tell me?",
    "Where do we live?",
    "Which port is used?",
    "나한테 포트를 알려 줘",
    "3일 내 마감이 뭐지?",
    "어느 기기가 소리를 내?",
    "우리는 뭘 정했지?",
    "Kannst du mir helfen?",
    "Wo wohnen wir?",
    "Puis-je supprimer le cache ?",
    "¿Puedo borrar la caché?",
    "Скажи мне, какой порт используется?",
    "私たちは何を決めた?",
    "我们决定了什么?",
    "告诉我天气怎么样",
]

PERIOD_ONLY = [
    "What did we note yesterday?",
    "what happened last week?",
    "tell me what we decided in March",
    "yesterday",
    "yesterday's decisions",
    "Show me everything from last week",
    "How did last month go?",
    "Everything written down on 12 March",
    "어제 뭐 했지?",
    "어제 적어 둔 것을 모두 보여 줘",
    "지난주에 무슨 일이 있었지?",
    "그저께 한 일",
    "Was haben wir gestern beschlossen?",
    "die Entscheidungen der letzten Woche",
    "Que s'est-il passé la semaine dernière ?",
    "¿Qué decidimos ayer?",
    "昨日何を決めましたか",
    "先週何があった?",
    "昨天我们决定了什么?",
    "上周发生了什么?",
    "Что мы решили вчера?",
]

WITH_CONTENT = [
    "Who won the game last night?",
    "Did it rain last night?",
    "Did your team win last night?",
    "How was your day yesterday?",
    "Which film did you enjoy last night?",
    "What did we decide about tokens last week?",
    "raids of last weekend",
    "I was there last week",
    "What was decided in March about money?",
    "지난주에 백업 쪽에서 정한 것",
    "어제 경기 누가 이겼어?",
    "지난 한 주 동안 예약한 게 뭐가 있지?",
    "Wer hat gestern Abend das Spiel gewonnen?",
    "Qui a gagné le match hier soir ?",
    "¿Quién ganó el partido anoche?",
    "昨夜の試合は誰が勝ったの?",
    "先週のバックアップ",
    "昨晚谁赢了比赛?",
    "Кто выиграл матч вчера вечером?",
]

PREFERENCES = [
    "Let's continue from yesterday with the logins",
    "Pick up the migration where we left off last Friday",
    "As discussed yesterday, use port 5433",
    "What has changed recently?",
    "Are we open on Monday?",
    "Which medicine is due tonight?",
    "Does someone answer the hotline on Saturday?",
    "What made the pool drain during the October outage?",
    "어제 하던 로그인 작업 계속하자",
    "월요일에 예약 있어?",
    "Lass uns mit den Logins von gestern weitermachen",
    "Continuons avec les connexions d'hier",
    "Sigamos con los accesos de ayer",
    "昨日の続きをやろう",
    "继续昨天的登录工作",
    "Продолжим вчерашнее: вчера остановились на логинах",
]


@every_row(("question", "rewritten"), REWRITTEN)
def test_rewrite_first_person_puts_question_into_third_person(question, rewritten):
    """The question has the words of a memory about the user."""
    assert rewritten == rewrite_first_person(question)


@every_row("text", UNCHANGED)
def test_rewrite_first_person_returns_none_for_other_texts(text):
    """Statements, service phrases and other persons are unchanged."""
    assert rewrite_first_person(text) is None


@given(
    text=st.one_of(
        st.text(),
        st.lists(st.sampled_from([*"?!. ", "I", "my", "do I", "ich", "내가", "mon", "我", "я", "Where", "a"])).map(
            " ".join
        ),
    )
)
def test_rewrite_first_person_returns_other_text_or_none(text):
    """No text raises an error."""
    rewritten = rewrite_first_person(text)

    assert rewritten is None or rewritten != text


@given(parts=st.lists(st.sampled_from(["I live in Berlin.", "My car is red!", "Where is the port?", "It works."])))
def test_rewrite_first_person_returns_none_without_first_person_question(parts):
    """Neither a statement in the first person nor a question without it is rewritten."""
    assert rewrite_first_person(" ".join(parts)) is None


@every_row("query", PERIOD_ONLY)
def test_is_about_period_only_is_true_without_content(query):
    """Queries of question words and generic words ask for all memories of the period."""
    period = find_period(query, NOW)

    assert is_about_period_only(query, period)
    assert not is_preference(query, period)


@every_row("query", WITH_CONTENT)
def test_is_about_period_only_is_false_with_content(query):
    """Any other content must match, and the period is a condition."""
    period = find_period(query, NOW)

    assert not is_about_period_only(query, period)
    assert not is_preference(query, period)


@every_row("query", PREFERENCES)
def test_is_preference_is_true_for_vague_resuming_and_present_queries(query):
    """Memories of other periods may answer these queries."""
    assert is_preference(query, find_period(query, NOW))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("What happened in battles in the last five days?", True),
        ("Which orders or troubles came up in the last four days?", True),
        ("What was decided in June about images?", True),
        ("Which escalation rule did we make in October?", True),
        ("지난 일주일 사이에 장비나 명단에 무슨 일이 있었지?", True),
        ("Was haben wir gestern zu Tokens beschlossen?", True),
        ("上周备份发生了什么?", True),
        ("Which song won the contest this year?", False),
        ("Did it rain last night?", False),
        ("Which film do you like this week?", False),
        ("What did you have for breakfast today?", False),
        ("오늘 날씨가 어때?", False),
        ("Wer hat gestern Abend das Spiel gewonnen?", False),
        ("昨晚谁赢了比赛?", False),
    ],
)
def test_asks_for_events_is_true_for_notes_decisions_and_changes(query, expected):
    """Questions for one fact of a period are not about notes."""
    assert expected == asks_for_events(query)


@given(text=st.text(max_size=30), lead=st.sampled_from(["yesterday ", "지난주에 ", "hier soir ", "昨天"]))
def test_period_intent_accepts_any_text(text, lead):
    """No text raises an error, and a name makes a query have content."""
    period = find_period(lead + text, NOW)
    if period is not None:
        is_preference(lead + text, period)
        is_about_period_only(lead + text, period)
    assert not is_about_period_only(lead + "Kestrel", find_period(lead + "Kestrel", NOW))


@pytest.mark.parametrize("piece", ["I ", "my? ", "mon a ", "mein A ", "do I ", "¿mi a ", "내 ", "?"])
def test_rewrite_first_person_takes_linear_time(piece):
    """Repeated beginnings of a pattern do not cause exponential backtracking."""
    rewrite_first_person((piece * 4_000)[:4_000])


@pytest.mark.parametrize("language", LANGUAGES)
def test_vocabulary_has_all_parts(language):
    """Every language has time expressions, first-person rules and words of history."""
    assert {"rules", "first_person", "question", "history", "asking"} <= {*load_vocabulary(language).data}
