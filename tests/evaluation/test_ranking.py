"""Targets ranked by their probability, beside a plain loop over all of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato.config.data import DataConfig
from ostinato.config.decoding import DecodingConfig
from ostinato.config.model import LanguageModelConfig
from ostinato.config.recipe import TaskRef
from ostinato.config.stack import StackConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig
from ostinato.data.collate import Row, collate
from ostinato.data.example import Example
from ostinato.data.tokenizers import Tokenizers
from ostinato.errors import DataError
from ostinato.evaluation import evaluate
from ostinato.evaluation.ranking import rank
from ostinato.models import LanguageModel
from ostinato.tasks.registry import build_task

LABELS = ["good", "bad", "so so"]


def made(folder: Path) -> tuple[Any, DataConfig, Tokenizers, LanguageModel]:
    rows = [{"source": f"a film {'very ' * (i % 4)}{i}", "target": LABELS[i % 3], "i": i % 2} for i in range(12)]
    (file := folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = DataConfig(train=str(file), test=str(file))
    task = build_task(TaskRef.model_validate({"kind": "classification", "choices": LABELS}), data)
    tokenizers = Tokenizers.train(data, task.examples("train"))
    stack = StackConfig(n_steps=1, self_attention=AttentionConfig(n_heads=2), ffn=DenseFeedForwardConfig(d_ff=8))
    torch.manual_seed(1)
    model = LanguageModel(LanguageModelConfig(d_model=8, vocab_size=tokenizers.target.vocab_size, decoder=stack))
    return task, data, tokenizers, model.eval()


def test_a_label_is_right_where_no_other_one_is_as_probable(tmp_path: Path) -> None:
    task, data, tokenizers, model = made(tmp_path)
    examples = list(task.examples("test"))
    found = rank(model, examples, tokenizers, data, contrast=task.contrast, by=["i"], name="test")
    right = []
    for example in examples:
        log_p = {}
        for label in LABELS:
            ids = [tokenizers.source.encode(example.source), tokenizers.target.encode(label)]
            batch = collate([Row(ids[0], ids[1], is_joined=True)])
            log_p_TV = model(batch).logits_BTV[0].log_softmax(-1).detach()
            where = batch.loss_mask_BT[0]
            log_p[label] = float(log_p_TV[where].gather(1, batch.labels_BT[0][where][:, None]).sum())
        right.append(max(log_p, key=log_p.__getitem__) == example.target)
    assert found["accuracy"] == sum(right) / 12
    assert 0 < found["accuracy"] < 1
    assert found["by"]["i"]["0"]["accuracy"] == sum(right[::2]) / 6
    tied = [replace(one, columns=one.columns | {task.contrast: [one.target]}) for one in examples]
    assert rank(model, tied, tokenizers, data, contrast=task.contrast, by=[], name="test")["accuracy"] == 0


def test_a_split_whose_labels_are_all_skipped_has_no_examples_to_evaluate(tmp_path: Path) -> None:
    task, data, tokenizers, model = made(tmp_path)
    none = task.config.model_copy(update={"skipped_labels": LABELS})
    examples = list(type(task)(none, data).examples("test"))
    assert examples == []
    settings = {"data": data, "decoding": DecodingConfig(max_length=4), "metrics": []}
    with pytest.raises(DataError, match=r"^test: there are no examples to evaluate$"):
        evaluate(model, examples, tokenizers, **settings, name="test", contrast=task.contrast)
    for by in ([], ["i"]):
        with pytest.raises(DataError, match=r"^test: there are no examples to rank$"):
            rank(model, examples, tokenizers, data, contrast=task.contrast, by=by, name="test")


def test_wrong_targets_must_be_there(tmp_path: Path) -> None:
    task, data, tokenizers, model = made(tmp_path)
    for wrong in (None, [], [3], ["bad", None]):
        example = Example("a film 1", "good", {"wrong": wrong})
        with pytest.raises(DataError, match=r"^x: example 1 has no wrong target 'wrong' to compare with$"):
            rank(model, [example], tokenizers, data, contrast="wrong", by=[], name="x")
    strange = task.config.model_copy(update={"choices": ["good", "bad"]})
    with pytest.raises(DataError, match=r"test: example 3: its label 'so so' is not among task\.choices: good, bad"):
        list(type(task)(strange, data).examples("test"))
