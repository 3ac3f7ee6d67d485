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

from ostinato.errors import ConfigError
from ostinato.evaluation.scores import check_metrics
from ostinato.metrics import Bleu, BleuCompoundsSplit, Chrf, SpBleu, translation
from ostinato.metrics.translation import split_compounds

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


def test_compounds_are_taken_apart_at_their_hyphens_as_perl_would():
    assert split_compounds("Die Haus-Tür - 1-2 .") == "Die Haus ##AT##-##AT## Tür - 1 ##AT##-##AT## 2 ."
    # A character that a match has used up begins no second one.
    assert split_compounds("ab-cd-ef a-b-c") == "ab ##AT##-##AT## cd ##AT##-##AT## ef a ##AT##-##AT## b-c"


def test_bleu_with_compounds_split_by_hand():
    pytest.importorskip("sacremoses")
    # Tokens of the output: Die Haus ##AT##-##AT## Tür ist zu . (7); of the reference: ... Klappe in the place of Tür.
    metric = BleuCompoundsSplit()
    metric.update("Die Haus-Tür ist zu.", "Die Haus-Klappe ist zu.")
    assert metric.compute()["bleu_compounds_split"] == 0.0  # no 4-gram matches, and nothing is smoothed
    metric.update("Das ist ein sehr kurzer Satz.", "Das ist ein sehr kurzer Satz.")
    precisions = [(6 + 7) / 14, (4 + 6) / 12, (2 + 5) / 10, 4 / 8]
    expected = 100 * math.prod(precisions) ** (1 / 4)
    found = metric.compute()
    assert found["bleu_compounds_split"] == pytest.approx(expected)
    assert str(found["bleu_compounds_split_signature"]).startswith("moses:de.")
    assert "compounds:split|nrefs:1|case:mixed|eff:no|tok:none|smooth:none" in str(
        found["bleu_compounds_split_signature"]
    )


def test_bleu_with_compounds_split_of_real_translations_is_that_of_their_split_tokens():
    sacremoses = pytest.importorskip("sacremoses")
    references, rng = real_sentences(200), Random(0)
    predictions = [damaged(reference, rng) for reference in references]
    moses = sacremoses.MosesTokenizer(lang="de")
    pairs = [
        [split_compounds(moses.tokenize(text, return_str=True)) for text in side] for side in (predictions, references)
    ]
    expected = BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(pairs[0], [pairs[1]]).score
    metric, plain = BleuCompoundsSplit(), Bleu()
    for prediction, reference in zip(predictions, references, strict=True):
        metric.update(prediction, reference)
        plain.update(prediction, reference)
    assert metric.compute()["bleu_compounds_split"] == expected
    assert 5 < expected < 95
    assert expected != plain.compute()["bleu"]


def test_without_a_moses_tokenizer_the_error_says_how_to_get_one(monkeypatch):
    translation._moses.cache_clear()
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(ConfigError) as caught:
        check_metrics(["bleu_compounds_split"])
    assert str(caught.value) == (
        "evaluation.metrics is 'bleu_compounds_split': needs Moses' tokenizer: pip install 'ostinato[moses]'"
    )


@pytest.fixture
def folder_of_sacrebleu(tmp_path, monkeypatch):
    """A folder in which sacreBLEU looks for its models, empty."""
    from sacrebleu.tokenizers import tokenizer_spm

    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path))
    translation._sacrebleu.cache_clear()
    yield tmp_path
    translation._sacrebleu.cache_clear()


def test_bleu_of_pieces_is_sacrebleus_with_the_same_model(folder_of_sacrebleu):
    sentencepiece = pytest.importorskip("sentencepiece")
    references, rng = real_sentences(200), Random(0)
    (folder_of_sacrebleu / "models").mkdir()
    text = folder_of_sacrebleu / "text"
    text.write_text("\n".join(references), encoding="utf-8")
    model = folder_of_sacrebleu / "models" / "flores200sacrebleuspm"
    sentencepiece.SentencePieceTrainer.train(input=str(text), model_prefix=str(model), vocab_size=300, minloglevel=2)
    model.with_name(f"{model.name}.model").rename(model)
    predictions = [damaged(reference, rng) for reference in references]
    metric = SpBleu()
    for prediction, reference in zip(predictions, references, strict=True):
        metric.update(prediction, reference)
    theirs = BLEU(tokenize="flores200")
    expected = theirs.corpus_score(predictions, [references]).score
    assert metric.compute() == {"spbleu": expected, "spbleu_signature": str(theirs.get_signature())}
    assert 5 < expected < 95
    assert "tok:flores200" in str(metric.compute()["spbleu_signature"])


def test_spbleu_downloads_nothing_and_says_what_it_lacks(folder_of_sacrebleu, monkeypatch):
    monkeypatch.setattr(translation, "find_spec", lambda name: object())
    with pytest.raises(
        ConfigError, match=r"'spbleu': needs the model .*models/flores200sacrebleuspm, which `sacrebleu"
    ):
        SpBleu()
    monkeypatch.setattr(translation, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"'spbleu': needs sentencepiece: pip install 'ostinato\[spbleu\]'"):
        SpBleu()
