from __future__ import annotations

import gzip
import json
import math
import sys
from itertools import islice
from pathlib import Path
from random import Random

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from ostinato.metrics import Bleu, Chrf

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
SENTENCES = [
    "Two young, White males are outside near many bushes.",
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "Zwei junge weiße Männer sind im Freien.",
    "Yes",
]


def damaged(sentence: str, rng: Random) -> str:
    """The sentence with words dropped, repeated and swapped; sometimes nothing at all."""
    if rng.random() < 0.05:
        return ""
    words = [word for word in sentence.split() for _ in range(rng.choice([0, 1, 1, 1, 1, 2]))]
    if len(words) > 3 and rng.random() < 0.5:
        place = rng.randrange(len(words) - 1)
        words[place], words[place + 1] = words[place + 1], words[place]
    return " ".join(words)


def real_sentences(n: int) -> list[str]:
    path = SHARED / "multi30k_en_de" / "test_2016_flickr.jsonl.gz"
    if not path.exists():
        pytest.skip("no real translations here")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["target"] for line in islice(lines, n)]


def check_against_sacrebleu(references: list[str]) -> None:
    rng = Random(0)
    predictions = [damaged(reference, rng) for reference in references]
    for ours, theirs in ((Bleu(), BLEU()), (Chrf(), CHRF())):
        for prediction, reference in zip(predictions, references, strict=True):
            ours.update(prediction, reference)
        expected = theirs.corpus_score(predictions, [references])
        result = ours.compute()
        assert result[ours.name] == expected.score
        assert 5 < expected.score < 95
        assert result[f"{ours.name}_signature"] == str(theirs.get_signature())


def test_scores_and_signatures_are_sacrebleus():
    check_against_sacrebleu(SENTENCES * 5)


def test_scores_on_real_translations_are_sacrebleus():
    check_against_sacrebleu(real_sentences(300))


def test_bleu_by_hand():
    # Hypothesis of 4 words against 5: precisions 4/4, 3/3, 2/2, 1/1, brevity penalty exp(1 - 5/4).
    metric = Bleu()
    metric.update("a b c d", "a b c d e")
    assert metric.compute()["bleu"] == pytest.approx(100 * math.exp(1 - 5 / 4))


def test_chrf_by_hand():
    # "ab" against "abc": order 1: P 2/2, R 2/3; order 2: P 1/1, R 1/2; no n-gram of a higher order on both sides.
    metric = Chrf()
    metric.update("ab", "abc")
    precision, recall = 1.0, (2 / 3 + 1 / 2) / 2
    assert metric.compute()["chrf"] == pytest.approx(100 * 5 * precision * recall / (4 * precision + recall))


def test_nothing_in_common_scores_zero():
    for metric in (Bleu(), Chrf()):
        metric.update("", "Männer im Freien")
        assert metric.compute()[metric.name] == 0.0


@pytest.mark.parametrize("kind", [Bleu, Chrf])
def test_memory_does_not_grow_with_the_examples(kind):
    def size(metric) -> int:
        return sum(sys.getsizeof(value) for value in vars(metric).values()) + len(metric._totals)

    short, long = kind(), kind()
    short.update(SENTENCES[0], SENTENCES[1])
    for _ in range(50):
        long.update(SENTENCES[0], SENTENCES[1])
    assert size(long) <= size(short) + 16


def test_two_accumulators_do_not_mix():
    first, second = Bleu(), Bleu()
    first.update(SENTENCES[0], SENTENCES[0])
    second.update(SENTENCES[1], SENTENCES[2])
    assert first.compute()["bleu"] == pytest.approx(100)
    assert second.compute()["bleu"] < 10
