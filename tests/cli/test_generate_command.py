from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ostinato
from ostinato import kernels
from ostinato.cli import main
from ostinato.errors import DataError

TINY = """
task: {kind: algorithmic, operation: reverse, max_length: 5, long_max_length: 8, n_train: 60, n_eval: 8, bucket: 4}
data: {source_field: question}
model:
  d_model: 8
  encoder: {n_steps: 1, self_attention: {n_heads: 2}, ffn: {d_ff: 8}}
  decoder: {n_steps: 1, self_attention: {n_heads: 2}, cross_attention: {n_heads: 2}, ffn: {d_ff: 8}}
training:
  n_updates: 4
  evaluate_every: 1
  save_every: 4
  keep_best: 3
  log_every: 4
  schedule: {warmup: 2}
  device: cpu
decoding: {max_length: 6}
evaluation: {splits: [test]}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with three checkpoints or four."""
    folder = tmp_path_factory.mktemp("generate")
    (folder / "tiny.yaml").write_text(TINY, encoding="utf-8")
    with pytest.raises(SystemExit) as caught:
        main(["train", str(folder / "tiny.yaml"), "--run-dir", str(folder / "run")])
    assert caught.value.code in (0, None)
    return folder / "run"


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("1 2 3\n4 5\n6\n", encoding="utf-8")
    return path


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_json_lines_are_read_by_the_runs_field_and_carry_the_rest(run, trained: Path, tmp_path: Path) -> None:
    records = [{"id": 3, "question": "1 2 3", "prediction": "old"}, {"question": "4 5", "note": None}]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    found = objects(run("generate", trained, path, "--json").out)
    assert [list(one)[:3] for one in found] == [["id", "question", "prediction"], ["question", "note", "prediction"]]
    assert [one["question"] for one in found] == ["1 2 3", "4 5"]
    assert [one["prediction"] for one in found] == run("generate", trained, path).out.splitlines() != ["old", ""]
    assert all(set(one) >= {"score", "log_prob", "finished", "n_tokens"} for one in found)
    # What an earlier pass over these lines had found is not this one's.
    again = [{"question": "1 2 3", "error": "old"}, {"question": "?", "prediction": "old", "n_best": []}]
    path.write_text("".join(json.dumps(record) + "\n" for record in again), encoding="utf-8")
    done, failed = objects(run("generate", trained, path, "--json").out)
    assert ("prediction" in done, "error" in done) == (True, False)
    assert set(failed) == {"question", "error"}


@pytest.mark.parametrize(
    ("settings", "row", "line"),
    [
        ({"swap_sides": True, "normalise": "romanian"}, {"source": "x", "target": "a \u015f"}, "a \u0219"),
        ({"target_tag": "to"}, {"source": "x y", "target": "", "to": "de"}, "<2de> x y"),
    ],
)
def test_translation_reads_the_side_and_the_tag_that_it_was_trained_on(
    run, tmp_path: Path, settings: dict[str, Any], row: dict[str, str], line: str
) -> None:
    pairs = [("x y", "a \u015f", "de"), ("y", "a", "fr"), ("x", "\u015f", "de")] * 4
    rows = [{"source": source, "target": target, "to": to} for source, target, to in pairs]
    data = tmp_path / "pairs.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    _, _, rest = TINY.partition("model:\n")
    task = json.dumps({"kind": "translation", "corpus": "files", **settings})
    files = ", ".join(f"{split}: {data}" for split in ("train", "dev", "test"))
    (tmp_path / "tiny.yaml").write_text(f"task: {task}\ndata: {{{files}}}\nmodel:\n{rest}", encoding="utf-8")
    trained, given = tmp_path / "run", tmp_path / "in.jsonl"
    assert run("train", tmp_path / "tiny.yaml", "--run-dir", trained).code == 0
    given.write_text(json.dumps(row) + "\n", encoding="utf-8")
    (tmp_path / "in.tsv").write_text("\n".join("\t".join(one) for one in (row, row.values())) + "\n", encoding="utf-8")
    (tmp_path / "in.txt").write_text(f"{line}\n", encoding="utf-8")
    (output,) = objects(run("generate", trained, given, "--json").out)
    (plain,) = objects(run("generate", trained, tmp_path / "in.txt", "--json").out)
    assert (output["prediction"], output["score"]) == (plain["prediction"], plain["score"])
    assert {key: output[key] for key in row} == row
    (columns,) = objects(run("generate", trained, tmp_path / "in.tsv", "--json").out)
    assert columns == output
    (in_python,) = ostinato.load(trained, device="cpu").generations([line])
    assert in_python.score == output["score"]


def test_pairs_of_texts_are_read_from_the_two_columns_of_training(run, tmp_path: Path) -> None:
    rows = [{"a": "x", "b": "y", "target": "no"}, {"a": "y", "b": "x", "target": "yes"}] * 6
    data = tmp_path / "pairs.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    _, _, rest = TINY.partition("model:\n")
    files = ", ".join(f"{split}: {data}" for split in ("train", "dev", "test"))
    task = "task: {kind: classification, pair_field: b}"
    (tmp_path / "tiny.yaml").write_text(f"{task}\ndata: {{{files}, source_field: a}}\nmodel:\n{rest}", encoding="utf-8")
    trained, given = tmp_path / "run", tmp_path / "in.jsonl"
    assert run("train", tmp_path / "tiny.yaml", "--run-dir", trained).code == 0
    given.write_text('{"a": "x ", "b": " y"}\n{"a": "x"}\n{"a": "x", "b": null}\n', encoding="utf-8")
    found = run("generate", trained, given, "--json")
    pair, *alone = objects(found.out)
    loaded = ostinato.load(trained, device="cpu")
    (both,) = loaded.generations(["x\ty"])
    assert (found.code, pair["score"], pair["b"]) == (1, both.score, " y")
    assert pair["score"] != next(iter(loaded.stream(["y\tx"]))).score  # type: ignore[union-attr]
    reason = "has no text 'b' (task.pair_field): give it, or write both texts with one tab between them"
    assert [one["error"] for one in alone] == [f"{given}, line {number}: {reason}" for number in (2, 3)]
    (tmp_path / "in.csv").write_text("b,a\ny,x\n", encoding="utf-8")
    (tmp_path / "in.txt").write_text("x\ty\nx\n", encoding="utf-8")
    assert objects(run("generate", trained, tmp_path / "in.csv", "--json").out)[0]["score"] == both.score
    lines = objects(run("generate", trained, tmp_path / "in.txt", "--json").out)
    assert (lines[0]["score"], "error" in lines[1]) == (both.score, True)
    with pytest.raises(DataError, match=r"^input line 2: has no text 'b' \(task\.pair_field\): "):
        loaded.generate(["x\ty", "x"])


@pytest.mark.parametrize("command", ["generate", "evaluate"])
def test_commands_that_decode_keep_the_memory_that_a_search_releases(
    run, trained: Path, lines: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(kernels, "keep_freed_memory", lambda: told.append(command))
    assert run(command, trained, *([lines] if command == "generate" else [])).code == 0
    assert told == [command]


def test_text_and_piped_json_give_what_a_file_of_json_gives(
    run, trained: Path, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = objects(run("generate", trained, lines, "--json").out)
    assert [one["question"] for one in plain] == ["1 2 3", "4 5", "6"]
    piped = b'{"question": "1 2 3"}\n{"question": "4 5"}\n{"question": "6"}\n'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(piped)))
    assert objects(run("generate", trained, "--json").out) == plain


def test_a_file_of_columns_gives_what_its_sources_give(run, trained: Path, lines: Path, tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("target,question,id\n3 2 1,1 2 3,a\n5 4,4 5,b\n6,6,c\n", encoding="utf-8")
    assert run("generate", trained, path).out == run("generate", trained, lines).out
    assert [one["id"] for one in objects(run("generate", trained, path, "--json").out)] == ["a", "b", "c"]


def test_bad_lines_keep_their_place_and_the_exit_code_is_one(run, trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"question": "1 2"}\n{"question"\n{"id": 4}\n{"id": 5, "question": "x"}\n{"question": "3"}\n')
    plain = run("generate", trained, path, "--window", 2)
    assert plain.code == 1
    assert [bool(line) for line in plain.out.split("\n")] == [True, False, False, False, True, False]
    starts = [
        f"{path}, line 2: not JSON",
        f"{path}, line 3: no key 'question' (data.source_field)",
        f"{path}, line 4: 'x'",
    ]
    for line, start in zip(plain.err.splitlines(), starts, strict=True):
        assert line.startswith(start)
    found = objects(run("generate", trained, path, "--json").out)
    assert ["error" in one for one in found] == [False, True, True, True, False]
    assert [one.get("id") for one in found] == [None, None, 4, 5, None]
    lists = run("generate", trained, path, "--beam", 2, "--n-best", 2).out.splitlines()
    assert [line.split("\t")[0] for line in lists] == ["1", "1", "2", "3", "4", "5", "5"]


@pytest.mark.slow
def test_half_a_surrogate_pair_ends_its_own_line_only(trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(
        '{"question": "1 2"}\n{"question": "1 \\ud800"}\n{"question": "3", "note": "\\udfff"}\n'
        '{"id": "\\ud83d", "question": 7}\n{"question": "3"}\n'
    )
    command = [sys.executable, "-m", "ostinato", "generate", str(trained), str(path), "--json"]
    done = subprocess.run(command, capture_output=True, timeout=120)  # through a real pipe, which must encode
    assert done.returncode == 1, done.stderr
    found = [json.loads(line) for line in done.stdout.decode("utf-8").splitlines()]
    assert ["error" in one for one in found] == [False, True, False, True, False]
    assert [one.get("note") for one in found] == [None, None, "\udfff", None, None]
    assert "half of a surrogate pair" in found[1]["error"]


def test_n_best_lists_and_scores_in_text_and_json(run, trained: Path, lines: Path) -> None:
    beam = ["generate", trained, lines, "--beam", 4]
    found = objects(run(*beam, "--n-best", 3, "--json").out)
    rows = [line.split("\t") for line in run(*beam, "--n-best", 3).out.splitlines()]
    assert [row[0] for row in rows] == ["1"] * 3 + ["2"] * 3 + ["3"] * 3
    flat = [one for record in found for one in record["n_best"]]
    assert [(row[1], row[2]) for row in rows] == [(f"{one['score']:.6f}", one["prediction"]) for one in flat]
    best = [line.split("\t") for line in run(*beam, "--scores").out.splitlines()]
    for record, (score, text) in zip(found, best, strict=True):
        scores = [one["score"] for one in record["n_best"]]
        assert scores == sorted(scores, reverse=True)
        assert record["n_best"][0] == {key: record[key] for key in record["n_best"][0]}
        assert (score, text) == (f"{record['score']:.6f}", record["prediction"])


def test_tokens_have_scores_where_they_are_asked_for(run, trained: Path, lines: Path) -> None:
    found = objects(run("generate", trained, lines, "--token-scores", "--json").out)
    for one in found:
        assert len(one["tokens"]) == len(one["token_log_probs"]) == one["n_tokens"]
        assert sum(one["token_log_probs"]) == pytest.approx(one["log_prob"], abs=1e-4)
        words = one["tokens"][:-1] if one["finished"] else one["tokens"]
        assert " ".join(words) == one["prediction"]
        assert (one["tokens"][-1] == "<eos>") == one["finished"]
    for asked in (["--token-scores"], ["--set", "decoding.token_scores=true"]):
        assert "add --json" in run("generate", trained, lines, *asked).err
    assert "change nothing here" in run("evaluate", trained, "--set", "decoding.token_scores=true").err


def test_a_beginning_is_forced_for_all_or_line_by_line(run, trained: Path, lines: Path, tmp_path: Path) -> None:
    forced = run("generate", trained, lines, "--prefix", "7 8").out.splitlines()
    assert all(line.startswith("7 8") for line in forced)
    path = tmp_path / "in.jsonl"
    path.write_text('{"question": "1 2 3", "begun": "7 8"}\n{"question": "4 5"}\n{"question": "6", "begun": "x"}\n')
    outcome = run("generate", trained, path, "--prefix-field", "begun")
    free = run("generate", trained, lines).out.splitlines()
    assert outcome.out.splitlines() == [forced[0], free[1], ""]
    assert outcome.err.startswith(f"{path}, line 3: 'x' is not among")


def test_samples_are_repeated_by_their_seed_and_lengths_are_kept(run, trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "many.txt"
    path.write_text("1 2 3\n" * 20, encoding="utf-8")
    sample = ["generate", trained, path, "--sample", "--temperature", 2.0, "--top-k", 8]
    one, again, other = (run(*sample, "--seed", seed, "--window", w).out for seed, w in ((1, 3), (1, 20), (2, 3)))
    assert one == again != other
    assert len(set(one.splitlines())) > 5
    short = objects(run(*sample, "--min-length", 4, "--max-length", 4, "--json").out)
    assert {record["n_tokens"] for record in short} == {4}


@pytest.mark.parametrize(("narrow", "was"), [(["--beam", 2], 2), ([], 1)])
def test_a_beam_that_is_narrower_than_the_n_best_list_is_raised_and_said_so(
    run, trained: Path, lines: Path, narrow: list[object], was: int
) -> None:
    raised = run("generate", trained, lines, *narrow, "--n-best", 3)
    wide = run("generate", trained, lines, "--beam", 3, "--n-best", 3)
    assert (raised.code, raised.out) == (0, wide.out)
    assert raised.err == f"beam width 3 in place of {was}: --n-best 3 needs one as wide\n"
    assert wide.err == ""
    # Where settings say that outputs are drawn, --n-best alone asks for what drawing has not.
    drawn = run("generate", trained, lines, "--set", "decoding.strategy=sample", "--n-best", 3)
    assert drawn.code == 2
    assert "decoding.n_best is 3: " in drawn.err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--temperature", 2.0], "nothing is sampled: add --sample"),
        (["--sample", "--beam", 2], "a beam is searched and not sampled"),
        (["--sample", "--n-best", 2], "decoding.n_best is 2: must be at most decoding.beam = 1"),
        (["--min-length", 9], "decoding.min_length is 9: no output is as long"),
        (["--set", "model.d_model=4"], "must be decoding.KEY=VALUE or data.KEY=VALUE"),
        (["--set", "data.tokenizer.min_count=2"], "a run keeps the tokenizers that it was trained with: leave it out"),
        (
            ["--set", "decoding.max_length_ratio=1e300"],
            "decoding.max_length_ratio is 1e+300: must be a number in [0, 1000]",
        ),
        (["--set", f"decoding.max_length={2**63 - 1}"], "must be an integer in [0, 2^31 - 1]"),
        (["--set", "decoding.stoping=count"], "decoding.stoping is 'count': no such setting; did you mean stopping?"),
        (["--input-format", "xml"], "'xml' is not one of 'auto', 'text', 'json'"),
        (["--checkpoint", "best:9"], "train with training.keep_best=9 to keep more"),
    ],
)
def test_what_cannot_be_is_said_with_exit_code_two(
    run, trained: Path, lines: Path, options: list[object], expected: str
) -> None:
    outcome = run("generate", trained, lines, *options)
    assert outcome.code == 2
    assert expected in " ".join(outcome.err.replace("│", " ").split())


def test_settings_of_the_run_are_changed_for_one_command(run, trained: Path, lines: Path) -> None:
    cut = run("generate", trained, lines, "--set", "decoding.max_length=1").out.splitlines()
    assert all(len(line.split()) <= 1 for line in cut)
    beam = ["--beam", 3, "--set", "decoding.stopping=count", "--set", "decoding.length_penalty={kind: none}"]
    scores = json.loads(run("evaluate", trained, *beam, "--json").out)["test"]["decoding"]
    assert (scores["stopping"], scores["length_penalty"]["kind"], scores["beam"]) == ("count", "none", 3)


def test_the_mean_of_checkpoints_is_a_choice_of_checkpoint_and_says_what_it_is_of(
    run, trained: Path, lines: Path
) -> None:
    best = run("generate", trained, lines, "--checkpoint", "best:3", "--json")
    assert best.err.startswith("average-best-3: the mean of update-00000")
    assert best.err.count("update-00000") == 3
    assert run("generate", trained, lines, "--checkpoint", "average-best-3", "--json").out == best.out
    plain = run("generate", trained, lines, "--json")
    assert (plain.err, plain.out == best.out) == ("", False)
    scores = [json.loads(run("evaluate", trained, "--checkpoint", name, "--json").out) for name in ("last:1", "last")]
    assert scores[0]["test"]["loss"] == scores[1]["test"]["loss"]
    assert [one["checkpoint"] for one in scores[0]["test"]["mean_of"]] == ["update-000004"]
    assert "mean_of" not in scores[1]["test"]
    assert "\naverage-last-1: the mean of update-000004" in run("evaluate", trained, "--checkpoint", "last:1").out
    assert "there is no such directory" in run("evaluate", trained / "gone", "--checkpoint", "last:2").err


def read_terminal(master: int) -> str:
    """Return what is drawn on a pseudo-terminal until nobody holds it any more; its buffer is small."""
    shown = b""
    try:
        while part := os.read(master, 1 << 16):
            shown += part
    except OSError:  # how Linux says that the other side is closed
        pass
    os.close(master)
    return shown.decode()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_progress_is_drawn_on_a_terminal_while_output_goes_elsewhere(run, trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "many.txt"
    path.write_text("1 2 3\n" * 30 + "x\n", encoding="utf-8")
    command = [sys.executable, "-m", "ostinato", "generate", str(trained), str(path)]
    master, slave = os.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "400"}
    with (
        (tmp_path / "out").open("wb") as out,
        subprocess.Popen(command, stdout=out, stderr=slave, env=environment) as drawn,
    ):
        os.close(slave)
        shown = read_terminal(master)
    written = (tmp_path / "out").read_text(encoding="utf-8")
    assert (drawn.returncode, written.count("\n")) == (1, 31)
    assert "31/31" in shown
    # What a program writes can be read once, and is not counted before.
    master, slave = os.openpty()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command[-1] = str(pipe)
    with (
        (tmp_path / "piped").open("wb") as out,
        subprocess.Popen(command, stdout=out, stderr=slave, env=environment) as drawn,
    ):
        os.close(slave)
        pipe.write_bytes(path.read_bytes())
        assert "31" in read_terminal(master)
    assert (tmp_path / "piped").read_text(encoding="utf-8") == written
    assert f"{path}, line 31: 'x' is not among" in shown
    piped = run("generate", trained, path)
    assert (piped.out, piped.err.count("\n")) == (written, 1)
