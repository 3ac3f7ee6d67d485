from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from ostinato.cli import main

TINY = """
task: {kind: algorithmic, operation: reverse, max_length: 5, long_max_length: 8, n_train: 60, n_eval: 8, bucket: 4}
model:
  d_model: 8
  encoder: {n_steps: 2, self_attention: {n_heads: 2, share: all}, ffn: {d_ff: 8, share: all}}
  decoder:
    n_steps: 2
    self_attention: {n_heads: 2, share: all}
    cross_attention: {n_heads: 2, share: all}
    ffn: {d_ff: 8, share: all}
training: {n_updates: 4, evaluate_every: 2, save_every: 2, log_every: 2, schedule: {warmup: 2}, device: cpu}
decoding: {max_length: 6}
evaluation: {splits: [test, long]}
"""


def call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return int(caught.value.code or 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe, tiny.yaml, and a run trained on it, run."""
    folder = tmp_path_factory.mktemp("end-to-end")
    (folder / "tiny.yaml").write_text(TINY, encoding="utf-8")
    assert call("train", folder / "tiny.yaml", "seed=3", "--run-dir", folder / "run") == 0
    return folder


def test_training_leaves_a_run_with_results(run, folder: Path) -> None:
    results = json.loads((folder / "run" / "results.json").read_text(encoding="utf-8"))
    assert (results["n_updates"], results["seed"]) == (4, 3)
    assert set(results["splits"]) == {"test", "long"}
    assert "seed: 3" in (folder / "run" / "recipe.yaml").read_text(encoding="utf-8")


def test_a_run_is_repeated_from_its_own_recipe(run, folder: Path, tmp_path: Path) -> None:
    outcome = run("train", folder / "run" / "recipe.yaml", "--run-dir", tmp_path / "again", "--json")
    assert outcome.code == 0
    first = json.loads((folder / "run" / "results.json").read_text(encoding="utf-8"))
    again = json.loads(outcome.out)
    assert again["splits"]["long"]["loss"] == first["splits"]["long"]["loss"]
    metrics = [(path / "metrics.jsonl").read_bytes() for path in (folder / "run", tmp_path / "again")]
    assert metrics[0] == metrics[1]


def test_a_finished_run_is_not_overwritten_and_resuming_it_gives_its_results(run, folder: Path) -> None:
    again = ["train", folder / "tiny.yaml", "seed=3", "--run-dir", folder / "run"]
    outcome = run(*again)
    assert outcome.code == 2
    assert "already holds a run" in outcome.err
    resumed = run(*again, "--resume")
    assert resumed.code == 0
    assert "score" in resumed.out
    assert run("train", folder / "run", "--resume", "--json").code == 0
    other = run(*again, "--resume", "training.optimizer.lr=0.5")
    assert other.code == 2
    assert "training.optimizer.lr" in other.err


def test_training_without_a_terminal_writes_plain_lines(run, folder: Path, tmp_path: Path) -> None:
    outcome = run("train", folder / "tiny.yaml", "training.n_updates=2", "--run-dir", tmp_path / "plain")
    assert outcome.out.startswith(f"run directory: {tmp_path / 'plain'}\n")
    assert "update 2/2  loss " in outcome.out
    assert "\x1b" not in outcome.out
    assert "not scored" not in outcome.out


def test_training_names_the_splits_that_are_not_scored(run, folder: Path, tmp_path: Path) -> None:
    outcome = run(
        "train", folder / "tiny.yaml", "evaluation.splits=[dev]", "training.n_updates=2", "--run-dir", tmp_path / "a b"
    )
    said = f"not scored (evaluation.splits): test, long; ostinato evaluate '{tmp_path / 'a b'}' --split test\n"
    assert said in outcome.out


def test_evaluation_scores_splits_and_writes_predictions(run, folder: Path, tmp_path: Path) -> None:
    outcome = run("evaluate", folder / "run", "--split", "long", "--predictions", tmp_path / "p.jsonl", "--json")
    (scores,) = json.loads(outcome.out).values()
    results = json.loads((folder / "run" / "results.json").read_text(encoding="utf-8"))
    assert scores["loss"] == pytest.approx(results["splits"]["long"]["loss"], rel=1e-6)
    records = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text(encoding="utf-8").splitlines()]
    right = [record["prediction"] == record["reference"] for record in records]
    assert len(records) == scores["n"] == 8
    assert scores["exact_match"] == sum(right) / 8
    text = run("evaluate", folder / "run").out
    assert "long by length_bucket" in text
    assert "token_accuracy_free" in text


def test_a_beam_that_searched_nothing_is_told(run, tmp_path: Path) -> None:
    for split, n in (("train", 40), ("dev", 4)):
        (tmp_path / f"{split}.txt").write_text("a text of five words\n" * n, encoding="utf-8")
    data = [f"data.{split}={tmp_path / split}.txt" for split in ("train", "dev")]
    sizes = ["model.d_model=8", "model.decoder.self_attention.n_heads=2", "training.n_updates=1"]
    words = ["data.tokenizer.kind=words", "training.device=cpu", "--run-dir", tmp_path / "run"]
    assert run("train", "lm/transformer", *data, *sizes, *words).code == 0
    outcome = run("evaluate", tmp_path / "run", "--beam", 4, "--json")
    assert (outcome.code, json.loads(outcome.out)["dev"]["n"]) == (0, 4)
    assert outcome.err.endswith("--beam: no metric reads what the model writes: nothing was decoded\n")
    assert "nothing was decoded" not in run("evaluate", tmp_path / "run").err


def test_evaluation_takes_depth_beam_columns_and_metrics(run, folder: Path) -> None:
    def scores(*options: object) -> dict[str, object]:
        outcome = run("evaluate", folder / "run", "--split", "test", *options, "--json")
        assert outcome.code == 0, outcome.err
        found: dict[str, object] = json.loads(outcome.out)["test"]
        return found

    plain, deep = scores(), scores("--n-steps", 5)
    assert (plain["n_steps"], deep["n_steps"]) == (None, 5)
    assert deep["loss"] != plain["loss"]
    assert scores("--beam", 2, "--max-examples", 3)["decoding"]["beam"] == 2  # type: ignore[index]
    chosen = scores("--metric", "exact_match", "--by", "length", "--checkpoint", "last")
    assert "token_accuracy_free" not in chosen
    assert set(chosen["by"]) == {"length"}  # type: ignore[call-overload]


@pytest.mark.slow
def test_the_threshold_of_halting_is_changed_after_training(run, folder: Path, tmp_path: Path) -> None:
    settings = ["model.encoder.halting.kind=act", "model.decoder.halting.kind=stick_breaking", "training.n_updates=2"]
    where = tmp_path / "halting"
    assert run("train", folder / "tiny.yaml", *settings, "training.halting.weight=0.01", "--run-dir", where).code == 0
    options = ["--split", "test", "--by", "length", "--json"]
    own = json.loads(run("evaluate", where, *options).out)["test"]
    assert own["halting_threshold"] == {"encoder": 0.99, "decoder": 0.999}
    halted = json.loads(run("evaluate", where, *options, "--halting-threshold", 0).out)["test"]
    assert halted["halting_threshold"] == {"encoder": 0.0, "decoder": 0.0}
    assert halted["depth"] == {"encoder": 1.0, "decoder": 1.0}
    assert own["depth"]["decoder"] == 2.0
    assert all(scores["halting"]["decoder"]["mean"] == 1.0 for scores in halted["by"]["length"].values())
    (tmp_path / "lines").write_text("1 2 3\n", encoding="utf-8")
    generated = run("generate", where, tmp_path / "lines", "--halting-threshold", 0, "--json")
    assert (generated.code, json.loads(generated.out)["source"]) == (0, "1 2 3")
    outcome = run("generate", where, tmp_path / "lines", "--halting-threshold", 2)
    assert outcome.code == 2
    assert "halting_threshold is 2.0: must lie in [0, 1]" in outcome.err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--split", "gen"], "split is 'gen': the task algorithmic has the splits train, dev, test, long"),
        (["--checkpoint", "update-9"], "update-9 is no checkpoint of"),
        (["--metric", "blue"], "must be one of exact_match"),
        (["--predictions", "p.jsonl"], "there are 2 splits: choose one with --split"),
        (["--device", "abacus"], "device is 'abacus'"),
        (["--halting-threshold", 0.5], "halting_threshold is 0.5: no token of this model can halt"),
    ],
)
def test_what_cannot_be_evaluated_is_said_with_exit_code_two(
    run, folder: Path, options: list[str], expected: str
) -> None:
    outcome = run("evaluate", folder / "run", *options)
    assert outcome.code == 2
    assert expected in outcome.err


def test_evaluating_a_run_whose_recipe_names_no_split_asks_for_one(run, folder: Path, tmp_path: Path) -> None:
    settings = ["evaluation.splits=[]", "training.n_updates=1", "--run-dir", tmp_path / "run"]
    assert run("train", folder / "tiny.yaml", *settings).code == 0
    outcome = run("evaluate", tmp_path / "run")
    assert outcome.code == 2
    assert "names no split" in outcome.err


def test_generation_answers_line_by_line(run, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"1 2 3\n4 5\n")))
    piped = run("generate", folder / "run", "--beam", 2, "--window", 1)
    assert piped.code == 0
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    files[0].write_text("1 2 3\n", encoding="utf-8")
    files[1].write_text("4 5", encoding="utf-8")
    from_files = run("generate", folder / "run", *files, "--beam", 2)
    assert from_files.out.splitlines() == piped.out.splitlines()
    assert len(piped.out.splitlines()) == 2
    records = [json.loads(line) for line in run("generate", folder / "run", *files, "--json").out.splitlines()]
    assert [record["source"] for record in records] == ["1 2 3", "4 5"]
    assert all(record["score"] < 0 for record in records)


def test_a_line_that_cannot_be_read_does_not_stop_the_others(run, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("1 2\nx 2\n3 4\n", encoding="utf-8")
    outcome = run("generate", folder / "run", path)
    assert outcome.code == 1
    assert outcome.err.startswith(f"{path}, line 2: 'x' is not among")
    lines = outcome.out.split("\n")
    assert (len(lines), lines[1]) == (4, "")
    records = [json.loads(line) for line in run("generate", folder / "run", path, "--json").out.splitlines()]
    assert ["error" in record for record in records] == [False, True, False]


def test_a_missing_input_file_is_one_line(run, folder: Path) -> None:
    outcome = run("generate", folder / "run", folder / "gone.txt")
    assert (outcome.code, outcome.err) == (2, f"{folder / 'gone.txt'}: no such file\n")


def test_a_line_that_is_not_utf8_keeps_its_place(
    run, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"1 2\n1 \xff\n3 4\n")
    outcome = run("generate", folder / "run", path)
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert [bool(line) for line in outcome.out.splitlines()] == [True, False, True]
    assert outcome.err.startswith(f"{path}, line 2: not UTF-8 at byte 3")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes()), encoding="latin-1"))
    piped = run("generate", folder / "run")
    assert piped == (1, outcome.out, outcome.err.replace(str(path), "standard input"))


def test_a_longest_output_holds_whatever_the_recipe_adds_for_long_sources(run, folder: Path, tmp_path: Path) -> None:
    ratio = ["decoding.max_length=0", "decoding.max_length_ratio=2.0", "--run-dir", tmp_path / "run"]
    assert run("train", folder / "tiny.yaml", "training.n_updates=1", *ratio).code == 0
    (tmp_path / "a.txt").write_text("1 2 3 4 5\n", encoding="utf-8")
    given = ["generate", tmp_path / "run", tmp_path / "a.txt", "--json"]
    free, cut = (json.loads(run(*given, *more).out) for more in ([], ["--max-length", 1]))
    assert free["n_tokens"] > 1
    assert cut["n_tokens"] == 1


def test_a_language_model_of_ones_own_text(run, tmp_path: Path) -> None:
    for name in ("train", "dev"):
        (tmp_path / f"{name}.txt").write_text("a b c d\nb c d a\nc d a b\n", encoding="utf-8")
    settings = [f"data.{name}={tmp_path / name}.txt" for name in ("train", "dev")]
    settings += ["data.tokenizer.kind=words", "model.d_model=8", "model.decoder.ffn.d_ff=8", "training.n_updates=2"]
    settings += ["model.decoder.n_steps=1", "model.decoder.self_attention.n_heads=2", "training.device=cpu"]
    outcome = run("train", "lm/transformer", *settings, "--run-dir", tmp_path / "lm", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["splits"]["dev"]["perplexity"] > 1
    (tmp_path / "prompt.txt").write_text("a b\n", encoding="utf-8")
    generated = run("generate", tmp_path / "lm", tmp_path / "prompt.txt", "--max-length", 3)
    assert generated.code == 0, generated.err
    assert len(generated.out.split()) <= 3


def test_predictions_go_to_a_new_plain_file_and_that_is_said_before_the_run_is_read(
    run, folder: Path, tmp_path: Path
) -> None:
    path, link = tmp_path / "p.jsonl", tmp_path / "link"
    link.symlink_to(path)
    path.write_text("my notes\n", encoding="utf-8")
    evaluate = ["evaluate", folder / "run", "--split", "test", "--max-examples", 2, "--json"]
    for given, expected in (
        ([path], "is there already; --overwrite"),
        ([path, "--overwrite"], "was not written by this command"),
        ([link, "--overwrite"], "is a link"),
    ):
        for where in (folder / "run", tmp_path / "no-run"):
            outcome = run("evaluate", where, "--predictions", *given)
            assert (outcome.code, outcome.err.count("\n")) == (2, 1)
            assert f"{given[0]}: {expected}" in outcome.err
    assert path.read_text(encoding="utf-8") == "my notes\n"
    path.unlink()
    link.unlink()
    assert run(*evaluate, "--predictions", path).code == 0
    assert run(*evaluate, "--predictions", path).code == 2
    assert run(*evaluate, "--predictions", path, "--overwrite").code == 0
    assert len(path.read_text(encoding="utf-8").splitlines()) == 2


def test_rows_are_not_written_over_a_file(run, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert run("table", folder / "run", "--jsonl", path).code == 0
    before = path.read_bytes()
    for command in (["table", folder / "run"], ["compare", folder / "run", folder / "run"]):
        outcome = run(*command, "--jsonl", path)
        assert (outcome.code, path.read_bytes()) == (2, before)
        assert "--overwrite" in outcome.err
    assert run("table", folder / "run", "--jsonl", path, "--overwrite").code == 0
