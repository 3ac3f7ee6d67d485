"""What the page writes with models whose prompts or symbols are not the usual ones is what `generate` writes."""

from __future__ import annotations

import math
from pathlib import Path

import opened_runs  # noqa: F401, skips where the page's extra is not here
import pytest
from kept_tokenizers import keep_tokenizer

from ostinato.data.example import Example
from ostinato.errors import DataError
from ostinato.evaluation.loading import LoadedRun, load
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train
from ostinato.viewer.calls import Call
from ostinato.viewer.inspecting import inspect
from ostinato.viewer.opened import OpenRun, open_runs
from ostinato.viewer.reading import Given
from ostinato.viewer.schema import Limits, Output, Sentence, Token
from ostinato.viewer.writing import generate


@pytest.mark.parametrize("kind", ["prefix", "kept"])
def test_what_the_page_writes_is_what_generate_writes(kind: str, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("the cat runs\nthe dog sat on the mat\n", encoding="utf-8")
    kept = f"data.tokenizer={{kind: hf, path: {keep_tokenizer(tmp_path / 'kept')}}}"
    settings = [
        "task={kind: files, model_kind: language_model}",
        f"data.train={texts}",
        f"data.dev={texts}",
        "training={n_updates: 0, n_threads: 1, selection: {max_examples: 2}}",
        "evaluation.max_examples=2",
        "model={kind: language_model, d_model: 8, decoder: {n_steps: 2, self_attention: {n_heads: 2}, ffn: {d_ff: 8}}}",
        *(["model.mask=prefix", "data.tokenizer.kind=words"] if kind == "prefix" else [kept]),
    ]
    train(load_recipe("lm/transformer", settings), tmp_path / "run")
    run = load(tmp_path / "run", device="cpu")
    opened = open_runs({"run": run}, Limits(tokens=64))["run"]
    sentence, lines = Sentence(run="run", text="the cat", max_length=6), list[Token | Output]()
    generate(opened, sentence, Call(60), lines.append)
    (expected,) = run.generations(["the cat"], max_length=6)
    found = lines[-1]
    assert isinstance(found, Output)
    assert found.output.text == expected.text
    assert found.output.score == pytest.approx(expected.score)
    # Looked at again with this output, every token of it is as probable as in the search.
    seen = inspect(opened, sentence, Call(60))
    again = inspect(opened, sentence.model_copy(update={"output_ids": found.output.ids}), Call(60))
    assert again.predictions == seen.predictions
    opened.close()
    short = load(tmp_path / "run", device="cpu", overrides=["data.max_target_length=2"])
    opened = open_runs({"run": short}, Limits(tokens=64))["run"]
    with pytest.raises(DataError, match=r"^text: \d tokens, but data\.max_target_length is 2: a prompt is not cut"):
        generate(opened, sentence, Call(60), lines.append)
    opened.close()


def _untrained(folder: Path, pair: str, *settings: str) -> tuple[LoadedRun, OpenRun]:
    """Return an untrained run on pairs, and the same as the page opens it."""
    pairs = folder / "pairs.tsv"
    pairs.write_text("source\ttarget\n" + f"{pair}\n" * 8, encoding="utf-8")
    stack = "n_steps: 1, self_attention: {n_heads: 2}, ffn: {d_ff: 8}"
    model = [
        f"model.encoder={{{stack}}}",
        f"model.decoder={{{stack}, cross_attention: {{n_heads: 2}}}}",
        "model.d_model=8",
    ]
    others = "training={n_updates: 0, n_threads: 1}", "decoding={strategy: greedy, beam: 1, max_length_ratio: 0.0}"
    data = [f"data.train={pairs}", f"data.dev={pairs}"]
    train(load_recipe("files/template", [*data, *model, *others, *settings]), folder / "run")
    run = load(folder / "run", device="cpu")
    return run, open_runs({"run": run}, Limits(tokens=64))["run"]


def test_what_was_written_of_subwords_is_looked_at_as_the_search_wrote_it(tmp_path: Path) -> None:
    run, opened = _untrained(tmp_path, "a b c\tc b a", "data.tokenizer={kind: bpe, vocab_size: 270}")
    (expected,) = run.generations(["a b c"], max_length=5)
    seen = inspect(opened, Sentence(run="run", text="a b c", max_length=5), Call(60))
    assert seen.output is not None
    assert seen.output.text == expected.text
    (decoder,) = (stack for stack in seen.stacks if stack.name == "decoder")
    assert len(decoder.tokens) == 1 + len(seen.output.ids)  # the begin symbol, and no blank of an empty text
    n = len(seen.output.ids)
    found = sum(label.bits or 0.0 for label in seen.predictions.labels[: n + expected.finished])
    assert found * math.log(2) == pytest.approx(-expected.log_prob, rel=1e-3)
    opened.close()


def test_ones_own_text_is_changed_as_pairs_of_its_task_are(tmp_path: Path) -> None:
    task = "task={kind: translation, corpus: files, swap_sides: true, normalise: romanian}"
    run, opened = _untrained(tmp_path, "a b\t\u0219i \u021bara", "data.tokenizer.kind=words", task)
    cedillas = "\u015fi \u0163ara"  # not in the vocabulary, which has these letters with commas
    seen = inspect(opened, Sentence(run="run", text=cedillas, max_length=4), Call(60))
    assert seen.output is not None
    assert [seen.output.text] == run.generate([cedillas], max_length=4)
    (encoder,) = (stack for stack in seen.stacks if stack.name == "encoder")
    assert [token.text for token in encoder.tokens[:2]] == ["\u0219i", "\u021bara"]
    opened.close()


def test_any_of_several_answers_is_right_where_an_example_has_them() -> None:
    squad = Given(Example("who won", "Denver Broncos\tBroncos"), knows_answer=True, has_several=True)
    assert [squad.is_right(text) for text in ("Denver  Broncos", "Broncos", "Denver")] == [True, True, False]
    assert not Given(squad.example, knows_answer=True).is_right("Broncos")
