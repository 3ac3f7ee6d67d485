"""Halting rules: how a token stops taking part in rounds."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ostinato.config.base import Config
from ostinato.config.sub_layers import Probability


class NoHaltingConfig(Config):
    """Every token takes part in every round."""

    kind: Literal["none"] = "none"


class ActConfig(Config):
    """Adaptive Computation Time (Graves 2016; Universal Transformers): see `ostinato.nn.act`.

    The listing of the Universal Transformer, as printed, is mix=interpolate, freeze_halted_state=false,
    force_remainder_at_max=false.
    """

    kind: Literal["act"] = "act"
    epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """A token halts when its probabilities add up to 1 - epsilon; may be changed after training."""
    initial_bias: float = -3.0
    """Bias of the halting probability at the start: with -3 tokens begin at full depth, with 0 and 1 (tensor2tensor) at
    round 2. docs/results.md, "Starting ACT", says why it is -3."""
    mix: Literal["accumulate", "interpolate"] = "accumulate"
    """How a token's output is made of its rounds. accumulate: their weighted sum. interpolate: round by round the new
    state in the place of as much of the old one as its weight says."""
    freeze_halted_state: bool = True
    """A halted token stays as it was. False: it goes on being transformed and seen; only its output is kept."""
    force_remainder_at_max: bool = True
    """The last round takes what is left, so that a token's weights add up to one."""
    scope: Literal["token", "global"] = "token"
    """global: one probability a sentence, the mean of its tokens'; not where tokens must not see later ones."""


class StickBreakingConfig(Config):
    """A distribution over rounds for every token (Sparse Universal Transformer): see `ostinato.nn.stick_breaking`."""

    kind: Literal["stick_breaking"] = "stick_breaking"
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.999
    """A token stops once so much of its mass is given out; may be changed after training. 0: after one round."""
    initial_bias: float | None = None
    """Log odds of halting at the start, learned; null: no bias, so that they are 0 at first (as in the paper)."""
    dropout: Probability = 0.0
    """Dropout of the gate's hidden layer."""
    detach_router_weight: bool = False
    """Routers weigh tokens by what is left of them; true: without passing the gradient on to the gate."""


HaltingConfig = Annotated[NoHaltingConfig | ActConfig | StickBreakingConfig, Field(discriminator="kind")]
