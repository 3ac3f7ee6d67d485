"""A parameter set that serves both stacks is one object, in everything that is done with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from architectures import Sentence, right_padded
from ostinato.budget import count_parameters
from ostinato.config.model import Seq2SeqConfig
from ostinato.config.stack import DecoderConfig, StackConfig
from ostinato.config.sub_layers import DenseFeedForwardConfig
from ostinato.config.training import OptimizerConfig
from ostinato.models import build_model, load_model, parts, save_model
from ostinato.nn.feedforward import FeedForward
from ostinato.training.optim import build_optimizer

N_ENCODER, N_DECODER = 3, 2


def shared_enc_dec() -> Seq2SeqConfig:
    ffn = DenseFeedForwardConfig(d_ff=12)
    return Seq2SeqConfig(
        d_model=8,
        dropout=0.0,
        source_vocab_size=9,
        target_vocab_size=9,
        encoder=StackConfig(n_steps=N_ENCODER, ffn=ffn),
        decoder=DecoderConfig(n_steps=N_DECODER, ffn=ffn),
        ffn_variant="shared-enc-dec",
    )


def feed_forwards(model: torch.nn.Module) -> list[FeedForward]:
    return [module for module in model.modules() if isinstance(module, FeedForward)]


def test_it_is_made_and_initialised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FeedForward] = []
    real = parts.init_feed_forward
    monkeypatch.setattr(parts, "init_feed_forward", lambda ffn, *rest: (made.append(ffn), real(ffn, *rest)))
    model = build_model(shared_enc_dec())
    assert made == feed_forwards(model)
    assert len(made) == 1
    assert model.n_parameters() == count_parameters(shared_enc_dec()).stored


def test_its_gradient_is_the_sum_over_its_uses() -> None:
    torch.manual_seed(0)
    model = build_model(shared_enc_dec()).double()
    batch = right_padded([Sentence([4, 5, 6, 2], [1, 7, 8]), Sentence([4, 2], [1, 5])])
    seen: list[torch.Tensor] = []
    shared = feed_forwards(model)[0].up.weight
    hook = feed_forwards(model)[0].up.register_full_backward_hook(
        lambda module, grad_in, grad_out: seen.append(grad_out[0].flatten(0, -2))
    )
    inputs: list[torch.Tensor] = []
    feed_forwards(model)[0].up.register_forward_pre_hook(lambda module, args: inputs.append(args[0].flatten(0, -2)))
    model(batch).logits_BTV.square().sum().backward()
    hook.remove()
    assert len(seen) == len(inputs) == N_ENCODER + N_DECODER
    by_hand = sum(grad.T @ x for grad, x in zip(seen, reversed(inputs), strict=True))
    assert shared.grad is not None
    torch.testing.assert_close(shared.grad, by_hand)


def test_it_is_optimised_and_clipped_once() -> None:
    model = build_model(shared_enc_dec())
    optimizer = build_optimizer(model, OptimizerConfig(lr=0.1))
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(held) == len({id(p) for p in held}) == len(list(model.parameters()))
    for parameter in held:
        parameter.grad = torch.ones_like(parameter)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert norm.item() == pytest.approx(count_parameters(shared_enc_dec()).stored ** 0.5)


def test_it_is_saved_once_and_is_one_object_again_after_loading(tmp_path: Path) -> None:
    model = build_model(shared_enc_dec())
    save_model(model, tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        names = [name for name in file.keys() if ".ffn." in name]  # noqa: SIM118
    assert sorted(names) == [
        f"banks.ffn.both_0.{part}.{what}" for part in ("down", "up") for what in ("bias", "weight")
    ]
    loaded = load_model(tmp_path)
    [ffn] = feed_forwards(loaded)
    with torch.no_grad():
        ffn.up.weight.zero_()
    assert all(stack.banks.ffn["both_0"] is ffn for stack in loaded.stacks.values())
