"""A run made of a model of the Hugging Face library: as if it had been trained here, with no update done.

    recipe.yaml, versions.json, data.json, tokenizers/joint.json     as every run has them
    checkpoints/update-000000/, last.json, best.json                  the weights

Then what reads runs reads it: plan, evaluate (data.dev=...), generate, analyze, training.init_from.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from ostinato.data.disk import sha256_of
from ostinato.data.output_files import new_output_folder
from ostinato.errors import CheckpointError, on_one_line, see
from ostinato.interop.pretrained import Pretrained, other_ends, other_rates, other_search, read_pretrained
from ostinato.models import save_model
from ostinato.system_errors import naming, system_error
from ostinato.training.checkpoint import Checkpoints
from ostinato.training.rundir import RunDirectory

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_READ = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*.safetensors",
)
"""What is read of a folder, and so fetched: repositories hold the same weights in other forms beside these."""
_OF_THE_CACHE = (errno.ENOSPC, errno.EROFS, errno.EACCES, *([errno.EDQUOT] if hasattr(errno, "EDQUOT") else []))
"""Errors of the disk that a hub's files are written to."""


def import_run(
    source: str, run_dir: str | Path, tokenizer: str | Path | None = None, say: Callable[[str], None] = lambda _: None
) -> Pretrained:
    """Write a run directory with the model and the tokenizer of a folder, and return what was read.

    Args:
        source: a folder; or owner/name of a hub, of which the files that are read are fetched where the cache of
            huggingface_hub has them not.
        tokenizer: a tokenizer.json, or a folder that holds one; None: that of the model.
        say: is given a line before a hub is asked, and of end symbols, settings of `generate` and rates of training
            that the run has not.

    Raises:
        CheckpointError, DataError, ConfigError: as `ostinato.interop.pretrained.read_pretrained`; the run directory
            holds something already; no folder of that name, and no hub that gives such a model.
    """
    run = RunDirectory(Path(run_dir))
    run.check_empty()
    folder = _folder_of(source, say)
    found = read_pretrained(folder, tokenizer, Path(source).resolve().name)
    end = found.model.special_ids.eos
    if found.recipe.model.generates and (others := other_ends(folder, end)):
        names = ", ".join(map(str, others))
        say(f"{source}: outputs of the run end at the symbol {end} alone, of a model that also ends at {names}")
    if found.recipe.model.generates and (settings := other_search(folder, found.recipe.decoding)):
        say(f"{source}: the run searches by its own decoding.*, and not by {', '.join(settings)}")
    if rates := other_rates(folder, found.recipe.model.dropout):
        say(f"{source}: the run trains by its own settings, and not by {', '.join(rates)}")
    write_run(found, run, {file: sha256_of(file) for file in _files(folder)})
    return found


def write_run(found: Pretrained, run: RunDirectory, read: Mapping[Path, str]) -> None:
    """Write a model with its recipe and tokenizers as a run without updates, whole or not at all.

    Args:
        read: the files it was read from, with their SHA-256, for data.json.

    Raises:
        CheckpointError: another process has written to the run directory meanwhile.
    """
    files = [{"path": str(file.absolute()), "sha256": sha256} for file, sha256 in read.items()]
    # The directory may be a link to an empty one on another disk.
    with new_output_folder(run.path.resolve()) as folder:
        made = RunDirectory(folder)
        made.tokenizers.mkdir()
        found.tokenizers.save(made.tokenizers)
        checkpoints = Checkpoints(made.checkpoints, keep_last=1)
        save_model(found.model, checkpoints.directory(0))
        for role in ("last", "best"):
            checkpoints.write_pointer(role, 0)
        made.describe(found.recipe, {"task": found.recipe.task.settings(), "splits": {}, "files": files})


def _files(folder: Path) -> list[Path]:
    return sorted(file for pattern in _READ for file in folder.glob(pattern) if file.is_file())


def _folder_of(source: str, say: Callable[[str], None]) -> Path:
    """Return the folder that is meant: one that is there, or that of a repository of a hub, which `say` hears of first.

    What is no folder and cannot be a repository either is returned as it is: who reads it says what lacks.
    """
    if Path(source).exists() or not _REPOSITORY.fullmatch(source):
        return Path(source)
    try:
        from huggingface_hub import constants, snapshot_download
    except ImportError as error:
        reason = "to ask a hub for it, pip install 'ostinato[hf]'"
        raise CheckpointError(f"{source}: there is no such folder; {reason}{see('hugging-face')}") from error
    say(f"{source}: there is no such folder here: asking {constants.ENDPOINT} for the repository of that name")
    try:
        return Path(snapshot_download(source, allow_patterns=list(_READ), ignore_patterns=["*/*"]))
    except Exception as error:  # of its own, of the network, of the operating system
        if (found := system_error(error)) is not None and found.errno in _OF_THE_CACHE:
            with naming(constants.HF_HUB_CACHE):
                raise
        reason = on_one_line(error)
        raise CheckpointError(f"{source}: there is no such folder, and no hub gives it: {reason}") from error
