"""Contract 2 for compaction: gathering halted tokens and padding away equals computing and masking them.

That it equals the per-token twins, decodes as it reads, and leaks nothing, is shown by the other contract tests, whose
random models gather by default. Here stand the two paths side by side.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import ostinato.nn.attention
import ostinato.nn.rows
from architectures import Model, Sentence, any_architecture, draws, left_padded, random_model, right_padded, sentences
from contract import assert_all_equal, assert_equal, gradients
from ostinato.config.halting import ActConfig, HaltingConfig, StickBreakingConfig
from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.config.training import BalanceConfig
from ostinato.data.batch import Batch
from ostinato.kernels import attend_some
from ostinato.models.losses import balance_loss
from ostinato.models.output import ModelOutput
from ostinato.nn.cache import Cache
from running import run_as

pytestmark = pytest.mark.device

BALANCE = BalanceConfig(mutual_information=1.0, z=1.0)


def losses(model: Model, batch: Batch) -> tuple[ModelOutput, dict[str, Tensor]]:
    """Return a pass, and everything a gradient may be asked of: logits of real tokens, costs of depth, balance."""
    output = model(batch)
    found = {"logits": output.logits_BTV[batch.target.keep_BT]}
    costs = {name: stack.depth_cost for name, stack in output.stacks.items()}
    found |= {f"cost {name}": cost for name, cost in costs.items() if cost is not None}
    balance = balance_loss(output.by_router(), BALANCE, model.balance_temperatures())
    return output, found if balance is None else found | {"balance": balance}


def with_gradients(model: Model, padded: Batch) -> tuple[ModelOutput, dict[str, Tensor]]:
    """Return a pass, and losses and gradients of all of them together by name."""
    torch.manual_seed(5)  # of sampled experts
    output, found = losses(model, padded)
    numbers = [value if value.dim() else value[None] for value in found.values()]
    make = torch.Generator().manual_seed(1)
    weights = [torch.randn(value.shape, generator=make, dtype=torch.float64) for value in numbers]
    return output, found | gradients(model, numbers, weights)


@pytest.mark.sampled
@pytest.mark.device(False)
@pytest.mark.parametrize("recomputes", [False, True])
def test_gathering_equals_masking_in_outputs_traces_and_all_gradients(recomputes: bool) -> None:
    gathered: set[bool] = set()
    depths: set[tuple[int, int]] = set()

    @draws(10 if recomputes else 80)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        config = data.draw(any_architecture())
        batch = data.draw(sentences(config))
        pad = data.draw(st.sampled_from([right_padded, left_padded]))
        padded = pad(batch, data.draw(st.integers(0, 3)))
        model = random_model(config)
        run_as(model, recompute=recomputes)
        found = {}
        for compaction in ("never", "always"):
            run_as(model, compaction=compaction)  # type: ignore[arg-type]
            found[compaction] = with_gradients(model, padded)
        (masked, expected), (output, actual) = found["never"], found["always"]
        assert_all_equal(actual, expected)
        for name, stack in masked.stacks.items():
            assert_same_trace(stack.halting, output.stacks[name].halting)
            if stack.halting is not None:
                n_rounds = model.stacks[name].plan.n_rounds
                depths.update((n_rounds, n) for n in stack.halting.executed_BTR.sum(-1).flatten().tolist())
        routings = [[r for stack in o.stacks.values() for r in stack.routings] for o in (output, masked)]
        n_rows = [(len(few.rows_N), len(rows.rows_N)) for few, rows in zip(*routings, strict=True)]
        gathered.update(few < n for few, n in n_rows)

    check()
    if not recomputes:
        assert gathered == {False, True}
        assert {(2, 1), (2, 2), (3, 1), (3, 3)} <= depths


def assert_same_trace(expected: Any, found: Any) -> None:
    assert (expected is None) == (found is None)
    if expected is None:
        return
    assert torch.equal(found.executed_BTR, expected.executed_BTR)
    assert_equal(found.weights_BTR, expected.weights_BTR, "weights of rounds")
    runs = expected.executed_BTR
    assert_equal(found.probs_BTR[runs], expected.probs_BTR[runs], "gates")
    assert_equal(found.remaining_BTR[runs], expected.remaining_BTR[runs], "what was left")


@pytest.mark.device(False)
@pytest.mark.parametrize("keys", ["own", "first", "all"])
def test_rounds_for_which_no_token_is_chosen_do_not_run(keys: str) -> None:
    """Not even where later rounds choose among all again, and read the keys of this one."""
    loop = {"segments": [{"n_steps": 1, "repeats": 4, "keys": keys, "round_norm": True}], "n_steps": 1}
    chosen = {"kind": "select", "among": "all", "capacities": [None, 0.5], "threshold": 0.0}
    stack = loop | {"self_attention": {"n_heads": 2, "n_kv_heads": 1}, "ffn": {"d_ff": 6}, "halting": chosen}
    config = LanguageModelConfig.model_validate({"d_model": 8, "vocab_size": 9, "decoder": stack})
    model = random_model(config)
    ids_BT = torch.tensor([[1, 3, 4, 5, 3], [1, 5, 5, 3, 4]])
    found, flops = {}, {}
    for compaction in ("never", "always"):
        run_as(model, compaction=compaction)  # type: ignore[arg-type]
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            output = model(ids_BT)
        found[compaction], flops[compaction] = output.logits_BTV, counter.get_total_flops()
        ran_R = output.stacks["decoder"].halting.executed_BTR.any(0).any(0)
        assert ran_R.tolist() == [True, False, True, False]
        cache = Cache(device=ids_BT.device)
        with torch.no_grad():
            states = [model.extended(ids_BT[:, t : t + 1], cache).states_BTD for t in range(5)]
            steps = [model.logits(states_BTD) for states_BTD in states]
        assert_equal(torch.cat(steps, 1), output.logits_BTV, "logits of cached steps")
    assert_equal(found["always"], found["never"], "logits")
    assert flops["always"] < 0.6 * flops["never"]  # of four rounds two


@draws(25)
@given(st.data())
def test_cached_steps_that_gather_equal_those_that_mask(data: st.DataObject) -> None:
    """Also of sentences with padding on the left, and of beams that change places."""
    config = data.draw(any_architecture())
    batch = left_padded(data.draw(sentences(config)))
    model = random_model(config)
    n_beams = data.draw(st.integers(1, 2))
    found = [steps_of_beams(model, batch, compaction, n_beams) for compaction in ("never", "always")]
    assert_equal(found[1], found[0], "logits of cached steps")


@pytest.mark.device(False)
@pytest.mark.parametrize("halting", [StickBreakingConfig(threshold=0.99), ActConfig()])
def test_sentences_with_a_gap_between_them_are_read_in_stretches(
    halting: HaltingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stretches: list[tuple[int, int]] = []

    def noted(*given: Any) -> Tensor:
        stretches.append((len(given[1]), len(given[-1])))  # sentences that have keys, stretches of them
        return attend_some(*given)

    monkeypatch.setattr(ostinato.nn.attention, "attend_some", noted)
    monkeypatch.setattr(ostinato.nn.rows, "_NUMBERS_A_CALL", 0)
    stack = {"n_steps": 4, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 6}, "relative": {"kind": "buckets"}}
    decoder = stack | {"halting": halting.model_dump(), "cross_attention": {"n_heads": 2}}
    sizes = {"d_model": 8, "dropout": 0.0, "source_vocab_size": 9, "target_vocab_size": 9}
    config = Seq2SeqConfig.model_validate(sizes | {"encoder": stack, "decoder": decoder})
    batch = right_padded([Sentence([3 + i % 5] * (1 + i), [1, 3]) for i in range(6)])
    for seed in range(8):  # not every random gate stops a hypothesis between two that go on
        model = random_model(config, seed)
        found = [steps_of_beams(model, batch, compaction, n_beams=2) for compaction in ("never", "always")]
        assert_equal(found[1], found[0], "logits of cached steps")
    # Hypotheses have keys of their own in self-attention, and share those of their sentence in cross-attention.
    for n_with_keys in (12, 6):
        assert any(n > 1 for among, n in stretches if among == n_with_keys), stretches


def steps_of_beams(model: Model, batch: Batch, compaction: Any, n_beams: int) -> Tensor:
    """Return the logits of some cached steps, `[steps, B n_beams, V]`; hypotheses change places after each."""
    run_as(model, compaction=compaction)
    n_sentences = len(batch.target.ids_BT)
    is_text = isinstance(model.config, LanguageModelConfig)
    make = torch.Generator().manual_seed(0)
    with torch.no_grad():
        cache = model.encode(batch)
        if is_text:
            model.step(batch.target.ids_BT, cache, batch.target.keep_BT)
        cache.expand(n_beams, n_sentences)
        logits = []
        for _ in range(4):
            ids_B1 = torch.randint(2, 5, (n_sentences * n_beams, 1), generator=make)
            logits.append(model.step(ids_B1, cache))
            moves_BG = torch.randint(n_beams, (n_sentences, n_beams), generator=make)
            cache.reorder((torch.arange(n_sentences)[:, None] * n_beams + moves_BG).flatten())
    return torch.stack(logits)


def model_of(halting: HaltingConfig, n_steps: int = 4, **stack: Any) -> Model:
    decoder = {"n_steps": n_steps, "self_attention": {"n_heads": 2, "share": "all"}, "ffn": {"d_ff": 6, "share": "all"}}
    decoder |= {"halting": halting.model_dump()} | stack
    config = {"d_model": 8, "dropout": 0.0, "vocab_size": 9, "decoder": decoder}
    return random_model(LanguageModelConfig.model_validate(config))


def text(n_sentences: int = 6, length: int = 12) -> Batch:
    make = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 9, (n_sentences, length), generator=make).tolist()
    return right_padded([Sentence(None, [1, *row[: length - i]]) for i, row in enumerate(ids)])


@pytest.mark.parametrize("halting", [StickBreakingConfig(threshold=0.9), ActConfig()])
def test_every_depth_occurs_and_each_is_gathered_away(halting: HaltingConfig) -> None:
    model, batch = model_of(halting), text()
    trace = model(batch).stacks["decoder"].halting
    assert trace is not None
    depths = trace.executed_BTR.sum(-1)[batch.target.keep_BT]
    assert set(depths.tolist()) == {1, 2, 3, 4}
    run_as(model, compaction="always")
    _, found = with_gradients(model, batch)
    run_as(model, compaction="never")
    assert_all_equal(found, with_gradients(model, batch)[1])


@pytest.mark.parametrize("halting", [StickBreakingConfig(threshold=0.9), ActConfig()])
def test_keys_and_values_of_a_halted_token_are_made_once_more_and_never_again(halting: HaltingConfig) -> None:
    """With weights of its own every later step needs keys and values of its own, of halted tokens too; of a sentence
    without any token left nobody reads them."""
    batch = text()
    for share in ("all", "individual"):
        model = model_of(halting, self_attention={"n_heads": 2, "share": share})
        run_as(model, compaction="always")
        rows: list[int] = []
        for attention in model.banks.self_attention.values():
            _count_keys_values(attention, rows)
        trace = model(batch).stacks["decoder"].halting
        assert trace is not None
        executed = trace.executed_BTR.sum((0, 1)).tolist()
        depth_BT, R = trace.executed_BTR.sum(-1), len(executed)
        goes_on_BR = trace.executed_BTR.any(1)
        # Tokens that halted before round r in a sentence that went on.
        looked_at = [
            sum(int((depth_BT[b] == r).sum()) for b in range(len(depth_BT)) if goes_on_BR[b, r]) for r in range(1, R)
        ]
        if share == "all":
            assert rows == [executed[0], *(n + new for n, new in zip(executed[1:], looked_at, strict=True))]
        else:
            assert rows == [executed[0], *(n + sum(looked_at[:i]) for i, n in enumerate(executed[1:], 1))]


def _count_keys_values(attention: nn.Module, rows: list[int]) -> None:
    """Note how many rows are given keys and values, by either way."""
    for name in ("keys_values", "queries_keys_values"):
        plain = getattr(attention, name)

        def counted(x: Tensor, *args: Any, plain: Any = plain) -> Any:
            rows.append(x.shape[0])
            return plain(x, *args)

        setattr(attention, name, counted)


@pytest.mark.parametrize("halting", [StickBreakingConfig(threshold=0.9), ActConfig()])
def test_a_new_token_runs_only_its_own_depth(halting: HaltingConfig) -> None:
    model = model_of(halting)
    run_as(model, compaction="always")
    batch, rows = text(n_sentences=5), list[int]()
    model.banks.ffn["decoder_0"].register_forward_hook(lambda module, args, output: rows.append(args[0].shape[0]))
    full = model(batch).stacks["decoder"].halting
    assert full is not None
    rows.clear()
    with torch.no_grad():
        cache = model.encode(batch)
        for t in range(5):  # columns that are real in all sentences
            model.step(batch.target.ids_BT[:, t : t + 1], cache)
    assert sum(rows) == int(full.executed_BTR[:, :5].sum())
    assert len(rows) < 5 * 4
