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
from ostinato.data.batch import Batch, Tokens
from ostinato.errors import ConfigError, Problem
from ostinato.hf.configuration import Exported, OstinatoConfig
from ostinato.hf.modeling import OstinatoPreTrainedModel, logger
from ostinato.hf.outputs import IGNORED, States, check_others, returned, states_of, tokens_of, weights_of
from ostinato.models.encoder import passages
from ostinato.models.losses import round_loss_problems
from ostinato.models.output import ModelOutput


class _EncoderOnly(OstinatoPreTrainedModel):
    """What reads a text with tokens that all see each other, and a head."""

    kind = "encoder"
    head: ClassVar[dict[str, Any]]
    has_labels: ClassVar[bool] = False

    def __init__(self, config: OstinatoConfig) -> None:
        super().__init__(config)
        before, now = config.settings().reads, self.head["kind"]
        if before == now:
            return
        # A new head: settings of the training of another one stay where this one can have them.
        problems = round_loss_problems(self.model, config.loss_of_rounds(), None, "round_loss")
        left_out: dict[str, Any] = {"round_loss": None} if any(problems) else {}
        if now == "span" and config.label_smoothing:
            left_out["label_smoothing"] = 0.0
        if config.exit is not None and config.exit not in self.model.possible_criteria():
            left_out |= {"exit": None, "halting_threshold": None}
        for name, value in left_out.items():
            setattr(config, name, value)
        if left_out:
            logger.warning(f"a {now} head cannot have {', '.join(left_out)} of the {before} model: left out")

    def adapted(self, given: Exported) -> Exported:
        """Return the configuration with the head that the class is for; another one's settings are left out."""
        assert isinstance(given, EncoderConfig)
        if given.head.kind == self.head["kind"]:
            n_labels = self.config.num_labels if self.has_labels else None
            self.config.model = {**(self.config.model or {}), "n_labels": n_labels}  # as it is saved again
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
        **others: Any,
    ) -> Any:
        """Return logits, and with labels the loss.

        Args:
            labels: of every column, -100 where none counts; of a classification head one a text.
            n_steps: rounds to run in place of the plan's own. halting_threshold: at which tokens halt.
        """
        check_others(others, attention_mask)
        asked = self._asked(output_hidden_states, output_attentions, return_dict)
        output_hidden_states, output_attentions, return_dict = asked
        tokens = tokens_of(input_ids, attention_mask)
        batch = Batch(tokens, tokens.ids_BT, tokens.keep_BT)
        shown = self._shown(output_hidden_states, output_attentions)
        output = self._read(batch, token_type_ids, n_steps, halting_threshold, shown)
        logits, stack, loss = output.logits_BTV, output.stacks["encoder"], None
        if labels is not None:
            self._check_labels(labels)
            loss = self._loss(output, batch, labels.view(len(labels), -1), num_items_in_batch)
        found = self.returns(
            loss=loss,
            logits=logits[:, 0] if self.head["kind"] == "classification" else logits,
            hidden_states=states_of(stack, output_hidden_states),
            attentions=weights_of(stack, output_attentions),
        )
        return returned(found, return_dict)

    def _check_labels(self, labels: Tensor) -> None:
        """Refuse labels of which transformers has another loss: of regression, or of several labels of one text."""
        kind, n_labels = self.config.problem_type, self.config.num_labels
        problems = []
        if kind not in (None, "single_label_classification"):
            problems.append(Problem("problem_type", kind, "must be single_label_classification, the only loss here"))
        if labels.is_floating_point():
            problems.append(Problem("labels", str(labels.dtype), "must be whole numbers: there is no regression here"))
        if self.has_labels and n_labels == 1:
            problems.append(Problem("num_labels", 1, "must be 2 or more: there is no regression here"))
        if problems:
            raise ConfigError(problems)


class OstinatoForMaskedLM(_LabelsOfTokens):
    """A masked language model: `AutoModelForMaskedLM`."""

    auto = "AutoModelForMaskedLM"
    head: ClassVar[dict[str, Any]] = {"kind": "masked"}
    returns = MaskedLMOutput


class OstinatoForSequenceClassification(_LabelsOfTokens):
    """One label of a text: `AutoModelForSequenceClassification`."""

    auto = "AutoModelForSequenceClassification"
    head: ClassVar[dict[str, Any]] = {"kind": "classification"}
    has_labels = True
    returns = SequenceClassifierOutput


class OstinatoForTokenClassification(_LabelsOfTokens):
    """One label of every token: `AutoModelForTokenClassification`."""

    auto = "AutoModelForTokenClassification"
    head: ClassVar[dict[str, Any]] = {"kind": "tagging"}
    has_labels = True
    returns = TokenClassifierOutput


class OstinatoForQuestionAnswering(_EncoderOnly):
    """Where an answer begins and ends in a passage: `AutoModelForQuestionAnswering`.

    A text is a question, an end symbol, a passage and an end symbol, as the tokenizer writes two texts. Columns outside
    the passage have the least score; of a text with one end symbol all before it is the passage.
    """

    auto = "AutoModelForQuestionAnswering"
    head: ClassVar[dict[str, Any]] = {"kind": "span"}

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_hidden_states: States = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        n_steps: int | None = None,
        halting_threshold: float | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> Any:
        """Return the scores of every column as the first and as the last one of the answer.

        Args:
            start_positions, end_positions: columns of the answer; those outside the passage do not count.
            n_steps: rounds to run in place of the plan's own. halting_threshold: at which tokens halt.
        """
        check_others(others, attention_mask)
        asked = self._asked(output_hidden_states, output_attentions, return_dict)
        output_hidden_states, output_attentions, return_dict = asked
        tokens = tokens_of(input_ids, attention_mask)
        prefixes_B = _lengths_of_questions(tokens, self.model.special_ids.eos)
        batch = Batch(tokens, tokens.ids_BT, tokens.keep_BT, prefix_lengths_B=prefixes_B)
        shown = self._shown(output_hidden_states, output_attentions)
        output = self._read(batch, token_type_ids, n_steps, halting_threshold, shown)
        logits_B2T, stack, loss = output.logits_BTV, output.stacks["encoder"], None
        if start_positions is not None and end_positions is not None:
            labels_B2 = torch.stack([start_positions, end_positions], dim=1).to(logits_B2T.device)
            loss = self._loss(output, batch, _in_passages(labels_B2, batch), num_items_in_batch)
        found = QuestionAnsweringModelOutput(
            loss=cast(Any, loss),
            start_logits=logits_B2T[:, 0],
            end_logits=logits_B2T[:, 1],
            hidden_states=states_of(stack, output_hidden_states),
            attentions=weights_of(stack, output_attentions),
        )
        return returned(found, return_dict)


def _lengths_of_questions(tokens: Tokens, eos: int) -> Tensor:
    """Return the number of real tokens up to the end symbol before another one; 0 where there is one only, or none."""
    number_BT = tokens.keep_BT.long().cumsum(1)
    # The first token may be an end symbol, too, where one symbol begins and ends texts.
    is_end_BT = tokens.keep_BT & (tokens.ids_BT == eos) & (number_BT > 1)
    first_B = number_BT.gather(1, is_end_BT.int().argmax(1, keepdim=True))[:, 0]
    return first_B.masked_fill(is_end_BT.sum(1) < 2, 0)


def _in_passages(labels_B2: Tensor, batch: Batch) -> Tensor:
    """Return columns of answers; `IGNORED` where one lies outside its passage, as of one that was cut off."""
    is_there_BT = passages(batch)
    width = is_there_BT.shape[1]
    is_in_B2 = (labels_B2 >= 0) & (labels_B2 < width) & is_there_BT.gather(1, labels_B2.clamp(0, width - 1))
    return labels_B2.masked_fill(~is_in_B2, IGNORED)
