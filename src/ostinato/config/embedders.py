"""How an encoder-only model makes states of what it reads: a position for every token, or for every fact."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ostinato.config.base import Config


class TokensConfig(Config):
    """A position for every token: its embedding."""

    kind: Literal["tokens"] = "tokens"


class FactsConfig(Config):
    """A position for every fact, and one for the question (Universal Transformers, bAbI).

    e(fact) = sum_w M[w] * E[token w], with masks M learned for each place in a fact, and others in the question.
    """

    kind: Literal["facts"] = "facts"
    max_words: Annotated[int, Field(ge=1)] = 16
    """Tokens of the longest fact or question: places that have a mask."""


EmbedderConfig = Annotated[TokensConfig | FactsConfig, Field(discriminator="kind")]
