"""The oracle of an evaluation: by hand, as a bound of fixed rounds and of rules, alone and in a batch, and refused."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import product
from typing import Any, cast

import pytest
import torch
from toy_task import DATA, letter_examples, letter_tokenizers, tiny_seq2seq, train_briefly

from architectures import random_model
from ostinato.budget import MacCounter
from ostinato.config.decoding import DecodingConfig
from ostinato.config.halting import ActConfig, StickBreakingConfig
from ostinato.config.lstm import LstmLanguageModelConfig
from ostinato.config.model import EncoderConfig, LanguageModelConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.data.collate import collate
from ostinato.data.rows import encode_examples
from ostinato.errors import ConfigError
from ostinato.evaluation import evaluate
from ostinato.evaluation.oracle import Oracle, oracle_of, oracle_pass, row_name, with_oracle
from ostinato.evaluation.passes import Passes
from ostinato.evaluation.scores import score_sentences
from ostinato.evaluation.threshold import Point, Tuning, sweep
from ostinato.models import Encoder, LanguageModel, LstmLanguageModel, Seq2Seq
from ostinato.nn.execution import CRITERIA_AT_TEST, ExitScope

N_ROUNDS = 4
GREEDY = DecodingConfig(max_length=8)
CORE = {"repeats": N_ROUNDS, "inject": {"kind": "linear"}, "state": {"kind": "zeros"}}
TEXTS = [[5, 6, 7], [4], [9, 8, 8, 4, 5, 10], [7, 7]]


def _stack(**changes: Any) -> dict[str, Any]:
    stack = {"n_steps": 3, "segments": [{}, CORE, {}], "norm": {"kind": "rms", "placement": "pre"}}
    return stack | {"self_attention": {"n_heads": 2}, "ffn": {"d_ff": 24}} | changes


def _language_model(**changes: Any) -> LanguageModel:
    config = {"d_model": 16, "vocab_size": 11, "dropout": 0.0, "decoder": _stack(**changes)}
    return cast(LanguageModel, random_model(LanguageModelConfig.model_validate(config)).eval())


def _encoder(head: str, **changes: Any) -> Encoder:
    n_labels = {} if head in ("masked", "span") else {"n_labels": 3}
    config = {"d_model": 16, "vocab_size": 11, "dropout": 0.0, "head": {"kind": head}, **n_labels}
    config["encoder"] = _stack(**changes)
    return cast(Encoder, random_model(EncoderConfig.model_validate(config)).eval())


def _labelled(model: Encoder, texts: list[list[int]] = TEXTS, seed: int = 0) -> Batch:
    """Return texts with labels of the head's kind, drawn: some of them are what a round of the model says."""
    tokens = Tokens.from_lists([[1, *text, 2] for text in texts])
    draws = torch.Generator().manual_seed(seed)
    kind = model.config.head.kind
    if kind == "classification":
        labels = torch.tensor([[text[0] % 3] for text in texts])
        return Batch(tokens, labels, torch.ones_like(labels, dtype=torch.bool))
    if kind == "span":
        labels = torch.tensor([[2, 2] for _ in texts])
        prefix = torch.tensor([1 for _ in texts])
        return Batch(tokens, labels, torch.ones_like(labels, dtype=torch.bool), prefix_lengths_B=prefix)
    # Two labels a sentence, at its first word and its last one; of texts of one word, the second does not count.
    places = torch.tensor([[1, len(text)] for text in texts])
    counts = torch.tensor([[True, len(text) > 1] for text in texts])
    labels = torch.stack([torch.randint(0, 3, (2,), generator=draws) for _ in texts])
    return Batch(tokens, labels, counts, places_BL=places)


@torch.no_grad()
def _batch(model: LanguageModel | Encoder) -> Batch:
    """Return labels of which some are right after some round; texts of one row are what the model says after two."""
    if isinstance(model, Encoder):
        return _labelled(model)
    batch = Batch.from_lists(TEXTS)
    labels = batch.labels_BT.clone()
    labels[3] = model(batch, n_steps=2).logits_BTV[3].argmax(-1)
    return replace(batch, labels_BT=labels)


MODELS: dict[str, Any] = {
    "language model": _language_model,
    **{head: lambda head=head, **changes: _encoder(head, **changes) for head in ("masked", "tagging")},
    **{head: lambda head=head, **changes: _encoder(head, **changes) for head in ("classification", "span")},
}
OF_LABELS = ["language model", "masked", "tagging"]


def _right(logits: torch.Tensor, batch: Batch) -> tuple[int, int]:
    """Return the labels that are right, and the sentences whose labels all are."""
    scores = score_sentences(logits, batch.labels_BT, batch.loss_mask_BT)
    return sum(one.n_right for one in scores), sum(one.n_right == one.n_labels for one in scores)


@torch.no_grad()
def _by_round(model: LanguageModel | Encoder, batch: Batch) -> list[torch.Tensor]:
    """Return the logits of every fixed number of rounds."""
    return [model(batch, n_steps=r).logits_BTV for r in range(1, N_ROUNDS + 1)]


@torch.no_grad()
def _chosen(model: LanguageModel | Encoder, batch: Batch, scope: ExitScope) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the oracle's logits and the rounds of every token."""
    oracle = oracle_of(model, scope)
    output = oracle_pass(model, oracle, batch)
    trace = output.stacks[oracle.stack].halting
    assert trace is not None
    depth_BT = trace.executed_BTR.sum(-1)
    assert torch.equal((trace.weights_BTR * torch.arange(1, N_ROUNDS + 1)).sum(-1), depth_BT.float())
    return output.logits_BTV, depth_BT


@pytest.mark.parametrize("scope", ["token", "sequence"])
@pytest.mark.parametrize("kind", list(MODELS))
def test_every_label_is_that_of_the_first_number_of_rounds_that_has_it_right(kind: str, scope: ExitScope) -> None:
    model = MODELS[kind]()
    batch = _batch(model)
    by_round, (found, depth_BT) = _by_round(model, batch), _chosen(model, batch, scope)
    is_whole, seen = scope == "sequence" or kind not in OF_LABELS, set()
    for row in range(len(TEXTS)):
        labels = [i for i in range(batch.labels_BT.shape[1]) if batch.loss_mask_BT[row, i]]
        right = [[int(logits[row, i].argmax()) == batch.labels_BT[row, i] for i in labels] for logits in by_round]
        if is_whole:
            right = [[all(one)] * len(labels) for one in right]
        expected = {i: next((r for r, one in enumerate(right, 1) if one[n]), N_ROUNDS) for n, i in enumerate(labels)}
        for i, depth in expected.items():
            torch.testing.assert_close(found[row, i], by_round[depth - 1][row, i], rtol=0, atol=1e-10)
        places = {i: i if batch.places_BL is None else int(batch.places_BL[row, i]) for i in labels}
        of_labels = {} if is_whole else {places[i]: depth for i, depth in expected.items()}
        for column in batch.target.keep_BT[row].nonzero()[:, 0].tolist():
            # Tokens without a label go as deep as the deepest of their sentence.
            assert depth_BT[row, column] == of_labels.get(column, max(expected.values()))
        seen |= set(expected.values())
    assert len(seen) > 1


@pytest.mark.parametrize("kind", list(MODELS))
def test_no_fixed_number_of_rounds_is_right_more_often(kind: str) -> None:
    model = MODELS[kind]()
    batch = _batch(model)
    fixed = [_right(logits, batch) for logits in _by_round(model, batch)]
    labels, sentences = (_right(_chosen(model, batch, scope)[0], batch) for scope in ("token", "sequence"))
    assert sentences[1] >= max(whole for _, whole in fixed)
    if kind in OF_LABELS:
        assert labels[0] >= max(right for right, _ in fixed)
        assert labels[1] >= sentences[1]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("kind", "criterion"),
    # A classification says nothing of single tokens.
    [*product(["masked", "tagging"], CRITERIA_AT_TEST), *product(["classification", "span"], ["change", "cosine"])],
)
def test_no_criterion_is_right_about_more_sentences_where_they_stop_as_a_whole(kind: str, criterion: str) -> None:
    model = MODELS[kind]()
    batch = _batch(model)
    _, best = _right(_chosen(model, batch, "sequence")[0], batch)
    for threshold in (0.05, 0.2, 0.5, 0.8, 0.95):
        with torch.no_grad(), model.execution(exit=criterion, exit_scope="sequence", halting_threshold=threshold):
            assert _right(model(batch).logits_BTV, batch)[1] <= best


@pytest.mark.parametrize("criterion", CRITERIA_AT_TEST)
def test_no_criterion_is_right_about_more_tokens_that_see_no_other_one(criterion: str) -> None:
    # One token a sentence: what others look like, once they have stopped, plays no part.
    model = _language_model()
    batch = Batch.from_lists([[] for _ in range(40)])
    ids = torch.arange(40)[:, None] % 11
    batch = Batch(Tokens(ids, torch.ones_like(ids, dtype=torch.bool)), (3 * ids) % 11, batch.loss_mask_BT)
    best, _ = _right(_chosen(model, batch, "token")[0], batch)
    for threshold in (0.05, 0.2, 0.5, 0.8, 0.95):
        with torch.no_grad(), model.execution(exit=criterion, halting_threshold=threshold):
            assert _right(model(batch).logits_BTV, batch)[0] <= best


@pytest.mark.parametrize("scope", ["token", "sequence"])
@pytest.mark.parametrize("kind", list(MODELS))
def test_a_sentence_is_chosen_for_alone_as_in_a_batch(kind: str, scope: ExitScope) -> None:
    model = MODELS[kind]()
    found, depth_BT = _chosen(model, _batch(model), scope)
    for row, text in enumerate(TEXTS):
        batch = _batch(model).rows(slice(row, row + 1))
        n = len(text) + (2 if isinstance(model, Encoder) else 1)
        alone, depth_1T = _chosen(model, batch, scope)
        assert torch.equal(depth_1T[0, :n], depth_BT[row, :n])
        counts = batch.loss_mask_BT[0]
        torch.testing.assert_close(alone[0, counts], found[row, counts], rtol=0, atol=1e-10)


@pytest.mark.parametrize("halting", [{"kind": "act"}, {"kind": "exit", "threshold": 0.5, "freeze_halted_state": False}])
def test_a_rule_and_a_criterion_of_the_stack_are_replaced(halting: dict[str, Any]) -> None:
    model, batch = _language_model(halting=halting), Batch.from_lists(TEXTS)
    with model.execution(halting=False):
        by_round = _by_round(model, batch)
    expected = sum(
        any(logits[row, i].argmax() == batch.labels_BT[row, i] for logits in by_round)
        for row, i in batch.loss_mask_BT.nonzero().tolist()
    )
    assert _right(_chosen(model, batch, "token")[0], batch)[0] == expected
    with model.execution(exit="change", halting_threshold=0.2):
        assert _right(_chosen(model, batch, "token")[0], batch)[0] == expected


@pytest.mark.parametrize(
    ("halting", "is_bound"),
    [
        ({"kind": "act"}, False),
        ({"kind": "stick_breaking"}, False),
        ({"kind": "exit"}, True),
        ({"kind": "none"}, True),
    ],
)
def test_a_model_that_mixes_its_rounds_may_exceed_the_oracle_and_tables_say_so(
    halting: dict[str, Any], is_bound: bool
) -> None:
    model = _language_model(halting=halting)
    draws = torch.Generator().manual_seed(0)
    batch = Batch.from_lists(torch.randint(4, 11, (80, 10), generator=draws).tolist())
    with torch.no_grad():
        batch = replace(batch, labels_BT=model(batch).logits_BTV.argmax(-1))  # it is always right
    best, _ = _right(_chosen(model, batch, "token")[0], batch)
    assert (best == int(batch.loss_mask_BT.sum())) == is_bound
    point = Point(None, {}, 1.0, {}, {}, 0.0, None)
    found = Tuning("update-1", "dev", "bleu", 1.0, 0.0, 80, (point,), point, oracle=point, oracle_metric="bleu")
    assert row_name(found, model) == ("oracle" if is_bound else "oracle (no bound)")
    forced = replace(found, oracle_metric="token_accuracy")
    assert row_name(forced, model) == f"oracle (token_accuracy{'' if is_bound else ', no bound'})"


def test_sentences_of_a_loop_of_several_states_are_chosen_for_as_a_whole() -> None:
    states = [{"name": "low", "state": {"kind": "zeros"}, "adds": ["high"]}, {"name": "high", "adds": ["low"]}]
    segment = {"n_steps": 2, "repeats": N_ROUNDS, "states": states}
    model = _encoder("tagging", n_steps=2, segments=[segment])
    batch = _batch(model)
    assert oracle_of(model, "token") == Oracle("encoder", "sequence")
    best = _right(_chosen(model, batch, "token")[0], batch)[1]
    assert best >= max(_right(logits, batch)[1] for logits in _by_round(model, batch))


# --- evaluations -----------------------------------------------------------------------------------------------------


def _numbers(model: Seq2Seq, size: int = 64, oracle: ExitScope | None = None, **changes: Any) -> dict[str, Any]:
    data = DATA.model_copy(update={"eval_tokens_per_batch": size})
    settings: dict[str, Any] = {"data": data, "decoding": GREEDY, "metrics": [], "by": ["even"]} | changes
    return evaluate(model, letter_examples(40, longest=2), letter_tokenizers(), oracle=oracle, **settings)


def _seq2seq(**halting: Any) -> Seq2Seq:
    config = tiny_seq2seq(letter_tokenizers().target.vocab_size, n_steps=N_ROUNDS).config
    stacks = {name: getattr(config, name).model_copy(update={"halting": rule}) for name, rule in halting.items()}
    torch.manual_seed(3)
    model = Seq2Seq(config.model_copy(update=stacks)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


@pytest.fixture(scope="module")
def trained() -> Seq2Seq:
    """Return a model that has some sentences right."""
    model = tiny_seq2seq(letter_tokenizers().target.vocab_size, n_steps=N_ROUNDS)
    train_briefly(model, letter_tokenizers(), n_updates=5)
    return model.eval()


@pytest.mark.parametrize("scope", ["token", "sequence"])
def test_an_evaluation_reports_score_rounds_and_cost_whatever_the_batch_size(
    trained: Seq2Seq, scope: ExitScope
) -> None:
    model, metric = trained, "token_accuracy" if scope == "token" else "sequence_accuracy_forced"
    found = _numbers(model, oracle=scope)
    assert found["oracle"] == {"stack": "decoder", "scope": scope}
    assert found["depth"]["encoder"] == N_ROUNDS
    assert 1 < found["depth"]["decoder"] < N_ROUNDS
    assert 0 < found[metric] < 1
    assert found["macs"]["realised"] < found["macs"]["full"]
    assert "exit" not in found
    assert "halting_threshold" not in found
    assert set(found["halting"]) == {"decoder"}
    for rounds in range(1, N_ROUNDS + 1):
        with model.execution(rounds={"decoder": rounds}):
            assert found[metric] >= _numbers(model)[metric]
    for size in (1, 37, 10_000):
        other = _numbers(model, size, oracle=scope)
        for name in ("token_accuracy", "sequence_accuracy_forced", "macs", "depth", "halting"):
            assert other[name] == found[name]
        assert other["loss"] == pytest.approx(found["loss"], rel=1e-5)
        assert other["by"]["even"]["True"]["macs"] == found["by"]["even"]["True"]["macs"]


def test_macs_are_those_of_tokens_that_stop_where_they_are_right_and_pay_for_no_criterion() -> None:
    model = _seq2seq()
    found = _numbers(model, oracle="token")
    counter = MacCounter(model.config, exits={"decoder": False})
    total = 0
    for row in encode_examples(letter_examples(40, longest=2), letter_tokenizers(), DATA, training=False, name="dev"):
        batch = collate([row])
        with torch.no_grad():
            trace = oracle_pass(model, oracle_of(model, "token"), batch).stacks["decoder"].halting
        assert trace is not None
        depths = trace.executed_BTR[0].sum(-1).tolist()
        assert batch.source is not None
        counts = {"encoder": [0] * (N_ROUNDS - 1) + [batch.source.ids_BT.shape[1]]}
        counts["decoder"] = [depths.count(r) for r in range(1, N_ROUNDS + 1)]
        total += counter.count(counts).realised
    assert found["macs"]["realised"] == pytest.approx(total / 40)


def test_other_stacks_keep_their_rules() -> None:
    rules = {"encoder": ActConfig(initial_bias=-0.5), "decoder": StickBreakingConfig(threshold=0.8)}
    model = _seq2seq(**rules)
    own, found = _numbers(model), _numbers(model, oracle="token")
    assert 1 < own["depth"]["encoder"] == found["depth"]["encoder"] < N_ROUNDS
    assert found["halting_threshold"] == {"encoder": pytest.approx(0.99)}
    assert own["halting"]["encoder"] == found["halting"]["encoder"]


def test_no_round_is_called_skipped_that_is_computed_for_halted_tokens() -> None:
    listing = ActConfig(initial_bias=-0.5, mix="interpolate", freeze_halted_state=False, force_remainder_at_max=False)
    model = _seq2seq(encoder=listing, decoder=listing)
    points, n = sweep(model, "token_accuracy", [0.5], lambda: _numbers(model))
    for point in points:
        assert point.skipped == {"encoder": 0.0, "decoder": 0.0}
        assert point.macs["realised"] == point.macs["full"]
    # A criterion freezes the tokens that it stops, and so does an oracle in its own stack.
    stopped = sweep(model, "token_accuracy", [0.5], lambda: _numbers(model), exit="change")[0][1]
    assert min(stopped.skipped.values()) > 0
    assert stopped.macs["realised"] < stopped.macs["full"]
    tuning = Tuning("update-1", "dev", "token_accuracy", 1.0, 0.0, n, tuple(points), points[0])
    oracle = with_oracle(tuning, model, "token_accuracy", lambda scope: _numbers(model, oracle=scope)).oracle
    assert oracle is not None
    assert oracle.skipped["encoder"] == 0 < oracle.skipped["decoder"]


@pytest.mark.parametrize("chosen", [{"halting_threshold": 0.3}, {"exit": "change", "halting_threshold": 0.5}])
def test_what_was_chosen_for_other_stacks_too_is_refused(chosen: dict[str, Any]) -> None:
    rules = {"encoder": ActConfig(initial_bias=-0.5), "decoder": StickBreakingConfig(threshold=0.8)}
    model = _seq2seq(**rules)
    with (
        model.execution(**chosen),
        pytest.raises(ConfigError, match="tokens of the encoder halt, too: evaluate by the"),
    ):
        oracle_of(model, "token")
    half = _seq2seq(encoder=ActConfig(initial_bias=-0.5))
    with half.execution(exit="certainty", halting_threshold=0.9):  # which stops nobody in the encoder
        assert oracle_of(half, "token").stack == "decoder"
    only = _language_model(halting={"kind": "act"})
    with only.execution(halting_threshold=0.3):  # which is the oracle's own stack
        assert oracle_of(only, "token").stack == "decoder"


def test_a_sentence_without_a_label_that_counts_is_that_of_all_rounds() -> None:
    model = _language_model().eval()
    batch = Batch.from_lists([[5, 6, 7], [4, 8]])
    silent = replace(batch, loss_mask_BT=batch.loss_mask_BT & torch.tensor([[True], [False]]))
    with torch.no_grad():
        found = oracle_pass(model, Oracle("decoder", "sequence"), silent)
        whole = model(silent)
    torch.testing.assert_close(found.logits_BTV[1], whole.logits_BTV[1], rtol=1e-5, atol=1e-5)


def test_another_process_is_given_the_oracle_and_gives_back_its_choice() -> None:
    model, work = _seq2seq(), pickle.loads(pickle.dumps(Passes(None, oracle=Oracle("decoder", "token"))))
    texts = [[4 + i % 6 for i in text] for text in TEXTS]
    batch = Batch.from_lists(texts, texts)
    with torch.no_grad():
        found = work(model, batch)
        chosen = oracle_pass(model, Oracle("decoder", "token"), batch)
    assert found.scores == score_sentences(chosen.logits_BTV, batch.labels_BT, batch.loss_mask_BT)
    assert torch.equal(work.unpack(work.pack(found)).depths["decoder"], found.depths["decoder"])


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: _language_model(segments=[], n_steps=3, steps_per_round=3), "runs one round"),
        (lambda: _language_model(halting={"kind": "select"}), "routers choose the tokens of every round"),
    ],
)
def test_a_model_without_rounds_to_choose_from_is_refused(model: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"oracle is 'token': .*{reason}"):
        oracle_of(model(), "token")


def test_a_recurrence_and_what_is_written_are_refused() -> None:
    recurrent = LstmLanguageModel(LstmLanguageModelConfig(d_model=8, vocab_size=9, n_layers=1))
    with pytest.raises(ConfigError, match=r"oracle is 'token': this model has no rounds"):
        oracle_of(recurrent, "token")
    with pytest.raises(ConfigError, match=r"oracle is 'token': reads the right answers, which decoding does not know"):
        _numbers(_seq2seq(), oracle="token", metrics=["exact_match"])
