"""What README.md and docs/python.md do, as a program that `mypy --strict` accepts; see test_wheel.py."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import assert_type

import torch

import ostinato as o


def trained(folder: Path) -> o.LoadedRun:
    overrides = ["task.n_train=100", "training.n_updates=2", "model.d_model=16", "evaluation.max_examples=4"]
    results = o.train(o.load_recipe("algorithmic/reverse-universal", overrides), folder / "run")
    score: float = results["splits"]["long"]["exact_match"]
    assert 0 <= score <= 1
    return o.load(folder / "run")


def used(run: o.LoadedRun) -> None:
    outputs = run.generate(["3 1 4 1 5"], beam=2, max_length=4)
    assert_type(outputs, list[str])
    found = run.evaluate("long", n_steps=3, max_examples=4, max_length=4)
    accuracy: float = found["token_accuracy"]
    assert len(outputs) == 1
    assert 0 <= accuracy <= 1


def shared_over_depth() -> o.StackConfig:
    attention, ffn = o.AttentionConfig(n_heads=4, share="all"), o.DenseFeedForwardConfig(d_ff=64, share="all")
    return o.StackConfig(n_steps=2, self_attention=attention, ffn=ffn)


def looped() -> o.StackConfig:
    """Return a prelude and a loop, with a part of nearly every sort given as a class."""
    loop = o.SegmentConfig(
        repeats=3, inject=o.LinearInjectionConfig(), state=o.NoiseStateConfig(), modulation=o.ByRoundModulationConfig()
    )
    return o.StackConfig(
        n_steps=2,
        segments=[o.SegmentConfig(), loop],
        self_attention=o.AttentionConfig(n_heads=4),
        ffn=o.ExpertFeedForwardConfig(d_ff=8, router=o.MlpRouterConfig(), gate=o.GateConfig()),
        norm=o.NormConfig(placement="pre"),
        positions=o.NoSignalConfig(),
        relative=o.RotaryConfig(scaling=o.LinearScalingConfig()),
        value_embeddings=o.ValueEmbeddingsConfig(),
        halting=o.ExitConfig(),
    )


def language_model(decoder: o.StackConfig) -> torch.Tensor:
    model = o.build_model(o.LanguageModelConfig(d_model=32, vocab_size=20, decoder=decoder)).eval()
    ids = torch.randint(4, 20, (2, 7))
    deeper = model(ids, n_steps=8)
    assert_type(deeper, o.ModelOutput)
    with model.execution(rounds={"decoder": 1}):
        return model(ids).logits_BTV - deeper.logits_BTV


def pairs(n: int) -> tuple[list[list[int]], list[list[int]]]:
    sources = [[random.randint(4, 9) for _ in range(random.randint(1, 4))] for _ in range(n)]
    return [ids[::-1] for ids in sources], sources


def own_loop(folder: Path) -> list[list[int]]:
    encoder = shared_over_depth()
    ffn, attention = encoder.ffn, o.AttentionConfig(n_heads=4)
    decoder = o.DecoderConfig(n_steps=2, self_attention=attention, ffn=ffn, cross_attention=attention)
    ids = o.SpecialIds(pad=3, bos=0, eos=1)
    config = o.Seq2SeqConfig(
        encoder=encoder, decoder=decoder, special_ids=ids, d_model=32, source_vocab_size=10, target_vocab_size=10
    )
    model = o.build_model(config)
    o.keep_freed_memory()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, fused=True)
    for _ in range(2):
        loss = model.loss(o.Batch.from_lists(*pairs(8), special_ids=ids), label_smoothing=0.1)
        assert_type(loss, torch.Tensor)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # of torch, whose method has no types
        optimizer.step()
    o.save_model(model, folder / "model")
    read = o.Batch.from_lists(*pairs(3), special_ids=ids).source
    assert read is not None
    return o.load_model(folder / "model").generate(read.ids_BT, read.keep_BT, beam=2, max_length=4)


def main(folder: Path) -> None:
    used(trained(folder))
    for decoder in (shared_over_depth(), looped()):
        assert language_model(decoder).abs().max() > 0
    assert len(own_loop(folder)) == 3


if __name__ == "__main__":
    main(Path(sys.argv[1]))
