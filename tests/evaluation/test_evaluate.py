from __future__ import annotations

import gc
import json
import math
import sys
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from toy_task import DATA, ConstantModel, letter_examples, letter_tokenizers, tiny_seq2seq, train_briefly

from ostinato.config.decoding import DecodingConfig
from ostinato.config.model import LanguageModelConfig
from ostinato.config.stack import StackConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig
from ostinato.data.batching import evaluation_batches
from ostinato.data.collate import Row, collate
from ostinato.data.example import Example
from ostinato.data.rows import encode_examples
from ostinato.data.tokenizers import Tokenizers
from ostinato.errors import ConfigError, DataError
from ostinato.evaluation import PredictionWriter, evaluate
from ostinato.kernels import packed
from ostinato.models import LanguageModel, Seq2Seq

GREEDY = DecodingConfig(max_length=12)


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    return letter_tokenizers()


@pytest.fixture(scope="module")
def model(tokenizers: Tokenizers) -> Seq2Seq:
    model = tiny_seq2seq(tokenizers.target.vocab_size)
    train_briefly(model, tokenizers, 60)
    return model


def numbers(result: dict[str, Any]) -> dict[str, Any]:
    """A result without what differs from run to run."""
    return {key: value for key, value in result.items() if key not in ("seconds", "decoding_seconds")}


def naive(model: Seq2Seq, examples: list[Example], tokenizers: Tokenizers, limit: int) -> list[dict[str, Any]]:
    """Every example by itself: one full forward pass for the labels, and one per generated token."""
    found = []
    model.eval()
    for row in encode_examples(examples, tokenizers, DATA, training=False, name="naive"):
        batch = collate([row])
        log_p_TV = torch.log_softmax(model(batch).logits_BTV[0].double(), 1)
        labels = batch.labels_BT[0].tolist()
        ids: list[int] = []
        while len(ids) < limit and (not ids or ids[-1] != 2):
            prompt = collate([type(row)(row.source_ids, ids, {}, 0)])
            logits_V = model(prompt).logits_BTV[0, -1]
            logits_V[:2] = -torch.inf
            ids.append(int(logits_V.argmax()))
        found.append(
            {
                "nll": -sum(float(log_p_TV[t, label]) for t, label in enumerate(labels)),
                "right": [int(log_p_TV[t].argmax()) == label for t, label in enumerate(labels)],
                "prediction": tokenizers.target.decode([i for i in ids if i != 2]),
                "n_generated": len(ids),
            }
        )
    return found


@pytest.mark.sampled
@torch.no_grad()
def test_every_number_equals_a_plain_loop_over_single_examples(model: Seq2Seq, tokenizers: Tokenizers) -> None:
    examples = letter_examples(30)
    expected = naive(model, examples, tokenizers, 12)
    result = evaluate(
        model, examples, tokenizers, data=DATA, decoding=GREEDY, metrics=["exact_match"], by=["length"], name="dev"
    )

    def check(result: dict[str, Any], wanted: list[int]) -> None:
        rows = [expected[i] for i in wanted]
        n_labels = sum(len(row["right"]) for row in rows)
        loss = math.fsum(row["nll"] for row in rows) / n_labels
        matches = [expected[i]["prediction"] == examples[i].target for i in wanted]
        assert (result["n"], result["n_labels"]) == (len(rows), n_labels)
        assert result["loss"] == pytest.approx(loss, abs=1e-5)
        assert result["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
        assert result["token_accuracy"] == sum(sum(row["right"]) for row in rows) / n_labels
        assert result["sequence_accuracy_forced"] == sum(all(row["right"]) for row in rows) / len(rows)
        assert result["exact_match"] == pytest.approx(sum(matches) / len(rows))

    check(result, list(range(30)))
    assert 0 < result["exact_match"] < 1
    assert set(result["by"]["length"]) == {str(len(e.target.split())) for e in examples}
    for value, group in result["by"]["length"].items():
        check(group, [i for i, e in enumerate(examples) if str(e.columns["length"]) == value])
    assert result["n_generated"] == sum(row["n_generated"] for row in expected)
    assert result["n_unfinished"] == sum(row["n_generated"] == 12 for row in expected)
    assert (result["name"], result["decoding"]["strategy"]) == ("dev", "greedy")
    assert result["seconds"] > result["decoding_seconds"] > 0


@pytest.mark.sampled
@pytest.mark.parametrize("decoding", [GREEDY, DecodingConfig(strategy="beam", beam=3, max_length=12)])
def test_results_do_not_depend_on_the_batch_size(
    model: Seq2Seq, tokenizers: Tokenizers, decoding: DecodingConfig
) -> None:
    results = [
        evaluate(
            model,
            letter_examples(40),
            tokenizers,
            data=DATA.model_copy(update={"eval_tokens_per_batch": size}),
            decoding=decoding,
            metrics=["exact_match", "token_accuracy_free"],
            by=["even"],
        )
        for size in (1, 37, 10_000)
    ]
    flat = [
        {(group, key): value for group, part in [("", r), *r["by"]["even"].items()] for key, value in part.items()}
        for r in results
    ]
    for other in flat[1:]:
        for key, value in flat[0].items():
            if isinstance(value, int | float) and key[1] not in ("seconds", "decoding_seconds"):
                assert other[key] == pytest.approx(value, abs=1e-5), key


def test_macro_means_count_every_category_once(model: Seq2Seq, tokenizers: Tokenizers) -> None:
    result = evaluate(
        model, letter_examples(30), tokenizers, data=DATA, decoding=GREEDY, metrics=["exact_match"], by=["length"]
    )
    groups = list(result["by"]["length"].values())
    for key in ("loss", "exact_match", "sequence_accuracy_forced"):
        assert result["macro"]["length"][key] == pytest.approx(sum(g[key] for g in groups) / len(groups))
    assert "n" not in result["macro"]["length"]


def test_evaluating_twice_agrees_and_changes_nothing(model: Seq2Seq, tokenizers: Tokenizers) -> None:
    model.train()
    model.banks.eval()  # A mode a user may have chosen for a part.
    modes = [module.training for module in model.modules()]
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    # Not Python's own generator: the suite's run-time type checks draw from it.
    states = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
    sampling = DecodingConfig(strategy="sample", max_length=12)
    results = [
        evaluate(model, letter_examples(20), tokenizers, data=DATA, decoding=sampling, metrics=["exact_match"])
        for _ in range(2)
    ]
    assert numbers(results[0]) == numbers(results[1])
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == str(np.random.get_state())  # noqa: NPY002
    assert torch.is_grad_enabled()
    model.train()


def test_training_goes_on_the_same_after_an_evaluation(tokenizers: Tokenizers) -> None:
    finals = []
    for is_evaluated in (False, True):
        model = tiny_seq2seq(tokenizers.target.vocab_size)
        for _ in range(2):
            train_briefly(model, tokenizers, 2)
            if is_evaluated:
                evaluate(model, letter_examples(5), tokenizers, data=DATA, decoding=GREEDY, metrics=["exact_match"])
        finals.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(finals[0], finals[1])


def test_without_metrics_nothing_is_decoded(tokenizers: Tokenizers) -> None:
    class Forced(ConstantModel):
        encode = None  # type: ignore[assignment]

    model = Forced(torch.zeros(tokenizers.target.vocab_size))
    result = evaluate(model, letter_examples(9), tokenizers, data=DATA, decoding=GREEDY, metrics=[])  # type: ignore[arg-type]
    assert result["loss"] == pytest.approx(math.log(tokenizers.target.vocab_size))
    assert result["perplexity"] == pytest.approx(tokenizers.target.vocab_size)
    assert "decoding" not in result
    assert "exact_match" not in result


def test_max_examples_are_spread_evenly_over_all(model: Seq2Seq, tokenizers: Tokenizers) -> None:
    examples = letter_examples(21)
    result = evaluate(model, iter(examples), tokenizers, data=DATA, decoding=GREEDY, metrics=[], max_examples=7)
    every_third = evaluate(model, examples[::3], tokenizers, data=DATA, decoding=GREEDY, metrics=[])
    assert numbers(result) == numbers(every_third)


@torch.no_grad()
def test_a_language_model_is_measured_by_its_loss(tokenizers: Tokenizers) -> None:
    torch.manual_seed(0)
    stack = StackConfig(n_steps=1, self_attention=AttentionConfig(n_heads=2), ffn=DenseFeedForwardConfig(d_ff=8))
    model = LanguageModel(LanguageModelConfig(d_model=8, vocab_size=tokenizers.target.vocab_size, decoder=stack))
    examples = [Example(None, example.target, example.columns) for example in letter_examples(20)]
    result = evaluate(model, examples, tokenizers, data=DATA, decoding=GREEDY, metrics=[], by=["even"], max_examples=20)
    model.eval()
    nll = n_labels = 0.0
    for example in examples:
        ids = tokenizers.target.encode(example.target)
        log_p_TV = torch.log_softmax(model(collate([Row(None, ids)])).logits_BTV[0].double(), 1)
        nll -= sum(float(log_p_TV[t, token]) for t, token in enumerate([*ids, 2]))
        n_labels += len(ids) + 1
    assert result["loss"] == pytest.approx(nll / n_labels, abs=1e-5)
    assert sum(group["n_labels"] for group in result["by"]["even"].values()) == n_labels


def test_n_steps_runs_another_depth(model: Seq2Seq, tokenizers: Tokenizers) -> None:
    two, same, four = (
        evaluate(model, letter_examples(7), tokenizers, data=DATA, decoding=GREEDY, metrics=[], n_steps=n)
        for n in (None, 2, 4)
    )
    assert two["loss"] == same["loss"]
    assert abs(two["loss"] - four["loss"]) > 1e-4
    assert four["n_steps"] == 4


def test_rounds_of_the_execution_are_counted_as_those_of_a_call(model: Seq2Seq, tokenizers: Tokenizers) -> None:
    settings: dict[str, Any] = {"data": DATA, "decoding": GREEDY, "metrics": ["exact_match"]}
    for n in (1, 5):
        by_call = evaluate(model, letter_examples(6), tokenizers, **settings, n_steps=n)
        with model.execution(rounds=dict.fromkeys(model.stacks, n)):
            by_execution = evaluate(model, letter_examples(6), tokenizers, **settings)
        assert by_execution["depth"] == dict.fromkeys(model.stacks, n)
        assert numbers(by_execution) | {"n_steps": n} == numbers(by_call)


def test_rounds_are_cached_where_something_is_decoded(model: Seq2Seq, tokenizers: Tokenizers) -> None:
    settings: dict[str, Any] = {"data": DATA, "decoding": GREEDY}
    with model.execution(cached_rounds=1):
        found = evaluate(model, letter_examples(6), tokenizers, **settings, metrics=["exact_match"])
        assert found["cached_rounds"] == 1
        with pytest.raises(ConfigError, match=r"^cached_rounds is 1: nothing is decoded here"):
            evaluate(model, letter_examples(6), tokenizers, **settings, metrics=[])
    assert "cached_rounds" not in evaluate(model, letter_examples(6), tokenizers, **settings, metrics=["exact_match"])


def test_predictions_are_written_with_their_rows(model: Seq2Seq, tokenizers: Tokenizers, tmp_path: Path) -> None:
    examples, path = letter_examples(25), tmp_path / "out" / "predictions.jsonl"
    with PredictionWriter(path) as writer:
        result = evaluate(
            model,
            examples,
            tokenizers,
            data=DATA,
            decoding=GREEDY,
            metrics=["exact_match"],
            predictions=writer,
        )
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [record["index"] for record in records] == list(range(25))
    for record in records:
        example = examples[record["index"]]
        assert (record["source"], record["reference"]) == (example.source, example.target)
        assert record["columns"] == example.columns
        assert record["score"] < 0
    right = sum(record["prediction"] == record["reference"] for record in records)
    assert right / 25 == pytest.approx(result["exact_match"])


def test_records_are_written_in_order_as_soon_as_those_before_them_are(tmp_path: Path) -> None:
    with PredictionWriter(tmp_path / "out.jsonl") as write:
        for index in (2, 0, 1, 7, 5):
            write({"index": index})
        assert [index for index, *_ in write._held] == [5, 7]
    found = [json.loads(line)["index"] for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert found == [0, 1, 2, 5, 7]


def test_a_failed_evaluation_leaves_no_predictions(model: Seq2Seq, tokenizers: Tokenizers, tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    examples = [*letter_examples(3), Example("a z", "z a", {})]
    with pytest.raises(DataError, match=r"dev: example 4.*'z'"), PredictionWriter(path) as writer:
        evaluate(model, examples, tokenizers, data=DATA, decoding=GREEDY, metrics=[], name="dev", predictions=writer)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_memory_does_not_grow_with_the_split(tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["ostinato.evaluation.evaluate"]  # By name: the package has a function of the same name.
    monkeypatch.setattr(module, "evaluation_batches", partial(evaluation_batches, window=30))
    logits_V = torch.zeros(tokenizers.target.vocab_size)
    logits_V[2] = 9.0
    model, data = ConstantModel(logits_V), DATA.model_copy(update={"eval_tokens_per_batch": 4096})
    some = letter_examples(50)

    def peak(n: int) -> int:
        stream = (Example(some[i % 50].source, f"{some[i % 50].target}", {"even": i % 2}) for i in range(n))
        tracemalloc.start()
        result = evaluate(
            model, stream, tokenizers, data=data, decoding=GREEDY, metrics=["exact_match", "bleu"], by=["even"]
        )  # type: ignore[arg-type]
        assert result["n"] == n
        _, top = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return top

    # Garbage in cycles is collected often: how much of it waits at a peak is chance. Python collects what is older when
    # it is a quarter of what was left the last time, which must not be all that other tests made.
    gc.collect()
    gc.freeze()
    gc.collect()
    thresholds = gc.get_threshold()
    gc.set_threshold(100, 1, 1)
    try:
        # More examples than wait for one another; 16 bytes for each further one would not even hold one number. What is
        # kept from the first time on, such as a cache, is in one peak of a size only.
        few, many = (min(peak(n), peak(n)) for n in (4_000, 8_000))
        assert many - few < 4_000 * 16
    finally:
        gc.set_threshold(*thresholds)


def test_white_space_of_the_reference_does_not_count(tokenizers: Tokenizers) -> None:
    logits_V = torch.zeros(tokenizers.target.vocab_size)
    logits_V[2] = 9.0
    result = evaluate(
        ConstantModel(logits_V),  # type: ignore[arg-type]
        [Example("a", "  ")],
        tokenizers,
        data=DATA,
        decoding=GREEDY,
        metrics=["exact_match"],
    )
    assert result["exact_match"] == 1.0


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"metrics": ["exact_match", "blue"]}, ConfigError, r"'blue'.*exact_match"),
        ({"by": ["colour"]}, DataError, r"example \d+ has no column 'colour'; its columns are: length, even"),
        ({"examples": []}, DataError, "dev: there are no examples"),
        ({"examples": [Example(None, "a b")], "metrics": ["exact_match"]}, ConfigError, "no source to decode from"),
        ({"examples": [Example("a", "b", {"id": i}) for i in range(1001)], "by": ["id"]}, DataError, "1000 values"),
    ],
)
def test_what_cannot_be_evaluated_is_a_named_error(
    tokenizers: Tokenizers, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    model = ConstantModel(torch.zeros(tokenizers.target.vocab_size))
    settings = {"examples": letter_examples(3), "metrics": [], "by": []} | changes
    with pytest.raises(error, match=message):
        evaluate(model, tokenizers=tokenizers, data=DATA, decoding=GREEDY, name="dev", **settings)


@pytest.mark.parametrize("mask", ["causal", "prefix"])
@pytest.mark.parametrize("example", [Example(None, "a b c"), Example("a b", "c", continues=True)])
def test_texts_have_no_source_whatever_their_model_sees_of_them(
    tokenizers: Tokenizers, mask: Literal["causal", "prefix"], example: Example
) -> None:
    stack = StackConfig(n_steps=1, self_attention=AttentionConfig(n_heads=2), ffn=DenseFeedForwardConfig(d_ff=8))
    config = LanguageModelConfig(mask=mask, d_model=8, vocab_size=tokenizers.target.vocab_size, decoder=stack)
    score = partial(evaluate, LanguageModel(config), [example], tokenizers, data=DATA, decoding=GREEDY)
    assert score(metrics=[])["n"] == 1
    with pytest.raises(ConfigError, match=r"evaluation\.metrics is \['exact_match'\]: texts have no source to decode"):
        score(metrics=["exact_match"])
    written: list[dict[str, Any]] = []
    with pytest.raises(ConfigError, match="no outputs can be written: texts have no source to decode from"):
        score(metrics=[], predictions=written.append)
    assert not written


@pytest.mark.parametrize("packs", [True, False])
def test_weights_are_packed_where_the_settings_say_so(
    model: Seq2Seq, tokenizers: Tokenizers, packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    pack = packed._pack
    monkeypatch.setattr(packed, "_pack", lambda weight: seen.append(True) or pack(weight))
    monkeypatch.setattr(packed, "_most_rows", lambda weight: 0)  # so few rows need no copy
    decoding = GREEDY.model_copy(update={"pack_weights": packs})
    evaluate(model, letter_examples(5), tokenizers, data=DATA, decoding=decoding, metrics=["exact_match"])
    assert bool(seen) == (packs and packed.has_packed_products())


def test_predictions_are_json_also_where_a_column_is_no_number(tmp_path: Path) -> None:
    with PredictionWriter(tmp_path / "out.jsonl") as write:
        write({"index": 0, "score": float("nan"), "of": [1.5, float("inf")]})

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    [line] = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line, parse_constant=refuse) == {"index": 0, "score": None, "of": [1.5, None]}
