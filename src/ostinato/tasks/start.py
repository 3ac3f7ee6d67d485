"""The tokenizers of a run that begins with another one: a trained model needs the ids it was trained with."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from ostinato.config.data import DataConfig
from ostinato.config.files import RUN_RECIPE
from ostinato.config.recipe import Recipe
from ostinato.data.example import Example
from ostinato.data.symbols import LabelTokenizer
from ostinato.data.tokenizers import Tokenizers
from ostinato.errors import ConfigError, Problem
from ostinato.tasks.recipes import load_recipe

_KEY = "training.init_from"
_HEADS = ("classification", "tagging", "span")
"""What models with a head of their own read; others have an output over the vocabulary, or none."""


def is_run(path: str | Path) -> bool:
    """Return True for the directory of a run that has been started."""
    return (Path(path) / RUN_RECIPE).is_file()


def load_tokenizers(path: str) -> Tokenizers:
    """Return the tokenizers of the run to start from.

    Raises:
        ConfigError: there is no run.
    """
    check_is_run(path)
    return Tokenizers.load(Path(path) / "tokenizers")


def check_is_run(path: str | Path) -> None:
    """Raise a ConfigError where there is no run to start from."""
    if not is_run(path):
        reason = "holds no run: name a run directory, whose best checkpoint is taken"
        raise ConfigError([Problem(_KEY, str(path), reason)])


def keep_tokenizers(recipe: Recipe, run: str | Path, *, is_resumed: bool = False) -> tuple[Recipe, list[Problem]]:
    """Return a recipe with the settings of the tokenizers that a run has, and where it says others.

    Args:
        is_resumed: the run is the recipe's own, which was begun: nothing is added to its vocabularies any more.

    Raises:
        ConfigError: there is no run.
    """
    check_is_run(run)
    return with_tokenizers_of(recipe, load_recipe(run).data, is_resumed=is_resumed)


def with_tokenizers_of(recipe: Recipe, theirs: DataConfig, *, is_resumed: bool = False) -> tuple[Recipe, list[Problem]]:
    """Return a recipe with the settings of the tokenizers that a run with these settings has; see `keep_tokenizers`.

    Where `training.extend_vocabulary` adds symbols to those of the same kind, the recipe's own say which.
    """
    tokenizer, target = theirs.tokenizer, theirs.target_tokenizer
    if not recipe.model.generates:  # its targets are no text
        target = None
    elif recipe.model.joins_pairs:  # it has the vocabulary of what is written
        tokenizer, target = target or tokenizer, None
    extends = recipe.training.extend_vocabulary and not is_resumed
    problems, kept = [], {"tokenizer": tokenizer, "target_tokenizer": target}
    for name, own in kept.items():
        given = getattr(recipe.data, name)
        if extends and given and own and given.kind == own.kind:
            kept[name] = given
        elif given != own:
            shown = None if given is None else given.model_dump(exclude_none=True)
            problems.append(Problem(f"data.{name}", shown, "the new run keeps the tokenizers of the old one"))
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=kept)}), problems


def start_tokenizers(recipe: Recipe, examples: Sequence[Example]) -> Tokenizers:
    """Return the tokenizers of a recipe that starts from a run: that run's, beside the labels that the data have.

    Args:
        examples: of the training split, whose new symbols `training.extend_vocabulary` adds to the vocabularies, as
            `data` says how many.

    Raises:
        ConfigError: there is no run, its tokenizers cannot be extended, its head is of another kind or for other
            labels, or it has labels where the new run has texts.
    """
    origin, reads = str(recipe.training.init_from), recipe.model.reads
    tokenizers = load_tokenizers(origin)
    if recipe.model.generates and isinstance(tokenizers.target, LabelTokenizer):
        reason = f"its targets are the labels {_few(tokenizers.target.labels)}, which are no vocabulary of texts"
        raise ConfigError([Problem(_KEY, origin, f"{reason}: start from a run without a head for labels")])
    if recipe.model.joins_pairs:  # it reads the source, too, by the vocabulary of what is written
        tokenizers = Tokenizers(tokenizers.target, tokenizers.target)
    if recipe.training.extend_vocabulary:
        recipe, _ = keep_tokenizers(recipe, origin)
        # Where targets are labels, a tokenizer of texts does not hold them.
        is_labelled = reads in _HEADS
        new = [Example(example.source or "", "") for example in examples] if is_labelled else examples
        tokenizers = tokenizers.extended(recipe.data, new)
    if recipe.model.generates:
        return tokenizers
    found = tokenizers.with_labels(examples, reads)
    before, now, theirs = tokenizers.target, found.target, load_recipe(origin).model.reads
    if any(fnmatchcase("head.weight", pattern) for pattern in recipe.training.init_except):
        return found
    if theirs != reads and {theirs, reads} <= set(_HEADS):  # of which some have the same shape
        reason = f"its head is of the kind {theirs}, and the model's of the kind {reads}"
    elif not isinstance(before, LabelTokenizer) or not isinstance(now, LabelTokenizer):
        return found
    # A row of the head stands for a label by its number, which follows from how frequent the label was.
    elif set(now.labels) <= set(before.labels):
        return tokenizers
    else:
        reason = f"its head is for the labels {_few(before.labels)}, and the data have {_few(now.labels)}"
    if recipe.training.init_shared is None:
        reason += ": training.init_except=[head.*] begins with a new one"
    raise ConfigError([Problem(_KEY, origin, reason)])


def _few(labels: Sequence[str]) -> str:
    return ", ".join(labels[:4]) + (", ..." if len(labels) > 4 else "")
