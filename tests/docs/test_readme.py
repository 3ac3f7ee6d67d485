from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from documents import README, ROOT, Command, blocks, commands

from ostinato.analysis.studies import STUDIES
from ostinato.cli import main

TINY = [
    "model.d_model=16",
    "data.tokens_per_batch=256",
    "training.n_updates=2",
    "training.n_threads=1",
    "training.device=cpu",
    "training.selection.max_examples=4",
    "decoding.max_length=8",
    "decoding.max_length_ratio=0",
    "evaluation.max_examples=4",
]
TOUR = ROOT / "docs" / "commands.md"
UPSTREAM = Path(__file__).parents[3] / "shared" / "data" / "upstream"


def tiny(name: str) -> list[str]:
    """Return what makes a recipe tiny."""
    stacks = {"lm": ["decoder"], "x-moe": ["encoder"]}.get(name.partition("/")[0], ["encoder", "decoder"])
    own = {
        "algorithmic": ["task.n_train=60", "task.n_eval=8", "task.max_length=8", "task.long_max_length=12"],
        "passivization": ["task.n_train=60", "training.halting.off_updates=1", "training.save_every=1"],
        "one-wide-ffn": ["data.tokenizer.vocab_size=300"],
        "x-moe": ["data.tokenizer.vocab_size=262", "data.block_length=8", "model.encoder.sparse_layer.d_ff=16"],
    }
    return [*TINY, *(f"model.{stack}.ffn.d_ff=16" for stack in stacks), *own.get(name.partition("/")[0], [])]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with files of the user's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OSTINATO_MIRROR", raising=False)
    for name in ("train", "dev"):
        pairs = [{"source": f"jump {i} times", "target": f"times {i} jump"} for i in range(6)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(p) + "\n" for p in pairs), encoding="utf-8")
        (tmp_path / f"{name}.txt").write_text("The cat sat.\nThe dog ran.\n", encoding="utf-8")
    return tmp_path


def adapted(command: Command) -> list[str] | None:
    """Return the arguments with tiny settings, None where the data that it needs is not here."""
    arguments = list(command.arguments)
    if arguments[0] == "train" and not arguments[1].startswith("runs/"):
        # Before the user's own settings, which win.
        arguments[2:2] = tiny(arguments[1])
    if "--resume" in arguments:
        arguments = ["training.n_updates=3" if word.startswith("training.n_updates=") else word for word in arguments]
    if "--batch-sizes" in arguments:
        arguments[arguments.index("--batch-sizes") + 1] = "1,2"
    if arguments[0] == "analyze" and "--only" not in arguments:
        arguments += ["--max-examples", "20"]
    if "multi30k" in " ".join(arguments) and "--mirror" not in arguments:
        arguments += ["--mirror", ""]
    if "--mirror" in arguments:
        if not UPSTREAM.is_dir():
            return None
        arguments[arguments.index("--mirror") + 1] = str(UPSTREAM)
    return arguments


def test_the_python_examples_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, of_tensors = blocks(README, "python")
    recipe = "algorithmic/reverse-universal"
    call = f'load_recipe("{recipe}", ['
    assert call in code
    names: dict[str, Any] = {"TINY": tiny(recipe)}
    exec(compile(code.replace(call, f"{call}*TINY, "), str(README), "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == code.count("print(") == 3
    assert names["results"]["splits"]["long"]["n"] == names["run"].evaluate("long")["n"] == 4
    assert float(printed[0]) == names["results"]["splits"]["long"]["exact_match"]
    assert 0 <= float(printed[2]) <= 1
    assert sum(1 for line in code.splitlines() if line) <= 10
    exec(compile(of_tensors, str(README), "exec"), {})
    assert capsys.readouterr().out.count("torch.Size([2, 7, 100])") == 3
    for example in (code, of_tensors):
        assert "from ostinato" not in example, "no deep import is needed"


def run(
    chosen: list[Command], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[tuple[list[str], str]]:
    """Run commands, made tiny, from top to bottom; return the arguments of each that ran, and what it wrote."""
    outputs = []
    for command in chosen:
        if (arguments := adapted(command)) is None:
            continue
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((command.stdin or "").encode())))
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        out, err = capsys.readouterr()
        assert caught.value.code in (0, None), f"{command}\n{err}"
        if command.stdin:
            assert out.count("\n") == 1
        elif "--predictions" not in arguments:
            assert out.strip(), command
        outputs.append((arguments, out))
    return outputs


def evaluations(run: Path) -> list[dict[str, Any]]:
    """Return the records of a run's evaluations on the selection split."""
    records = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [record for record in records if record["kind"] == "evaluation"]


def is_of_the_sweep(command: Command) -> bool:
    """Return whether a command needs the six trainings of the sweep `digits`."""
    return "digits" in command.arguments and "--dry-run" not in command.arguments


def is_of_a_report(command: Command) -> bool:
    """Return whether a command makes one of the three reports."""
    names = ("passivization", "one-wide-ffn/multi30k", "one-wide-ffn-multi30k", "x-moe")
    return any(word.startswith((*names, *(f"runs/{name}" for name in names))) for word in command.arguments)


def test_the_readme_is_short_and_its_shell_lines_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150
    chosen = [command for command in commands(README) if command.arguments[0] not in ("doctor", "demo")]
    ran = [arguments[0] for arguments, _ in run(chosen, monkeypatch, capsys)]
    assert ran == ["train", "plan", "solve", "evaluate", "analyze"]


@pytest.mark.slow
def test_the_first_steps_run_on_data_that_they_make(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = ROOT / "docs" / "get-started.md"
    (program,) = re.findall(r'python3 -c "\n(.*?)\n"', first.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(program, str(first), "exec"), {})
    assert len((folder / "train.jsonl").read_text(encoding="utf-8").splitlines()) == 4000
    chosen = [command for command in commands(first) if command.arguments[0] != "doctor"]
    ran = run(chosen, monkeypatch, capsys)
    assert [arguments[0] for arguments, _ in ran] == ["train", "train", "compare", "generate", "evaluate", "analyze"]
    assert (folder / "runs" / "plain" / "analysis" / "report.html").is_file()


@pytest.mark.slow
def test_the_tour_of_the_command_line_runs_from_top_to_bottom(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [command for command in commands(TOUR) if not (is_of_a_report(command) or is_of_the_sweep(command))]
    assert len(run(chosen, monkeypatch, capsys)) >= 15
    trained = {path.parent.name for path in (folder / "runs").glob("*/results.json")}
    assert trained == {"scan-length-universal", "deeper", "deeper-again", "mine", "lm-universal"}
    # The first was extended, so that it was evaluated once more on its way.
    extended, whole = (evaluations(folder / "runs" / name) for name in ("deeper", "deeper-again"))
    assert extended[-1:] == whole
    assert len((folder / "runs" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()) == 4


@pytest.mark.slow
def test_a_sweep_is_run_shown_and_drawn(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = run([command for command in commands(TOUR) if is_of_the_sweep(command)], monkeypatch, capsys)
    assert [arguments[0] for arguments, _ in ran] == ["sweep", "table", "plot"]


@pytest.mark.slow
def test_the_three_reports_are_made_and_every_analysis_applies_to_the_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ostinato.analysis.studies.token_map.can_umap", lambda: False)  # compiling it takes a minute
    ran = run([command for command in commands(TOUR) if is_of_a_report(command)], monkeypatch, capsys)
    outputs = {arguments[1]: out for arguments, out in ran if arguments[0] == "analyze"}
    wanted = ["passivization-universal-sparse-halting", "one-wide-ffn-multi30k-baseline", "x-moe-small-x-moe"]
    assert list(outputs) == [f"runs/{name}" for name in wanted if "multi30k" not in name or UPSTREAM.is_dir()]
    first = next(iter(outputs.values()))
    assert "left out" not in first
    assert first.count("made ") == len(STUDIES)
    assert all((folder / name / "analysis" / "report.html").is_file() for name in outputs)
