from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from ostinato.budget import count_bytes
from ostinato.cli import main
from ostinato.cli.options import split_settings
from ostinato.cli.output import rank
from ostinato.config.model import Seq2SeqConfig
from ostinato.config.training import TrainingConfig
from ostinato.data import disk
from ostinato.data.batch import Batch
from ostinato.data.output_files import write_new_text
from ostinato.errors import ConfigError, DataError, Problem, TrainingError
from ostinato.evaluation import passes
from ostinato.folders import cache_folder
from ostinato.models import Model, build_model, checkpoint, save_model
from ostinato.system_errors import describe_failure, naming
from ostinato.tasks import recipes
from ostinato.training.update import Updater


def test_three_problems_give_three_lines_and_exit_code_two(run, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "base: scan/transformer\n"
        "model: {encoder: {n_stps: 3, self_attention: {n_heads: 7}}}\n"
        "training: {n_updates: eight}\n",
        encoding="utf-8",
    )
    outcome = run("train", path)
    assert outcome.code == 2
    assert sorted(outcome.err.splitlines()) == [
        "model.encoder.n_stps is 3: no such setting; did you mean n_steps? (docs/recipes.md)",
        "model.encoder.self_attention.n_heads is 7: must divide model.d_model = 128 (nearest: 4), "
        "or set model.encoder.self_attention.d_head",
        "training.n_updates is 'eight': must be an integer in [0, 2^31 - 1]",
    ]
    assert not (tmp_path / "runs").exists()


def test_a_decoder_only_model_with_two_tokenizers_is_refused_with_everything_else_and_exit_code_two(run) -> None:
    two = "data.target_tokenizer={kind: words}"
    outcome = run("train", "multi30k/decoder-only", two, "model.decoder.self_attention.n_heads=7", "task.corpus=cheese")
    assert outcome.code == 2
    lines = sorted(outcome.err.splitlines())
    assert [line.split(" is ")[0] for line in lines] == [
        "data.target_tokenizer",
        "model.decoder.self_attention.n_heads",
        "task.corpus",
    ]
    assert lines[0].endswith("a language model has one vocabulary: remove it and use data.tokenizer")


@pytest.mark.parametrize("arguments", [["--debug", "plan", "scan/univ"], ["plan", "scan/univ", "--debug"]])
def test_debug_before_or_after_the_command_shows_the_traceback(arguments: list[str]) -> None:
    with pytest.raises(ConfigError, match="did you mean scan/universal"):
        main(arguments)


def test_without_debug_there_is_one_line(run) -> None:
    outcome = run("plan", "scan/univ")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("recipe is 'scan/univ': no recipe, file or run directory of that name")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [
        (TrainingError("the loss is nan at update 3"), 1, "the loss is nan at update 3\n"),
        (FileNotFoundError(2, "No such file or directory", "gone.txt"), 1, "gone.txt: No such file or directory\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_every_kind_of_end_has_its_exit_code_and_one_line(
    run, monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int, line: str
) -> None:
    def fail() -> None:
        raise raised

    monkeypatch.setattr(recipes, "list_recipes", fail)
    outcome = run("recipes")
    assert (outcome.code, outcome.err) == (code, line)


def test_wrong_use_of_a_command_exits_with_code_two(run) -> None:
    assert run("trian").code == 2
    assert "Missing argument" in run("train").err
    assert run("recipes", "--jsn").code == 2


@pytest.mark.parametrize(
    ("removed", "replacement"),
    [
        (["average", "runs/x", "--best", "5"], "--checkpoint best:N"),
        (["transfer", "runs/x", "--metric", "accuracy"], "ostinato table RUN... --by COLUMN"),
        (["match", "loss", "runs/x"], "ostinato compare RUN... --match perplexity, or --match loss"),
        (["match", "--help"], "ostinato compare RUN... --match"),
    ],
)
def test_a_removed_command_is_one_line_that_names_what_replaced_it(run, removed: list[str], replacement: str) -> None:
    outcome = run(*removed)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert outcome.err.startswith(f"there is no command {removed[0]} any more: ")
    assert replacement in outcome.err


@pytest.mark.slow
def test_a_closed_pipe_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "ostinato", "recipes"], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_closed_standard_input_is_read_as_empty(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(recipes, "list_recipes", lambda: sys.stdin.read() and {})
    with contextlib.suppress(AttributeError, TypeError):
        run("recipes")
    assert sys.stdin.read() == ""
    sys.stdin.close()


@pytest.mark.slow
def test_closed_outputs_end_no_command_and_signs_that_the_output_lacks_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = f"{shlex.quote(sys.executable)} -m ostinato"
    closed = subprocess.run(["sh", "-c", f"{command} data pack --help >&- 2>&-"], timeout=60)
    assert closed.returncode == 0
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    said = describe_failure(UnicodeEncodeError("latin-1", "a 日", 2, 3, "ordinal not in range(256)"))
    assert said == "the output is in latin-1, which has no '\\u65e5': set PYTHONIOENCODING=utf-8"
    said = describe_failure(UnicodeEncodeError("utf-8", "caf\udce9", 3, 4, "surrogates not allowed"))
    assert said == "'caf\\udce9' is no UTF-8, and cannot be written: rename it"
    assert describe_failure(UnicodeEncodeError("ascii", "é", 0, 1, "ordinal not in range(128)")) is None


@pytest.mark.parametrize("encoding", ["cp1252", "iso8859-1", "latin-1", "ascii", "koi8-r", "gb2312"])
def test_signs_that_the_output_lacks_are_one_line_in_any_encoding(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    with pytest.raises(UnicodeEncodeError) as caught:
        print("a \U0001f600")
    expected = f"the output is in {encoding}, which has no '\\U0001f600': set PYTHONIOENCODING=utf-8"
    assert describe_failure(caught.value) == expected
    with pytest.raises(UnicodeEncodeError) as caught:  # of a file
        "\U0001f600".encode("big5")
    assert describe_failure(caught.value) is None


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["cp1252", "iso8859-1"])
def test_a_command_whose_output_lacks_a_sign_ends_with_one_line(tmp_path: Path, encoding: str) -> None:
    for split in ("tr", "dev"):
        row = json.dumps({"source": "a 日", "target": "b"}, ensure_ascii=False)
        (tmp_path / f"{split}.jsonl").write_text(f"{row}\n", encoding="utf-8")
    files = ["data.train=tr.jsonl", "data.dev=dev.jsonl"]
    done = subprocess.run(
        [sys.executable, "-m", "ostinato", "data", "show", "files/template", *files],
        capture_output=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        timeout=60,
    )
    said = f"the output is in {encoding}, which has no '\\u65e5': set PYTHONIOENCODING=utf-8"
    assert (done.returncode, done.stderr.decode().splitlines()) == (1, [said])


def test_long_values_and_lines_are_shortened_in_error_messages() -> None:
    problem = str(Problem("data.train", "x" * 10_000_000, "no such file"))
    assert len(problem) < 500
    assert problem.endswith("no such file")
    assert "characters left out" in problem
    message = str(DataError("a.txt, line 1: " + "y" * 10_000_000 + ": is too long"))
    assert len(message) < 2200
    assert message.startswith("a.txt, line 1: y")
    assert message.endswith("y: is too long")


def test_of_many_lines_the_first_are_kept_and_what_a_terminal_would_obey_is_escaped() -> None:
    lines = str(DataError("\n".join(f"line {i}" for i in range(3_000)))).split("\n")
    assert len(lines) == 31
    assert (lines[0], lines[-1]) == ("line 0", "... (2,970 lines left out)")
    assert str(DataError("a\x1b[2J\0\ud800é\nb")) == "a\\x1b[2J\\x00\\ud800é\nb"


@pytest.mark.parametrize("override", ["\x1b[2J=1", "\ud800=1", "seed\n=1"])
def test_the_key_of_an_override_is_printable(run, override: str) -> None:
    outcome = run("plan", "scan/universal", override)
    assert outcome.code == 2
    assert "must look like key=value" in outcome.err
    assert outcome.err.replace("\n", "").isprintable()


def test_a_link_to_itself_is_no_file(run, tmp_path: Path) -> None:
    loop = tmp_path / "loop.jsonl"
    loop.symlink_to(loop)
    outcome = run("train", "files/template", f"data.train={loop}", f"data.dev={loop}", "--run-dir", tmp_path / "run")
    assert outcome.code == 2
    assert outcome.err.count("there is no such file") == 2
    assert not (tmp_path / "run").exists()


def test_the_cache_of_a_user_without_a_home_is_in_the_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("Could not determine home directory.")

    for name in ("OSTINATO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", fail)
    assert cache_folder() == Path(tempfile.gettempdir()) / f"user-{os.getuid()}" / "ostinato"


class _Wrapped(Exception):
    """As libraries in Rust report what the system said."""


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "a.json"),
            "a.json: No space left on device; the disk is full",
        ),
        (OSError(errno.EDQUOT, "Disk quota exceeded", "a.json"), "a.json: Disk quota exceeded; your quota is used up"),
        (OSError(errno.EROFS, "Read-only file system", "a"), "a: Read-only file system; write to another folder"),
        (PermissionError(errno.EACCES, "Permission denied", "a"), "a: Permission denied; change its permissions"),
        (OSError(errno.EMFILE, "Too many open files", "a"), "a: Too many open files; .*ulimit -n"),
        (OSError(errno.EMFILE, "Too many open files"), "a file: Too many open files; .*ulimit -n"),
        (_Wrapped("Error: I/O error: No space left on device (os error 28)"), "a file: No space left on device; "),
        (_Wrapped('I/O error: Permission denied (os error 13) at path "/x/.tmpA"'), "/x/.tmpA: Permission denied; "),
        (MemoryError(), "out of memory: smaller batches"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000 bytes."),
            "out of memory ",
        ),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 40 bytes."), "out of memory "),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0"),
            "out of memory .2.00 GiB were",
        ),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "out of memory"),
    ],
)
def test_what_the_machine_refuses_is_one_line_that_says_what_to_do(
    run, monkeypatch: pytest.MonkeyPatch, raised: BaseException, line: str
) -> None:
    def fail() -> None:
        raise raised

    monkeypatch.setattr(recipes, "list_recipes", fail)
    outcome = run("recipes")
    assert outcome.code == 1
    assert re.match(line, outcome.err)
    assert outcome.err.count("\n") == 1


def test_an_error_of_the_program_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(recipes, "list_recipes", fail)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        main(["recipes"])


def test_a_full_disk_names_the_file_that_was_being_written(
    run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "sync", full)
    monkeypatch.setattr(recipes, "list_recipes", lambda: disk.write_text(tmp_path / "results.json", "{}"))
    assert "results.json: No space left on device; the disk is full" in run("recipes").err


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is full")
def test_a_full_standard_output_is_one_line() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "ostinato", "recipes"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.stderr.splitlines()[:1] == [
        "standard output: No space left on device; the disk is full: make room there, or write to another one"
    ]
    assert "Traceback" not in done.stderr


def test_a_full_disk_names_the_files_of_checkpoints_and_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def full_in_rust(*_: object) -> None:
        raise _Wrapped('Error: I/O error: No space left on device (os error 28) at path "/x/.tmpA"')

    def save() -> None:
        with disk.new_folder(folder) as partial:
            save_model(_model(), partial)

    folder, text, new = tmp_path / "update-000001", tmp_path / "results.json", tmp_path / "new.txt"
    for place, name, failing, write, expected in (
        (checkpoint, "save_file", full_in_rust, save, folder / "model.safetensors"),
        (Path, "write_text", full, save, folder / "model.json"),
        (os, "fsync", full, lambda: disk.write_json(text, {}), text),
        (os, "fsync", full, lambda: write_new_text(new, "x"), new),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, failing)
            with pytest.raises(OSError, match="No space left") as caught:
                write()
        line = describe_failure(caught.value)
        assert line is not None
        assert line.startswith(f"{expected}: No space left on device; the disk is full")
    assert not new.exists()


def test_errors_keep_the_name_they_have_and_others_pass() -> None:
    with pytest.raises(FileNotFoundError) as caught, naming("mine.txt"):
        Path("not/there").read_text(encoding="utf-8")
    assert caught.value.filename == "not/there"
    with pytest.raises(ValueError, match="shapes"), naming("mine.txt"):
        raise ValueError("shapes")


def test_memory_that_an_update_lacks_says_what_the_plan_counts_for_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000 bytes.")

    model, batch = _model(), Batch.from_lists([[4, 5]] * 3, [[4, 5, 5]] * 3)
    frozen, *_ = model.parameters()
    frozen.requires_grad_(False)
    updater = Updater(model, torch.optim.Adam(model.parameters()), TrainingConfig())
    monkeypatch.setattr(updater, "_backward", fail)
    with pytest.raises(RuntimeError) as caught:
        updater.accumulate([batch], 1)
    counted = count_bytes(model.config, 4, 3, batch_size=3)
    learned = counted.weights - 4 * frozen.numel()
    assert str(describe_failure(caught.value, ["train", "mine.yaml"])).startswith(
        "out of memory (4000 bytes were asked for); the plan says for 3 sentences of 4 source and 3 target tokens: "
        f"weights {counted.weights / 2**20:,.1f} MiB, gradients and optimiser {3 * learned / 2**20:,.1f} MiB, "
        f"activations {counted.activations / 2**20:,.1f} MiB: lower data.tokens_per_batch"
    )


def test_memory_that_an_evaluation_lacks_says_what_the_plan_counts_for_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    model, batch = _model(), Batch.from_lists([[4, 5]] * 3, [[4, 5, 5]] * 3)
    monkeypatch.setattr(passes, "score_sentences", fail)
    with pytest.raises(MemoryError) as caught:
        passes.Passes(None)(model, batch)
    cache = count_bytes(model.config, 4, 3, batch_size=3).cache
    assert f"cache of decoding {cache / 2**20:,.1f} MiB at beam 1" in str(describe_failure(caught.value, ["evaluate"]))


def _model() -> Model:
    sizes = {"d_model": 8, "source_vocab_size": 6, "target_vocab_size": 6}
    return build_model(Seq2SeqConfig(**sizes))


def test_memory_that_training_lacks_names_the_settings_and_the_plan(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(recipes, "load_recipe", fail)
    outcome = run("train", "scan/universal")
    assert outcome.code == 1
    assert "data.tokens_per_batch" in outcome.err
    assert "ostinato plan scan/universal --batch-size N" in outcome.err
    outcome = run("train", "scan/universal", "model.d_model=512", "--json", "evaluation.splits=[test, dev]")
    assert "ostinato plan scan/universal model.d_model=512 'evaluation.splits=[test, dev]' --batch-size" in outcome.err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["solve", "digits/transformer", "d_model", "--target", "inf"], "inf is not a finite number"),
        (["advise", "digits/transformer", "--hours", "inf"], "inf is not a finite number"),
        (["plan", "digits/transformer", "--expected-depth", "encoder=nan"], "'encoder=nan' is not STACK=ROUNDS"),
        (["family", "digits/transformer", "--depths", "1..1000000000"], "'1..1000000000' is no depth"),
        (["claims", "--paper", "typo", "--check"], "'typo' must be one of depth, one-wide-ffn"),
        (["claims", "--markdown", "--check"], "--markdown --check: choose one of them"),
        (["claims", "--markdown", "--json"], "--json: --markdown writes no JSON"),
        (["claims", "--check", "--outcomes", "mine"], "--outcomes: --check is for the outcomes of the library"),
        (["compare", "a", "b", "--json", "--markdown"], "--markdown --json: choose one of them"),
    ],
)
def test_values_that_would_pass_every_limit_are_refused(run, command: list[str], message: str) -> None:
    outcome = run(*command)
    assert outcome.code == 2
    assert message in outcome.err


def test_a_folder_of_plots_that_is_a_file_is_refused_before_outcomes_are_read(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinato.experiments.claims.document.library_outcomes", lambda paper: pytest.fail("read"))
    (tmp_path / "file").touch()
    outcome = run("claims", "--plots", str(tmp_path / "file"))
    assert outcome.code == 1
    assert outcome.err.endswith("/file: File exists\n")


def test_a_run_folder_whose_name_is_like_a_setting_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/lr=0.1").mkdir(parents=True)
    assert split_settings(["runs/lr=0.1", "seed=1"]) == (["runs/lr=0.1"], ["seed=1"])


def test_a_rank_that_is_no_number_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "abc")
    assert rank() == 0
    monkeypatch.setenv("RANK", "1")
    assert rank() == 1
