from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from architectures import any_architecture, random_model, right_padded, sentences
from ostinato.config.model import Seq2SeqConfig
from ostinato.config.stack import DecoderConfig, StackConfig
from ostinato.config.sub_layers import DenseFeedForwardConfig
from ostinato.errors import CheckpointError
from ostinato.models import build_model, load_model, save_model

SHARED = DenseFeedForwardConfig(d_ff=8, share="all", bank="both")
CONFIG = Seq2SeqConfig(
    d_model=8,
    source_vocab_size=6,
    target_vocab_size=6,
    tie_embeddings="all",
    encoder=StackConfig(n_steps=2, ffn=SHARED),
    decoder=DecoderConfig(n_steps=2, ffn=SHARED),
)


@given(any_architecture(), st.data())
@settings(max_examples=12, deadline=None, derandomize=True)
def test_every_architecture_comes_back_equal_and_saves_to_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, config: object, data: st.DataObject
) -> None:
    first, second = (tmp_path_factory.mktemp("model") for _ in range(2))
    model = random_model(config).float().eval()  # type: ignore[arg-type]
    save_model(model, first)
    loaded = load_model(first)
    assert loaded.config == model.config
    batch = right_padded(data.draw(sentences(config)))  # type: ignore[arg-type]
    assert torch.equal(loaded(batch).logits_BTV, model(batch).logits_BTV)
    save_model(loaded, second)
    for name in ("model.safetensors", "model.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_shared_parameter_sets_are_stored_once_and_come_back_shared(tmp_path: Path) -> None:
    model = build_model(CONFIG)
    save_model(model, tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert sum(tensor.numel() for tensor in stored.values()) == model.n_parameters()
    loaded = load_model(tmp_path)
    assert list(loaded.banks.ffn) == ["both_0"]
    assert loaded.source_embedding is loaded.target_embedding  # type: ignore[union-attr]


def test_wrong_names_shapes_versions_and_damage_are_named(tmp_path: Path) -> None:
    save_model(build_model(CONFIG), tmp_path)
    weights, description = tmp_path / "model.safetensors", tmp_path / "model.json"
    good, text = load_file(weights), description.read_text()
    renamed = {("other" if name == "target_weight" else name): tensor for name, tensor in good.items()}
    save_file(renamed, weights)
    with pytest.raises(CheckpointError, match="missing target_weight; unexpected other"):
        load_model(tmp_path)
    save_file(good | {"target_weight": torch.zeros(3, 8)}, weights)
    with pytest.raises(CheckpointError, match=re.escape("target_weight has shape (3, 8), the model's is (6, 8)")):
        load_model(tmp_path)
    weights.write_bytes(b"not weights")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read as weights"):
        load_model(tmp_path)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read as weights"):
        load_model(tmp_path)
    description.write_text(json.dumps(json.loads(text) | {"format_version": 99}))
    with pytest.raises(CheckpointError, match=r"format version 99, this ostinato .* reads 1"):
        load_model(tmp_path)
    description.write_text(json.dumps({"format_version": 1, "config": {"kind": "seq2seq", "d_modle": 8}}))
    with pytest.raises(CheckpointError, match="not a model configuration"):
        load_model(tmp_path)
    description.write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read as a model description"):
        load_model(tmp_path)
