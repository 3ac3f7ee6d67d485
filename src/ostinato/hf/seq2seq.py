"""Encoder-decoder models: `AutoModelForSeq2SeqLM`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from ostinato.data.batch import Batch
from ostinato.hf.cache import CACHE, DepthCache
from ostinato.hf.configuration import OstinatoConfig
from ostinato.hf.modeling import OstinatoPreTrainedModel
from ostinato.hf.outputs import IGNORED, States, check_others, returned, states_of, tokens_of, wanted, weights_of
from ostinato.models.output import ModelOutput
from ostinato.nn.cache import Cache
from ostinato.nn.types import StackOutput


class EncoderView(nn.Module):
    """The encoder of a wrapped model, as `generate` calls it; its weights are the model's."""

    def __init__(self, of: OstinatoForSeq2SeqLM) -> None:
        super().__init__()
        self._of = (of,)  # in a tuple, so that it is no part of this module

    @property
    def config(self) -> OstinatoConfig:
        """That of the whole model."""
        return self._of[0].config

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_hidden_states: States = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        n_steps: int | None = None,
        halting_threshold: float | None = None,
    ) -> BaseModelOutput | tuple[Any, ...]:
        """Return the states of the source."""
        of = self._of[0]
        source, shown = tokens_of(input_ids, attention_mask), wanted(output_hidden_states, output_attentions)
        n_steps, execution = of._how(n_steps, halting_threshold)
        stack = of.model.encoded(source, n_steps, shown, execution)
        return cast(Any, returned(_encoder_output(stack, output_hidden_states, output_attentions), return_dict))


def _encoder_output(stack: StackOutput, states: States, weights: bool | None) -> BaseModelOutput:
    return BaseModelOutput(
        last_hidden_state=stack.states_BTD,
        hidden_states=states_of(stack, states),
        attentions=weights_of(stack, weights),
    )


class OstinatoForSeq2SeqLM(OstinatoPreTrainedModel, GenerationMixin):
    """An encoder-decoder model: `AutoModelForSeq2SeqLM`."""

    auto = "AutoModelForSeq2SeqLM"
    kind = "seq2seq"

    def get_encoder(self, *args: Any, **kwargs: Any) -> EncoderView:
        """Return what `generate` runs once a sentence."""
        return EncoderView(self)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Return the begin symbol and the labels but the last; what does not count becomes padding."""
        special, before = self.model.special_ids, labels[:, :-1]
        return F.pad(before.masked_fill(before == IGNORED, special.pad), (1, 0), value=special.bos)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | Sequence[Tensor] | None = None,
        cache: DepthCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: States = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        n_steps: int | None = None,
        halting_threshold: float | None = None,
        num_items_in_batch: Tensor | int | None = None,
        past_key_values: DepthCache | None = None,
        **others: Any,
    ) -> Seq2SeqLMOutput | tuple[Any, ...]:
        """Return logits of the target's next tokens.

        Args:
            input_ids, attention_mask: of the source. decoder_input_ids, decoder_attention_mask: of the target, begin
                symbol first; None: made of the labels, where those that do not count are padding.
            encoder_outputs: in place of the source's ids.
            labels: of the target's columns, not shifted; -100 does not count.
            n_steps: rounds to run in both stacks in place of the plans' own. halting_threshold: at which tokens halt.
            cache, past_key_values: what an earlier call returned, by either name that the library has for it.
        """
        check_others(others, attention_mask, is_start=False)  # positions would be the target's
        asked = self._asked(output_hidden_states, output_attentions, return_dict)
        output_hidden_states, output_attentions, return_dict = asked
        if use_cache is None:  # a cached pass has the loss of its logits alone
            use_cache = self.config.use_cache and labels is None
        if decoder_input_ids is None and labels is None:
            raise ValueError("a seq2seq model needs decoder_input_ids or labels")
        if labels is not None and (decoder_input_ids is None or decoder_attention_mask is None):
            made = self.prepare_decoder_input_ids_from_labels(labels)
            # A collator that has made them calls the same, and gives no mask for their padding.
            if decoder_input_ids is None or torch.equal(decoder_input_ids, made):
                decoder_input_ids = made
                real = F.pad((labels != IGNORED).long(), (1, 0), value=1)[:, :-1]
                decoder_attention_mask = real if decoder_attention_mask is None else decoder_attention_mask
        assert decoder_input_ids is not None
        self._project_routers()
        cache = past_key_values if cache is None else cache
        if cache is not None:
            self._check_cache(cache, n_steps, halting_threshold)
        n_steps, execution = self._how(n_steps, halting_threshold)
        target = tokens_of(decoder_input_ids, decoder_attention_mask)
        shown = self._shown(output_hidden_states, output_attentions)
        batch = Batch(target, target.ids_BT, target.keep_BT)
        if cache is None and not use_cache and encoder_outputs is None:
            assert input_ids is not None  # as with all models of this kind: ids, or states of an encoder
            batch = replace(batch, source=tokens_of(input_ids, attention_mask))
            output: ModelOutput = self.model(batch, n_steps=n_steps, request=shown, execution=execution)
            logits, stack = output.logits_BTV, output.stacks["decoder"]
            encoder_outputs = _encoder_output(output.stacks["encoder"], output_hidden_states, output_attentions)
        else:
            if encoder_outputs is None:
                encoder_outputs = self.get_encoder()(
                    input_ids,
                    attention_mask,
                    output_hidden_states,
                    output_attentions,
                    n_steps=n_steps,
                    halting_threshold=halting_threshold,
                )
            if cache is None:
                keep = None if attention_mask is None or bool(attention_mask.all()) else attention_mask.bool()
                memory_BSD = encoder_outputs[0]
                content = Cache(
                    memory_BSD=memory_BSD,
                    memory_keep_BS=keep,
                    n_steps=n_steps,
                    execution=execution,
                    device=memory_BSD.device,
                )
                cache = DepthCache(content, len(memory_BSD)) if use_cache else None
            else:
                content = cache.content
            stack = self.model.extended(decoder_input_ids, content, target.keep_BT, shown)
            logits = self.model.logits(stack.states_BTD)
            output = ModelOutput(logits)
        loss = None
        if labels is not None:
            loss = self._loss(output, batch, labels, num_items_in_batch)
        return returned(
            Seq2SeqLMOutput(
                loss=cast(Any, loss),
                logits=logits,
                decoder_hidden_states=states_of(stack, output_hidden_states),
                decoder_attentions=weights_of(stack, output_attentions),
                cross_attentions=weights_of(stack, output_attentions, "cross_attention"),
                encoder_last_hidden_state=cast(Any, encoder_outputs[0]),
                encoder_hidden_states=getattr(encoder_outputs, "hidden_states", None),
                encoder_attentions=getattr(encoder_outputs, "attentions", None),
                **{CACHE: cache},
            ),
            return_dict,
        )
