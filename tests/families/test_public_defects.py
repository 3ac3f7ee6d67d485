"""What is right where public code of a family is wrong, as docs/families.md says, and no other test shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from equations import ouro
from torch import Tensor
from twins import PLAIN, ROUTED, Twin, V, drawn_ids, eight_rows, weights

from ostinato.config.training import DepthCostConfig, RoundLossConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.models import Model


def loss_of(model: Model, ids: Tensor) -> tuple[Batch, Callable[[Tensor], Tensor]]:
    """Return a batch that predicts the next token, and the summed cross-entropy of logits with it."""
    keep = torch.ones_like(ids[:, 1:], dtype=torch.bool)
    batch = Batch(Tokens(ids[:, :-1], keep), ids[:, 1:], keep)
    return batch, lambda logits: F.cross_entropy(logits.flatten(0, 1), batch.labels_BT.flatten(), reduction="sum")


def count_rows(model: Model, name: str) -> list[int]:
    """Return a list to which every call of a feed-forward adds the number of rows that it is given."""
    rows: list[int] = []
    model.banks.ffn[name].register_forward_hook(lambda module, args, output: rows.append(args[0].shape[:-1].numel()))
    return rows


def test_huginns_noise_is_the_same_in_every_call_behind_padding_and_with_a_cache() -> None:
    twin = Twin("looped/huginn-toy", ouro)
    model, (batch, rows) = twin.model(), eight_rows("left")
    with torch.no_grad():
        among = model(batch).logits_BTV
        assert torch.equal(model(batch).logits_BTV, among)
        for ids, keep, found in zip(rows, batch.target.keep_BT, among, strict=True):
            torch.testing.assert_close(model(ids).logits_BTV[0], found[keep], rtol=0, atol=1e-10)
        ids = rows[0]
        keep = torch.ones_like(ids, dtype=torch.bool)
        cache = model.encode(Batch(Tokens(ids, keep), ids, keep))
        steps = torch.stack([model.step(ids[:, t : t + 1], cache) for t in range(ids.shape[1])], 1)
        torch.testing.assert_close(steps, model(ids).logits_BTV, rtol=0, atol=1e-10)
        # And a configured state is the one that is used.
        assert float((PLAIN["huginn"].model()(ids).logits_BTV - model(ids).logits_BTV).abs().max()) > 0.1
        # The head reads the embeddings: there is one table.
        assert [name for name, x in model.named_parameters() if x.shape == (V, 32)] == ["target_weight"]


def test_ouros_loss_is_the_expected_one_not_that_of_mixed_logits() -> None:
    model, ids = PLAIN["ouro"].model(), drawn_ids()
    batch, summed = loss_of(model, ids)
    found = model.loss(batch, halting=DepthCostConfig(weight=0.1), round_loss=RoundLossConfig(kind="exit"))
    states = model(batch, request=["rounds"]).stacks["decoder"].left
    gates = torch.sigmoid(torch.cat([model.banks.halting["decoder"].map(h) for h in states], -1))
    left, p = torch.ones_like(gates[..., 0]), []
    for r in range(3):
        p.append(left * gates[..., r])
        left = left * (1 - gates[..., r])
    p_BTR = torch.stack([*p, left], -1)
    logits = [ouro(weights(model), batch.target.ids_BT, r + 1) for r in range(4)]
    expected = sum(
        (
            p_BTR[..., r].flatten() * F.cross_entropy(one.flatten(0, 1), batch.labels_BT.flatten(), reduction="none")
        ).sum()
        for r, one in enumerate(logits)
    )
    entropy = -(p_BTR * p_BTR.log()).sum(-1).mean()
    torch.testing.assert_close(found.double(), (expected / batch.n_labels - 0.1 * entropy).double(), rtol=1e-6, atol=0)
    mixed = summed(sum(p_BTR[..., r : r + 1] * one for r, one in enumerate(logits))) / batch.n_labels
    assert abs(float((mixed - expected / batch.n_labels).detach())) > 0.01


@pytest.mark.parametrize("threshold", [0.3, 0.6])
def test_tokens_of_ouro_that_stop_are_computed_no_more(threshold: float) -> None:
    model, ids = PLAIN["ouro"].model(), drawn_ids()
    rows = count_rows(model, "decoder_0")
    with torch.no_grad(), model.execution(halting_threshold=threshold, compaction="always"):
        executed = model(ids).stacks["decoder"].halting.executed_BTR
    assert sum(rows) == int(executed.sum()) < 4 * ids.numel()


def test_parcaes_number_of_rounds_is_the_plans_outside_training_and_nothing_is_left_of_a_call() -> None:
    model, ids = PLAIN["parcae"].model(), drawn_ids()
    rows = count_rows(model, "decoder_2")
    with torch.no_grad():
        found = model(ids).logits_BTV
        assert len(rows) == 8
        # Values are of the tokens of a call: those of another one change nothing.
        model(ids.flip(1))
        assert torch.equal(model(ids).logits_BTV, found)


def test_loopformer_gives_logits_of_all_columns_without_labels() -> None:
    ids = drawn_ids()
    with torch.no_grad():
        assert PLAIN["loopformer"].model()(ids).logits_BTV.shape == (*ids.shape, V)


def test_mixture_of_recursions_runs_as_few_rounds_in_decoding_as_at_once() -> None:
    """Of one column, the largest third is the column itself: the public code gives every token all rounds."""
    model, ids = ROUTED["mixture of recursions"].model(), drawn_ids()
    rows = count_rows(model, "decoder_1")
    with torch.no_grad(), model.execution(compaction="always"):
        executed = model(ids).stacks["decoder"].halting.executed_BTR
        assert sum(rows) == int(executed.sum()) < 3 * ids.numel()
        at_once, keep = sum(rows), torch.ones_like(ids, dtype=torch.bool)
        rows.clear()
        cache = model.encode(Batch(Tokens(ids, keep), ids, keep))
        for t in range(ids.shape[1]):
            model.step(ids[:, t : t + 1], cache)
    assert sum(rows) == at_once


@pytest.mark.parametrize("name", ["cotformer", "ln-cotformer"])
def test_a_cotformer_without_router_has_no_parameter_that_learns_nothing(name: str) -> None:
    model = PLAIN[name].model()
    model(drawn_ids()).logits_BTV.square().sum().backward()
    idle: list[Any] = [key for key, x in model.named_parameters() if x.grad is None or not x.grad.any()]
    assert not idle
