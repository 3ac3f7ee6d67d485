"""Exported graphs in onnxruntime and torch.export give what the model gives, whatever the sizes and the rounds."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("onnx", reason="needs the extra onnx")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")
pytest.importorskip("onnxscript", reason="needs the extra onnx")

sys.path.append(str(Path(__file__).parents[1] / "hf"))

import kinds
import onnxruntime
import runs

import onnx
from ostinato.cli import main
from ostinato.errors import CheckpointError, DataError
from ostinato.evaluation.loading import LoadedRun
from ostinato.models import Model
from ostinato.onnx import export
from ostinato.onnx.export import quantise, write_onnx
from ostinato.onnx.graphs import Graph, Tensors, graphs_of
from ostinato.onnx.session import GraphSession, held_out_batches, held_out_loss
from ostinato.tasks.registry import build_task

ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-4
SIZES = [
    {"batch": 1, "columns": 1, "cached": 0, "rounds": 1, "source": 1},
    {"batch": 3, "columns": 6, "cached": 0, "rounds": 5, "source": 4},
    {"batch": 2, "columns": 1, "cached": 4, "rounds": 3, "source": 7},
]


def code_of(*words: str) -> Any:
    """Return the exit code of a command."""
    with pytest.raises(SystemExit) as end:
        main(words)
    return end.value.code or 0


def filled(graph: Graph, **sizes: int) -> Tensors:
    """Return inputs with random ids and caches, and padding on the left of the first sentence."""
    draws = torch.Generator().manual_seed(3)
    given = graph.example(**sizes)
    given["ids"] = torch.randint(4, 15, given["ids"].shape, generator=draws)
    if sizes["columns"] > 1:
        given["keep"][0, :2] = False
    for name, one in given.items():
        if one.is_floating_point():
            given[name] = torch.randn(one.shape, generator=draws)
    return given


def assert_same(found: Tensors, expected: Tensors, keep_BT: Tensor, what: str) -> None:
    """Compare all tensors, logits of padding aside."""
    assert list(found) == list(expected), "order and names"
    for name, value in expected.items():
        ours, theirs = (one.double().clamp(-1e9, 1e9) for one in (value, found[name]))
        if name == "logits" and ours.shape[:2] == keep_BT.shape:
            ours, theirs = ours[keep_BT], theirs[keep_BT]
        # Keys and values have no norm behind them: what counts is how large they are.
        scale = 1.0 if name == "logits" or not ours.numel() else max(1.0, float(ours.abs().max()))
        difference = float((theirs - ours).abs().max()) if ours.numel() else 0.0
        assert difference <= TOLERANCE * scale, f"{what}, {name}: {difference}"


def check_everywhere(model: Model, tmp_path: Path) -> None:
    """Compare every graph of a model in onnxruntime and as torch.export's program with the module itself."""
    for graph in graphs_of(model):
        program = graph.exported()
        session = GraphSession(written(graph, program, tmp_path))
        for sizes in SIZES:
            given = filled(graph, **sizes)
            with torch.no_grad():
                expected = graph.module(given)
                again = program.module()(given)
            assert_same(again, expected, given["keep"], f"{graph.name} torch.export {sizes}")
            assert_same(session(given), expected, given["keep"], f"{graph.name} onnxruntime {sizes}")


def written(graph: Graph, program: Any, folder: Path) -> Path:
    path = folder / f"{graph.name}.onnx"
    write_onnx(graph, program, path, {})
    return path


@pytest.mark.slow
def test_a_loop_with_halting_runs_any_number_of_rounds_over_one_copy_of_its_weights(tmp_path: Path) -> None:
    model = kinds.language_model("shared, coordinates, ACT")
    check_everywhere(model, tmp_path)
    stored = onnx.load(tmp_path / "model.onnx")
    assert [node.op_type for node in stored.graph.node].count("Loop") == 2  # rounds, and what those left out cache
    sizes = [
        torch.Size(one.dims).numel() for one in stored.graph.initializer if one.data_type == onnx.TensorProto.FLOAT
    ]
    assert sum(sizes) <= model.n_parameters() + 1000


@pytest.mark.slow
def test_a_loop_ends_where_all_tokens_have_halted(tmp_path: Path) -> None:
    model: Any = kinds.encoder_model("shared, coordinates, ACT", "tagging")
    with torch.no_grad():
        model.banks.halting["encoder"].map.bias.fill_(50.0)  # after the first round
    [graph] = graphs_of(model)
    session = GraphSession(written(graph, graph.exported(), tmp_path))
    given = filled(graph, batch=2, columns=3) | {"rounds": torch.tensor(10**12)}
    with torch.no_grad():
        expected = graph.module(given | {"rounds": torch.tensor(2)})
    assert_same(session(given), expected, given["keep"], "as many rounds as would never end")


@pytest.mark.slow
@pytest.mark.parametrize("stack", list(kinds.STACKS))
def test_language_models_of_every_kind(stack: str, tmp_path: Path) -> None:
    check_everywhere(kinds.language_model(stack), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("criterion", ["agreement", "stable"])
def test_exits_by_what_is_predicted(criterion: str, tmp_path: Path) -> None:
    model = kinds.language_model("loop, add, reach")
    with model.execution(exit=criterion, halting_threshold=0.5):
        check_everywhere(model, tmp_path)


@pytest.mark.slow
def test_a_prefix_language_model(tmp_path: Path) -> None:
    check_everywhere(kinds.language_model("shared, window, experts", mask="prefix"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("head", list(kinds.HEADS))
def test_encoders_with_every_head(head: str, tmp_path: Path) -> None:
    check_everywhere(kinds.encoder_model("shared, rotary, stick-breaking", head), tmp_path)


@pytest.mark.slow
def test_an_encoder_and_a_decoder(tmp_path: Path) -> None:
    check_everywhere(kinds.pair_model("shared, coordinates, ACT", "shared, rotary, stick-breaking"), tmp_path)


@pytest.fixture(scope="module")
def looped(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedRun, Path]:
    """Return a run of a looped language model with its exported file."""
    folder = tmp_path_factory.mktemp("looped")
    run = runs.make_run("looped", folder / "run")
    assert code_of("export", "onnx", str(folder / "run"), str(folder / "out.onnx")) == 0
    return run, folder / "out.onnx"


@pytest.mark.slow
def test_weights_of_more_than_a_file_holds_lie_beside_it(
    looped: tuple[LoadedRun, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = pytest.importorskip("torch.onnx._internal.exporter._onnx_program")
    monkeypatch.setattr(module, "_LARGE_MODEL_THRESHOLD", 1000)
    run, _ = looped
    assert code_of("export", "onnx", str(run.directory), str(tmp_path / "out.onnx")) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.onnx", "out.onnx.data"]
    onnxruntime.InferenceSession(tmp_path / "out.onnx")
    (tmp_path / "out.onnx").unlink()
    assert code_of("export", "onnx", str(run.directory), str(tmp_path / "out.onnx")) == 2


@pytest.mark.slow
def test_the_example_writes_what_the_run_writes(looped: tuple[LoadedRun, Path]) -> None:
    run, file = looped
    prompt = [1, 7, 9]
    command = [sys.executable, str(ROOT / "examples" / "onnx_in_ten_lines.py"), str(file), *map(str, prompt)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [int(word) for word in done.stdout.split()][len(prompt) :]
    [expected] = run.model.generate(torch.tensor([prompt]), max_length=20)
    eos = run.model.special_ids.eos
    assert [one for one in found if one != eos] == expected[: len(found)]


@pytest.mark.slow
def test_files_say_what_they_are_and_are_never_overwritten(
    looped: tuple[LoadedRun, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = looped
    about = json.loads(onnxruntime.InferenceSession(file).get_modelmeta().custom_metadata_map["ostinato"])
    assert about["rounds"] == 4
    assert about["special_ids"] == {"pad": 0, "bos": 1, "eos": 2}
    before = file.read_bytes()
    assert code_of("export", "onnx", str(run.directory), str(file)) == 2
    assert "nothing is overwritten" in capsys.readouterr().err
    assert file.read_bytes() == before


@pytest.mark.slow
def test_int8_is_smaller_and_its_loss_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = tmp_path / "dev.jsonl"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in runs.TEXTS))
    runs.make_run("looped", tmp_path / "run", "model.d_model=64", f"data.train={texts}", f"data.dev={texts}")
    assert code_of("export", "onnx", str(tmp_path / "run"), str(tmp_path / "x.onnx"), "--int8") == 0
    plain, small = tmp_path / "x.onnx", tmp_path / "x.int8.onnx"
    assert small.stat().st_size < plain.stat().st_size
    out = capsys.readouterr().out
    loss, with_int8 = map(float, re.findall(r"\d+\.\d{4}", out.split("of dev: ")[-1]))
    run: Any = runs.ostinato.load(tmp_path / "run")
    assert loss == pytest.approx(run.evaluate("dev")["loss"], abs=1e-3)
    assert with_int8 == pytest.approx(loss, abs=0.5)
    # Of a graph whose weights lie beside it, those of 8 bits do, too.
    large, of_large = tmp_path / "large.onnx", tmp_path / "large.int8.onnx"
    onnx.save(onnx.load(plain), large, save_as_external_data=True, location="large.onnx.data", size_threshold=0)
    quantise(large, of_large)
    assert of_large.stat().st_size + Path(f"{of_large}.data").stat().st_size < 1.1 * small.stat().st_size
    assert of_large.stat().st_size < small.stat().st_size
    given = filled(graphs_of(run.model)[0], **SIZES[0])
    found = [GraphSession(file)(given)["logits"] for file in (small, of_large)]
    assert torch.equal(*found)


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_files_have_the_permissions_of_the_umask_and_leftovers_of_killed_exports_go(tmp_path: Path, umask: int) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    file = tmp_path / "shared" / "x.pt2"
    (left := tmp_path / "shared" / f".partial-{'0' * 16}.pt2").mkdir()
    (left / "x.pt2").write_bytes(b"half")
    before = os.umask(umask)
    try:
        with export._new_files([file]) as (written,):
            assert not written.exists()
            written.write_bytes(b"whole")
    finally:
        os.umask(before)
    assert [path.name for path in file.parent.iterdir()] == ["x.pt2"]
    assert file.stat().st_mode & 0o777 == 0o666 & ~umask


def test_of_files_that_appeared_meanwhile_none_is_replaced_and_no_other_is_written(tmp_path: Path) -> None:
    def write() -> None:
        with export._new_files(files) as written:
            for path in written:
                path.write_bytes(b"ours")
            files[1].write_bytes(b"theirs")

    files = [tmp_path / "x.encoder.onnx", tmp_path / "x.decoder.onnx"]
    with pytest.raises(CheckpointError, match=r"x\.decoder\.onnx is there: nothing is overwritten; delete it, or"):
        write()
    assert [path.name for path in tmp_path.iterdir()] == ["x.decoder.onnx"]
    assert files[1].read_bytes() == b"theirs"


def test_a_full_disk_is_told_of_the_file_of_torch_and_not_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    runs.make_run("halting", tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        assert code_of("export", "torch", str(tmp_path / "run"), str(tmp_path / "x.pt2")) == 1
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"{tmp_path / 'x.pt2'}: No space left on device; the disk is full")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.slow
def test_the_loss_of_blocks_is_measured_on_texts_as_long_as_there_are_positions(tmp_path: Path) -> None:
    texts = tmp_path / "dev.txt"
    texts.write_text(f"{'the cat sat on the mat ' * 9}\nthe cat\n", encoding="utf-8")
    positions = "model.decoder.positions={kind: learned, max_length: 12}"
    data = (f"data.train={texts}", f"data.dev={texts}", "data.block_length=12", "decoding.max_length=12")
    runs.make_run("language-model", tmp_path / "run", positions, *data)
    run: Any = runs.ostinato.load(tmp_path / "run")
    assert code_of("export", "onnx", str(tmp_path / "run"), str(tmp_path / "x.onnx")) == 0
    examples = list(build_task(run.recipe.task, run.recipe.data).examples("dev"))
    assert held_out_loss(run, [tmp_path / "x.onnx"], held_out_batches(run, examples, "dev")) > 0


@pytest.mark.slow
def test_torch_programs_are_read_again(tmp_path: Path) -> None:
    run = runs.make_run("halting", tmp_path / "run")
    assert code_of("export", "torch", str(tmp_path / "run"), str(tmp_path / "x.pt2")) == 0
    [graph] = graphs_of(run.model)
    given = filled(graph, batch=2, columns=3, cached=2, rounds=3)
    with torch.no_grad():
        found = torch.export.load(tmp_path / "x.pt2").module()(given)
        assert_same(found, graph.module(given), given["keep"], "read again")


def test_what_cannot_be_exported_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = str(tmp_path / "run")
    runs.make_run("looped", tmp_path / "run")

    def line_of(*words: str) -> str:
        assert code_of("export", *words) == 2
        [line] = capsys.readouterr().err.strip().splitlines()
        return line

    assert "must end in .onnx" in line_of("onnx", run, str(tmp_path / "x.bin"))
    assert "must end in .pt2" in line_of("torch", run, str(tmp_path / "x.onnx"))
    assert "data.dev names no file" in line_of("onnx", run, str(tmp_path / "x.onnx"), "--int8")  # no text to measure on
    measured = ("onnx", run, str(tmp_path / "x.onnx"), "--int8", "--set", f"data.dev={tmp_path / 'dev.txt'}")
    (tmp_path / "dev.txt").write_text("the old man\nthe zebra\n", encoding="utf-8")
    assert "dev: example 2, target: 'zebra' is not among" in line_of(*measured)
    (tmp_path / "dev.txt").write_text("the old man\n", encoding="utf-8")
    short = ("--set", "data.max_target_length=3", "--set", "data.over_length=error")
    assert "dev: example 1: the target has 4 tokens" in line_of(*measured, *short)
    with pytest.raises(DataError, match="dev: no label of these examples counts"):
        held_out_batches(runs.ostinato.load(run), [], "dev")
    assert code_of("export", "onnx", run, str(tmp_path / "x.onnx"), "--split", "test") == 2
    assert "losses are measured with --int8" in capsys.readouterr().err
    runs.make_run("looped", tmp_path / "kept", "decoding.cached_rounds=1")
    for kind, name in (("onnx", "x.onnx"), ("torch", "x.pt2")):
        assert "decoding keeps 1 of the loop's rounds" in line_of(kind, str(tmp_path / "kept"), str(tmp_path / name))
    (tmp_path / "there.pt2").write_text("kept")
    assert "nothing is overwritten" in line_of("torch", run, str(tmp_path / "there.pt2"))
    assert (tmp_path / "there.pt2").read_text() == "kept"
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert "pip install 'ostinato[onnx]'" in line_of("onnx", run, str(tmp_path / "x.onnx"))
    assert not list(tmp_path.glob("*.onnx"))


def test_recurrent_models_are_refused() -> None:
    with pytest.raises(CheckpointError, match="only Transformers can"):
        graphs_of(kinds.recurrent_model())
