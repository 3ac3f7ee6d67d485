"""Halting for single tokens: one gate, one weight and one decision at a time.

Written from the papers' listings (Universal Transformers, section 2.7; Sparse Universal Transformer, section 2.5). A
token that has halted is not run at all: nothing is masked, and no number of it changes any more.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ostinato.config.halting import (
    ActConfig,
    ByLengthConfig,
    ExitConfig,
    HaltingConfig,
    SelectConfig,
    StickBreakingConfig,
    TokenChoiceConfig,
)
from reference.equations import gelu, softmax
from reference.weights import read_affine

States = list[Tensor]


class Whole:
    """Every token runs every round."""

    hides = False
    """Those that take no part in a round are not seen in it."""
    freezes = True
    """A token that has halted stays as it was."""

    def __init__(self, n_tokens: int) -> None:
        self.runs = [True] * n_tokens
        self.n_executed = [0] * n_tokens
        self.weights: list[list[Tensor]] = [[] for _ in range(n_tokens)]

    def begin(self, r: int, states: States) -> bool:
        """Decide who takes part in round r, counted from 1; False where nobody does."""
        self.n_executed = [n + runs for n, runs in zip(self.n_executed, self.runs, strict=True)]
        return any(self.runs)

    def enter(self, r: int, states: States) -> None:
        """See the states of round r, the signal added."""

    def finish(self, r: int, states: States) -> None:
        """See the states that left round r."""

    def seen(self, t: int, x_D: Tensor) -> Tensor:
        """Return what others see of token t, whose state is x."""
        return x_D

    def output(self, states: States) -> States:
        """Return what the stack gives out."""
        return states

    def costs(self) -> list[Tensor] | None:
        """Return what the depth of every token costs."""
        return None


class StickBreaking(Whole):
    """alpha_r = N_{r-1} a_r, N_r = N_{r-1} (1 - a_r); s = N h + sum of alpha h over earlier rounds."""

    def __init__(self, config: StickBreakingConfig, unit: nn.Module, first: States) -> None:
        super().__init__(len(first))
        self._unit = unit
        # The mass below which a token halts even at threshold 1 is the library's own cut, not the paper's.
        self._least = max(1 - config.threshold, 1e-8)
        self._never_goes_on = config.threshold == 0
        self._left: list[Tensor] = [torch.ones((), dtype=x.dtype) for x in first]
        self._shares: list[list[tuple[Tensor, Tensor]]] = [[] for _ in first]
        self._frozen: dict[int, Tensor] = {}

    def begin(self, r: int, states: States) -> bool:
        """Ask the gates of round r - 1."""
        for t, x_D in enumerate(states):
            if r > 1 and self.runs[t]:
                self._ask(t, x_D)
        return super().begin(r, states)

    def _ask(self, t: int, x_D: Tensor) -> None:
        halt = self._gate(x_D)
        next_left = self._left[t] * (1 - halt)
        if self._never_goes_on or float(next_left.detach()) < self._least:
            self._frozen[t] = self.seen(t, x_D)
            self.runs[t] = False
            self.weights[t].append(self._left[t])
            return
        share = self._left[t] * halt
        self._shares[t].append((share, x_D))
        self.weights[t].append(share)
        self._left[t] = next_left

    def _gate(self, x_D: Tensor) -> Tensor:
        """softmax(V gelu(W h + b) + (0, c))[halt]."""
        hidden = gelu(read_affine(self._unit.hidden)(x_D))  # type: ignore[arg-type]
        go, stop = read_affine(self._unit.out)(hidden)  # type: ignore[arg-type]
        bias = self._unit.bias
        return softmax([go, stop if bias is None else stop + bias])[1]  # type: ignore[operator]

    def seen(self, t: int, x_D: Tensor) -> Tensor:
        """Return s."""
        if t in self._frozen:
            return self._frozen[t]
        total = self._left[t] * x_D
        for share, h_D in self._shares[t]:
            total = total + share * h_D
        return total

    def output(self, states: States) -> States:
        """Return s of the last round: what is left of a running token belongs to it."""
        for t, runs in enumerate(self.runs):
            if runs:
                self.weights[t].append(self._left[t])
        return [self.seen(t, x_D) for t, x_D in enumerate(states)]

    def costs(self) -> list[Tensor]:
        """Expected depth."""
        return [_total([w * (r + 1) for r, w in enumerate(of_token)]) for of_token in self.weights]


class Act(Whole):
    """p of every round until they add up to more than 1 - epsilon; the rest goes to the round where they do."""

    def __init__(self, config: ActConfig, unit: nn.Module, first: States, n_rounds: int) -> None:
        super().__init__(len(first))
        self._config, self._unit, self._n_rounds = config, unit, n_rounds
        self.freezes = config.freeze_halted_state
        self._halted = [False] * len(first)
        self._remainders = [torch.zeros((), dtype=x.dtype) for x in first]
        self._mix = [torch.zeros_like(x) for x in first]
        self.updates = [0] * len(first)

    def begin(self, r: int, states: States) -> bool:
        """Run until all have halted: frozen ones not at all, others with their outputs kept."""
        if all(self._halted):
            return False
        if self.freezes:
            self.runs = [not halted for halted in self._halted]
        return super().begin(r, states)

    def enter(self, r: int, states: States) -> None:
        """Give round r its weights."""
        probs = [torch.sigmoid(read_affine(self._unit.map)(x_D)[0]) for x_D in states]  # type: ignore[arg-type]
        if self._config.scope == "global":
            probs = [_total(probs) / len(probs)] * len(probs)
        for t, p in enumerate(probs):
            if self._halted[t]:
                self.weights[t].append(torch.zeros_like(p))
                continue
            self.updates[t] += 1
            before = _total(self.weights[t]) if self.weights[t] else torch.zeros_like(p)
            is_last = self._config.force_remainder_at_max and r == self._n_rounds
            self._halted[t] = is_last or float((before + p).detach()) > 1 - self._config.epsilon
            if self._halted[t]:
                self._remainders[t] = 1 - before
            self.weights[t].append(self._remainders[t] if self._halted[t] else p)

    def finish(self, r: int, states: States) -> None:
        """Graves: mix + u f; the listing of UT: (1 - u) mix + u f."""
        for t, x_D in enumerate(states):
            u = self.weights[t][r - 1]
            kept = self._mix[t] if self._config.mix == "accumulate" else (1 - u) * self._mix[t]
            self._mix[t] = kept + u * x_D

    def output(self, states: States) -> States:
        """Return the mix."""
        return self._mix

    def costs(self) -> list[Tensor]:
        """Rounds until halting, and the remainder."""
        return [n + rest for n, rest in zip(self.updates, self._remainders, strict=True)]


class Exit(Whole):
    """The state after the first round by which p_1 + .. + p_r reach the threshold; the last takes what is left."""

    def __init__(self, config: ExitConfig, unit: nn.Module, first: States, n_rounds: int) -> None:
        super().__init__(len(first))
        self._config, self._unit, self._n_rounds = config, unit, n_rounds
        self.freezes = config.freeze_halted_state
        self._given = [torch.zeros((), dtype=x.dtype) for x in first]
        self._outputs: dict[int, Tensor] = {}
        self._next = list(self.runs)

    def begin(self, r: int, states: States) -> bool:
        """Run those that have not stopped; all, where the others go on."""
        if len(self._outputs) == len(states):
            return False
        self.n_executed = [n + (t not in self._outputs) for t, n in enumerate(self.n_executed)]
        if self.freezes:
            self.runs = [t not in self._outputs for t in range(len(states))]
        return True

    def finish(self, r: int, states: States) -> None:
        """Ask the gate."""
        for t, x_D in enumerate(states):
            if t in self._outputs:
                continue
            rest = 1 - self._given[t]
            p = torch.sigmoid(read_affine(self._unit.map)(x_D)[0])  # type: ignore[arg-type]
            self._given[t] = self._given[t] + rest * p
            stops = self._config.threshold < 1 and float(self._given[t].detach()) >= self._config.threshold
            stops = (stops and not self._unit.training) or r == self._n_rounds
            self.weights[t].append(rest if stops else rest * p)
            if stops:
                self._outputs[t] = x_D

    def output(self, states: States) -> States:
        """Return the states of the rounds after which tokens stopped."""
        return [self._outputs[t] for t in range(len(states))]

    def costs(self) -> list[Tensor]:
        """The entropy of the distribution, negative."""
        # Of a weight that is zero, w log w is its limit, 0.
        return [_total([w * w.clamp_min(1e-38).log() for w in of_token]) for of_token in self.weights]


class Select(Whole):
    """h + g C(h), or h + g (C(h) - h), for those that a router chooses; the others take no part and are not seen."""

    hides = True

    def __init__(self, config: SelectConfig, unit: nn.Module, first: States, n_rounds: int) -> None:
        super().__init__(len(first))
        self._config, self._unit = config, unit
        shares = config.capacities or [(n_rounds - r) / n_rounds for r in range(n_rounds)]
        self._capacities = [shares[r % len(shares)] for r in range(n_rounds)]
        self._costs = [torch.zeros((), dtype=x.dtype) for x in first]
        self._before = first

    def begin(self, r: int, states: States) -> bool:
        """Choose among those chosen before, or among all."""
        everyone = [True] * len(states)
        among = self.runs if self._config.among == "chosen" else everyone
        capacity, self._gates, self._before = self._capacities[r - 1], [], states
        self.runs = list(among)
        if capacity is not None:
            weights = self._unit.weight_RD
            assert isinstance(weights, Tensor)
            number = min(sum(one is not None for one in self._capacities[: r - 1]), len(weights) - 1)
            scores = [(weights[number] * x_D).sum() for x_D in states]
            probs = [1 / (1 + torch.exp(-s)) for s in scores]
            self._gates = [
                self._config.scale * (p if self._config.gate == "sigmoid" else s)
                for p, s in zip(probs, scores, strict=True)
            ]
            for t, s in enumerate(scores):
                if among[t]:
                    self._costs[t] = self._costs[t] + self._config.z * s * s
            if capacity < 1:
                self.runs = self._choose(scores, probs, among, capacity)
                for t, s in enumerate(scores):
                    if among[t]:
                        self._costs[t] = self._costs[t] + torch.log1p(torch.exp(-s if self.runs[t] else s))
        goes_on = super().begin(r, states)
        return goes_on or self._config.among == "all"

    def _choose(self, scores: list[Tensor], probs: list[Tensor], among: list[bool], capacity: float) -> list[bool]:
        if self._unit.training:
            n = max(1, int(capacity * len(scores) + 1e-6))
            best = sorted((t for t in range(len(scores)) if among[t]), key=lambda t: -float(scores[t].detach()))[:n]
            return [t in best for t in range(len(scores))]
        threshold = self._config.threshold
        return [among[t] and threshold > 0 and 1 - float(p.detach()) <= threshold for t, p in enumerate(probs)]

    def finish(self, r: int, states: States) -> None:
        """Weigh what the round made of those that took part."""
        for t, runs in enumerate(self.runs):
            if runs and self._gates:
                h_D, made_D = self._before[t], states[t]
                states[t] = h_D + self._gates[t] * (made_D if self._config.mix == "add" else made_D - h_D)
            one = torch.ones((), dtype=states[t].dtype)
            self.weights[t] = [0 * w for w in self.weights[t]] + [one] if runs else [*self.weights[t], 0 * one]

    def costs(self) -> list[Tensor]:
        """How badly the scores alone tell who is chosen."""
        return self._costs


class TokenChoice(Whole):
    """h_0 + scale p_T h_T, T the most probable number of rounds; tokens of a round see each other only."""

    hides = True

    def __init__(self, config: TokenChoiceConfig, unit: nn.Module, first: States, n_rounds: int) -> None:
        super().__init__(len(first))
        weights = unit.weight_RD
        assert isinstance(weights, Tensor)
        self._config, self._first = config, first
        self._scores = [[(row * x_D).sum() for row in weights[:n_rounds]] for x_D in first]
        self._probs = [softmax(scores) for scores in self._scores]
        self._rounds = [1 + max(range(len(p)), key=lambda r, p=p: float(p[r].detach())) for p in self._probs]

    def begin(self, r: int, states: States) -> bool:
        """Run those that have this many rounds."""
        self.runs = [r <= rounds for rounds in self._rounds]
        return super().begin(r, states)

    def finish(self, r: int, states: States) -> None:
        """Weigh what the last round of a token made of it."""
        for t, rounds in enumerate(self._rounds):
            one = torch.ones((), dtype=states[t].dtype)
            if self.runs[t]:
                self.weights[t].append(one if r == rounds else 0 * one)
            if r == rounds:
                states[t] = self._first[t] + self._config.scale * self._probs[t][r - 1] * states[t]

    def costs(self) -> list[Tensor]:
        """How unevenly the sentence's tokens are spread over rounds, and how large their scores are."""
        n, rounds = len(self._first), range(len(self._probs[0]))
        shares = [sum(one == r + 1 for one in self._rounds) / n for r in rounds]
        spread = len(rounds) * _total([shares[r] * _total([p[r] for p in self._probs]) / n for r in rounds])
        sums = [torch.log(_total([torch.exp(s) for s in scores])) for scores in self._scores]
        return [spread + self._config.z * one**2 for one in sums]


class ByLength(Whole):
    """The first min(R, max(1, ceil(a n + b))) rounds, for all tokens of a sentence whose source has n."""

    def __init__(self, config: ByLengthConfig, first: States, n_rounds: int, n_source: int) -> None:
        super().__init__(len(first))
        self._last = min(n_rounds, max(1, math.ceil(config.per_token * n_source + config.extra)))
        self._one = torch.ones((), dtype=first[0].dtype)

    def begin(self, r: int, states: States) -> bool:
        """Run all tokens, or none."""
        self.runs = [r <= self._last] * len(self.runs)
        return super().begin(r, states)

    def finish(self, r: int, states: States) -> None:
        """The last round is all of the output."""
        for of_token in self.weights:
            of_token.append(self._one * (r == self._last))


def start(config: HaltingConfig, unit: Callable[[], nn.Module], first: States, n_rounds: int, n_source: int) -> Whole:
    """Begin a sentence under a rule; `n_source`: tokens of its source."""
    match config:
        case ByLengthConfig() as c:
            return ByLength(c, first, n_rounds, n_source)
        case SelectConfig() as c:
            return Select(c, unit(), first, n_rounds)
        case TokenChoiceConfig() as c:
            return TokenChoice(c, unit(), first, n_rounds)
        case StickBreakingConfig() as c:
            return StickBreaking(c, unit(), first)
        case ActConfig() as c:
            return Act(c, unit(), first, n_rounds)
        case ExitConfig() as c:
            return Exit(c, unit(), first, n_rounds)
    return Whole(len(first))


def _total(values: list[Tensor]) -> Tensor:
    return sum(values[1:], values[0])
