"""Language models: `AutoModelForCausalLM`."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from ostinato.data.batch import Batch
from ostinato.errors import CheckpointError
from ostinato.hf.cache import CACHE, DepthCache
from ostinato.hf.configuration import OstinatoConfig
from ostinato.hf.modeling import OstinatoPreTrainedModel
from ostinato.hf.outputs import IGNORED, States, check_others, returned, states_of, tokens_of, weights_of
from ostinato.models.output import ModelOutput
from ostinato.nn.cache import Cache


class OstinatoForCausalLM(OstinatoPreTrainedModel, GenerationMixin):
    """A language model: `AutoModelForCausalLM`."""

    auto = "AutoModelForCausalLM"
    kind = "language_model"

    def __init__(self, config: OstinatoConfig) -> None:
        super().__init__(config)
        if self.model.config.sees_prefix:
            raise CheckpointError("a prefix language model (model.mask=prefix) has no class in transformers")

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        cache: DepthCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: States = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        n_steps: int | None = None,
        halting_threshold: float | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        past_key_values: DepthCache | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Return logits of the next tokens.

        Args:
            input_ids: `[B, T]`; with a cache the new ones. attention_mask: `[B, S]` of all columns, 1 for real ones;
                padding may stand on either side, before a cached step on the left.
            labels: `[B, T]`, the ids themselves (they are shifted here); -100 does not count.
            n_steps: rounds to run in place of the plan's own. halting_threshold: at which tokens halt.
            logits_to_keep: the last so many columns only, 0: all; or the numbers of the columns, `[n]`.
            cache, past_key_values: what an earlier call returned, by either name that the library has for it.
        """
        check_others(others, attention_mask, is_start=cache is None and past_key_values is None)
        asked = self._asked(output_hidden_states, output_attentions, return_dict)
        output_hidden_states, output_attentions, return_dict = asked
        if use_cache is None:  # a cached pass has the loss of its logits alone
            use_cache = self.config.use_cache and labels is None
        self._project_routers()
        cache = past_key_values if cache is None else cache
        if cache is not None:
            self._check_cache(cache, n_steps, halting_threshold)
        n_steps, execution = self._how(n_steps, halting_threshold)
        tokens = tokens_of(input_ids, attention_mask)
        shown = self._shown(output_hidden_states, output_attentions)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        batch = Batch(tokens, tokens.ids_BT, tokens.keep_BT)
        if cache is None and not use_cache:
            output = self.model(batch, n_steps=n_steps, request=shown, execution=execution)
            logits, stack = output.logits_BTV[:, kept], output.stacks["decoder"]
        else:
            if cache is None:
                content = Cache(n_steps=n_steps, execution=execution, device=input_ids.device)
                cache = DepthCache(content, len(input_ids))
            stack = self.model.extended(input_ids, cache.content, tokens.keep_BT, shown)
            logits = self.model.logits(stack.states_BTD[:, kept])
            output = ModelOutput(logits)
        loss = None
        if labels is not None:
            shifted = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
            if output.stacks:  # it has the logits of all columns
                chosen = torch.full_like(shifted, IGNORED)
                chosen[:, kept] = shifted[:, kept]
            else:
                chosen = shifted[:, kept]
            loss = self._loss(output, batch, chosen, num_items_in_batch)
        return returned(
            CausalLMOutputWithPast(
                loss=cast(Any, loss),
                logits=logits,
                hidden_states=states_of(stack, output_hidden_states),
                attentions=weights_of(stack, output_attentions),
                **{CACHE: cache},
            ),
            return_dict,
        )
