"""Halting rules: after how many rounds a token halts."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ostinato.config.base import Config, Probability


class NoHaltingConfig(Config):
    """Every token takes part in every round."""

    kind: Literal["none"] = "none"
    has_gate: ClassVar[bool] = False
    """Whether a token learns when to halt."""


class ByLengthConfig(Config):
    """Rounds by the length of the source (Universal Transformers, appendix): see `ostinato.nn.by_length`.

    T(n) = min(rounds of the stack, max(1, ceil(per_token n + extra))), n: tokens of the source, symbols included.
    """

    kind: Literal["length"] = "length"
    per_token: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Rounds for a token of the source."""
    extra: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    """Rounds beside those for tokens; may be below 0."""
    has_gate: ClassVar[bool] = False
    """Whether a token learns when to halt."""

    def rounds(self, n_tokens: int, n_rounds: int) -> int:
        """Return T(n) of a stack of `n_rounds` rounds."""
        return min(n_rounds, max(1, math.ceil(self.per_token * n_tokens + self.extra)))


class ActConfig(Config):
    """Adaptive Computation Time (Graves 2016; Universal Transformers): see `ostinato.nn.act`.

    The listing of the Universal Transformer, as printed, is mix=interpolate, freeze_halted_state=false,
    force_remainder_at_max=false.
    """

    kind: Literal["act"] = "act"
    has_gate: ClassVar[bool] = True
    """Whether a token learns when to halt."""
    epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """A token halts when its probabilities add up to 1 - epsilon; may be changed after training."""
    initial_bias: float = -3.0
    """Bias of the halting probability at the start: with -3 tokens begin at full depth, with 0 and 1 (tensor2tensor) at
    round 2. docs/results.md, "Starting ACT", says why it is -3."""
    mix: Literal["accumulate", "interpolate"] = "accumulate"
    """Output of the states f_r and weights u_r of all rounds r. accumulate: sum_r u_r f_r. interpolate: the last
    y_r = u_r f_r + (1 - u_r) y_{r-1}, as in the paper's listing."""
    freeze_halted_state: bool = True
    """The state of a halted token is kept as it was. False: the state is still updated and attended to, and only the
    token's output is kept."""
    force_remainder_at_max: bool = True
    """The last round takes what is left, so that a token's weights add up to one."""
    scope: Literal["token", "global"] = "token"
    """global: one probability a sentence, the mean of its tokens'; not where tokens must not see later ones."""


class StickBreakingConfig(Config):
    """A distribution over rounds for every token (Sparse Universal Transformer): see `ostinato.nn.stick_breaking`."""

    kind: Literal["stick_breaking"] = "stick_breaking"
    has_gate: ClassVar[bool] = True
    """Whether a token learns when to halt."""
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.999
    """A token halts once its halting probabilities add up to this; may be changed after training. 0: after one
    round."""
    initial_bias: float | None = None
    """Log odds of halting at the start, learned; null: no bias, so that they are 0 at first (as in the paper)."""
    dropout: Probability = 0.0
    """Dropout of the gate's hidden layer."""
    detach_router_weight: bool = False
    """Routers weigh a token by its remaining probability; true: without passing the gradient on to the gate."""


class ExitConfig(Config):
    """A learned distribution over the rounds after which a token may stop (Ouro): see `ostinato.nn.exits`.

    Training runs all rounds, with `training.round_losses.kind: exit`; afterwards a token's output is the state of the
    first round by which its probabilities add up to the threshold.
    """

    kind: Literal["exit"] = "exit"
    has_gate: ClassVar[bool] = True
    """Whether a token learns when to halt."""
    threshold: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Outside training; may be changed afterwards. 1: the last round. 0: the first."""
    initial_bias: float = 0.0
    """Bias of the probability of stopping at the start."""
    freeze_halted_state: bool = True
    """A token that has stopped stays as it is. False: it goes on through all rounds, and only its output is chosen, as
    in the public code of Ouro, which saves nothing."""


HaltingConfig = Annotated[
    NoHaltingConfig | ByLengthConfig | ActConfig | StickBreakingConfig | ExitConfig, Field(discriminator="kind")
]
