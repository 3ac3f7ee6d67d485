"""Measures that name nothing are found before anything is trained, and those that name something are let through."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ostinato.config.files import shipped_files
from ostinato.errors import ConfigError
from ostinato.experiments.sweep.files import load_sweep


def sweep_of(*measures: dict[str, Any]) -> dict[str, Any]:
    named = [{"name": f"m{i}", **measure} for i, measure in enumerate(measures)]
    arms = [{"name": "a"}, {"name": "b", "set": {"training.label_smoothing": 0.2}}]
    return {"name": "x", "recipe": "digits/transformer", "seeds": [1], "arms": arms, "measures": named}


RESULT = {"kind": "result", "split": "test"}
EVALUATE = {"kind": "evaluate", "split": "test", "path": "loss"}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("measure", "message"),
    [
        (RESULT | {"path": "exact_mach"}, "measures.m0.path is 'exact_mach': there will be no 'exact_mach': there is "),
        (RESULT | {"path": "exact_mach"}, "; did you mean exact_match?"),
        (RESULT | {"path": "bleu"}, "there will be no 'bleu'"),
        (RESULT | {"path": "bits_per_byte"}, "there will be no 'bits_per_byte'"),  # of texts only
        (RESULT | {"path": "n_words"}, "there will be no 'n_words'"),
        ({"kind": "result", "path": "training_second"}, "did you mean training_seconds?"),
        (EVALUATE | {"split": "gen"}, "m0.split is 'gen': the task algorithmic has"),
        (RESULT | {"path": "by.lenght.3.loss"}, "there will be no 'lenght' in by: there is length"),
        (RESULT | {"path": "by.length_bucket.3.los"}, "there will be no 'los' in by.length_bucket.3"),
        (RESULT | {"path": "by.*.*.loss"}, "there will be no '*'"),
        (RESULT | {"path": "halting.encoder.mean"}, "there will be no 'halting'"),
        (RESULT | {"path": "routing.*.n_dead"}, "there will be no 'routing'"),
        (RESULT | {"path": "loss.foo"}, "there is nothing below loss to look for foo in: it is a number"),
        (RESULT | {"path": "macs"}, "macs is no number, but holds full, realised"),
        (RESULT | {"path": "name"}, "there will be no 'name'"),
        (EVALUATE | {"split": "long", "path": "bleu"}, "there will be no 'bleu'"),
        (EVALUATE | {"metrics": ["blue"]}, "m0.metrics is 'blue': must be among"),
        (EVALUATE | {"checkpoint": "best:5"}, "m0.checkpoint is 'best:5': the run keeps 1: set training.keep_best"),
        (EVALUATE | {"checkpoint": "last:3"}, "m0.checkpoint is 'last:3': the run keeps 1: set training.keep_last"),
        (EVALUATE | {"checkpoint": "besst"}, "m0.checkpoint is 'besst': must be best, last, a mean"),
        (EVALUATE | {"checkpoint": "best:0"}, "after 'best:' comes how many to average"),
        (EVALUATE | {"n_steps": 9}, "m0.n_steps is 9: the encoder has 2 rounds with different parameter sets"),
        (EVALUATE | {"halting_threshold": 0.5}, "m0.halting_threshold is 0.5: no token of this model can halt"),
        (EVALUATE | {"exit": "margin"}, "m0.exit is 'margin': needs a halting_threshold, in [0, 1]"),
        (EVALUATE | {"exit": "gate", "halting_threshold": 0.5}, "m0.exit is 'gate': must be one of change, cosine"),
        (EVALUATE | {"exit_scope": "sequence"}, "m0.exit_scope is 'sequence': needs an exit"),
        (
            EVALUATE | {"exit": "margin", "halting_threshold": 0.5, "exit_scope": "sequence"},
            "m0.exit is 'margin': the stack that predicts tokens is causal; valid here with exit_scope sequence: ",
        ),
        (
            EVALUATE | {"exit": "margin", "halting_threshold": 0.5, "path": "halting.encoder.mean"},
            "there will be no 'encoder' in halting: there is decoder",
        ),
        (
            EVALUATE | {"oracle": "token", "metrics": ["exact_match"]},
            "m0.metrics is ['exact_match']: an oracle reads the",
        ),
        (EVALUATE | {"oracle": "token", "path": "exact_match"}, "there will be no 'exact_match'"),
        (EVALUATE | {"oracle": "word"}, "oracle is 'word': "),
        (EVALUATE | {"set": {"decoding.bea": 3}}, "m0.set.decoding.bea is 3: "),
        (EVALUATE | {"by": ["nocol"]}, "m0.by is ['nocol']: test: example 1 has no column 'nocol'"),
        ({"kind": "analysis", "study": "dept", "table": {"column": "x"}}, "m0.study is 'dept': must be one of"),
        ({"kind": "analysis", "study": "budget", "table": {"column": "zzz"}}, "m0.table is 'zzz': is no column; there"),
        (
            {"kind": "analysis", "study": "budget", "table": {"column": "parameters", "where": {"prt": "all"}}},
            "m0.table is 'prt': is no column",
        ),
        (
            {"kind": "analysis", "study": "depth", "table": {"column": "tokens"}},
            "m0.study is 'depth': does not apply: no token of its model can halt",
        ),
        (
            {"kind": "analysis", "study": "pareto", "table": {"column": "ms an example"}},
            "m0.study is 'pareto': does not apply: it compares runs",
        ),
    ],
)
def test_a_measure_that_names_nothing_is_refused_once(measure: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_sweep(sweep_of(measure))
    assert message in str(caught.value)
    assert len(caught.value.problems) == 1, "of two arms"


def test_a_result_of_a_split_that_is_not_scored_is_refused_also_where_the_recipe_names_none(tmp_path: Path) -> None:
    files = {split: tmp_path / f"{split}.jsonl" for split in ("train", "dev", "test")}
    for file in files.values():
        file.write_text('{"source": "a b", "target": "x"}\n' * 3)
    measure = {"name": "m", "kind": "result", "split": "dev", "path": "accuracy"}
    overrides = [f"data.{split}={file}" for split, file in files.items()]
    settings = sweep_of() | {"recipe": "classification/small", "overrides": overrides, "arms": [{"name": "a"}]}
    with pytest.raises(
        ConfigError, match=r"m\.split is 'dev': runs are evaluated on test: name it in evaluation\.splits"
    ):
        load_sweep(settings | {"measures": [measure]})
    load_sweep(settings | {"measures": [measure | {"split": "test"}]})
    load_sweep(settings | {"measures": [measure], "overrides": [*overrides, "evaluation.splits=[dev]"]})


UNIVERSAL = {
    "model.encoder.self_attention.share": "all",
    "model.encoder.ffn.share": "all",
    "model.encoder.halting.kind": "act",
    "model.decoder.self_attention.share": "all",
    "model.decoder.cross_attention.share": "all",
    "model.decoder.ffn.share": "all",
    "training.keep_best": 2,
}


def test_a_measure_that_names_something_is_let_through() -> None:
    measures = [
        RESULT | {"path": "by.length_bucket.*.exact_match"},
        RESULT | {"path": "macro.length_bucket.loss"},
        RESULT | {"path": "halting.*.mean"},
        RESULT | {"path": "by.length_bucket.1.5.halting.encoder.percentiles.90"},
        {"kind": "result", "path": "splits.test.loss"},
        {"kind": "result", "path": "selection.value"},
        EVALUATE | {"split": "long", "path": "bleu", "metrics": ["bleu"]},
        EVALUATE | {"checkpoint": "best:2", "n_steps": 9, "halting_threshold": 0.5, "set": {"decoding.max_length": 3}},
        EVALUATE | {"exit": "change", "halting_threshold": 0.9, "n_steps": 9, "path": "halting.decoder.mean"},
        EVALUATE | {"exit": "margin", "halting_threshold": 0.9, "path": "halting_threshold.decoder"},
        EVALUATE | {"by": ["length_bucket"], "path": "by.length_bucket.*.macs.realised", "checkpoint": "update-000002"},
        {"kind": "analysis", "study": "depth", "table": {"column": "rounds, mean", "where": {"stack": "encoder"}}},
        {"kind": "analysis", "study": "test-depth", "table": {"column": "rounds"}},
        {"kind": "budget"},
    ]
    settings = sweep_of(*measures) | {"arms": [{"name": "a", "set": UNIVERSAL}]}
    assert len(load_sweep(settings).measures) == len(measures)


def test_a_threshold_is_looked_for_where_the_rule_has_one() -> None:
    arm = {"name": "a", "set": UNIVERSAL | {"model.encoder.halting.kind": "token_choice"}}
    depth = RESULT | {"path": "halting.encoder.mean"}
    assert len(load_sweep(sweep_of(depth) | {"arms": [arm]}).measures) == 1
    with pytest.raises(ConfigError, match=r"path is 'halting_threshold\.encoder': there will be no"):
        load_sweep(sweep_of(RESULT | {"path": "halting_threshold.encoder"}) | {"arms": [arm]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"arms": [{"name": "a"}, {"name": "b", "set": {"seed": 4}}]},
            "arms.1.set.seed is '4': has no effect beside seeds: write seeds: [4]",
        ),
        ({"overrides": ["seed=4"]}, "overrides is '4': has no effect beside seeds: write seeds: [4]"),
    ],
)
def test_a_seed_that_seeds_would_win_over_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_sweep(sweep_of() | changes)
    assert str(caught.value) == message


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped_files("sweeps"))
def test_shipped_sweeps_measure_what_there_will_be(name: str, tmp_path: Path) -> None:
    inputs = {}
    for own in re.findall(r"input:(\w+)", shipped_files("sweeps")[name].read_text(encoding="utf-8")):
        inputs[own] = str(tmp_path / f"{own}.jsonl")
        Path(inputs[own]).write_text('{"text": "a b", "label": "x"}\n', encoding="utf-8")
    assert load_sweep(name, inputs).measures


def test_a_mean_of_checkpoints_with_untrained_gates_is_refused_before_anything_is_trained() -> None:
    late = {"training.n_updates": 10, "training.evaluate_every": 2, "training.keep_best": 9}
    settings = UNIVERSAL | late | {"training.halting.off_updates": 5, "training.halting.weight": 0.1}
    for n, is_refused in ((3, False), (4, True)):
        arms = [{"name": "a", "set": settings}]
        sweep = sweep_of(EVALUATE | {"checkpoint": f"best:{n}"}) | {"arms": arms}
        if is_refused:
            with pytest.raises(
                ConfigError, match=r"the run has 3 or more: .* training\.halting\.off_updates 5; use best"
            ):
                load_sweep(sweep)
        else:
            load_sweep(sweep)
