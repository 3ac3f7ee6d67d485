"""Public decoders of the same sizes: CTranslate2 on our own weights, transformers and x-transformers on random ones.

Every one answers the same number of sentences with the same number of new tokens, its encoder included. CTranslate2
runs our model's weights, so that its outputs must be ours, token by token.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from layers import Absent, Contestant, of_package
from torch import Tensor

from ostinato.data.tokenizer import BOS_ID, EOS_ID, PAD_ID
from ostinato.models import Seq2Seq
from ostinato.nn.positions import sinusoids

_WORKER = Path(__file__).with_name("ctranslate_worker.py")
_PACKAGES = {"CTranslate2": "ctranslate2", "x-transformers": "x_transformers"}
"""Those that are not of transformers."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What all models have in common."""

    vocabulary: int
    d_model: int = 256
    d_ff: int = 1024
    n_heads: int = 8
    n_steps: int = 6
    source_length: int = 48
    target_length: int = 64


@dataclass(frozen=True, slots=True)
class Work:
    """What a peer is asked to do.

    Args:
        model: ours, whose weights it may take. sources: ids by phase, `[B, S]`. beams: by phase. threads: to use.
    """

    sizes: Sizes
    model: Seq2Seq
    sources: dict[str, Tensor]
    beams: dict[str, int]
    threads: int


def peers(work: Work) -> Iterator[Contestant | Absent]:
    """Yield every peer, and why others are not there."""
    builders = {
        "CTranslate2": ctranslate2,
        "HF Marian": partial(hugging_face, "marian"),
        "HF T5": partial(hugging_face, "t5"),
        "x-transformers": x_transformers,
    }
    for name, build in builders.items():
        able = [phase for phase in work.beams if name != "x-transformers" or _can(work, phase)]
        yield of_package(name, _PACKAGES.get(name, "transformers"), partial(_peer, name, build, work, able))


def _peer(name: str, build: Callable[[Work], Callable[[str], object]], work: Work, phases: Sequence[str]) -> Contestant:
    call = build(work)
    return Contestant(name, "peer", {phase: partial(call, phase) for phase in phases})


def _can(work: Work, phase: str) -> bool:
    """Return whether x-transformers can: its beam search does not repeat what the encoder said for every hypothesis."""
    return work.beams[phase] == 1 or len(work.sources[phase]) == 1


def hugging_face(kind: str, work: Work) -> Callable[[str], Tensor]:
    """Marian or T5 of transformers, with its cache and its own search."""
    found = importlib.import_module("transformers")
    s = work.sizes
    ids = {"pad_token_id": PAD_ID, "eos_token_id": EOS_ID, "decoder_start_token_id": BOS_ID}
    if kind == "marian":
        layers = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in _marian(s).items()}
        config = found.MarianConfig(
            vocab_size=s.vocabulary,
            d_model=s.d_model,
            activation_function="relu",
            max_position_embeddings=512,
            forced_eos_token_id=None,
            **layers,
            **ids,
        )
        model = found.MarianMTModel(config)
    else:
        config = found.T5Config(
            vocab_size=s.vocabulary,
            d_model=s.d_model,
            d_kv=s.d_model // s.n_heads,
            d_ff=s.d_ff,
            num_heads=s.n_heads,
            num_layers=s.n_steps,
            num_decoder_layers=s.n_steps,
            **ids,
        )
        model = found.T5ForConditionalGeneration(config)
    model.eval()
    length = {"min_new_tokens": s.target_length, "max_new_tokens": s.target_length}

    def call(phase: str) -> Tensor:
        source = work.sources[phase]
        with torch.inference_mode():
            return model.generate(  # type: ignore[no-any-return]
                input_ids=source,
                attention_mask=torch.ones_like(source),
                num_beams=work.beams[phase],
                do_sample=False,
                use_cache=True,
                **length,
            )

    return call


def _marian(s: Sizes) -> dict[str, int]:
    return {"layers": s.n_steps, "attention_heads": s.n_heads, "ffn_dim": s.d_ff}


def x_transformers(work: Work) -> Callable[[str], Tensor]:
    """An encoder-decoder of x-transformers, with its cache."""
    found = importlib.import_module("x_transformers")
    s = work.sizes
    sides = {
        f"{side}_{key}": value
        for side in ("enc", "dec")
        for key, value in {
            "num_tokens": s.vocabulary,
            "depth": s.n_steps,
            "heads": s.n_heads,
            "max_seq_len": 512,
            "attn_dim_head": s.d_model // s.n_heads,
        }.items()
    }
    model = found.XTransformer(dim=s.d_model, **sides).eval()

    def call(phase: str) -> Tensor:
        source = work.sources[phase]
        start = torch.full((source.shape[0], 1), BOS_ID)
        with torch.inference_mode():
            if work.beams[phase] == 1:
                return model.generate(source, start, s.target_length, temperature=0.0)  # type: ignore[no-any-return]
            memory = model.encoder(source, return_embeddings=True)
            beams = work.beams[phase]
            return model.decoder.beam_search(start, s.target_length, beams=beams, context=memory)  # type: ignore[no-any-return]

    return call


def ctranslate2(work: Work) -> Callable[[str], list[list[int]]]:
    """CTranslate2 in float32, on the weights of our model, in a process of its own (`ctranslate_worker`)."""
    tokens = ["<pad>", "<s>", "</s>", "<unk>", *(str(i) for i in range(4, work.sizes.vocabulary))]
    sources = {phase: [[tokens[i] for i in row] for row in ids.tolist()] for phase, ids in work.sources.items()}
    specification = _specification(work.model, tokens)
    worker = subprocess.Popen(
        [sys.executable, str(_WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_alone(work)
    )

    def ask(what: object) -> Any:
        worker.stdin.write(f"{json.dumps(what)}\n")
        worker.stdin.flush()
        if not (line := worker.stdout.readline()):
            raise RuntimeError(f"CTranslate2's process ended with {worker.wait()}")
        return json.loads(line)

    weakref.finalize(ask, _end, worker)
    with tempfile.TemporaryDirectory() as folder:
        specification.save(folder)
        settings = {"model": folder, "threads": work.threads, "length": work.sizes.target_length}
        ask(settings | {"sources": sources, "beams": work.beams})
    return ask


def _end(worker: subprocess.Popen[str]) -> None:
    with worker:  # closes what it reads from, which ends it, and waits
        pass


def _alone(work: Work) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": str(work.threads)}


def _specification(model: Seq2Seq, tokens: list[str]) -> Any:
    """Return our post-norm model as CTranslate2 describes models."""
    found = importlib.import_module("ctranslate2.specs.transformer_spec")
    config, banks = model.config, model.banks
    n_steps, n_heads = config.encoder.n_steps, config.encoder.self_attention.n_heads
    spec = found.TransformerSpec.from_config((n_steps, n_steps), n_heads, pre_norm=False)
    positions = _numbers(sinusoids(torch.arange(512), config.d_model))
    for side, table in (("encoder", model.source_embedding), ("decoder", model.target_embedding)):
        part = getattr(spec, side)
        embeddings = part.embeddings[0] if side == "encoder" else part.embeddings
        embeddings.weight, part.scale_embeddings = _numbers(table), config.embedding_scale
        part.position_encodings.encodings = positions
        for layer, step in zip(part.layer, model.stacks[side].plan.steps, strict=True):
            for use in step.uses:
                if use.kind == "ffn":
                    ffn, own = banks.ffn[use.weights], layer.ffn
                    _linear(own.linear_0, ffn.up)
                    _linear(own.linear_1, ffn.down)
                else:
                    attention = getattr(banks, use.kind)[use.weights]
                    own = layer.self_attention if use.kind == "self_attention" else layer.attention
                    cuts = (0, None) if use.kind == "self_attention" else (0, attention.inner, None)
                    for linear, start, end in zip(own.linear[:-1], cuts[:-1], cuts[1:], strict=True):
                        _linear(linear, attention.qkv, slice(start, end))
                    _linear(own.linear[-1], attention.out)
                (norm,) = use.norms
                own.layer_norm.gamma = _numbers(banks.norm[norm].weight)
                own.layer_norm.beta = _numbers(banks.norm[norm].bias)
    spec.decoder.projection.weight = _numbers(model.output_projection)
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.bos_token = spec.config.decoder_start_token = tokens[BOS_ID]
    spec.config.eos_token, spec.config.unk_token = tokens[EOS_ID], tokens[3]
    spec.validate()
    spec.optimize()
    return spec


def _linear(own: Any, linear: torch.nn.Linear, rows: slice = slice(None)) -> None:
    own.weight, own.bias = _numbers(linear.weight[rows]), _numbers(linear.bias[rows])


def _numbers(x: Tensor) -> Any:
    return x.detach().float().contiguous().numpy()
