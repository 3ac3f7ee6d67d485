"""Our models as the Hugging Face library's: its arguments, its outputs, its `generate`.

A wrapped model is the attribute `model`; nothing of it is computed here but losses. `n_steps` and `halting_threshold`
are arguments of every call, and so of `generate`: rounds to run in place of the plans' own, and the threshold at which
tokens halt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    Seq2SeqLMOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

from ostinato.config.model import EncoderConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.errors import CheckpointError
from ostinato.hf.cache import DepthCache
from ostinato.hf.configuration import Exported, OstinatoConfig
from ostinato.models import build_model
from ostinato.models.losses import add_auxiliary, balance_loss, depth_cost
from ostinato.models.output import ModelOutput
from ostinato.nn.cache import Cache
from ostinato.nn.execution import Execution, ExitScope
from ostinato.nn.init import init_projection
from ostinato.nn.types import StackOutput

States = bool | Literal["rounds"] | None
"""What `output_hidden_states` asks for: True: the states after every executed step; "rounds": after every round."""
IGNORED = -100
"""A label that does not count, in the Hugging Face library."""


class OstinatoPreTrainedModel(PreTrainedModel):
    """Base of all: builds the model of a configuration, and says how it runs.

    Raises:
        CheckpointError: the configuration is of another kind of model than the class is for.
    """

    config_class = OstinatoConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    kind: ClassVar[str]
    config: OstinatoConfig

    def __init__(self, config: OstinatoConfig) -> None:
        super().__init__(config)
        given = config.settings()
        if given.kind != self.kind:
            raise CheckpointError(
                f"{type(self).__name__} is for models of the kind {self.kind}: config.json has {given.kind}"
            )
        # Weights are read into a model that is there: HF builds on a device without memory.
        with torch.device("cpu"):
            self.model: Any = build_model(self.adapted(given))
        self.post_init()

    def adapted(self, given: Exported) -> Exported:
        """Return the configuration of the model that the class wraps."""
        return given

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise a head that the weights do not have; all else has been by our own rules."""
        if module is getattr(self.model, "head", None) and isinstance(module, nn.Linear):
            init_projection(module, self.model.config.init)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Read a folder, as the base class does; weights that lack are an error, but for a head.

        Raises:
            CheckpointError: naming weights that lack or are not the model's.
        """
        wants_report = kwargs.pop("output_loading_info", False)
        model, report = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        lacking = sorted(name for name in report["missing_keys"] if not name.startswith("model.head."))
        heads = ("model.head.", "model.output_")
        unknown = sorted(name for name in report["unexpected_keys"] if not name.startswith(heads))
        problems = [f"{name} is missing" for name in lacking] + [f"{name} is not known" for name in unknown]
        if problems:
            more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
            raise CheckpointError(f"{args[0]}: its weights are not the model's: {'; '.join(problems[:3])}{more}")
        return (model, report) if wants_report else model

    def get_input_embeddings(self) -> nn.Module:
        """Return the embeddings of the tokens that are read: a view, whose weight is the model's parameter."""
        weight = self.model.source_embedding if self.config.is_encoder_decoder else self.model.target_embedding
        view = nn.Embedding(0, weight.shape[1])
        view.num_embeddings, view.weight = weight.shape[0], weight
        return view

    def get_output_embeddings(self) -> None:
        """Return None: an output projection that is the embedding is the same parameter already."""

    def _set_gradient_checkpointing(self, enable: bool = True, *args: Any, **kwargs: Any) -> None:
        """Keep the states between steps only, and run each step again in the backward pass (`Execution.recompute`)."""
        self.model._execution = replace(self.model.current_execution, recompute=enable)

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Whether steps are run again in the backward pass."""
        return bool(self.model.current_execution.recompute)

    def _project_routers(self) -> None:
        """In training bring back what routers hold fixed before a pass, as every update of ours does after it."""
        if self.training and torch.is_grad_enabled():
            self.model.project_routers()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def _how(self, n_steps: int | None, halting_threshold: float | None) -> tuple[int | None, Execution]:
        """Return rounds and execution of a call: what it asks for, else what the configuration says."""
        config, execution = self.config, cast(Execution, self.model.current_execution)
        if halting_threshold is None and not self.training:
            halting_threshold = config.halting_threshold
        if halting_threshold is not None:
            execution = replace(
                execution,
                halting_threshold=halting_threshold,
                exit=config.exit,
                exit_scope=cast(ExitScope, config.exit_scope),
            )
            execution = self.model.checked(execution)
        return config.n_steps if n_steps is None else n_steps, execution

    def _loss(self, logits_NV: Tensor, labels_N: Tensor, output: ModelOutput | None, n_items: Any) -> Tensor:
        """Return the mean cross-entropy of the labels that count, with the auxiliary losses.

        Args:
            n_items: labels of the whole update, where that is several batches; None: this batch is the update.
        """
        labels_N = labels_N.to(logits_NV.device)
        total = F.cross_entropy(logits_NV.float(), labels_N, ignore_index=IGNORED, reduction="sum")
        n_labels = (labels_N != IGNORED).sum()
        n_all = n_labels if n_items is None else torch.as_tensor(n_items, device=total.device)
        loss = total / n_all
        if output is None:
            return loss
        balance, halting = self.config.losses()
        spread = balance_loss(output.by_router(), balance, self.model.balance_temperatures())
        return add_auxiliary(loss, spread, depth_cost(output), halting.weight, float(n_labels / n_all))


class OstinatoForCausalLM(OstinatoPreTrainedModel, GenerationMixin):
    """A language model: `AutoModelForCausalLM`."""

    kind = "language_model"

    def __init__(self, config: OstinatoConfig) -> None:
        super().__init__(config)
        if self.model.config.mask == "prefix":
            raise CheckpointError("a prefix language model (model.mask=prefix) has no class in transformers")

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: DepthCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: States = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        n_steps: int | None = None,
        halting_threshold: float | None = None,
        logits_to_keep: int = 0,
        num_items_in_batch: Tensor | int | None = None,
        **ignored: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Return logits of the next tokens.

        Args:
            input_ids: `[B, T]`; with a cache the new ones. attention_mask: `[B, S]` of all columns, 1 for real ones;
                padding may stand on either side, before a cached step on the left.
            labels: `[B, T]`, the ids themselves (they are shifted here); -100 does not count.
            n_steps: rounds to run in place of the plan's own. halting_threshold: at which tokens halt.
            logits_to_keep: the last so many columns only; 0: all.
        """
        self._project_routers()
        n_steps, execution = self._how(n_steps, halting_threshold)
        tokens = _tokens(input_ids, attention_mask)
        shown = _wanted(output_hidden_states, output_attentions)
        if past_key_values is None and not use_cache:
            batch = Batch(tokens, tokens.ids_BT, tokens.keep_BT)
            output = self.model(batch, n_steps=n_steps, request=shown, execution=execution)
            logits, stack = output.logits_BTV[:, -logits_to_keep:], output.stacks["decoder"]
        else:
            if past_key_values is None:
                cache = Cache(n_steps=n_steps, execution=execution, device=input_ids.device)
                past_key_values = DepthCache(cache)
            states_BTD = self.model.extend(input_ids, past_key_values.content, tokens.keep_BT)
            logits, output, stack = self.model.logits(states_BTD[:, -logits_to_keep:]), None, None
        loss = None
        if labels is not None:
            shifted = F.pad(labels[:, 1:], (0, 1), value=IGNORED)[:, -logits.shape[1] :]
            loss = self._loss(logits.flatten(0, 1), shifted.flatten(), output, num_items_in_batch)
        return _returned(
            CausalLMOutputWithPast(
                loss=cast(Any, loss),
                logits=logits,
                past_key_values=past_key_values,
                hidden_states=_states(stack, output_hidden_states),
                attentions=_weights(stack, output_attentions),
            ),
            return_dict,
        )


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
        source, shown = _tokens(input_ids, attention_mask), _wanted(output_hidden_states, output_attentions)
        n_steps, execution = of._how(n_steps, halting_threshold)
        stack = of.model.encoded(source, n_steps, shown, execution)
        found = BaseModelOutput(
            last_hidden_state=stack.states_BTD,
            hidden_states=cast(Any, _states(stack, output_hidden_states)),
            attentions=cast(Any, _weights(stack, output_attentions)),
        )
        return cast(Any, _returned(found, return_dict))


class OstinatoForSeq2SeqLM(OstinatoPreTrainedModel, GenerationMixin):
    """An encoder-decoder model: `AutoModelForSeq2SeqLM`."""

    kind = "seq2seq"

    def get_encoder(self, *args: Any, **kwargs: Any) -> EncoderView:
        """Return what `generate` runs once a sentence."""
        return EncoderView(self)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Return the begin symbol and the labels but the last; what does not count becomes padding."""
        special = self.model.special_ids
        begin = torch.full_like(labels[:, :1], special.bos)
        return torch.cat([begin, labels[:, :-1]], dim=1).masked_fill_(
            torch.cat([torch.zeros_like(begin, dtype=torch.bool), labels[:, :-1] == IGNORED], dim=1), special.pad
        )

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | Sequence[Tensor] | None = None,
        past_key_values: DepthCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: States = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        n_steps: int | None = None,
        halting_threshold: float | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **ignored: Any,
    ) -> Seq2SeqLMOutput | tuple[Any, ...]:
        """Return logits of the target's next tokens.

        Args:
            input_ids, attention_mask: of the source. decoder_input_ids, decoder_attention_mask: of the target, begin
                symbol first; None: made of the labels. encoder_outputs: in place of the source's ids.
            labels: of the target's columns, not shifted; -100 does not count.
            n_steps: rounds to run in both stacks in place of the plans' own. halting_threshold: at which tokens halt.
        """
        if decoder_input_ids is None:
            if labels is None:
                raise ValueError("a seq2seq model needs decoder_input_ids or labels")
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
            real = F.pad((labels != IGNORED).long(), (1, 0), value=1)[:, :-1]
            decoder_attention_mask = real if decoder_attention_mask is None else decoder_attention_mask
        self._project_routers()
        n_steps, execution = self._how(n_steps, halting_threshold)
        target = _tokens(decoder_input_ids, decoder_attention_mask)
        shown = _wanted(output_hidden_states, output_attentions)
        output: ModelOutput | None = None
        stacks: dict[str, StackOutput] = {}
        if past_key_values is None and not use_cache and encoder_outputs is None:
            assert input_ids is not None  # as with all models of this kind: ids, or states of an encoder
            batch = Batch(target, target.ids_BT, target.keep_BT, source=_tokens(input_ids, attention_mask))
            output = self.model(batch, n_steps=n_steps, request=shown, execution=execution)
            logits, stacks = output.logits_BTV, output.stacks
            memory = stacks["encoder"].states_BTD
        else:
            if encoder_outputs is None:
                encoder_outputs = self.get_encoder()(
                    input_ids, attention_mask, n_steps=n_steps, halting_threshold=halting_threshold
                )
            memory = encoder_outputs[0]
            cache = past_key_values
            if cache is None:
                keep = None if attention_mask is None or bool(attention_mask.all()) else attention_mask.bool()
                fresh = Cache(
                    memory_BSD=memory,
                    memory_keep_BS=keep,
                    n_steps=n_steps,
                    execution=execution,
                    device=memory.device,
                )
                cache = DepthCache(fresh)
            logits = self.model.logits(self.model.extend(decoder_input_ids, cache.content, target.keep_BT))
            past_key_values = cache if use_cache else past_key_values
        loss = None
        if labels is not None:
            loss = self._loss(logits.flatten(0, 1), labels.flatten(), output, num_items_in_batch)
        return _returned(
            Seq2SeqLMOutput(
                loss=cast(Any, loss),
                logits=logits,
                past_key_values=cast(Any, past_key_values),
                decoder_hidden_states=_states(stacks.get("decoder"), output_hidden_states),
                decoder_attentions=_weights(stacks.get("decoder"), output_attentions),
                encoder_last_hidden_state=memory,
                encoder_hidden_states=_states(stacks.get("encoder"), output_hidden_states),
                encoder_attentions=_weights(stacks.get("encoder"), output_attentions),
            ),
            return_dict,
        )


class _EncoderOnly(OstinatoPreTrainedModel):
    """What reads a text with tokens that all see each other, and a head."""

    kind = "encoder"
    head: ClassVar[dict[str, Any]]
    has_labels: ClassVar[bool] = False

    def adapted(self, given: Exported) -> Exported:
        """Return the configuration with the head that the class is for; another one's settings are left out."""
        assert isinstance(given, EncoderConfig)
        if given.head.kind == self.head["kind"]:
            n_labels = self.config.num_labels if self.has_labels else None
            return given.model_copy(update={"n_labels": n_labels})
        plain = given.model_dump(exclude={"head", "n_labels", "output", "tie_embeddings"})
        labels = {"n_labels": self.config.num_labels} if self.has_labels else {}
        return EncoderConfig.model_validate({**plain, "head": self.head, **labels})

    def _read(
        self,
        batch: Batch,
        types_BT: Tensor | None,
        n_steps: int | None,
        halting_threshold: float | None,
        request: Sequence[str] = (),
    ) -> ModelOutput:
        """Return the model's output; token types go only to a model that has them."""
        self._project_routers()
        types = types_BT if self.model.type_weight is not None else None
        n_steps, execution = self._how(n_steps, halting_threshold)
        found = self.model(batch, n_steps=n_steps, token_types=types, request=request, execution=execution)
        return cast(ModelOutput, found)


class _LabelsOfTokens(_EncoderOnly):
    """Heads with a label for every column, or for the whole text."""

    returns: ClassVar[type[Any]]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: States = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        n_steps: int | None = None,
        halting_threshold: float | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **ignored: Any,
    ) -> Any:
        """Return logits, and with labels the loss.

        Args:
            labels: of every column, -100 where none counts; of a classification head one a text.
            n_steps: rounds to run in place of the plan's own. halting_threshold: at which tokens halt.
        """
        tokens = _tokens(input_ids, attention_mask)
        batch = Batch(tokens, tokens.ids_BT, tokens.keep_BT)
        shown = _wanted(output_hidden_states, output_attentions)
        output = self._read(batch, token_type_ids, n_steps, halting_threshold, shown)
        logits, stack, loss = output.logits_BTV, output.stacks["encoder"], None
        if labels is not None:
            loss = self._loss(logits.flatten(0, 1), labels.flatten(), output, num_items_in_batch)
        found = self.returns(
            loss=loss,
            logits=logits[:, 0] if self.head["kind"] == "classification" else logits,
            hidden_states=_states(stack, output_hidden_states),
            attentions=_weights(stack, output_attentions),
        )
        return _returned(found, return_dict)


class OstinatoForMaskedLM(_LabelsOfTokens):
    """A masked language model: `AutoModelForMaskedLM`."""

    head: ClassVar[dict[str, Any]] = {"kind": "masked"}
    returns = MaskedLMOutput


class OstinatoForSequenceClassification(_LabelsOfTokens):
    """One label of a text: `AutoModelForSequenceClassification`."""

    head: ClassVar[dict[str, Any]] = {"kind": "classification"}
    has_labels = True
    returns = SequenceClassifierOutput


class OstinatoForTokenClassification(_LabelsOfTokens):
    """One label of every token: `AutoModelForTokenClassification`."""

    head: ClassVar[dict[str, Any]] = {"kind": "tagging"}
    has_labels = True
    returns = TokenClassifierOutput


class OstinatoForQuestionAnswering(_EncoderOnly):
    """Where an answer begins and ends: `AutoModelForQuestionAnswering`; tokens of the question are not left out."""

    head: ClassVar[dict[str, Any]] = {"kind": "span"}

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        return_dict: bool | None = None,
        n_steps: int | None = None,
        halting_threshold: float | None = None,
        **ignored: Any,
    ) -> Any:
        """Return the scores of every column as the first and as the last one of the answer."""
        tokens = _tokens(input_ids, attention_mask)
        none_before = torch.zeros(len(input_ids), dtype=torch.long, device=input_ids.device)
        batch = Batch(tokens, tokens.ids_BT, tokens.keep_BT, prefix_lengths_B=none_before)
        output = self._read(batch, token_type_ids, n_steps, halting_threshold)
        logits_B2T, loss = output.logits_BTV, None
        if start_positions is not None and end_positions is not None:
            labels_B2 = torch.stack([start_positions, end_positions], dim=1)
            loss = self._loss(logits_B2T.flatten(0, 1), labels_B2.flatten(), output, None)
        found = QuestionAnsweringModelOutput(
            loss=cast(Any, loss), start_logits=logits_B2T[:, 0], end_logits=logits_B2T[:, 1]
        )
        return _returned(found, return_dict)


def _tokens(ids_BT: Tensor, mask_BS: Tensor | None) -> Tokens:
    """Return ids with their mask, whose last columns are theirs; of padding on the left real tokens are counted."""
    if mask_BS is None:
        return Tokens(ids_BT, torch.ones_like(ids_BT, dtype=torch.bool))
    keep_BT = mask_BS[:, -ids_BT.shape[1] :].bool()
    is_left_padded = not bool(keep_BT[:, 0].all())
    return Tokens(ids_BT, keep_BT, (keep_BT.long().cumsum(1) - 1).clamp_min(0) if is_left_padded else None)


def _wanted(states: States, weights: bool | None) -> list[str]:
    return ["rounds" if states == "rounds" else "residual"] * bool(states) + ["weights"] * bool(weights)


def _states(stack: StackOutput | None, wanted: States) -> Any:
    """Return the states after every executed step, in order, or those that left each round of the loop."""
    if stack is None or not wanted:
        return None
    if wanted == "rounds":
        return stack.left
    last: dict[int, Tensor] = {}
    for (_, step, _, what), found in stack.captures.items():
        if what == "residual":
            last[step] = found
    return tuple(last[step] for step in sorted(last))


def _weights(stack: StackOutput | None, wanted: bool | None) -> Any:
    """Return the weights of every executed self-attention, in order."""
    if stack is None or not wanted:
        return None
    captures = stack.captures.items()
    found = {step: x for (_, step, kind, what), x in captures if kind == "self_attention" and what == "weights"}
    return tuple(found[step] for step in sorted(found))


def _returned(output: Any, return_dict: bool | None) -> Any:
    return output if return_dict is not False else output.to_tuple()
