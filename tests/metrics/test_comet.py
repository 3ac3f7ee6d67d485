"""COMET's library with a tiny model of random weights, laid out as the published one is in the cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml

from ostinato.errors import ConfigError, DataError
from ostinato.experiments.compare.paired import compare
from ostinato.experiments.compare.systems import Choices
from ostinato.metrics import comet as our_comet
from ostinato.metrics import make_metric

ROWS = [
    ("der Hund bellt", "the dog barks", "the dog barks"),
    ("die Katze schläft", "a cat sleeps", "the cat is asleep"),
    ("es regnet", "", "it rains"),
    *[(f"{n} Hunde", f"{n} dog", f"{n} dogs") for n in range(1, 9)],
]


@pytest.fixture(autouse=True)
def _no_model_is_kept():
    our_comet._model.cache_clear()
    yield
    our_comet._model.cache_clear()


@pytest.fixture
def tiny_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a model of random weights into an empty cache, under the published one's name; return it."""
    comet = pytest.importorskip("comet")
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import XLMRobertaConfig, XLMRobertaTokenizerFast

    encoder = tmp_path / "encoder"
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", *"abcdefghijklmnopqrstuvwxyzäABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"]
    tokens = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=3))
    tokens.pre_tokenizer = pre_tokenizers.Metaspace()
    tokens.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    XLMRobertaTokenizerFast(tokenizer_object=tokens).save_pretrained(encoder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    XLMRobertaConfig(vocab_size=len(pieces), max_position_embeddings=130, pad_token_id=1, **sizes).save_pretrained(
        encoder
    )
    torch.manual_seed(0)
    model = comet.models.RegressionMetric(
        pretrained_model=str(encoder), load_pretrained_weights=False, hidden_sizes=[8, 4], local_files_only=True
    )
    cache = tmp_path / "hub" / "models--Unbabel--wmt22-comet-da"
    snapshot = cache / "snapshots" / "0123"
    (snapshot / "checkpoints").mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("0123")
    (snapshot / "hparams.yaml").write_text(yaml.safe_dump({"class_identifier": "regression_metric"}))
    torch.save(
        {
            "state_dict": model.state_dict(),
            "hyper_parameters": dict(model.hparams),
            "pytorch-lightning_version": "2.2.0",
        },
        snapshot / "checkpoints" / "model.ckpt",
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return model.eval()


@pytest.mark.filterwarnings("ignore")  # of Lightning, by which its predict goes, about torch
def test_the_score_is_that_of_comets_own_predict(tiny_model) -> None:
    samples = [{"src": source, "mt": output, "ref": reference} for source, output, reference in ROWS]
    expected = tiny_model.predict(samples, batch_size=4, gpus=0, progress_bar=False, num_workers=0)
    metric = make_metric("comet")
    for source, output, reference in ROWS:
        metric.update(output, reference, source)
    found = metric.compute()
    assert found["comet"] == pytest.approx(expected.system_score, abs=1e-5)
    assert len({round(score, 4) for score in expected.scores}) > 5
    assert str(found["comet_signature"]).startswith("Unbabel/wmt22-comet-da|unbabel-comet:")


def test_a_source_that_is_not_known_is_refused(tiny_model) -> None:
    with pytest.raises(DataError, match="needs the source"):
        make_metric("comet").update("the dog barks", "the dog barks")


def test_files_of_predictions_are_compared_by_it(tiny_model, tmp_path: Path) -> None:
    paths = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    for path, spoil in zip(paths, ("", " not"), strict=True):
        rows = [
            {"index": i, "source": source, "prediction": output + spoil, "reference": reference}
            for i, (source, output, reference) in enumerate(ROWS)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    scores = [row["metrics"]["comet"] for row in compare(paths, Choices(metrics=["comet"]))]
    for found, spoil in zip(scores, ("", " not"), strict=True):
        metric = make_metric("comet")
        for source, output, reference in ROWS:
            metric.update(output + spoil, reference, source)
        assert found["value"] == pytest.approx(metric.compute()["comet"])
        assert found["low"] < found["value"] < found["high"]


def test_what_is_missing_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path), raising=False)
    with pytest.raises(ConfigError, match=r"'comet': needs (pip install 'ostinato\[comet\]'|the model)"):
        make_metric("comet")
