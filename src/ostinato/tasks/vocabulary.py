"""Vocabulary sizes of a recipe before it is trained, which the count of its parameters needs."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.config.common import SequenceModelConfig
from ostinato.config.model import EncoderConfig, ModelConfig, Seq2SeqConfig
from ostinato.config.recipe import Recipe
from ostinato.config.special_ids import SpecialIds
from ostinato.data.registry import DataAccess
from ostinato.data.tokenizers import Tokenizers
from ostinato.errors import ConfigError, DataError, Problem
from ostinato.tasks.packing import pack_source, tokenizers_of
from ostinato.tasks.registry import build_task
from ostinato.tasks.start import is_run, start_tokenizers

FromData = dict[str, tuple[tuple[int, int], SpecialIds | None, str]]
"""By task, data and start of a recipe: rows of both vocabularies, their special ids, where they come from in words."""
_AS_ASKED = "as data.tokenizer asks; the data is not here yet"
_OF_START = {"init_from", "init_except", "init_shared", "extend_vocabulary"}


@dataclass(frozen=True, slots=True)
class SizedModel:
    """A model configuration whose vocabulary sizes are set.

    Args:
        model: the configuration.
        source, target: rows of the vocabularies. Models with one vocabulary (language models, encoder-only ones) have
            its rows in `target`, and None for the source.
        origin: where the sizes come from, in words.
    """

    model: ModelConfig
    source: int | None
    target: int
    origin: str


def size_model(
    recipe: Recipe,
    access: DataAccess | None = None,
    *,
    source: int | None = None,
    target: int | None = None,
    known: FromData | None = None,
) -> SizedModel:
    """Set the vocabulary sizes of a recipe's model.

    They come from the arguments, else from the recipe, else from the tokenizers of the run that it starts from, or
    those that the task's training data gives (generated, the user's own, or already in the cache: nothing is
    downloaded), else, for trained subwords, from the size the recipe asks for.

    Args:
        known: what earlier calls found in data, to which this one adds: recipes of the same data are read once.

    Raises:
        ConfigError: none of them gives a size, or two are given of one embedding.
    """
    model = recipe.model
    given: dict[str, int | None]
    if isinstance(model, EncoderConfig):  # whose embedding has a row more, for the mask symbol
        sides = model.vocabulary_sizes(1, 1)
        rows = source if "n_labels" in sides else source or target
        given = {"vocab_size": (rows and model.vocabulary_sizes(rows, 1)["vocab_size"]) or model.vocab_size}
        given["n_labels"] = target or model.n_labels
    elif isinstance(model, SequenceModelConfig):
        given = {"vocab_size": target or source or model.vocab_size}
    else:
        if model.has_joint_embedding:  # of as many rows for both sides
            if source is not None and target not in (None, source):
                reason = f"both sides have one embedding (model.tie_embeddings), and --target-vocab is {target}"
                raise ConfigError([Problem("--source-vocab", source, reason)])
            source = target = target or source
        source, target = source or model.source_vocab_size, target or model.target_vocab_size
        given = {"source_vocab_size": source, "target_vocab_size": target}
    sizes, origin = {key: given[key] for key in model.vocabulary_sizes(1, 1)}, "given"
    if None in sizes.values():
        known = {} if known is None else known
        read = recipe.model_dump_json(include={"task": True, "data": True, "training": _OF_START})
        key = f"{recipe.model.reads} {read}"
        if key not in known:
            known[key] = _from_data(recipe, access)
        found, special, origin = known[key]
        # Where the tokenizer has a mask symbol of its own, no row is added for one.
        model = model if special is None else model.model_copy(update={"special_ids": special})
        sizes = {key: given[key] or size for key, size in model.vocabulary_sizes(*found).items()}
        if origin == _AS_ASKED and "n_labels" in sizes and given["n_labels"] is None:
            origin += "; as many labels: --target-vocab says how many there are"
    rows = sizes["target_vocab_size" if "target_vocab_size" in sizes else "vocab_size"]
    assert rows is not None  # just set
    if isinstance(model, Seq2SeqConfig) and model.source_separator is not None:
        # Training asks the tokenizer for its id; for what a model costs any will do.
        sizes["source_separator_id"] = model.source_separator_id or 0
    return SizedModel(model.model_copy(update=sizes), sizes.get("source_vocab_size"), rows, origin)


def _from_data(recipe: Recipe, access: DataAccess | None) -> tuple[tuple[int, int], SpecialIds | None, str]:
    tokenizers = _train_tokenizers(recipe, access or DataAccess.default())
    if tokenizers is not None:
        rows = tokenizers.source.vocab_size, tokenizers.target.vocab_size
        return rows, tokenizers.source.special_ids, "from the task's data"
    left, right = recipe.data.tokenizer, recipe.data.target_tokenizer or recipe.data.tokenizer
    if {left.kind, right.kind} <= {"bpe", "unigram"}:
        return (left.n_trained, right.n_trained), None, _AS_ASKED
    fix = "name a file: data.train=..." if _needs_files(recipe) else f"`ostinato data fetch {recipe.task.kind}`"
    reason = f"is not known before the training data is here; {fix}, or give --source-vocab and --target-vocab"
    raise ConfigError([Problem("model.target_vocab_size", None, reason)])


def _train_tokenizers(recipe: Recipe, access: DataAccess) -> Tokenizers | None:
    """Build the tokenizers that training would build; None where their data is not on this machine."""
    origin = recipe.training.init_from
    # A shipped recipe may name a run that is yet to be trained.
    if origin is not None and not is_run(origin):
        origin = None
    if origin is not None and recipe.model.generates and not recipe.training.extend_vocabulary:
        return start_tokenizers(recipe, ())  # whatever the data hold
    if _needs_files(recipe):
        return None
    task = build_task(recipe.task, recipe.data, access.offline())
    try:
        source = pack_source(recipe, task)
        if origin is not None:
            return start_tokenizers(recipe, () if source is not None else list(task.examples(task.splits()[0])))
        if source is not None:
            return tokenizers_of(source, recipe.data)
        return Tokenizers.train(recipe.data, task.examples(task.splits()[0]), recipe.model.reads)
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
