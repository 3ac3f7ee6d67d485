from __future__ import annotations

from typing import Any

import pytest
import torch

from ostinato.budget import Assumptions, count_budget, count_macs, count_parameters
from ostinato.config.model import LanguageModelConfig
from ostinato.errors import ConfigError
from ostinato.experiments.compare.matched_models import Wanted, match_model
from ostinato.experiments.results import assumptions_of
from ostinato.experiments.timing.latency import Timer
from ostinato.experiments.timing.workloads import Bench, TimedModel, Workload
from ostinato.tasks.recipes import load_recipe

RECIPE = load_recipe("lm/transformer")


def model(n_steps: int = 2, d_ff: int = 64) -> LanguageModelConfig:
    stack = {"n_steps": n_steps, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": d_ff}}
    return LanguageModelConfig.model_validate({"d_model": 16, "vocab_size": 30, "decoder": stack})


def test_a_model_is_matched_to_a_number() -> None:
    reference = model()
    found = match_model(model(n_steps=1), count_parameters(reference).stored, Wanted(), RECIPE)
    assert found.achieved == count_parameters(found.config).stored
    wanted = Wanted(match="macs", source_length=3, target_length=7)
    macs = match_model(model(n_steps=1), wanted.cost(RECIPE)(reference), wanted, RECIPE)
    assert macs.achieved == count_macs(macs.config, 3, 7).total
    assert macs.value > found.value


def test_bytes_are_of_the_rounds_that_a_solved_depth_predicts_in() -> None:
    settings = [
        "model.decoder.self_attention.share=all",
        "model.decoder.ffn.share=all",
        "training.round_loss.kind=window",
    ]
    recipe = load_recipe("lm/transformer", settings)
    wanted = Wanted(free="decoder.n_steps", match="bytes")
    target = wanted.cost(recipe)(model(n_steps=9))
    found = match_model(model(n_steps=2), target, wanted, recipe)
    assert (found.value, found.achieved) == (9, target)
    assert target == count_budget(found.config, assumptions_of(recipe, Assumptions())).figure("bytes")
    one_prediction = wanted.cost(load_recipe("lm/transformer", settings[:2]))(model(n_steps=9))
    assert target - one_prediction >= 8 * 32 * 30 * 4  # logits of eight more rounds


def test_latency_is_read_from_searches_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def seconds_of(timer: Timer, workload: object) -> object:
        seen.append((timer.device.type, timer.threads, str(workload)))
        return lambda config: count_macs(config, 1, 1).total * 1e-6

    monkeypatch.setattr(Timer, "seconds_of", seconds_of)
    wanted = Wanted(match="latency", device="cpu", threads=1, batch_size=2, beam=5, tolerance=0.01)
    found = match_model(model(n_steps=1), count_macs(model(n_steps=4), 1, 1).total * 1e-6, wanted, RECIPE)
    assert seen == [("cpu", 1, "decoding, batch 2, beam 5")]
    assert abs(found.residual) <= 0.01 * found.target


def test_a_search_is_timed_with_the_rounds_that_its_cache_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(Timer, "seconds_of", lambda timer, workload: seen.append(workload))
    decoding = RECIPE.decoding.model_copy(update={"cached_rounds": 2})
    Wanted(match="latency", device="cpu").cost(RECIPE.model_copy(update={"decoding": decoding}))
    assert seen == [Workload("decoding", 1, 0, 32, 1, cached_rounds=2)]  # texts have no source


def test_a_timed_search_keeps_the_rounds_that_it_is_to_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = {"n_steps": 1, "segments": [{"repeats": 4}], "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}
    looped = LanguageModelConfig.model_validate({"d_model": 16, "vocab_size": 30, "decoder": stack})
    bench, held = Bench(TimedModel("looped", looped), torch.device("cpu")), []
    step = type(bench.model).step

    def noted(model: Any, ids: Any, cache: Any, keep: Any = None) -> Any:
        held.append((cache, step(model, ids, cache, keep)))
        return held[-1][1]

    monkeypatch.setattr(type(bench.model), "step", noted)
    for n_kept, n_sets in ((None, 4), (1, 1), (3, 3)):
        bench.call(Workload("decoding", 1, 3, 4, cached_rounds=n_kept))()
        assert len(held[-1][0].self_kv) == n_sets


def test_a_real_clock_reads_seconds() -> None:
    wanted = Wanted(match="latency", device="cpu", threads=1, source_length=2, target_length=3)
    seconds = wanted.cost(RECIPE)
    assert seconds(model(n_steps=1)) > 0


def test_an_unknown_match_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="match is 'speed': must be one of parameters, active, macs, macs_per_gen"):
        match_model(model(), 1.0, Wanted(match="speed"), RECIPE)  # type: ignore[arg-type]
