"""What every model is: token ids to logits, the stacks and banks it may have, and how it runs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from ostinato.config.decoding import DecodingConfig, with_strategy
from ostinato.config.load import check_settings
from ostinato.config.model import ModelConfig
from ostinato.config.special_ids import SpecialIds
from ostinato.config.training import NO_SMOOTHING_OF_SPANS, BalanceConfig, DepthCostConfig, RoundLossConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.decoding.search import inference, left_padded, real_ids, search
from ostinato.errors import ConfigError, DataError, Problem, see
from ostinato.kernels import is_exporting
from ostinato.models.embeddings import Embeddings
from ostinato.models.losses import (
    add_auxiliary,
    balance_loss,
    depth_cost,
    loss_of_rounds,
    requested,
    round_loss_problems,
)
from ostinato.models.output import ModelOutput
from ostinato.nn.bank import Banks
from ostinato.nn.cache import Cache
from ostinato.nn.execution import CRITERIA_AT_TEST, Execution, RoundsByLength, RoundsBySentence
from ostinato.nn.exits import OF_STATES
from ostinato.nn.experts import NamedRouter, Routed
from ostinato.nn.halting import NoHalting
from ostinato.nn.layers import at_least_float32
from ostinato.nn.positions import positions_where_gaps
from ostinato.nn.shapes import Bool, Float, Int, Tensor
from ostinato.nn.stack import Stack
from ostinato.nn.sub_layer import router_name
from ostinato.nn.types import Routing
from ostinato.nn.why_not import why_not_by_length, why_not_by_sentence, why_not_static


class TokenModel(Embeddings, ABC):
    """Base of all models.

    A recurrent model has no stacks and empty banks: it has no routers and nothing that halts.

    Args:
        config: the model's configuration, vocabulary sizes set.
        execution: how it runs where a call does not say otherwise; None: as `Execution` does by default.
    """

    __call__: Callable[..., ModelOutput]

    def __init__(self, config: ModelConfig, execution: Execution | None = None) -> None:
        super().__init__(config)
        self.banks = Banks()
        self.stacks: dict[str, Stack] = {}
        self._temperatures: dict[str, float] = {}
        self._execution = execution or Execution()

    @property
    def special_ids(self) -> SpecialIds:
        """Ids of padding, begin and end symbol."""
        return self.config.special_ids

    @property
    def longest_target(self) -> int | None:
        """Columns that the decoder has learned positions for; None: any number."""
        stack = self.config.stacks().get("decoder")
        return stack.positions.max_length if stack is not None and stack.positions.kind == "learned" else None

    def loss(
        self,
        batch: Batch,
        *,
        label_smoothing: float = 0.0,
        balance: BalanceConfig | None = None,
        halting: DepthCostConfig | None = None,
        round_loss: RoundLossConfig | None = None,
        update: int | None = None,
    ) -> Float[Tensor, ""]:
        """Return what training minimises, for one batch, with its gradient: a number in nats a label.

            mean over the labels that count of the smoothed cross entropy + balance losses + weight of depth * its cost

        How the model runs is its `execution`, and whether it drops out is its mode; training also calls
        `project_routers` after every update. For several processes and batches an update: `ostinato.train`.

        Args:
            batch: with labels, see `Batch.from_lists`.
            label_smoothing, balance, halting, round_loss: as `training` has them in a recipe; None: no such loss, and
                that of the last round. A round that is drawn is drawn from torch's global generator.
            update: 1, 2, ..., by which `halting` schedules whether tokens halt, the weight of the cost of depth, and a
                factor of the execution's `left_out` (`DepthCostConfig`); None: one after all schedules have ended.

        Raises:
            DataError: no batch, or one of which no label counts.
            ConfigError: a loss of rounds that the model has not, or smoothing of labels that are places of a span.
        """
        if not isinstance(batch, Batch):
            raise DataError(
                f"loss takes a batch with labels, got {type(batch).__name__}: Batch.from_lists makes one of token ids"
            )
        n_labels, halting = batch.n_labels, halting or DepthCostConfig()
        round_loss = round_loss or RoundLossConfig()
        most = next(reversed(self.n_rounds().values()), None)
        problems = list(round_loss_problems(self, round_loss, most, "round_loss"))
        if not 0 <= label_smoothing < 1:
            problems.append(Problem("label_smoothing", label_smoothing, "must be a number from 0, below 1"))
        if label_smoothing and self.config.reads == "span":
            problems.append(Problem("label_smoothing", label_smoothing, NO_SMOOTHING_OF_SPANS))
        if problems:
            raise ConfigError(problems)
        if not n_labels:
            raise DataError("no label of this batch counts: its loss would be a mean over nothing")
        update = halting.settled + 1 if update is None else update
        execution = self.current_execution
        halts, left_out = execution.halting and update > halting.off_updates, halting.left_out_at(update)
        execution = replace(execution, halting=halts, left_out=execution.left_out * left_out)
        output: ModelOutput = self(batch, request=requested(round_loss), execution=execution)
        draw = float(torch.rand((), device="cpu")) if round_loss.kind == "drawn" else 0.0
        sums = loss_of_rounds(self.read, output, batch, round_loss, label_smoothing, draw)
        spread = balance_loss(output.by_router(), balance or BalanceConfig(), self.balance_temperatures())
        return add_auxiliary(sums.loss / n_labels, spread, depth_cost(output), halting.weight_at(update))

    def read(self, states_BTD: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B L V"]:
        """Return the logits that the model makes of the output of its last stack."""
        return self.logits(states_BTD)

    @abstractmethod
    def encode(self, batch: Batch, *, n_steps: int | None = None, execution: Execution | None = None) -> Cache:
        """Return the cache that decoding starts from, one row a sentence; `execution` as of a call."""

    @abstractmethod
    def step(
        self, ids_BT: Int[Tensor, "B T"], cache: Cache, keep_BT: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B V"]:
        """Add T target columns to the cache and return the logits after the last one."""

    def generate(
        self,
        ids: Batch | Tensor,
        keep: Tensor | None = None,
        *,
        target: Tensor | None = None,
        target_keep: Tensor | None = None,
        n_steps: int | None = None,
        execution: Execution | None = None,
        **decoding: Any,
    ) -> list[list[int]]:
        """Return the best output for every row, in order, as token ids without begin and end symbols.

        The model runs in evaluation mode, without gradients; for several threads at once put it there before, and say
        by `execution` how it runs in each.
        Outputs with their scores: `ostinato.decoding.search`.

        Args:
            ids: of sources, `[B, S]`, as the model was trained on them (`Batch.from_lists` puts the end symbol after
                them); of a language model prompts, begin symbol first, which are not repeated in the output; or a batch
                of pairs, whose sources are read.
            keep: real tokens; None: all are. Padding may stand on either side.
            target, target_keep: beginnings of the outputs, begin symbol first, which are not repeated either.
            n_steps: rounds to run instead of the plans' own (fully shared plans only).
            execution: how to run; None: as the model does.
            decoding: settings of `DecodingConfig`, for example `beam=4, max_length=100`.

        Raises:
            ConfigError: an unknown or impossible setting; an execution that the model cannot follow.
            DataError: ids or masks that do not fit each other; a model that writes nothing; a batch of texts.
        """
        config = check_settings(with_strategy(decoding), DecodingConfig)
        if config.n_best > 1 or config.token_scores:
            key = "n_best" if config.n_best > 1 else "token_scores"
            reason = "one output of each row is returned, as token ids: use ostinato.decoding.search_n_best"
            raise ConfigError([Problem(key, decoding[key], reason)])
        given: Tokens | None = None
        if target is None and target_keep is not None:
            raise DataError("target_keep goes with a target")
        if isinstance(ids, Batch):
            batch = as_batch(ids, keep, target, target_keep)
            if not batch.has_sources:
                raise DataError("a batch of texts has no sources to generate from: give the prompts' token ids")
        elif self.config.has_two_sides:
            batch = as_batch(ids, keep, ids if target is None else target, keep if target is None else target_keep)
            given = None if target is None else batch.target
        elif target is not None or target_keep is not None:
            raise DataError("a language model's ids are themselves the beginning of its outputs: leave out the target")
        else:
            batch = as_batch(ids, keep)
            given = batch.target
        if not batch.n_sentences:
            return []
        if given is not None:
            given = left_padded(real_ids(given), self.special_ids.pad, given.ids_BT.device)
        with inference(self, packs_weights=config.pack_weights):
            found = search(self, batch, config, given, n_steps, execution=self.checked(execution))
            return [one.ids for one in found]

    @property
    def current_execution(self) -> Execution:
        """How the model runs now."""
        return self._execution

    @contextmanager
    def execution(self, execution: Execution | None = None, **changes: Any) -> Iterator[None]:
        """Run the model in another way inside; it runs as before afterwards.

        The model is changed for all threads: several of them give `execution` to their calls.

        Args:
            execution: None: as it runs now. changes: fields of it by name, for example `halting=False`.

        Raises:
            ConfigError: a value that is not valid, or a threshold for a model whose tokens do not halt.
        """
        before = self._execution
        self._execution = self.checked(replace(execution or before, **changes))
        try:
            yield
        finally:
            self._execution = before

    def checked(self, execution: Execution | None) -> Execution:
        """Return how a call runs: as it is told, or as the model does.

        Raises:
            ConfigError: a threshold, and no stack in which tokens halt; rounds that a stack cannot run.
        """
        if execution is None:
            return self._execution
        if execution.exit is not None and not any(stack.exits(execution) for stack in self.stacks.values()):
            why_not = self._why_no_exit(execution)
            raise ConfigError([replace(why_not, reason=why_not.reason + see("halting"))])
        if execution.halting_threshold is not None and execution.exit is None and not self.trained_thresholds():
            stacks = self.config.stacks().items()
            kinds = (f"model.{name}.halting.kind is {stack.halting.kind}" for name, stack in stacks)
            why = " and ".join(kinds) or "it has no rounds"
            reason = f"no token of this model can halt by a threshold ({why})"
            if criteria := self.possible_criteria():
                reason += f"; with exit they stop by a criterion: {', '.join(criteria)}"
            raise ConfigError([Problem("halting_threshold", execution.halting_threshold, reason + see("halting"))])
        if execution.cached_rounds is not None and (not_so := self.config.why_not_some_rounds()):
            raise ConfigError([Problem("cached_rounds", execution.cached_rounds, not_so)])
        if execution.static_cache and (not_so := self.why_not_static(execution)):
            raise ConfigError([Problem("static_cache", True, not_so + see("decoding"))])
        for name in (*execution.rounds, *execution.paths):
            n_rounds = execution.rounds_of(name)
            if name not in self.stacks:
                reason = f"this model has no such stack; its stacks are: {', '.join(self.stacks) or 'none'}"
                raise ConfigError([Problem("paths" if name in execution.paths else "rounds", name, reason)])
            if name in execution.paths and self.stacks[name].plan.loop.time is None:
                reason = f"needs modulation by time: model.{name}.segments.N.modulation.kind=by_time"
                raise ConfigError([Problem(f"paths.{name}", execution.paths[name], reason)])
            if isinstance(n_rounds, RoundsByLength) and "encoder" not in self.stacks:
                reason = "a language model has no source, whose length is known before"
                raise ConfigError([Problem(f"rounds.{name}", n_rounds, reason)])
            if isinstance(n_rounds, RoundsByLength) and (not_so := why_not_by_length(self.stacks[name])):
                raise ConfigError([Problem(f"rounds.{name}", n_rounds, not_so)])
            if isinstance(n_rounds, RoundsBySentence) and (not_so := why_not_by_sentence(self.stacks[name])):
                raise ConfigError([Problem(f"rounds.{name}", "by sentence", not_so)])
            if (most := execution.most_rounds_of(name)) is not None:
                self.stacks[name].plan.with_rounds(most)
        return execution

    def why_not_static(self, execution: Execution) -> str | None:
        """Return why a step of decoding cannot be recorded and replayed; None: it can (`Execution.static_cache`)."""
        decoder = self.stacks.get("decoder")
        return "needs a decoder of steps" if decoder is None else why_not_static(decoder, execution)

    def n_rounds(self) -> dict[str, int]:
        """Return how many rounds every stack runs at most where a call does not say otherwise."""
        most = self._execution.most_rounds_of
        return {name: most(name) or stack.plan.n_rounds for name, stack in self.stacks.items()}

    def trained_thresholds(self) -> dict[str, float]:
        """Return the thresholds of the model's own halting rules, by stack in which tokens halt by one."""
        rules = {name: stack.halting for name, stack in self.stacks.items()}
        return {name: rule.threshold for name, rule in rules.items() if rule.threshold < math.inf}

    def halting_thresholds(self) -> dict[str, float]:
        """Return the threshold in force of every stack in which tokens halt."""
        execution, own = self._execution, self.trained_thresholds()
        if (given := execution.halting_threshold) is None:
            return own
        if execution.exit is None:
            return dict.fromkeys(own, given)
        found = {name: given if stack.exits(execution) else own.get(name) for name, stack in self.stacks.items()}
        return {name: threshold for name, threshold in found.items() if threshold is not None}

    def halting_stacks(self) -> set[str]:
        """Return the stacks whose tokens may stop before the last round: by a rule, by routers or by a criterion."""
        execution = self._execution
        if not execution.halting:
            return set()
        stacks = self.stacks.items()
        return {name for name, stack in stacks if stack.exits(execution) or not isinstance(stack.halting, NoHalting)}

    def exits(self) -> dict[str, bool]:
        """Return the stacks whose tokens stop by a criterion (`Execution.exit`), and whether it needs predictions."""
        execution = self._execution
        if not execution.halting:
            return {}
        return {name: execution.exit not in OF_STATES for name, stack in self.stacks.items() if stack.exits(execution)}

    def possible_criteria(self) -> list[str]:
        """Return the criteria by which single tokens of some stack can stop (`Execution.exit`)."""
        executions = {name: Execution(halting_threshold=1.0, exit=name) for name in CRITERIA_AT_TEST}
        return [name for name, one in executions.items() if any(stack.exits(one) for stack in self.stacks.values())]

    def _why_no_exit(self, execution: Execution) -> Problem:
        """Return why no stack stops by an execution's criterion."""
        if not self.stacks:
            return Problem("exit", execution.exit, "this model has no rounds")
        if all(stack.halting.chooses_tokens for stack in self.stacks.values()):
            reason = "routers choose the tokens of every round, and are part of what this model computes"
            return Problem("exit", execution.exit, reason)
        if all(stack.plan.loop.phases for stack in self.stacks.values()):
            return Problem("exit", execution.exit, "no token of this model stops: its loops have several states")
        if all(stack.is_causal for stack in self.stacks.values()) and execution.exit_scope == "sequence":
            reason = "a token would stop by what comes after it: this model is causal; must be token"
            return Problem("exit_scope", execution.exit_scope, reason)
        of_states = ", ".join(criterion for criterion in CRITERIA_AT_TEST if criterion in OF_STATES)
        reason = f"no stack of this model predicts single tokens after a round; valid here: {of_states}"
        if any(stack.readout is not None for stack in self.stacks.values()):
            reason = f"the stack that predicts tokens is causal; valid here with exit_scope sequence: {of_states}"
        return Problem("exit", execution.exit, reason)

    def routed(self) -> Iterator[Routed]:
        """Yield the parameter sets that have experts, each once."""
        return (module for module in self.banks.modules() if isinstance(module, Routed))

    def no_routings(self) -> Iterator[Routing]:
        """Yield for every use of a router, in the order they run, a routing without rows."""
        like = at_least_float32(torch.empty(0, device=self.device, dtype=next(self.parameters()).dtype))
        n_rounds = self.n_rounds()
        for name, stack in self.stacks.items():
            for step in stack.plan.with_rounds(n_rounds[name]).steps:
                for use in step.uses:
                    module = self.banks.set_of(use)
                    for one in module.named_routers() if isinstance(module, Routed) else ():
                        place = router_name(use, one.name), stack.plan.stack, step.index
                        yield Routing.of_no_rows(*place, (one.n_experts, one.n_chosen), like, one.n_heads)

    def project_routers(self) -> None:
        """Project routers' parameters onto their constraints (`Router.project`); call it after every optimiser step."""
        for module in self.routed():
            for one in module.named_routers():
                one.router.project()

    def balance_temperatures(self) -> dict[str, float]:
        """Return by router the temperature it started from: the constant tau_0 of X-MoE's balance loss."""
        return dict(self._temperatures)

    def router_temperatures(self) -> dict[str, Tensor]:
        """Return by router the temperature that it divides scores by now, of routers that have one."""
        temperatures = {name: one.router.temperature() for name, one in self.routers().items()}
        return {name: found.detach() for name, found in temperatures.items() if isinstance(found, Tensor)}

    def routers(self) -> dict[str, NamedRouter]:
        """Return the routers by name, in the order they first run."""
        found: dict[str, NamedRouter] = {}
        for stack in self.stacks.values():
            for use in stack.plan.uses():
                module = self.banks.set_of(use)
                if isinstance(module, Routed):
                    found |= {router_name(use, one.name): one for one in module.named_routers()}
        return found

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def n_parameters(self) -> int:
        """Return the number of stored parameters; a shared one counts once."""
        return sum(p.numel() for p in self.parameters())


def as_batch(
    given: Batch | Tensor, keep: Tensor | None, target: Tensor | None = None, target_keep: Tensor | None = None
) -> Batch:
    """Return what a model is called with as a batch.

    Args:
        given: a batch, or token ids `[B, T]`: of the source where there is a target. keep: real tokens; None: all.
        target, target_keep: ids of the target `[B, T]`, begin symbol first, and its real tokens.

    Raises:
        DataError: ids that are no tensor of whole numbers `[B, T]`, a mask that is none of their shape, or one beside
            a batch; as many targets as sources are not given.
    """
    if isinstance(given, Batch):
        if keep is not None or target is not None or target_keep is not None:
            raise DataError("a batch holds its masks and its target: keep, target and target_keep go with token ids")
        return given
    first = _tokens(given, keep, "ids" if target is None else "source ids")
    if target is None:
        return Batch(first, first.ids_BT, first.keep_BT)
    second = _tokens(target, target_keep, "target ids")
    if len(first.ids_BT) != len(second.ids_BT):
        raise DataError(f"there must be as many targets as sources, got {len(second.ids_BT)} and {len(first.ids_BT)}")
    return Batch(second, second.ids_BT, second.keep_BT, source=first)


def _tokens(ids: Tensor, keep: Tensor | None, name: str) -> Tokens:
    given = {name: ids} if keep is None else {name: ids, f"the mask of {name}": keep}
    for what, one in given.items():
        if not isinstance(one, Tensor):
            raise DataError(
                f"{what} must be a tensor, got {type(one).__name__}: torch.tensor makes one of rows of one length, "
                "Batch.from_lists pads others"
            )
    if ids.ndim != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise DataError(f"{name} must be whole numbers [B, T], got {ids.dtype} of shape {tuple(ids.shape)}")
    if keep is None:
        return Tokens(ids.long(), torch.ones_like(ids, dtype=torch.bool))
    if keep.shape != ids.shape:
        raise DataError(f"the mask of {name} must have their shape {tuple(ids.shape)}, got {tuple(keep.shape)}")
    return Tokens(ids.long(), keep.bool(), None if is_exporting() else positions_where_gaps(keep.bool()))


def keep_or_none(tokens: Tokens) -> Tensor | None:
    """Return the keep mask, or None where nothing is padding: attention is faster without a mask."""
    if is_exporting():  # a graph holds for all masks
        return tokens.keep_BT
    is_full = bool(tokens.keep_BT.all()) if tokens.is_full is None else tokens.is_full
    return None if is_full else tokens.keep_BT


def source_of(batch: Batch) -> Tokens:
    """Return the sources of a batch.

    Raises:
        DataError: it has none.
    """
    if batch.source is None:
        raise DataError("a seq2seq model needs a source and a target; this batch has no source (ids: give both)")
    if len(batch.source.ids_BT) != len(batch.target.ids_BT):
        n_sources, n_targets = len(batch.source.ids_BT), len(batch.target.ids_BT)
        raise DataError(f"there must be as many targets as sources, got {n_targets} and {n_sources}")
    return batch.source


def check_no_source(batch: Batch) -> None:
    """Refuse sources beside the sequences of a model that reads one.

    Raises:
        DataError: the batch has sources of their own.
    """
    if batch.source is not None:
        raise DataError(
            "this model reads one sequence, and the batch has sources beside it, which would not be read: "
            "Batch.from_lists(..., joins_pairs=True) makes one sequence of source and target"
        )
