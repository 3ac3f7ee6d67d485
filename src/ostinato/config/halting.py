"""Halting rules: after how many rounds a token halts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate
from operator import or_
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ostinato.config.base import Config, Positive, Probability
from ostinato.errors import Problem

_GO_DEEPER = "a smaller training.halting.weight, or training.halting.off_updates, lets them go deeper"
_SPREAD = "a larger training.halting.weight spreads them over the rounds"


class HaltingRuleConfig(Config):
    """What all rules have in common."""

    has_gate: ClassVar[bool] = True
    """Whether a token learns when to halt."""
    advice: ClassVar[tuple[str, str] | None] = None
    """What helps where nearly all tokens halt after one round in training, and where nearly all run all rounds; None:
    the rule gives the depth in training."""


class NoHaltingConfig(HaltingRuleConfig):
    """Every token takes part in every round."""

    kind: Literal["none"] = "none"
    has_gate: ClassVar[bool] = False
    """See `HaltingRuleConfig`."""


class ByLengthConfig(HaltingRuleConfig):
    """Rounds by the length of the source (Universal Transformers, appendix): see `ostinato.nn.by_length`.

    T(n) = min(rounds of the stack, max(1, ceil(per_token n + extra))), n: tokens of the source, symbols included.
    """

    kind: Literal["length"] = "length"
    per_token: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Rounds for a token of the source."""
    extra: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    """Rounds beside those for tokens; may be below 0."""
    has_gate: ClassVar[bool] = False
    """See `HaltingRuleConfig`."""

    def rounds(self, n_tokens: int, n_rounds: int) -> int:
        """Return T(n) of a stack of `n_rounds` rounds."""
        # Decimal numbers: 0.07 times 100 is 7.000000000000001, and means 7 rounds.
        return min(n_rounds, max(1, math.ceil(self.per_token * n_tokens + self.extra - 1e-9)))


class ActConfig(HaltingRuleConfig):
    """Adaptive Computation Time (Graves 2016; Universal Transformers): see `ostinato.nn.act`.

    The listing of the Universal Transformer, as printed, is mix=interpolate, freeze_halted_state=false,
    force_remainder_at_max=false.
    """

    kind: Literal["act"] = "act"
    advice: ClassVar[tuple[str, str] | None] = (
        _GO_DEEPER,
        "a larger training.halting.weight or halting.epsilon lets them halt",
    )
    """See `HaltingRuleConfig`."""
    epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """A token halts when its probabilities add up to 1 - epsilon; may be changed after training."""
    initial_bias: float = -3.0
    """Bias of the halting probability at the start: with -3 tokens first run most rounds, with 0 and 1 (tensor2tensor)
    two to four of six. The gate's weights are drawn, too, so that it depends on the seed: docs/halting.md has figures,
    docs/results/starting-act.md says why it is -3."""
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


class StickBreakingConfig(HaltingRuleConfig):
    """A distribution over rounds for every token (Sparse Universal Transformer): see `ostinato.nn.stick_breaking`."""

    kind: Literal["stick_breaking"] = "stick_breaking"
    advice: ClassVar[tuple[str, str] | None] = (
        _GO_DEEPER,
        "a larger training.halting.weight or a lower halting.threshold lets them halt",
    )
    """See `HaltingRuleConfig`."""
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.999
    """A token halts once its halting probabilities add up to this; may be changed after training. 0: after one
    round."""
    initial_bias: float | None = None
    """Log odds of halting at the start, learned; null: no bias, so that they are 0 at first (as in the paper)."""
    dropout: Probability = 0.0
    """Dropout of the gate's hidden layer."""
    detach_router_weight: bool = False
    """Routers weigh a token by its remaining probability; true: without passing the gradient on to the gate."""


class ExitConfig(HaltingRuleConfig):
    """A learned distribution over the rounds after which a token may stop (Ouro): see `ostinato.nn.exits`.

    Training runs all rounds, with `training.round_loss.kind: exit`; afterwards a token's output is the state of the
    first round by which its probabilities add up to the threshold.
    """

    kind: Literal["exit"] = "exit"
    threshold: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Outside training; may be changed afterwards. 1: the last round. 0: the first."""
    initial_bias: float = 0.0
    """Bias of the probability of stopping at the start."""
    freeze_halted_state: bool = True
    """A token that has stopped stays as it is. False: it goes on through all rounds, and only its output is chosen, as
    in the public code of Ouro, which saves nothing."""


class ChoosingConfig(HaltingRuleConfig):
    """What rules have in common by which routers choose the tokens of rounds; those of a round see each other only."""

    z: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """What squared scores count in the cost that `training.halting.weight` weighs: the router z-loss of
    Mixture-of-Recursions."""

    def n_routers(self, n_rounds: int) -> int:
        """Return how many rounds of a plan have a router."""
        return n_rounds

    def may_lack(self, n_rounds: int) -> list[bool]:
        """Return of every round whether some token may take no part in it."""
        return [r > 0 for r in range(n_rounds)]


class TokenChoiceConfig(ChoosingConfig):
    """A router gives every token a number of rounds before the first one, T = argmax softmax(W h_0)
    (Mixture-of-Recursions, token choice): see `ostinato.nn.token_choice`. What leaves the loop is h_0 + g h_T.
    """

    kind: Literal["token_choice"] = "token_choice"
    advice: ClassVar[tuple[str, str] | None] = (_SPREAD, _SPREAD)
    """See `HaltingRuleConfig`."""
    scale: Positive = 1.0
    """g is the probability of T times this."""


class SelectConfig(ChoosingConfig):
    """A router chooses the tokens of every round, those with the highest scores s (Mixture-of-Recursions,
    Mixture-of-Depths): see `ostinato.nn.select`. The others stay as they are, and are not seen in the round.
    """

    kind: Literal["select"] = "select"
    capacities: list[Annotated[float, Field(gt=0, le=1)] | None] | None = None
    """Share of a sentence's tokens that a round takes in training, round by round, repeated where there are more. An
    entry null: a round without a router, which takes all. null: R/R, (R - 1)/R .. 1/R of R rounds."""
    among: Literal["chosen", "all"] = "chosen"
    """chosen: a round chooses among those chosen before. all: anew among all tokens, so that none is left out for
    good."""
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Outside training a token takes part where 1 - sigmoid(s) is at most this; may be changed afterwards."""
    gate: Literal["sigmoid", "score"] = "sigmoid"
    """g: sigmoid(s), or s."""
    scale: Positive = 1.0
    """What g is multiplied by (Mixture-of-Recursions: 0.1)."""
    mix: Literal["add", "interpolate"] = "add"
    """Of the states h and what the round makes of them, C(h). add: h + g C(h). interpolate: (1 - g) h + g C(h)."""

    def capacities_of(self, n_rounds: int) -> list[float | None]:
        """Return the capacities of so many rounds."""
        if self.capacities is None:
            return [(n_rounds - r) / n_rounds for r in range(n_rounds)]
        return [self.capacities[r % len(self.capacities)] for r in range(n_rounds)]

    def n_routers(self, n_rounds: int) -> int:
        """Return how many rounds of a plan have a router."""
        return sum(capacity is not None for capacity in self.capacities_of(n_rounds))

    def may_lack(self, n_rounds: int) -> list[bool]:
        """Return of every round whether some token may take no part in it."""
        leaves_out = [capacity is not None and capacity < 1 for capacity in self.capacities_of(n_rounds)]
        return leaves_out if self.among == "all" else list(accumulate(leaves_out, or_))

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Capacities by which a token may take part in no round, or in all."""
        if self.capacities is None:
            return
        if not self.capacities or self.capacities[0] not in (None, 1.0):
            reason = "the first round takes all tokens: must begin with null or 1.0"
            yield Problem(f"{path}capacities", self.capacities, reason)
        elif all(one is None for one in self.capacities):
            reason = "no round has a router: must be numbers in (0, 1], for some of them; or kind none"
            yield Problem(f"{path}capacities", self.capacities, reason)


HaltingConfig = Annotated[
    NoHaltingConfig | ByLengthConfig | ActConfig | StickBreakingConfig | ExitConfig | SelectConfig | TokenChoiceConfig,
    Field(discriminator="kind"),
]
