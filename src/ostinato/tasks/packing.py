"""Which training splits are read from packs, and the tokenizers of those.

Tokenizers are trained once for the same files and settings, and kept beside the packs. Subwords are trained on a
bounded sample (`ostinato.data.packs.source`); words and characters are counted in all texts, so that none is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ostinato.config.data import DataConfig, TokenizerConfig
from ostinato.config.recipe import Recipe
from ostinato.data.disk import hash_of, make_folder, new_folder
from ostinato.data.example import Example
from ostinato.data.file_hashes import file_hash
from ostinato.data.packs.make import Meter, OnProgress, changed_since, held, made_of, packs_folder
from ostinato.data.packs.source import SAMPLE_BYTES, PackSource, all_examples, sample
from ostinato.data.tokenizers import Tokenizers, tokenizer_files, train_tokenizer
from ostinato.errors import CheckpointError, ConfigError, DataError, Problem
from ostinato.tasks.base import Task
from ostinato.tasks.start import start_tokenizers

AUTO_BYTES = 1 << 26
"""Of the texts of a training split, above which `data.packed: auto` reads a pack."""
_TOLD_EVERY = 1 << 23
"""Characters read for a tokenizer between two lines about it."""


def pack_source(recipe: Recipe, task: Task, *, always: bool | None = None) -> PackSource | None:
    """Return what the training split is read from where rows are to lie in a pack; None: they are held in memory.

    Args:
        always: what was decided when the run was begun; None: `data.packed` decides.

    Raises:
        ConfigError: this task, model or start has no pack, but is to have one.
    """
    wanted = {True: "always", False: "never", None: recipe.data.packed}[always]
    if wanted == "never":
        return None
    source = task.pack_source(task.splits()[0])
    reason = _why_none(recipe, source)
    if wanted == "always" and reason is not None:
        raise ConfigError([Problem("data.packed", "always", reason)])
    if source is None or reason is not None or (wanted == "auto" and source.n_bytes_of_text <= AUTO_BYTES):
        return None
    return source


def _why_none(recipe: Recipe, source: PackSource | None) -> str | None:
    if source is None:
        tasks = "the tasks files and translation, and for data.train of a published task"
        return f"is for {tasks} (no stream of a bucket): remove it"
    if not (recipe.model.generates or recipe.model.reads == "masked"):
        return f"is for models that read texts or pairs, and this one has a head for {recipe.model.reads}: remove it"
    if recipe.training.extend_vocabulary:
        return "has no effect with training.extend_vocabulary, which looks at all examples: remove one of them"
    return None


def training_tokenizers(
    recipe: Recipe, source: PackSource | None, examples: Sequence[Example], on_progress: OnProgress | None = None
) -> Tokenizers:
    """Return the tokenizers of a training: those of the run to start from, or else trained now or before.

    Args:
        source: what the training split is packed from (`pack_source`); None: it is held in memory.
        examples: of the training split; none are needed where there is a source.
        on_progress: see `tokenizers_of`.

    Raises:
        ConfigError: the run to start from is not there, or has others than the recipe needs. DataError: there are no
            texts, or some cannot be read.
    """
    if recipe.training.init_from is not None:
        return start_tokenizers(recipe, examples)
    if source is not None:
        return tokenizers_of(source, recipe.data, on_progress)
    return Tokenizers.train(recipe.data, examples, recipe.model.reads)


def tokenizers_of(source: PackSource, data: DataConfig, on_progress: OnProgress | None = None) -> Tokenizers:
    """Return the tokenizers of a split, trained now or before.

    Args:
        on_progress: is told how far the texts are read that they are trained on.

    Raises:
        ConfigError: `data.target_tokenizer` is set, and the texts have no source.
        DataError: there are no texts, or some cannot be read; a file was changed while it was read.
    """
    configs = [config for config in (data.tokenizer, data.target_tokenizer) if config is not None]
    if all(config.path is not None for config in configs):
        return _train(source, data, on_progress)
    given = [path for config in configs for path in tokenizer_files(config)]
    what: dict[str, Any] = {
        "tokenizers": [config.model_dump(mode="json", exclude={"path"}) for config in configs],
        # Of a compressed source the bytes of its text count, which gives other tokenizers than earlier versions stored.
        "sample": [SAMPLE_BYTES, "of text"] if source.is_compressed else SAMPLE_BYTES,
    }
    if given:  # by content: the paths may name other files later
        what["tokenizer_files"] = [file_hash(path) for path in given if path.is_file()]
    before = source.states()
    folder = packs_folder() / "tokenizers" / hash_of(made_of(source, what))[:32]
    if (stored := _stored(folder)) is not None:  # also where this process may not write
        return stored
    make_folder(folder.parent)
    with held(folder.with_name(f"{folder.name}.lock"), source, on_progress, "read for the tokenizer"):
        if (stored := _stored(folder)) is not None:
            return stored
        tokenizers = _train(source, data, on_progress)
        if (changed := changed_since(source, before)) is not None:
            raise DataError(f"{changed}: was changed while it was read for the tokenizer; the same command begins anew")
        with new_folder(folder) as inside:
            tokenizers.save(inside)
    return tokenizers


def _stored(folder: Path) -> Tokenizers | None:
    """Return the tokenizers of a folder; None where there are none, or what is damaged and made again."""
    if not folder.is_dir():
        return None
    try:
        return Tokenizers.load(folder)
    except (CheckpointError, OSError):
        return None


def _train(source: PackSource, data: DataConfig, on_progress: OnProgress | None) -> Tokenizers:
    def texts(config: TokenizerConfig, sides: tuple[str, ...]) -> Iterator[str]:
        is_sample = config.kind in ("bpe", "unigram")
        n_bytes, n_read = (min(source.n_bytes, SAMPLE_BYTES) if is_sample else source.n_bytes), 0
        meter = Meter(n_bytes, on_progress, "read for the tokenizer")
        for example in sample(source) if is_sample else all_examples(source):
            for side in sides:
                if (text := getattr(example, side)) is not None:
                    n_read += len(text)
                    yield text
            if n_read > _TOLD_EVERY:
                meter.add(n_read)
                n_read = 0

    if data.target_tokenizer is None:
        joint = train_tokenizer(data.tokenizer, texts(data.tokenizer, ("source", "target")))
        return Tokenizers(joint, joint)
    if len(source.fields) == 1:
        reason = "the examples have no source, so there is one side only: remove it and use data.tokenizer"
        raise ConfigError([Problem("data.target_tokenizer", data.target_tokenizer.kind, reason)])
    sides = ((data.tokenizer, "source"), (data.target_tokenizer, "target"))
    return Tokenizers(*(train_tokenizer(config, texts(config, (side,))) for config, side in sides))
