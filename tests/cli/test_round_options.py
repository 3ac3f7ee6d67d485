"""Lengths of rounds, and how many of them decoding caches, in the commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from halting_runs import TINY
from ostinato.evaluation.loading import load
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train

LOOP = "[{n_steps: 2, repeats: 4, modulation: {kind: by_time}}]"
TIMED = [f"model.{name}.segments={LOOP}" for name in ("encoder", "decoder")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("timed") / "run"
    train(load_recipe("digits/universal", [*TINY, *TIMED, "decoding.max_length=6"]), folder)
    return folder


@pytest.mark.slow
def test_rounds_have_the_lengths_that_are_given(run, folder: Path) -> None:
    short = ["evaluate", folder, "--split", "test", "--device", "cpu", "--max-examples", 6, "--json"]
    plain = json.loads(run(*short).out)["test"]
    found = json.loads(run(*short, "--round-lengths", "0.25,0.75").out)["test"]
    assert found["round_lengths"] == {"encoder": [0.25, 0.75], "decoder": [0.25, 0.75]}
    assert "round_lengths" not in plain
    loaded = load(folder, device="cpu")
    with loaded.model.execution(paths=dict.fromkeys(("encoder", "decoder"), (0.25, 0.75))):
        assert found["loss"] == loaded.evaluate("test", metrics=[], max_examples=6)["loss"] != plain["loss"]
    # Two rounds of two steps cost half of four, in both stacks.
    assert found["macs"]["full"] < 0.6 * plain["macs"]["full"]
    assert found["macs"]["realised"] == found["macs"]["full"]
    for given, reason in (
        (("--round-lengths", "0.25,x"), "must be numbers without spaces"),
        (("--round-lengths", "0.25,0.25"), "must be positive numbers whose sum is 1"),
        (("--round-lengths", "0.25,0.75", "--n-steps", 3), "a path of 2 steps was given"),
    ):
        outcome = run(*short, *given)
        assert (outcome.code, reason in outcome.err) == (2, True), outcome.err


@pytest.mark.slow
def test_decoding_caches_as_many_rounds_as_it_is_told(run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("1 2 3\n4 5 6 7\n", encoding="utf-8")
    write = ["generate", folder, tmp_path / "in.txt", "--device", "cpu", "--max-length", 8]
    whole = run(*write).out
    assert run(*write, "--cached-rounds", 4).out == whole
    some = run(*write, "--cached-rounds", 1)
    assert (some.code, len(some.out.splitlines())) == (0, 2)
    loaded = load(folder, device="cpu", cached_rounds=1)
    assert loaded.model.current_execution.cached_rounds == 1
    with torch.no_grad():
        assert loaded.generate(["1 2 3", "4 5 6 7"], max_length=8) == some.out.splitlines()
    assert run(*write, "--cached-rounds", 0).code == 2
    setting = [*write, "--set", "decoding.cached_rounds=1"]
    assert run(*setting).out == some.out
    assert run(*setting, "--cached-rounds", 4).out == whole


def test_a_recipe_whose_decoder_cannot_keep_some_rounds_is_refused_with_one_line(run) -> None:
    for name, given, reason in (
        ("scan/transformer", (), "needs a decoder whose rounds share all weights"),
        ("digits/universal", ("model.decoder.halting.kind=select",), "the tokens of a round are chosen"),
    ):
        outcome = run("plan", name, *given, "decoding.cached_rounds=2")
        assert (outcome.code, outcome.err.count("decoding.cached_rounds is 2: ")) == (2, 1), outcome.err
        assert reason in outcome.err
    # A model that is wrong itself has no rounds to ask about.
    wrong = run("plan", "digits/universal", "model.decoder.self_attention.share=[0,7]", "decoding.cached_rounds=2")
    assert (wrong.code, wrong.err.count("\n")) == (2, 1), wrong.err
    assert "must be numbered 0, 1, 2" in wrong.err
