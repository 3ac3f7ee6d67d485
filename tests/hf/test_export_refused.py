"""What cannot be exported, and exported folders that are damaged, are refused in one line, and no pickle is read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra hf")

import runs
import transformers
from safetensors.torch import load_file, save_file

import ostinato.hf  # noqa: F401  (registers the classes)
from ostinato.errors import CheckpointError, ConfigError
from ostinato.evaluation.loading import LoadedRun
from ostinato.hf.export import export_run, wrapped
from ostinato.tasks.recipes import load_recipe


def test_what_cannot_be_exported_or_read_is_refused(made: Any, tmp_path: Path) -> None:
    run, folder = made("looped")
    with pytest.raises(CheckpointError, match="is there already, and nothing is overwritten"):
        export_run(run, folder)
    other = tmp_path / "other"
    runs.auto(run).from_pretrained(folder).save_pretrained(other)
    weights = load_file(other / "model.safetensors")
    changed = {name: x for name, x in weights.items() if "target_weight" not in name} | {"model.more": torch.ones(2)}
    save_file(changed, other / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"target_weight is missing; model\.more is not known"):
        runs.auto(run).from_pretrained(other)
    with pytest.raises(CheckpointError, match=r"is for models of the kind seq2seq: .* has language_model"):
        transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def pickled(file: Path) -> None:
    torch.save(load_file(file), file.with_name("pytorch_model.bin"))
    file.unlink()


def disguised(file: Path) -> None:
    """Put a pickle in the place of safetensors: reading it as one would do what it says."""
    file.write_bytes(b"cos\nsystem\n(S'touch " + bytes(file.with_name("ran")) + b"'\ntR.")


def narrower(file: Path) -> None:
    weights = load_file(file)
    weights["model.target_weight"] = weights["model.target_weight"][:, :-1].contiguous()
    save_file(weights, file, {"format": "pt"})


def misconfigured(file: Path) -> None:
    given = json.loads(file.with_name("config.json").read_text())
    given["model"]["d_model"] = "x"
    file.with_name("config.json").write_text(json.dumps(given))


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (Path.unlink, r"no weights that can be read \(safetensors only\): .*model\.safetensors"),
        (truncated, r"no weights that can be read \(safetensors only\): .*not fully covered"),
        (pickled, r"no weights that can be read \(safetensors only\): .*model\.safetensors"),
        (disguised, r"no weights that can be read \(safetensors only\): .*header"),
        (narrower, r"its weights are not the model's: model\.target_weight is \[\d+, 15\], and must be \[\d+, 16\]"),
        (misconfigured, r"config\.json: model\.language_model\.d_model is 'x': Input should be a valid integer"),
    ],
)
def test_damaged_folders_are_refused_in_one_line(made: Any, damage: Any, line: str, tmp_path: Path) -> None:
    run, folder = made("looped")
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    damage(copy / "model.safetensors")
    with pytest.raises(CheckpointError, match=line) as caught:
        runs.auto(run).from_pretrained(copy)
    assert "\n" not in str(caught.value)
    assert not (copy / "ran").exists()


def assert_refused(run: LoadedRun, folder: Path, line: str) -> None:
    """Check that an export ends with one line and leaves nothing behind."""
    with pytest.raises(CheckpointError, match=line) as caught:
        export_run(run, folder)
    assert "\n" not in str(caught.value)
    assert not folder.exists()


def test_models_that_have_no_class_there_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(runs.RUNS, "recurrent", ("agreement/lstm", ["data.tokenizer={kind: words}"]))
    prefix = runs.make_run("looped", tmp_path / "prefix", "model.mask=prefix")
    recurrent = runs.make_run("recurrent", tmp_path / "recurrent")
    for run, line in (
        (prefix, r"a prefix language model \(model\.mask=prefix\) has no class in transformers"),
        (recurrent, "model.kind is 'lstm_language_model': recurrences are not exported"),
    ):
        assert_refused(run, tmp_path / "out", line)


def test_encoders_of_facts_are_refused(tmp_path: Path) -> None:
    run = SimpleNamespace(model=SimpleNamespace(config=load_recipe("babi/universal-facts").model))
    with pytest.raises(CheckpointError, match="an encoder that reads facts"):
        wrapped(run)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["halting", "looped"])
def test_half_precision_that_a_model_cannot_run_in_is_refused(made: Any, name: str) -> None:
    run, folder = made(name)
    if name == "halting":
        with pytest.raises(
            CheckpointError, match=r"cannot run in bfloat16: .* call it under torch\.autocast"
        ) as caught:
            runs.auto(run).from_pretrained(folder, dtype=torch.bfloat16)
        assert "\n" not in str(caught.value)
    model = runs.auto(run).from_pretrained(folder, dtype=torch.float32 if name == "halting" else torch.bfloat16)
    ids = torch.tensor([[1, 5, 6, 7]])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=name == "halting"):
        found = model(input_ids=ids).logits
        expected = run.model(ids).logits_BTV
    torch.testing.assert_close(found.float(), expected.float(), rtol=0.05, atol=0.05)


def test_a_model_in_float16_reads_padded_texts(made: Any) -> None:
    run, folder = made("looped")
    model = runs.auto(run).from_pretrained(folder, dtype=torch.float16)
    ids, mask = torch.tensor([[1, 5, 6, 7], [0, 0, 1, 5]]), torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    with torch.no_grad():
        found = model(input_ids=ids, attention_mask=mask).logits[1, 2:]
        expected = run.model(ids[1:, 2:]).logits_BTV[0]
    torch.testing.assert_close(found.float(), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("name", ["looped", "pairs", "masked", "span"])
def test_arguments_that_a_call_does_not_know_are_refused(made: Any, name: str) -> None:
    run, folder = made(name)
    model = runs.auto(run).from_pretrained(pretrained_model_name_or_path=folder)
    ids, places = torch.tensor([[1, 5, 6, 7]]), torch.arange(4)[None]
    given = {"input_ids": ids} | ({"decoder_input_ids": ids} if name == "pairs" else {})
    with torch.no_grad():
        model(**given, position_ids=places, cache_position=places[0])
        for wrong, line in (
            ({"n_step": 1}, "n_step is 'int': is no argument of this model"),
            ({"position_ids": torch.tensor([[0, 1, 0, 1]])}, "must count the real tokens of every row"),
            *[({"position_ids": places + 7}, "must count the real tokens of every row")] * (name != "pairs"),
            ({"attention_mask": torch.ones(1, 1, 4, 4)}, r"attention_mask is \[1, 1, 4, 4\]: must be of columns"),
        ):
            with pytest.raises(ConfigError, match=line):
                model(**given, **wrong)


def test_a_criterion_without_a_threshold_is_refused_at_the_call(made: Any) -> None:
    run, folder = made("looped")
    runs.auto(run).from_pretrained(folder, exit="change", dtype=torch.bfloat16)
    model = runs.auto(run).from_pretrained(folder, exit="change")
    with pytest.raises(ConfigError, match="exit is 'change': needs a halting_threshold"):
        model(input_ids=torch.tensor([[1, 5]]))


def test_tokenizers_that_cannot_be_fast_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = runs.make_run("pairs", tmp_path / "two", "data.target_tokenizer={kind: characters}")
    monkeypatch.setattr(runs, "TEXTS", [*runs.TEXTS, "a <pad> of paper"])
    words = runs.make_run("looped", tmp_path / "words")
    for run, line in (
        (two, r"source and target have a tokenizer each, .*: train with a joint one \(no data\.target_tokenizer\)"),
        (words, "the vocabulary has words that are special symbols of the exported tokenizer"),
    ):
        assert_refused(run, tmp_path / "out", line)


def test_a_vocabulary_stays_as_large_as_it_is(made: Any) -> None:
    run, folder = made("looped")
    model = runs.auto(run).from_pretrained(folder)
    size = model.get_input_embeddings().num_embeddings
    for same in (None, size):
        assert model.resize_token_embeddings(same).num_embeddings == size
    with pytest.raises(
        ConfigError, match=f"new_num_tokens is {size + 1}: the vocabulary of this model stays at {size}"
    ):
        model.resize_token_embeddings(size + 1)
