"""Arguments and options that several commands take, declared once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ostinato.cli.completion import recipe_names, setting_keys

MODEL, SEARCH, WHERE = "Model", "Search", "Where the work is done"
"""Groups of options in `--help`."""
STORE = Path("runs/store")


def _access(mirror: str | None) -> Any:
    from ostinato.data.registry import DataAccess

    return DataAccess.default(mirror)


def _reading_setting(setting: str) -> str:
    """Refuse changes of the model and its training, which are fixed; `load` refuses those of the tokenizers."""
    if not setting.startswith(("decoding.", "data.")) or "=" not in setting:
        reason = f"'{setting}' must be decoding.KEY=VALUE or data.KEY=VALUE: all others are the trained model's"
        raise typer.BadParameter(reason, param_hint="--set")
    return setting


def _halting_threshold(value: str) -> float | str:
    try:
        return value if value == "trained" else float(value)
    except ValueError:
        reason = f"'{value}' must be a number in [0, 1], or trained"
        raise typer.BadParameter(reason, param_hint="--halting-threshold") from None


def _round_lengths(value: str) -> tuple[float, ...]:
    try:
        return tuple(float(length) for length in value.split(","))
    except ValueError:
        reason = f"'{value}' must be numbers without spaces between them: 0.25,0.25,0.5"
        raise typer.BadParameter(reason, param_hint="--round-lengths") from None


def _store(value: str | Path) -> Path:
    """Return a folder; file:// says one too."""
    text = str(value).removeprefix("file://")
    if "://" in text:
        from ostinato.experiments.sweep.remote import without_password, working_folder

        folder, name = working_folder(text), without_password(text)
        where = f"{folder} has what a sweep has of it here" if folder.is_dir() else "no sweep has used it here"
        reason = f"'{name}' is no folder, as this command needs: {where}"
        raise typer.BadParameter(reason, param_hint="--store")
    if str(value) == "file://":
        raise typer.BadParameter(f"'{value}' names no folder", param_hint="--store")
    if Path(text).is_file():
        raise typer.BadParameter(f"'{text}' is a file, no folder", param_hint="--store")
    return Path(text)


def _sweep_store(value: str | Path) -> Path | str:
    """Return a folder, or an address."""
    text = str(value)
    return text if "://" in text and not text.startswith("file://") else _store(text)


RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE", help="A recipe's name, a YAML file, or a run directory.", autocompletion=recipe_names
    ),
]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Settings to change: dotted.key=value.", autocompletion=setting_keys),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, for example runs/x.")]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace the file that is to be written, if there is one.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
AccessOption = Annotated[
    Any,
    typer.Option(
        "--mirror",
        metavar="DIR_OR_URL",
        parser=str,
        callback=_access,
        help="Take downloads from here instead of their own address (also: OSTINATO_MIRROR).",
    ),
]
"""A `DataAccess`; None only where a command is called as a function."""
TrustOption = Annotated[
    bool, typer.Option("--trust", help="Take what comes for files whose SHA-256 is not known, and store its hash.")
]
CheckpointOption = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        help="best, last, best:N or last:N (the mean of N), or the name of a checkpoint. Default: the "
        "recipe's evaluation.checkpoint.",
        rich_help_panel=MODEL,
    ),
]
NoVerifyOption = Annotated[
    bool,
    typer.Option(
        "--no-verify",
        help="Load weights although their SHA-256 is not that which was written beside them, or they are not finite.",
        rich_help_panel=MODEL,
    ),
]
StepsOption = Annotated[
    int | None,
    typer.Option(
        "--n-steps",
        min=1,
        help="Rounds (not steps) to run, for models whose rounds share all weights.",
        rich_help_panel=MODEL,
    ),
]
RoundLengthsOption = Annotated[
    Any,
    typer.Option(
        "--round-lengths",
        parser=_round_lengths,
        metavar="D1,D2,...",
        help="Lengths of the rounds to run, whose sum is 1, for models with modulation by time: 0.25,0.25,0.5.",
        rich_help_panel=MODEL,
    ),
]
CachedRoundsOption = Annotated[
    int | None,
    typer.Option(
        "--cached-rounds",
        min=1,
        help="In decoding, keep the keys and values of so many rounds of a loop only; 1: of the last one. Approximate.",
        rich_help_panel=MODEL,
    ),
]
HaltingThresholdOption = Annotated[
    Any,
    typer.Option(
        "--halting-threshold",
        parser=_halting_threshold,
        metavar="X|trained",
        help="Halt tokens once their probabilities add up to X (ACT: 1 - epsilon; with --exit: once their confidence "
        "reaches X); trained: as in training. Default: what tune-threshold chose for the checkpoint, if it did, "
        "else trained.",
        rich_help_panel=MODEL,
    ),
]
ExitOption = Annotated[
    str | None,
    typer.Option(
        "--exit",
        metavar="CRITERION",
        help="Stop tokens by a criterion that needs no training: change, cosine, agreement, certainty, settled, margin "
        "or stable.",
        rich_help_panel=MODEL,
    ),
]
ExitScopeOption = Annotated[
    Literal["token", "sequence"],
    typer.Option(
        "--exit-scope",
        help="With --exit: every token for itself, or all of a sentence together (not in causal stacks).",
        rich_help_panel=MODEL,
    ),
]
OracleOption = Annotated[
    Literal["token", "sequence"] | None,
    typer.Option(
        "--oracle",
        help="Score every label, or every sentence, by the first round that has it right: a yardstick for exits.",
        rich_help_panel=MODEL,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        parser=_reading_setting,
        metavar="KEY=VALUE",
        help="Setting of the run to change, decoding.* or data.*, may be repeated: decoding.length_penalty.alpha=1.",
        rich_help_panel=SEARCH,
    ),
]
BeamOption = Annotated[
    int | None, typer.Option("--beam", min=1, help="Beam width; 1 is greedy.", rich_help_panel=SEARCH)
]
ExpectedDepthOption = Annotated[
    list[str] | None,
    typer.Option(
        "--expected-depth",
        metavar="STACK=ROUNDS",
        help="Rounds a token is expected to take part in, where tokens halt; may be repeated; default: all rounds.",
    ),
]
SourceVocabOption = Annotated[int | None, typer.Option("--source-vocab", min=1, help="Rows of the source vocabulary.")]
TargetVocabOption = Annotated[int | None, typer.Option("--target-vocab", min=1, help="Rows of the target vocabulary.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps.", rich_help_panel=MODEL)]
StoreOption = Annotated[
    Any,
    typer.Option("--store", parser=_store, metavar="DIR", help="Directory of runs, each under its content address."),
]
SweepStoreOption = Annotated[
    Any,
    typer.Option(
        "--store",
        parser=_sweep_store,
        metavar="DIR_OR_URL",
        help="Directory of runs, each under its content address; or any URL that fsspec reads and writes.",
    ),
]
InputOption = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME=PATH", help="A file that the sweep or claim needs; may be repeated."),
]


ExecutorOption = Annotated[
    Literal["local", "ray", "slurm"],
    typer.Option(
        "--executor",
        help="Processes of this machine, tasks of a Ray cluster, or jobs of SLURM (docs/clusters.md).",
        rich_help_panel=WHERE,
    ),
]
BatchExecutorOption = Annotated[
    Literal["local", "ray"],
    typer.Option(
        "--executor",
        help="--jobs are processes of this machine, or actors of a Ray cluster (docs/clusters.md).",
        rich_help_panel=WHERE,
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        help="Runs at once, each in a process of its own. Default: 1 here; at a cluster as many as it takes.",
        rich_help_panel=WHERE,
    ),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="Ray: the cluster's address; auto: that of this machine. Default: RAY_ADDRESS, else a Ray of its own.",
        rich_help_panel=WHERE,
    ),
]
GpusOption = Annotated[
    float, typer.Option("--gpus", min=0, help="Ray and SLURM: GPUs of every run or process.", rich_help_panel=WHERE)
]
JobsOption = Annotated[
    int, typer.Option("--jobs", min=1, help="Processes that do the batches; 1: this one.", rich_help_panel=WHERE)
]
JournalOption = Annotated[
    Path | None,
    typer.Option(
        "--journal",
        metavar="FILE",
        help="Keep here what is done: killed, the same command goes on from it, with the same output.",
        rich_help_panel=WHERE,
    ),
]
SlurmOption = Annotated[
    list[str] | None,
    typer.Option(
        "--slurm",
        metavar="KEY=VALUE",
        help="SLURM: setting of a job as submitit calls it, such as slurm_partition=gpu or timeout_min=600; may be "
        "repeated.",
        rich_help_panel=WHERE,
    ),
]


def run_settings(settings: list[str] | None, **search: Any) -> list[str]:
    """Return what `--set` changes, after the kind of search that other options choose: some have an effect only there.

    Args:
        search: settings of `DecodingConfig`; None where the option is not given.
    """
    from ostinato.config.decoding import with_strategy

    if not settings:
        return []
    chosen = with_strategy({name: value for name, value in search.items() if value is not None})
    if chosen.get("beam") == 1:  # which keeps no more than one output
        chosen["n_best"] = 1
    return [*(f"decoding.{name}={value}" for name, value in chosen.items()), *settings]


def read_inputs(given: list[str] | None) -> dict[str, str]:
    """Return the paths that `--input NAME=PATH` names.

    Raises:
        ConfigError: every one that is not of this form.
    """
    from ostinato.errors import ConfigError, Problem

    pairs = {text: text.partition("=") for text in given or []}
    if wrong := [text for text, (name, sign, path) in pairs.items() if not (name and sign and path)]:
        raise ConfigError([Problem("--input", text, "must look like NAME=PATH") for text in wrong])
    return {name: path for name, _, path in pairs.values()}


def options_given(context: typer.Context, names: Iterable[str]) -> str:
    """Return those of the named options that are on the command line, as they are written there; else an empty text."""
    sources = {name: context.get_parameter_source(name) for name in names}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    written = {one.name: one.opts[0] for one in context.command.params}
    return " ".join(written[name] for name in given)


def words_of(context: typer.Context, names: Iterable[str]) -> list[str]:
    """Return those of the named options that are not at their default, with their values, as words of a command."""
    defaults = {parameter.name: parameter.default for parameter in context.command.params}
    unlike = {name: context.params[name] for name in names if context.params[name] != defaults[name]}
    return [word for name, value in unlike.items() for word in ("--" + name.replace("_", "-"), str(value))]


def split_settings(words: list[str]) -> tuple[list[str], list[str]]:
    """Split words into names and settings (key=value); the name of a file or folder may hold a "=", too."""
    # Of a word longer than the name of a file may be, `Path.exists` raises what the system says.
    settings = [word for word in words if "=" in word and not os.path.lexists(word)]
    return [word for word in words if word not in settings], settings
