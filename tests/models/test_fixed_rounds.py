"""Segments that are repeated beside the loop of a stack, a fixed number of times; that they equal their twin, decode as
they read and are counted exactly is shown by the contract tests, whose random models have some."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from architectures import random_model
from ostinato.budget import count_bytes, count_macs, count_parameters
from ostinato.config.model import LanguageModelConfig
from ostinato.errors import ConfigError, Inert
from ostinato.models import Model
from ostinato.models.base import as_batch
from ostinato.nn.execution import Execution

IDS = torch.tensor([[1, 5, 6, 7, 3], [1, 4, 4, 8, 2]])
TWICE = {"n_steps": 2, "repeats": 3, "fixed": True}
LOOP = {"n_steps": 1, "repeats": 2, "inject": {"kind": "linear"}}
SIZES = {"d_model": 8, "vocab_size": 9, "dropout": 0.0, "tie_embeddings": "none"}


def config(*segments: dict[str, Any], **stack: Any) -> LanguageModelConfig:
    n_steps = sum(segment.get("n_steps", 1) for segment in segments)
    given = {"n_steps": n_steps, "segments": list(segments), "norm": {"kind": "rms", "placement": "pre"}}
    given |= {"self_attention": {"n_heads": 2}, "ffn": {"d_ff": 12}} | stack
    return LanguageModelConfig.model_validate(SIZES | {"decoder": given})


def unrolled() -> LanguageModelConfig:
    """Return the same model as an explicit list of steps."""
    shares = {"share": [0, 1, 0, 1, 0, 1, 2, 3]}
    sub_layers = {"self_attention": {"n_heads": 2} | shares, "ffn": {"d_ff": 12} | shares}
    return config({"n_steps": 6}, LOOP | {}, {}, **sub_layers)


def test_fixed_rounds_are_steps_of_an_explicit_list() -> None:
    rolled = config(TWICE, LOOP, {})
    plan = rolled.plans()["decoder"]
    assert plan.row("ffn") == tuple(f"decoder_{i}" for i in (0, 1, 0, 1, 0, 1, 2, 2, 3))
    assert [step.round for step in plan.steps] == [0] * 6 + [0, 1] + [0]
    assert plan.row("ffn") == unrolled().plans()["decoder"].row("ffn")
    model, other = random_model(rolled), random_model(unrolled())
    other.load_state_dict(model.state_dict())
    found, expected = model(IDS).logits_BTV, other(IDS).logits_BTV
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert count_parameters(rolled).stored == count_parameters(unrolled()).stored == model.n_parameters()
    assert count_macs(rolled, 1, 5) == count_macs(unrolled(), 1, 5)
    assert count_bytes(rolled, 1, 5) == count_bytes(unrolled(), 1, 5)


def test_a_call_changes_the_rounds_of_the_loop_only() -> None:
    rolled = config(TWICE, LOOP, TWICE | {"round_norm": True, "vectors": True})
    plan = rolled.plans()["decoder"]
    assert (plan.n_rounds, len(plan.steps), plan.is_fully_shared) == (2, 14, True)
    assert len(plan.with_rounds(5).steps) == 17
    model = random_model(rolled)
    longer = config(TWICE, LOOP | {"repeats": 5}, TWICE | {"round_norm": True, "vectors": True})
    other = random_model(longer)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(IDS, n_steps=5).logits_BTV, other(IDS).logits_BTV, rtol=0, atol=0)
    assert count_macs(rolled, 1, 5, n_steps=5) == count_macs(longer, 1, 5)


def states_by_round(model: Model) -> list[torch.Tensor]:
    return [states() for states in model(IDS, request=["rounds"]).stacks["decoder"].rounds]


def test_tokens_halt_in_the_loop_and_run_all_fixed_rounds() -> None:
    model = random_model(config(TWICE | {"inject": {"kind": "add"}}, LOOP | {"repeats": 4}, TWICE))
    seen = set[int]()
    for threshold in (0.05, 0.2, 0.4, 0.6):
        execution = Execution(exit="change", halting_threshold=threshold, compaction="always")
        trace = model(IDS, execution=execution).stacks["decoder"].halting
        assert trace is not None
        seen |= set(trace.executed_BTR.sum(-1).flatten().tolist())
    assert len(seen) > 1
    assert max(seen) <= 4
    assert len(states_by_round(model)) == 4


@pytest.mark.parametrize("n_kept", [1, 2])
def test_a_cache_that_keeps_some_rounds_keeps_all_fixed_ones(n_kept: int) -> None:
    rolled = config(TWICE, LOOP | {"repeats": 4}, {"repeats": 2, "fixed": True})
    model = random_model(rolled)
    with torch.no_grad(), model.execution(cached_rounds=n_kept):
        cache = model.encode(as_batch(IDS, None))
        first = model.step(IDS, cache)
    assert len(cache.self_kv) == 6 + n_kept + 2
    torch.testing.assert_close(first, model(IDS).logits_BTV[:, -1], rtol=0, atol=1e-12)
    counted = count_bytes(rolled, 1, 5, batch_size=2, cached_rounds=n_kept).by_part["cache"]
    assert counted["decoder.self_attention"] == (6 + n_kept + 2) * 2 * 2 * 8 * 32 * 4


@pytest.mark.parametrize(
    ("segments", "reason"),
    [
        ([LOOP, LOOP], "segments is '2 with repeats': one of them must have repeats; set fixed in the others"),
        ([TWICE, TWICE], "segments is '0 with repeats': one of them must have repeats, and not be fixed"),
        ([TWICE, {}], "segments is '0 with repeats': one of them must have repeats, and not be fixed"),
        (
            [
                {
                    "n_steps": 2,
                    "repeats": 2,
                    "fixed": True,
                    "states": [{"name": n, "adds": [m]} for n, m in ("ab", "ba")],
                }
            ],
            "fixed is True: only the loop of a stack has several states: must be false",
        ),
    ],
)
def test_what_cannot_be_is_an_error_that_says_why(segments: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(*segments, *([LOOP] if "states" in segments[0] else []))
    assert reason in str(caught.value)


def test_a_segment_that_runs_once_has_no_number_to_fix() -> None:
    problems = list(config({}, LOOP).decoder.segments[0].model_copy(update={"fixed": True}).problems("segments.0."))
    assert [(type(one), one.key, one.value) for one in problems] == [(Inert, "segments.0.fixed", True)]
