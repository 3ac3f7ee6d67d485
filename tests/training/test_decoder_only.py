"""A decoder-only model on pairs, from the recipe to its outputs: reversing digits with one sequence a pair."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import last_checkpoint, records, tiny_recipe, weights

from ostinato.config.load import check_recipe
from ostinato.config.recipe import Recipe
from ostinato.data.collate import Row, collate
from ostinato.data.tokenizer import BOS_ID, EOS_ID
from ostinato.errors import ConfigError
from ostinato.evaluation.loading import LoadedRun, load
from ostinato.models import LanguageModel
from ostinato.tasks.registry import build_task
from ostinato.training.loop import train
from ostinato.training.reporter import Reporter

STACK = {"n_steps": 1, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 16}, "relative": {"kind": "buckets"}}


def reverse_recipe(mask: str = "prefix", n_updates: int = 8, **changes: Any) -> Recipe:
    training = {
        "n_updates": n_updates,
        "evaluate_every": 4,
        "save_every": 4,
        "log_every": 2,
        "n_threads": 1,
        "device": "cpu",
        "accumulate": 2,
        "label_smoothing": 0.1,
        "selection": {"metric": "exact_match", "mode": "max"},
        "optimizer": {"lr": 0.01},
        "schedule": {"warmup": 4},
    }
    task = {"kind": "algorithmic", "operation": "reverse", "max_length": 5, "long_max_length": 8}
    settings = {
        "name": "reverse",
        "task": task | {"n_train": 60, "n_eval": 6},
        "data": {"tokens_per_batch": 120},
        "model": {"kind": "language_model", "mask": mask, "d_model": 16, "dropout": 0.1, "decoder": STACK},
        "training": training,
        "decoding": {"max_length": 1, "max_length_ratio": 1.0},
        "evaluation": {"splits": ["test", "long"]},
    }
    return check_recipe(settings | changes)


def naive(run: LoadedRun, source: str, target: str) -> tuple[float, str]:
    """Return the summed -log p of target and end symbol and the greedy output, one full pass a token."""
    read, write = run.tokenizers.source.encode(source), run.tokenizers.target.encode(target)
    assert run.tokenizers.is_joint

    def log_p(ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits_BTV = run.model(collate([Row(read, ids, is_joined=True)])).logits_BTV
        return torch.log_softmax(logits_BTV[0].double(), -1)

    labels = torch.tensor([*write, EOS_ID])
    nll = -float(log_p(write)[-len(labels) :].gather(1, labels[:, None]).sum())
    output: list[int] = []
    # The source's end symbol is one of its tokens: 1 + (n + 1) tokens may be written.
    while len(output) < len(read) + 2:
        scores_V = log_p(output)[-1]
        scores_V[: BOS_ID + 1] = -math.inf
        if (token := int(scores_V.argmax())) == EOS_ID:
            break
        output.append(token)
    return nll, run.tokenizers.target.decode(output)


@pytest.mark.parametrize("mask", ["prefix", "causal"])
def test_a_language_model_is_trained_scored_and_asked_about_pairs(mask: str, tmp_path: Path) -> None:
    recipe = reverse_recipe(mask)
    results = train(recipe, tmp_path / "run")
    losses = [record["nll"] for record in records(tmp_path / "run", "training")]
    assert losses[-1] < losses[0]
    run = load(tmp_path / "run", device="cpu")
    assert isinstance(run.model, LanguageModel)
    assert run.model.config.mask == mask
    run.model.eval()
    examples = list(build_task(run.recipe.task, run.recipe.data).examples("test"))
    expected = [naive(run, str(example.source), example.target) for example in examples]
    scores = results["splits"]["test"]
    assert scores["n_labels"] == sum(1 + len(example.target.split()) for example in examples)
    assert scores["loss"] == pytest.approx(sum(nll for nll, _ in expected) / scores["n_labels"], rel=1e-5)
    outputs = [output for _, output in expected]
    assert scores["exact_match"] == sum(o == e.target for o, e in zip(outputs, examples, strict=True)) / len(examples)
    assert run.generate([str(example.source) for example in examples]) == outputs
    stream = run.stream(str(example.source) for example in examples)
    assert [getattr(answer, "text", None) for answer in stream] == outputs
    again = run.evaluate("test")
    assert {key: again[key] for key in ("loss", "exact_match")} == {key: scores[key] for key in ("loss", "exact_match")}


class _Stop(Reporter):
    def on_save(self, update: int, directory: Path) -> None:
        if update == 4:
            raise KeyboardInterrupt


def test_a_run_that_was_stopped_and_resumed_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    whole = train(reverse_recipe(), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(reverse_recipe(), tmp_path / "cut", reporter=_Stop())
    assert last_checkpoint(tmp_path / "cut").name == "update-000004"
    resumed = train(reverse_recipe(), tmp_path / "cut", resume=True)
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    for name in ("metrics.jsonl", "recipe.yaml"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert resumed["splits"]["long"]["loss"] == whole["splits"]["long"]["loss"]


def test_texts_are_still_prompts_which_are_all_prefix(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, kind="language_model", n_updates=2)
    train(recipe, tmp_path / "run")
    run = load(tmp_path / "run", device="cpu")
    (one,) = run.generations(["a b"])
    with torch.inference_mode():
        logits_V = run.model(collate([Row(None, run.tokenizers.target.encode("a b"))])).logits_BTV[0, -1]
    first = run.tokenizers.target.decode([BOS_ID + 1 + int(logits_V[BOS_ID + 1 :].argmax())])
    assert one.text.split()[:1] == first.split()[:1]
    # A prefix language model of texts draws its prefixes; what it goes on from is one.
    prefix = recipe.model_copy(update={"model": recipe.model.model_copy(update={"mask": "prefix"})})
    results = train(prefix, tmp_path / "other")
    assert 0 < results["splits"]["test"]["n_labels"] < results["splits"]["test"]["n"] * 7
    run = load(tmp_path / "other", device="cpu")
    (one,) = run.generations(["a b"], max_length=1)
    batch = replace(collate([Row(None, run.tokenizers.target.encode("a b"))]), prefix_lengths_B=torch.tensor([3]))
    with torch.inference_mode():
        log_p_V = run.model(batch).logits_BTV[0, -1].log_softmax(-1)
    assert one.log_prob == pytest.approx(float(log_p_V[EOS_ID:].max()), abs=1e-5)


def test_two_tokenizers_are_refused_with_everything_else_before_any_data_is_read() -> None:
    with pytest.raises(ConfigError) as caught:
        reverse_recipe(data={"target_tokenizer": {"kind": "words"}}, evaluation={"metrics": ["blue"]})
    problems = {problem.key: str(problem) for problem in caught.value.problems}
    assert "a language model has one vocabulary" in problems["data.target_tokenizer"]
