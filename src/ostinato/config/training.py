"""What a training run is: optimiser, schedule, regularisation, precision, and what is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ostinato.config.base import Config, Count, Number, Positive, Size, inert
from ostinato.config.schema import slots_of
from ostinato.errors import Inert, Problem
from ostinato.plan import Plan

Weight = Annotated[float, Field(ge=0)]
ExpertBackend = Literal["auto", "loop", "segments", "padded", "grouped"]
NO_SMOOTHING_OF_SPANS = "most places of a span are impossible and can have no share of it: use 0"


class OptimizerConfig(Config):
    """Adam (L2 penalty in the gradient) or AdamW (decoupled weight decay; norms, biases and embeddings exempt, not so
    tables of values and vectors of rounds)."""

    kind: Literal["adamw", "adam"] = "adamw"
    """adamw: decoupled weight decay. adam: the decay as an L2 penalty in the gradient."""
    lr: Positive = 5e-4
    """Peak learning rate. For the schedule inverse_sqrt_t2t it is the constant c of that formula (T2T: 2.0)."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the mean of the gradients."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.98
    """Decay of the mean of the squared gradients."""
    eps: Positive = 1e-9
    """Added to the root of the mean of the squared gradients."""
    weight_decay: Weight = 0.0
    """adamw: share of a weight that is taken off, times the learning rate. adam: weight of the L2 penalty."""
    lr_scales: list[LearningRateScale] = Field(default_factory=list)
    """Parts with a learning rate of their own; the first pattern that matches a parameter counts."""


class LearningRateScale(Config):
    """A part of the model with a learning rate of its own."""

    pattern: str
    """Of the names of its parameters; `*` stands for anything."""
    scale: Positive
    """What the schedule's learning rate is multiplied by."""


class ScheduleConfig(Config):
    """Learning rate over updates u = 1, 2, ... with W warm-up updates and U updates in all.

    constant:          lr, after a linear warm-up
    inverse_sqrt:      lr * min(u / W, sqrt(W / u))                                   fairseq
    inverse_sqrt_t2t:  lr * d_model^-0.5 * min(u / W, 1) * max(u, W)^-0.5             tensor2tensor
    linear:            warm-up, then a line to final_fraction * lr at u = U
    cosine:            warm-up, then half a cosine to final_fraction * lr at u = U
    """

    kind: Literal["constant", "inverse_sqrt", "inverse_sqrt_t2t", "linear", "cosine"] = "inverse_sqrt"
    warmup: Count = 400
    """W: updates over which the learning rate grows linearly from 0."""
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    """linear, cosine: what is left of lr at the last update."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """The inverse square root starts at the end of its warm-up."""
        if self.kind.startswith("inverse_sqrt") and self.warmup < 1:
            yield Problem(f"{path}warmup", self.warmup, f"must be at least 1 with {path}kind={self.kind}")
        if self.kind not in ("linear", "cosine"):
            reason = f"has no effect with {path}kind={self.kind}, which has no end: remove it"
            yield from inert(self, path, reason, but={"kind", "warmup"})


Mode = Literal["min", "max"]
"""Whether a smaller or a larger value is better."""


class SelectionConfig(Config):
    """Which checkpoint is the best one, and when to stop waiting for a better."""

    split: str = "dev"
    """Split that is evaluated while training."""
    metric: str = "loss"
    """Teacher-forced: loss, perplexity, token_accuracy, sequence_accuracy_forced, of whole texts also word_perplexity
    and bits_per_byte. Or a metric of decoded outputs, as exact_match, bleu or a `module:Class` of one's own."""
    mode: Mode = "min"
    """Whether a smaller or a larger value is better."""
    patience: Size | None = None
    """Evaluations without improvement before the run stops; None: never."""
    max_examples: Size | None = None
    """Examples of the split used while training, spread evenly over it; None: all."""


BALANCE_LOSSES = ("switch", "hypersphere", "mutual_information", "z", "importance", "sequence_entropy")


class BalanceConfig(Config):
    """Weights of the losses that spread tokens over experts, added for every router: see `ostinato.nn.balance`.

    Every loss is a mean over the tokens and rounds of one router, so a weight means the same for every batch size.
    With `accumulate`, the loss of an update is the mean of its batches' losses, weighted by their target tokens: for
    those that are not linear in the rows (all but z) not quite that of one large batch.
    The `loss` of training records and of evaluations is without them; a training record has them in `routing`.
    """

    switch: Weight = 0.0
    """E sum_e P_e F_e: 1 where experts are used evenly (Switch Transformer)."""
    hypersphere: Weight = 0.0
    """The same of first choices and softmax(s / temperature): 1 where even (X-MoE)."""
    mutual_information: Weight = 0.0
    """Mean entropy of the rows less the entropy of their mean: -log E where sharp and even (SUT)."""
    z: Weight = 0.0
    """Mean squared logsumexp of the scores (ST-MoE)."""
    importance: Weight = 0.0
    """Squared coefficient of variation of the summed gates: 0 where even (Shazeer et al. 2017)."""
    sequence_entropy: Weight = 0.0
    """Minus the entropy of the mean over the tokens and steps of a sentence, a mean over sentences: -log E where even
    (MoEUT)."""
    attention_factor: Annotated[float, Field(ge=0)] = 1.0
    """Factor of all of these weights for the routers of attention (MoEUT: 0.1)."""
    token_weights: Literal["remaining", "uniform"] = "remaining"
    """What a token that has not halted counts in these losses, and in the loads of training records. remaining: the
    mass left of it (SUT's code), through which they reach the gates of halting. uniform: 1 (SUT, equation 1)."""
    temperature: Positive | None = None
    """tau_0 of `hypersphere`, a constant. None: the temperature its router starts from."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """A temperature of a loss without a weight, a factor of no weights."""
        if self.attention_factor != 1.0 and not any(getattr(self, name) for name in BALANCE_LOSSES):
            reason = "has no effect, because no loss has a weight: remove it"
            yield Inert(f"{path}attention_factor", self.attention_factor, reason)
        if self.temperature is not None and not self.hypersphere:
            reason = f"has no effect, because {path}hypersphere is 0: remove it"
            yield Inert(f"{path}temperature", self.temperature, reason)


class DepthCostConfig(Config):
    """What depth costs in the objective of a model whose tokens halt, and how its training begins.

    The cost is the sum over stacks of `StackOutput.depth_cost`, a mean over real tokens: the expected depth with
    stick-breaking, rounds + remainder with ACT, minus the entropy of its round with a learned exit, the router's own
    losses where tokens are chosen. With `accumulate`, batches count by their target tokens.
    The `loss` of training records and of evaluations is without it; a training record has it in `depth`.
    """

    weight: Weight = 0.0
    """Weight of the cost of depth in the loss (Universal Transformers: 0.01)."""
    off_updates: Count = 0
    """First updates, in which no token halts: the last round's states are the output, and gates are not computed. A
    gate that learns while the states carry no information yet learns to halt at once. This concerns training passes
    only: evaluations and checkpoints meanwhile are of the model with its gates as they were initialised."""
    warmup: Count = 0
    """Updates after these, over which the weight grows linearly."""
    capacity_warmup: Count = 0
    """Updates after `off_updates` over which routers that choose tokens come to leave out all that they will: capacity
    c(u) = c + (1 - c) (1 + cos(pi u / capacity_warmup)) / 2 in update u of them (Mixture-of-Recursions)."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """A weight of 0 that grows."""
        if self.warmup and not self.weight:
            yield Inert(f"{path}warmup", self.warmup, f"has no effect, because {path}weight is 0: remove it")

    def weight_at(self, update: int) -> float:
        """Return the weight of update 1, 2, ...: 0 while no token halts, then growing to `weight` in a line."""
        since = update - self.off_updates
        return self.weight * min(1.0, since / max(self.warmup, 1)) if since > 0 else 0.0

    def left_out_at(self, update: int) -> float:
        """Return f of update u = 1, 2, ..., from 0 to 1: routers of capacity c leave out the share f (1 - c) of tokens.

        f = (1 - cos(pi p)) / 2, p = (u - off_updates) / max(capacity_warmup, 1), cut to [0, 1].
        """
        part = (update - self.off_updates) / max(self.capacity_warmup, 1)
        return (1 - math.cos(math.pi * min(max(part, 0.0), 1.0))) / 2

    @property
    def settled(self) -> int:
        """The last update before weight and capacities are constant."""
        return self.off_updates + max(self.warmup, self.capacity_warmup)


class _RoundsConfig(Config):
    """What the gradient goes through, whatever the rounds are."""

    gradient_rounds: Size | None = None
    """The last of the rounds that run at most, through which the gradient goes (truncated back-propagation), in stacks
    whose rounds share all weights; None: all.
    Refused where tokens may stop before them in training (halting.kind act, stick_breaking, token_choice, length)."""
    gradient_repeats: Annotated[list[Number], Field(min_length=1)] | None = None
    """In loops of several states, how many of a state's `repeats` in a round the gradient goes through, its last ones:
    a number for each of the last rounds, of which the first one holds for all rounds before them, too (HRM-Text:
    [1, 2]). None: all."""


class PlannedRoundsConfig(_RoundsConfig):
    """Every update runs as many rounds as the plan has."""

    kind: Literal["plan"] = "plan"
    per: ClassVar[Literal["update"]] = "update"
    """What has a number of its own: nothing else is drawn."""


class _DrawnRoundsConfig(_RoundsConfig):
    """What distributions of rounds have in common. The draw depends on the seed of the run and the update only, and on
    the row of the update's batches where every sentence has its own."""

    per: Literal["update", "sentence"] = "update"
    """What has a number of its own: the update, or every sentence. All sentences of a batch then end together, those
    with fewer rounds begin later (Parcae)."""
    ramp: Count = 0
    """First updates, over which the number grows in a line from 1 (Retrofitted Recurrence)."""

    def grown(self, update: int, full: float) -> float:
        """Return max(1, ceil(full * part)), part = update / ramp at most 1; without a ramp `full` itself."""
        return full if update >= self.ramp else max(1.0, math.ceil(full * update / self.ramp))


class UniformRoundsConfig(_DrawnRoundsConfig):
    """Any number from `least` to `most`, equally likely."""

    kind: Literal["uniform"] = "uniform"
    least: Number = 1
    """Fewest rounds."""
    most: Number = 8
    """Most rounds; grows with `ramp`."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """An empty range."""
        if self.most < self.least:
            yield Problem(f"{path}most", self.most, f"must be at least {path}least = {self.least}")


class PoissonRoundsConfig(_DrawnRoundsConfig):
    """max(1, n), n ~ Poisson(rate) (Parcae)."""

    kind: Literal["poisson"] = "poisson"
    rate: Positive = 8.0
    """Mean of the distribution; grows with `ramp`."""


class LogNormalPoissonRoundsConfig(_DrawnRoundsConfig):
    """1 + n, n ~ Poisson(r), r ~ LogNormal(log(rate) - sigma^2 / 2, sigma^2) (Huginn)."""

    kind: Literal["lognormal_poisson"] = "lognormal_poisson"
    rate: Positive = 32.0
    """Mean of n; grows with `ramp`."""
    sigma: Positive = 0.5
    """Deviation of log r."""
    most: Number | None = None
    """Most rounds; None: any number."""


RoundsConfig = Annotated[
    PlannedRoundsConfig | UniformRoundsConfig | PoissonRoundsConfig | LogNormalPoissonRoundsConfig,
    Field(discriminator="kind"),
]


class RoundLossConfig(Config):
    """Of which rounds' predictions the loss is, in models whose last stack has rounds.

    last:    of the last round's
    window:  the mean over the last `n_rounds` rounds (Yang et al. 2023)
    weights: sum_t w_t loss_t / sum_t w_t, over as many rounds at the end as there are `weights`
    exit:    sum_t p_t loss_t, p_t the distribution of a learned exit (`halting.kind: exit`; Ouro, stage I); its
             entropy counts with the weight `training.halting.weight`
    drawn:   (1 - weight) loss of the last round + weight loss of another one, any of those before it alike, drawn from
             the seed and the update only
    improvement: of the gate of a learned exit alone (Ouro, stage II), for a model whose other parameters are frozen:
             binary cross entropy of 1 - l_t, the gate's probability of going on, with the target
             sigmoid(slope (max(0, loss_{t-1} - loss_t) - margin)), the mean over the rounds t = 2, 3, ...
    """

    kind: Literal["last", "window", "weights", "exit", "drawn", "improvement"] = "last"
    n_rounds: Size | None = None
    """window: rounds at the end; None: all."""
    weights: Annotated[list[Weight], Field(min_length=1)] | None = None
    """weights: of the last rounds, the last number is the last round's; rounds before them do not count. An update that
    runs fewer rounds has the last of them."""
    weight: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """drawn: of the round that is drawn; the last one has the rest."""
    slope: Positive = 50.0
    """improvement: how sharply the target tells a round that is worth its cost from one that is not."""
    margin: Annotated[float, Field(ge=0)] = 0.005
    """improvement: nats by which a round must lower a token's loss to be worth its cost."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Settings of other kinds; weights that are not there, or leave out the round that every update has."""
        own = {"window": {"n_rounds"}, "weights": {"weights"}, "drawn": {"weight"}, "improvement": {"slope", "margin"}}
        reason = f"has no effect with {path}kind={self.kind}: remove it"
        yield from inert(self, path, reason, but={"kind"} | own.get(self.kind, set()))
        if self.kind == "weights" and self.weights is None:
            reason = f"{path}kind=weights needs a number for each of the last rounds, for instance [0.25, 0.25, 0.5]"
            yield Problem(f"{path}weights", None, reason)
        if self.weights and not self.weights[-1]:
            yield Problem(f"{path}weights", self.weights, "the last one, of the last round, must be positive")

    def n_predictions(self, plans: Mapping[str, Plan]) -> int:
        """Return how many rounds of a pass have predictions with a gradient.

        Args:
            plans: of a model's stacks, in the order they run; predictions are those of the last one's rounds.
        """
        if not plans:
            return 1
        n_rounds = list(plans.values())[-1].n_rounds
        return n_rounds if self.kind == "exit" else sum(weight > 0 for weight in self.of_rounds(n_rounds))

    def of_rounds(self, n_rounds: int, draw: float = 0.0) -> list[float]:
        """Return the weights of so many rounds, whose sum is 1, of a loss whose weights are not learned.

        Args:
            draw: in [0, 1), which round is drawn, for the loss that draws one.
        """
        found = [0.0] * n_rounds
        match self.kind:
            case "window":
                n = min(self.n_rounds or n_rounds, n_rounds)
                found[-n:] = [1.0 / n] * n
            case "weights":
                given = (self.weights or [1.0])[-n_rounds:]
                found[-len(given) :] = [weight / sum(given) for weight in given]
            case "drawn" if n_rounds > 1:
                found[int(draw * (n_rounds - 1))] = self.weight
                found[-1] = 1 - self.weight
            case _:
                found[-1] = 1.0
        return found


class ConsistencyConfig(Config):
    """A second pass of every batch with fewer rounds, whose predictions count, too, and whose states are drawn to those
    of the first (LoopFormer): loss + a loss' + b mean((stop(x) - x')^2), x what leaves the last stack.

    Of R rounds the second pass runs M, any of 1 .. R - 1, drawn from the seed and the update only; with modulation by
    time along a drawn path of M steps that are multiples of 1 / R. What has one round only has no second pass.
    """

    loss: Annotated[float, Field(ge=0)] = 0.0
    """Weight a of the loss of the second pass (LoopFormer: 0.1)."""
    states: Annotated[float, Field(ge=0)] = 0.0
    """Weight b of the mean squared difference of the states of real tokens (LoopFormer: 0.1)."""

    @property
    def is_there(self) -> bool:
        """Whether there is a second pass."""
        return self.loss > 0 or self.states > 0


class PlainParallelConfig(Config):
    """Every process holds the whole model; gradients are added up once the backward pass is done. For every model."""

    kind: Literal["none"] = "none"


class DdpConfig(Config):
    """Every process holds the whole model; gradients are added up while the backward pass goes on, in buckets (torch's
    DistributedDataParallel with a static graph). For models whose every update uses the same parameters."""

    kind: Literal["ddp"] = "ddp"
    bucket_mib: Size = 25
    """Gradients that are sent together, in MiB."""


class FsdpConfig(Config):
    """Every process holds a part of each parameter, of its gradient and of the optimiser's state (torch's fully_shard:
    FSDP2). A parameter set is gathered where it is used."""

    kind: Literal["fsdp"] = "fsdp"
    keep_shared: bool = True
    """Sets that several steps share are gathered once a batch, at their first use, and kept until the backward pass
    is over; their gradients are added up once. False: gathered for every use, forward and backward, and freed after
    it, which takes less memory and more messages. Sets of a single step are always gathered so."""


ParallelConfig = Annotated[PlainParallelConfig | DdpConfig | FsdpConfig, Field(discriminator="kind")]

LoggerName = Literal["tensorboard", "trackio", "wandb"]


class TrainingConfig(Config):
    """One training run."""

    n_updates: Annotated[int, Field(ge=0, le=2**31 - 1)] = 2000
    """Optimiser steps of the whole run; there are no epochs. 0: the model stays as it was initialised, and is
    evaluated: what every measure of a trained model has to be compared with."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Optimiser and peak learning rate."""
    schedule: ScheduleConfig = ScheduleConfig()
    """Learning rate over the updates."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the target distribution that is spread evenly over the vocabulary."""
    balance: BalanceConfig = BalanceConfig()
    """Losses that keep experts in use."""
    halting: DepthCostConfig = DepthCostConfig()
    """The cost of depth, and a start at full depth."""
    rounds: RoundsConfig = PlannedRoundsConfig()
    """How many rounds an update runs, of stacks whose rounds share their weights."""
    round_loss: RoundLossConfig = RoundLossConfig()
    """Of which rounds' predictions the loss is."""
    consistency: ConsistencyConfig = ConsistencyConfig()
    """A second pass with fewer rounds."""
    init_from: str | None = None
    """A run directory: the model starts from the weights of its best checkpoint, and reads text as that run does.
    Parameters that it lacks, or has for another halting rule of the stack, start as they would without it."""
    init_checkpoint: str = "best"
    """Which of its checkpoints: best, last, a mean (best:5, last:5), or a name such as update-000500."""
    init_except: list[str] = Field(default_factory=list)
    """Parameters that are not taken from init_from, by patterns of their names: the run's are left out, the model's
    start as they would without it. `head.*` and `output_weight` exchange a head."""
    init_shared: Literal["average", "first", "last", "stepwise"] | None = None
    """With init_from, a run whose steps have weights of their own: this model shares them, and its weights are made of
    the run's, as `ostinato convert --shared` makes them. None: both have the same parameters."""
    extend_vocabulary: bool = False
    """With init_from: words (or characters) of the new training data that the run's tokenizer lacks get ids after its
    own, as data.tokenizer's min_count and vocab_size say, and embeddings rows for them that start as in a new model."""
    freeze: list[str] = Field(default_factory=list)
    """Parameters that do not train, by patterns of their names. `*router.*`, `*.experts.*` and `*.norm_*` keep
    routers, experts of feed-forwards and the norms of a sparse layer's experts as they are (`*.query_*`, `*.value_*`
    and `*.out_*` the experts of attention), while balance losses still reach the states below."""
    freeze_except: list[str] = Field(default_factory=list)
    """Parameters that train although `freeze` names them, by patterns of their names: to freeze `*` and except
    `*.halting.*` trains gates alone."""
    expert_backend: ExpertBackend = "auto"
    """How rows are multiplied by their experts' weights; auto: the best one that works on the device."""
    compaction: Literal["auto", "always", "never"] = "auto"
    """Whether halted tokens and padding are gathered away before a round; auto: where it pays."""
    clip_norm: Positive | None = 1.0
    """Largest norm of the whole gradient; None: no clipping."""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Decay d of a mean of the weights over the updates, m_u = d m_(u-1) + (1 - d) w_u, which evaluations, the choice
    of the best checkpoint and everything that reads a checkpoint then use in place of the last weights (TRM: 0.999).
    None: no mean."""
    accumulate: Size = 1
    """Batches per update, weighted by their target tokens: N batches give the gradient of the task's loss of one large
    batch. Balance losses, cost of depth and `consistency.states` are means over each batch."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: autocast; weights, norms, softmaxes and losses stay float32."""
    dropout_draws: Literal["auto", "torch"] = "auto"
    """Random numbers of dropout. auto: on a CPU one byte an element, so that p is rounded to 1/256 and the scale
    makes up for the rounded p; elsewhere torch's. torch: torch's everywhere, which on a CPU takes ten times as long."""
    compile: bool = False
    """Training passes by torch.compile (evaluations and decoding are not compiled). The first updates take minutes; one
    graph serves all lengths, or where tokens halt one of every stretch between two rounds. Models with experts need
    precision bfloat16 and widths that are multiples of 8; on a CPU a C++ compiler. docs/gpu.md says what was tried."""
    checkpoint_activations: bool = False
    """Recompute every step in the backward pass instead of keeping its activations."""
    evaluate_every: Size = 500
    """Updates from one evaluation to the next."""
    save_every: Size = 500
    """Updates from one checkpoint to the next; an interrupt, the end and the best ones are saved besides."""
    log_every: Size = 50
    """Updates from one training record to the next."""
    keep_last: Size = 1
    """How many of the newest checkpoints stay: of those saved every `save_every` updates and the last one; of others
    only while these are fewer."""
    keep_best: Size = 1
    """Checkpoints that stay besides, of the best by `selection`: what `--checkpoint best:N` may average."""
    selection: SelectionConfig = SelectionConfig()
    """Which checkpoint is the best one."""
    device: str = "auto"
    """auto: a CUDA GPU if there is one, else cpu; or a name: cpu, cuda, cuda:1, mps."""
    n_threads: Size | None = None
    """CPU threads; None: torch's choice."""
    parallel: ParallelConfig = PlainParallelConfig()
    """What the processes of a run hold, where a launcher starts several, and how they add up their gradients."""
    loggers: list[LoggerName] = Field(default_factory=list)
    """Programs that are told the numbers of a run beside its own logs: tensorboard (files in the run's directory),
    trackio (its store on this machine), wandb (a service; sends them there). Each has to be installed."""

    @property
    def draws_rounds(self) -> bool:
        """Whether updates may run other rounds than the plan's."""
        return self.rounds.kind != "plan" or self.consistency.is_there

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Settings that need another one (a start, what is frozen, gates that are asked), and pairs that exclude each
        other."""
        if self.consistency.is_there and self.rounds.per == "sentence":
            reason = f"needs rounds that are the same for all sentences: {path}rounds.per=update"
            yield Problem(f"{path}consistency", "set", reason)
        if self.ema_decay is not None and self.parallel.kind == "fsdp":
            reason = f"is not kept by processes that hold parts of a model: use {path}parallel.kind=ddp or none"
            yield Problem(f"{path}ema_decay", self.ema_decay, reason)
        if self.compile and self.halting.capacity_warmup:
            reason = "would compile every one of these updates anew: must be 0 with training.compile"
            yield Problem(f"{path}halting.capacity_warmup", self.halting.capacity_warmup, reason)
        if self.freeze_except and not self.freeze:
            yield Problem(f"{path}freeze_except", self.freeze_except, f"needs {path}freeze, of which it is a part")
        if self.round_loss.kind == "improvement":
            if self.halting.off_updates:
                reason = (
                    f"with {path}round_loss.kind=improvement only the gate learns, which would not be asked: remove it"
                )
                yield Problem(f"{path}halting.off_updates", self.halting.off_updates, reason)
            if self.label_smoothing:
                reason = f"has no effect with {path}round_loss.kind=improvement: remove it"
                yield Inert(f"{path}label_smoothing", self.label_smoothing, reason)
        if self.init_from is None:
            for name in ("init_except", "init_shared", "extend_vocabulary", "init_checkpoint"):
                value = getattr(self, name)
                if value != slots_of(type(self))[name].default:
                    yield Problem(f"{path}{name}", value, f"needs {path}init_from")
        if self.init_shared is not None and (self.init_except or self.extend_vocabulary):
            name = "init_except" if self.init_except else "extend_vocabulary"
            reason = f"does not go with {path}init_shared, which makes all weights: convert the run first"
            yield Problem(f"{path}{name}", getattr(self, name), reason)
