"""
Learn the weights of the pieces (features) of messages from the labelled lists of the tests.

``python benchmarks/_learn_pieces.py v`` leaves out the list v, and prints the share of its messages that the weights
classify correctly. With ``--write`` the weights of all other lists are written to
``mama_structs/tools/data/weights.tsv``. See docs/internals/exposure.md.
The model is a softmax regression on the pieces of a message (`mama_structs.tools.exposure.extract_features`), trained with Adam
and a small L2 penalty.
"""

from __future__ import annotations

import json
import re
import string
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from mama_structs.tools.exposure import extract_features, normalize_message

ROOT = Path(__file__).parents[1]
LISTS = ROOT / "tests" / "data" / "exposure" / "messages.jsonl"
TARGET = ROOT / "mama_structs" / "tools" / "data" / "weights.tsv"
KINDS = (None, "resuming", "deciding", "searching", "tracking")
SCALE = string.ascii_uppercase + string.ascii_lowercase
UNIT, KEPT, COMMON, LEAST, PENALTY = 0.08, 4000, 12_000, 3, 1e-4
PLAIN = re.compile(r"^[a-z0-9가-힣 '?!.,◻:^$]+$")


def rows(known):
    found = [json.loads(line) for line in LISTS.read_text(encoding="utf-8").splitlines()]
    chosen = [row for row in found if known(row["list"])]
    return [(extract_features(normalize_message(row["text"]).words), KINDS.index(row["kind"])) for row in chosen]


def matrix(messages, features):
    places = {feature: place for place, feature in enumerate(features)}
    found = np.zeros((len(messages), len(features)), np.float32)
    for number, (own, _) in enumerate(messages):
        known = [places[one] for one in own if one in places]
        if known:
            found[number, known] = 1 / np.sqrt(len(known))
    return found


def fitted(given, kinds, steps):
    weights, bias = np.zeros((given.shape[1], len(KINDS)), np.float32), np.zeros(len(KINDS), np.float32)
    wanted = np.eye(len(KINDS), dtype=np.float32)[kinds]
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    for step in range(1, steps + 1):
        scores = given @ weights + bias
        likely = np.exp(scores - scores.max(1)[:, None])
        off = (likely / likely.sum(1)[:, None] - wanted) / len(given)
        slope = given.T @ off + PENALTY * weights
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope * slope
        weights -= 0.05 * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
        bias -= 0.1 * off.sum(0)
    return weights, bias


def learned(messages):
    counts = Counter(piece for own, _ in messages for piece in sorted(own) if PLAIN.match(piece))
    features = [piece for piece, count in counts.most_common(COMMON) if count >= LEAST]
    kinds = np.array([kind for _, kind in messages])
    weights, _ = fitted(matrix(messages, features), kinds, 120)
    telling = np.abs(weights - weights.mean(1)[:, None]).max(1) * np.sqrt([counts[one] for one in features])
    features = [features[place] for place in np.argsort(-telling, kind="stable")[:KEPT]]
    weights, bias = fitted(matrix(messages, features), kinds, 250)
    weights, bias = weights - weights.mean(1)[:, None], bias - bias.mean()
    steps = np.clip(np.round(weights / UNIT), -SCALE.index("a"), len(SCALE) - 1 - SCALE.index("a")).astype(int)
    return features, steps, bias


def write(features, steps, bias):
    lines = TARGET.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.startswith("#") or line.count("\t") == 2]
    numbers = {"unit": str(UNIT), "bias": " ".join(f"{one:.4f}" for one in bias)}
    for place, line in enumerate(kept):
        name, _, rest = line.partition("\t")
        if name in numbers:
            kept[place] = f"{name}\t{numbers[name]}\t{rest.partition(chr(9))[2]}"
    pieces_of = [
        (piece, "".join(SCALE[SCALE.index("a") + step] for step in own))
        for piece, own in sorted(zip(features, steps.tolist(), strict=True))
        if any(own)
    ]
    # Sort English pieces before Korean ones, so that a change of one language changes only one part of the file.
    pieces_of.sort(key=lambda entry: re.search("[가-힣]", entry[0]) is not None)
    entries = [f"{piece.replace(' ', '_')}\t{letters}" for piece, letters in pieces_of]
    TARGET.write_text("\n".join([*kept, *entries]) + "\n", encoding="utf-8")


def main():
    without = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    features, steps, bias = learned(rows(lambda name: name not in without))
    for name in without:
        messages = rows(lambda own, name=name: own == name)
        best = (matrix(messages, features) @ (steps * UNIT) + bias).argmax(1)
        print(f"{name}: {np.mean([one == kind for one, (_, kind) in zip(best, messages, strict=True)]):.1%}")
    if "--write" in sys.argv:
        write(features, steps, bias)


if __name__ == "__main__":
    main()
