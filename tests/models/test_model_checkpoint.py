from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from architectures import any_architecture, random_model, right_padded, sentences
from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.config.stack import DecoderConfig, StackConfig
from ostinato.config.sub_layers import DenseFeedForwardConfig
from ostinato.errors import CheckpointError
from ostinato.models import build_model, checkpoint, load_model, save_model
from ostinato.models.checkpoint import save_average
from weights import write_weights

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
@settings(max_examples=12)
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


def test_a_model_in_float64_comes_back_as_it_was_and_others_in_float32(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build_model(CONFIG).double().eval()
    save_model(model, tmp_path)
    loaded = load_model(tmp_path)
    assert all(torch.equal(x, loaded.state_dict()[name]) for name, x in model.state_dict().items())
    assert {p.dtype for p in loaded.parameters()} == {torch.float64}
    save_model(model.bfloat16(), tmp_path)
    assert {p.dtype for p in load_model(tmp_path).parameters()} == {torch.float32}


def test_wrong_names_shapes_versions_and_damage_are_named(tmp_path: Path) -> None:
    save_model(build_model(CONFIG), tmp_path)
    weights, description = tmp_path / "model.safetensors", tmp_path / "model.json"
    good, text = load_file(weights), description.read_text()
    renamed = {("other" if name == "target_weight" else name): tensor for name, tensor in good.items()}
    write_weights(tmp_path, renamed)
    with pytest.raises(CheckpointError, match="missing target_weight; unexpected other"):
        load_model(tmp_path)
    write_weights(tmp_path, good | {"target_weight": torch.zeros(3, 8)})
    with pytest.raises(CheckpointError, match=re.escape("target_weight has shape (3, 8), the model's is (6, 8)")):
        load_model(tmp_path)
    weights.write_bytes(b"not weights")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not the file that was written"):
        load_model(tmp_path)  # it is not parsed
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read as weights"):
        load_model(tmp_path, verify=False)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read as weights"):
        load_model(tmp_path)
    description.write_text(json.dumps(json.loads(text) | {"format_version": 99}))
    with pytest.raises(CheckpointError, match=r"format version 99, this ostinato .* reads 1"):
        load_model(tmp_path)
    description.write_text(json.dumps({"format_version": 1, "config": {"kind": "seq2seq", "d_modle": 8}}))
    with pytest.raises(CheckpointError, match="not a model configuration"):
        load_model(tmp_path)
    for damaged in ({"config": None}, {"config": 3}, {"config": json.loads(text)["config"], "sha256": "abc"}):
        description.write_text(json.dumps({"format_version": 1} | damaged))
        with pytest.raises(CheckpointError, match=r"model\.json: (not a model configuration|is damaged)"):
            load_model(tmp_path)
    description.write_text("{")
    with pytest.raises(CheckpointError, match=r"model.json: is damaged"):
        load_model(tmp_path)


_ATTENTION = {"kind": "experts", "share": "all", "n_experts": 3, "k": 2, "n_heads": 1, "d_head": 4}
_FFN = {"kind": "experts", "share": "all", "n_experts": 4, "k": 3, "d_ff": 4}
_SPARSE_LAYER = {"after": 1, "n_experts": 3, "k": 1, "n_layers": 1, "d_ff": 4}
OLD = {
    "kind": "language_model",
    "d_model": 8,
    "vocab_size": 6,
    "decoder": {"n_steps": 2, "self_attention": _ATTENTION, "ffn": _FFN, "sparse_layer": _SPARSE_LAYER},
}
"""A configuration as it was stored when `top_k` was called `k`."""


def test_a_checkpoint_with_old_names_of_settings_loads_and_has_a_mean_with_a_new_one(tmp_path: Path) -> None:
    new_names = json.loads(json.dumps(OLD).replace('"k"', '"top_k"'))
    model = random_model(LanguageModelConfig.model_validate(new_names)).float()
    old, new, mean = (tmp_path / name for name in ("old", "new", "mean"))
    for folder in (old, new, mean):
        folder.mkdir()
        save_model(model, folder)
    description = {"format_version": 1, "ostinato": "0.1.0", "config": OLD}
    (old / "model.json").write_text(json.dumps(description), encoding="utf-8")
    loaded = load_model(old)
    assert loaded.config == model.config
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in loaded.state_dict().items())
    save_model(loaded, old)
    assert (old / "model.json").read_bytes() == (new / "model.json").read_bytes()
    full = json.loads((new / "model.json").read_text(encoding="utf-8"))
    (old / "model.json").write_text(json.dumps(full).replace('"top_k"', '"k"'), encoding="utf-8")
    save_average([old, new], mean)
    assert (mean / "model.json").read_bytes() == (new / "model.json").read_bytes()


def test_weights_that_are_not_those_that_were_written_are_refused_unless_asked_for(tmp_path: Path) -> None:
    model = build_model(CONFIG)
    save_model(model, tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])  # one flipped bit of one number
    with pytest.raises(CheckpointError, match=r"not the file that was written: its SHA-256 .*verify=False"):
        load_model(tmp_path)
    assert load_model(tmp_path, verify=False).config == CONFIG
    description = json.loads((tmp_path / "model.json").read_text())
    del description["sha256"]  # as earlier versions wrote it
    (tmp_path / "model.json").write_text(json.dumps(description))
    assert load_model(tmp_path).config == CONFIG


@pytest.mark.parametrize("wrong", ["nan", "inf", "int64", "complex64"])
def test_weights_of_another_kind_or_that_are_not_finite_are_refused(tmp_path: Path, wrong: str) -> None:
    save_model(build_model(CONFIG), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = next(iter(weights))
    if wrong in ("nan", "inf"):
        weights[name].view(-1)[0] = float(wrong)
    else:
        weights[name] = weights[name].to(getattr(torch, wrong))
    save_file(weights, tmp_path / "model.safetensors")
    description = json.loads((tmp_path / "model.json").read_text())
    del description["sha256"]
    (tmp_path / "model.json").write_text(json.dumps(description))
    reason = "hold numbers that are not finite" if wrong in ("nan", "inf") else f"is of torch.{wrong}, the model's of"
    with pytest.raises(CheckpointError, match=reason):
        load_model(tmp_path)


@pytest.mark.parametrize("content", ["[1, 2]", "3", "null"])
def test_a_description_that_is_no_object_is_refused(tmp_path: Path, content: str) -> None:
    save_model(build_model(CONFIG), tmp_path)
    (tmp_path / "model.json").write_text(content)
    with pytest.raises(
        CheckpointError, match=r"model.json: is damaged: holds a JSON \w+, not an object|format version None"
    ):
        load_model(tmp_path)


def test_a_run_is_not_a_saved_model(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("name: x\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r" is a run, with tokenizers: ostinato\.load reads it$"):
        load_model(tmp_path)


@pytest.mark.parametrize("kind", ["a device", "a FIFO"])
def test_what_is_no_file_of_weights_is_named_and_not_read(tmp_path: Path, kind: str) -> None:
    save_model(build_model(CONFIG), tmp_path)
    path = tmp_path / "model.safetensors"
    path.unlink()
    if kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)
    for verify in (True, False):
        with pytest.raises(CheckpointError) as caught:
            load_model(tmp_path, verify=verify)
        assert str(caught.value) == f"{path}: is {kind}, not a file"


@pytest.mark.parametrize("fails", ["save_file", "sha256_of", "write_text", "sync"])
def test_a_save_that_fails_leaves_the_earlier_model_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def interrupted(*given: object, **_: object) -> None:
        raise KeyboardInterrupt

    save_model(build_model(CONFIG), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(Path if fails == "write_text" else checkpoint, fails, interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_model(random_model(CONFIG).float(), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    monkeypatch.undo()
    assert load_model(tmp_path).config == CONFIG
