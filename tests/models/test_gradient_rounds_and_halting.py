"""The gradient of the last rounds does not depend on whether rows that halted before them were gathered away."""

from __future__ import annotations

import torch

from ostinato.config.halting import ActConfig
from ostinato.config.model import LanguageModelConfig
from ostinato.config.stack import StackConfig
from ostinato.models import build_model


def test_keys_of_rows_that_halted_without_a_gradient_are_made_again() -> None:
    torch.manual_seed(0)
    stack = StackConfig(n_steps=4, self_attention={"n_heads": 2, "share": "all"}, ffn={"d_ff": 16, "share": "all"},
                        halting=ActConfig(epsilon=0.1, initial_bias=0.5))  # fmt: skip
    model = build_model(LanguageModelConfig(d_model=8, vocab_size=20, dropout=0.0, decoder=stack)).train()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    ids, gradients = torch.randint(4, 20, (3, 7)), []
    for compaction in ("always", "never"):
        model.zero_grad()
        with model.execution(compaction=compaction, gradient_rounds=2):
            output = model(ids)
        output.logits_BTV.square().sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    trace = output.stacks["decoder"].halting
    assert trace is not None
    depths = trace.executed_BTR.sum(-1)
    assert int(depths.min()) < 3 <= int(depths.max())
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[1].items():
        torch.testing.assert_close(
            gradients[0][name], gradient, atol=1e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )
