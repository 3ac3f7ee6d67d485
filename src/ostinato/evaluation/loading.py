"""Load a finished (or still running) run from its directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from ostinato.config.data import tokenizer_problems
from ostinato.config.decoding import DecodingConfig, with_strategy
from ostinato.config.files import RUN_RECIPE, UNFINISHED_RUN, say_once
from ostinato.config.load import check_recipe, settle
from ostinato.config.recipe import Recipe
from ostinato.data.cuts import Cuts
from ostinato.data.disk import read_json_object, reading, sha256_of
from ostinato.data.example import Example, Fingerprint, take_evenly
from ostinato.data.inputs import Input
from ostinato.data.registry import DataAccess
from ostinato.data.tokenizers import Tokenizers
from ostinato.decoding.generate import Generation, generate, generate_stream
from ostinato.decoding.work import BatchRunner
from ostinato.errors import CheckpointError, ConfigError, DataError, Problem, see
from ostinato.evaluation.averaging import Member, average_checkpoints, describe_mean, parse_average, read_members
from ostinato.evaluation.changed_data import change_of_data
from ostinato.evaluation.evaluate import evaluate, scored_rows
from ostinato.evaluation.predictions import PredictionWriter, WriteRecord
from ostinato.evaluation.scores import ForcedCounts
from ostinato.evaluation.threshold import TRAINED, TunedThreshold, is_of, read_tuned, threshold_origin
from ostinato.models import Encoder, Model, Writer
from ostinato.models.checkpoint import WEIGHTS, load_model, weights_hash
from ostinato.nn.execution import Execution, ExitScope
from ostinato.system_errors import kind_of
from ostinato.tasks.base import Task
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.registry import build_task, task_config

_TOKENIZERS, _CHECKPOINTS, _MODEL = "tokenizers", "checkpoints", "model.json"
_RESULTS = "results.json"


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A trained model with all it needs to read and write text.

    Args:
        directory: of the run. checkpoint: the directory the weights came from, which by now may be gone, or, of a mean
            of several, hold another.
        hashes: SHA-256 of its model.json and of its weights as they were loaded. mean_of: its members, of a mean.
        tuned: the halting threshold, and the criterion where tokens stop by one, that was chosen for this checkpoint
            (`ostinato tune-threshold`), where it is used.
        verified: its weights are those that were written, see `load`.
    """

    directory: Path
    checkpoint: Path
    recipe: Recipe
    tokenizers: Tokenizers
    model: Model
    hashes: tuple[str, str]
    mean_of: list[Member] | None
    tuned: TunedThreshold | None = None
    verified: bool = True

    @property
    def mean_line(self) -> str:
        """The line that names the checkpoints that the weights are the mean of; '' where they are no mean."""
        return describe_mean(self.checkpoint.name, self.mean_of)

    @property
    def halting_threshold_from(self) -> str:
        """Where the halting thresholds in force come from: "trained", "tuned" or "given"."""
        return threshold_origin(self.model, self.tuned)

    def generate(
        self,
        texts: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        n_steps: int | None = None,
        **decoding: Any,
    ) -> list[str]:
        """Return the output for every source, in order; a language model of texts continues them as prompts.

        Args:
            prefixes: the beginning of every output, "" for none.
            n_steps: rounds to run instead of the plans' own (fully shared plans only).
            decoding: settings to use instead of the recipe's, for example beam=4, max_length=100.

        Raises:
            ConfigError: an unknown or impossible decoding setting; n_best above 1, whose lists `generations` returns.
            DataError: a text that is too long or holds an unknown symbol, by its number.
        """
        if "n_best" in decoding and (n_best := self.decoding(**decoding).n_best) > 1:
            reason = "one output of every text is returned here: generations(...) returns the others, too, as .others"
            raise ConfigError([Problem("n_best", n_best, reason)])
        found = self.generations(texts, prefixes=prefixes, n_steps=n_steps, **decoding)
        return [generation.text for generation in found]

    def generations(
        self,
        texts: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        n_steps: int | None = None,
        **decoding: Any,
    ) -> list[Generation]:
        """Return the outputs with their scores, with n_best above 1 also the next best as `others`; see `generate`."""
        _check_list(texts)
        _check_list(prefixes)
        given = prefixes or [""] * len(texts)
        if len(given) != len(texts):
            raise DataError(f"there are {len(texts)} texts, but {len(given)} prefixes: give one to each, '' for none")
        return generate(
            self.writer,
            list(self._changed(Input(text, prefix) for text, prefix in zip(texts, given, strict=True))),
            self.tokenizers,
            self.recipe.data,
            self.decoding(**decoding),
            as_prompts=self.reads_prompts,
            n_steps=n_steps,
        )

    def stream(
        self,
        texts: Iterable[str | Input],
        *,
        n_steps: int | None = None,
        window: int = 4096,
        on_progress: Callable[[int], None] | None = None,
        runner: BatchRunner | None = None,
        **decoding: Any,
    ) -> Iterator[Generation | DataError]:
        """Yield for every text its output, or the error that made it impossible; see `generate_stream`.

        An `Input` is read with the column that `task.target_tag` or `task.pair_field` names, where its fields have it.
        """
        _check_list(texts)
        config = self.decoding(**decoding)
        return generate_stream(
            self.writer,
            self._changed(text if isinstance(text, Input) else Input(text) for text in texts),
            self.tokenizers,
            self.recipe.data,
            config,
            as_prompts=self.reads_prompts,
            n_steps=n_steps,
            window=window,
            on_progress=on_progress,
            runner=runner,
        )

    def evaluate(
        self,
        split: str,
        *,
        metrics: Sequence[str] | None = None,
        by: Sequence[str] | None = None,
        n_steps: int | None = None,
        max_examples: int | None = None,
        predictions: WriteRecord | Path | None = None,
        overwrite: bool = False,
        each: Callable[[int, ForcedCounts], None] | None = None,
        access: DataAccess | None = None,
        examples: Iterable[Example] | None = None,
        runner: BatchRunner | None = None,
        oracle: ExitScope | None = None,
        **decoding: Any,
    ) -> dict[str, Any]:
        """Return the scores on a split of the run's task; see `ostinato.evaluation.evaluate`.

        Where tokens halt, the result also says where their threshold comes from (`halting_threshold_from`); where the
        split is not what it was when the run was trained, that (`data_note`). What `data.over_length` cuts of the split
        is said once, on stderr.

        Args:
            metrics, by, max_examples: None: what the recipe says, else the task's own (all examples); by, of the
                training split: those of the task's own that it has.
            predictions: a new file to write every prediction to (JSON lines), or a function that is given the records.
            overwrite: predictions that are there may be replaced.
            each: called with the index and the teacher-forced counts of every example.
            access: where data files are found. examples: all of the split, where they have been read. runner: does the
                passes (`ostinato.evaluation.workers`); None: this process. decoding: as in `generate`.
            oracle: "token", "sequence": in as few rounds as there are right answers in, see
                `ostinato.evaluation.evaluate`; what a model writes is then not scored by the recipe's metrics.
        """
        config, wanted, task = self.decoding(**decoding), self.recipe.evaluation, self._task_with(split, access)
        cuts, read = Cuts(), Fingerprint()
        reads_labels: list[str] | None = [] if oracle is not None and self.model.config.generates else None
        with (
            PredictionWriter(predictions, overwrite=overwrite)
            if isinstance(predictions, Path)
            else nullcontext(predictions) as write
        ):
            result = evaluate(
                self.model,
                read.of(task.examples(split) if examples is None else examples),
                self.tokenizers,
                data=self.recipe.data,
                decoding=config,
                metrics=_first_given(metrics, reads_labels, wanted.metrics, task.metrics),
                by=task.by_of(split, wanted.by if by is None else by),
                n_steps=n_steps,
                max_examples=wanted.max_examples if max_examples is None else max_examples,
                name=split,
                contrast=task.contrast_of(split),
                predictions=write,
                each=each,
                runner=runner,
                oracle=oracle,
                cuts=cuts,
            )
        for line in cuts.notes(split):
            say_once(line)
        if "halting_threshold" in result:
            result["halting_threshold_from"] = self.halting_threshold_from
        if (note := change_of_data(self.directory, self.recipe, split, read)) is not None:
            result["data_note"] = note
        return result

    def check(
        self,
        split: str,
        *,
        by: Sequence[str] | None = None,
        max_examples: int | None = None,
        oracle: ExitScope | None = None,
        access: DataAccess | None = None,
    ) -> None:
        """Encode all that `evaluate` scores of a split, so that what cannot be is found before other splits are scored.

        Args and errors: see `evaluate`.
        """
        task, wanted = self._task_with(split, access), self.recipe.evaluation
        rows = scored_rows(
            take_evenly(task.examples(split), wanted.max_examples if max_examples is None else max_examples),
            self.tokenizers,
            self.recipe.data,
            self.model.config,
            by=task.by_of(split, wanted.by if by is None else by),
            name=split,
            contrast=None if oracle is not None else task.contrast_of(split),
        )
        for _ in rows:
            pass

    def _task_with(self, split: str, access: DataAccess | None) -> Task:
        """Return the run's task; a ConfigError where it has no such split."""
        task = build_task(self.recipe.task, self.recipe.data, access, trains=False)
        if split not in task.splits():
            raise ConfigError([Problem("split", split, task.why_no_split(split))])
        return task

    def _changed(self, inputs: Iterable[Input]) -> Iterator[Input]:
        """Yield inputs as the task changes what the model reads; one that it cannot change has an error."""
        changes = task_config(self.recipe.task).pair_changes
        for number, given in enumerate(inputs, 1):
            if given.error is None:
                try:
                    for text in (given.text, given.prefix or ""):
                        if not isinstance(text, str):  # as a missing cell of a table
                            raise DataError(f"{text!r} is no text")
                    text, prefix = changes.of_source(given.text, given.fields), changes.of_prefix(given.prefix)
                    given = replace(given, text=text, prefix=prefix)
                except DataError as error:
                    reason = f"{given.where or f'input line {number}'}: {error}"
                    given = replace(given, error=DataError(reason))
            yield given

    @property
    def writer(self) -> Writer:
        """The model, which can write text.

        Raises:
            ConfigError: it is encoder-only.
        """
        if isinstance(self.model, Encoder):
            reason = "an encoder-only model writes no text"
            if self.model.config.reads != "masked":
                reason += ": `ostinato evaluate RUN --predictions FILE` writes its labels"
            raise ConfigError([Problem("model.kind", "encoder", reason)])
        return self.model

    @property
    def reads_prompts(self) -> bool:
        """Whether inputs are prompts to be continued: the model was trained on texts, which have no source."""
        return not task_config(self.recipe.task).has_sources

    def check_exportable(self) -> None:
        """Refuse a run whose decoding keeps keys and values of some rounds only: exported models keep all.

        Raises:
            CheckpointError: it does, by its recipe or as it was loaded.
        """
        kept = self.model.current_execution.cached_rounds or self.recipe.decoding.cached_rounds
        if kept is not None:
            reason = f"decoding keeps {kept} of the loop's rounds (cached_rounds), and other programs keep all"
            raise CheckpointError(f"{reason}: --set decoding.cached_rounds=null{see('limits')}")

    def decoding(self, **overrides: Any) -> DecodingConfig:
        """Return the recipe's decoding with settings replaced; `beam` alone also chooses the strategy it needs.

        Raises:
            ConfigError: with every setting that is unknown or impossible.
        """
        if not overrides:
            return self.recipe.decoding
        chosen = with_strategy(overrides)
        if "beam" in chosen:  # n_best cannot exceed the beam.
            chosen.setdefault("n_best", min(self.recipe.decoding.n_best, chosen["beam"]))
        settings = self.recipe.model_dump(mode="json")
        return check_recipe(settle(settings, {"decoding": chosen})).decoding


def _check_list(texts: object) -> None:
    if isinstance(texts, str):
        raise DataError(f"a list of texts is needed, got one text: pass [{texts[:30]!r}]")


def load(
    path: str | Path,
    *,
    checkpoint: str | Path | None = None,
    device: str = "auto",
    overrides: Sequence[str] = (),
    halting_threshold: float | Literal["trained"] | None = None,
    exit: str | None = None,
    exit_scope: ExitScope = "token",
    round_lengths: Sequence[float] | None = None,
    cached_rounds: int | None = None,
    verify: bool = True,
) -> LoadedRun:
    """Load a run.

    Args:
        path: the run's directory.
        checkpoint: "best", "last", "best:5" or "last:5" (a mean of several), the name of one of the run's checkpoints
            (update-000500), or its directory. None: the one that its recipe scores (evaluation.checkpoint).
        device: "auto" (a CUDA GPU if there is one, else the CPU), "cpu", "cuda", "mps", ...
        overrides: `dotted.key=value` changes to the run's recipe, for example "decoding.max_length=40"; the model is
            as it was trained, and so are the tokenizers.
        halting_threshold: None: the one that `ostinato tune-threshold` chose for this checkpoint, where it did, else
            the trained ones; "trained": those in any case; a number: that one, in every stack in which tokens halt.
        exit, exit_scope: the criterion by which tokens stop, with a number, see `ostinato.nn.Execution`.
        round_lengths: of the rounds to run, for all stacks whose rounds have times (`ostinato.nn.Execution.paths`).
        cached_rounds: of how many rounds of a loop decoding keeps keys and values; None: as its recipe says.
        verify: refuse weights that are not those that were written, or not finite, see `ostinato.load_model`.

    Raises:
        CheckpointError: not a run's directory, a checkpoint or a choice of threshold that cannot be read.
        ConfigError: a recipe or an override that cannot be used, a device that is not there, a threshold outside
            [0, 1] or for a model whose tokens do not halt, a criterion without a threshold, or by which no token of the
            model can stop.
    """
    for key, _, value in (override.partition("=") for override in overrides):
        if key.partition(".")[0] == "model":
            reason = "a run's model is loaded as it was trained: leave it out, or train another (training.init_from)"
            raise ConfigError([Problem(key, value, reason)])
    if problems := list(tokenizer_problems(overrides)):
        raise ConfigError(problems)
    directory = Path(path)
    check_run(directory)
    recipe = load_recipe(directory, overrides)
    where = find_checkpoint(directory, recipe.evaluation.checkpoint if checkpoint is None else checkpoint)
    tokenizers = Tokenizers.load(directory / _TOKENIZERS)
    place = resolve_device(device)
    # Just before they are read: a mean may be made anew at any time.
    hashes, mean_of = _hashes(where, verify=verify), read_members(where)
    # With a threshold given, the stored choice is not read: it may be a file that cannot be read.
    is_given = halting_threshold is not None or exit is not None or exit_scope != "token"
    tuned = None if is_given else read_tuned(directory)
    if tuned is not None and not is_of(tuned, where.name, hashes[1]):
        tuned = None
    if tuned is not None:
        execution = Execution(**tuned.execution)
    else:
        execution = Execution(halting_threshold=_number(halting_threshold, exit), exit=exit, exit_scope=exit_scope)
    if round_lengths is not None:
        stacks = recipe.model.stacks()
        timed = [n for n, one in stacks.items() if any(s.modulation.kind == "by_time" for s in one.segments)]
        execution = replace(execution, paths=dict.fromkeys(timed or stacks, tuple(round_lengths)))
    execution = replace(execution, cached_rounds=cached_rounds)
    model = load_model(where, place, execution, verify=verify)
    return LoadedRun(directory, where, recipe, tokenizers, model, hashes, mean_of, tuned, verify)


def _hashes(checkpoint: Path, *, verify: bool) -> tuple[str, str]:
    """Return the SHA-256 of a checkpoint's model.json and of its weights; the one that stands in the first, if there is
    one that loading compares with them."""
    weights = weights_hash(checkpoint) if verify else None
    with reading(checkpoint):
        return sha256_of(checkpoint / _MODEL), weights or sha256_of(checkpoint / WEIGHTS)


def find_checkpoint(directory: Path, checkpoint: str | Path | None = None) -> Path:
    """Return the directory of a run's checkpoint: by role (best, last), name, or path; None: as its recipe says.

    `best:5` and `last:5` are means of several, which are written into the run; see `ostinato.evaluation.averaging`.

    Raises:
        CheckpointError: it is not there; the message lists those that are.
    """
    if checkpoint is None:
        checkpoint = load_recipe(directory).evaluation.checkpoint
    if wanted := parse_average(str(checkpoint)):
        return average_checkpoints(directory, *wanted)
    root = directory / _CHECKPOINTS
    if checkpoint in ("best", "last"):
        note = root / f"{checkpoint}.json"
        if not note.is_file():
            hint = " (checkpoint='last' is the newest)" if (root / "last.json").is_file() else ""
            raise CheckpointError(f"{directory} has no {checkpoint} checkpoint yet; {_available(root)}{hint}")
        with reading(note):
            found = root / str(read_json_object(note)["directory"])
        if not (found / _MODEL).is_file():
            raise CheckpointError(f"{note} names {found.name}, which is not there; {_available(root)}")
        return found
    for found in (root / checkpoint, Path(checkpoint)):
        if (found / _MODEL).is_file():
            return found
    raise CheckpointError(f"{checkpoint} is no checkpoint of {directory}; {_available(root)}")


def _available(root: Path) -> str:
    names = sorted(path.parent.name for path in root.glob(f"[!.]*/{_MODEL}"))
    if names:
        return f"its checkpoints are: {', '.join(names)}"
    is_finished = (root.parent / _RESULTS).exists()
    return "it has no checkpoints" + ("" if is_finished else f": {UNFINISHED_RUN}")


def check_run(directory: Path) -> None:
    """Raise a CheckpointError where a directory is not that of a run, with what it lacks."""
    if not directory.is_dir():
        found = kind_of(directory) or ("a file" if directory.exists() else None)
        reason = "there is no such directory" if found is None else f"is {found}, not the directory of a run"
        raise CheckpointError(f"{directory}: {reason}")
    missing = [name for name in (RUN_RECIPE, _TOKENIZERS, _CHECKPOINTS) if not (directory / name).exists()]
    if not missing:
        return
    if missing == [_CHECKPOINTS] and not (directory / _RESULTS).exists():
        raise CheckpointError(f"{directory}: no {_CHECKPOINTS}: {UNFINISHED_RUN}")
    lacks = f"it lacks {', '.join(missing)}"
    if (directory / _MODEL).is_file():
        lacks += "; it is a saved model: ostinato.load_model reads it, without tokenizers. "
        lacks += f"A run's checkpoint is loaded from the run, with checkpoint={directory.name!r}"
    raise CheckpointError(f"{directory} is not the directory of a run: {lacks}")


def resolve_device(name: str) -> torch.device:
    """Return the device of a name; "auto" is a CUDA GPU if there is one, else the CPU.

    Raises:
        ConfigError: it is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = f"cannot be used here ({str(error).splitlines()[0]}); 'auto' and 'cpu' always can{see('gpu')}"
        raise ConfigError([Problem("device", name, reason)]) from error
    return device


def _number(threshold: float | str | None, exit: str | None) -> float | None:
    """Return a threshold that was given as a number; None for the trained ones."""
    if isinstance(threshold, str) and threshold != TRAINED:
        raise ConfigError([Problem("halting_threshold", threshold, f"must be a number in [0, 1], or {TRAINED}")])
    if isinstance(threshold, str) and exit is not None:
        reason = f"must be a number in [0, 1]: exit is {exit!r}, for whose criterion there is no trained threshold"
        raise ConfigError([Problem("halting_threshold", threshold, reason)])
    return None if isinstance(threshold, str) else threshold


def _first_given(*choices: Sequence[str] | None) -> Sequence[str]:
    return next((choice for choice in choices if choice is not None), ())
