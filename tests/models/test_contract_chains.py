"""Contract 4 for compiled kernels: cached steps by them equal those of plain code, for every architecture."""

from __future__ import annotations

import contextvars
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, seed
from hypothesis import strategies as st
from torch import Tensor

import ostinato.nn.compiled
from architectures import Model, Sentence, any_architecture, draws, left_padded, random_model, right_padded, sentences
from ostinato.config.halting import (
    ActConfig,
    ByLengthConfig,
    HaltingConfig,
    NoHaltingConfig,
    StickBreakingConfig,
)
from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.data.batch import Batch
from ostinato.kernels import ActGate, Chain, HaltsBy, StickBreakingGate, packing
from ostinato.kernels.native import library
from ostinato.nn.cache import Cache
from ostinato.nn.compiled import CompiledStack, compiled_step
from ostinato.plan import Placement
from running import run_as

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here")


def logits_of_steps(model: Model, batch: Batch, n_beams: int, keep: list[int], pads: bool = False) -> list[Tensor]:
    """Return the logits of cached steps; hypotheses change places after each, and after some, sentences leave.

    Args:
        keep: sentences that stay. pads: some hypotheses get padding in one step, whose logits are 0.
    """
    n_sentences = len(batch.target.ids_BT)
    make = torch.Generator().manual_seed(0)
    cache = model.encode(batch)
    if isinstance(model.config, LanguageModelConfig):
        model.step(batch.target.ids_BT, cache, batch.target.keep_BT)
    cache.expand(n_beams, n_sentences)
    logits = []
    for step in range(9):  # more than two blocks of positions
        ids_B1 = torch.randint(2, 5, (n_sentences * n_beams, 1), generator=make)
        keep_B1 = torch.rand(ids_B1.shape, generator=make) < 0.5 if pads and step == 2 else None
        made_BV = model.step(ids_B1, cache, keep_B1)
        logits.append(made_BV if keep_B1 is None else made_BV.masked_fill(~keep_B1, 0.0))
        moves_BG = torch.randint(n_beams, (n_sentences, n_beams), generator=make)
        cache.reorder((torch.arange(n_sentences)[:, None] * n_beams + moves_BG).flatten())
        if step == 3 and keep:
            cache.keep(torch.tensor(keep))
            n_sentences = len(keep)
    return logits


def assert_near(found: list[Tensor], expected: list[Tensor]) -> None:
    for step, (a, b) in enumerate(zip(found, expected, strict=True)):
        scale = max(1.0, float(b.abs().max()))
        torch.testing.assert_close(a, b, rtol=0.0, atol=2e-4 * scale, msg=lambda text, step=step: f"{step}: {text}")


def is_near(found: list[Tensor], expected: list[Tensor]) -> bool:
    try:
        assert_near(found, expected)
    except AssertionError:
        return False
    return True


@st.composite
def universal_transformers(
    draw: st.DrawFn, rules: st.SearchStrategy[HaltingConfig], *, may_be_empty: bool = False
) -> Any:
    """Draw a model whose rounds share all weights and have a signal each; empty ones have nothing else."""
    n_a_round, n_rounds = draw(st.integers(1, 2)), draw(st.integers(1, 4))
    share: list[int | None] = [step % n_a_round for step in range(n_a_round * n_rounds)]
    if may_be_empty:
        share = [0, *draw(st.lists(st.sampled_from([0, None]), min_size=len(share) - 1, max_size=len(share) - 1))]
        share = share[::-1] if draw(st.booleans()) else share
    stack: dict[str, Any] = {
        "n_steps": n_a_round * n_rounds,
        "steps_per_round": n_a_round,
        "positions": {"kind": "coordinates"},
        "norm": {"placement": draw(st.sampled_from(["post", "pre"]))},
        "self_attention": {"n_heads": 2, "share": share},
        "ffn": {"d_ff": 6, "share": share},
        "halting": draw(rules),
    }
    if draw(st.booleans()):
        stack["ffn"] |= {"kind": "experts", "n_experts": 3, "top_k": 2}
    decoder = stack | {"cross_attention": {"n_heads": 2, "share": share}}
    sizes = {"source_vocab_size": 9, "target_vocab_size": 9}
    return Seq2SeqConfig.model_validate({"d_model": 8, "dropout": 0.0, "encoder": stack, "decoder": decoder, **sizes})


def counted(what: str, method: Callable[..., Any], found: Counter[str]) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        found[what] += 1
        return method(*given, **named)

    return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what kernels do."""
    found: Counter[str] = Counter()
    chain, read = Chain.__call__, ostinato.nn.compiled.read_cache
    monkeypatch.setattr(Chain, "add", counted("add", Chain.add, found))
    rounds = Chain.rounds

    def in_one_call(self: Chain, x_ND: Tensor, n_rounds: int, rule: HaltsBy) -> Tensor:
        found[f"rounds, rule {rule.structure.kind}"] += 1
        return rounds(self, x_ND, n_rounds, rule)

    monkeypatch.setattr(Chain, "rounds", in_one_call)

    def chained(self: Chain, *given: Any) -> Tensor:
        found["chains"] += 1
        found["experts"] += any(link.call.route for link in self.links)
        return chain(self, *given)

    def reading(*given: Any) -> Tensor:
        found["reads"] += 1
        return read(*given)

    for gate, name in (ActGate, "enter"), (StickBreakingGate, "__call__"):
        monkeypatch.setattr(gate, name, counted(gate.__name__, getattr(gate, name), found))
    monkeypatch.setattr(Chain, "__call__", chained)
    monkeypatch.setattr(ostinato.nn.compiled, "read_cache", reading)
    return found


def test_cached_steps_are_those_of_plain_code(calls: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()
    monkeypatch.setattr("ostinato.nn.keys_in_place._BLOCK", 4)

    def check(models: st.SearchStrategy[Any], data: st.DataObject) -> None:
        config = data.draw(models)
        pad = data.draw(st.sampled_from([right_padded, left_padded])) if hasattr(config, "encoder") else left_padded
        batch = pad(data.draw(sentences(config)))
        model = random_model(config).float()
        run_as(model, compaction=data.draw(st.sampled_from(["auto", "always", "never"])))
        n_beams = data.draw(st.integers(1, 3))
        n_sentences = len(batch.target.ids_BT)
        pads = data.draw(st.booleans())
        keep = sorted(data.draw(st.sets(st.integers(0, n_sentences - 1), min_size=1)))
        # Most rows of a chain: all there are, one, or none, so that keys are read by themselves.
        most_rows = data.draw(st.sampled_from([12, 12, 1, 0]))
        monkeypatch.setattr("ostinato.nn.compiled.MOST_ROWS", most_rows)
        monkeypatch.setattr("ostinato.nn.compiled._MOST_ROWS_OF_EXPERTS", 8 * most_rows)
        with torch.no_grad():
            expected = logits_of_steps(model, batch, n_beams, keep, pads)
            calls.clear()
            with packing():
                found = logits_of_steps(model, batch, n_beams, keep, pads)
            # Plain code rounds, too: what is as near to the true numbers as it should be to plain code will do, and
            # where plain code is further from them than that, float32 cannot tell what the model says.
            if not is_near(found, expected):
                exact = [logits_RV.float() for logits_RV in logits_of_steps(model.double(), batch, n_beams, keep, pads)]
                if not is_near(expected, exact):
                    seen["unknown"] += 1
                    return
                assert_near(found, exact)
        seen.update({name: 1 for name, n in calls.items() if n})
        seen["none"] += not calls

    # Kernels know few of all the rules that are drawn: some models are asked for those that they know.
    act = st.builds(ActConfig, mix=st.sampled_from(["accumulate", "interpolate"]), force_remainder_at_max=st.booleans())
    stick_breaking = st.builds(StickBreakingConfig, threshold=st.sampled_from([0.5, 0.9]))
    known: tuple[Placement, ...] = ("post", "pre")
    with_experts = any_architecture(halting=None, placements=known).filter(
        lambda one: one.decoder.ffn.kind == "experts"
    )
    for models, n, quick in (
        (any_architecture(placements=known), 20, 3),
        (with_experts, 30, 6),
        (any_architecture(halting=act, placements=known), 20, 4),
        (any_architecture(halting=stick_breaking, placements=known), 20, 4),
        (any_architecture(), 10, 3),
        (universal_transformers(act), 40, 6),
        (universal_transformers(stick_breaking), 40, 4),
        (universal_transformers(st.just(ByLengthConfig(per_token=0.4))), 60, 3),
        (universal_transformers(st.just(NoHaltingConfig())), 20, 3),
        (universal_transformers(st.just(NoHaltingConfig()), may_be_empty=True), 20, 4),
    ):
        draws(n, quick=quick)(seed(3)(given(models=st.just(models), data=st.data())(check)))()
    least = 10 if os.environ.get("OSTINATO_ALL_DRAWS") else 2
    in_one_call = [f"rounds, rule {kind}" for kind in range(3)]
    for name in ("chains", "experts", "reads", *in_one_call, "add", "ActGate", "StickBreakingGate", "none"):
        assert seen[name] >= least, seen
    assert seen["unknown"] <= 5, seen


@pytest.mark.parametrize("where", ["self_attention", "ffn", "norm", "everywhere"])
def test_modules_that_somebody_looks_at_are_called(where: str, calls: Counter[str]) -> None:
    model = small_model()
    seen: Counter[str] = Counter()

    def look(module: torch.nn.Module, *given: Any) -> None:
        seen[type(module).__name__] += 1

    if where == "everywhere":
        handles = [torch.nn.modules.module.register_module_forward_hook(look)]
    else:
        handles = [module.register_forward_hook(look) for module in getattr(model.banks, where).values()]
    if where == "self_attention":  # which is no call by itself: its maps are
        handles = [module.qkv.register_forward_hook(look) for module in model.banks.self_attention.values()]
    for _ in range(2):
        with torch.no_grad(), packing():
            model.step(torch.tensor([[3]]), model.encode(right_padded([Sentence(None, [1, 3])])))
        for handle in handles:
            handle.remove()
    assert sum(seen.values()) > 0
    assert calls["chains"] > 0


def test_a_search_lets_go_of_what_the_one_before_has_cached() -> None:
    model, batch = small_model(), right_padded([Sentence(None, [1, 3, 4]), Sentence(None, [1, 4, 3])])

    def begun() -> Cache:
        cache = model.encode(batch)
        model.step(batch.target.ids_BT, cache)
        return cache

    def buffers(cache: Cache) -> list[weakref.ref[Tensor]]:
        return [weakref.ref(kv._kv_2RHSK) for kv in cache.self_kv.values()]

    with torch.no_grad(), packing():
        cache = begun()
        for _ in range(2):
            model.step(torch.tensor([[5], [6]]), cache)
        before = buffers(cache)
        del cache
        after = buffers(begun())
        assert [held() is None for held in before] == [True, True]
        assert [held() is None for held in after] == [True, True]


def small_model() -> Model:
    stack = {"n_steps": 2, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 6}}
    config = {"d_model": 8, "dropout": 0.0, "vocab_size": 9, "decoder": stack}
    return random_model(LanguageModelConfig.model_validate(config)).float()


@pytest.mark.parametrize("has_final", [True, False])
def test_the_only_sub_layer_of_a_loop_reads_the_signal_of_its_round(has_final: bool, calls: Counter[str]) -> None:
    stack = {
        "n_steps": 1,
        "positions": {"kind": "coordinates"},
        "norm": {"placement": "pre", "final": has_final},
        "self_attention": {"n_heads": 2},
        "ffn": {"d_ff": 6, "share": [None]},
    }
    config = {"d_model": 8, "dropout": 0.0, "vocab_size": 9, "decoder": stack}
    model = random_model(LanguageModelConfig.model_validate(config)).float()
    batch = right_padded([Sentence(None, [1, 3, 4]), Sentence(None, [1, 4, 3])])
    with torch.no_grad():
        expected = logits_of_steps(model, batch, 2, [])
        with packing():
            assert_near(logits_of_steps(model, batch, 2, []), expected)
    assert calls["chains"] > 0


@pytest.mark.parametrize("exit", ["certainty", "margin"])
def test_what_exits_predict_is_normed_once(exit: str, calls: Counter[str]) -> None:
    """A coda behind the loop is one call with the norm at the end; predictions of the loop's rounds run it, too."""
    stack = {
        "segments": [{"repeats": 4}, {"n_steps": 1}],
        "n_steps": 2,
        "norm": {"placement": "pre"},
        "self_attention": {"n_heads": 2},
        "ffn": {"d_ff": 6},
    }
    config = {"d_model": 8, "dropout": 0.0, "vocab_size": 9, "decoder": stack}
    model = random_model(LanguageModelConfig.model_validate(config)).float()
    batch = right_padded([Sentence(None, [1, 3, 4]), Sentence(None, [1, 4, 3])])
    for threshold in (0.2, 0.3, 0.4, 0.6):
        run_as(model, exit=exit, halting_threshold=threshold)
        with torch.no_grad():
            expected = logits_of_steps(model, batch, 2, [])
            calls.clear()
            with packing():
                assert_near(logits_of_steps(model, batch, 2, []), expected)
        assert calls["chains"] > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_default_types_change_nothing(dtype: torch.dtype, calls: Counter[str]) -> None:
    model, batch = small_model(), right_padded([Sentence(None, [1, 3, 4]), Sentence(None, [1, 4, 3])])
    with torch.no_grad():
        expected = logits_of_steps(model, batch, 2, [])
        torch.set_default_dtype(dtype)
        try:
            with packing():
                found = logits_of_steps(model, batch, 2, [])
        finally:
            torch.set_default_dtype(torch.float32)
    assert_near(found, expected)
    assert calls["chains"]


def test_threads_that_share_a_packing_do_not_share_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    seen: list[CompiledStack] = []
    step = CompiledStack.step

    def noted(self: CompiledStack, *given: Any) -> Any:
        seen.append(self)
        return step(self, *given)

    monkeypatch.setattr(CompiledStack, "step", noted)
    with torch.no_grad(), packing():
        here = contextvars.copy_context()

        def look() -> None:
            with torch.no_grad():
                here.run(compiled_step, model.stacks["decoder"], torch.zeros(1, 1, 8), Cache())

        look()
        look()
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert seen[0] is seen[1]
    assert seen[0] is not seen[2]


def test_a_backend_that_is_asked_for_multiplies_the_experts(calls: Counter[str]) -> None:
    stack = {
        "n_steps": 2,
        "self_attention": {"n_heads": 2},
        "ffn": {"kind": "experts", "n_experts": 3, "top_k": 2, "d_ff": 6},
    }
    config = {"d_model": 8, "dropout": 0.0, "vocab_size": 9, "decoder": stack}
    model = random_model(LanguageModelConfig.model_validate(config)).float()
    batch = right_padded([Sentence(None, [1, 3])])
    for backend, n_calls in ("auto", 1), ("loop", 0):
        calls.clear()
        with torch.no_grad(), packing(), model.execution(expert_backend=backend):
            model.step(torch.tensor([[3]]), model.encode(batch))
        assert calls["experts"] == n_calls
