from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from routed_models import tiny_batches, tiny_model
from tiny_runs import tiny_recipe
from torch.multiprocessing.reductions import StorageWeakRef

from ostinato.config.model import LanguageModelConfig
from ostinato.config.training import RoundLossConfig
from ostinato.data.batch import Batch
from ostinato.data.collate import Row, collate
from ostinato.models import build_model, losses
from ostinato.models.losses import LossSums, label_smoothed_loss
from ostinato.training import update
from ostinato.training.optim import build_optimizer


def _by_hand(logits: torch.Tensor, label: int, eps: float) -> tuple[float, float]:
    """Loss and plain loss of one label, term by term."""
    total = sum(math.exp(x) for x in logits.tolist())
    log_probs = [x - math.log(total) for x in logits.tolist()]
    target = [eps / len(log_probs) + (1 - eps if i == label else 0.0) for i in range(len(log_probs))]
    return -sum(t * p for t, p in zip(target, log_probs, strict=True)), -log_probs[label]


@pytest.mark.parametrize("eps", [0.0, 0.1, 0.7])
def test_the_loss_is_the_cross_entropy_with_a_target_smoothed_over_the_whole_vocabulary(eps: float) -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 3, 5) * 3, torch.randint(0, 5, (2, 3))
    counts = torch.tensor([[True, True, False], [True, False, False]])
    sums = label_smoothed_loss(logits, labels, counts, eps)
    expected = [_by_hand(logits[b, t], int(labels[b, t]), eps) for b, t in counts.nonzero().tolist()]
    assert sums.loss.item() == pytest.approx(sum(loss for loss, _ in expected), rel=1e-6)
    assert sums.nll.item() == pytest.approx(sum(nll for _, nll in expected), rel=1e-6)


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_labels_that_do_not_count_change_neither_the_loss_nor_the_gradient(eps: float) -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(1, 4, 6), torch.tensor([[1, 2, 0, 0]])
    counts = torch.tensor([[True, True, False, False]])
    found = []
    for replaced in (labels, torch.tensor([[1, 2, 5, 3]])):
        leaf = logits.clone().requires_grad_()
        sums = label_smoothed_loss(leaf, replaced, counts, eps)
        sums.loss.backward()
        assert leaf.grad is not None
        found.append((sums.loss.item(), sums.nll.item(), leaf.grad))
    assert found[0][:2] == found[1][:2]
    assert torch.equal(found[0][2], found[1][2])
    assert not found[0][2][:, 2:].any()


def test_the_loss_of_bfloat16_logits_is_computed_in_float32() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(4, 8, 50).bfloat16(), torch.randint(0, 50, (4, 8))
    counts = torch.ones(4, 8, dtype=torch.bool)
    sums = label_smoothed_loss(logits, labels, counts, 0.1)
    exact = label_smoothed_loss(logits.double().float(), labels, counts, 0.1)
    assert sums.loss.dtype == torch.float32
    assert sums.loss.item() == exact.loss.item()


@pytest.mark.parametrize("round_loss", ["last", "exit"])
def test_the_loss_of_a_model_in_float64_is_of_float64(round_loss: str) -> None:
    stack = {"n_steps": 2, "self_attention": {"n_heads": 2, "share": "all"}, "ffn": {"d_ff": 8, "share": "all"}}
    stack |= {"halting": {"kind": "exit"}} if round_loss == "exit" else {}
    config = {"d_model": 8, "dropout": 0.0, "vocab_size": 9, "decoder": stack}
    torch.manual_seed(0)
    model = build_model(LanguageModelConfig.model_validate(config)).double()
    batch = Batch.from_lists([[4, 5, 6], [7, 8]])
    loss = model.loss(batch, label_smoothing=0.1, round_loss=RoundLossConfig(kind=round_loss))
    loss.backward()
    bias = model.banks.ffn["decoder_0"].up.bias
    wanted, step = bias.grad.clone(), 1e-5
    for place in range(len(bias)):
        near = []
        for sign in (1, -1):
            with torch.no_grad():
                bias[place] += sign * step
                near.append(model.loss(batch, label_smoothing=0.1, round_loss=RoundLossConfig(kind=round_loss)))
                bias[place] -= sign * step
        assert float(near[0] - near[1]) / (2 * step) == pytest.approx(float(wanted[place]), abs=1e-9)


def test_only_the_smoothed_loss_carries_a_gradient() -> None:
    logits = torch.zeros(1, 1, 3, requires_grad=True)
    sums = label_smoothed_loss(logits, torch.tensor([[1]]), torch.tensor([[True]]), 0.1)
    assert sums.loss.requires_grad
    assert not sums.nll.requires_grad


def test_accumulated_batches_give_the_gradient_of_one_large_batch(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path)
    sizes = {"source_vocab_size": 9, "target_vocab_size": 9, "dropout": 0.0}
    quiet = recipe.model.model_dump() | sizes
    for stack in ("encoder", "decoder"):
        quiet[stack]["ffn"]["dropout"] = 0.0
    torch.manual_seed(0)
    model = build_model(type(recipe.model).model_validate(quiet)).double()
    generator = torch.Generator().manual_seed(1)
    rows = [
        Row(
            torch.randint(4, 9, (n,), generator=generator).tolist(),
            torch.randint(4, 9, (n,), generator=generator).tolist(),
        )
        for n in (1, 2, 2, 9, 4, 5)
    ]
    config = recipe.training.model_copy(update={"label_smoothing": 0.1})
    updater, gradients = update.Updater(model, build_optimizer(model, config.optimizer), config), []
    for groups in ([rows], [rows[:1], rows[1:4], rows[4:]]):
        model.zero_grad()
        n_labels = updater.accumulate([collate(group) for group in groups]).n_labels
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert n_labels == sum(len(row.target_ids) + 1 for row in rows)
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_logits_are_gone_when_the_backward_pass_begins(
    smoothing: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits: list[StorageWeakRef] = []
    gone: list[bool] = []

    def noted(logits_BTV: torch.Tensor, *rest: Any) -> LossSums:
        logits.append(StorageWeakRef(logits_BTV.untyped_storage()))
        sums = label_smoothed_loss(logits_BTV, *rest)
        sums.loss.register_hook(lambda _: gone.append(logits[-1].expired()))
        return sums

    monkeypatch.setattr(losses, "label_smoothed_loss", noted)
    recipe = tiny_recipe(tmp_path)
    model, config = tiny_model(recipe), recipe.training.model_copy(update={"label_smoothing": smoothing})
    update.Updater(model, build_optimizer(model, config.optimizer), config).accumulate(tiny_batches())
    assert gone
    assert all(gone)
