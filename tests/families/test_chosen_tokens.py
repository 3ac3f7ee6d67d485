"""Models in which a router chooses the tokens of a round: what no comparison with their twins (test_twins.py) shows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from twins import BY_TOKEN, ROUTED, V, drawn_ids, in_training

from ostinato.config.model import LanguageModelConfig
from ostinato.config.stack import StackConfig
from ostinato.config.training import DepthCostConfig
from ostinato.data.batch import Batch
from ostinato.errors import ConfigError
from ostinato.models import Model, build_model
from ostinato.nn.execution import Execution
from ostinato.tasks.recipes import load_recipe

MODES = ["training", "evaluation"]


def model_of(name: str, mode: str) -> Model:
    """Return a model with weights that hide nothing, and routers that choose some."""
    twin = ROUTED[name]
    return (in_training(twin) if mode == "training" else twin).model()


@pytest.fixture
def ids() -> Tensor:
    return drawn_ids()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ROUTED)
def test_tokens_take_part_in_different_numbers_of_rounds_and_routers_learn(name: str, mode: str, ids: Tensor) -> None:
    model = model_of(name, mode)
    output = model(ids)
    stack = output.stacks["decoder"]
    executed = stack.halting.executed_BTR.sum(-1)
    assert int(executed.min()) < int(executed.max())
    (output.logits_BTV.square().sum() + stack.depth_cost).backward()
    assert float(model.banks.halting["decoder"].weight_RD.grad.abs().max()) > 0


@pytest.mark.parametrize("name", ROUTED)
def test_outside_training_no_token_depends_on_a_later_one(name: str, ids: Tensor) -> None:
    changed = ids.clone()
    changed[:, 8:] = (ids[:, 8:] - 3 + 17) % (V - 3) + 3
    with torch.no_grad():
        model = model_of(name, "evaluation")
        before, after = model(ids).logits_BTV, model(changed).logits_BTV
        torch.testing.assert_close(after[:, :8], before[:, :8], rtol=0, atol=1e-12)
        assert float((after[:, 8:] - before[:, 8:]).abs().max()) > 0.1
        # In training the best of a sentence are known only at its end; a token that chooses for itself knows at once.
        model.train()
        is_other = (
            model(changed).stacks["decoder"].halting.executed_BTR != model(ids).stacks["decoder"].halting.executed_BTR
        )
        assert bool(is_other[:, :8].any()) != (name == BY_TOKEN)
        if name == BY_TOKEN:
            torch.testing.assert_close(model(changed).logits_BTV[:, :8], before[:, :8], rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_a_round_runs_as_many_rows_as_it_has_chosen(mode: str, ids: Tensor) -> None:
    model, rows = model_of("mixture of recursions", mode), list[int]()
    model.banks.ffn["decoder_1"].register_forward_hook(lambda module, args, output: rows.append(args[0].shape[0]))
    with model.execution(compaction="always"):
        executed = model(ids).stacks["decoder"].halting.executed_BTR
    assert rows == executed.sum((0, 1)).tolist()
    assert rows[0] == ids.numel()
    if mode == "training":
        assert rows == [36, 24, 12]


def test_capacities_shrink_with_what_routers_leave_out(ids: Tensor) -> None:
    model = model_of("mixture of recursions", "training")
    chosen = {}
    for left_out in (0.0, 0.5, 1.0):
        with model.execution(left_out=left_out):
            chosen[left_out] = model(ids).stacks["decoder"].halting.executed_BTR.sum((0, 1)).tolist()
    assert chosen == {0.0: [36, 36, 36], 0.5: [36, 30, 24], 1.0: [36, 24, 12]}
    with model.eval().execution(left_out=0.0):  # outside training a threshold decides
        assert model(ids).stacks["decoder"].halting.executed_BTR.sum() < 3 * ids.numel()


def test_a_share_of_the_tokens_that_is_a_whole_number_is_that_number() -> None:
    stack = StackConfig.model_validate(
        {"n_steps": 2, "self_attention": {"n_heads": 1, "share": "all"}, "ffn": {"d_ff": 4, "share": "all"}}
        | {"halting": {"kind": "select", "capacities": [1.0, 0.53]}}
    )
    model = build_model(LanguageModelConfig(d_model=4, vocab_size=9, decoder=stack))
    executed = model(torch.randint(3, 9, (2, 100))).stacks["decoder"].halting.executed_BTR
    assert executed.sum(1).tolist() == [[100, 53]] * 2, "in float32 0.53 times 100 is 52.999996"


def test_an_update_has_the_capacity_of_its_place_in_the_warm_up(ids: Tensor) -> None:
    model, batch = model_of("mixture of recursions", "training"), Batch.from_lists([row.tolist() for row in ids])
    config, losses = DepthCostConfig(capacity_warmup=4), []
    for update in (2, 4):
        with torch.no_grad():
            losses.append(float(model.loss(batch, update=update, halting=config)))
        with torch.no_grad(), model.execution(left_out=config.left_out_at(update)):
            output = model(batch)
            expected = F.cross_entropy(output.logits_BTV.flatten(0, 1), batch.labels_BT.flatten())
        assert losses[-1] == pytest.approx(float(expected), rel=1e-6)
    assert losses[0] != losses[1]


@pytest.mark.parametrize("mode", MODES)
def test_rounds_that_choose_anew_run_the_chosen_rows_and_give_what_all_rows_would(mode: str, ids: Tensor) -> None:
    model, rows, found = model_of("mixture of depths", mode), dict[str, list[int]](), list[Tensor]()
    for at in (1, 3):
        model.banks.ffn[f"decoder_{at}"].register_forward_hook(lambda _, args, out: rows[way].append(args[0].shape[0]))
    for way in ("always", "never"):
        rows[way] = []
        model.zero_grad()
        with model.execution(compaction=way):  # type: ignore[arg-type]
            output = model(ids)
        output.logits_BTV.square().sum().backward()
        found += [output.logits_BTV, *(p.grad for p in model.parameters() if p.grad is not None)]
    trace = output.stacks["decoder"].halting
    assert rows["always"] == trace.executed_BTR[..., 1::2].sum((0, 1)).tolist()
    assert rows["never"] == [36, 36]
    assert mode == "evaluation" or rows["always"] == [3, 3]
    for gathered, masked in zip(found[: len(found) // 2], found[len(found) // 2 :], strict=True):
        torch.testing.assert_close(gathered, masked, rtol=0, atol=1e-10)


def test_a_lower_threshold_leaves_more_tokens_out(ids: Tensor) -> None:
    model = model_of("mixture of recursions", "evaluation")
    depths = []
    for threshold in (0.0, 0.3, 0.5, 0.7, 1.0):
        with torch.no_grad(), model.execution(halting_threshold=threshold):
            depths.append(float(model(ids).stacks["decoder"].halting.executed_BTR.sum(-1).double().mean()))
    assert depths == sorted(depths)
    assert depths[0] == 1
    assert depths[-1] == 3
    with torch.no_grad(), model.execution(halting=False):
        torch.testing.assert_close(model(ids).logits_BTV, at_threshold(model, ids, 1.0), rtol=0, atol=1e-12)


def test_what_a_router_that_chooses_tokens_does_not_go_with_is_refused(ids: Tensor) -> None:
    model = model_of("mixture of recursions", "evaluation")
    with pytest.raises(ConfigError, match="routers choose the tokens of every round"):
        model(ids, execution=Execution(exit="change", halting_threshold=0.9))
    for settings, reason in (
        ("halting={kind: select, capacities: [0.5]}", "the first round takes all tokens"),
        ("halting={kind: select, capacities: [null, null]}", "no round has a router"),
        ("halting={kind: select, capacities: [1.0, 0.5, 0.4, 0.3]}", "more numbers than the stack has rounds, 3"),
        ("ffn={kind: separable_conv}", "reads its neighbours"),
    ):
        with pytest.raises(ConfigError, match=reason):
            load_recipe("looped/mor-toy", [f"model.decoder.{settings}"])


def test_more_rounds_than_routers_have_the_last_one(ids: Tensor) -> None:
    model = model_of("mixture of recursions", "evaluation")
    before = model(ids, n_steps=5).logits_BTV
    with torch.no_grad():
        model.banks.halting["decoder"].weight_RD[2].mul_(-1)
    assert float((model(ids, n_steps=5).logits_BTV - before).detach().abs().max()) > 1e-3
    assert model.banks.halting["decoder"].weight_RD.shape == (3, 32)


def at_threshold(model: Model, ids: Tensor, threshold: float) -> Tensor:
    """Return the logits at a threshold."""
    with model.execution(halting=True, halting_threshold=threshold):
        return model(ids).logits_BTV  # type: ignore[no-any-return]
