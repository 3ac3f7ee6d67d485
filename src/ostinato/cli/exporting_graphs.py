"""`ostinato export onnx` and `export torch`: runs as graphs that need no code of ours."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from ostinato.cli.options import AccessOption, CheckpointOption, RunArgument, SetOption, options_given
from ostinato.cli.output import print_line
from ostinato.errors import ConfigError, see

ONNX_EPILOG = "Example: ostinato export onnx runs/x x.onnx --int8"
TORCH_EPILOG = "Example: ostinato export torch runs/x x.pt2"
_MISSING = "ONNX's libraries are not here ({error}): pip install 'ostinato[onnx]'" + see("onnx")


def export_onnx(
    context: typer.Context,
    run: RunArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file, X.onnx; of pairs X.encoder.onnx, ...")],
    checkpoint: CheckpointOption = None,
    int8: Annotated[bool, typer.Option("--int8", help="Also X.int8.onnx, weights of 8 bits, and both losses.")] = False,
    split: Annotated[str, typer.Option("--split", help="With --int8: what the losses are measured on.")] = "dev",
    max_examples: Annotated[int, typer.Option("--max-examples", min=1, help="With --int8: first ones of it.")] = 500,
    settings: SetOption = None,
    access: AccessOption = None,
) -> None:
    """Write a run as ONNX: logits and caches as inputs and outputs, rounds as an input where all are alike.

    An encoder and a decoder are two files; see docs/onnx.md for names and sizes of inputs and outputs.
    """
    from ostinato.evaluation.loading import load
    from ostinato.tasks.registry import build_task

    if not int8 and (named := options_given(context, ("split", "max_examples"))):
        raise typer.BadParameter("losses are measured with --int8", param_hint=named)
    try:
        import onnx_ir  # noqa: F401
        import onnxscript  # noqa: F401

        from ostinato.onnx.export import export_onnx
        from ostinato.onnx.session import held_out_batches, held_out_loss
    except ImportError as error:
        raise ConfigError(_MISSING.format(error=error)) from error
    loaded = load(run, checkpoint=checkpoint, device="cpu", overrides=settings or [])
    if int8:  # what cannot be measured on is found before any file is written
        task = build_task(loaded.recipe.task, loaded.recipe.data, access, trains=False)
        examples = list(islice(task.examples(split), max_examples))
        batches = held_out_batches(loaded, examples, split)
    written = export_onnx(loaded, file, int8=int8)
    for path in written:
        print_line(f"{path}: {path.stat().st_size:,} bytes")
    if int8:
        n = len(written) // 2
        plain, small = (held_out_loss(loaded, files, batches) for files in (written[:n], written[n:]))
        print_line(f"loss on {len(examples)} examples of {split}: {plain:.4f}, with int8 {small:.4f} nats a label")


def export_torch(
    run: RunArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file, X.pt2; of pairs X.encoder.pt2, ...")],
    checkpoint: CheckpointOption = None,
    settings: SetOption = None,
) -> None:
    """Write a run as programs of torch.export: the graphs that ONNX files hold, see docs/onnx.md."""
    from ostinato.evaluation.loading import load
    from ostinato.onnx.export import export_torch

    loaded = load(run, checkpoint=checkpoint, device="cpu", overrides=settings or [])
    for path in export_torch(loaded, file):
        print_line(f"{path}: {path.stat().st_size:,} bytes")
