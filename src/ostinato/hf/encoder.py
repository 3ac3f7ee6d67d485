"""Encoders with a head: masked words, a label of a text or of every token, an answer's first and last token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from transformers.modeling_outputs import (
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

from ostinato.config.model import EncoderConfig
from ostinato.data.batch import Batch
from ostinato.hf.configuration import Exported
from ostinato.hf.modeling import OstinatoPreTrainedModel
from ostinato.hf.outputs import States, returned, states_of, tokens_of, weights_of
from ostinato.models.output import ModelOutput


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
        tokens = tokens_of(input_ids, attention_mask)
        batch = Batch(tokens, tokens.ids_BT, tokens.keep_BT)
        shown = self._shown(output_hidden_states, output_attentions)
        output = self._read(batch, token_type_ids, n_steps, halting_threshold, shown)
        logits, stack, loss = output.logits_BTV, output.stacks["encoder"], None
        if labels is not None:
            loss = self._loss(output, batch, labels.view(len(labels), -1), num_items_in_batch)
        found = self.returns(
            loss=loss,
            logits=logits[:, 0] if self.head["kind"] == "classification" else logits,
            hidden_states=states_of(stack, output_hidden_states),
            attentions=weights_of(stack, output_attentions),
        )
        return returned(found, return_dict)


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
        tokens = tokens_of(input_ids, attention_mask)
        none_before = torch.zeros(len(input_ids), dtype=torch.long, device=input_ids.device)
        batch = Batch(tokens, tokens.ids_BT, tokens.keep_BT, prefix_lengths_B=none_before)
        output = self._read(batch, token_type_ids, n_steps, halting_threshold)
        logits_B2T, loss = output.logits_BTV, None
        if start_positions is not None and end_positions is not None:
            labels_B2 = torch.stack([start_positions, end_positions], dim=1)
            loss = self._loss(output, batch, labels_B2, None)
        found = QuestionAnsweringModelOutput(
            loss=cast(Any, loss), start_logits=logits_B2T[:, 0], end_logits=logits_B2T[:, 1]
        )
        return returned(found, return_dict)
