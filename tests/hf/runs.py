"""Runs that were never trained, of small models with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import ostinato
from ostinato.data.example import Example
from ostinato.data.tokenizers import Tokenizers
from ostinato.evaluation.loading import LoadedRun
from ostinato.interop.pretrained import Pretrained
from ostinato.models import build_model
from ostinato.training.imported import write_run
from ostinato.training.prepare import _with_vocabulary
from ostinato.training.rundir import RunDirectory

TEXTS = [f"{first} {second} {third} the old man and the sea," for first, second, third in
         zip("abcdef", ["one", "two", "three", "four", "five", "six"], "uvwxyz", strict=True)]  # fmt: skip

_SIZES = ["model.d_model=16", "model.dropout=0.0", "decoding.max_length=12"]
_HALVES = ["self_attention: {n_heads: 2, share: all}", "ffn: {d_ff: 24, share: all}"]
_LOOPED = "n_steps: 4, " + ", ".join(_HALVES)
_MIXED = (
    "n_steps: 3, self_attention: {n_heads: 2, share: all}, "
    "ffn: {kind: experts, n_experts: 4, top_k: 2, d_ff: 8, share: all, activation: relu}"
)
RUNS: dict[str, tuple[str, list[str]]] = {
    "language-model": ("lm/transformer", ["model.decoder={n_steps: 2, self_attention: {n_heads: 2}, ffn: {d_ff: 24}}"]),
    "looped": ("lm/transformer", [f"model.decoder={{{_LOOPED}}}", "data.tokenizer={kind: words}"]),
    "halting": ("lm/transformer", [f"model.decoder={{{_LOOPED}, halting: {{kind: act, initial_bias: -1.0}}}}",
                                   "data.tokenizer={kind: words}", "training.halting.weight=0.01"]),
    "experts": ("lm/transformer", [f"model.decoder={{{_MIXED}, halting: {{kind: stick_breaking}}}}",
                                   "data.tokenizer={kind: words}", "training.balance.switch=0.1"]),
    "pairs": ("transformer/base", ["data.tokenizer={kind: words}", "data.max_source_length=64",
                                   "model.output={bias: true}", "model.tie_embeddings=none",
                                   "decoding={strategy: beam, beam: 4, length_penalty: {kind: exponent, alpha: 1.0}, "
                                   "max_length_ratio: 0.0}", f"model.encoder={{{_LOOPED}}}",
                                   f"model.decoder={{{_LOOPED}, halting: {{kind: act, initial_bias: -1.0}}, "
                                   "cross_attention: {n_heads: 2, share: all}}"]),
    "masked": ("masked/small", [f"model.encoder={{{_LOOPED}}}", "data.tokenizer={kind: words}",
                                "model.n_token_types=2"]),
}  # fmt: skip
_READER = f"model.encoder={{{_LOOPED}, halting: {{kind: act, initial_bias: -1.0}}}}"
HEADS = {
    "classification": ("classification/small", [_READER]),
    "tagging": ("tagging/small", [_READER]),
    "span": ("span-extraction/small", [_READER]),
}
"""Of encoders with a head for labels."""


def labelled(name: str) -> list[Example]:
    """Return examples of a head: a text or a pair with its label, words with theirs, an answer in a passage."""
    texts = [" ".join(text.split()[: 8 - i % 3]) for i, text in enumerate(TEXTS)]
    pairs = list(zip(texts, [*texts[1:], texts[0]], strict=True))
    if name == "classification":
        return [Example(f"{one}\t{two}" if i % 2 else one, "abc"[i % 3]) for i, (one, two) in enumerate(pairs)]
    if name == "tagging":
        return [Example(one, " ".join("BIO"[len(word) % 3] for word in one.split())) for one in texts]
    return [Example(f"{one.split()[1]} is where\t{two}", " ".join(two.split()[i % 4 : i % 4 + 2]))
            for i, (one, two) in enumerate(pairs)]  # fmt: skip


def make_run(name: str, folder: Path, *more: str) -> LoadedRun:
    """Write a run into a folder and load it."""
    base, settings = (RUNS | HEADS)[name]
    is_encoder = name == "masked" or name in HEADS
    sizes = _SIZES[: 2 if is_encoder else 3]
    recipe = ostinato.load_recipe(base, [*sizes, *settings, *more])
    pairs = recipe.model.reads == "pair"
    examples = labelled(name) if name in HEADS else [Example(text if pairs else None, text) for text in TEXTS]
    tokenizers = Tokenizers.train(recipe.data, examples, recipe.model.reads)
    recipe = _with_vocabulary(recipe, tokenizers)
    torch.manual_seed(5)
    model: Any = build_model(recipe.model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        if pairs:  # outputs differ, and end
            model.output_projection.normal_(std=0.25)
            if model.output_bias is not None:
                model.output_bias[2] += 2.5
    write_run(Pretrained(recipe, model.eval(), tokenizers), RunDirectory(folder), {})
    return ostinato.load(folder)


def auto(run: LoadedRun) -> Any:
    """Return the class of transformers that reads a run's exported folder."""
    import transformers

    name = {
        "pair": "Seq2SeqLM",
        "sequence": "CausalLM",
        "masked": "MaskedLM",
        "classification": "SequenceClassification",
        "tagging": "TokenClassification",
        "span": "QuestionAnswering",
    }[run.model.config.reads]
    return getattr(transformers, f"AutoModelFor{name}")


def ids_of(run: LoadedRun, n: int = 3, length: int = 7) -> Tensor:
    """Return random ids of ordinary tokens, the same ones in every call."""
    size = min(run.tokenizers.source.vocab_size, run.tokenizers.target.vocab_size)
    return torch.randint(4, size, (n, length), generator=torch.Generator().manual_seed(2))


def padded(ids: Tensor, side: str) -> tuple[Tensor, Tensor]:
    """Return ids of which row i has i columns of padding on a side, and their mask."""
    T = ids.shape[1]
    mask = torch.stack([torch.arange(T) >= i for i in range(len(ids))])
    mask = mask if side == "left" else mask.flip(1)
    return ids.masked_fill(~mask, 0), mask
