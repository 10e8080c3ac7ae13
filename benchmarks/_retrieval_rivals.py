"""Baselines for the search, on the same texts and vectors: BM25, cosine, and combinations of both."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final

import attrs
import numpy as np
from _retrieval import LIMIT, Found, Sample, parse_time, texts_of
from numpy.typing import NDArray
from snowballstemmer.english_stemmer import EnglishStemmer

from mama_structs.memory.embedding.batch_service import EmbeddingService
from mama_structs.memory.embedding.protocol import pair_cosines, shared_dimensions
from mama_structs.memory.engines.local.views.word_index import WordIndex
from mama_structs.memory.types.text_analysis import query_terms, weighted_terms

PARTS: Final = ("words", "plain words", "vectors")
"""BM25 of our index, an independent BM25, and the best cosine of a text's pieces."""
SUMS: Final = tuple(f"{words} {share / 10:.1f}" for words in PARTS[:2] for share in range(11))
"""Sums of scores scaled to 0..1. The number is the weight of the cosines."""

_TOKENS: Final = re.compile(r"[가-힣]+|[\u3040-\u30ff\u4e00-\u9fff]+|[^\W_가-힣\u3040-\u30ff\u4e00-\u9fff]+")
_STOP: Final = frozenset(
    """a about after all also am an and any are as at be been before but by can could did do does for from had has have
    he her his how i if in into is it its just me my no not of on or our she so some such than that the their them then
    there they this to up was we were what when where which who whom whose why will with would you your""".split()  # noqa: SIM905 - a list would be a page long
)

Values = NDArray[np.float64]


class PlainWords:
    """BM25 (k1 = 1.2, b = 0.75) on English stems and on bigrams of Hangul, kana and Han."""

    def __init__(self, texts: Sequence[str]) -> None:
        counts = [Counter(_plain_terms(text)) for text in texts]
        lengths = np.array([sum(one.values()) for one in counts])
        self._lengths = 0.25 + 0.75 * lengths / lengths.mean()
        self._counts: dict[str, list[tuple[int, int]]] = {}
        for at, one in enumerate(counts):
            for term, count in one.items():
                self._counts.setdefault(term, []).append((at, count))

    def scores(self, question: str) -> Values:
        """Return the BM25 score of each text for a question."""
        scores = np.zeros(len(self._lengths))
        for term in set(_plain_terms(question)) & self._counts.keys():
            places, counts = np.array(self._counts[term]).T
            rarity = np.log(1 + (len(scores) - len(places) + 0.5) / (len(places) + 0.5))
            scores[places] += rarity * counts * 2.2 / (counts + 1.2 * self._lengths[places])
        return scores


def _plain_terms(text: str) -> Iterator[str]:
    for token in _TOKENS.findall(text.lower()):
        if token[0] >= "\u3040" and token[0] <= "힣":
            yield from (token[at : at + 2] for at in range(max(len(token) - 1, 1)))
        elif token not in _STOP:
            yield _stem(token)


@cache
def _stem(word: str) -> str:
    return str(EnglishStemmer().stemWord(word))


@attrs.frozen(eq=False)
class Rivals:
    """
    The baseline scores of a sample's texts for its questions.

    Args:
        ids: The ids of the texts.
        scores: For each question, by `PARTS`, the scores of the texts that were written before the question.
    """

    ids: Sequence[str]
    scores: Sequence[dict[str, Values]]

    @classmethod
    async def from_sample(cls, sample: Sample, embedding: EmbeddingService) -> Rivals:
        """Compute the scores of a sample. All texts of a memory are indexed as one text."""
        texts = [
            " ".join([(record.get("topic") or "").replace("_", " "), *texts_of(record)]).strip()
            for record in sample.records
        ]
        index, plain = WordIndex(), PlainWords(texts)
        for number, text in enumerate(texts):
            index.add(number, weighted_terms(text))
        pieces = await embedding.embed_documents(texts)
        begins = np.cumsum([0, *map(len, pieces[:-1])])
        vectors = np.concatenate(pieces)
        times = [parse_time(record["created_at"]) for record in sample.records]
        scores = []
        for question in sample.questions:
            count = sum(at < question.as_of for at in times)
            words = index.scores(query_terms(question.text), np.arange(len(texts)))
            query = np.broadcast_to(await embedding.embed_query(question.text), vectors.shape)
            cosines = pair_cosines(query, vectors, shared_dimensions(embedding.embedder))
            parts = (words, plain.scores(question.text), np.maximum.reduceat(cosines, begins))
            scores.append({name: part[:count].astype(np.float64) for name, part in zip(PARTS, parts, strict=True)})
        return cls([record["id"] for record in sample.records], scores)

    def search(self, name: str) -> list[Found]:
        """Return the hits of the baseline *name*, which is a member of `PARTS` or `SUMS`, or "RRF"."""
        found: list[Found] = []
        for parts in self.scores:
            scores = _joined(name, parts)
            order = np.argsort(-scores, kind="stable")[:LIMIT]
            # A keyword search returns only texts that share a word with the question.
            found.append([(self.ids[at],) for at in order if name not in PARTS[:2] or scores[at] > 0])
        return found


def _joined(name: str, parts: dict[str, Values]) -> Values:
    if name in parts:
        return parts[name]
    if name == "RRF":
        words, cosines = parts["words"], parts["vectors"]
        ranks = (np.argsort(np.argsort(-part, kind="stable"), kind="stable") for part in (words, cosines))
        first, second = (1 / (60 + 1 + rank) for rank in ranks)
        return np.where(words > 0, first, 0.0) + second
    words_name, share = name.rsplit(" ", 1)
    return float(share) * _spread(parts["vectors"]) + (1 - float(share)) * _spread(parts[words_name])


def _spread(scores: Values) -> Values:
    return (scores - scores.min()) / max(float(np.ptp(scores)), 1e-9)
