"""Unrolled models in other engines: CTranslate2 computes and decodes as ours; GGUF files and names are as expected.

vLLM and llama.cpp are not run. vLLM reads a folder of transformers by the names in it; llama.cpp reads GGUF files,
whose names and keys are those of the package gguf, and which transformers reads without any code of ours.
"""

from __future__ import annotations

import json
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

PAIRS = ["t5", "bart"]
"""Of T5 without tied embeddings, which transformers 5 marks otherwise, CTranslate2 4.8 scales the logits: right tokens,
other scores. Its Marian starts from a zero embedding, which ours does not."""
TEXTS = ["gpt2", "llama", "qwen3"]


def exported(name: str, folder: Path) -> tuple[LoadedRun, Path]:
    base, settings = CASES[name]
    run = runs.make_run(base, folder / "run", *settings)
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
        if parameter.ndim == 2:
            parameter.normal_(std=1.0 if name.startswith("banks.") else 0.6)
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
    texts = [tokenizer.convert_ids_to_tokens([*source, tokenizer.eos_token_id]) for source in SOURCES]
    never = [[tokenizer.bos_token], [tokenizer.pad_token]]
    for beam in (1, 4):
        how: dict[str, Any] = {
            "beam_size": beam,
            "length_penalty": 0,
            "max_decoding_length": 40,
            "min_decoding_length": 0,
            "suppress_sequences": never,
        }
        found = [tokenizer.convert_tokens_to_ids(one.hypotheses[0]) for one in engine.translate_batch(texts, **how)]
        ours = searched(run, beam)
        ended = [i for i, one in enumerate(ours) if one.finished]
        assert len(ended) >= 10
        if beam == 1:
            assert found == [one.ids for one in ours]
        else:  # the two stop by different rules, and rank what has no end at the limit otherwise
            assert sum(found[i] == ours[i].ids for i in ended) >= 0.8 * len(ended)
        scored = engine.score_batch(texts, [tokenizer.convert_ids_to_tokens(one.ids) for one in ours])
        for source, one, score in zip(SOURCES, ours, scored, strict=True):
            assert score.log_probs == pytest.approx(log_p(run, source, one.ids), rel=1e-4, abs=1e-4)


@torch.no_grad()
def log_p(run: LoadedRun, source: list[int], written: list[int]) -> list[float]:
    """Return the log-probability of every token of an output, the end symbol's last."""
    batch = Batch.from_lists([written], [source])
    log_p_TV = run.model(batch).logits_BTV[0].log_softmax(-1)
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
        turned: rotary pairs (j, j + K / 2) become (2j, 2j + 1), with the number of heads. transposed: [in, out] becomes
            [out, in].
    """

    turned: dict[str, str] = field(default_factory=dict)
    transposed: tuple[str, ...] = ()


LAYOUTS = {
    "llama": Layout(turned={"q_proj.weight": "num_attention_heads", "k_proj.weight": "num_key_value_heads"}),
    "qwen3": Layout(),
    "gpt2": Layout(transposed=("c_attn.weight", "c_proj.weight", "c_fc.weight")),
}


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
    writer.add_tokenizer_model("llama")
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    writer.add_token_list(sorted(vocabulary, key=vocabulary.__getitem__))
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
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


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_gguf_file_by_the_names_of_llama_cpp_has_our_logits(name: str, tmp_path: Path) -> None:
    run, folder = exported(name, tmp_path)
    write_gguf(folder, tmp_path / "model.gguf", name)
    # What transformers does not read from such files: the width of heads of Qwen3, and sizes of GPT-2.
    config = None if name == "llama" else transformers.AutoConfig.from_pretrained(folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", dtype=torch.float32, config=config
    )
    ids = torch.randint(4, 20, (2, 7), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, found = run.model(ids).logits_BTV, theirs(ids).logits
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
