"""What an encoder-only model reads off its states: the head, exchanged between pre-training and fine-tuning."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ostinato.config.base import Config


class MaskedHeadConfig(Config):
    """The token that stood where one is masked: logits = states O^T, O the embeddings (`tie_embeddings: output`)."""

    kind: Literal["masked"] = "masked"


class ClassificationHeadConfig(Config):
    """One label for the whole input, a sentence or a pair: logits = W pooled + b."""

    kind: Literal["classification"] = "classification"
    pooling: Literal["first", "mean"] = "first"
    """first: the state of the begin symbol (BERT's [CLS]). mean: of all real tokens, both symbols included."""


class TaggingHeadConfig(Config):
    """One label for every white-space separated word, read from the state of its first token: logits = W state + b."""

    kind: Literal["tagging"] = "tagging"


class SpanHeadConfig(Config):
    """Where an answer begins and ends in a passage: two scores for every token of it, [start, end] = W state + b."""

    kind: Literal["span"] = "span"
    max_answer_length: Annotated[int, Field(ge=1)] = 30
    """Tokens of the longest answer that is given."""


HeadConfig = Annotated[
    MaskedHeadConfig | ClassificationHeadConfig | TaggingHeadConfig | SpanHeadConfig, Field(discriminator="kind")
]
