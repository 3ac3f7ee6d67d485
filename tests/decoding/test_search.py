from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from table_model import TableModel, pad, plain_beams, sources
from torch import Tensor

from ostinato.config.decoding import DecodingConfig, LengthPenaltyConfig
from ostinato.config.special_ids import SpecialIds
from ostinato.decoding import Hypothesis, length_penalty, search, search_n_best
from ostinato.errors import DataError
from ostinato.nn.cache import Cache

BOS, EOS = 1, 2
NO_PENALTY = LengthPenaltyConfig(kind="none")
PENALTIES = [
    NO_PENALTY,
    LengthPenaltyConfig(kind="gnmt", alpha=0.6),
    LengthPenaltyConfig(kind="gnmt", alpha=2.0),
    LengthPenaltyConfig(kind="exponent", alpha=1.0),
]


def random_sources(n: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 7, (n,), generator=generator).tolist()
    return [torch.randint(3, 9, (length,), generator=generator).tolist() for length in lengths]


def brute_force(
    model: TableModel, source: list[int], vocab: int, limit: int, penalty: LengthPenaltyConfig
) -> Hypothesis:
    """The best of all sequences of at most `limit` tokens that end."""
    words = [token for token in range(vocab) if token > EOS]
    best = Hypothesis([], -math.inf, -math.inf, False)
    for length in range(limit):
        for ids in itertools.product(words, repeat=length):
            log_prob = model.log_prob(source, [BOS], [*ids, EOS])
            score = log_prob / length_penalty(penalty, length + 1)
            if score > best.score:
                best = Hypothesis(list(ids), score, log_prob, True)
    return best


def naive_greedy(model: TableModel, source: list[int], prefix: list[int], limit: int) -> list[int]:
    ids: list[int] = []
    while len(ids) < limit:
        scores = [-math.inf, -math.inf] + [
            model.log_prob(source, prefix, [*ids, token]) for token in range(2, model.logits_NV.shape[1])
        ]
        ids.append(max(range(len(scores)), key=scores.__getitem__))
        if ids[-1] == EOS:
            return ids[:-1]
    return ids


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    vocab=st.integers(4, 6),
    limit=st.integers(1, 4),
    penalty=st.sampled_from(PENALTIES),
    n=st.integers(1, 3),
)
def test_a_beam_as_wide_as_the_space_finds_the_best_of_all_sequences(
    seed: int, vocab: int, limit: int, penalty: LengthPenaltyConfig, n: int
) -> None:
    model = TableModel(vocab, seed)
    rows = random_sources(n, seed)
    width = max(2, sum((vocab - 3) ** length for length in range(limit + 1)))
    config = DecodingConfig(strategy="beam", beam=width, max_length=limit, length_penalty=penalty)
    for row, found in zip(rows, search(model, sources(rows), config), strict=True):
        expected = brute_force(model, row, vocab, limit, penalty)
        assert found.finished
        assert found.score == pytest.approx(expected.score, abs=1e-5)
        assert found.log_prob == pytest.approx(model.log_prob(row, [BOS], [*found.ids, EOS]), abs=1e-5)


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), beam=st.integers(2, 5), penalty=st.sampled_from(PENALTIES))
def test_a_beam_agrees_with_a_plain_beam_search_of_lists(seed: int, beam: int, penalty: LengthPenaltyConfig) -> None:
    model = TableModel(9, seed, bias={EOS: 1.0})
    rows = random_sources(4, seed)
    config = DecodingConfig(strategy="beam", beam=beam, max_length=12, length_penalty=penalty)
    for row, found in zip(rows, search(model, sources(rows), config), strict=True):
        ids, score, finished = plain_beam_search(model, row, beam, 12, penalty)
        assert (found.ids, found.finished) == (ids, finished)
        assert found.score == pytest.approx(score, abs=1e-5)


def plain_beam_search(
    model: TableModel, source: list[int], beam: int, limit: int, penalty: LengthPenaltyConfig
) -> tuple[list[int], float, bool]:
    """Beam search over Python lists, every score computed from scratch, run to the limit: no early stop at all."""
    finished, live = plain_beams(model, source, beam, limit, penalty)
    if finished:
        score, ids = max(finished, key=lambda f: f[0])
        return ids, score, True
    return live[0][1], live[0][0] / length_penalty(penalty, limit), False


@pytest.mark.parametrize("seed", range(5))
def test_greedy_takes_the_most_probable_token_at_every_step(seed: int) -> None:
    model = TableModel(12, seed, bias={EOS: 1.0})
    rows = random_sources(9, seed)
    config = DecodingConfig(max_length=15)
    for row, found in zip(rows, search(model, sources(rows), config), strict=True):
        expected = naive_greedy(model, row, [BOS], 15)
        assert found.ids == expected
        assert found.finished == (len(expected) < 15)
        ids = found.ids + [EOS] * found.finished
        assert found.log_prob == pytest.approx(model.log_prob(row, [BOS], ids), abs=1e-4)
        assert found.score == pytest.approx(found.log_prob / ((5 + len(ids)) / 6) ** 0.6, abs=1e-5)
        assert found.n_tokens == len(ids)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_a_beam_of_one_is_greedy(penalty: LengthPenaltyConfig) -> None:
    model = TableModel(12, 3, bias={EOS: 1.0})
    batch = sources(random_sources(16))
    greedy = search(model, batch, DecodingConfig(max_length=15, length_penalty=penalty))
    one = DecodingConfig(max_length=15, length_penalty=penalty).model_copy(update={"strategy": "beam", "beam": 1})
    assert search(model, batch, one) == greedy


@pytest.mark.parametrize(
    "config",
    [
        DecodingConfig(max_length=20),
        DecodingConfig(strategy="beam", beam=3, max_length=20),
        DecodingConfig(strategy="beam", beam=4, max_length=2, max_length_ratio=2.0),
        DecodingConfig(strategy="sample", max_length=20, seed=5),
        DecodingConfig(strategy="sample", max_length=1, max_length_ratio=3.0, top_k=3, temperature=0.7, seed=5),
    ],
)
def test_a_sentence_gets_the_same_output_alone_and_in_any_batch(config: DecodingConfig) -> None:
    model = TableModel(11, 1, bias={EOS: 0.7})
    rows = random_sources(40)
    together = search(model, sources(rows, tuple(range(40))), config)
    alone = [search(model, sources([row], (i,)), config)[0] for i, row in enumerate(rows)]
    backwards = search(model, sources(rows[::-1], tuple(reversed(range(40)))), config)[::-1]
    assert len({tuple(h.ids) for h in together}) > 10
    for a, b, c in zip(together, alone, backwards, strict=True):
        assert a.ids == b.ids == c.ids
        assert a.finished == b.finished == c.finished
        assert a.score == pytest.approx(b.score, abs=1e-5)


@pytest.mark.parametrize("strategy", ["greedy", "sample", "beam"])
def test_padding_and_the_begin_symbol_are_never_generated(strategy: str) -> None:
    model = TableModel(8, 2, bias={0: 20.0, 1: 20.0, EOS: -3.0})
    config = DecodingConfig(strategy=strategy, beam=4 if strategy == "beam" else 1, max_length=10)
    found = search(model, sources(random_sources(12)), config)
    assert sum(len(h.ids) for h in found) > 20
    assert all(min(h.ids, default=3) > EOS for h in found)
    assert all(h.log_prob < -15 for h in found), "the log-probability is the model's own, not renormalised"


@pytest.mark.parametrize("strategy", ["greedy", "sample", "beam"])
def test_a_sentence_that_never_ends_is_cut_at_its_own_limit(strategy: str) -> None:
    model = TableModel(8, 2, bias={EOS: -50.0})
    rows = [[3], [3, 4, 5, 6], [3, 4]]
    config = DecodingConfig(strategy=strategy, beam=3 if strategy == "beam" else 1, max_length=2, max_length_ratio=1.5)
    found = search(model, sources(rows), config)
    assert [len(h.ids) for h in found] == [3, 8, 5]
    assert not any(h.finished for h in found)
    for row, h in zip(rows, found, strict=True):
        assert h.log_prob == pytest.approx(model.log_prob(row, [BOS], h.ids), abs=1e-4)


def test_the_end_symbol_counts_towards_the_limit() -> None:
    model = TableModel(6, 0, bias={EOS: 50.0})
    assert search(model, sources([[3]]), DecodingConfig(max_length=1)) == [Hypothesis([], 0.0, 0.0, True)]


def test_a_finished_hypothesis_is_preferred_to_a_live_one_of_higher_score() -> None:
    model = TableModel(6, 4, bias={EOS: -2.0})
    config = DecodingConfig(strategy="beam", beam=8, max_length=2, length_penalty=NO_PENALTY)
    found = search(model, sources([[3, 4]]), config)[0]
    assert found.finished
    assert found.score == pytest.approx(brute_force(model, [3, 4], 6, 2, NO_PENALTY).score, abs=1e-5)


def test_the_encoder_runs_once_and_stopped_sentences_leave_the_batch() -> None:
    model = TableModel(12, 3, bias={EOS: 1.5})
    rows = random_sources(32)
    found = search(model, sources(rows), DecodingConfig(max_length=40))
    assert model.n_encoded == 1
    assert model.n_rows[0] == 32
    assert len(model.n_rows) == max(h.n_tokens for h in found)
    for step, n_rows in enumerate(model.n_rows):
        n_live = sum(h.n_tokens > step for h in found)
        assert n_live <= n_rows <= n_live / (1 - 1 / 8) + 1e-9


def test_a_beam_stops_when_no_live_hypothesis_can_win() -> None:
    model = TableModel(8, 5, bias={EOS: 3.0})
    config = DecodingConfig(strategy="beam", beam=2, max_length=200, length_penalty=NO_PENALTY)
    search(model, sources(random_sources(6)), config)
    assert len(model.n_rows) < 20


def test_stopping_by_count_ends_when_as_many_hypotheses_as_the_beam_have_finished() -> None:
    model, rows = TableModel(9, 5, bias={EOS: 1.0}), random_sources(6)
    found = {}
    for stopping in ("count", "bound"):
        model.n_rows.clear()
        config = DecodingConfig(strategy="beam", beam=3, max_length=80, length_penalty=PENALTIES[3], stopping=stopping)
        found[stopping] = [search(model, sources([row]), config)[0] for row in rows], len(model.n_rows)
    assert found["count"][1] < 0.5 * found["bound"][1]
    for row, by_count, by_bound in zip(rows, found["count"][0], found["bound"][0], strict=True):
        assert by_count.finished
        assert by_count.score <= by_bound.score + 1e-6
        assert by_count.score == pytest.approx(first_finished(model, row, 3, 80, PENALTIES[3]), abs=1e-5)


def first_finished(model: TableModel, source: list[int], beam: int, limit: int, penalty: LengthPenaltyConfig) -> float:
    """The best score at the first length by which `beam` hypotheses have finished."""
    for length in range(1, limit + 1):
        finished, _ = plain_beams(model, source, beam, length, penalty)
        if len(finished) >= beam:
            return max(score for score, _ in finished)
    raise AssertionError("fewer finished than the beam is wide")


def test_a_forced_prefix_is_continued_and_not_repeated() -> None:
    model = TableModel(12, 3, bias={EOS: 0.5})
    rows, prefixes = [[3, 4], [5], [6, 7, 8]], [[BOS, 4, 5, 6], [BOS], [BOS, 9, 9]]
    for config in (DecodingConfig(max_length=12), DecodingConfig(strategy="beam", beam=3, max_length=12)):
        found = search(model, sources(rows), config, prefix=pad(prefixes, left=True))
        for row, prefix, h in zip(rows, prefixes, found, strict=True):
            ids = h.ids + [EOS] * h.finished
            assert h.log_prob == pytest.approx(model.log_prob(row, prefix, ids), abs=1e-4)
            if config.strategy == "greedy":
                assert h.ids == naive_greedy(model, row, prefix, 12)


def test_a_prefix_of_the_wrong_shape_or_padded_on_the_right_is_a_data_error() -> None:
    model = TableModel(6)
    with pytest.raises(DataError, match=r"2 rows.*1 sentences"):
        search(model, sources([[3]]), DecodingConfig(), prefix=pad([[BOS], [BOS]]))
    with pytest.raises(DataError, match="pad it on the left"):
        search(model, sources([[3], [4]]), DecodingConfig(), prefix=pad([[BOS, 4], [BOS]]))


def test_an_empty_batch_gives_no_output() -> None:
    batch = sources([[3]])
    empty = type(batch)(target=pad([[BOS]]), labels_BT=batch.labels_BT[:0], loss_mask_BT=batch.loss_mask_BT[:0])
    assert search(TableModel(6), empty, DecodingConfig()) == []


def test_searching_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    search(TableModel(8), sources([[3]]), DecodingConfig(strategy="sample", seed=3))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("beam", [1, 3])
def test_every_step_is_told_with_the_leading_hypothesis_of_every_sentence_and_may_end_the_search(beam: int) -> None:
    model, seen = TableModel(6, 3), list[dict[int, list[int]]]()
    config = DecodingConfig(
        strategy="beam" if beam > 1 else "greedy", beam=beam, max_length=6, length_penalty=NO_PENALTY
    )
    batch = sources(random_sources(4))
    found = search_n_best(model, batch, config, on_step=lambda ids: seen.append(dict(ids)))
    assert found == search_n_best(model, batch, config)
    assert set(seen[0]) == {0, 1, 2, 3}
    assert all(len(ids) == number for number, step in enumerate(seen, 1) for ids in step.values())
    if beam == 1:
        last = {row: ids for step in seen for row, ids in step.items()}
        for row, (best,) in enumerate(found):
            assert last[row][: best.n_tokens] == best.ids + [EOS] * best.finished
    else:
        assert all(step[row][:1] != [EOS] for step in seen for row in step)

    def stop(ids: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search_n_best(model, batch, config, on_step=stop)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_model_may_keep_the_logits_that_it_returns(beam: int) -> None:
    class Kept(TableModel):
        """Returns a table's one row itself, whatever was read."""

        def step(self, ids_BT: Tensor, cache: Cache, keep_BT: Tensor | None = None) -> Tensor:
            super().step(ids_BT, cache, keep_BT)
            return self.logits_NV[:1].expand(len(ids_BT), -1)

    model = Kept(9, bias={EOS: 9.0})
    before = model.logits_NV.clone()
    config = DecodingConfig(strategy="greedy" if beam == 1 else "beam", beam=beam, min_length=4, max_length=9)
    found = search(model, sources([[3, 4]]), config)[0]
    assert torch.equal(model.logits_NV, before)
    assert (len(found.ids), found.finished) == (3, True)
    log_p_V = torch.log_softmax(before[0].double(), 0)
    assert found.log_prob == pytest.approx(float(log_p_V[[*found.ids, EOS]].sum()), abs=1e-5)


@pytest.mark.parametrize("beside", [0, 1])
def test_a_sentence_in_which_nothing_lives_stops_at_once(beside: int) -> None:
    """Also before anything has ended, whatever other sentences do."""
    model = TableModel(9)
    model.special_ids = SpecialIds(eos=8)
    model.logits_NV[:, 2:8] = -math.inf  # the end symbol alone can be written, and must not be yet
    config = DecodingConfig(strategy="beam", beam=2, min_length=4, max_length=9)
    rows = random_sources(1 + beside)
    found = search(model, sources(rows), config)
    assert len(model.n_rows) == 1
    assert [one.log_prob for one in found] == [-math.inf] * len(rows)
