"""LAMBADA's scores, by a plain loop over its last words."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from ostinato.config.data import DataConfig, TokenizerConfig
from ostinato.config.decoding import DecodingConfig
from ostinato.config.model import LanguageModelConfig
from ostinato.config.recipe import TaskRef
from ostinato.config.stack import StackConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig
from ostinato.data.collate import Row, collate
from ostinato.data.tokenizers import Tokenizers
from ostinato.evaluation import evaluate
from ostinato.models import LanguageModel
from ostinato.tasks.registry import build_task

PAIRS = [("ann saw bob and bob saw", "ann"), ("it was her", "cab"), ("so they went", "on")]


def learn(model: LanguageModel, ids: list[int]) -> None:
    """Learn one text, so that its last word is right."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    batch = collate([Row(None, ids)])
    for _ in range(60):
        optimizer.zero_grad()
        logits_TV = model(batch).logits_BTV[0]
        torch.nn.functional.cross_entropy(logits_TV, batch.labels_BT[0]).backward()
        optimizer.step()


def test_perplexity_and_accuracy_are_of_the_pieces_of_last_words_alone(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("".join(f"{a} {b}\n" for a, b in PAIRS), encoding="utf-8")
    rows = "".join(json.dumps({"source": a, "target": b}) + "\n" for a, b in PAIRS)
    (tmp_path / "test.jsonl").write_text(rows, encoding="utf-8")
    data = DataConfig(
        train=str(tmp_path / "train.txt"),
        test=str(tmp_path / "test.jsonl"),
        tokenizer=TokenizerConfig(kind="characters"),
    )
    task = build_task(TaskRef(kind="lambada"), data)
    tokenizers = Tokenizers.train(data, task.examples("train"))
    torch.manual_seed(0)
    stack = StackConfig(n_steps=1, self_attention=AttentionConfig(n_heads=2), ffn=DenseFeedForwardConfig(d_ff=8))
    model = LanguageModel(LanguageModelConfig(d_model=8, vocab_size=tokenizers.target.vocab_size, decoder=stack))
    learn(model, tokenizers.target.encode(" ".join(PAIRS[0])))
    result = evaluate(
        model, task.examples("test"), tokenizers, data=data, decoding=DecodingConfig(), metrics=[], name="test"
    )
    nlls, rights = [], []
    model.eval()
    for before, word in PAIRS:
        ids = tokenizers.target.encode(f"{before} {word}")
        log_p_TV = torch.log_softmax(model(collate([Row(None, ids)])).logits_BTV[0].detach().double(), 1)
        places = range(len(ids) - len(word), len(ids))
        nlls.append(-sum(float(log_p_TV[t, ids[t]]) for t in places))
        rights.append(all(int(log_p_TV[t].argmax()) == ids[t] for t in places))
    assert result["n_labels"] == 3 + 3 + 2
    assert result["word_perplexity"] == pytest.approx(math.exp(sum(nlls) / 3), rel=1e-5)
    assert result["perplexity"] == pytest.approx(math.exp(sum(nlls) / 8), rel=1e-5)
    assert result["sequence_accuracy_forced"] == sum(rights) / 3
    assert 0 < sum(rights) < 3
