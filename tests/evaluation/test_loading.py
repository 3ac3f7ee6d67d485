from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from toy_task import DATA, letter_examples, letter_tokenizers, tiny_seq2seq, train_briefly

import ostinato
from ostinato.config.decoding import DecodingConfig
from ostinato.config.load import dump_recipe
from ostinato.config.recipe import EvaluationConfig, Recipe, TaskRef
from ostinato.decoding.generate import Generation
from ostinato.errors import CheckpointError, ConfigError, DataError
from ostinato.evaluation import evaluate
from ostinato.evaluation.loading import load
from ostinato.models import save_model


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with two checkpoints of different weights."""
    directory = tmp_path_factory.mktemp("runs") / "letters"
    tokenizers = letter_tokenizers()
    model = tiny_seq2seq(tokenizers.target.vocab_size)
    for update, roles in ((30, ["best"]), (60, ["last"])):
        train_briefly(model, tokenizers, 30)
        folder = directory / "checkpoints" / f"update-{update:06d}"
        folder.mkdir(parents=True)
        save_model(model, folder)
        for role in roles:
            note = {"directory": folder.name, "update": update}
            (folder.parent / f"{role}.json").write_text(json.dumps(note), encoding="utf-8")
    tokenizers.save(directory / "tokenizers")
    test = directory.parent / "test.jsonl"
    lines = [{"source": e.source, "target": e.target, **e.columns} for e in letter_examples(12)]
    test.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    recipe = Recipe(
        name="letters",
        task=TaskRef(kind="files"),
        data=DATA.model_copy(update={"train": str(test), "test": str(test)}),
        model=model.config,
        decoding=DecodingConfig(max_length=12),
        evaluation=EvaluationConfig(by=["length"]),
    )
    dump_recipe(recipe, directory / "recipe.yaml")
    return directory


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """A run directory to damage."""
    return Path(shutil.copytree(run, tmp_path / "copy"))


@pytest.mark.sampled
def test_a_run_generates_what_its_model_and_recipe_say(run: Path) -> None:
    loaded = ostinato.load(run, device="cpu")
    assert loaded.recipe.name == "letters"
    assert not loaded.model.training
    texts = [e.source or "" for e in letter_examples(12)]
    outputs = loaded.generate(texts)
    assert outputs == [g.text for g in loaded.generations(texts)]
    assert outputs == [g.text for g in loaded.stream(iter(texts)) if isinstance(g, Generation)]
    assert len(set(outputs)) > 4
    assert max(len(text.split()) for text in outputs) <= 12
    assert loaded.generate(texts, max_length=2) == [" ".join(text.split()[:2]) for text in outputs]


def test_best_last_a_name_and_a_path_choose_the_checkpoint(run: Path) -> None:
    best, last = load(run), load(run, checkpoint="last")
    assert (best.checkpoint.name, last.checkpoint.name) == ("update-000030", "update-000060")
    named = load(str(run), checkpoint="update-000060")
    by_path = load(run, checkpoint=run / "checkpoints" / "update-000060")
    for name, tensor in last.model.state_dict().items():
        assert torch.equal(tensor, named.model.state_dict()[name])
        assert torch.equal(tensor, by_path.model.state_dict()[name])
    assert not torch.equal(best.model.target_weight, last.model.target_weight)


def test_an_override_chooses_the_checkpoint_where_none_is_named(run: Path) -> None:
    overrides = ["evaluation.checkpoint=last"]
    assert load(run, device="cpu").checkpoint.name == "update-000030"
    assert load(run, device="cpu", overrides=overrides).checkpoint.name == "update-000060"
    assert load(run, device="cpu", checkpoint="best", overrides=overrides).checkpoint.name == "update-000030"


def test_evaluating_a_run_equals_evaluating_its_model(run: Path, tmp_path: Path) -> None:
    loaded, path = load(run), tmp_path / "predictions.jsonl"
    result = loaded.evaluate("test", predictions=path)
    direct = evaluate(
        loaded.model,
        letter_examples(12),
        loaded.tokenizers,
        data=loaded.recipe.data,
        decoding=loaded.recipe.decoding,
        metrics=["exact_match", "token_accuracy_free"],
        by=["length"],
        name="test",
    )
    untimed = {"seconds": 0, "decoding_seconds": 0}
    assert result | untimed == direct | untimed
    assert len(path.read_text(encoding="utf-8").splitlines()) == 12
    short = loaded.evaluate("test", metrics=[], by=["even"], max_examples=5, n_steps=3)
    assert (short["n"], short["n_steps"], list(short["by"])) == (5, 3, ["even"])
    assert "exact_match" not in short
    with pytest.raises(ConfigError, match=r"split is 'gen': the task .* has the splits train, test"):
        loaded.evaluate("gen")


def test_a_beam_or_a_strategy_alone_is_enough(run: Path) -> None:
    loaded = load(run, overrides=["decoding.strategy=beam", "decoding.beam=3"])
    assert (loaded.decoding().strategy, loaded.decoding().beam) == ("beam", 3)
    assert (loaded.decoding(beam=5).strategy, loaded.decoding(beam=5).beam) == ("beam", 5)
    assert (loaded.decoding(beam=1).strategy, loaded.decoding(beam=1).beam) == ("greedy", 1)
    assert (loaded.decoding(strategy="sample").strategy, loaded.decoding(strategy="sample").beam) == ("sample", 1)
    texts = [e.source or "" for e in letter_examples(12)]
    scores = [[g.log_prob for g in loaded.generations(texts, beam=k, length_penalty={"kind": "none"})] for k in (1, 4)]
    assert sum(scores[1]) > sum(scores[0]), "a wider beam finds more probable outputs"


@pytest.mark.parametrize("change", ["model.decoder.n_steps=3", "model={dropout: 0.5}"])
def test_a_model_is_loaded_as_it_was_trained(run: Path, change: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(run, overrides=["decoding.max_length=3", change])
    assert str(error.value) == (
        f"{change.partition('=')[0]} is {change.partition('=')[2]!r}: a run's model is loaded as it was trained: leave "
        "it out, or train another (training.init_from)"
    )


@pytest.mark.parametrize("change", ["data.tokenizer.min_count=2", "data.target_tokenizer={kind: words}"])
def test_the_tokenizers_are_those_of_the_training(run: Path, change: str) -> None:
    key, _, value = change.partition("=")
    with pytest.raises(ConfigError) as error:
        load(run, overrides=["data.tokens_per_batch=9", change])
    reason = "a run keeps the tokenizers that it was trained with: leave it out"
    assert str(error.value) == f"{key} is {value!r}: {reason}"


def test_prefixes_and_lists_are_asked_of_a_run(run: Path) -> None:
    loaded = load(run, overrides=["decoding.strategy=beam", "decoding.beam=4", "decoding.n_best=3"])
    free, forced = loaded.generate(["a b", "b a"]), loaded.generate(["a b", "b a"], prefixes=["", "b b a"])
    assert forced[0] == free[0]
    assert forced[1].startswith("b b a")
    assert [len(g.others) for g in loaded.generations(["a b"])] == [2]
    assert (loaded.decoding(beam=2).n_best, loaded.decoding(strategy="sample").n_best) == (2, 1)
    with pytest.raises(ConfigError, match=r"n_best is 2: one output .* generations"):
        loaded.generate(["a b"], n_best=2)
    assert loaded.generate(["a b"], n_best=1) == free[:1]
    with pytest.raises(DataError, match="2 texts, but 1 prefixes"):
        loaded.generate(["a", "b"], prefixes=["a"])


def test_a_wrong_decoding_setting_is_named(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"decoding.max_lenght") as caught:
        load(run).generate(["a"], max_lenght=3, temperature=-1.0)
    assert "decoding.temperature is -1.0" in str(caught.value)


def test_texts_that_cannot_be_read_are_data_errors(run: Path) -> None:
    loaded = load(run)
    for ask in (
        lambda: loaded.generate("a b"),
        lambda: list(loaded.stream("a b")),
        lambda: loaded.generate(["a", "b"], prefixes="ab"),
    ):
        with pytest.raises(DataError, match="a list of texts is needed"):
            ask()
    with pytest.raises(DataError, match="input line 2: nan is no text"):
        loaded.generate(["a", math.nan])  # type: ignore[list-item]
    assert str([*loaded.stream(["a", None, "b"])][1]) == "input line 2: None is no text"  # type: ignore[list-item]
    with pytest.raises(DataError, match="input line 2: 'z'"):
        loaded.generate(["a", "z"])
    answers = list(loaded.stream(["a", "z", "b"]))
    assert [isinstance(answer, DataError) for answer in answers] == [False, True, False]


def test_a_directory_that_is_no_run_is_a_named_error(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such directory"):
        load(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"lacks recipe.yaml, tokenizers, checkpoints; it is a saved model"):
        load(copy / "checkpoints" / "update-000030")
    shutil.rmtree(copy / "tokenizers")
    with pytest.raises(CheckpointError, match=r"it lacks tokenizers$"):
        load(copy)


def test_a_checkpoint_that_is_not_there_is_a_named_error(copy: Path) -> None:
    with pytest.raises(CheckpointError, match=r"update-9 is no checkpoint of .*: update-000030, update-000060"):
        load(copy, checkpoint="update-9")
    shutil.rmtree(copy / "checkpoints" / "update-000030")
    with pytest.raises(CheckpointError, match=r"best.json names update-000030, which is not there; .*update-000060"):
        load(copy)
    (copy / "checkpoints" / "best.json").unlink()
    with pytest.raises(CheckpointError, match=r"no best checkpoint yet.*checkpoint='last'"):
        load(copy)
    (copy / "checkpoints" / "last.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"last\.json: is damaged"):
        load(copy, checkpoint="last")


@pytest.mark.parametrize("device", ["abacus", "cuda:77"])
def test_a_device_that_is_not_there_is_a_config_error(run: Path, device: str) -> None:
    with pytest.raises(ConfigError, match=f"device is '{device}'"):
        load(run, device=device)
