"""`ostinato export`: runs as models of other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ostinato.cli.exporting_graphs import ONNX_EPILOG, TORCH_EPILOG, export_onnx, export_torch
from ostinato.cli.options import AccessOption, CheckpointOption, RunArgument, SetOption
from ostinato.cli.output import print_line
from ostinato.cli.results import scored_splits
from ostinato.errors import ConfigError, see

EPILOG = "Example: ostinato export hf runs/x models/x"
_MISSING = "the Hugging Face library is not here ({error}): pip install 'ostinato[hf]'" + see("hugging-face")

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
        typer.Option("--as", metavar="NAME", help="With --unroll: llama, qwen3, gpt2, marian, bart or t5."),
    ] = None,
    unroll: Annotated[
        bool, typer.Option("--unroll", help="Repeat shared weights: a plain model that needs no code of ours.")
    ] = False,
    settings: SetOption = None,
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
        raise ConfigError(_MISSING.format(error=error)) from error
    loaded = load(run, checkpoint=checkpoint, device="cpu", overrides=settings or [])
    written = export_run(loaded, folder) if plain is None else export_plain(loaded, folder, plain)
    print_line(f"{written}: {loaded.recipe.name}, {loaded.model.n_parameters():,} parameters")


@app.command("lm-eval", epilog="Example: ostinato export lm-eval runs/x tasks/x --split test")
def export_lm_eval(
    run: RunArgument,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the files are written: a new folder.")],
    split: Annotated[
        list[str] | None, typer.Option(help="Split of the run's task, may be repeated; default: the recipe's.")
    ] = None,
    settings: SetOption = None,
    access: AccessOption = None,
) -> None:
    """Write splits of a run's task as task files of lm-eval: a YAML file and a JSON lines file each.

    Wrong targets of a task become choices; all else is scored by the likelihood of its targets.
    """
    from ostinato.evaluation.loading import load

    try:
        from ostinato.hf.harness_tasks import write_tasks
    except ImportError as error:
        raise ConfigError(_MISSING.format(error=error)) from error
    loaded = load(run, device="cpu", overrides=settings or [])
    for file in write_tasks(loaded, folder, scored_splits(loaded, split), access):
        print_line(str(file))
