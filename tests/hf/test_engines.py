"""Unrolled models in other engines: CTranslate2 and llama.cpp compute and decode as ours; names are as expected.

vLLM is not run: it reads a folder of transformers by the names in it. llama.cpp (in the package xllamacpp) reads GGUF
files, whose names and keys are those of the package gguf, and which transformers reads without any code of ours.
"""

from __future__ import annotations

import copy
import json
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra hf")

import runs
import transformers
from safetensors.torch import load_file
from test_unrolled import CASES

from ostinato.config.decoding import DecodingConfig
from ostinato.data.batch import Batch
from ostinato.decoding import Hypothesis, search
from ostinato.evaluation.loading import LoadedRun
from ostinato.hf.export import export_plain
from ostinato.interop.unrolled import as_plain

PAIRS = ["t5", "bart", "marian"]
"""Of T5 without tied embeddings, which transformers 5 marks otherwise, CTranslate2 4.8 scales the logits: right tokens,
other scores."""
TEXTS = ["gpt2", "llama", "qwen3"]


def exported(name: str, folder: Path, *more: str) -> tuple[LoadedRun, Path]:
    base, settings = CASES[name]
    run = runs.make_run(base, folder / "run", *settings, *more)
    return run, export_plain(run, folder / "out", name.partition(",")[0])


def converted(folder: Path) -> Path:
    ctranslate2 = pytest.importorskip("ctranslate2", reason="needs the extra engines")
    ctranslate2.converters.TransformersConverter(str(folder)).convert(str(folder.parent / "ct2"))
    return folder.parent / "ct2"


SOURCES = [torch.randint(4, 20, (3 + i % 5,), generator=torch.Generator().manual_seed(i)).tolist() for i in range(60)]


def searched(run: LoadedRun, beam: int) -> list[Hypothesis]:
    batch = Batch.from_lists([[]] * len(SOURCES), SOURCES)
    how = {"strategy": "beam" if beam > 1 else "greedy", "beam": beam, "max_length": 40, "max_length_ratio": 0.0}
    return search(run.model, batch, DecodingConfig.model_validate({**how, "length_penalty": {"kind": "none"}}))


@torch.no_grad()
def let_outputs_end(run: LoadedRun) -> None:
    """Let outputs depend on more than their last token, and give the end symbol the rows of one that ends many."""
    torch.manual_seed(1)
    for name, parameter in run.model.named_parameters():
        if parameter.ndim == 2:  # larger, and float32 of another engine would stray by more than is allowed
            parameter.normal_(std=0.7 if name.startswith("banks.") else 0.6)
    for token in range(4, 20):
        for weight in {id(x): x for x in (run.model.target_embedding, run.model.output_projection)}.values():
            weight[[2, token]] = weight[[token, 2]]
        found = searched(run, 1)
        if sum(one.finished for one in found) >= 10 and len({tuple(one.ids) for one in found}) >= 6:
            return
    pytest.fail("no token ends outputs")


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_ctranslate2_decodes_the_same_tokens_with_the_same_scores(name: str, tmp_path: Path) -> None:
    base, settings = CASES[name]
    run = runs.make_run(base, tmp_path / "run", *settings)
    let_outputs_end(run)
    folder = export_plain(run, tmp_path / "out", name.partition(",")[0])
    ctranslate2: Any = pytest.importorskip("ctranslate2", reason="needs the extra engines")
    engine = ctranslate2.Translator(str(converted(folder)), compute_type="float32")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = as_plain(run.model, name).ids
    there = {ours: theirs for theirs, ours in reversed(list(enumerate(ids)))}

    def tokens(written: list[int]) -> list[str]:
        return tokenizer.convert_ids_to_tokens([there[one] for one in written])  # type: ignore[no-any-return]

    texts = [tokens([*source, 2]) for source in SOURCES]
    assert tokens([4, 5]) == run.tokenizers.target.decode([4, 5]).split()
    never = [[one] for one in (tokenizer.bos_token, tokenizer.pad_token) if one is not None and name != "marian"]
    for beam in (1, 4):
        how: dict[str, Any] = {
            "beam_size": beam,
            "length_penalty": 0,
            "max_decoding_length": 40,
            "min_decoding_length": 0,
            "suppress_sequences": never,
        }
        found = [tokenizer.convert_tokens_to_ids(one.hypotheses[0]) for one in engine.translate_batch(texts, **how)]
        found = [[ids[one] for one in written] for written in found]
        ours = searched(run, beam)
        ended = [i for i, one in enumerate(ours) if one.finished]
        assert len(ended) >= 10
        if beam == 1:
            assert found == [one.ids for one in ours]
        else:  # the two stop by different rules, and rank what has no end at the limit otherwise
            assert sum(found[i] == ours[i].ids for i in ended) >= 0.8 * len(ended)
        scored = engine.score_batch(texts, [tokens(one.ids) for one in ours])
        # The last id of a Marian, which begins targets, is left out.
        among = ids[:-1] if name == "marian" else ids
        for source, one, score in zip(SOURCES, ours, scored, strict=True):
            assert score.log_probs == pytest.approx(log_p(run, source, one.ids, among), rel=1e-4, abs=1e-4)


@torch.no_grad()
def log_p(run: LoadedRun, source: list[int], written: list[int], among: list[int]) -> list[float]:
    """Return the log-probability of every token of an output among some ids, the end symbol's last, in float64.

    In float32 that of a random model may be as far from it as the tolerance of the test.
    """
    batch = Batch.from_lists([written], [source])
    logits_TV = copy.deepcopy(run.model).double()(batch).logits_BTV[0]
    log_p_TV = logits_TV - logits_TV[:, among].logsumexp(-1, keepdim=True)
    return log_p_TV.gather(1, batch.labels_BT[0][:, None])[:, 0].tolist()  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_ctranslate2_computes_the_same_logits(name: str, tmp_path: Path) -> None:
    base, settings = CASES[name]
    settings = [one.replace("d_head: 8", "d_head: 4") for one in settings]  # its Llama has heads of d_model / n_heads
    run = runs.make_run(base, tmp_path / "run", *settings)
    folder = export_plain(run, tmp_path / "out", name)
    ctranslate2: Any = pytest.importorskip("ctranslate2", reason="needs the extra engines")
    engine = ctranslate2.Generator(str(converted(folder)), compute_type="float32")
    ids = torch.randint(4, 20, (3, 7), generator=torch.Generator().manual_seed(1))
    found = np.array(engine.forward_batch(ids.tolist(), return_log_probs=False))
    with torch.no_grad():
        expected = run.model(ids).logits_BTV.numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_a_folder_has_the_names_shapes_and_keys_of_its_architecture(name: str, tmp_path: Path) -> None:
    _, folder = exported(name, tmp_path)
    given = json.loads((folder / "config.json").read_text())
    kind = getattr(transformers, given["architectures"][0])
    model, report = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    model.save_pretrained(tmp_path / "theirs")
    theirs, ours = (
        {key: x.shape for key, x in load_file(where / "model.safetensors").items()}
        for where in (tmp_path / "theirs", folder)
    )
    sinusoids = {f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")}  # made anew where read
    assert ours == {key: shape for key, shape in theirs.items() if name != "marian" or key not in sinusoids}
    assert {"model_type", "vocab_size", "eos_token_id", "tie_word_embeddings"} <= given.keys()
    assert (folder / "tokenizer.json").is_file()
    assert (folder / "generation_config.json").is_file()


@dataclass(frozen=True)
class Layout:
    """How llama.cpp's converter writes an architecture: what it does to matrices, by parts of their names.

    Args:
        tensors: what llama.cpp asks for beside the embedding and the last norm, of every block with "blk.N." before it.
        turned: rotary pairs (j, j + K / 2) become (2j, 2j + 1), with the number of heads. transposed: [in, out] becomes
            [out, in].
    """

    tensors: tuple[str, ...]
    turned: dict[str, str] = field(default_factory=dict)
    transposed: tuple[str, ...] = ()


_ATTENTION = tuple(f"blk.N.attn_{part}.weight" for part in ("norm", "q", "k", "v", "output"))
_GATED = (*_ATTENTION, *(f"blk.N.ffn_{part}.weight" for part in ("norm", "gate", "up", "down")))
_GPT2 = ("attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down")
LAYOUTS = {
    "llama": Layout(_GATED, turned={"q_proj.weight": "num_attention_heads", "k_proj.weight": "num_key_value_heads"}),
    "qwen3": Layout((*_GATED, "blk.N.attn_q_norm.weight", "blk.N.attn_k_norm.weight")),
    "gpt2": Layout(
        ("position_embd.weight", "output_norm.bias", *(f"blk.N.{x}.{y}" for x in _GPT2 for y in ("weight", "bias"))),
        transposed=("c_attn.weight", "c_proj.weight", "c_fc.weight"),
    ),
}
BYTES = "data.tokenizer={kind: bpe, vocab_size: 300}"
"""llama.cpp knows no tokenizer of whole words."""
HALF = 0.03
"""What log-probabilities differ by where keys and values have half precision, as in llama.cpp: up to 0.0175 here."""


def write_gguf(folder: Path, file: Path, name: str) -> None:
    """Write an exported folder as llama.cpp's converter does, by the tables of the package gguf."""
    gguf = pytest.importorskip("gguf", reason="needs the extra engines")
    config, weights = transformers.AutoConfig.from_pretrained(folder), load_file(folder / "model.safetensors")
    writer = gguf.GGUFWriter(file, name)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    if name == "gpt2":
        writer.add_feed_forward_length(config.n_inner)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_rope_dimension_count(config.head_dim)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    add_tokenizer(writer, folder)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[name.upper()], config.num_hidden_layers)
    layout = LAYOUTS[name]
    for key, x in weights.items():
        for part, heads in layout.turned.items():
            if key.endswith(part):
                x = x.view(getattr(config, heads), 2, -1, x.shape[1]).transpose(1, 2).reshape(x.shape)
        place = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert place is not None, key
        writer.add_tensor(place, (x.T.contiguous() if key.endswith(layout.transposed) else x).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: Any, folder: Path) -> None:
    """Add the tokenizer of a folder, pairs of bytes merged: GPT-2's kind."""
    import gguf

    config, content = (json.loads((folder / name).read_text()) for name in ("config.json", "tokenizer.json"))
    vocabulary = content["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {one["content"] for one in content["added_tokens"] if one["special"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if one in special else gguf.TokenType.NORMAL for one in tokens])
    writer.add_token_merges([" ".join(pair) for pair in content["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(True)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_gguf_file_by_the_names_of_llama_cpp_has_our_logits(name: str, tmp_path: Path) -> None:
    run, folder = exported(name, tmp_path, BYTES)
    write_gguf(folder, tmp_path / "model.gguf", name)
    # What transformers does not read from such files: the width of heads of Qwen3, and sizes of GPT-2.
    config = None if name == "llama" else transformers.AutoConfig.from_pretrained(folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", dtype=torch.float32, config=config
    )
    ids = torch.randint(4, 300, (2, 7), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, found = run.model(ids).logits_BTV, theirs(ids).logits
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_gguf_file_has_the_tensors_and_keys_that_llama_cpp_asks_for(name: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="needs the extra engines")
    _, folder = exported(name, tmp_path, BYTES)
    write_gguf(folder, tmp_path / "model.gguf", name)
    reader, config = gguf.GGUFReader(tmp_path / "model.gguf"), transformers.AutoConfig.from_pretrained(folder)
    shapes = {tensor.name: tuple(map(int, tensor.shape)) for tensor in reader.tensors}  # the last dimension first
    blocks = range(config.num_hidden_layers)
    asked = {one.replace("N", str(i)) for one in LAYOUTS[name].tensors for i in blocks}
    assert shapes.keys() - {"output.weight"} == asked | {"token_embd.weight", "output_norm.weight"}
    width, hidden = config.hidden_size, config.n_inner if name == "gpt2" else config.intermediate_size
    assert shapes["token_embd.weight"] == shapes.get("output.weight", (width, 300)) == (width, config.vocab_size)
    heads = {"q": config.num_attention_heads, "k": getattr(config, "num_key_value_heads", None)}
    parts = {f"attn_{part}": (width, n * config.head_dim) for part, n in heads.items()} if name != "gpt2" else {}
    parts |= {"ffn_up": (width, hidden), "ffn_down": (hidden, width), "attn_norm": (width,)}
    parts |= {"attn_qkv": (width, 3 * width)} if name == "gpt2" else {"ffn_gate": (width, hidden)}
    assert all(shapes[f"blk.{i}.{part}.weight"] == shape for i in blocks for part, shape in parts.items())
    epsilon = "layer_norm_epsilon" if name == "gpt2" else "layer_norm_rms_epsilon"
    expected = {
        "general.architecture": name,
        f"{name}.context_length": config.max_position_embeddings,
        f"{name}.embedding_length": width,
        f"{name}.block_count": config.num_hidden_layers,
        f"{name}.feed_forward_length": hidden,
        f"{name}.attention.head_count": config.num_attention_heads,
        f"{name}.attention.{epsilon}": pytest.approx(getattr(config, "rms_norm_eps", None) or 1e-5),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    if name != "gpt2":
        expected |= {
            f"{name}.attention.head_count_kv": config.num_key_value_heads,
            f"{name}.attention.key_length": config.head_dim,
            f"{name}.rope.freq_base": config.rope_parameters["rope_theta"],
        }
    assert {key: reader.fields[key].contents() for key in expected} == expected
    lists = {key: len(reader.fields[f"tokenizer.ggml.{key}"].contents()) for key in ("tokens", "token_type", "merges")}
    assert lists["tokens"] == lists["token_type"] == config.vocab_size
    assert lists["merges"] > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_llama_cpp_reads_and_writes_the_same_tokens(name: str, tmp_path: Path) -> None:
    llama_cpp: Any = pytest.importorskip("xllamacpp", reason="needs the extra engines")
    run, folder = exported(name, tmp_path, BYTES)
    write_gguf(folder, tmp_path / "model.gguf", name)
    given = llama_cpp.CommonParams()
    given.model.path, given.n_ctx, given.n_parallel, given.warmup = str(tmp_path / "model.gguf"), 32, 1, False
    given.cpuparams.n_threads = 1
    server = llama_cpp.Server(given)

    def ask(what: str, **values: Any) -> Any:
        address, content = f"{server.listening_address}/{what}", json.dumps(values).encode()
        request = urllib.request.Request(address, content, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    fast = transformers.AutoTokenizer.from_pretrained(folder)
    for text in runs.TEXTS:  # the space that ours puts before a text is GPT-2's of a text that goes on
        assert ask("tokenize", content=f" {text}", add_special=True)["tokens"] == fast(text)["input_ids"]
    written, compared = set(), 0
    for seed in range(8):
        prompt = [1, *torch.randint(4, 300, (5,), generator=torch.Generator().manual_seed(seed)).tolist()]
        found = ask("completion", prompt=prompt, n_predict=6, temperature=0.0, n_probs=300, return_tokens=True)
        tokens, told = found["tokens"], found.get("completion_probabilities", [])
        with torch.no_grad():
            log_p_TV = run.model(torch.tensor([[*prompt, *tokens]])).logits_BTV[0, 5:].log_softmax(-1)
        for token, log_p_V in zip(tokens, log_p_TV, strict=False):
            assert float(log_p_V[token]) == pytest.approx(float(log_p_V.max()), abs=HALF)
        written.add(tuple(tokens))
        if len(told) == len(tokens):  # of bytes that are no whole character it tells nothing
            for one, log_p_V in zip(told, log_p_TV, strict=False):
                theirs = {top["id"]: top["logprob"] for top in one["top_logprobs"] if log_p_V[top["id"]] > -10}
                assert list(theirs.values()) == pytest.approx(log_p_V[list(theirs)].tolist(), abs=HALF)
                compared += len(theirs)
    assert len(written) > 2
    assert compared > 1000
