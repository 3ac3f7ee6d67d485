"""What studies of runs share: a run under study, a study, a finding, and reasons why a study does not apply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from ostinato.analysis.arrays import Floats
from ostinato.analysis.capture import Collector, stream
from ostinato.analysis.collectors import (
    AttentionTotals,
    DepthByColumn,
    ExpertTotals,
    OneExample,
    Outcomes,
    SentenceVectors,
)
from ostinato.data.disk import read_json_object
from ostinato.data.example import Example, fingerprint
from ostinato.data.tokenizer import Tokenizer
from ostinato.errors import DataError
from ostinato.evaluation.loading import LoadedRun
from ostinato.models import Seq2Seq
from ostinato.models.build import Model, build_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKS = "supporting"
"""Column of the places of a source, from 0, that an answer rests on: words, or facts where a place is a fact."""
OnProgress = Callable[[int], None] | None


@dataclass(slots=True)
class Subject:
    """A run under study, the examples it is shown, and what has been collected of it.

    Args:
        name: of the run, unlike all others. columns: metadata that depth and accuracy are reported by. split: that the
            examples are of. example: place of the one that studies of one example show; None: the one of median length.
    """

    name: str
    run: LoadedRun
    examples: list[Example]
    columns: tuple[str, ...] = ()
    split: str = ""
    example: int | None = None
    collected: dict[type[Any], Any] = field(default_factory=dict)

    @property
    def model(self) -> Model:
        """The run's model."""
        return self.run.model

    def tokenizer(self, stack: str) -> Tokenizer:
        """Return the tokenizer of the tokens that a stack reads."""
        tokenizers = self.run.tokenizers
        return tokenizers.source if stack == "encoder" else tokenizers.target

    def text(self, stack: str, token: int | list[int]) -> str:
        """Return a token as text for figures and tables; of a fact its tokens."""
        if isinstance(token, list):
            return " ".join(self.text(stack, one) for one in token if one != self.model.special_ids.pad)
        tokenizer = self.tokenizer(stack)
        if token >= tokenizer.vocab_size:
            return "<mask>"
        return tokenizer.special_texts.get(token) or tokenizer.decode([token]).strip() or "\N{OPEN BOX}"

    def n_ids(self, stack: str) -> int:
        """Return how many ids a stack may read: the rows of its embedding, including the mask symbol's."""
        model = self.model
        if stack == "encoder" and isinstance(model, Seq2Seq):
            return len(model.source_embedding)
        return len(model.target_embedding)

    def shown(self) -> int:
        """Return the place of the example that studies of one example show.

        Raises:
            DataError: there are no examples.
        """
        self.check_examples()
        if self.example is not None:
            return self.example
        lengths = [len(example.source or "") + len(example.target) for example in self.examples]
        return sorted(range(len(lengths)), key=lambda i: (lengths[i], i))[len(lengths) // 2]

    def which(self) -> str:
        """Return which example `shown` is, in words."""
        why = " of median length" if self.example is None else " that was asked for"
        return f"Example {self.shown() + 1:,} of the {len(self.examples):,} read, the one{why}"

    def stored_results(self) -> dict[str, Any]:
        """Return the run's results.json; nothing where it is not finished."""
        path = self.run.directory / "results.json"
        return read_json_object(path) if path.is_file() else {}

    def marks(self) -> dict[int, list[int]]:
        """Return the marked places of the encoder by number of the example (`MARKS`), without those that were cut."""
        found: dict[int, list[int]] = {}
        longest = self.run.recipe.data.max_source_length
        for i, example in enumerate(self.examples):
            marked = example.columns.get(MARKS)
            if not isinstance(marked, list | tuple) or (source := example.source) is None:
                continue
            first, n = 0, len(source.split())
            if self.model.config.max_words is not None:  # a place is a fact; the last ones are kept
                n = source.count("\t") + 1
                first = max(0, n - longest)
            elif not self.model.config.has_two_sides:
                n = 0
            elif n != len(self.tokenizer("encoder").encode(source, unknown="replace")):
                n = 0  # a place is something else than a word
            else:
                n = min(n, longest - 1)  # the end symbol needs a column
            found[i] = [place - first for place in marked if isinstance(place, int) and first <= place < n]
        return found

    def collector(self, kind: type[Any]) -> Collector:
        """Return a new collector for this run."""
        made: dict[type[Any], Callable[[], Collector]] = {
            SentenceVectors: lambda: SentenceVectors(len(self.examples)),
            Outcomes: lambda: Outcomes(len(self.examples)),
            AttentionTotals: lambda: AttentionTotals(self.marks()),
            OneExample: lambda: OneExample(self.shown()),
            DepthByColumn: lambda: DepthByColumn(self.columns),
            ExpertTotals: lambda: ExpertTotals({name: self.n_ids(name) for name in self.model.stacks}),
        }
        make: Callable[[], Collector] = made.get(kind, kind)
        return make()

    def check_examples(self) -> None:
        """Raise a DataError where there is no example: all may have been left out of a split."""
        if not self.examples:
            raise DataError(f"{self.name}: {self.split}: there are no examples to analyse")

    def collect(self, kinds: set[type[Any]], on_progress: OnProgress) -> None:
        """Run the model over the examples once, for all collectors together.

        Raises:
            DataError: there are no examples, or one cannot be encoded or is too long.
        """
        self.check_examples()
        self.collected = {kind: self.collector(kind) for kind in kinds}
        stream(self.run, self.examples, list(self.collected.values()), on_progress=on_progress)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a study found.

    Args:
        columns, rows: the numbers shown beside the figure. data: all numbers, as JSON. arrays: large arrays, as NPZ.
        draw: makes the figure; `draw(True)` for a narrow screen. runs: what it is about; `Study.find` puts the names of
            the runs there where it is empty.
    """

    columns: tuple[str, ...]
    rows: list[list[object]]
    data: dict[str, Any]
    draw: Callable[[bool], Figure]
    arrays: dict[str, Floats] = field(default_factory=dict)
    note: str = ""
    runs: str = ""


def no_extra(subjects: Sequence[Subject]) -> int:
    """Return 0: of a study that runs no examples beside those of the common pass."""
    return 0


@dataclass(frozen=True, slots=True)
class Study:
    """One analysis.

    Args:
        name: as `--only` knows it. title, reading: of its section in the report, and how its figure is read.
        of_run: returns the finding of one run. of_runs: in its place, that of all runs together. Collectors have seen
            all examples by then.
        columns: that its table may have, of one run; empty: they are named after what is found.
        needs: collectors of the streamed pass. needs_steps: it is about steps of depth, which a recurrence does not
            have. why_not_model: returns why it applies to no run of a model, None where it may. why_not_run: the same
            of a run of a model to which it may apply. why_not_together: the same of several runs to each of which it
            applies; one is too few where it compares. extra_examples: how many it runs beside those of the common pass.
    """

    name: str
    title: str
    reading: str
    of_run: Callable[[Subject, OnProgress], Finding] | None = None
    of_runs: Callable[[Sequence[Subject], OnProgress], Finding] | None = None
    columns: tuple[str, ...] = ()
    needs: tuple[type[Any], ...] = ()
    needs_steps: bool = True
    why_not_model: Callable[[Model], str | None] = lambda model: None
    why_not_run: Callable[[Subject], str | None] = lambda subject: None
    why_not_together: Callable[[Sequence[Subject]], str | None] = lambda subjects: None
    extra_examples: Callable[[Sequence[Subject]], int] = no_extra

    def why_never(self, model: Model) -> str | None:
        """Return why it applies to no run of a model, None where it may; the weights are not looked at."""
        if self.needs_steps and not model.stacks:
            return "its model is a recurrence over positions: it has no steps to look at"
        return self.why_not_model(model)

    def why_not(self, subject: Subject) -> str | None:
        """Return why it does not apply to a run, None where it does."""
        return self.why_never(subject.model) or self.why_not_run(subject)

    def find(self, subjects: Sequence[Subject], on_progress: OnProgress) -> list[Finding]:
        """Return the findings for the runs to which the study applies.

        Raises:
            DataError: a run without examples, where the study is not of weights or records alone.
        """
        if self.needs or self.extra_examples is not no_extra:
            for subject in subjects:
                subject.check_examples()
        if self.of_runs is not None:
            found, runs = [self.of_runs(subjects, on_progress)], [" ".join(subject.name for subject in subjects)]
        elif self.of_run is not None:
            found, runs = [self.of_run(one, on_progress) for one in subjects], [one.name for one in subjects]
        return [replace(one, runs=one.runs or name) for one, name in zip(found, runs, strict=True)]


def no_halting(model: Model) -> str | None:
    """Return a reason where no token of a model can halt."""
    return None if model.halting_stacks() else "no token of its model can halt"


def no_threshold(model: Model) -> str | None:
    """Return a reason where no token of a model halts by a threshold."""
    return no_halting(model) or (None if model.halting_thresholds() else "its tokens do not halt by a threshold")


def no_router(model: Model) -> str | None:
    """Return a reason where a model has no router."""
    has_router = any(module.router is not None for module in model.routed())
    return None if has_router else "no sub-layer of its model chooses between experts"


def untrained(model: Model, seed: int = 0) -> Model:
    """Return a model with new weights; with a run's own seed those it began with, before `training.init_from`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_model(model.config).to(model.device)


def natural_order(value: str) -> tuple[int, float, str]:
    """Return a key that sorts numbers, and intervals by where they begin, before texts."""
    head = value.split("-")[0]
    return (0, float(head), "") if head.replace(".", "", 1).isdecimal() else (1, 0.0, value)


def not_comparable(subjects: Sequence[Subject]) -> str | None:
    """Return a reason where runs cannot be compared: there is only one, or they read different examples."""
    if len(subjects) < 2:
        return "it compares runs, and one was given"
    if len({fingerprint(subject.examples) for subject in subjects}) > 1:
        return "the runs do not read the same examples: choose runs of one task, and a split they all have"
    return None
