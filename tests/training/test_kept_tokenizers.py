"""Runs whose tokenizers are of another library, with ids of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from kept_tokenizers import LAST, WORDS, keep_tokenizer

from ostinato.budget import count_parameters
from ostinato.config.recipe import Recipe
from ostinato.data.collate import collate
from ostinato.data.rows import encode_rows
from ostinato.errors import ConfigError
from ostinato.evaluation.loading import load
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.registry import build_task
from ostinato.tasks.vocabulary import size_model
from ostinato.training import train

SMALL = (
    "training.n_updates=0",
    "training.n_threads=1",
    "evaluation.max_examples=2",
    "training.selection.max_examples=2",
    "model.d_model=8",
)
ENCODER = ("model.encoder={n_steps: 1, self_attention: {n_heads: 2}, ffn: {d_ff: 8}}",)
DECODER = ("model.kind=language_model", "model.decoder={n_steps: 1, self_attention: {n_heads: 2}, ffn: {d_ff: 8}}")
OF_TEXTS = ("task={kind: files, model_kind: language_model}",)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("the cat runs\nthe dog sat on the mat\nblack cat\n", encoding="utf-8")
    return path


def recipe_of(base: str, data: Path, *settings: str) -> Recipe:
    return load_recipe(base, [f"data.train={data}", f"data.dev={data}", *SMALL, *settings])


def test_tokenizers_of_two_sides_have_the_same_special_ids(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"source": "the cat", "target": "cat the"}) + "\n", encoding="utf-8")
    first = keep_tokenizer(tmp_path / "first", ("<pad>", "<s>", "</s>", "<unk>", *WORDS))
    second = keep_tokenizer(tmp_path / "second")
    kept = [f"data.tokenizer={{kind: hf, path: {first}}}", f"data.target_tokenizer={{kind: hf, path: {second}}}"]
    recipe = recipe_of("files/template", pairs, *kept, "model.tie_embeddings=none")
    with pytest.raises(
        ConfigError, match=r"data\.target_tokenizer .* has the special ids .*'bos': 10.* must be the same"
    ):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_words_of_a_fact_do_not_depend_on_the_longest_of_the_batch(tmp_path: Path) -> None:
    stories = tmp_path / "stories.jsonl"
    rows = [
        {"source": f"{fact}\tthe mat", "target": fact.split()[0]} for fact in ("the cat", "black dog sat on the mat")
    ]
    stories.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    kept = keep_tokenizer(tmp_path / "kept")
    settings = (f"data.tokenizer={{kind: hf, path: {kept}}}", "model.embedder={kind: facts, max_words: 8}", *ENCODER)
    recipe = recipe_of(
        "files/template", stories, *settings, "model.kind=encoder", "model.head={kind: classification, pooling: mean}"
    )
    train(recipe, tmp_path / "run")
    run = load(tmp_path / "run", device="cpu")
    assert run.model.special_ids.pad == LAST.index("<pad>")
    examples = build_task(run.recipe.task, run.recipe.data).examples("dev")
    first, second = encode_rows(examples, run.tokenizers, run.recipe.data, run.model.config, training=False, name="dev")
    with torch.no_grad():
        alone, both = run.model(collate([first])).logits_BTV, run.model(collate([first, second])).logits_BTV
    torch.testing.assert_close(alone[0], both[0], rtol=0, atol=1e-6)


def test_a_mask_symbol_of_its_own_has_no_second_row(tmp_path: Path, texts: Path) -> None:
    kept = keep_tokenizer(tmp_path / "kept")
    recipe = recipe_of("masked/small", texts, f"data.tokenizer={{kind: hf, path: {kept}}}", *ENCODER)
    sized = size_model(recipe)
    results = train(recipe, tmp_path / "run")
    assert sized.target == len(LAST)
    assert count_parameters(sized.model).stored == results["parameters"]


@pytest.mark.parametrize("extends", [False, True])
def test_a_run_that_starts_from_another_is_counted_with_its_vocabulary(
    tmp_path: Path, texts: Path, extends: bool
) -> None:
    train(recipe_of("lm/transformer", texts, *OF_TEXTS, *DECODER, "data.tokenizer.kind=words"), tmp_path / "first")
    other = tmp_path / "other.txt"
    other.write_text("the bird sat\n", encoding="utf-8")
    start = (f"training.init_from={tmp_path / 'first'}", f"training.extend_vocabulary={str(extends).lower()}")
    settings = (*OF_TEXTS, *DECODER, "data.tokenizer.kind=words", "data.unknown=replace", *start)
    recipe = recipe_of("lm/transformer", other, *settings)
    sized = size_model(recipe)
    results = train(recipe, tmp_path / "second")
    assert sized.target == load(tmp_path / "second", device="cpu").tokenizers.target.vocab_size
    assert count_parameters(sized.model).stored == results["parameters"]
