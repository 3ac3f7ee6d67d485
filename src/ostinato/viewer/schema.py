"""What the page asks the server and what it is answered, as types; `/api/schema` shows them as JSON Schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from ostinato.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may cost.

    Args:
        body: bytes. seconds: of work, after its turn has come. waiting: requests of a run that wait for their turn.
        tokens: of a sequence. generated: tokens of an output. rounds: of a stack, as a multiple of those of its plan.
        examples: of a curve. known: of a split that are offered.
    """

    body: int = 65_536
    seconds: float = 60.0
    waiting: int = 64
    tokens: int = 256
    generated: int = 128
    rounds: int = 8
    examples: int = 200
    known: int = 1000


Name = Annotated[str, Field(max_length=200)]
Rounds = Annotated[int, Field(ge=1, le=1000)]
Threshold = Annotated[float, Field(ge=0.0, le=1.0)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class ExampleRef(_Request):
    """One example of a split, by its number from 0."""

    split: Name
    index: Annotated[int, Field(ge=0)]


class Depth(_Request):
    """How a run's model is to run."""

    run: Name
    rounds: Annotated[dict[Name, Rounds], Field(max_length=8)] = Field(default_factory=dict)
    """By stack, in place of the plan's; stacks whose rounds share all weights only."""
    threshold: Threshold | None = None
    """In place of the halting thresholds in force; with `exit` that of the criterion."""
    exit: Name | None = None
    """The criterion by which tokens stop in place of the model's own rule."""
    exit_scope: Literal["token", "sequence"] = "token"


class Search(Depth):
    """How outputs are searched for, in place of the run's own search."""

    beam: Annotated[int, Field(ge=1, le=16)] | None = None
    temperature: Annotated[float, Field(gt=0, le=10)] | None = None
    """Draws tokens at this temperature; None: searches as the run does, or with `beam`."""
    seed: Annotated[int, Field(ge=0, le=2**31)] = 0


class Sentence(Search):
    """What is read, and how the output is searched for."""

    text: Annotated[str, Field(max_length=8000)] | None = None
    """One's own text; or else `example`."""
    example: ExampleRef | None = None
    reads: Literal["output", "answer"] = "output"
    """What a model that writes reads as its target: what it writes itself, or the example's answer."""
    output_ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=4096)] | None = None
    """What the model has written, as `/api/generate` returned it; None: it is written first."""
    max_length: Annotated[int, Field(ge=1)] | None = None
    """Tokens written at most; None: as many as the run's own settings allow."""


class AttentionRequest(Sentence):
    """A sentence, and the attention that is looked at."""

    stack: Name
    step: Annotated[int, Field(ge=0)]
    kind: Literal["self_attention", "cross_attention"]


class CurveRequest(Search):
    """Some examples of a split, what is varied over them, and how outputs are searched for where `metric` is given."""

    split: Name
    n: Annotated[int, Field(ge=1)] = 50
    along: Literal["threshold", "rounds"]
    metric: Name | None = None
    """One of the run's metrics: outputs are then written at every setting, and scored by it."""


class ExamplesQuery(_Request):
    """A page of the examples of a split."""

    model_config = ConfigDict(strict=False)
    run: Name
    split: Name
    offset: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="null")


class Cell(_Answer):
    """One sub-layer at one step: its parameter set, what that stores, and its multiply-accumulates for a sentence.

    The sentence has as many tokens as `RunInfo.macs_lengths` says.
    """

    kind: str
    set: str
    parameters: int
    macs: int


class PlanStep(_Answer):
    """One step of a stack; `loop`: whether its round is one of those that are counted and may halt."""

    index: int
    round: int
    loop: bool
    cells: list[Cell]


class StackInfo(_Answer):
    """A stack: its rounds, whether their number may change, its halting rule, its plan."""

    name: str
    rounds: int
    most_rounds: int
    varies: bool
    halting: str
    threshold: float | None
    plan: list[PlanStep]


class RunInfo(_Answer):
    """What a run is, and what may be changed of it.

    macs_lengths: source and target tokens, see `Cell`. generates: it writes text. prompts: its texts have no source,
    so that one's own text is a prompt. exits: criteria by which its tokens can stop. threshold_from: trained,
    tuned or given.
    """

    name: str
    description: str
    task: str
    reads: str
    checkpoint: str
    parameters: int
    macs_lengths: list[int]
    generates: bool
    prompts: bool
    splits: list[str]
    stacks: list[StackInfo]
    exits: list[str]
    threshold_from: str
    beam: int
    temperature: float
    """Of a run that draws its output; else 0."""
    metrics: list[str]


class Runs(_Answer):
    """The runs that the page shows, and what a request may cost."""

    version: str
    runs: list[RunInfo]
    limits: dict[str, float]


class ExampleView(_Answer):
    """One example with its answer and metadata."""

    index: int
    source: str | None
    target: str
    columns: dict[str, Any]


class Examples(_Answer):
    """Some examples of a split; total: how many are offered."""

    split: str
    total: int
    examples: list[ExampleView]


class TokenView(_Answer):
    """One token: its text, rounds it took part in, and the depth its output comes from."""

    text: str
    rounds: int
    depth: float


class HaltingView(_Answer):
    """By token and round: probability to halt, mass not halted before, whether the token took part."""

    probability: list[list[float]]
    remaining: list[list[float]]
    ran: list[list[bool]]


class ExpertsView(_Answer):
    """What a router chose at one step: by token the experts and their gates, null where it took no part."""

    router: str
    step: int
    round: int
    n_experts: int
    n_heads: int
    chosen: list[list[int] | None]
    gates: list[list[float] | None]


class AttentionPlace(_Answer):
    """Attention that can be looked at; over: the stack whose tokens are looked at."""

    step: int
    round: int
    kind: str
    n_heads: int
    over: str


class StackView(_Answer):
    """What the tokens of a stack did in a pass over the sentence; rounds: those that were to run."""

    name: str
    rounds: int
    tokens: list[TokenView]
    halting: HaltingView | None
    experts: list[ExpertsView]
    attention: list[AttentionPlace]


class LabelView(_Answer):
    """One thing that is predicted: at which token (null: of the whole sentence), and what is right or was written.

    bits: surprisal, -log2 of the probability of `text`, teacher-forced; null where that is not known.
    """

    column: int | None
    text: str | None
    bits: float | None


class Predictions(_Answer):
    """The most probable predictions of every label after every round, and of the output.

    Token ids by label, round (the output last) and rank, with their probabilities; `texts` has the ids' texts.
    """

    stack: str | None
    rounds: list[str]
    labels: list[LabelView]
    ids: list[list[list[int]]]
    probabilities: list[list[list[float]]]
    texts: dict[int, str]


class Cost(_Answer):
    """Multiply-accumulates and milliseconds of one pass over the sentence, as it ran and at full depth."""

    macs: int
    macs_full: int
    ms: float
    ms_full: float


class Written(_Answer):
    """An output: of the search, or read off the head."""

    text: str
    ids: list[int]
    finished: bool
    score: float | None
    ms: float | None


class Inspection(_Answer):
    """What a model did with one sentence."""

    run: str
    source: str | None
    answer: str | None
    output: Written | None
    right: bool | None
    thresholds: dict[str, float]
    stacks: list[StackView]
    predictions: Predictions
    cost: Cost


class Attention(_Answer):
    """Weights of one sub-layer by head, query and key; null for queries that took no part in the round."""

    run: str
    stack: str
    step: int
    kind: str
    queries: list[str]
    keys: list[str]
    weights: list[list[list[float] | None]]


class Token(_Answer):
    """A line of `/api/generate`: what is written so far."""

    kind: Literal["tokens"] = "tokens"
    text: str
    tokens: list[str]


class Output(_Answer):
    """The last line of `/api/generate`."""

    kind: Literal["output"] = "output"
    output: Written


class Point(_Answer):
    """A line of `/api/curve`: scores and cost of the examples at one setting; here: the settings that were sent.

    Accuracies are teacher-forced. score: of what was written, by the metric that was asked for, as a share of a perfect
    score (BLEU 30 is 0.3), or, where that is not above 0, as it is (is_share: false). Multiply-accumulates are those of
    a teacher-forced pass.
    """

    kind: Literal["point"] = "point"
    setting: float
    here: bool
    token_accuracy: float
    sequence_accuracy: float
    score: float | None
    is_share: bool
    macs: float
    macs_full: float
    rounds: dict[str, float]


class End(_Answer):
    """The last line of `/api/curve`; notes: what was cut, or is read in another way than `ostinato evaluate` does."""

    kind: Literal["end"] = "end"
    n: int
    notes: list[str]


class Failure(_Answer):
    """Why there is no answer; also a line of a stream."""

    kind: Literal["error"] = "error"
    error: str


def one_line(error: ValidationError) -> ConfigError:
    """Return what is wrong with a request."""

    def problem(found: ErrorDetails) -> Problem:
        key = ".".join(map(str, found["loc"])) or "request"
        return Problem(key, found.get("input"), found["msg"])

    return ConfigError([problem(found) for found in error.errors(include_url=False)[:5]])


class MetricsQuery(_Request):
    """What a page has of a run's logs: bytes of each that it has read, and the marks that came with them."""

    model_config = ConfigDict(strict=False)
    run: Name
    metrics: Annotated[int, Field(ge=0)] = 0
    metrics_mark: Annotated[str, Field(max_length=64)] = ""
    timings: Annotated[int, Field(ge=0)] = 0
    timings_mark: Annotated[str, Field(max_length=64)] = ""


class WatchedRun(_Answer):
    """How far a run is; left: seconds, None where that is not known; age: seconds since its log has grown."""

    name: str
    state: Literal["waiting", "begun", "finished"]
    update: int
    n_updates: int | None
    left: float | None
    age: float | None


class Watched(_Answer):
    """The runs that are watched."""

    version: str
    runs: list[WatchedRun]


class TrainingPoint(_Answer):
    """What a training record holds; load: by router the share of each expert; depth: by stack tokens by rounds."""

    update: int
    loss: float | None
    lr: float | None
    grad_norm: float | None
    load: dict[str, list[float]]
    depth: dict[str, list[float]]


class EvaluationPoint(_Answer):
    """What an evaluation found, by the names of scores."""

    update: int
    split: str
    scores: dict[str, float]


class Metrics(_Answer):
    """What was added to a run's logs; again: the run was resumed, forget all before. more: ask again at once."""

    run: WatchedRun
    again: bool
    more: bool
    metrics: int
    metrics_mark: str
    timings: int
    timings_mark: str
    training: list[TrainingPoint]
    evaluations: list[EvaluationPoint]
    speeds: dict[int, float]
