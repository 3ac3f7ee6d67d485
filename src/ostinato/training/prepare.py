"""Prepare a run: read its data, make its tokenizers, resolve its recipe, and check all of them before training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ostinato.config.model import Seq2SeqConfig
from ostinato.config.recipe import Recipe
from ostinato.config.special_ids import SpecialIds
from ostinato.data.batching import StoredRows, TrainingBatches
from ostinato.data.collate import AnyRow
from ostinato.data.cuts import Cuts
from ostinato.data.disk import new_folder
from ostinato.data.example import Example, Fingerprint, take_evenly
from ostinato.data.objectives import objective_of
from ostinato.data.packs.make import OnProgress
from ostinato.data.registry import DataAccess
from ostinato.data.tokenizers import Tokenizers
from ostinato.errors import ConfigError, Problem
from ostinato.evaluation.evaluate import scored_rows
from ostinato.evaluation.scores import check_metrics
from ostinato.tasks.base import Task
from ostinato.tasks.checks import (
    FORCED_METRICS,
    OF_TEXTS,
    length_problems,
    metric_problems,
    model_problems,
    split_problems,
)
from ostinato.tasks.registry import build_task
from ostinato.tasks.start import keep_tokenizers
from ostinato.training.changes import Changes
from ostinato.training.checks import learning_notes, useless_settings
from ostinato.training.initial import check_start
from ostinato.training.rundir import RunDirectory, describe_data, describe_split, with_absolute_paths
from ostinato.training.training_data import training_data

_LOOKED_AT = 1000
"""Sources of training that a separator is looked for in."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that is ready for its next update; `recipe` has its vocabulary sizes and absolute paths, `run` its files.

    `changes`: what it changes in the recipe of the run that is resumed. `notes`: what the user should know.
    """

    recipe: Recipe
    run: RunDirectory
    task: Task
    tokenizers: Tokenizers
    batches: TrainingBatches
    changes: Changes = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def metrics(self) -> list[str]:
        """Decoded metrics of the final evaluation."""
        chosen = self.recipe.evaluation.metrics
        return list(self.task.metrics if chosen is None else chosen)

    def examples(self, split: str) -> Iterator[Example]:
        """Yield the examples of a split that is scored: those that the run was started with.

        Raises:
            CheckpointError: after the last one: they are others, of a file that was written meanwhile.
        """
        read = Fingerprint()
        yield from read.of(self.task.examples(split))
        if not self.run.is_packed(split):  # whose files are hashed instead
            self.run.check_data(split, read.sha256)

    def by(self, split: str) -> Sequence[str]:
        """Return the columns of the final evaluation of a split."""
        return self.task.by_of(split, self.recipe.evaluation.by)


def prepare(
    recipe: Recipe,
    run: RunDirectory,
    is_resumed: bool,
    access: DataAccess | None,
    on_progress: OnProgress | None = None,
) -> Prepared:
    """Read the data, build or reload the tokenizers, and write what a run directory starts with.

    Every split that the run will need is read once, so that a missing or broken test file is an error before training.

    Args:
        on_progress: is told how far a large training split is read for tokenizers and tokenised, if it was not before.

    Raises:
        ConfigError: settings that do not fit the task, all of them. DataError: data that cannot be used.
        CheckpointError: `is_resumed`, and recipe or data are not the run's; a start that cannot be read.
    """
    task = build_task(recipe.task, recipe.data, access)
    recipe = with_splits(recipe, task)
    has_sources = task.config.has_sources
    problems = [*model_problems(recipe, has_sources), *split_problems(recipe, task)]
    if not is_resumed:  # a run that was begun before has rows that fit, and keeps its settings
        problems += length_problems(recipe, has_sources)
        problems += useless_settings(recipe)
        off = recipe.training.halting.off_updates
        problems += recipe.too_few_to_average(recipe.evaluation.checkpoint, "evaluation.checkpoint", first=off)
    if problems := [*problems, *metric_problems(recipe, has_sources)]:
        raise ConfigError(problems)
    recipe = with_absolute_paths(recipe)
    others: list[Problem] = []
    if recipe.training.init_from is not None:
        # A run that was begun needs no longer the one that it started from.
        origin = run.path if is_resumed else recipe.training.init_from
        recipe, others = keep_tokenizers(recipe, origin, is_resumed=is_resumed)
        if problems := list(recipe.problems()):
            raise ConfigError(problems)
    train_split = task.splits()[0]
    changes: Changes = {}
    new_splits: dict[str, Any] = {}
    if is_resumed:
        tokenizers = Tokenizers.load(run.tokenizers)
        recipe = _with_vocabulary(recipe, tokenizers)
        changes = run.changes_to(recipe)
        data = training_data(recipe, task, is_packed=run.is_packed(train_split))
        run.check_data(train_split, data.sha256())
        for split in other_splits(recipe, train_split):
            described = describe_split(split, task.examples(split))
            if "evaluation.splits" in changes and split not in run.data_hashes():
                new_splits[split] = described
            else:
                run.check_data(split, str(described["sha256"]))
    else:
        data = training_data(recipe, task)
        tokenizers = data.tokenizers(recipe, on_progress)
        recipe = _with_vocabulary(recipe, tokenizers)
    cuts = Cuts()
    rows = data.rows(recipe, tokenizers, on_progress, cuts)
    objective = objective_of(recipe.model, recipe.data, tokenizers)
    batches = TrainingBatches(rows, recipe.data.tokens_per_batch, recipe.seed, objective, recipe.data.mixture)
    _check_separator(recipe, batches.rows)
    notes = [*map(str, others), *cuts.notes(train_split), *learning_notes(recipe)]
    prepared = Prepared(recipe, run, task, tokenizers, batches, changes, notes=notes)
    # Earlier versions gave scores of texts also where tokens are unknown: an unfinished run may be selected by one.
    by_texts = recipe.training.selection.metric in OF_TEXTS and run.results() is None
    if changes or not is_resumed or by_texts:
        _check_metrics(prepared)
        _check_scored_examples(prepared)
    if changes:
        run.change(recipe, changes, new_splits)
    elif is_resumed and run.keep(recipe.training) and run.results() is not None:
        notes.append(
            "training.keep_last and keep_best change nothing of a finished run, unless training.n_updates makes it "
            "longer (where its schedule is constant or inverse_sqrt)"
        )
    if not is_resumed:
        described = describe_data(task, recipe.data, other_splits(recipe, train_split))
        described["splits"] = {train_split: data.describe(tokenizers), **described["splits"]}
        if recipe.training.init_from is not None:
            check_start(recipe.model, recipe.training)
        run.claim()
        with new_folder(run.tokenizers) as folder:
            tokenizers.save(folder)
        run.describe(recipe, described)
    return prepared


def _check_separator(recipe: Recipe, rows: list[AnyRow] | StoredRows) -> None:
    """Refuse a separator that no source has: a tokenizer may join it with the space before it."""
    if not isinstance(recipe.model, Seq2SeqConfig) or recipe.model.source_separator is None:
        return
    first = (rows[number] for number in range(min(len(rows), _LOOKED_AT)))
    if not any(recipe.model.source_separator_id in (getattr(row, "source_ids", None) or ()) for row in first):
        reason = (
            f"is a token of none of the first {_LOOKED_AT:,} sources of training; a tokenizer of subwords may take it "
            'together with the space before it: try " |||"'
        )
        raise ConfigError([Problem("model.source_separator", recipe.model.source_separator, reason)])


def _check_metrics(prepared: Prepared) -> None:
    """Build every metric, so that one whose library or model is not here is an error before training."""
    selected = prepared.recipe.training.selection.metric
    check_metrics([*prepared.metrics, *([] if selected in FORCED_METRICS else [selected])])


def _check_scored_examples(prepared: Prepared) -> None:
    """Encode every example that will be scored, so that one that cannot be is an error before training.

    Those of the final evaluation are also encoded with their wrong targets (`Task.contrast`). What is cut of examples
    is added to `prepared.notes`.

    Raises:
        ConfigError: a checkpoint is to be selected by a score of whole texts, and one is cut, has a prefix or an
            unknown token; columns that blocks of texts do not have.
    """
    selection, final = prepared.recipe.training.selection, prepared.recipe.evaluation
    for row in _scored_rows(prepared, selection.split, selection.max_examples):
        if selection.metric in OF_TEXTS and row.size is None:
            reason = f"there is none of {selection.split}: it needs whole texts, every token of which is a label"
            if prepared.recipe.data.unknown == "replace":
                reason += (
                    ", and none of them unknown: data.tokenizer.kind=bpe, or a larger vocabulary, knows every text"
                )
            raise ConfigError([Problem("training.selection.metric", selection.metric, reason)])
    for split in final.splits or []:
        for _ in _scored_rows(
            prepared, split, final.max_examples, prepared.by(split), prepared.task.contrast_of(split)
        ):
            pass


def _scored_rows(
    prepared: Prepared, split: str, max_examples: int | None, by: Sequence[str] = (), contrast: str | None = None
) -> Iterator[AnyRow]:
    """Yield the rows that an evaluation encodes."""
    recipe, tokenizers = prepared.recipe, prepared.tokenizers
    name = split if max_examples is None else f"{split}, {max_examples} examples spread evenly"
    examples, cuts = take_evenly(prepared.task.examples(split), max_examples), Cuts()
    yield from scored_rows(
        examples, tokenizers, recipe.data, recipe.model, by=by, name=name, contrast=contrast, cuts=cuts
    )
    prepared.notes.extend(note for note in cuts.notes(name) if note not in prepared.notes)


def other_splits(recipe: Recipe, train_split: str) -> list[str]:
    """Return the splits a run reads beside the one it is trained on."""
    named = dict.fromkeys([recipe.training.selection.split, *(recipe.evaluation.splits or [])])
    return [split for split in named if split != train_split]


def with_splits(recipe: Recipe, task: Task) -> Recipe:
    """Return the recipe with the splits of its final evaluation named."""
    if recipe.evaluation.splits is not None:
        return recipe
    tests = [split for split in task.splits() if split not in (task.splits()[0], "dev")]
    splits = ["test"] if "test" in tests else tests or [split for split in task.splits() if split == "dev"]
    return recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update={"splits": splits})})


def _with_vocabulary(recipe: Recipe, tokenizers: Tokenizers) -> Recipe:
    """Return the recipe with the vocabulary sizes the tokenizers have; a ConfigError where it names other ones."""
    special = tokenizers.source.special_ids
    if recipe.model.special_ids not in (SpecialIds(), special):
        given_ids = recipe.model.special_ids.model_dump()
        raise ConfigError([Problem("model.special_ids", given_ids, f"the tokenizer has {special.model_dump()}")])
    other = tokenizers.target.special_ids.model_copy(update={"mask": special.mask})  # which no model that writes has
    if recipe.model.generates and other != special:
        reason = f"has the special ids {other.model_dump()}, the source's {special.model_dump()}: they must be the same"
        raise ConfigError([Problem("data.target_tokenizer", str(recipe.data.target_tokenizer), reason)])
    model = recipe.model.model_copy(update={"special_ids": special})
    if isinstance(model, Seq2SeqConfig) and model.source_separator is not None:
        ids = tokenizers.source.encode(model.source_separator)
        if len(ids) != 1:
            reason = f"must be one token of the source's tokenizer, which makes {len(ids)} of it"
            raise ConfigError([Problem("model.source_separator", model.source_separator, reason)])
        if model.source_separator_id not in (None, ids[0]):
            reason = f"the tokenizer gives {ids[0]}; set it to null to take that"
            raise ConfigError([Problem("model.source_separator_id", model.source_separator_id, reason)])
        model = model.model_copy(update={"source_separator_id": ids[0]})
    sizes = model.vocabulary_sizes(tokenizers.source.vocab_size, tokenizers.target.vocab_size)
    given = {key: getattr(recipe.model, key) for key in sizes}
    problems = [
        Problem(f"model.{key}", given[key], f"the data gives {size}; set it to null to take that")
        for key, size in sizes.items()
        if given[key] not in (None, size)
    ]
    if problems:
        raise ConfigError(problems)
    return recipe.model_copy(update={"model": model.model_copy(update=sizes)})
