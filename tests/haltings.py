"""Halting rules for `any_architecture`, what they cover, and gates for models that have them."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from hypothesis import strategies as st

from ostinato.budget import expected_depths
from ostinato.config.halting import (
    ActConfig,
    ByLengthConfig,
    ChoosingConfig,
    ExitConfig,
    HaltingConfig,
    NoHaltingConfig,
    SelectConfig,
    StickBreakingConfig,
    TokenChoiceConfig,
)
from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.config.stack import StackConfig
from ostinato.models import LanguageModel, Seq2Seq
from ostinato.nn.act import ActUnit
from ostinato.nn.by_length import ByLength
from ostinato.nn.choosing import Chooser
from ostinato.nn.exits import Exit
from ostinato.nn.stick_breaking import StickBreakingUnit

THRESHOLDS = (1.0, 0.99, 0.9, 0.5, 0.0)
LENGTHS = [ByLengthConfig(per_token=a, extra=b) for a, b in ((0.0, 2.0), (0.4, 0.0), (1.0, -1.0))]
"""Rules by which short sources run fewer rounds than long ones, or all of them the same."""


@st.composite
def haltings(draw: st.DrawFn, *, is_causal: bool, n_rounds: int = 1, can_select: bool = False) -> HaltingConfig:
    """Draw who goes on. Thresholds are such that tokens halt in every round; `random_model` sees to the gates.

    Args:
        n_rounds: of the plan. can_select: no sub-layer reads tokens that take no part.
    """
    kind = draw(st.sampled_from(["none", "act", "stick_breaking", "exit", *(["select"] if can_select else [])]))
    if kind == "select":
        rule = SelectConfig(
            capacities=draw(st.sampled_from([None, [1.0], *([[None, 0.5]] if n_rounds > 1 else [])])),
            among=draw(st.sampled_from(["chosen", "chosen", "all"])),
            threshold=draw(st.sampled_from(THRESHOLDS)),
            gate=draw(st.sampled_from(["sigmoid", "score"])),
            scale=draw(st.sampled_from([1.0, 0.3])),
            mix=draw(st.sampled_from(["add", "interpolate"])),
        )
        # What follows from the others is no draw, which would turn every model after it into another one.
        z = 0.2 if rule.scale < 1 else 0.0
        if rule.capacities is None and rule.gate == "score":
            return TokenChoiceConfig(scale=rule.scale, z=z)
        return rule.model_copy(update={"z": z})
    if kind == "exit":
        return ExitConfig(threshold=draw(st.sampled_from(THRESHOLDS)), freeze_halted_state=draw(st.booleans()))
    if kind == "act":
        return ActConfig(
            epsilon=draw(st.sampled_from([0.01, 0.3])),
            mix=draw(st.sampled_from(["accumulate", "interpolate"])),
            freeze_halted_state=draw(st.booleans()),
            force_remainder_at_max=draw(st.booleans()),
            scope="token" if is_causal else draw(st.sampled_from(["token", "token", "global"])),
        )
    if kind == "stick_breaking":
        return StickBreakingConfig(
            threshold=draw(st.sampled_from(THRESHOLDS)),
            initial_bias=draw(st.sampled_from([None, 0.0])),
            detach_router_weight=draw(st.booleans()),
        )
    return NoHaltingConfig()


def sometimes_by_length(rule: HaltingConfig, beside: object) -> HaltingConfig:
    """Return, in place of half of the rules by which no token halts, rounds by the length of the source.

    It follows from what is drawn beside it: a draw would turn every model after it into another one.
    """
    choose = random.Random(repr(beside))
    return choose.choice([rule, choose.choice(LENGTHS)]) if rule.kind == "none" else rule


def halting_traits(name: str, stack: StackConfig) -> set[str]:
    """Name what a stack's rule is made of."""
    halting = stack.halting
    found = {f"halting {halting.kind} {name}"}
    if isinstance(halting, ByLengthConfig):
        found |= {f"length {halting.per_token}"}
    if isinstance(halting, ActConfig):
        found |= {f"act {halting.mix} freeze {halting.freeze_halted_state}", f"act {halting.scope} {name}"}
        found |= {f"act force {halting.force_remainder_at_max}"}
    if isinstance(halting, StickBreakingConfig):
        found |= {f"stick_breaking threshold {halting.threshold}", f"stick_breaking bias {halting.initial_bias}"}
    if isinstance(halting, SelectConfig):
        found |= {f"select {halting.among} {halting.mix}", f"select {halting.gate} {halting.scale}"}
        found |= {f"select capacities {halting.capacities}", f"select threshold {halting.threshold}"}
        found |= {f"select keys {one.keys}" for one in stack.segments if one.repeats and not one.fixed}
    if isinstance(halting, TokenChoiceConfig):
        found |= {f"token_choice {halting.scale}"}
    if isinstance(halting, ExitConfig):
        found |= {f"exit threshold {halting.threshold}", f"exit freeze {halting.freeze_halted_state}"}
    if halting.kind != "none":
        found |= {f"halting beside {stack.norm.placement} {stack.positions.kind}"}
        found |= {f"halting every {stack.steps_per_round} steps"}
    return found


def all_halting_traits() -> set[str]:
    """Name every trait that stacks with these rules are to have."""
    both = (True, False)
    return {
        *(f"halting {h} {s}" for h in ("none", "act", "stick_breaking", "exit") for s in ("encoder", "decoder")),
        *(f"halting length {s}" for s in ("encoder", "decoder")),
        *(f"length {one.per_token}" for one in LENGTHS),
        *(f"select keys {k}" for k in ("own", "first", "all")),
        *(f"halting beside {p} {s}" for p in ("post", "pre") for s in ("none", "sinusoidal", "coordinates")),
        *(f"halting every {n} steps" for n in (1, 2)),
        *(f"act {m} freeze {a}" for m in ("accumulate", "interpolate") for a in both),
        *(f"act force {b}" for b in both),
        *(f"exit freeze {b}" for b in both),
        *(f"halting {h} {s}" for h in ("select", "token_choice") for s in ("encoder", "decoder")),
        *(f"token_choice {s}" for s in (1.0, 0.3)),
        *(f"select {a} {m}" for a in ("chosen", "all") for m in ("add", "interpolate")),
        *(f"select {g} {s}" for g in ("sigmoid", "score") for s in (1.0, 0.3)),
        *(f"select capacities {c}" for c in (None, [1.0], [None, 0.5])),
        *(f"select threshold {t}" for t in THRESHOLDS),
        *(f"exit threshold {t}" for t in THRESHOLDS),
        *(f"act {s}" for s in ("token encoder", "token decoder", "global encoder")),
        *(f"stick_breaking threshold {t}" for t in THRESHOLDS),
        *(f"stick_breaking bias {b}" for b in (None, 0.0)),
    }


def selects(
    config: Seq2SeqConfig | LanguageModelConfig, which: Callable[[ChoosingConfig], object] = lambda rule: True
) -> bool:
    """Whether a router chooses the tokens of some stack, whose gates weigh what rounds add even if all take part."""
    rules = (stack.halting for stack in config.stacks().values())
    return any(isinstance(rule, ChoosingConfig) and bool(which(rule)) for rule in rules)


def never_halting(model: Seq2Seq | LanguageModel, *, keeps_lengths: bool = False) -> Seq2Seq | LanguageModel:
    """Return the model with gates that stay shut: every token runs every round.

    Args:
        keeps_lengths: but where the length of the source says how many, and later ones are counted for no token.
    """
    counted = expected_depths(model.config)
    for name, stack in model.stacks.items():
        if isinstance(stack.halting, ByLength) and not (keeps_lengths and counted[name].skips_halted):
            stack.halting = ByLength(0.0, extra=1e6)
    with torch.no_grad():
        for name, unit in model.banks.halting.items():
            if isinstance(rule := model.stacks[name].halting, Chooser):
                model.stacks[name].halting = rule.whole()
                continue
            for parameter in unit.parameters():
                parameter.zero_()
            if isinstance(unit, ActUnit):
                unit.map.bias.fill_(-1e4)
                if isinstance(model.stacks[name].halting, Exit):
                    model.stacks[name].halting.threshold = 1.0
                continue
            assert isinstance(unit, StickBreakingUnit)
            unit.hidden.bias.fill_(1.0)
            unit.out.weight[0] = 1e4
            model.stacks[name].halting.threshold = 1.0
    return model
