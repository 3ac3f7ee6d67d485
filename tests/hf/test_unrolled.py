"""Looped models as plain ones of other architectures: the same logits in transformers' own classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra hf")

import runs
import transformers

from ostinato.errors import ConfigError
from ostinato.hf.export import export_plain
from ostinato.interop.unrolled import unroll
from ostinato.models import build_model

_NORMS = "norm: {kind: rms, eps: 1.0e-6}"
_ATTENTION = "n_heads: 4, n_kv_heads: 2, d_head: 8, bias: false, share: all"
_FFN = "ffn: {d_ff: 24, activation: swiglu, bias: false, share: all}"
_PAIR = (
    "n_steps: 3, self_attention: {n_heads: 2, bias: true, share: all}, ffn: {d_ff: 24, activation: silu, share: all}"
)
_SINES = "positions: {layout: halves}"
CASES = {
    "llama": ("looped", [f"model.decoder={{n_steps: 3, {_NORMS}, self_attention: {{{_ATTENTION}}}, {_FFN}}}"]),
    "qwen3": ("looped", [f"model.decoder={{n_steps: 3, {_NORMS}, self_attention: {{{_ATTENTION}, qk_norm: rms}}, "
                         f"{_FFN}}}", "model.embedding_scale=false"]),
    "gpt2": ("looped", ["model.decoder={n_steps: 4, segments: [{n_steps: 1}, {n_steps: 1, repeats: 3}, {n_steps: 2}], "
                        "positions: {kind: learned, max_length: 32}, relative: {kind: none}, "
                        "ffn: {activation: gelu_tanh}}",
                        "data.max_target_length=32", "model.embedding_scale=false"]),
    "marian": ("pairs", [f"model.encoder={{{_PAIR}, {_SINES}}}",
                         f"model.decoder={{{_PAIR}, {_SINES}, cross_attention: {{n_heads: 2, bias: true, share: all}}, "
                         "halting: {kind: none}}", "model.tie_embeddings=all"]),
}  # fmt: skip
_BART = "norm: {embedding: true}, positions: {kind: learned, max_length: 64, offset: 2}"
_CROSS = "halting: {kind: none}, cross_attention: {n_heads: 2, bias: true, share: all}"
CASES["bart"] = (
    "pairs",
    [
        f"model.encoder={{{_PAIR}, {_BART}}}",
        f"model.decoder={{{_PAIR}, {_BART}, {_CROSS}}}",
        "model.tie_embeddings=all",
        "model.embedding_scale=false",
        "data.max_target_length=64",
        "decoding={max_length: 40, max_length_ratio: 0.0}",
    ],
)
_T5 = "norm: {kind: rms, placement: pre, eps: 1.0e-6}, positions: {kind: none}, relative: {kind: buckets}"
_T5_HEADS = "n_heads: 2, d_head: 8, scale: 1.0, bias: false, share: all"


def _t5(ffn: str, *more: str) -> tuple[str, list[str]]:
    both = f"n_steps: 3, {_T5}, self_attention: {{{_T5_HEADS}}}, ffn: {{d_ff: 24, bias: false, share: all, {ffn}}}"
    decoder = f"{both}, halting: {{kind: none}}, cross_attention: {{{_T5_HEADS}}}"
    plain = ["model.embedding_scale=false", f"model.encoder={{{both}}}", f"model.decoder={{{decoder}}}"]
    return "pairs", [*plain, *more]


CASES["t5"] = _t5("activation: relu", "model.output={scale: true}", "model.tie_embeddings=all")
CASES["t5, gated"] = _t5("activation: geglu_tanh", "model.output={bias: false}", "model.tie_embeddings=input")


@pytest.mark.parametrize("name", CASES)
def test_a_looped_model_is_a_plain_one(name: str, tmp_path: Path) -> None:
    base, settings = CASES[name]
    run = runs.make_run(base, tmp_path / "run", *settings)
    export_plain(run, tmp_path / "out", name.partition(",")[0])
    is_pair = run.model.config.has_two_sides
    kind: Any = transformers.AutoModelForSeq2SeqLM if is_pair else transformers.AutoModelForCausalLM
    theirs = kind.from_pretrained(tmp_path / "out")
    assert type(theirs).__module__.startswith("transformers.")
    ids = torch.randint(4, 20, (2, 7), generator=torch.Generator().manual_seed(1))
    more = {"decoder_input_ids": ids.flip(1)} if is_pair else {}
    with torch.no_grad():
        found = theirs(input_ids=ids, **more).logits
        expected = run.model(ids, *more.values()).logits_BTV
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"{kind.__name__}.from_pretrained" in card
    assert "import ostinato" not in card
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert fast.eos_token_id == theirs.config.eos_token_id == 2


def test_an_unrolled_model_of_ours_computes_the_same(tmp_path: Path) -> None:
    run = runs.make_run("looped", tmp_path / "run")
    config, weights = unroll(run.model)
    model = build_model(config).eval()
    model.load_state_dict(weights)
    ids = torch.tensor([[1, 5, 6, 7]])
    with torch.no_grad():
        assert torch.equal(model(ids).logits_BTV, run.model(ids).logits_BTV)
    assert model.n_parameters() > run.model.n_parameters()


def test_what_has_no_plain_counterpart_is_named(tmp_path: Path) -> None:
    run = runs.make_run("halting", tmp_path / "halting")
    with pytest.raises(ConfigError, match=r"model\.decoder\.halting\.kind is 'act': a plain model has no halting"):
        export_plain(run, tmp_path / "out", "llama")
    looped = runs.make_run("looped", tmp_path / "looped")
    with pytest.raises(ConfigError, match=r"model\.decoder\.norm\.kind is 'layer': LlamaForCausalLM has 'rms'"):
        export_plain(looped, tmp_path / "out", "llama")
    with pytest.raises(ConfigError, match="as is 'bloom': must be one of llama, qwen3, gpt2, marian, bart, t5"):
        export_plain(looped, tmp_path / "out", "bloom")
    fed = runs.make_run("looped", tmp_path / "fed", "model.decoder={n_steps: 1, "
                        "segments: [{n_steps: 1, repeats: 3, inject: {kind: add}}]}")  # fmt: skip
    with pytest.raises(
        ConfigError, match=r"model\.decoder\.segments\.0 is 'inject': a plain model has nothing like it"
    ):
        export_plain(fed, tmp_path / "out", "llama")
    assert not (tmp_path / "out").exists()
