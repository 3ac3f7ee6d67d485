"""`ostinato import`: models of other libraries as runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ostinato.cli.output import print_line, print_stderr

EPILOG = "Example: ostinato import hf models/gpt2 --run-dir runs/gpt2"

app = typer.Typer(
    help="Make a run of another library's model.", epilog=EPILOG, no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def _libraries() -> None:
    """Keep `hf` a command of its own, although there is one library only."""


@app.command("hf", epilog=EPILOG)
def import_hf(
    source: Annotated[str, typer.Argument(metavar="FOLDER", help="A model's folder, or owner/name of a hub.")],
    run_dir: Annotated[Path, typer.Option(metavar="RUN", help="Where the run is written: a new folder.")],
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A tokenizer.json; default: that of the model's folder.")
    ] = None,
) -> None:
    """Make a run of a Hugging Face model.

    Read are GPT-2, Llama, Mistral, Qwen2, Qwen3, Mixtral, JetMoE, HrmText, BERT, ModernBERT, ALBERT, T5, Marian and
    BART; from safetensors only. The tokenizer is kept as it is. Commands that read runs read the new one;
    training.init_from=RUN fine-tunes it. Of a name that is no folder a hub is asked, which one line says first.
    """
    from ostinato.training.imported import import_run

    found = import_run(source, run_dir, tokenizer, print_stderr)
    print_line(f"{run_dir}: {found.recipe.name}, {found.model.n_parameters():,} parameters")
