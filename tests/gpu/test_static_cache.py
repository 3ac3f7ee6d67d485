"""Steps of decoding with tensors of fixed sizes: what they find is what plain steps find, and one can be replayed for
all tokens, which a CUDA graph needs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plans import HALTING, PLANS, model_of, ragged_batch
from recorded import record

from architectures import any_architecture, draws, left_padded, random_model, sentences
from ostinato.config.decoding import DecodingConfig
from ostinato.config.halting import NoHaltingConfig
from ostinato.config.model import LanguageModelConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.decoding import static_cache
from ostinato.decoding.beams import Hypothesis
from ostinato.decoding.search import inference, search_n_best
from ostinato.errors import ConfigError
from ostinato.models import Model, build_model
from pretended import DEVICE, PretendedDevice, pretend_model, pretended_device

BEAM: dict[str, Any] = {"strategy": "beam", "beam": 3, "n_best": 2}
SEARCHES: list[dict[str, Any]] = [{}, BEAM, {"strategy": "sample", "top_k": 4}]
STATIC = [name for name in PLANS if name not in HALTING]


def _found(model: Model, batch: Batch, settings: dict[str, Any], *, static: bool) -> list[list[Hypothesis]]:
    given = {"max_length": 8, "max_length_ratio": 0.5, "static_cache": static, "pack_weights": False} | settings
    with inference(model, packs_weights=False):
        return search_n_best(model, batch, DecodingConfig.model_validate(given))


def _assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]], rel: float = 1e-4) -> None:
    assert [[one.ids for one in row] for row in found] == [[one.ids for one in row] for row in expected]
    for one, other in zip(chain.from_iterable(found), chain.from_iterable(expected), strict=True):
        assert one.log_prob == pytest.approx(other.log_prob, rel=rel, abs=rel)


def _far_from_ties(name: str) -> Model:
    model = model_of(name).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return model


@pytest.mark.sampled
@pytest.mark.parametrize("settings", SEARCHES, ids=["greedy", "beam", "sample"])
@pytest.mark.parametrize("name", STATIC)
def test_a_search_in_fixed_sizes_finds_what_a_plain_one_finds(
    name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_cache, "N_EMPTY", 4)  # buffers are made three times
    model, batch = _far_from_ties(name), ragged_batch(4)
    expected = _found(model, batch, settings, static=False)
    assert len({len(best.ids) for best, *_ in expected}) > 1  # some stop before others
    _assert_same(_found(model, batch, settings, static=True), expected)


@draws(40)
@given(st.data())
def test_any_architecture_whose_tokens_do_not_halt_decodes_the_same(data: st.DataObject) -> None:
    config = data.draw(any_architecture(halting=st.just(NoHaltingConfig())))
    batch = left_padded(data.draw(sentences(config)))
    model = random_model(config)  # in float64: random weights make much of a rounding
    if model.why_not_static(model.current_execution) is not None:
        return
    settings = data.draw(st.sampled_from(SEARCHES)) | {"max_length": 5, "max_length_ratio": 0.0}
    _assert_same(_found(model, batch, settings, static=True), _found(model, batch, settings, static=False), rel=1e-6)


def _recorded_waits(device: PretendedDevice, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record steps from now on; the list returned gets the waits of every step that is recorded."""
    waits: list[int] = []

    def counting(run: Any) -> Any:
        before = len(device.waits)
        replay = record(run)
        waits.append(len(device.waits) - before)
        return replay

    monkeypatch.setattr(static_cache, "recorder", lambda _: counting)
    return waits


def _recorded(
    name: str, settings: dict[str, Any], n_empty: int, monkeypatch: pytest.MonkeyPatch, **execution: Any
) -> tuple[list[list[Hypothesis]], PretendedDevice, list[int]]:
    """Return what a search on the pretended device finds whose steps are recorded, and how many waits are recorded.

    Args:
        execution: changes of how the model runs.
    """
    model = _far_from_ties(name)
    pretend_model(model)
    monkeypatch.setattr(static_cache, "N_EMPTY", n_empty)
    with pretended_device() as device, model.execution(**execution):
        waits = _recorded_waits(device, monkeypatch)
        return _found(model, ragged_batch(4).to(DEVICE), settings, static=True), device, waits


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param(name, settings, marks=() if name == "dense" or "beam" in settings else pytest.mark.slow)
        for name in STATIC
        for settings in SEARCHES
    ],
)
def test_a_step_that_was_recorded_is_that_of_all_later_tokens_and_nobody_waits_in_it(
    name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _found(_far_from_ties(name), ragged_batch(4), settings, static=False)
    found, _, waits = _recorded(name, settings, 5, monkeypatch)
    _assert_same(found, expected)
    assert len(waits) >= 2  # recorded anew with new buffers
    assert not any(waits)


@pytest.mark.parametrize("execution", [{"compaction": "always"}, {"expert_backend": "loop"}])
def test_nobody_waits_in_a_recorded_step_however_a_run_is_trained(
    execution: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _found(_far_from_ties("experts"), ragged_batch(4), {}, static=False)
    found, _, waits = _recorded("experts", {}, 5, monkeypatch, **execution)
    _assert_same(found, expected)
    assert waits == [0, 0]


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), pytest.raises(torch.OutOfMemoryError)),
        (RuntimeError("not permitted"), pytest.raises(ConfigError, match=r"\(not permitted\): set it to false")),
    ],
)
def test_the_setting_is_to_blame_for_what_cannot_be_recorded_and_not_for_the_lack_of_memory(
    raised: RuntimeError, expected: AbstractContextManager[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUDAGraph", "Stream", "device", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, **__: nullcontext())

    def run() -> torch.Tensor:
        raise raised

    record_step = static_cache.recorder(torch.device("cuda"))
    assert record_step is not None
    with expected:
        record_step(run)


@pytest.mark.parametrize("length", [8, 9])  # the last token of 9 is not read, the one before has the last vector
def test_learned_positions_need_no_vectors_beyond_the_longest_search(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = {"n_steps": 1, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 16}}
    stack["positions"] = {"kind": "learned", "max_length": 12}
    config = LanguageModelConfig.model_validate({"d_model": 8, "decoder": stack, "vocab_size": 9})
    model = build_model(config).eval()
    pretend_model(model)
    prompt = Tokens(torch.tensor([[1, 4, 5, 6], [1, 5, 5, 7]]), torch.ones(2, 4, dtype=torch.bool))
    given = DecodingConfig(max_length=length, min_length=length, static_cache=True, pack_weights=False)
    with pretended_device() as device, inference(model, packs_weights=False):
        waits = _recorded_waits(device, monkeypatch)
        moved = Tokens(prompt.ids_BT.to(DEVICE), prompt.keep_BT.to(DEVICE))
        found = search_n_best(model, Batch(moved, moved.ids_BT, moved.keep_BT), given, moved)
    assert [len(one.ids) + one.finished for (one,) in found] == [length, length]
    assert waits == [0]


def test_experts_are_dense_whoever_asks_for_fixed_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, backends, of_prompts = model_of("experts"), set[str](), set[str]()
    original, step = static_cache.StaticSteps._run, model.step

    def noted(steps: static_cache.StaticSteps) -> Any:
        assert steps._cache.execution is not None
        backends.add(steps._cache.execution.expert_backend)
        return original(steps)

    def prompted(ids_BT: Any, cache: Any, *given: Any) -> Any:
        if given:
            of_prompts.add(cache.execution.expert_backend)
        return step(ids_BT, cache, *given)

    monkeypatch.setattr(static_cache.StaticSteps, "_run", noted)
    monkeypatch.setattr(model, "step", prompted)
    _found(model, ragged_batch(2), {}, static=True)
    with model.execution(static_cache=True):
        _found(model, ragged_batch(2), {}, static=False)
    assert backends == {"dense"}
    assert of_prompts == {"auto"}  # of which only the chosen experts are computed: nothing is recorded there


def test_a_replay_calls_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[int]()
    original = static_cache.StaticSteps._run

    def counted(steps: static_cache.StaticSteps) -> Any:
        calls.append(1)
        return original(steps)

    monkeypatch.setattr(static_cache.StaticSteps, "_run", counted)
    _recorded("dense", {"max_length": 11, "max_length_ratio": 0.0, "min_length": 11}, 128, monkeypatch)
    assert len(calls) == 2  # one step that runs, one that is recorded, eight replays


@pytest.mark.parametrize("name", HALTING)
def test_models_whose_tokens_halt_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"static_cache is True: tokens of the decoder may halt"):
        _found(model_of(name), ragged_batch(2), {}, static=True)
    model = model_of(name)
    with model.execution(halting=False):
        _assert_same(_found(model, ragged_batch(2), {}, static=True), _found(model, ragged_batch(2), {}, static=False))


def test_a_loop_that_starts_from_noise_is_refused() -> None:
    settings = model_of("shared").config.model_dump(mode="json")
    settings["decoder"] |= {
        "n_steps": 1,
        "segments": [{"repeats": 2, "state": {"kind": "noise"}, "inject": {"kind": "add"}}],
    }
    model = build_model(type(model_of("shared").config).model_validate(settings))
    with pytest.raises(ConfigError, match=r"the loop of the decoder starts from noise"):
        _found(model, ragged_batch(2), {}, static=True)
