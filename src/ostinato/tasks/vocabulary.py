"""Vocabulary sizes of a recipe before it is trained, which the count of its parameters needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ostinato.config.common import SequenceModelConfig
from ostinato.config.data import TokenizerConfig
from ostinato.config.model import EncoderConfig, ModelConfig
from ostinato.config.recipe import Recipe
from ostinato.data.registry import DataAccess
from ostinato.data.tokenizer import Tokenizers
from ostinato.errors import ConfigError, DataError, Problem
from ostinato.tasks.registry import build_task


@dataclass(frozen=True, slots=True)
class SizedModel:
    """A model configuration whose vocabulary sizes are set.

    Args:
        model: the configuration.
        source, target: rows of the vocabularies; the source's is None for language models.
        origin: where the sizes come from, in words.
    """

    model: ModelConfig
    source: int | None
    target: int
    origin: str


def size_model(
    recipe: Recipe, access: DataAccess | None = None, *, source: int | None = None, target: int | None = None
) -> SizedModel:
    """Set the vocabulary sizes of a recipe's model.

    They come from the arguments, else from the recipe, else from the tokenizers that the task's training data gives
    (generated, the user's own, or already in the cache: nothing is downloaded), else, for trained subwords, from the
    size the recipe asks for.

    Raises:
        ConfigError: none of them gives a size.
    """
    model = recipe.model
    if isinstance(model, EncoderConfig):
        return _size_encoder(model, recipe, access, source, target)
    if isinstance(model, SequenceModelConfig):
        size = target or source or model.vocab_size
        origin = "given"
        if size is None:
            (_, size), origin = _from_data(recipe, access)
        return SizedModel(model.model_copy(update={"vocab_size": size}), None, size, origin)
    source, target = source or model.source_vocab_size, target or model.target_vocab_size
    origin = "given"
    if source is None or target is None:
        (found_source, found_target), origin = _from_data(recipe, access)
        source, target = source or found_source, target or found_target
    sizes = {"source_vocab_size": source, "target_vocab_size": target}
    return SizedModel(model.model_copy(update=sizes), source, target, origin)


def _size_encoder(
    model: EncoderConfig, recipe: Recipe, access: DataAccess | None, source: int | None, target: int | None
) -> SizedModel:
    """Set the rows of the embedding, the mask symbol's among them, and the number of labels."""
    given = {"vocab_size": (source and source + 1) or model.vocab_size, "n_labels": target or model.n_labels}
    needed = model.vocabulary_sizes(1, 1)
    origin = "given"
    if any(given[key] is None for key in needed):
        (found_source, found_target), origin = _from_data(recipe, access)
        given = {key: given[key] or size for key, size in model.vocabulary_sizes(found_source, found_target).items()}
    sizes = {key: given[key] for key in needed}
    rows = sizes["vocab_size"]
    assert rows is not None  # just set
    return SizedModel(model.model_copy(update=sizes), None, rows, origin)


def _from_data(recipe: Recipe, access: DataAccess | None) -> tuple[tuple[int, int], str]:
    """Return the sizes of both vocabularies and where they come from."""
    tokenizers = _train_tokenizers(recipe, access or DataAccess.default())
    if tokenizers is not None:
        return (tokenizers.source.vocab_size, tokenizers.target.vocab_size), "from the task's data"
    left = _configured_size(recipe.data.tokenizer)
    right = left if recipe.data.target_tokenizer is None else _configured_size(recipe.data.target_tokenizer)
    if left is not None and right is not None:
        return (left, right), "as data.tokenizer asks; the data is not here yet"
    fix = "name a file: data.train=..." if _needs_files(recipe) else f"`ostinato data fetch {recipe.task.kind}`"
    reason = f"is not known before the training data is here; {fix}, or give --source-vocab and --target-vocab"
    raise ConfigError([Problem("model.target_vocab_size", None, reason)])


def _train_tokenizers(recipe: Recipe, access: DataAccess) -> Tokenizers | None:
    """Build the tokenizers that training would build; None where their data is not on this machine."""
    if _needs_files(recipe):
        return None
    is_remote = access.mirror is None or access.mirror.startswith(("http://", "https://"))
    # With the cache as its mirror, a file that is not in the cache is missing, and no socket is opened.
    offline = replace(access, mirror=str(access.cache)) if is_remote else access
    task = build_task(recipe.task, recipe.data, offline)
    try:
        return Tokenizers.train(recipe.data, task.examples("train"), recipe.model.reads)
    except DataError:
        if task.files():
            return None
        raise


def _needs_files(recipe: Recipe) -> bool:
    """Return True where the task reads files of the user's own and none are named."""
    if recipe.data.train is not None:
        return False
    try:
        build_task(recipe.task, recipe.data)
    except ConfigError:
        return True
    return False


def _configured_size(tokenizer: TokenizerConfig) -> int | None:
    """Return the size a subword tokenizer is trained to; None for other kinds, whose size depends on the data."""
    return tokenizer.vocab_size if tokenizer.kind in ("bpe", "unigram") else None
