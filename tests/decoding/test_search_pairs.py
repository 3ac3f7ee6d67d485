"""The search over decoder-only models that read source and target as one sequence, against full passes."""

from __future__ import annotations

import random
from functools import partial
from typing import Literal

import pytest
import torch
from plain_beam import plain_beam
from tiny_models import DATA, WORDS, trained_decoder_only, word_tokenizers
from torch import Tensor

from ostinato.config.decoding import DecodingConfig, LengthPenaltyConfig
from ostinato.config.special_ids import SpecialIds
from ostinato.data.batch import Batch, Tokens
from ostinato.data.collate import Row, collate
from ostinato.decoding import search
from ostinato.decoding.generate import Generation, generate, generate_stream
from ostinato.decoding.search import left_padded, make_prompt
from ostinato.errors import DataError
from ostinato.models import LanguageModel
from ostinato.nn.cache import Cache

BOS, EOS, VOCAB, LIMIT = 1, 2, 10, 8
PENALTY = LengthPenaltyConfig(kind="exponent", alpha=1.0)
STRATEGIES = {
    "greedy": DecodingConfig(max_length=LIMIT),
    "beam": DecodingConfig(strategy="beam", beam=3, max_length=LIMIT, length_penalty=PENALTY),
    "sample": DecodingConfig(strategy="sample", max_length=LIMIT, seed=4),
}
Mask = Literal["causal", "prefix"]
MASKS: tuple[Mask, ...] = ("causal", "prefix")
CPU = torch.device("cpu")


def random_rows(n: int, seed: int = 0) -> list[Row]:
    rng = random.Random(seed)
    sources = [[rng.randint(4, VOCAB - 1) for _ in range(rng.randint(0, 7))] for _ in range(n)]
    # The reference must not matter: a search may read the source only.
    return [Row(ids, [9] * rng.randint(0, 9), {}, i, is_joined=True) for i, ids in enumerate(sources)]


def next_log_p(model: LanguageModel, source: list[int], prefix: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits_BTV = model(collate([Row(source, prefix, is_joined=True)])).logits_BTV
    return torch.log_softmax(logits_BTV[0, -1].double(), 0)


def source_of(row: Row) -> list[int]:
    assert row.source_ids is not None
    return row.source_ids


@pytest.mark.sampled
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("beam", [1, 3])
def test_a_search_from_sources_agrees_with_full_passes(mask: Mask, beam: int) -> None:
    model, rows = trained_decoder_only(VOCAB, mask), random_rows(6)
    found = search(model, collate(rows), STRATEGIES["greedy" if beam == 1 else "beam"])
    assert len({tuple(h.ids) for h in found}) > 3
    for row, h in zip(rows, found, strict=True):
        if beam > 1:
            ids, _ = plain_beam(partial(next_log_p, model, source_of(row)), beam, LIMIT, PENALTY)
            assert h.ids == ids
            continue
        ids = []
        while len(ids) < LIMIT and (token := int(next_log_p(model, source_of(row), ids)[EOS:].argmax()) + EOS) != EOS:
            ids.append(token)
        assert h.ids == ids


@pytest.mark.sampled
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("mask", MASKS)
def test_a_source_gets_the_same_output_alone_and_in_any_batch(mask: Mask, name: str) -> None:
    model, rows, config = trained_decoder_only(VOCAB, mask), random_rows(8), STRATEGIES[name]
    together = search(model, collate(rows), config)
    backwards = search(model, collate(rows[::-1]), config)[::-1]
    for row, a, b in zip(rows, together, backwards, strict=True):
        (alone,) = search(model, collate([row]), config)
        assert a.ids == b.ids == alone.ids
        assert a.score == pytest.approx(alone.score, rel=1e-5)


def test_an_output_is_continued_from_a_beginning_behind_its_source() -> None:
    model, rows, begun = trained_decoder_only(VOCAB, "prefix"), random_rows(3), [[], [5], [7, 4]]
    prefix = left_padded([[BOS, *ids] for ids in begun], 0, CPU)
    for row, ids, h in zip(rows, begun, search(model, collate(rows), STRATEGIES["greedy"], prefix=prefix), strict=True):
        log_prob = 0.0
        for place, token in enumerate([*h.ids, EOS] if h.finished else h.ids):
            log_prob += float(next_log_p(model, source_of(row), [*ids, *h.ids[:place]])[token])
        assert h.log_prob == pytest.approx(log_prob, abs=1e-4)


def test_the_prompt_is_the_source_the_end_and_the_begin_symbol_padded_on_the_left() -> None:
    rows = [Row([7, 8], [9, 9, 9], is_joined=True), Row([6], [5], is_joined=True)]
    prompt = make_prompt(collate(rows), None, SpecialIds())
    assert prompt.ids_BT.tolist() == [[7, 8, EOS, BOS], [0, 6, EOS, BOS]]
    assert prompt.keep_BT.tolist() == [[True] * 4, [False] + [True] * 3]
    begun = make_prompt(collate(rows), left_padded([[BOS, 4, 4], [BOS]], 0, CPU), SpecialIds())
    assert begun.ids_BT.tolist() == [[7, 8, EOS, BOS, 4, 4], [0, 0, 0, 6, EOS, BOS]]
    with pytest.raises(DataError, match="pad it on the left"):
        make_prompt(collate(rows), Tokens(torch.tensor([[BOS], [0]]), torch.tensor([[True], [False]])), SpecialIds())


def test_limits_count_the_tokens_of_the_source() -> None:
    model = trained_decoder_only(VOCAB, "prefix")
    rows = [Row([5] * n, [], is_joined=True) for n in (1, 4, 2)]
    config = DecodingConfig(max_length=1, max_length_ratio=2.0)
    found = search(_Endless(model), collate(rows), config)
    assert [h.n_tokens for h in found] == [1 + 2 * 2, 1 + 2 * 5, 1 + 2 * 3]


class _Endless:
    """The model without an end symbol; counts the rows of every step."""

    def __init__(self, model: LanguageModel) -> None:
        self.model, self.n_rows = model, list[tuple[int, int]]()
        self.special_ids = SpecialIds()

    def encode(self, batch: Batch, *, n_steps: int | None = None) -> Cache:
        return self.model.encode(batch, n_steps=n_steps)

    def step(self, ids_BT: Tensor, cache: Cache, keep_BT: Tensor | None = None) -> Tensor:
        self.n_rows.append((ids_BT.shape[0], ids_BT.shape[1]))
        logits_BV = self.model.step(ids_BT, cache, keep_BT)
        logits_BV[:, EOS] = -torch.inf
        return logits_BV


def test_the_source_runs_once_a_sentence_whatever_the_beam() -> None:
    model, rows = _Endless(trained_decoder_only(VOCAB, "prefix")), random_rows(5)
    search(model, collate(rows), DecodingConfig(strategy="beam", beam=3, max_length=4))
    width = 2 + max(len(source_of(row)) for row in rows)
    assert model.n_rows == [(5, width), *[(15, 1)] * 3]


def test_texts_are_read_as_sources_with_the_longest_length_of_a_source() -> None:
    tokenizers = word_tokenizers()
    model = trained_decoder_only(tokenizers.target.vocab_size, "prefix")
    texts = [" ".join(WORDS.split()[:n]) for n in (3, 1, 5)]
    found = generate(model, texts, tokenizers, DATA, STRATEGIES["greedy"])
    for text, one in zip(texts, found, strict=True):
        row = Row(tokenizers.source.encode(text), [], is_joined=True)
        (h,) = search(model, collate([row]), STRATEGIES["greedy"])
        assert one.text == tokenizers.target.decode(h.ids)
    data = DATA.model_copy(update={"max_source_length": 4, "max_target_length": 1})
    good, short, bad = generate_stream(model, texts, tokenizers, data, STRATEGIES["greedy"])
    for one, before in zip((good, short), found, strict=False):
        assert isinstance(one, Generation)
        assert one.text == before.text
        # In another batch a sum of float32 may be rounded differently.
        assert one.score == pytest.approx(before.score, rel=1e-5)
    assert isinstance(bad, DataError)
    assert "data.max_source_length is 4" in str(bad)
