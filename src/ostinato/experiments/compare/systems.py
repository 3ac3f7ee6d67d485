"""What is compared: run directories and files of predictions, with what they were to write, wrote, and cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from ostinato.budget import count_macs, count_parameters, stacks_with_depth
from ostinato.config.files import YAML_SUFFIXES, read_yaml, refuse_sweep
from ostinato.config.recipe import Recipe
from ostinato.data.disk import read_json_object
from ostinato.data.example import take_evenly
from ostinato.data.registry import DataAccess
from ostinato.data.tokenizer import Tokenizer
from ostinato.data.tokenizers import Tokenizers
from ostinato.errors import DataError
from ostinato.evaluation.loading import load
from ostinato.evaluation.stored import Outputs, read_outputs, run_counts, run_outputs
from ostinato.experiments.results import LENGTHS, pass_lengths, read_rows, short_names
from ostinato.metrics.bootstrap import N_SAMPLES, SEED
from ostinato.system_errors import kind_of
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.registry import build_task
from ostinato.training.threads import cpu_threads

_SHOWN = 60
_OF_A_RUN = (
    *("recipe", "task", "seed", "parameters", "n_updates", "training_seconds"),
    *("training_tokens_per_second", "checkpoint"),
)


@dataclass(frozen=True, slots=True)
class Choices:
    """What is compared, and how.

    Args:
        splits: None: those of the first run's recipe. Files of predictions are of one split, and need one at most.
        metrics: of outputs, or teacher-forced scores of runs; None: those of the first run's recipe, else of its task,
            and where all systems are runs the teacher-forced scores that the task is reported by.
        checkpoint: of every run; None: the one that its recipe scores. max_examples: spread evenly.
        decoding: settings to use instead of the recipes'.
        n_samples, seed: of the bootstrap. lengths: source and target tokens of the sentence whose MACs are counted.
        fresh: decode again where outputs are kept. device: to decode on.
        verify: as in `ostinato.load`. access: where data files are found.
    """

    splits: Sequence[str] | None = None
    metrics: Sequence[str] | None = None
    checkpoint: str | None = None
    max_examples: int | None = None
    decoding: Mapping[str, Any] | None = None
    n_samples: int = N_SAMPLES
    seed: int = SEED
    lengths: tuple[int, int] = LENGTHS
    fresh: bool = False
    device: str = "auto"
    verify: bool = True
    access: DataAccess | None = None


@dataclass(frozen=True, slots=True)
class System:
    """A run's directory, or (no recipe) a file of predictions.

    Args:
        name: short, and its own among those compared.
    """

    path: Path
    name: str
    recipe: Recipe | None

    def references(self, split: str | None, choices: Choices) -> list[str]:
        """Return what the system was to write; nothing is decoded for it."""
        if self.recipe is None or split is None:
            return read_outputs(self.path).take(choices.max_examples).references
        task = build_task(self.recipe.task, self.recipe.data, choices.access, trains=False)
        n = choices.max_examples or self.recipe.evaluation.max_examples
        return [example.target for example in take_evenly(task.examples(split), n)]

    def outputs(
        self, splits: Sequence[str | None], choices: Choices, *, decodes: bool = True, counts: bool = False
    ) -> Iterator[Outputs]:
        """Yield what the system wrote, split by split; the model is held only meanwhile.

        A run decodes with as many CPU threads as it was trained with, like its own final evaluation.

        Args:
            decodes: outputs are wanted. counts: teacher-forced counts are, which a file does not have.
        """
        run = None
        if self.recipe:
            run = load(self.path, checkpoint=choices.checkpoint, device=choices.device, verify=choices.verify)
        for split in splits:
            if run is None or split is None:
                yield read_outputs(self.path).take(choices.max_examples)
                continue
            with cpu_threads(run.recipe.training.n_threads):
                read: dict[str, Any] = {"max_examples": choices.max_examples, "access": choices.access}
                counted = run_counts(run, split, **read) if counts else None
                if not decodes and counted is not None:
                    yield counted
                    continue
                found = run_outputs(run, split, **read, fresh=choices.fresh, **(choices.decoding or {}))
            yield found if counted is None else replace(found, counts=counted.counts)

    def tokenizer(self) -> Tokenizer:
        """Return that of the tokens, or labels, that a run's model predicts."""
        return Tokenizers.load(self.path / "tokenizers").target

    def vocabulary(self) -> list[str]:
        """Return the texts of the tokens, or labels, that a run's model predicts, whatever their order there."""
        tokenizer = self.tokenizer()
        return sorted(tokenizer.decode([i]) for i in range(tokenizer.vocab_size))

    def costs(self, checkpoint: str | None) -> dict[str, Any]:
        """Return size and training of a run; nothing is known of a file, and every value is None.

        Args:
            checkpoint: the one that was compared (`Outputs.checkpoint`): a run in training has another best one by now.
        """
        if self.recipe is None:
            return dict.fromkeys(_OF_A_RUN)
        path = self.path / "results.json"
        results = read_json_object(path) if path.is_file() else {}
        timings = self.path / "timings.jsonl"
        records = read_rows(timings) if timings.is_file() else []
        speeds = [record["labels_per_second"] for record in records if record["kind"] == "training"]
        speeds = [speed for speed in speeds if speed]  # 0: a record of updates that an earlier process did
        return {
            "recipe": self.recipe.name,
            "task": self.recipe.task.settings(),
            "seed": self.recipe.seed,
            "parameters": count_parameters(self.recipe.model).stored,
            "n_updates": results.get("n_updates"),
            "training_seconds": results.get("training_seconds"),
            "training_tokens_per_second": median(speeds) if speeds else None,
            "checkpoint": checkpoint,
        }

    def macs(self, outputs: Outputs, lengths: tuple[int, int]) -> dict[str, Any] | None:
        """Return what a pass costs; where tokens halt, at the rounds that those of the split ran on average.

        Returns:
            source_length, target_length; total and per_generated_token at the realised depth; full_depth: the total of
            all rounds; depth: stack -> mean rounds a token, of the stacks whose tokens halt. None of a file.
        """
        if self.recipe is None or outputs.evaluation is None:
            return None
        counted = pass_lengths(self.recipe, lengths)
        exits = outputs.evaluation.get("exit", {}).get("needs_predictions")
        may_halt = stacks_with_depth(self.recipe.model, exits or ()) & outputs.evaluation.get("halting", {}).keys()
        depth = {stack: outputs.evaluation["depth"][stack] for stack in sorted(may_halt)}
        realised = count_macs(self.recipe.model, *counted, expected_depth=depth, exits=exits)
        return {
            "source_length": lengths[0],
            "target_length": lengths[1],
            "total": realised.total,
            "per_generated_token": realised.per_generated_token,
            "full_depth": count_macs(self.recipe.model, *counted).total,
            "depth": depth,
        }


def open_systems(paths: Sequence[Path]) -> list[System]:
    """Return the systems, named by the last part of their paths, or by all of it where two end alike.

    Raises:
        DataError: a path that is not there, a device, or a recipe. ConfigError: a sweep.
    """
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise DataError(f"{', '.join(missing)}: no such file or run directory")
    for path in paths:  # files are read more than once, which no FIFO can be
        if (kind := kind_of(path)) not in (None, "a folder"):
            raise DataError(f"{path}: is {kind}, not a file or run directory")
        if path.is_file() and path.suffix in YAML_SUFFIXES:
            refuse_sweep(path, read_yaml(path))
            raise DataError(
                f"{path}: is no run directory or file of predictions: `ostinato train` makes a recipe a run"
            )
    return [
        System(path, name, load_recipe(path) if path.is_dir() else None)
        for path, name in zip(paths, short_names(paths), strict=True)
    ]


def same_references(systems: Sequence[System], split: str | None, choices: Choices) -> list[str]:
    """Return what all systems were to write.

    Raises:
        DataError: two systems were to write different texts, naming the first difference.
    """
    first = systems[0].references(split, choices)
    for system in systems[1:]:
        theirs = system.references(split, choices)
        if theirs == first:
            continue
        where = f"{system.path} cannot be compared with {systems[0].path}" + (f" on {split}" if split else "")
        if len(theirs) != len(first):
            raise DataError(f"{where}: {len(theirs)} references against {len(first)}")
        index = next(i for i, (a, b) in enumerate(zip(theirs, first, strict=True)) if a != b)
        texts = " against ".join(repr(texts[index][:_SHOWN]) for texts in (theirs, first))
        raise DataError(f"{where}: their references differ, first at index {index}: {texts}")
    return first


def decoding_costs(outputs: Outputs) -> dict[str, Any] | None:
    """Return what decoding a split took, None where it is not known, or a head said all in one pass."""
    result = outputs.evaluation
    if result is None or "decoding_seconds" not in result:
        return None
    return {
        "seconds": result["decoding_seconds"],
        "tokens_per_second": result["n_generated"] / max(result["decoding_seconds"], 1e-9),
        **{key: result[key] for key in ("n_generated", "n_unfinished", "device", "n_threads")},
        "settings": result["decoding"],
        "is_new": outputs.is_new,
    }
