"""Transformers: stacks of one depth loop on common banks, with embeddings; encoder-decoder models, language models."""

from __future__ import annotations

from collections.abc import Collection

import torch

from ostinato.config.experts import RoutedConfig
from ostinato.config.loops import SegmentConfig
from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig, StackModelConfig
from ostinato.config.stack import NormConfig, StackConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.errors import ConfigError, DataError, Problem
from ostinato.models.base import TokenModel, as_batch, check_no_source, keep_or_none, source_of
from ostinato.models.output import ModelOutput
from ostinato.models.parts import (
    build_deltas,
    build_halting,
    build_injection,
    build_map,
    build_modulation,
    build_norm_of,
    build_relation,
    build_signal,
    build_start,
    build_sub_layer,
    build_time,
    build_token_values,
)
from ostinato.nn.by_round import RoundVectors
from ostinato.nn.cache import Cache
from ostinato.nn.compiled import compiled_step
from ostinato.nn.execution import Execution
from ostinato.nn.experts import Routed
from ostinato.nn.shapes import Bool, Float, Int, Tensor
from ostinato.nn.stack import Stack
from ostinato.nn.sub_layer import router_name
from ostinato.nn.types import StackOutput
from ostinato.plan import Plan, Segment


class Transformer(TokenModel):
    """Stacks, and banks that their plans fill.

    Args:
        config: the model's configuration, vocabulary sizes set.
        execution: see `TokenModel`.
    """

    config: StackModelConfig

    def __init__(self, config: StackModelConfig, execution: Execution | None = None) -> None:
        super().__init__(config, execution)
        widths = config.d_model, config.embedding_width
        for name, stack in config.stacks().items():
            plan = stack.plan(name)
            self._fill_banks(plan, stack)
            gate, halting = build_halting(stack.halting, config.d_model, plan.n_rounds)
            if gate is not None:
                self.banks.halting[name] = gate
            self.stacks[name] = Stack(
                plan,
                self.banks,
                has_final_norm=stack.norm.has_final,
                has_embedding_norm=stack.norm.embedding,
                has_embedding_map=config.d_embedding is not None,
                dropout=config.dropout,
                signal=build_signal(stack.positions, name, self.banks, *widths, config.init),
                is_causal=name in config.causal_stacks,
                has_prefix=config.sees_prefix,
                halting=halting,
            )

    def step(
        self, ids_BT: Int[Tensor, "B T"], cache: Cache, keep_BT: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B V"]:
        """Add T target columns to the cache and return the logits after the last one.

        Args:
            ids_BT: ids, one row a hypothesis. keep_BT: real tokens among them; None where all are.
            cache: as `encode` returned it, which also fixed how the search runs (`Execution`).
        """
        return self.logits(self.extended(ids_BT, cache, keep_BT).states_BTD[:, -1])

    def extended(
        self,
        ids_BT: Int[Tensor, "B T"],
        cache: Cache,
        keep_BT: Bool[Tensor, "B T"] | None = None,
        request: Collection[str] = (),
    ) -> StackOutput:
        """Add T target columns to the cache and return all that the decoder gives of them; see `step`.

        Args:
            request: captures, see `ostinato.nn.Stack`.
        """
        _extend_keep(cache, ids_BT, keep_BT)
        if cache.execution is None:
            cache.execution = self.current_execution
        embedded_BTE = self.embed(ids_BT, self.target_embedding)
        return compiled_step(self.stacks["decoder"], embedded_BTE, cache, ids_BT, request)

    def _fill_banks(self, plan: Plan, stack: StackConfig) -> None:
        """Make every parameter set the plan names that is not there yet (another stack may have made it)."""
        config = self.config
        for use in plan.uses():
            bank = getattr(self.banks, use.kind)
            if use.weights not in bank:
                settings = stack.settings_of(use)
                made = build_sub_layer(settings, config.d_model, config.init, stack.depth, stack.norm.eps)
                bank[use.weights] = made
                if isinstance(settings, RoutedConfig) and isinstance(made, Routed):
                    self._temperatures |= {
                        router_name(use, one.name): settings.temperature for one in made.named_routers()
                    }
            for name in use.norms:
                if name not in self.banks.norm:
                    self.banks.norm[name] = build_norm_of(stack.norm, config.d_model)
            if use.position is not None and use.position not in self.banks.relative:
                self.banks.relative[use.position] = build_relation(stack, use, config.d_model)
            if use.values is not None and use.values not in self.banks.values:
                n_rows = self.vocabulary_size(config.vocabulary_key(config.side_of(plan.stack)))
                self.banks.values[use.values] = build_token_values(stack, n_rows, config.d_model, config.init)
        for segment, settings_of_segment in zip(plan.segments, stack.segments, strict=False):
            self._fill_segment(segment, settings_of_segment, stack.norm)
            self._fill_rounds(segment, settings_of_segment)
        if stack.norm.has_final:
            self.banks.norm[f"final_{plan.stack}"] = build_norm_of(stack.norm.of_final, config.d_model)
        if stack.norm.embedding:
            self.banks.norm[f"embedding_{plan.stack}"] = build_norm_of(stack.norm, config.embedding_width)
        if config.d_embedding is not None:
            made = build_map(config.d_embedding, config.d_model, bias=config.embedding_bias, init=config.init)
            self.banks.embedding[plan.stack] = made

    def _fill_segment(self, segment: Segment, settings: SegmentConfig, norm: NormConfig) -> None:
        """Make what a segment has beside its steps."""
        d_model, init, banks = self.config.d_model, self.config.init, self.banks
        if segment.start is not None:
            banks.start[segment.start] = build_start(settings, d_model)
        if segment.inject is not None:
            banks.injection[segment.inject] = build_injection(settings, d_model, init)
        if segment.end_map is not None:
            banks.end_map[segment.end_map] = build_map(d_model, d_model, bias=False, init=init)
        for name in segment.norms:
            banks.norm[name] = build_norm_of(norm, d_model)

    def _fill_rounds(self, segment: Segment, settings: SegmentConfig) -> None:
        """Make what rounds have of their own beside their norms."""
        d_model, init, banks = self.config.d_model, self.config.init, self.banks
        if segment.vectors is not None:
            banks.vectors[segment.vectors] = RoundVectors(segment.n_rounds, d_model)
        if segment.time is not None:
            banks.time[segment.time] = build_time(d_model, init)
        for use in (use for step in segment.steps for use in step.uses):
            if use.delta is not None:
                module = banks.set_of(use)
                banks.delta[use.delta] = build_deltas(module, use.kind, settings.delta_rank, init)
            if use.modulation is not None and use.modulation not in banks.modulation:
                banks.modulation[use.modulation] = build_modulation(settings.modulation, d_model, init)


class Seq2Seq(Transformer):
    """An encoder and a decoder whose depth is laid out by plans.

        memory = encoder(E_s[source]),   logits = decoder(E_t[target], memory) O^T

    Args:
        config: with both vocabulary sizes set. `tie_embeddings`: "output": O = E_t; "input": E_t = E_s; "all": both.
    """

    config: Seq2SeqConfig

    def __init__(self, config: Seq2SeqConfig, execution: Execution | None = None) -> None:
        super().__init__(config, execution)
        self.make_embeddings()
        self.stacks["decoder"].readout = self.logits

    def forward(
        self,
        batch: Batch | Tensor,
        target: Int[Tensor, "B T"] | None = None,
        *,
        keep: Bool[Tensor, "B S"] | None = None,
        target_keep: Bool[Tensor, "B T"] | None = None,
        n_steps: int | None = None,
        request: Collection[str] = (),
        execution: Execution | None = None,
    ) -> ModelOutput:
        """Run a teacher-forced pass.

        Args:
            batch: source and target tokens; or token ids of the source, `[B, S]`, beside those of the `target`.
            keep, target_keep: real tokens, where ids are given; None: all are.
            n_steps: rounds to run in both stacks instead of the plans' own (fully shared plans only).
            request: captures to return with the stacks' outputs, see `ostinato.nn.Stack`.
            execution: how to run; None: as the model does.

        Raises:
            DataError: a batch without sources, or ids and masks that do not fit each other.
            ConfigError: an execution that the model cannot follow, or `n_steps` of a stack whose rounds differ.
        """
        batch, execution = as_batch(batch, keep, target, target_keep), self.checked(execution)
        source = source_of(batch)
        offset_B = None
        if self.training and self.config.random_offsets == "shared":
            offset_B = self.stacks["encoder"].signal.draw_offset(len(source.ids_BT), source.ids_BT.device)
        encoder = self.encoded(source, n_steps, request, execution, offset_B)
        target_tokens = batch.target
        decoder = self.stacks["decoder"](
            self.embed(target_tokens.ids_BT, self.target_embedding),
            keep_BT=keep_or_none(target_tokens),
            ids_BT=target_tokens.ids_BT,
            positions_BT=target_tokens.positions_BT,
            offset_B=offset_B,
            memory_BSD=encoder.states_BTD,
            memory_keep_BS=keep_or_none(source),
            n_rounds=n_steps,
            request=request,
            execution=execution,
        )
        return ModelOutput(self.logits(decoder.states_BTD), {"encoder": encoder, "decoder": decoder})

    def encode(self, batch: Batch, *, n_steps: int | None = None, execution: Execution | None = None) -> Cache:
        """Run the encoder and return the cache that decoding starts from."""
        source, execution = source_of(batch), self.checked(execution)
        memory_BSD = self.encoded(source, n_steps, (), execution).states_BTD
        return Cache(
            memory_BSD=memory_BSD,
            memory_keep_BS=keep_or_none(source),
            n_steps=n_steps,
            execution=execution,
            device=source.ids_BT.device,
        )

    def encoded(
        self,
        source: Tokens,
        n_steps: int | Tensor | None,
        request: Collection[str],
        execution: Execution,
        offset_B: Int[Tensor, "B"] | None = None,
    ) -> StackOutput:
        """Return what the encoder makes of the sources; arguments as of `forward`.

        Args:
            offset_B: where positions start in training, at random; None: the encoder draws it.

        Raises:
            ConfigError: a separator of the source's texts whose id is not known.
        """
        texts_BT, separator, id = source.texts_BT, self.config.source_separator, self.config.source_separator_id
        if id is not None:
            ends_BT = source.ids_BT == id
            texts_BT = ends_BT.cumsum(1) - ends_BT.long()  # a separator belongs to the text that it ends
        elif separator is not None:
            reason = f"training finds it by the tokenizer; without one, say which id {separator!r} has"
            raise ConfigError([Problem("model.source_separator_id", None, reason)])
        return self.stacks["encoder"](
            self.embed(source.ids_BT, self.source_embedding),
            keep_BT=keep_or_none(source),
            ids_BT=source.ids_BT,
            positions_BT=source.positions_BT,
            texts_BT=texts_BT,
            offset_B=offset_B,
            n_rounds=n_steps,
            request=request,
            execution=execution,
        )


class LanguageModel(Transformer):
    """One stack without cross-attention: logits = decoder(E[tokens]) O^T.

    With `mask="prefix"` a token of the first `batch.prefix_lengths_B` sees all of them, later ones see everything up to
    themselves (One Wide FFN, decoder-only model): the prefix is a source, the rest begins with the begin symbol.

    Args:
        config: with the vocabulary size set. `tie_embeddings`: "output": O = E.
    """

    config: LanguageModelConfig

    def __init__(self, config: LanguageModelConfig, execution: Execution | None = None) -> None:
        super().__init__(config, execution)
        self.make_embeddings()
        self.stacks["decoder"].readout = self.logits

    def forward(
        self,
        batch: Batch | Tensor,
        *,
        keep: Bool[Tensor, "B T"] | None = None,
        n_steps: int | None = None,
        request: Collection[str] = (),
        execution: Execution | None = None,
    ) -> ModelOutput:
        """Run a teacher-forced pass over `batch.target`.

        Args:
            batch: tokens; or token ids, `[B, T]` (causal models only).
            keep: real tokens, where ids are given; None: all.
            n_steps: rounds to run instead of the plan's own (fully shared plans only).
            request: captures to return with the stack's output, see `ostinato.nn.Stack`.
            execution: how to run; None: as the model does.

        Raises:
            DataError: a batch with sources beside its sequences; a prefix language model, and a batch that does not say
                how long the prefixes are.
            ConfigError: an execution that the model cannot follow, or `n_steps` of a stack whose rounds differ.
        """
        batch = as_batch(batch, keep)
        check_no_source(batch)
        target = batch.target
        decoder = self.stacks["decoder"](
            self.embed(target.ids_BT, self.target_embedding),
            keep_BT=keep_or_none(target),
            ids_BT=target.ids_BT,
            positions_BT=target.positions_BT,
            texts_BT=target.texts_BT,
            prefix_lengths_B=self._prefix_lengths(batch),
            n_rounds=n_steps,
            request=request,
            execution=self.checked(execution),
        )
        return ModelOutput(self.logits(decoder.states_BTD), {"decoder": decoder})

    def encode(self, batch: Batch, *, n_steps: int | None = None, execution: Execution | None = None) -> Cache:
        """Return an empty cache; the prompt is the first `step`, of a prefix language model with the whole prefix.

        Raises:
            DataError: a batch with sources beside its sequences.
        """
        check_no_source(batch)
        return Cache(
            n_steps=n_steps,
            execution=self.checked(execution),
            prefix_lengths_B=self._prefix_lengths(batch),
            device=batch.target.ids_BT.device,
        )

    def step(
        self, ids_BT: Int[Tensor, "B T"], cache: Cache, keep_BT: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B V"]:
        """Add T columns to the cache and return the logits after the last one; see `Transformer.step`.

        Raises:
            DataError: a first step without the whole prefix, whose tokens would see later ones that are not there yet.
        """
        if cache.prefix_lengths_B is not None:
            n_given = ids_BT.shape[1] if keep_BT is None else keep_BT.sum(1)
            if bool((cache.prefix_lengths_B > n_given).any()):
                raise DataError(
                    "the first step of a prefix language model must hold the whole prefix, whose tokens see each "
                    f"other: prefixes of up to {int(cache.prefix_lengths_B.max())} tokens, a step of {ids_BT.shape[1]}"
                )
        return super().step(ids_BT, cache, keep_BT)

    def _prefix_lengths(self, batch: Batch) -> Int[Tensor, "B"] | None:
        if self.config.mask == "causal":
            return None
        if batch.prefix_lengths_B is None:
            raise DataError("a prefix language model needs the length of every prefix; this batch has no sources")
        return batch.prefix_lengths_B


def _extend_keep(cache: Cache, ids_BT: Tensor, keep_BT: Tensor | None) -> None:
    """Cover the new columns in the cache's keep mask, which only exists where there is padding."""
    if cache.keep_BS is None and (keep_BT is None or bool(keep_BT.all())):
        return
    old = cache.keep_BS
    if old is None:
        old = torch.ones(ids_BT.shape[0], cache.length, dtype=torch.bool, device=ids_BT.device)
    new = torch.ones_like(ids_BT, dtype=torch.bool) if keep_BT is None else keep_BT
    cache.keep_BS = torch.cat([old, new], dim=1)
