"""n-best lists, scores of tokens, shortest and longest outputs, and forced prefixes of a search."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_model import TableModel, pad, plain_beams, sources
from torch import Tensor

from ostinato.config.decoding import DecodingConfig, LengthPenaltyConfig
from ostinato.config.load import check_recipe
from ostinato.data.collate import Row, collate
from ostinato.decoding import Hypothesis, length_penalty, search, search_n_best
from ostinato.decoding.search import _lengths
from ostinato.errors import ConfigError
from ostinato.nn.cache import Cache

BOS, EOS = 1, 2
PENALTIES = [
    LengthPenaltyConfig(kind="none"),
    LengthPenaltyConfig(kind="gnmt", alpha=0.6),
    LengthPenaltyConfig(kind="exponent", alpha=1.0),
]
ROWS = [[3], [4, 5, 6], [7, 8], [3, 3, 4, 8, 6], [5, 7]]
PREFIXES = [[BOS], [BOS, 4, 5], [BOS, 8], [BOS, 3, 3, 3], [BOS]]


def ended(h: Hypothesis) -> list[int]:
    return h.ids + [EOS] * h.finished


def of_strategy(strategy: str, **more: object) -> DecodingConfig:
    chosen = {"strategy": strategy, "beam": 4 if strategy == "beam" else 1, "max_length": 12, "seed": 3}
    return DecodingConfig.model_validate(chosen | more)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    vocab=st.integers(4, 6),
    least=st.integers(0, 4),
    limit=st.integers(1, 4),
    penalty=st.sampled_from(PENALTIES),
    n_best=st.integers(1, 6),
)
def test_the_n_best_of_a_full_beam_are_those_of_all_sequences(
    seed: int, vocab: int, least: int, limit: int, penalty: LengthPenaltyConfig, n_best: int
) -> None:
    model, words, least = TableModel(vocab, seed), range(3, vocab), min(least, limit)
    every = [
        (model.log_prob([3, 4], [BOS], [*ids, EOS]) / length_penalty(penalty, n + 1), list(ids))
        for n in range(max(least - 1, 0), limit)
        for ids in itertools.product(words, repeat=n)
    ]
    width = max(n_best, 2, sum((vocab - 3) ** n for n in range(limit + 1)))
    config = of_strategy(
        "beam", beam=width, n_best=n_best, max_length=limit, min_length=least, length_penalty=penalty.model_dump()
    )
    (found,) = search_n_best(model, sources([[3, 4]]), config)
    expected = sorted(every, key=lambda scored: -scored[0])[:n_best]
    assert [h.score for h in found] == pytest.approx([score for score, _ in expected], abs=1e-5)
    assert [h.ids for h in found] == [ids for _, ids in expected]


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    beam=st.integers(2, 6),
    limit=st.integers(1, 9),
    end=st.floats(-3.0, 3.0),
    stopping=st.sampled_from(["bound", "count"]),
    penalty=st.sampled_from(PENALTIES),
)
def test_n_best_lists_are_sorted_and_distinct_and_begin_with_the_best(
    seed: int, beam: int, limit: int, end: float, stopping: str, penalty: LengthPenaltyConfig
) -> None:
    model = TableModel(9, seed, bias={EOS: end})
    chosen = {"beam": beam, "max_length": limit, "stopping": stopping, "length_penalty": penalty.model_dump()}
    lists = search_n_best(model, sources(ROWS), of_strategy("beam", **chosen, n_best=beam))
    assert [found[0] for found in lists] == search(model, sources(ROWS), of_strategy("beam", **chosen))
    for row, found in zip(ROWS, lists, strict=True):
        assert 1 <= len(found) <= beam
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
        assert len({(*h.ids,) for h in found}) == len(found)
        assert len({h.finished for h in found}) == 1, "live ones only where none has finished"
        for h in found:
            assert h.finished or h.n_tokens == limit
            assert h.log_prob == pytest.approx(model.log_prob(row, [BOS], ended(h)), abs=1e-4)
            assert h.score == pytest.approx(h.log_prob / length_penalty(penalty, h.n_tokens), abs=1e-5)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    beam=st.integers(2, 5),
    n_best=st.integers(1, 5),
    penalty=st.sampled_from([*PENALTIES, LengthPenaltyConfig(kind="gnmt", alpha=2.0)]),
)
def test_stopping_by_the_bound_gives_the_lists_of_a_search_that_never_stops(
    seed: int, beam: int, n_best: int, penalty: LengthPenaltyConfig
) -> None:
    model, n_best = TableModel(9, seed, bias={EOS: 1.0}), min(beam, n_best)
    config = of_strategy("beam", beam=beam, n_best=n_best, length_penalty=penalty.model_dump())
    for row, found in zip(ROWS, search_n_best(model, sources(ROWS), config), strict=True):
        finished, _ = plain_beams(model, row, beam, 12, penalty)
        expected = sorted(finished, key=lambda scored: -scored[0])[:n_best]
        assert [h.ids for h in found if h.finished] == [ids for _, ids in expected]
        assert [h.score for h in found if h.finished] == pytest.approx([score for score, _ in expected], abs=1e-5)


def test_an_n_best_list_is_the_same_alone_and_in_a_batch() -> None:
    model, config = TableModel(11, 1, bias={EOS: 0.7}), of_strategy("beam", n_best=4, token_scores=True)
    rows = [[3 + (i * j) % 8 for j in range(1, 2 + i % 6)] for i in range(24)]
    for row, found in zip(rows, search_n_best(model, sources(rows), config), strict=True):
        (alone,) = search_n_best(model, sources([row]), config)
        assert [h.ids for h in found] == [h.ids for h in alone]
        for a, b in zip(found, alone, strict=True):
            assert a.token_log_probs == pytest.approx(b.token_log_probs, abs=1e-5)


def test_what_has_finished_gives_its_place_to_what_lives_and_leaves_the_batch() -> None:
    model, rows = TableModel(12, 3, bias={EOS: 1.5}), [[3 + i % 8, 3 + i // 8] for i in range(32)]
    fed: list[list[int]] = []
    step = model.step

    def watched(ids_BT: Tensor, cache: Cache, keep_BT: Tensor | None = None) -> Tensor:
        fed.append(ids_BT[:, -1].tolist())
        return step(ids_BT, cache, keep_BT)

    model.step = watched  # type: ignore[method-assign]
    config = of_strategy("beam", stopping="count", max_length=40)
    together = search(model, sources(rows), config)
    assert not any(EOS in ids for ids in fed), "nothing goes on after an end symbol"
    n_sentences = [len(ids) // 4 for ids in fed[1:]]
    n_steps = []
    for row, h in zip(rows, together, strict=True):
        fed.clear()
        assert search(model, sources([row]), config)[0].ids == h.ids
        n_steps.append(len(fed) - 1)
    for place, n in enumerate(n_sentences):
        n_live = sum(last > place for last in n_steps)
        assert n_live <= n <= n_live / (1 - 1 / 8)


@pytest.mark.parametrize("strategy", ["greedy", "sample", "beam"])
@pytest.mark.parametrize("end", [-50.0, 1.0])
def test_tokens_have_the_models_log_probabilities_where_they_are_asked_for(strategy: str, end: float) -> None:
    model = TableModel(11, 4, bias={EOS: end})
    plain = search(model, sources(ROWS), of_strategy(strategy), prefix=pad(PREFIXES, left=True))
    scored = search(model, sources(ROWS), of_strategy(strategy, token_scores=True), prefix=pad(PREFIXES, left=True))
    assert [h.ids for h in scored] == [h.ids for h in plain]
    assert any(h.finished for h in scored) == (end > 0)
    for row, prefix, before, h in zip(ROWS, PREFIXES, plain, scored, strict=True):
        assert before.token_log_probs is None
        assert h.token_log_probs is not None
        assert len(h.token_log_probs) == h.n_tokens
        assert math.fsum(h.token_log_probs) == pytest.approx(h.log_prob, abs=1e-4)
        for place, (token, log_prob) in enumerate(zip(ended(h), h.token_log_probs, strict=True)):
            assert log_prob == pytest.approx(model.log_prob(row, prefix + h.ids[:place], [token]), abs=1e-4)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    strategy=st.sampled_from(["greedy", "sample", "beam"]),
    least=st.tuples(st.integers(0, 6), st.sampled_from([0.0, 0.5, 1.0])),
    room=st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.5, 1.5])),
    end=st.floats(-4.0, 4.0),
)
def test_no_output_is_shorter_or_longer_than_it_may_be(
    seed: int, strategy: str, least: tuple[int, float], room: tuple[int, float], end: float
) -> None:
    model = TableModel(9, seed, bias={EOS: end})
    most, ratio = max(1, least[0] + room[0]), least[1] + room[1]
    lengths = {"min_length": least[0], "min_length_ratio": least[1], "max_length": most, "max_length_ratio": ratio}
    for row, h in zip(ROWS, search(model, sources(ROWS), of_strategy(strategy, **lengths)), strict=True):
        shortest = least[0] + math.floor(least[1] * len(row))
        longest = most + math.floor(ratio * len(row))
        assert h.n_tokens <= longest
        assert h.finished or h.n_tokens == longest
        assert h.n_tokens >= shortest
        assert h.log_prob == pytest.approx(model.log_prob(row, [BOS], ended(h)), abs=1e-4), "not renormalised"


def test_a_shortest_length_changes_only_what_would_be_shorter() -> None:
    model, rows = TableModel(11, 1, bias={EOS: 0.7}), [[3 + i % 8, 3 + i // 8] for i in range(40)]
    free = search(model, sources(rows), of_strategy("greedy"))
    held = search(model, sources(rows), of_strategy("greedy", min_length=4))
    long_enough = [h.n_tokens >= 4 for h in free]
    assert 5 < sum(long_enough) < 35
    assert [a == b for a, b in zip(free, held, strict=True)] == long_enough
    starts = [b.ids[: len(a.ids)] for a, b in zip(free, held, strict=True)]
    assert starts == [a.ids for a in free], "what was chosen before the end symbol stays"
    assert all(h.n_tokens >= 4 for h in held)


def test_a_greedy_search_from_its_own_beginning_ends_as_it_did() -> None:
    model, config = TableModel(11, 5, bias={EOS: 0.5}), of_strategy("greedy", max_length=20)
    free = search(model, sources(ROWS), config)
    assert max(len(h.ids) for h in free) > 3
    for cut in (1, 2, 3):
        begun = [h.ids[:cut] for h in free]
        found = search(model, sources(ROWS), config, prefix=pad([[BOS, *ids] for ids in begun], left=True))
        for whole, ids, h in zip(free, begun, found, strict=True):
            assert ids + h.ids == whole.ids


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    strategy=st.sampled_from(["greedy", "sample", "beam"]),
    prefix=st.lists(st.integers(3, 10), min_size=1, max_size=5),
)
def test_a_search_from_a_prefix_is_the_search_continued_from_it(seed: int, strategy: str, prefix: list[int]) -> None:
    model, config = TableModel(11, seed, bias={EOS: 0.5}), of_strategy(strategy, token_scores=True)
    found = search(model, sources(ROWS), config, prefix=pad([[BOS, *prefix]] * len(ROWS)))
    # What the toy model knows of a hypothesis is its source and its tokens in a row, wherever one ends.
    read = [[*row, BOS, *prefix[:-1]] for row in ROWS]
    assert found == search(model, sources(read), config, prefix=pad([prefix[-1:]] * len(ROWS)))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"n_best": 2}, "decoding.n_best is 2: must be at most decoding.beam = 1"),
        ({"strategy": "beam", "beam": 4, "n_best": 5}, "decoding.n_best is 5: must be at most decoding.beam = 4"),
        (
            {"min_length": 9, "max_length": 8},
            "decoding.min_length is 9: no output is as long: decoding.max_length is 8",
        ),
        ({"min_length": -1}, "decoding.min_length is -1"),
    ],
)
def test_impossible_lengths_and_lists_are_named(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_recipe({"decoding": settings})
    assert check_recipe({"decoding": {"min_length": 9, "max_length": 8, "max_length_ratio": 1.0}}).decoding.min_length


def test_ratios_are_decimal_numbers() -> None:
    config = DecodingConfig(max_length=1, max_length_ratio=0.29, min_length_ratio=0.29)
    rows = [Row([4] * n, []) for n in (99, 199)]  # with the end symbol 100 and 200 tokens
    assert _lengths(collate(rows), collate(rows).target, config, None, is_static=False) == [(29, 30), (58, 59)]


def test_where_the_longest_is_less_than_the_shortest_the_longest_holds() -> None:
    model = TableModel(9, 2, bias={EOS: 30.0})
    lengths = {"min_length": 4, "max_length": 0, "max_length_ratio": 2.0}
    found = search(model, sources([[3], [3, 4, 5]]), of_strategy("greedy", **lengths))
    assert [h.n_tokens for h in found] == [2, 4]
