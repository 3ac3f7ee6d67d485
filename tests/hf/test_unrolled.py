"""Looped models as plain ones of other architectures: the same logits in transformers' own classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra hf")

import runs
import tiny
import transformers

import ostinato
from ostinato.config.schema import leaves
from ostinato.errors import ConfigError
from ostinato.evaluation.loading import load
from ostinato.hf.export import export_plain
from ostinato.interop.pretrained import read_pretrained
from ostinato.interop.unrolled import PLAIN, as_plain, unroll
from ostinato.models import build_model
from ostinato.training.imported import import_run

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


@pytest.mark.sampled
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
    target = torch.cat([torch.ones(2, 1, dtype=torch.long), ids.flip(1)], dim=1)
    of_ours = as_plain(run.model, name.partition(",")[0]).ids
    there = torch.tensor([of_ours.index(one) if one in of_ours else -1 for one in range(int(ids.max()) + 1)])
    more = {"decoder_input_ids": there[target]} if is_pair else {}
    with torch.no_grad():
        found = theirs(input_ids=there[ids], **more).logits
        expected = run.model(ids, *([target] if is_pair else [])).logits_BTV[..., of_ours]
    assert (of_ours == list(range(len(of_ours)))) == (name != "marian")
    if name == "marian":  # every logit of a position is less by the same number
        found, expected = found.log_softmax(-1), expected.log_softmax(-1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"{kind.__name__}.from_pretrained" in card
    assert "import ostinato" not in card
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert fast.eos_token_id == theirs.config.eos_token_id == of_ours.index(2)
    text = runs.TEXTS[0]
    assert [of_ours[one] for one in fast(text)["input_ids"] if one != fast.eos_token_id][-9:] == (
        run.tokenizers.source.encode(text)
    )


def test_a_marian_has_positions_for_all_that_it_writes_by_its_own_settings(tmp_path: Path) -> None:
    base, settings = CASES["marian"]
    more = ("decoding.max_length=30", "decoding.max_length_ratio=1.0", "data.max_source_length=20")
    run = runs.make_run(base, tmp_path / "run", *settings, *more, "data.max_target_length=20")
    folder = export_plain(run, tmp_path / "out", "marian")
    model = transformers.MarianMTModel.from_pretrained(folder).eval()
    assert model.generation_config.max_new_tokens == 50 > 20
    model.generation_config.eos_token_id = None  # an output that does not end
    found = model.generate(torch.tensor([[5, 6, run.model.special_ids.eos]]), num_beams=1)
    assert found.shape == (1, 51)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "tokenizer",
    ["{kind: words}", "{kind: characters}", "{kind: bpe, vocab_size: 300}", "{kind: unigram, vocab_size: 290}"],
)
def test_the_padding_of_a_marian_is_its_last_id_and_begins_targets(tokenizer: str, tmp_path: Path) -> None:
    base, settings = CASES["marian"]
    run = runs.make_run(base, tmp_path / "run", *settings, f"data.tokenizer={tokenizer}")
    folder = export_plain(run, tmp_path / "out", "marian")
    fast, config = (kind.from_pretrained(folder) for kind in (transformers.AutoTokenizer, transformers.AutoConfig))
    ours = run.tokenizers.source
    assert len(fast) == config.vocab_size == ours.vocab_size - 1  # no begin symbol
    assert (fast.eos_token_id, fast.unk_token_id) == (0, 1)
    assert fast.pad_token_id == config.pad_token_id == config.decoder_start_token_id == len(fast) - 1
    assert fast.convert_ids_to_tokens(len(fast) - 1) == "<pad>"
    for text in [*runs.TEXTS, "a the man"]:
        ids = ours.encode(text)
        assert fast(text)["input_ids"] == [*(one - 2 for one in ids), 0]
        assert fast.decode([one - 2 for one in ids]) == ours.decode(ids)
    padded = fast([runs.TEXTS[0], "a"], padding=True)
    assert padded["input_ids"][1][-1] == len(fast) - 1


@pytest.mark.parametrize("where", [{}, {"pad_token_id": 0, "decoder_start_token_id": 0}], ids=["last", "first"])
def test_an_imported_marian_is_one_again(where: dict[str, int], tmp_path: Path) -> None:
    theirs = tiny.save("marian", tmp_path / "theirs", **where)
    import_run(str(tmp_path / "theirs"), tmp_path / "run")
    run = ostinato.load(tmp_path / "run")
    folder = export_plain(run, tmp_path / "out", "marian")
    again = transformers.MarianMTModel.from_pretrained(folder)
    of_ours = as_plain(run.model, "marian").ids
    assert not bool(again.model.shared.weight[-1].any())
    ids = torch.randint(5, 49, (2, 7), generator=torch.Generator().manual_seed(1))
    target = torch.cat([torch.full((2, 1), theirs.config.decoder_start_token_id), ids.flip(1)], dim=1)
    there = torch.tensor([of_ours.index(one) for one in range(50)])
    with torch.no_grad():
        expected = theirs(ids, decoder_input_ids=target).logits[..., of_ours].log_softmax(-1)
        found = again(there[ids], decoder_input_ids=there[target]).logits.log_softmax(-1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    fast = transformers.AutoTokenizer.from_pretrained(folder)
    assert fast("w7 w11", add_special_tokens=False)["input_ids"] == [of_ours.index(7), of_ours.index(11)]


def test_an_unrolled_model_of_ours_computes_the_same(tmp_path: Path) -> None:
    run = runs.make_run("looped", tmp_path / "run")
    config, weights = unroll(run.model)
    model = build_model(config).eval()
    model.load_state_dict(weights)
    ids = torch.tensor([[1, 5, 6, 7]])
    with torch.no_grad():
        assert torch.equal(model(ids).logits_BTV, run.model(ids).logits_BTV)
    assert model.n_parameters() > run.model.n_parameters()


DROPOUT: dict[str, tuple[float, float, float]] = {
    "llama": (0.0, 0.3, 0.0),  # of attention alone
    "gpt2": (0.2, 0.3, 0.0),
    "marian": (0.2, 0.3, 0.4),
    "bart": (0.2, 0.3, 0.4),
    "t5": (0.2, 0.2, 0.2),  # one rate for all
}
"""Rates that an architecture can have: of the model, of attention and of feed-forwards."""


@pytest.mark.parametrize("name", DROPOUT)
def test_a_plain_model_drops_out_as_the_run_does(name: str, tmp_path: Path) -> None:
    base, settings = CASES[name]
    of_model, of_attention, of_ffn = DROPOUT[name]
    kinds = {"decoder.self_attention": of_attention, "decoder.ffn": of_ffn}
    if base == "pairs":
        kinds |= {
            "decoder.cross_attention": of_attention,
            "encoder.self_attention": of_attention,
            "encoder.ffn": of_ffn,
        }
    rates = {f"model.{kind}.dropout": rate for kind, rate in kinds.items()} | {"model.dropout": of_model}
    run = runs.make_run(base, tmp_path / "run", *settings, *(f"{key}={rate}" for key, rate in rates.items()))
    found = read_pretrained(export_plain(run, tmp_path / "out", name)).recipe
    assert {key: value for key, value in leaves(found.model_dump()) if key in rates} == rates
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "out")
    drops = {module.p for module in theirs.modules() if isinstance(module, torch.nn.Dropout)}
    assert drops <= {of_model, of_attention, of_ffn}


def test_offsets_of_positions_in_training_are_no_difference(tmp_path: Path) -> None:
    sizes = ["model.source_vocab_size=40", "model.target_vocab_size=40"]
    drawn = [f"model.{stack}.positions.random_offset=40" for stack in ("encoder", "decoder")]
    recipe = ostinato.load_recipe("dense/marian-toy", [*sizes, *drawn, "model.random_offsets=shared"])
    torch.manual_seed(1)
    model = build_model(recipe.model).eval()
    plain = build_model(ostinato.load_recipe("dense/marian-toy", sizes).model).eval()
    plain.load_state_dict(model.state_dict())
    found, expected = as_plain(model, "marian"), as_plain(plain, "marian")
    assert found.config == expected.config
    assert found.tensors.keys() == expected.tensors.keys()
    assert all(torch.equal(found.tensors[name], expected.tensors[name]) for name in expected.tensors)


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
    leaving = load(looped.directory, device="cpu", exit="change", halting_threshold=0.5)
    with pytest.raises(ConfigError, match="exit is 'change': a plain model runs all its steps"):
        export_plain(leaving, tmp_path / "out", "gpt2")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", PLAIN)
def test_a_model_of_another_kind_is_named_before_all_else(name: str, tmp_path: Path) -> None:
    is_of_pairs = name in ("marian", "bart", "t5")
    run = runs.make_run("halting" if is_of_pairs else "pairs", tmp_path / "run")  # both halt, too
    given, own = ("language_model", "seq2seq") if is_of_pairs else ("seq2seq", "language_model")
    with pytest.raises(ConfigError, match=f"model.kind is '{given}': .* is of kind '{own}'") as error:
        export_plain(run, tmp_path / "out", name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "settings", "lines"),
    [
        ("gpt2", {"embedding_scale": True}, ["model.embedding_scale is 4.0: GPT2LMHeadModel has 1.0"]),
        *[
            (
                name,
                {"encoder.ffn.activation": "geglu", "decoder.ffn.activation": "geglu"},
                [f"model.{side}.ffn.activation is 'geglu': {kind} has '{usual}'" for side in ("decoder", "encoder")],
            )
            for name, kind, usual in (
                ("marian", "MarianMTModel", "gelu"),
                ("bart", "BartForConditionalGeneration", "gelu"),
                ("t5", "T5ForConditionalGeneration", "relu"),
            )
        ],
    ],
)
def test_what_is_named_are_settings_of_the_run(
    name: str, settings: dict[str, Any], lines: list[str], tmp_path: Path
) -> None:
    base, own = CASES[name]
    more = [f"model.{key}={json.dumps(value)}" for key, value in settings.items()]
    with pytest.raises(ConfigError) as error:
        as_plain(runs.make_run(base, tmp_path / "run", *own, *more).model, name)
    assert str(error.value).splitlines() == lines


@pytest.mark.parametrize(
    ("name", "lengths", "n_positions"),
    [
        ("llama", ["data.max_target_length=96"], 96),
        ("llama", ["data.max_target_length=96", "data.block_length=300"], 300),
        ("marian", ["data.max_target_length=96", "data.max_source_length=200"], 200),
    ],
)
def test_the_longest_sequence_is_the_runs(name: str, lengths: list[str], n_positions: int, tmp_path: Path) -> None:
    base, settings = CASES[name]
    export_plain(runs.make_run(base, tmp_path / "run", *settings, *lengths), tmp_path / "out", name)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["max_position_embeddings"] == n_positions
