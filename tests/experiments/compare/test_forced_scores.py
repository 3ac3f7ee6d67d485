"""Language models of texts, which write nothing, compared by their teacher-forced scores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ostinato.cli import main
from ostinato.errors import ConfigError
from ostinato.evaluation.loading import load
from ostinato.experiments.compare.paired import compare
from ostinato.experiments.compare.paired_tables import notes, score_table
from ostinato.experiments.compare.systems import Choices, open_systems
from ostinato.experiments.results import run_row, table
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train

N = 12
SETTINGS = [
    *("model.d_model=8", "model.decoder.n_steps=1", "model.decoder.self_attention.n_heads=2"),
    *("training.n_threads=1", "training.device=cpu", "training.schedule.warmup=1"),
]
CHOICES = {"n_samples": 200, "device": "cpu"}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of texts and of runs on them: little and much trained, of another tokenizer, and of blocks."""
    folder = tmp_path_factory.mktemp("texts")
    text = "".join(f"{'an old cat sees a new bird ' * (1 + i % 3)}{i}\n" for i in range(N))
    (folder / "texts.txt").write_text(text, encoding="utf-8")
    # The same words, the last of them the most frequent.
    (folder / "reordered.txt").write_text(f"{text}{f'{N - 1} ' * 100}\n", encoding="utf-8")
    for name, *settings in (
        ("little", "training.n_updates=1"),
        ("much", "training.n_updates=20"),
        ("characters", "training.n_updates=1", "data.tokenizer={kind: characters}"),
        ("frequent", "training.n_updates=1", "data.tokenizer={kind: words, min_count: 2}", "data.unknown=replace"),
        ("reordered", "training.n_updates=1", f"data.train={folder / 'reordered.txt'}"),
        ("blocks", "training.n_updates=1", "data.block_length=16"),
    ):
        data = [
            f"data.train={folder / 'texts.txt'}",
            f"data.dev={folder / 'texts.txt'}",
            "data.tokenizer={kind: words}",
        ]
        train(load_recipe("lm/transformer", [*SETTINGS, *data, *settings]), folder / name)
    return folder


def test_the_scores_are_those_of_the_evaluation_with_intervals_over_the_texts(texts: Path) -> None:
    names = ["loss", "perplexity", "bits_per_byte", "word_perplexity", "token_accuracy", "sequence_accuracy_forced"]
    rows = compare([texts / "little", texts / "much"], Choices(metrics=names, **CHOICES))
    for row in rows:
        evaluated = load(texts / row["system"], device="cpu").evaluate("dev")
        assert row["n"] == N
        for name in names:
            found = row["metrics"][name]
            assert found["value"] == pytest.approx(evaluated[name], rel=1e-12)
            assert found["low"] <= found["value"] <= found["high"]
    loss = rows[1]["metrics"]["loss"]
    assert loss["verdict"] == "lower"
    assert loss["difference"]["high"] < 0
    assert loss["difference"]["value"] == pytest.approx(loss["value"] - rows[0]["metrics"]["loss"]["value"])
    assert rows[0]["decoding"] is None
    assert score_table(rows)[0][3:5] == ["loss", "loss - reference"]
    lower = "Lower is better: loss, perplexity, bits_per_byte, word_perplexity."
    assert lower in notes(rows)


def test_without_a_metric_runs_are_compared_by_what_all_of_them_have(texts: Path) -> None:
    alike = compare([texts / "little", texts / "much"], Choices(**CHOICES))
    assert list(alike[0]["metrics"]) == ["perplexity", "word_perplexity", "bits_per_byte"]
    others = compare([texts / "little", texts / "characters"], Choices(**CHOICES))
    assert list(others[0]["metrics"]) == ["word_perplexity", "bits_per_byte"]


def test_as_many_labels_of_another_vocabulary_are_others(texts: Path) -> None:
    for metric in ("loss", "perplexity", "token_accuracy"):
        choices = Choices(splits=["dev"], metrics=[metric], **CHOICES)
        with pytest.raises(
            ConfigError, match=f"metrics is '{metric}': is a mean over labels, and these runs have other"
        ):
            compare([texts / "little", texts / "frequent"], choices)
        # The numbers of the words do not matter.
        (_, row) = compare([texts / "little", texts / "reordered"], choices)
        assert row["metrics"][metric]["verdict"]


def test_an_accuracy_that_counts_unknown_labels_is_not_compared_between_vocabularies(texts: Path) -> None:
    chosen = Choices(splits=["dev"], metrics=["sequence_accuracy_forced"], **CHOICES)
    expected = "metrics is 'sequence_accuracy_forced': counts unknown labels .*, and these runs' vocabularies differ: "
    with pytest.raises(ConfigError, match=expected):
        compare([texts / "little", texts / "frequent"], chosen)
    assert load(texts / "frequent", device="cpu").tokenizers.target.vocab_size < 12
    for path in (texts / "frequent", texts / "little"):  # one vocabulary
        assert compare([path, path], chosen)
    assert compare([texts / "little", texts / "characters"], chosen), "which know all words"


def test_what_cannot_be_compared_is_said(texts: Path, tmp_path: Path) -> None:
    file = tmp_path / "outputs.jsonl"
    file.write_text('{"index": 0, "prediction": "a", "reference": "b"}\n', encoding="utf-8")
    for others, metric, expected in (
        (["characters"], "loss", "a mean over labels, and these runs have other labels"),
        (["blocks"], "loss", "packs texts into blocks"),
        ([file], "loss", "is teacher-forced, which needs a model"),
        (["much"], "exact_match", "texts have no source to decode from"),
        (["much"], "lossy", "lossy"),
    ):
        paths = [texts / "little", *(texts / other for other in others)]
        with pytest.raises(ConfigError, match=expected):
            compare(paths, Choices(splits=["dev"], metrics=[metric], **CHOICES))


def test_the_forced_score_that_a_task_is_reported_by_is_tabled_and_compared_beside_its_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["task.n_train=40", "task.n_eval=9", "model.d_model=16", "training.n_updates=1", "training.n_threads=1"]
    run, file = tmp_path / "run", tmp_path / "outputs.jsonl"
    train(load_recipe("parity/transformer", [*sizes, "training.device=cpu"]), run)
    assert {"tag_accuracy", "sequence_accuracy_forced"} < set(table([run_row(run)])[0])
    chosen = Choices(splits=["test"], **CHOICES)
    with pytest.raises(SystemExit):
        main(["evaluate", str(run), "--split", "long", "--by", "length"])
    (names, *_) = capsys.readouterr().out.split("long by length")[1].splitlines()
    assert names.split() == ["n", "loss", "token_accuracy", "sequence_accuracy_forced", "tag_accuracy"]
    (row,) = compare([run], chosen)
    assert list(row["metrics"]) == ["tag_accuracy", "sequence_accuracy_forced"]
    named = tmp_path / "named"
    train(
        load_recipe("parity/transformer", [*sizes, "training.device=cpu", "evaluation.metrics=[tag_accuracy]"]), named
    )
    assert list(compare([named], chosen)[0]["metrics"]) == ["tag_accuracy"], "all that its recipe names"
    tags = open_systems([run])[0].references("test", chosen)
    file.write_text(
        "".join(json.dumps({"index": i, "prediction": "", "reference": one}) + "\n" for i, one in enumerate(tags))
    )
    rows = compare([run, file], chosen)
    assert [list(row["metrics"]) for row in rows] == [["tag_accuracy"]] * 2, "a file of outputs has no model"
