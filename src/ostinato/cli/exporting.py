"""`ostinato export`: runs as models of other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ostinato.cli.exporting_graphs import ONNX_EPILOG, TORCH_EPILOG, export_onnx, export_torch
from ostinato.cli.options import CheckpointOption, RunArgument
from ostinato.cli.output import print_line
from ostinato.errors import ConfigError

EPILOG = "Example: ostinato export hf runs/x models/x"

app = typer.Typer(
    help="Write a run as another library's model.", epilog=EPILOG, no_args_is_help=True, rich_markup_mode=None
)

app.command("onnx", epilog=ONNX_EPILOG)(export_onnx)
app.command("torch", epilog=TORCH_EPILOG)(export_torch)


@app.command("hf", epilog=EPILOG)
def export_hf(
    run: RunArgument,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the model is written: a new folder.")],
    checkpoint: CheckpointOption = None,
    plain: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="With --unroll: llama, qwen3, gpt2 or marian."),
    ] = None,
    unroll: Annotated[
        bool, typer.Option("--unroll", help="Repeat shared weights: a plain model that needs no code of ours.")
    ] = False,
) -> None:
    """Write a run as a Hugging Face model: weights, fast tokenizer, settings of generation, model card.

    `import ostinato.hf` makes it known to AutoModelForCausalLM and its like; so does trust_remote_code.
    """
    from ostinato.evaluation.loading import load

    if unroll != (plain is not None):
        raise typer.BadParameter("--as and --unroll go together", param_hint="--unroll")
    try:
        from ostinato.hf.export import export_plain, export_run
    except ImportError as error:
        raise ConfigError(f"the Hugging Face library is not here ({error}): pip install 'ostinato[hf]'") from error
    loaded = load(run, checkpoint=checkpoint, device="cpu")
    written = export_run(loaded, folder) if plain is None else export_plain(loaded, folder, plain)
    print_line(f"{written}: {loaded.recipe.name}, {loaded.model.n_parameters():,} parameters")
