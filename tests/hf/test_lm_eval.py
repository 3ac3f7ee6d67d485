"""lm-eval scores runs as `ostinato evaluate` does: the same accuracies and log-likelihoods."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs the extra hf")
pytest.importorskip("lm_eval", reason="needs the extra lm-eval")

import runs
import torch

import ostinato
from ostinato.cli import main
from ostinato.data.batching import evaluation_batches
from ostinato.data.example import Example
from ostinato.data.rows import encode_rows
from ostinato.errors import ConfigError, DataError, OstinatoError
from ostinato.evaluation.loading import LoadedRun
from ostinato.evaluation.scores import score_sentences
from ostinato.hf.export import export_run
from ostinato.hf.harness import RunInHarness, score
from ostinato.hf.harness_tasks import write_tasks

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

WORDS = ["the", "old", "man", "and", "sea,", "one", "two", "three", *"abcdefuvwxyz"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what the library of data sets stores in the test's folder."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


def lines(file: Path, rows: list[dict[str, Any]]) -> str:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(file)


def pieces(n: int) -> list[list[str]]:
    """Return sentences of words that the runs' tokenizers know, no two alike in length and words."""
    return [[WORDS[(i * 7 + j * (i % 3 + 1)) % len(WORDS)] for j in range(3 + i % 5)] for i in range(n)]


def everywhere(file: str) -> list[str]:
    return [f"data.{split}={file}" for split in ("train", "dev", "test")]


def lambada(folder: Path) -> list[str]:
    rows = [{"source": " ".join(words[:-1]), "target": words[-1]} for words in pieces(24)]
    file = lines(folder / "lambada.jsonl", rows)
    return ["task={kind: lambada}", *everywhere(file)]


def minimal_pairs(folder: Path) -> list[str]:
    rows = [
        {"source": " ".join(words[:-2]), "target": words[-2], "wrong": words[-1], "n_attractors": len(words) % 2}
        for words in pieces(24)
    ]
    file = lines(folder / "pairs.jsonl", rows)
    return ["task={kind: agreement, origin: files, train_form: prefixes}", *everywhere(file)]


def labels(folder: Path) -> list[str]:
    rows = [{"source": " ".join(words[:-1]), "target": ["one", "two", "three"][len(words) % 3]} for words in pieces(24)]
    file = lines(folder / "labels.jsonl", rows)
    task = "task={kind: classification, choices: [one, two, three]}"
    return [task, *everywhere(file)]


def pairs(folder: Path) -> list[str]:
    rows = [{"source": " ".join(words[:-2]), "target": " ".join(words[-2:])} for words in pieces(12)]
    return everywhere(lines(folder / "files.jsonl", rows))


def log_likelihoods(run: LoadedRun, task: Path, n_steps: int | None) -> list[float]:
    """Return log p of every target and choice of a task's documents, by our own rows and model."""
    examples = []
    for line in task.with_suffix(".jsonl").read_text().splitlines():
        document = json.loads(line)
        for text in document.get("choices", [document.get("continuation")]):
            source = document["context"].removesuffix("<eos><bos>")
            examples.append(Example(source, text.removesuffix("<eos>").strip(), continues="<eos>" not in text))
    rows = encode_rows(examples, run.tokenizers, run.recipe.data, run.model.config, training=False, name="x")
    found = [0.0] * len(examples)
    for batch in evaluation_batches(rows, 512):
        scores = score_sentences(run.model(batch, n_steps=n_steps).logits_BTV, batch.labels_BT, batch.loss_mask_BT)
        for index, one in zip(batch.indices, scores, strict=True):
            found[index] = -one.nll
    return found


CASES: list[tuple[str, Any, list[str], dict[str, Any], int | None]] = [
    ("looped", lambada, [], {}, None),
    ("looped", lambada, ["data.tokenizer={kind: bpe, vocab_size: 300}"], {}, 2),
    ("halting", minimal_pairs, [], {"halting_threshold": 0.4}, None),
    ("experts", minimal_pairs, [], {}, None),
    ("pairs", labels, [], {"halting_threshold": 0.3}, 2),
    ("looped", labels, [], {}, None),
    ("pairs", pairs, [], {}, None),
    # Both sides in one sequence, longer than the limit of each.
    ("looped", pairs, ["task.model_kind=seq2seq", "data.max_source_length=7", "data.max_target_length=7"], {}, None),
]


@pytest.mark.parametrize(("name", "data", "more", "how", "n_steps"), CASES)
def test_scores_and_log_likelihoods_are_those_of_evaluate(
    name: str, data: Any, more: list[str], how: dict[str, Any], n_steps: int | None, tmp_path: Path
) -> None:
    runs.make_run(name, tmp_path / "run", *more)
    run = ostinato.load(tmp_path / "run", overrides=[*data(tmp_path), "data.block_length=null"], **how)
    files = write_tasks(run, tmp_path / "tasks", ["test"])
    found = score(run, [str(file) for file in files], n_steps=n_steps)
    (task,) = found["results"]
    ours = run.evaluate("test", n_steps=n_steps, metrics=[])
    if "ranking" in ours:
        assert found["results"][task]["acc,none"] == pytest.approx(ours["ranking"]["accuracy"], abs=1e-12)
        assert 0 < ours["ranking"]["accuracy"] < 1
    else:
        assert found["results"][task]["acc,none"] == pytest.approx(ours["sequence_accuracy_forced"], abs=1e-12)
    samples = sorted(found["samples"][task], key=lambda one: one["doc_id"])
    assert len(samples) == ours["n"]
    theirs = [response[0][0] for sample in samples for response in sample["resps"]]
    assert theirs == pytest.approx(log_likelihoods(run, files[0], n_steps), abs=1e-4)
    assert len({round(value, 3) for value in theirs}) > 3


def test_texts_have_an_accuracy_and_are_not_cut(tmp_path: Path) -> None:
    runs.make_run("looped", tmp_path / "run")
    long = [" ".join(WORDS[(i * 7 + j * (i + 1)) % len(WORDS)] for j in range(400)) for i in range(2)]
    file = lines(tmp_path / "texts.jsonl", [{"text": text} for text in [*long, "the"]])
    settings = [*everywhere(file), "data.block_length=null", "data.over_length=truncate"]
    run = ostinato.load(tmp_path / "run", overrides=[*settings, "data.max_target_length=401"])
    (task,) = write_tasks(run, tmp_path / "tasks", ["test"])
    found = score(run, [str(task)])
    assert found["samples"][task.stem][0]["resps"][0][0][0] < -710  # no float holds exp of its negative
    ours = run.evaluate("test")
    assert found["results"][task.stem]["acc,none"] == ours["sequence_accuracy_forced"]
    assert "perplexity,none" not in found["results"][task.stem]
    run = ostinato.load(tmp_path / "run", overrides=[*settings, "data.max_target_length=400"])
    with pytest.raises(
        DataError, match=r"^test: example 1: the target has 401 tokens.*_length is 400: raise data\.max_"
    ):
        write_tasks(run, tmp_path / "refused", ["test"])
    assert run.evaluate("test")["n"] == 3


@pytest.mark.parametrize("symbol", ["<pad>", "<bos>", "<eos>", "<unk>"])
@pytest.mark.parametrize("data", ["text", "source", "target"])
def test_texts_with_names_of_special_symbols_are_refused(data: str, symbol: str, tmp_path: Path) -> None:
    name, first = ("language-model", {}) if data == "text" else ("pairs", {"source": "a", "target": "b"})
    runs.make_run(name, tmp_path / "run", "data.tokenizer={kind: bpe, vocab_size: 300}")
    file = lines(tmp_path / "data.jsonl", [first | {data: "the man"}, first | {data: f"the {symbol} man"}])
    run = ostinato.load(tmp_path / "run", overrides=[*everywhere(file), "data.block_length=null"])
    assert RunInHarness(run).tok_encode("the man", add_special_tokens=False) == run.tokenizers.source.encode("the man")
    expected = f"^test: example 2: it has '{symbol}', which lm-eval reads as a special symbol, .* text: remove it$"
    with pytest.raises(DataError, match=expected):
        write_tasks(run, tmp_path / "tasks", ["test"])


def test_the_command_prints_what_evaluate_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs.make_run("halting", tmp_path / "run")
    files = lambada(tmp_path)
    settings = [part for file in files[1:] for part in ("--set", file)] + ["--set", "data.block_length=null"]
    recipe = (tmp_path / "run" / "recipe.yaml").read_text()
    (tmp_path / "run" / "recipe.yaml").write_text(recipe.replace("kind: files", "kind: lambada").replace(
        "  model_kind: language_model\n", "").replace("  documents: files\n", ""))  # fmt: skip
    arguments = ["lm-eval", str(tmp_path / "run"), "--split", "test", *settings, "n_steps=2", "halting_threshold=0.5"]
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main([*arguments, "batch_size=5", "--json"])
    assert end.value.code in (0, None)
    found = json.loads(capsys.readouterr().out)["ostinato_lambada_test"]
    run = ostinato.load(tmp_path / "run", overrides=[*files[1:], "data.block_length=null"], halting_threshold=0.5)
    ours = run.evaluate("test", n_steps=2)
    assert found["n"] == ours["n"] == 24
    assert found["perplexity,none"] == pytest.approx(ours["word_perplexity"], rel=1e-4)
    assert found["acc,none"] == pytest.approx(ours["sequence_accuracy_forced"])
    for wrong, line in (
        ("depth=2", "must be KEY=VALUE with a KEY of n_steps, halting_threshold"),
        ("n_steps=x", "'x' is no int"),
    ):
        with pytest.raises(SystemExit) as end:
            main([*arguments, wrong])
        assert end.value.code == 2
        assert line in " ".join(capsys.readouterr().err.split())


ALONE: list[tuple[str, Any, str, dict[str, Any]]] = [
    ("halting", minimal_pairs, "", {"n_steps": 2, "halting_threshold": 0.4}),
    ("pairs", pairs, "backend=seq2seq", {}),
    ("looped", labels, "add_bos_token=False", {}),
]
"""Runs, data, what the guide says of arguments, and how the model runs."""


@pytest.mark.parametrize(("name", "data", "argument", "how"), ALONE)
def test_its_own_program_scores_an_exported_folder_with_its_code(
    name: str, data: Any, argument: str, how: dict[str, Any], tmp_path: Path
) -> None:
    runs.make_run(name, tmp_path / "run")
    threshold = how.get("halting_threshold")
    run = ostinato.load(
        tmp_path / "run", overrides=[*data(tmp_path), "data.block_length=null"], halting_threshold=threshold
    )
    export_run(ostinato.load(tmp_path / "run"), tmp_path / "model")
    (file,) = write_tasks(run, tmp_path / "tasks", ["test"])
    settings = [argument] * bool(argument) + [f"{key}={value}" for key, value in how.items()]
    model = ",".join([f"pretrained={tmp_path / 'model'}", "trust_remote_code=True", *settings])
    command = [sys.executable, "-m", "lm_eval", "--model", "hf", "--model_args", model, "--tasks", file.stem,
               "--include_path", str(file.parent), "--device", "cpu", "--batch_size", "8", "--log_samples",
               "--output_path", str(tmp_path / "out.json")]  # fmt: skip
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment)
    assert done.returncode == 0, done.stderr
    (written,) = tmp_path.glob("out*.json")
    found = json.loads(written.read_text())["results"][file.stem]
    ours, n_steps = run.evaluate("test", n_steps=how.get("n_steps"), metrics=[]), how.get("n_steps")
    expected = ours["ranking"]["accuracy"] if "ranking" in ours else ours["sequence_accuracy_forced"]
    assert found["acc,none"] == pytest.approx(expected)
    (logged,) = tmp_path.glob("samples*.jsonl")
    samples = sorted(map(json.loads, logged.read_text().splitlines()), key=lambda one: one["doc_id"])
    theirs = [float(response[0][0]) for sample in samples for response in sample["resps"]]
    assert theirs == pytest.approx(log_likelihoods(run, file, n_steps), abs=1e-4)
    if n_steps is not None:
        assert theirs != pytest.approx(log_likelihoods(run, file, None), abs=1e-2)


def task_file(folder: Path, kind: str, *more: str, target: str = "text") -> str:
    """Write a task of the texts that the runs know, of a kind of output, and return its file."""
    texts = runs.TEXTS[:3]
    data = lines(folder / "texts.jsonl", [{"text": text, "start": " ".join(text.split()[:3])} for text in texts])
    start = "start" if kind == "generate_until" else "''"
    file = folder / f"{kind}.yaml"
    settings = [f"task: {kind}", f"output_type: {kind}", f"doc_to_text: {start}", f"doc_to_target: {target}",
                "target_delimiter: ''", "dataset_path: json", f"dataset_kwargs: {{data_files: {{test: {data}}}}}",
                "test_split: test", "num_fewshot: 0", *more]  # fmt: skip
    file.write_text("\n".join(settings))
    return str(file)


def test_rolling_log_likelihoods_are_those_of_the_texts_behind_one_begin_symbol(tmp_path: Path) -> None:
    run = runs.make_run("looped", tmp_path / "run", "data.max_target_length=64")
    rolling = task_file(tmp_path, "loglikelihood_rolling", "metric_list: [{metric: word_perplexity}]")
    at_once = task_file(tmp_path, "loglikelihood", "metric_list: [{metric: perplexity}]")
    found = score(run, [rolling, at_once])["samples"]
    theirs = [sample["resps"][0][0] for sample in found["loglikelihood_rolling"]]
    assert theirs == pytest.approx([sample["resps"][0][0][0] for sample in found["loglikelihood"]], abs=1e-4)
    bos = run.model.special_ids.bos
    for text, log_likelihood in zip(runs.TEXTS, theirs, strict=False):
        ids = torch.tensor([[bos, *run.tokenizers.target.encode(text)]])
        with torch.no_grad():
            logs = run.model(ids).logits_BTV[:, :-1].log_softmax(-1)
        assert log_likelihood == pytest.approx(float(logs.gather(2, ids[:, 1:, None]).sum()), abs=1e-4)


def test_a_task_says_how_long_outputs_are(tmp_path: Path) -> None:
    run = runs.make_run("looped", tmp_path / "run", "data.max_target_length=64", "decoding.max_length=12",
                        "model.output={bias: true}")  # fmt: skip
    with torch.no_grad():  # no output ends
        run.model.output_bias[run.model.special_ids.eos] = -100.0
    kwargs = "generation_kwargs: {until: ['\\n'], max_gen_toks: 30}"
    task = task_file(tmp_path, "generate_until", "metric_list: [{metric: exact_match}]", kwargs)
    for sample in score(run, [task])["samples"]["generate_until"]:
        assert len(sample["resps"][0][0].split()) == 30


@pytest.mark.parametrize("longest", [1, 4])
def test_sources_are_cut_to_their_own_limit_for_whatever_they_are_read(longest: int, tmp_path: Path) -> None:
    run = runs.make_run("pairs", tmp_path / "run", f"data.max_source_length={longest}", "data.max_target_length=64")
    harness, text = RunInHarness(run), runs.TEXTS[0]
    whole = [*run.tokenizers.source.encode(text), run.model.special_ids.eos]
    assert harness.tok_encode(text) == whole[-longest:] != whole
    ids_BS, mask_BS = harness.tok_batch_encode([text, text], left_truncate_len=64)
    assert ids_BS.tolist() == [whole[-longest:]] * 2
    assert mask_BS.shape == ids_BS.shape


def test_a_split_is_of_the_runs_own_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["lm-eval", str(tmp_path), "--tasks", "mine.yaml", "--split", "gen"])
    assert end.value.code == 2
    assert "is for the run's own task" in capsys.readouterr().err


def test_the_runs_own_task_shows_no_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["lm-eval", str(tmp_path), "num_fewshot=5"])
    assert end.value.code == 2
    assert "the run's own task shows no examples" in " ".join(capsys.readouterr().err.split())


def test_splits_of_any_names_have_files_of_their_own(tmp_path: Path) -> None:
    run = runs.make_run("looped", tmp_path / "run")
    texts = lines(tmp_path / "texts.jsonl", [{"text": text} for text in runs.TEXTS[:2]])
    names = ["\u7b80\u5355", "\u56f0\u96be", "de-en", "de_en", "de_en"]
    tests = {name: str(texts) for name in names}
    recipe = run.recipe.model_copy(update={"data": run.recipe.data.model_copy(update={"test": tests})})
    written = write_tasks(replace(run, recipe=recipe), tmp_path / "tasks", names)
    assert len({*written}) == len({path.with_suffix(".jsonl") for path in written if path.is_file()}) == 4


@pytest.mark.parametrize("wrong", ["limit=0", "limit=-1", "limit=inf", "batch_size=0", "num_fewshot=-1"])
def test_numbers_that_cannot_be_are_one_line(wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["lm-eval", str(tmp_path), wrong])
    assert end.value.code == 2
    assert f"'{wrong}': must be" in " ".join(capsys.readouterr().err.split())


def test_what_cannot_be_scored_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.make_run("looped", tmp_path / "looped")
    data = lambada(tmp_path)
    run = ostinato.load(tmp_path / "looped", overrides=[*data, "data.block_length=8"])
    with pytest.raises(ConfigError, match=r"data\.block_length is 8: lm-eval scores every text by itself"):
        write_tasks(run, tmp_path / "tasks", ["test"])
    run = ostinato.load(tmp_path / "looped", overrides=[*data, "data.block_length=null"])
    with pytest.raises(ConfigError, match="'gen'"):
        write_tasks(run, tmp_path / "tasks", ["gen"])
    assert not (tmp_path / "tasks").exists()
    (tmp_path / "tasks").mkdir()
    with pytest.raises(OstinatoError, match="is there already, and nothing is overwritten"):
        write_tasks(run, tmp_path / "tasks", ["test"])
    (tmp_path / "damaged.yaml").write_text("task: [\n")
    (tmp_path / "nameless.yaml").write_text("a: 1\n")
    too_long = task_file(tmp_path, "generate_until", "generation_kwargs: {max_gen_toks: 1000}")
    for task in (
        "nowhere.yaml",
        "no-such-task",
        *(str(tmp_path / f"{x}.yaml") for x in ("damaged", "nameless")),
        too_long,
    ):
        with pytest.raises(ConfigError, match=f"lm-eval cannot score {task}: ") as caught:
            score(run, [task])
        assert "\n" not in str(caught.value)
    assert score(run, [task_file(tmp_path, "generate_until")])["samples"]["generate_until"]  # with room for the start

    long = task_file(tmp_path, "loglikelihood", "metric_list: [{metric: perplexity}]")
    short = ostinato.load(tmp_path / "looped", overrides=["data.block_length=null", "data.max_target_length=3"])
    with pytest.raises(ConfigError, match=f"lm-eval cannot score {long}: a text is empty, or longer than .*_length"):
        score(short, [long])

    def no_hub(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("Couldn't reach the hub")

    monkeypatch.setattr("ostinato.hf.harness.simple_evaluate", no_hub)
    with pytest.raises(ConfigError, match=r"lm-eval cannot score x\.yaml: Couldn't reach the hub"):
        score(run, ["x.yaml"])

    def overflows(*args: Any, **kwargs: Any) -> None:
        raise OverflowError("math range error")

    monkeypatch.setattr("ostinato.hf.harness.simple_evaluate", overflows)
    with pytest.raises(ConfigError, match=r"lm-eval cannot score x\.yaml: math range error"):
        score(run, ["x.yaml"])
    masked = runs.make_run("masked", tmp_path / "masked")
    with pytest.raises(ConfigError, match="lm-eval scores models that write text"):
        score(masked, ["x.yaml"])
    with pytest.raises(ConfigError, match=r"model\.kind is 'encoder': only models that write text"):
        write_tasks(masked, tmp_path / "new", ["dev"])


def test_a_group_of_tasks_is_shown_with_the_mean_of_its_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.make_run("language-model", tmp_path / "run")
    results = {"one": {"acc,none": 0.5}, "both": {"acc,none": 0.25, "alias": "both"}}
    found = {"results": results, "n-samples": {"one": {"original": 4, "effective": 3}}}
    monkeypatch.setattr("ostinato.hf.harness.score", lambda *_, **__: found)
    for more in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["lm-eval", str(tmp_path / "run"), "--tasks", "both", *more])
        assert not ended.value.code
    shown, _, printed = capsys.readouterr().out.partition("{")
    assert [line.split() for line in shown.splitlines() if line.split()[:1] in (["one"], ["both"])] == [
        ["one", "acc", "0.5", "3"],
        ["both", "acc", "0.25"],
    ]
    assert {name: values["n"] for name, values in json.loads("{" + printed).items()} == {"one": 3, "both": None}
