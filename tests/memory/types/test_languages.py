"""Detection of a text's language."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.memory.types.languages import LANGUAGES, MAX_SAMPLE_CHARS, detect_language, may_be_unlisted

SENTENCES = {
    "en": [
        "Where do I live?",
        "Use JWT for logins",
        "Visit the Los Angeles office",
        "José moved to Berlin",
        "We met Müller in Köln and agreed on the plan",
        "The word 안녕 means hello in Korean",
        "Seoul (서울) is the capital of South Korea",
        "The café on Rue de la Paix is closed",
        "I don\u2019t like it",
        "pip install -e .",
        "A naïve approach",
        "Gina: Sure, see ya. Bye!",
        '<link rel="stylesheet" href="https://cdn.example.com/popper.min.js">\n<html lang="en">',
    ],
    "ko": [
        "결정을 바꾸다",
        "JWT 대신 session cookie 사용",
        "Kubernetes deployment를 rollback 했다",
        "v2는 v1에 의존한다",
    ],
    "de": [
        "Wo wohne ich?",
        "Was ist mein Name",
        "Ich war in Berlin",
        "v2 hängt von v1 ab",
        "Die Halle hat Strom.",
        "mindestens drei Kopien für die Datenbank",
    ],
    "fr": [
        "Où est-ce que j'habite ?",
        "Le serveur tourne sur le port 80",
        "l\u2019utilisateur préfère le thé",
        "Le stage commence lundi.",
    ],
    "es": [
        "¿Dónde vivo?",
        "El usuario vive en Madrid",
        "Prefiere café sin azúcar",
        "LA OFICINA CIERRA A LAS OCHO",
    ],
    "ja": ["再試行をサポートする", "東京に住んでいます", "ユーザーはコーヒーが好き", "APIのportを8080に変更した"],
    "zh": ["支持重试", "我们把端口改成8080", "我不喜欢の字"],
    "ru": ["Где я живу?", "Поддерживает повторные попытки", "Мы перешли на Postgres"],
    "": [
        "Де я живу? Її немає",
        "Dove abito? Il mio nome è Anna",
        "Onde eu moro? Não sei",
        "Waar woon ik? Ik weet het niet",
        "Gdzie mieszkam? Nie wiem",
        "Bugün çok iyi bir gün oldu",
        "مرحبا بك",
        "Καλημέρα",
        "ฉันอยู่ที่ไหน",
    ],
}


@pytest.mark.parametrize(("language", "text"), [(name, text) for name, own in SENTENCES.items() for text in own])
def test_detect_language_of_sentence(language, text):
    """Covers each language, mixed scripts, names with accents and other languages in Latin script."""
    assert language == detect_language(text)


@pytest.mark.parametrize("text", ["", "12345", "🙂", "\ud83d", "def main(): return x", "kubectl rollout"])
def test_detect_language_without_evidence_returns_english(text):
    """A text without letters or function words is English."""
    assert "en" == detect_language(text)


def test_detect_language_ignores_text_after_sample():
    """The cost of a long text is limited, because only its start counts."""
    start = "the plan is to deploy. " * (MAX_SAMPLE_CHARS // 23 + 1)

    assert "en" == detect_language(start + "결정을 바꾸다 " * 1000)


@given(st.text())
def test_detect_language_returns_known_language_for_any_text(text):
    """The result is a listed language or empty."""
    assert detect_language(text) in {*LANGUAGES, ""}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Il gatto dorme.", True),
        ("De server ondersteunt pogingen.", True),
        ("Palvelin tukee kieltä.", True),
        ("Retry the bank 3 times", False),
        ("Julia owes Kasper 90 euros.", False),
        ("Come home", False),
        ("Redis 7", False),
        ("Le délai est de 30 secondes.", False),
        ("Der Dienst startet.", False),
        ("El cliente paga.", False),
        ("서버", False),
        ("Клієнт", True),
    ],
)
def test_short_text_may_be_in_a_language_that_is_not_listed(text, expected):
    """A text without function words is English, and other languages need as much evidence as the detected one."""
    assert expected == may_be_unlisted(text)
