"""Contract 1, 3 to 6, 8, 9 for halting in every model: depths, weights of rounds, costs of depth, their gradients.

That models with halting equal their twins, decode as they read, and so on, is shown by the other contract tests: their
random models halt. Here stands what only halting has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from architectures import (
    BOS,
    EOS,
    Model,
    Sentence,
    any_architecture,
    draws,
    left_padded,
    random_model,
    right_padded,
    sentences,
    texts,
)
from contract import assert_all_equal, assert_equal, gradients, gradients_with_costs, real_logits, weights_of
from elsewhere import built
from haltings import never_halting, selects
from ostinato.config.halting import (
    ActConfig,
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
from ostinato.data.batch import Batch
from ostinato.errors import ConfigError
from ostinato.models import build_model
from ostinato.nn.choosing import Routers
from ostinato.nn.types import HaltingTrace, StackOutput
from running import run_as

pytestmark = pytest.mark.device

Config = Seq2SeqConfig | LanguageModelConfig
LISTING = ActConfig(mix="interpolate", freeze_halted_state=False, force_remainder_at_max=False)
"""The Universal Transformer's, as printed."""


def halts(stack: StackConfig) -> bool:
    """Whether tokens of a stack learn to halt."""
    return stack.halting.has_gate


def any_halting(**options: Any) -> st.SearchStrategy[Config]:
    """Draw a model some of whose tokens can halt."""
    return any_architecture(**options).filter(lambda config: any(map(halts, config.stacks().values())))


def with_halting(config: Config, change: Callable[[HaltingConfig], HaltingConfig]) -> Config:
    """Return a model with other rules; tokens halt in loops of one state."""
    stacks = {}
    for name, stack in config.stacks().items():
        segments = [segment.model_copy(update={"states": []}) for segment in stack.segments]
        stacks[name] = stack.model_copy(update={"halting": change(stack.halting), "segments": segments})
    return config.model_copy(update=stacks)


def rounds_of(model: Model, batch: Batch) -> tuple[dict[str, list[dict[str, Tensor]]], dict[str, Tensor]]:
    """Return by stack what every sentence's real tokens did in every round, and the costs of depth."""
    found: dict[str, list[dict[str, Tensor]]] = {}
    costs: dict[str, Tensor] = {}
    for name, output in model(batch).stacks.items():
        if output.halting is None:
            continue
        if output.depth_cost is not None:  # by length depth costs nothing
            costs[name] = output.depth_cost
        tokens = batch.target if batch.source is None or name != "encoder" else batch.source
        found[name] = [what_tokens_did(output.halting, b, keep) for b, keep in enumerate(tokens.keep_BT)]
    return found, costs


def what_tokens_did(trace: HaltingTrace, row: int, keep_T: Tensor) -> dict[str, Tensor]:
    """Return weights of rounds, and the rounds that a token took part in."""
    return {"weights": trace.weights_BTR[row][keep_T], "executed": trace.executed_BTR[row][keep_T].double()}


def assert_same_rounds(found: dict[str, Tensor], expected: dict[str, Tensor], what: str) -> None:
    """Compare rounds; those that ran for others only are 0."""
    assert found.keys() == expected.keys()
    for name in found:
        n_rounds = max(found[name].shape[-1], expected[name].shape[-1])
        one, other = (nn.functional.pad(x, (0, n_rounds - x.shape[-1])) for x in (found[name], expected[name]))
        assert_equal(one, other, f"{name} of rounds {what}")


# --- independence ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [None, "encoder"])
@draws(25)
@given(data=st.data())
def test_padding_and_company_change_no_depth_no_cost_of_it_and_no_gradient_of_that(
    kind: str | None, data: st.DataObject
) -> None:
    config = data.draw(any_halting(kind=kind))
    batch = data.draw(texts(config) if kind == "encoder" else sentences(config))
    extra, fill = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 4))
    model = random_model(config)
    alone = [rounds_of(model, right_padded([s]))[0] for s in batch]
    expected: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None
    for padded in (right_padded(batch), right_padded(batch, extra, fill), left_padded(batch, extra, fill)):
        found, costs = rounds_of(model, padded)
        for name, of_stack in found.items():
            for b, one in enumerate(of_stack):
                assert_same_rounds(one, alone[b][name][0], f"of sentence {b} in the {name}")
        grads = gradients_with_costs(model, padded)
        if expected is None:
            expected = costs, grads
        assert_all_equal(costs, expected[0])
        assert_all_equal(grads, expected[1])


@draws(25)
@given(st.data())
def test_past_depths_never_depend_on_the_future(data: st.DataObject) -> None:
    config = data.draw(any_halting().filter(lambda config: halts(config.decoder)))
    (sentence,) = data.draw(sentences(config, max_sentences=1))
    rows = config.vocab_size if isinstance(config, LanguageModelConfig) else config.target_vocab_size
    future = data.draw(st.lists(st.integers(EOS, (rows or 0) - 1), min_size=1, max_size=4))
    n_past = data.draw(st.integers(max(1, sentence.n_prefix or 0), len(sentence.target)))
    model = random_model(config)
    pair = (sentence, sentence.with_target(sentence.target[:n_past] + future))
    before, after = (rounds_of(model, right_padded([s]))[0]["decoder"][0] for s in pair)
    before, after = ({name: value[:n_past] for name, value in of.items()} for of in (before, after))
    assert_same_rounds(after, before, f"of the first {n_past} tokens")


def test_one_probability_a_sentence_is_refused_where_it_would_leak_the_future() -> None:
    decoder = {"n_steps": 2, "halting": {"kind": "act", "scope": "global"}}
    for kind in (LanguageModelConfig, Seq2SeqConfig):
        with pytest.raises(ConfigError, match=r"^decoder\.halting\.scope is 'global': .*what comes after it.*: token"):
            kind.model_validate({"decoder": decoder})
    assert Seq2SeqConfig.model_validate({"encoder": decoder}).encoder.halting.kind == "act"


@pytest.mark.parametrize("halting", [LISTING, ActConfig(), StickBreakingConfig(threshold=0.9)])
def test_a_token_halts_in_the_same_round_in_cached_decoding(halting: HaltingConfig) -> None:
    @draws(8)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        one_state = any_architecture(kind="language_model").filter(lambda c: not c.decoder.plan("decoder").loop.phases)
        config = data.draw(one_state)
        config = with_halting(config, lambda _: halting).model_copy(update={"mask": "causal"})
        batch = right_padded(data.draw(sentences(config)))
        model = random_model(config)
        full = model(batch).stacks["decoder"]
        weights_BTR = full.halting.weights_BTR
        with torch.no_grad():
            cache = model.encode(batch)
            for t in range(batch.target.ids_BT.shape[1]):
                real_B, ids_BT = batch.target.keep_BT[:, t], batch.target.ids_BT[:, t : t + 1]
                embedded_BTE = model.embed(ids_BT, model.target_embedding)
                step = model.stacks["decoder"].step(embedded_BTE, cache, ids_BT=ids_BT)
                assert step.halting is not None
                found = {"weights": step.halting.weights_BTR[real_B, 0]}
                assert_same_rounds(found, {"weights": weights_BTR[real_B, t]}, f"of column {t}")
                assert_equal(step.states_BTD[real_B, 0], full.states_BTD[real_B, t], f"states of column {t}")

    check()


# --- the ends of the range -------------------------------------------------------------------------------------------


@draws(25)
@given(st.data())
def test_never_halting_is_fixed_depth(data: st.DataObject) -> None:
    def forced(halting: HaltingConfig) -> HaltingConfig:
        # Without a forced remainder a token that never halts has no output, as in the listing.
        is_act = isinstance(halting, ActConfig)
        return halting.model_copy(update={"force_remainder_at_max": True}) if is_act else halting

    config = with_halting(data.draw(any_halting().filter(lambda c: not selects(c))), forced)
    batch = data.draw(sentences(config))
    model = random_model(config)
    plain = built(lambda: build_model(with_halting(config, lambda _: NoHaltingConfig())).double().eval())
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if ".halting." not in name})
    expected = real_logits(plain, right_padded(batch))
    run_as(model, halting=False)
    for found, wanted in zip(real_logits(model, right_padded(batch)), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    run_as(model, halting=True)
    logits = real_logits(never_halting(model), right_padded(batch))
    for found, wanted in zip(logits, expected, strict=True):
        assert_equal(found, wanted, "logits with gates that stay shut")
    weights = weights_of(batch, expected[0].shape[1])
    grads = gradients(model, logits, weights)
    assert all(bool(grad.isfinite().all()) for grad in grads.values())
    common = {name: grad for name, grad in grads.items() if ".halting." not in name}
    assert_all_equal(common, gradients(plain, expected, weights))


@draws(20)
@given(st.data())
def test_at_threshold_0_a_model_is_that_of_one_round(data: st.DataObject) -> None:
    def is_wanted(config: Seq2SeqConfig | LanguageModelConfig) -> bool:
        # A first round of several takes a shorter step than one that is the only one.
        timed = any(s.modulation.kind == "by_time" for one in config.stacks().values() for s in one.segments)
        return not timed and all(map(halts, config.stacks().values()))

    def runs_all(rule: ChoosingConfig) -> bool:
        return not isinstance(rule, SelectConfig) or bool(rule.capacities) or rule.among == "all"

    wanted = any_architecture(fully_shared=True).filter(is_wanted)
    config = data.draw(wanted.filter(lambda c: not selects(c, runs_all)))
    batch = right_padded(data.draw(sentences(config)))
    model = random_model(config)
    run_as(model, halting_threshold=0.0)
    output = model(batch)
    for stack in output.stacks.values():
        assert stack.halting is not None
        assert stack.halting.executed_BTR.shape[-1] == 1
    run_as(model, halting=False)
    one_round_BTV = model(batch, n_steps=1).logits_BTV
    keep_BT = batch.target.keep_BT
    assert_equal(output.logits_BTV[keep_BT], one_round_BTV[keep_BT], "logits")


# --- weights of rounds -----------------------------------------------------------------------------------------------


@draws(40)
@given(st.data())
def test_weights_of_rounds_add_up_to_one_and_expected_depths_lie_in_1_to_L(data: st.DataObject) -> None:
    """Where ACT forces the remainder: the listing does not, and its weights need not."""
    config = data.draw(any_halting())
    batch = right_padded(data.draw(sentences(config)))
    model = random_model(config)
    for name, output in model(batch).stacks.items():
        halting, trace = config.stacks()[name].halting, output.halting
        tokens = batch.source if name == "encoder" else batch.target
        assert tokens is not None
        if trace is None or (isinstance(halting, ActConfig) and not halting.force_remainder_at_max):
            continue
        if (
            isinstance(halting, SelectConfig) and halting.among == "all"
        ):  # its last round may be later than their number
            continue
        assert trace.weights_BTR.shape == trace.probs_BTR.shape == trace.remaining_BTR.shape == trace.executed_BTR.shape
        assert bool((trace.weights_BTR >= 0).all())
        assert bool((trace.weights_BTR[~trace.executed_BTR] == 0).all())
        sums = trace.weights_BTR.sum(-1)[tokens.keep_BT]
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-12)
        rounds_R = torch.arange(1, trace.weights_BTR.shape[-1] + 1)
        expected = (trace.weights_BTR * rounds_R).sum(-1)[tokens.keep_BT]
        executed = trace.executed_BTR.sum(-1).double()[tokens.keep_BT]
        assert bool(((expected > 1 - 1e-12) & (expected < executed + 1e-12)).all())
        assert int(executed.max()) <= model.stacks[name].plan.n_rounds
        if isinstance(halting, StickBreakingConfig):
            assert output.depth_cost is not None
            assert_equal(output.depth_cost, expected.mean(), "cost of depth")


# --- what runs -------------------------------------------------------------------------------------------------------


def small_model(halting: HaltingConfig, n_steps: int = 4, **stack: Any) -> Model:
    """Return a float64 language model of shared steps with far-off gates."""
    decoder = {"n_steps": n_steps, "self_attention": {"n_heads": 2, "share": "all"}, "ffn": {"d_ff": 6, "share": "all"}}
    decoder |= {"halting": halting.model_dump()} | stack
    config = {"d_model": 8, "dropout": 0.0, "vocab_size": 9, "decoder": decoder}
    return random_model(LanguageModelConfig.model_validate(config))


def text(n_sentences: int = 4, length: int = 7) -> Batch:
    make = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 9, (n_sentences, length), generator=make).tolist()
    return right_padded([Sentence(None, [BOS, *row[: length - i]]) for i, row in enumerate(ids)])


@pytest.mark.device(False)
@pytest.mark.parametrize("compaction", ["always", "never"])
@pytest.mark.parametrize("halting", [StickBreakingConfig(threshold=0.9), ActConfig(), LISTING])
def test_hooks_count_the_rounds_that_ran_and_the_tokens_that_ran_them(halting: HaltingConfig, compaction: str) -> None:
    """Where nothing is gathered away dense sub-layers run all columns, halted or not; experts run none of the others.

    The listing's halted states go on changing, so that there is nothing to gather away.
    """
    routed = {"kind": "experts", "d_ff": 6, "n_experts": 3, "top_k": 2, "share": "all"}
    batch = text()
    for ffn in ({"d_ff": 6, "share": "all"}, routed):
        model = small_model(halting, ffn=ffn)
        run_as(model, compaction=compaction)
        rows: list[int] = []
        chosen: list[int] = []

        def count(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            rows.append(args[0].shape[0])  # noqa: B023 (called before the next turn)
            if args[1] is not None:
                chosen.append(args[1].to.rows_M.shape[0])  # noqa: B023

        model.banks.ffn["decoder_0"].register_forward_hook(count)
        trace = model(batch).stacks["decoder"].halting
        assert trace is not None
        assert len(rows) == trace.executed_BTR.shape[-1] == int(trace.executed_BTR.sum(-1).max())
        executed = trace.executed_BTR.sum((0, 1)).tolist()
        is_gathered = compaction == "always" and halting is not LISTING
        assert rows == (executed if is_gathered else [batch.target.keep_BT.numel()] * len(executed))
        if ffn is routed:
            # The listing goes on computing tokens that have halted.
            n_real = int(batch.target.keep_BT.sum())
            assert chosen == [2 * (n_real if halting is LISTING else n) for n in executed]


# --- precision -------------------------------------------------------------------------------------------------------


def twice_under_autocast(halting: HaltingConfig, placement: str) -> tuple[Model, StackOutput]:
    """Return a float32 model, and what its stack makes in bfloat16 of sentences that stand in the batch twice."""
    model = small_model(halting, norm={"placement": placement}).float()
    for parameter in model.banks.halting.parameters():
        parameter.data *= 0.2  # of gates so far off, most would be 0 or 1
    run_as(model, compaction="never")  # at another place of a product a row may differ in its last bit
    target = text().target
    rows = [Sentence(None, ids[keep].tolist()) for ids, keep in zip(target.ids_BT, target.keep_BT, strict=True)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model, model(right_padded(rows * 2), request=("residual",)).stacks["decoder"]


GATES: list[HaltingConfig] = [StickBreakingConfig(threshold=0.99), ActConfig(), LISTING, ExitConfig(threshold=0.9)]


@pytest.mark.device(False)
@pytest.mark.parametrize("placement", ["post", "pre"])
@pytest.mark.parametrize("halting", [*GATES, SelectConfig(), TokenChoiceConfig()])
def test_probabilities_weights_and_costs_are_float32_under_autocast_and_equal_sentences_halt_alike(
    halting: HaltingConfig, placement: str
) -> None:
    _, output = twice_under_autocast(halting, placement)
    trace = output.halting
    assert trace is not None
    assert output.depth_cost is not None
    for value in (trace.probs_BTR, trace.remaining_BTR, trace.weights_BTR, output.depth_cost):
        assert value.dtype == torch.float32
    assert trace.executed_BTR.shape[-1] > 1
    for value in (trace.probs_BTR, trace.weights_BTR, trace.executed_BTR):
        first, second = value.chunk(2)
        assert torch.equal(first, second)


@pytest.mark.device(False)
@pytest.mark.parametrize("placement", ["post", "pre"])
@pytest.mark.parametrize("halting", GATES)
def test_gates_are_those_of_float32_under_autocast(halting: HaltingConfig, placement: str) -> None:
    model, output = twice_under_autocast(halting, placement)
    trace = output.halting
    assert trace is not None
    unit = model.banks.halting["decoder"]
    n_rounds = trace.executed_BTR.shape[-1]
    assert n_rounds > 1
    for r in range(n_rounds - 1):
        left_BTD = output.captures["decoder", r, "ffn", "residual"].float()
        # ACT asks before a round, of the state that left the one before; the others after it.
        is_act = isinstance(halting, ActConfig)
        gates_BT = unit(left_BTD)[1].exp() if isinstance(halting, StickBreakingConfig) else unit(left_BTD)
        runs_BT = trace.executed_BTR[..., r + 1 if is_act else r]
        torch.testing.assert_close(trace.probs_BTR[..., r + is_act][runs_BT], gates_BT[runs_BT], rtol=0, atol=0)


@pytest.mark.device(False)
def test_routers_of_rounds_score_in_float32_under_autocast() -> None:
    torch.manual_seed(0)
    routers, states_BTD = Routers(8, 3), torch.randn(2, 5, 8)
    plain = routers(1, states_BTD), routers.of_all(states_BTD)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = routers(1, states_BTD), routers.of_all(states_BTD)
    for found, wanted in zip(cast, plain, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
