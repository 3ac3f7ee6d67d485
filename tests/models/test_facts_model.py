"""An encoder that reads facts: its masks' equation, padding, neighbours, counts, and a run from end to end."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from architectures import random_model
from contract import assert_all_equal, assert_equal
from ostinato.analysis import analyze as logic
from ostinato.analysis.capture import batches
from ostinato.budget import count_budget
from ostinato.config.load import check_recipe
from ostinato.config.model import EncoderConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.data.tokenizer import PAD_ID
from ostinato.decoding import inference
from ostinato.errors import ConfigError
from ostinato.evaluation.loading import load
from ostinato.models import Encoder, build_model
from ostinato.models.embeddings import FactEmbedder
from ostinato.training import train
from ostinato.training.optim import parameter_groups

HEAD = {"kind": "classification", "pooling": "mean"}
STORIES = [[[4, 5, 6], [7, 8], [9, 4]], [[6, 6, 5, 4], [7]], [[8]]]


def facts_config(**encoder: Any) -> EncoderConfig:
    """Return a tiny encoder of facts whose step and place matter."""
    stack = {"n_steps": 2, "self_attention": {"n_heads": 2, "share": "all"}, "ffn": {"d_ff": 8, "share": "all"}}
    return EncoderConfig.model_validate(
        {
            "d_model": 8,
            "dropout": 0.0,
            "vocab_size": 11,
            "n_labels": 3,
            "embedder": {"kind": "facts", "max_words": 4},
            "head": HEAD,
            "encoder": stack | {"positions": {"kind": "coordinates"}} | encoder,
        }
    )


def side_by_side(stories: list[list[list[int]]], *, left: bool = False, extra: int = 0) -> Batch:
    """Pad stories on one side, and facts on the right, with `extra` columns of both more."""
    width, words = max(map(len, stories)) + extra, 4
    ids_BTW = torch.full((len(stories), width, words), PAD_ID)
    keep_BT = torch.zeros(len(stories), width, dtype=torch.bool)
    for row, story in enumerate(stories):
        first = width - len(story) if left else 0
        for place, fact in enumerate(story, first):
            ids_BTW[row, place, : len(fact)] = torch.tensor(fact)
            keep_BT[row, place] = True
    labels_B1 = torch.zeros(len(stories), 1, dtype=torch.int64)
    positions = (keep_BT.long().cumsum(1) - 1).clamp_min(0) if left else None
    return Batch(Tokens(ids_BTW, keep_BT, positions), labels_B1, torch.ones_like(labels_B1, dtype=torch.bool))


def test_a_fact_is_the_sum_of_its_words_times_masks_and_the_question_has_its_own() -> None:
    torch.manual_seed(0)
    module = FactEmbedder(4, 6)
    assert all(torch.equal(p, torch.ones_like(p)) for p in module.parameters())
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    batch = side_by_side(STORIES, extra=1)
    table = torch.randn(11, 6)
    found = module(table[batch.target.ids_BT], batch.target.ids_BT != PAD_ID, batch.target.keep_BT)
    for row, story in enumerate(STORIES):
        for place, fact in enumerate(story):
            masks = module.question_WD if place == len(story) - 1 else module.fact_WD
            wanted = sum((masks[w] * table[token] for w, token in enumerate(fact)), torch.zeros(6))
            assert_equal(found[row, place], wanted, f"story {row}, fact {place}")


@pytest.mark.parametrize("halting", [{"kind": "none"}, {"kind": "act"}, {"kind": "stick_breaking"}])
def test_padding_and_neighbours_change_no_logit_and_no_gradient(halting: dict[str, Any]) -> None:
    model = random_model(facts_config(halting=halting))

    def run(batch: Batch, rows: list[int]) -> tuple[Tensor, dict[str, Tensor]]:
        logits_BV = model(batch).logits_BTV[:, 0]
        names, parameters = zip(*model.named_parameters(), strict=True)
        total = (logits_BV.double() * torch.arange(1.0, 4.0)).sum(1)[rows].sum()
        found = torch.autograd.grad(total, parameters, allow_unused=True)
        zeros = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
        return logits_BV, dict(zip(names, zeros, strict=True))

    together, _ = run(side_by_side(STORIES), [0, 1, 2])
    for row, story in enumerate(STORIES):
        alone, expected = run(side_by_side([story]), [0])
        assert_equal(together[row], alone[0], f"story {row} in a batch")
        for left in (False, True):
            padded = side_by_side([story, STORIES[0]], left=left, extra=2)
            logits, gradients = run(padded, [0])
            assert_equal(logits[0], alone[0], f"story {row} padded")
            assert_all_equal(gradients, expected)


def test_parameters_are_counted_exactly_and_masks_do_not_decay() -> None:
    config = facts_config()
    model = build_model(config)
    assert isinstance(model, Encoder)
    count = count_budget(config).parameters
    assert count.stored == model.n_parameters() == sum(count.by_part.values())
    assert count.by_part["facts"] == 2 * 4 * 8
    groups = parameter_groups(model, 0.1)
    exempt = {id(p) for group in groups if group["weight_decay"] == 0.0 for p in group["params"]}
    assert model.facts is not None
    assert {id(p) for p in model.facts.parameters()} <= exempt


def test_an_encoder_of_tokens_has_no_masks() -> None:
    plain = facts_config().model_copy(update={"embedder": EncoderConfig().embedder})
    model = build_model(plain)
    assert isinstance(model, Encoder)
    assert model.facts is None
    assert "facts" not in count_budget(plain).parameters.by_part


@pytest.mark.parametrize("head", [{"kind": "masked"}, {"kind": "classification", "pooling": "first"}])
def test_facts_need_a_head_that_takes_the_mean(head: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="pooling: mean"):
        EncoderConfig.model_validate({"embedder": {"kind": "facts"}, "head": head})


def _write(folder: Path) -> dict[str, str]:
    """Write stories in which a person goes to a place, another talks, and the place is asked for."""
    generator = random.Random(0)
    paths = {}
    for split, n in (("train", 120), ("dev", 20), ("test", 20)):
        lines = []
        for _ in range(n):
            who, other = generator.sample(["mary", "john", "anna"], 2)
            where = {person: generator.choice(["home", "shop"]) for person in (who, other)}
            facts = [f"{person} is at {place}" for person, place in where.items()]
            lines.append({"source": "\t".join([*facts, f"where is {who}"]), "target": where[who]})
        path = folder / f"{split}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        paths[split] = str(path)
    return paths


@pytest.mark.slow
def test_a_run_on_facts_of_ones_own_learns_and_is_analysed(tmp_path: Path) -> None:
    stack = {"n_steps": 2, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 32}, "norm": {"placement": "pre"}}
    model = {"kind": "encoder", "d_model": 16, "dropout": 0.0, "encoder": stack, "head": HEAD}
    recipe = check_recipe(
        {
            "task": {"kind": "classification"},
            "data": {**_write(tmp_path), "tokenizer": {"kind": "words"}, "tokens_per_batch": 96},
            "model": model | {"embedder": {"kind": "facts", "max_words": 4}},
            "training": {"n_updates": 60, "evaluate_every": 60, "save_every": 60, "device": "cpu", "n_threads": 1}
            | {"optimizer": {"lr": 0.01}, "schedule": {"kind": "constant", "warmup": 5}},
            "evaluation": {"splits": ["test"]},
        }
    )
    results = train(recipe, tmp_path / "run")
    assert results["splits"]["test"]["accuracy"] > 0.8
    assert results["splits"]["test"]["macs"]["full"] > 0
    subjects = logic.subjects([load(tmp_path / "run", device="cpu")], None, 8)
    analysed = logic.analyze(subjects, tmp_path / "out", only=["attention-example"])
    data = json.loads(next(path for path in analysed.files if path.suffix == ".json").read_text(encoding="utf-8"))
    assert "is at" in json.dumps(data)


@pytest.mark.parametrize("n_before", [0, 1])  # steps of a prelude, which are no rounds
def test_the_question_s_row_of_attention_is_shown_by_round_for_the_example_that_is_named(
    n_before: int, tmp_path: Path
) -> None:
    stack = {"n_steps": 3, "self_attention": {"n_heads": 2, "share": "all"}, "ffn": {"d_ff": 32, "share": "all"}}
    if n_before:
        stack = {"n_steps": 3, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 32}}
        stack["segments"] = [{}, {"repeats": 3}, {}]
    halting = {"kind": "act", "epsilon": 0.1, "initial_bias": float(n_before)}
    model = {"kind": "encoder", "d_model": 16, "encoder": stack | {"halting": halting}, "head": HEAD}
    recipe = check_recipe(
        {
            "task": {"kind": "classification"},
            "data": {**_write(tmp_path), "tokenizer": {"kind": "words"}, "tokens_per_batch": 96},
            "model": model | {"embedder": {"kind": "facts", "max_words": 4}},
            "training": {"n_updates": 2, "device": "cpu", "n_threads": 1},
            "evaluation": {"splits": ["test"]},
        }
    )
    train(recipe, tmp_path / "run")
    (subject,) = logic.subjects([load(tmp_path / "run", device="cpu")], None, 8, example=3)
    subject.examples[2].columns["supporting"] = [1]
    ((_, (finding,)),) = logic.survey([subject], only=["question-attention"]).found
    facts = subject.examples[2].source.split("\t")
    assert finding.data["keys"] == facts
    assert finding.data["query"] == facts[-1]
    with inference(subject.model):
        output = subject.model(next(batches(subject.run, subject.examples[2:3])), request={"weights"})
    ran = output.stacks["encoder"].halting.executed_BTR[0, -1].int().sum().item()
    rows_RHS = finding.arrays["encoder_RHS"]
    assert len(finding.rows) == ran == len(rows_RHS) < 3
    for step in range(ran):
        weights_HTS = output.stacks["encoder"].captures["encoder", n_before + step, "self_attention", "weights"][0]
        assert np.allclose(rows_RHS[step], weights_HTS[:, -1].detach(), atol=1e-6)
        row = dict(zip(finding.columns, finding.rows[step], strict=True))
        mean_S = rows_RHS[step].mean(0)
        assert row["round"] == step + 1
        assert row["most on"] == facts[int(mean_S.argmax())]
        assert row["weight"] == pytest.approx(mean_S.max())
        assert row["on marked places"] == pytest.approx(mean_S[1])
    assert "Example 3 of the 8" in finding.note
    with pytest.raises(ConfigError, match=r"example is 9: must be from 1 to 8, the examples that are read"):
        logic.subjects([load(tmp_path / "run", device="cpu")], None, 8, example=9)
