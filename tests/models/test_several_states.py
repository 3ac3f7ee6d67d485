"""Loops of several states: what they refuse, where their gradient ends, and what they show of their rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from contract import assert_equal
from ostinato.config.load import check_recipe
from ostinato.config.model import LanguageModelConfig
from ostinato.errors import ConfigError
from ostinato.models import build_model
from ostinato.nn.execution import Execution

LOW = {"name": "low", "repeats": 2, "state": {"kind": "zeros"}, "adds": ["high", "input"]}
HIGH = {"name": "high", "state": {"kind": "learned", "std": 1.0}, "adds": ["low"], "norm": True}


def config(
    states: list[dict[str, Any]] | None = None, n_steps: int = 2, segment: dict[str, Any] | None = None, **stack: Any
) -> LanguageModelConfig:
    states = [LOW, HIGH] if states is None else states
    loop = {"n_steps": n_steps, "repeats": 3, "states": states} | (segment or {})
    settings = {"n_steps": n_steps, "segments": [loop], "positions": {"kind": "none"}, "norm": {"placement": "pre"}}
    heads = {"self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}
    return LanguageModelConfig.model_validate(
        {"vocab_size": 9, "d_model": 8, "dropout": 0.0, "decoder": settings | heads | stack}
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"segment": {"repeats": None}}, "states is '2 states': the segment runs once: set repeats"),
        ({"states": [LOW | {"adds": ["input"]}], "n_steps": 1}, "states is '1 state': one state is what a segment has"),
        ({"n_steps": 3}, "states is '2 steps': must have n_steps = 3 steps in all"),
        ({"states": [LOW, HIGH | {"name": "low"}]}, "every state needs a name of its own, which is not input"),
        ({"states": [LOW, HIGH | {"name": "input"}]}, "every state needs a name of its own, which is not input"),
        ({"states": [LOW, HIGH | {"adds": ["other"]}]}, "states.1.adds is 'other': must be among low, input"),
        ({"states": [LOW, HIGH | {"adds": ["high"]}]}, "states.1.adds is 'high': must be among low, input"),
        ({"states": [LOW, HIGH | {"adds": ["low", "low"]}]}, "states.1.adds is 'low, low': must name every state once"),
        ({"states": [LOW | {"adds": ["high"]}, HIGH]}, "nothing of what enters the segment would be read: let a state"),
        ({"segment": {"round_norm": True}}, "round_norm is True: has no place beside states, each of which says it"),
        ({"segment": {"inject": {"kind": "add"}}}, "inject.kind is 'add': has no place beside states"),
        ({"segment": {"state": {"kind": "zeros"}}}, "state.kind is 'zeros': has no place beside states"),
        ({"halting": {"kind": "act"}}, "stops whole sentences only: must be none or length"),
        ({"positions": {"kind": "coordinates"}}, "positions.kind is 'coordinates': are added to one state"),
    ],
)
def test_what_cannot_be_is_an_error_that_says_why(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**given)
    assert expected in str(caught.value)


def test_faults_of_a_recipe_are_told_together() -> None:
    segments = [{"n_steps": 3, "states": [LOW, HIGH | {"adds": ["other"]}]}]
    model = {"kind": "language_model", "vocab_size": 9, "decoder": {"n_steps": 3, "segments": segments}}
    with pytest.raises(ConfigError) as caught:
        check_recipe({"task": {"kind": "files", "model_kind": "language_model"}, "model": model})
    told = str(caught.value)
    assert all(text in told for text in ("the segment runs once", "must have", "must be among low, input"))


def test_no_token_stops_by_a_criterion() -> None:
    model = build_model(config())
    with pytest.raises(ConfigError, match="its loops have several states"):
        model.checked(Execution(exit="change", halting_threshold=0.5))


@pytest.mark.parametrize("recompute", [False, True])
def test_the_gradient_of_the_last_rounds_is_that_of_states_without_one_before_them(recompute: bool) -> None:
    """By hand: two rounds without a graph, then one from the states they left, the input being read with its own."""
    torch.manual_seed(0)
    model = build_model(config()).double().train()
    ids = torch.randint(4, 9, (2, 5))
    model(ids, execution=Execution(gradient_rounds=1, recompute=recompute)).logits_BTV.square().sum().backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert found["banks.start.decoder_0.1.vector_D"] is None
    model.zero_grad()
    with torch.no_grad():
        left = model(ids, n_steps=2, request=("rounds",)).stacks["decoder"].left[-1]
    stack = model.stacks["decoder"]
    stack.banks.start["decoder_0"] = _Given(left)
    model(ids, n_steps=1).logits_BTV.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert_equal(found[name], parameter.grad, name)


class _Given(torch.nn.Module):
    def __init__(self, states: torch.Tensor) -> None:
        super().__init__()
        self._states = states

    def forward(self, entry: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self._states


def test_rounds_are_shown_with_all_states_and_go_on_from_them() -> None:
    model = build_model(config()).double().eval()
    ids = torch.randint(4, 9, (2, 5))
    with torch.no_grad():
        found = model(ids, request=("rounds",)).stacks["decoder"]
        assert [left.shape for left in found.left] == [(2, 5, 16)] * 3
        for n, one in enumerate(found.rounds, 1):
            assert_equal(one(), model(ids, n_steps=n).stacks["decoder"].states_BTD, f"round {n}")
        assert found.advance is not None
        assert_equal(found.advance(2, found.left[1]), found.left[2], "round 3")


def test_first_states_that_stay_as_drawn_have_the_given_deviation() -> None:
    large = config([LOW, HIGH]).model_copy(update={"d_model": 4096})
    vector = dict(build_model(large).named_parameters())["banks.start.decoder_0.1.vector_D"]
    assert 0.9 < float(vector.detach().std()) < 1.1
