"""A run as files of ONNX or torch.export, a file a graph (`ostinato.onnx.graphs`).

FILE                          the graph of a model that has one
STEM.encoder.onnx, STEM.decoder.onnx    those of an encoder and a decoder, FILE being STEM.onnx
STEM.int8.onnx, ...           the same with weights of 8 bits, where asked for

Every ONNX file says what it is in its metadata: `ostinato`, JSON with the recipe's name, the graph, the rounds that its
loop runs by the plan, and the ids of padding, begin and end symbol.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from ostinato.data.disk import sync
from ostinato.data.output_files import name_new, new_partial_folder
from ostinato.errors import CheckpointError, see
from ostinato.evaluation.loading import LoadedRun
from ostinato.loggers import errors_only
from ostinato.onnx.graphs import Graph, graphs_of
from ostinato.system_errors import naming

Write = Callable[[Graph, Path], None]


def export_onnx(run: LoadedRun, file: str | Path, *, int8: bool = False) -> list[Path]:
    """Write a run as ONNX files.

    Args:
        file: ends in .onnx. int8: write files with weights of 8 bits, too, behind the others in the list.

    Returns:
        The files, in the order of the graphs.

    Raises:
        CheckpointError: a file is there, or has another ending; a model that cannot be written so.
    """
    run.check_exportable()
    plain, graphs = Path(file), graphs_of(run.model)
    files = _files(plain, ".onnx", graphs)
    small = _files(plain.with_suffix(".int8.onnx"), ".onnx", graphs) if int8 else []
    with _new_files([*files, *small]) as written:
        for graph, path in zip(graphs, written, strict=False):
            with _one_line("ONNX"), naming(path):
                write_onnx(graph, graph.exported(), path, _about(run, graph))
        for path, target in zip(written[: len(graphs)], written[len(graphs) :], strict=False):
            with naming(target):
                quantise(path, target)
    return [*files, *small]


def export_torch(run: LoadedRun, file: str | Path) -> list[Path]:
    """Write a run as files of torch.export, which `torch.export.load` reads. See `export_onnx`.

    Raises:
        CheckpointError: a file is there, or has another ending than .pt2; a model that cannot be written so.
    """
    run.check_exportable()
    graphs = graphs_of(run.model)
    files = _files(Path(file), ".pt2", graphs)
    with _new_files(files) as written:
        for graph, path in zip(graphs, written, strict=True):
            held = io.BytesIO()  # where its writer cannot go on writing to a disk, it ends the process
            with _one_line("torch.export"):
                torch.export.save(graph.exported(), held)
            with naming(path):
                path.write_bytes(held.getbuffer())
    return files


def quantise(file: Path, target: Path) -> None:
    """Write a graph whose products with weights are of 8 bits: weights quantised now, activations at run time.

    (onnxruntime's dynamic quantisation; embeddings stay as they are unless they are products' weights.)
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    is_apart = Path(f"{file}.data").exists()  # more than a file can hold, and maybe in 8 bits, too
    how: dict[str, Any] = {"weight_type": QuantType.QInt8, "extra_options": {"EnableSubgraph": True}}
    with errors_only("root"):
        quantize_dynamic(file, target, use_external_data_format=is_apart, **how)


def _files(file: Path, ending: str, graphs: Sequence[Graph]) -> list[Path]:
    if file.suffix != ending:
        raise CheckpointError(f"{file}: the file's name must end in {ending}")
    files = [file] if len(graphs) == 1 else [file.with_suffix(f".{graph.name}{ending}") for graph in graphs]
    for one in (*files, *(Path(f"{file}.data") for file in files)):
        if one.exists():
            raise CheckpointError(_is_there(one))
    return files


def _is_there(file: Path) -> str:
    return f"{file} is there: nothing is overwritten; delete it, or choose another name"


@contextmanager
def _new_files(files: Sequence[Path]) -> Iterator[list[Path]]:
    """Yield paths to write; when the block ends without an error they become these files, else they are gone.

    What a process left that was killed on the way is deleted by the next that writes into the folder.

    Raises:
        CheckpointError: another program has made one of the files meanwhile, which is kept.
    """
    parent = files[0].parent
    with new_partial_folder(files[0]) as partial, naming(parent, partial), ExitStack() as named:
        written = [partial / file.name for file in files]
        yield written
        # Beside a graph of more than a file can hold lie its weights, which it knows by their file's name.
        beside = [(Path(f"{path}.data"), Path(f"{file}.data")) for path, file in zip(written, files, strict=True)]
        given = [(path, file) for path, file in beside if path.exists()]
        for path, file in [*given, *zip(written, files, strict=True)]:
            sync(path)
            try:
                name_new(path, file)
            except FileExistsError as error:
                raise CheckpointError(_is_there(file)) from error
            named.callback(file.unlink)
        named.pop_all()


def write_onnx(graph: Graph, program: torch.export.ExportedProgram, path: Path, about: dict[str, Any]) -> None:
    """Write a graph as an ONNX file.

    Args:
        program: as `graph.exported` returned it. about: what the file's metadata says.
    """
    import onnx_ir

    names: dict[str, Any] = {"input_names": list(graph.inputs), "output_names": list(graph.outputs)}
    with errors_only("torch.onnx", "onnxscript", "onnx_ir"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its libraries about each other
        made: Any = torch.onnx.export(program, dynamo=True, verbose=False, **names)
    model = made.model
    for values, sizes in ((model.graph.inputs, graph.inputs), (model.graph.outputs, graph.outputs)):
        for value in values:
            value.shape = onnx_ir.Shape(sizes[value.name])
    model.metadata_props["ostinato"] = json.dumps(about)
    made.save(path)


def _about(run: LoadedRun, graph: Graph) -> dict[str, Any]:
    special = run.model.special_ids
    ids = {"pad": special.pad, "bos": special.bos, "eos": special.eos}
    return {"recipe": run.recipe.name, "graph": graph.name, "rounds": graph.rounds, "special_ids": ids}


@contextmanager
def _one_line(format: str) -> Iterator[None]:
    """Turn what its tracer says of a model that it cannot write into one line."""
    try:
        yield
    except (torch.onnx.OnnxExporterError, RuntimeError, NotImplementedError) as error:
        reason = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
        raise CheckpointError(f"this model cannot be written for {format}: {reason[0]}{see('onnx')}") from error
