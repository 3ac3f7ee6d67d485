"""Runs of a moment that every analysis applies to, and what was found of them: made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from halting_runs import DEEP, RULES, TINY, draw_gates
from ostinato.analysis import analyze as logic
from ostinato.analysis.studies import Subject
from ostinato.evaluation.loading import load
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train

N = 24
EXPERTS = [
    "model.encoder.ffn={kind: experts, n_experts: 4, top_k: 2, d_ff: 16, share: all}",
    "model.encoder.self_attention={kind: experts, n_experts: 3, top_k: 1, n_heads: 2, d_head: 8, share: all, "
    "gate: {kind: sigmoid}, router: {kind: mlp}}",
]
SHALLOW = ["model.encoder.n_steps=3", "model.decoder.n_steps=3"]
KEEP = ["training.keep_last=3", "training.save_every=1", "training.n_updates=3", "training.log_every=1"]


def sparse_run(folder: Path, seed: int) -> Path:
    """Train a run in which tokens halt in both stacks and the encoder has experts."""
    train(load_recipe("digits/universal", [*TINY, *DEEP, *RULES, *EXPERTS, *KEEP, *SHALLOW, f"seed={seed}"]), folder)
    draw_gates(folder)
    return folder


@pytest.fixture(scope="package")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [sparse_run(root / "first", 1), sparse_run(root / "second", 2)]


@pytest.fixture(scope="package")
def given(runs: list[Path]) -> list[Subject]:
    return logic.subjects([load(run, device="cpu") for run in runs], None, N)


@pytest.fixture(scope="package")
def subject(runs: list[Path]) -> Subject:
    return logic.subjects([load(runs[0], device="cpu")], None, N)[0]


@pytest.fixture(scope="package")
def surveyed(given: list[Subject]) -> logic.Survey:
    return logic.survey(given)
