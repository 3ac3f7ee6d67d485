"""Other depths than the trained one, costs by part, and what is timed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ostinato.analysis import analyze as logic
from ostinato.analysis.capture import batches, stream
from ostinato.analysis.collectors import Outcomes
from ostinato.analysis.latency import part_latencies, parts_of, threads_and_device
from ostinato.analysis.report import _facts_of_run
from ostinato.analysis.studies import Finding, Subject
from ostinato.analysis.studies.base import MARKS, natural_order, no_halting, no_threshold
from ostinato.analysis.studies.costs import _parts
from ostinato.analysis.studies.trade_offs import rounds_to_try, variable_stacks
from ostinato.budget import count_macs, count_parameters
from ostinato.config.data import DataConfig
from ostinato.config.halting import NoHaltingConfig
from ostinato.config.model import Seq2SeqConfig
from ostinato.data.example import Example
from ostinato.errors import CheckpointError, ConfigError, DataError
from ostinato.evaluation.loading import load
from ostinato.evaluation.threshold import read_curve
from ostinato.experiments.compare.thresholds import tune_threshold
from ostinato.models import build_model
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.vocabulary import size_model
from ostinato.training import train


def finding(surveyed: logic.Survey, name: str) -> Finding:
    return next(found[0] for study, found in surveyed.found if study.name == name)


def test_times_say_what_they_were_measured_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"name of {device}")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    found = {name: threads_and_device(SimpleNamespace(device=torch.device(name))) for name in ("cpu", "cuda:1", "mps")}
    assert found == {"cpu": "CPU, 2 threads", "cuda:1": "name of cuda:1", "mps": "mps"}


def test_rounds_run_from_one_to_twice_the_trained_ones() -> None:
    assert rounds_to_try(12) == [1, 3, 6, 9, 12, 15, 18, 24]
    assert rounds_to_try(2) == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["token_choice", "length", "act", "none"])
def test_tokens_may_halt_with_and_without_a_threshold(kind: str) -> None:
    recipe = load_recipe("digits/universal", ["model.encoder.n_steps=3", f"model.encoder.halting={{kind: {kind}}}"])
    model = build_model(size_model(recipe, source=14, target=14).model)
    assert (no_halting(model) is None) == (kind != "none")
    assert (no_threshold(model) is None) == (kind == "act")
    with model.execution(halting=False):
        assert no_halting(model) == "no token of its model can halt"


def test_a_stack_runs_other_rounds_inside_and_its_own_afterwards(subject: Subject) -> None:
    assert variable_stacks(subject.model) == ["encoder", "decoder"]
    before = subject.model.current_execution
    with subject.model.execution(rounds={"encoder": 5}):
        assert subject.model.n_rounds() == {"encoder": 5, "decoder": 3}
    assert subject.model.n_rounds() == {"encoder": 3, "decoder": 3}
    with pytest.raises(ConfigError, match="at least 1"), subject.model.execution(rounds={"encoder": 0}):
        pass
    with pytest.raises(ConfigError, match="its stacks are: encoder, decoder"), subject.model.execution(rounds={"x": 1}):
        pass
    assert subject.model.current_execution is before


def test_fewer_rounds_are_what_an_evaluation_with_fewer_steps_says(subject: Subject) -> None:
    outcomes = Outcomes(len(subject.examples))
    with subject.model.execution(rounds={"encoder": 2, "decoder": 2}):
        stream(subject.run, subject.examples, [outcomes])
    result = subject.run.evaluate(subject.split, metrics=[], by=[], n_steps=2, max_examples=len(subject.examples))
    assert outcomes.nll_N.sum() / outcomes.labels_N.sum() == pytest.approx(result["loss"], rel=1e-6)
    assert outcomes.macs_N2.mean(0) == pytest.approx([result["macs"]["full"], result["macs"]["realised"]])


def test_the_trained_number_of_rounds_scores_as_the_model_does(subject: Subject, surveyed: logic.Survey) -> None:
    outcomes = Outcomes(len(subject.examples))
    stream(subject.run, subject.examples, [outcomes])
    rows = [row for row in finding(surveyed, "test-depth").rows if row[1] == row[2]]
    assert [row[0] for row in rows] == ["encoder", "decoder"]
    for row in rows:
        assert row[3:5] == [outcomes.token_accuracy, outcomes.sequence_accuracy]


def test_a_curve_without_a_stored_one_is_measured_and_leaves_the_threshold(subject: Subject) -> None:
    before = subject.model.halting_thresholds()
    ((_, (found,)),) = logic.survey([subject], only=["thresholds"]).found
    assert subject.model.halting_thresholds() == before
    result = subject.run.evaluate(subject.split, metrics=[], by=[], max_examples=len(subject.examples))
    assert found.data["points"][0]["score"] == result["token_accuracy"]
    assert found.data["points"][0]["macs"]["realised"] == pytest.approx(result["macs"]["realised"])
    macs = [point["macs"]["realised"] for point in found.data["points"][1:]]
    assert macs == sorted(macs, reverse=True)
    assert (found.columns[0], found.rows[-1][0]) == ("threshold", "oracle (no bound)")  # stick-breaking mixes rounds


def test_thresholds_of_a_criterion_are_named_after_it(subject: Subject) -> None:
    # A causal decoder does not stop by sentences: it keeps the threshold of its own rule.
    with subject.model.execution(exit="change", exit_scope="sequence", halting_threshold=0.4):
        ((_, (found,)),) = logic.survey([subject], only=["thresholds"]).found
        facts = _facts_of_run(subject)
    assert found.columns[0] == "threshold of change (sequence)"
    assert facts["halting threshold"] == "encoder 0.4 of change (sequence), decoder 0.95 (given)"


@pytest.mark.parametrize("n_positions", [12, 40])
def test_texts_of_blocks_are_cut_to_the_positions_that_there_are(tmp_path: Path, n_positions: int) -> None:
    for name in ("train", "dev"):
        (tmp_path / f"{name}.txt").write_text(
            "the cat sees a dog\n" + "a dog sees the cat " * 9 + "\n", encoding="utf-8"
        )
    decoder = (
        "model.decoder={n_steps: 2, self_attention: {share: all, n_heads: 2}, ffn: {share: all, d_ff: 8}, "
        f"halting: {{kind: act}}, positions: {{kind: learned, max_length: {n_positions}}}, relative: {{kind: none}}}}"
    )
    files = [f"data.{name}={tmp_path / name}.txt" for name in ("train", "dev")]
    sizes = ["model.d_model=8", "data.tokenizer.kind=words", "data.block_length=8", "decoding.max_length=8"]
    updates = ["training.n_updates=1", "training.n_threads=1", "training.device=cpu", "data.max_target_length=20"]
    train(load_recipe("lm/transformer", [decoder, *files, *sizes, *updates]), tmp_path / "run")
    (subject,) = logic.subjects([load(tmp_path / "run", device="cpu")], "dev", 30)
    (batch,) = batches(subject.run, subject.examples)
    assert batch.target.ids_BT.shape == (2, min(n_positions, 20))
    ((_, (found,)),) = logic.survey([subject], only=["thresholds"]).found
    assert found.data["n"] == 2


@pytest.mark.slow
def test_a_stored_curve_is_read_for_its_checkpoint_only(runs: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs[0], folder)
    run = load(folder, device="cpu")
    tuned = tune_threshold(run, "dev", thresholds=[0.5], metric="token_accuracy")
    assert read_curve(replace(run, checkpoint=run.checkpoint.with_name("another"))) is None
    found = read_curve(run)
    assert found is not None
    assert found.as_dict() == tuned.as_dict()
    given = logic.subjects([run], None, 8)
    told: list[int] = []
    ((_, (shown,)),) = logic.survey(given, only=["thresholds"], on_start=told.append).found
    assert told == [0]
    assert shown.data["split"] == "dev"
    stored = json.loads((folder / "threshold-curve.json").read_text(encoding="utf-8"))
    # A mean of checkpoints that is made anew has the same name and other weights.
    other = json.dumps(stored | {"weights": "0" * 64})
    (folder / "threshold-curve.json").write_text(other, encoding="utf-8")
    assert read_curve(run) is None
    (folder / "threshold-curve.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"threshold-curve.json: cannot be read"):
        read_curve(run)


def test_parts_add_up_to_the_counts_of_the_model(subject: Subject, surveyed: logic.Survey) -> None:
    found = finding(surveyed, "budget")
    parts, config = found.data["parts"], subject.model.config
    lengths = found.data["lengths"]
    assert sum(part["parameters"] for part in parts.values()) == count_parameters(config).stored
    total = count_macs(config, lengths["source"], lengths["target"]).total
    assert sum(part["full"] for part in parts.values()) == total
    assert all(part["realised"] <= part["full"] for part in parts.values())
    assert list(parts)[-1] == "everything else"
    assert {"encoder.self_attention", "encoder.ffn", "decoder.cross_attention"} < parts.keys()


def test_rounds_by_length_are_counted_at_full_depth_and_as_many_as_ran() -> None:
    steps = {"n_steps": 8, "self_attention": {"n_heads": 2, "share": "all"}, "ffn": {"d_ff": 24, "share": "all"}}
    by_length = steps | {"halting": {"kind": "length", "per_token": 0.5}}
    rows = {"d_model": 16, "source_vocab_size": 11, "target_vocab_size": 11}
    config = Seq2SeqConfig.model_validate(rows | {"encoder": by_length, "decoder": {"n_steps": 1}})
    model: Any = SimpleNamespace(model=build_model(config))
    part = _parts(model, (6, 6), {"encoder": 2.5})["encoder.ffn"]
    encoder = config.encoder.model_copy(update={"halting": NoHaltingConfig()})
    assert part.full == count_macs(config.model_copy(update={"encoder": encoder}), 6, 6).by_part["encoder.ffn"]
    assert part.realised == part.full * 2.5 / 8


def test_the_time_of_a_pass_is_spent_in_its_parts_or_elsewhere(subject: Subject) -> None:
    found = part_latencies(subject.run, subject.examples)
    assert set(found.by_part) == set(parts_of(subject.model).values())
    assert all(seconds > 0 for seconds in found.by_part.values())
    assert found.n == len(subject.examples)
    assert found.rest >= 0
    assert found.per_example == found.seconds / found.n > 0


def test_runs_are_placed_by_what_they_cost(given: list[Subject], surveyed: logic.Survey) -> None:
    found = finding(surveyed, "pareto")
    assert found.columns[1] == "exact_match, test"
    for row, subject in zip(found.rows, given, strict=True):
        assert row[0] == subject.name
        assert row[2] == subject.model.n_parameters()
    best = max(float(str(row[1])) for row in found.rows)
    assert any("parameters" in str(row[-1]) for row in found.rows if row[1] == best)


def test_at_a_tuned_threshold_quality_is_measured_with_the_cost(given: list[Subject], runs: list[Path]) -> None:
    tuned = load(runs[0], device="cpu", halting_threshold=0.0)
    changed = [replace(subject, run=tuned) if i == 0 else subject for i, subject in enumerate(given)]
    ((_, (found,)),) = logic.survey(changed, only=["pareto"]).found
    assert found.columns[1] == "token accuracy, test", "results.json has the scores of the trained threshold"


@pytest.mark.parametrize("changed", ["data.unknown=replace", "decoding.max_length=3", "task.seed=9"])
def test_with_other_settings_of_data_or_decoding_quality_is_measured(runs: list[Path], changed: str) -> None:
    given = logic.subjects([load(run, device="cpu", overrides=[changed]) for run in runs], None, 8)
    ((_, (found,)),) = logic.survey(given, only=["pareto"]).found
    assert found.columns[1] == "token accuracy, test", "results.json has the scores of the run's own settings"


def test_stored_scores_of_another_number_of_examples_are_no_common_quality(runs: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs[1], folder)
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    results["splits"]["test"]["n"] -= 1
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    given = logic.subjects([load(run, device="cpu") for run in (runs[0], folder)], None, 8)
    ((_, (found,)),) = logic.survey(given, only=["pareto"]).found
    assert found.columns[1] == "token accuracy, test"


def test_models_of_other_tokenizers_are_placed_by_what_does_not_count_labels(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"an old cat sees {i} new birds\n" for i in range(8)), encoding="utf-8")
    sizes = ["model.d_model=8", "model.decoder.n_steps=1", "model.decoder.self_attention.n_heads=2"]
    sizes += ["training.n_threads=1", "training.device=cpu", "training.n_updates=1", "training.schedule.warmup=1"]
    for kind in ("characters", "words"):
        data = [f"data.train={texts}", f"data.dev={texts}", f"data.tokenizer={{kind: {kind}}}"]
        train(load_recipe("lm/transformer", [*sizes, *data]), tmp_path / kind)
    loaded = [load(tmp_path / kind, device="cpu") for kind in ("characters", "words")]
    ((_, (found,)),) = logic.survey(logic.subjects(loaded, "dev", 8), only=["pareto"]).found
    assert found.columns[1] == "minus bits per byte, dev"
    for row, run in zip(found.rows, loaded, strict=True):
        assert row[1] == pytest.approx(-run.evaluate("dev")["bits_per_byte"])
    cut = [
        load(run.directory, device="cpu", overrides=["data.over_length=truncate", "data.max_target_length=5"])
        for run in loaded
    ]
    ((_, (found,)),) = logic.survey(logic.subjects(cut, "dev", 8), only=["pareto"]).found
    assert found.columns[1] == "sequence accuracy, dev", "labels that are cut do not say all of a text"


def test_models_of_other_vocabularies_are_not_placed_by_unknown_labels_that_they_predict(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"an old cat sees {i} new birds\n" for i in range(8)), encoding="utf-8")
    sizes = ["model.d_model=8", "model.decoder.n_steps=1", "model.decoder.self_attention.n_heads=2"]
    sizes += ["training.n_threads=1", "training.device=cpu", "training.n_updates=1", "training.schedule.warmup=1"]
    data = [f"data.train={texts}", f"data.dev={texts}", "data.unknown=replace"]
    for n in (1, 2):
        tokenizer = f"data.tokenizer={{kind: words, min_count: {n}}}"
        train(load_recipe("lm/transformer", [*sizes, *data, tokenizer]), tmp_path / str(n))
    loaded = [load(tmp_path / name, device="cpu") for name in ("1", "2")]
    surveyed = logic.survey(logic.subjects(loaded, "dev", 8), only=["pareto"])
    assert surveyed.left_out["pareto"].startswith("sequence accuracy counts unknown labels that")
    alike = logic.survey(logic.subjects([loaded[1], loaded[1]], "dev", 8), only=["pareto"])
    ((_, (found,)),) = alike.found
    assert found.columns[1] == "token accuracy, dev"


@pytest.mark.parametrize("name", [study.name for study in logic.STUDIES])
def test_an_analysis_of_a_split_without_examples_says_so(given: list[Subject], name: str) -> None:
    empty = [replace(subject, examples=[], collected={}) for subject in given]
    if name in ("learning", "spectra"):  # of records, and of weights
        assert logic.survey(empty, only=[name]).found
        return
    if name in ("self-similarity", "similarity"):  # which need several
        assert list(logic.survey(empty, only=[name]).left_out) == [name]
        return
    with pytest.raises(DataError, match=f"^{empty[0].name}: {empty[0].split}: there are no examples to analyse$"):
        logic.survey(empty, only=[name])


def test_places_are_marked_where_tokens_are_words(subject: Subject) -> None:
    text = subject.examples[0].source
    assert text is not None
    marked = [Example(text, "", {MARKS: [0, 10**6]}), Example(text, ""), Example(text, "", {MARKS: "no list"})]
    found = Subject("marked", subject.run, marked).marks()
    assert found == {0: [0]}


def test_of_a_source_that_is_cut_the_places_that_are_left_are_marked(subject: Subject) -> None:
    def marks(model: object, source: str, places: list[int]) -> list[int]:
        recipe = SimpleNamespace(data=DataConfig(max_source_length=3, over_length="truncate"))
        run: Any = SimpleNamespace(model=model, tokenizers=subject.run.tokenizers, recipe=recipe)
        return Subject("cut", run, [Example(source, "", {MARKS: places})]).marks()[0]

    words = " ".join(str(subject.examples[0].source).split()[:1] * 5)
    assert marks(subject.model, words, [1, 2, 4]) == [1], "column 2 is the end symbol"
    # Of facts the last ones are kept, the question among them.
    of_facts = SimpleNamespace(config=SimpleNamespace(max_words=4))
    assert marks(of_facts, "a\tb\tc\td\te", [1, 2, 4]) == [0, 2]
    assert marks(of_facts, "a\tb\tc", [0, 2, 3]) == [0, 2]


def test_only_decimal_digits_are_numbers_in_the_order_of_categories() -> None:
    found = sorted(["x", "\N{SUPERSCRIPT TWO}", "10", "2-3", "1.5"], key=natural_order)
    assert found == ["1.5", "2-3", "10", "x", "\N{SUPERSCRIPT TWO}"]
