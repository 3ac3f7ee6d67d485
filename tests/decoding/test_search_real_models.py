"""The search over the transformers themselves, against full forward passes without a cache."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch
from plain_beam import plain_beam
from tiny_models import CONVOLUTION, trained_language_model, trained_seq2seq

from ostinato.config.decoding import DecodingConfig, LengthPenaltyConfig
from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.config.positions import LearnedConfig
from ostinato.config.stack import DecoderConfig, StackConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig
from ostinato.data.batch import Tokens
from ostinato.data.collate import Row, collate
from ostinato.decoding import search
from ostinato.decoding.search import search_n_best
from ostinato.models import LanguageModel, Seq2Seq

BOS, EOS, VOCAB, LIMIT = 1, 2, 10, 9
PENALTY = LengthPenaltyConfig(kind="exponent", alpha=1.0)
STRATEGIES = {
    "greedy": DecodingConfig(max_length=LIMIT),
    "beam": DecodingConfig(strategy="beam", beam=4, max_length=LIMIT, length_penalty=PENALTY),
    "short beam": DecodingConfig(strategy="beam", beam=3, max_length=1, max_length_ratio=1.0),
    "sample": DecodingConfig(strategy="sample", max_length=LIMIT, seed=4),
}


def random_rows(n: int, seed: int = 0) -> list[Row]:
    rng = random.Random(seed)
    return [Row([rng.randint(4, VOCAB - 1) for _ in range(rng.randint(1, 8))], [], {}, i) for i in range(n)]


def next_log_p(model: Seq2Seq | LanguageModel, source: list[int] | None, prefix: list[int]) -> torch.Tensor:
    """Log-probabilities after a prefix, from one full forward pass of one sentence."""
    with torch.inference_mode():
        logits_V = model(collate([Row(source, prefix)])).logits_BTV[0, -1]
    return torch.log_softmax(logits_V.double(), 0)


MODELS = {"feed-forward": trained_seq2seq, "convolution": partial(trained_seq2seq, ffn=CONVOLUTION)}


@pytest.mark.slow
@pytest.mark.parametrize("model_name", MODELS)
def test_cached_beam_search_agrees_with_beam_search_by_full_passes(model_name: str) -> None:
    model, rows = MODELS[model_name](VOCAB), random_rows(6)
    found = search(model, collate(rows), STRATEGIES["beam"])
    assert len({tuple(h.ids) for h in found}) > 3
    for row, h in zip(rows, found, strict=True):
        assert row.source_ids is not None
        ids, score = plain_beam(partial(next_log_p, model, row.source_ids), 4, LIMIT, PENALTY)
        assert h.ids == ids
        assert h.score == pytest.approx(score, abs=1e-4)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("seed", range(2))
def test_a_real_model_writes_the_same_alone_and_in_any_batch(name: str, seed: int) -> None:
    model, rows, config = trained_seq2seq(VOCAB), random_rows(24, seed), STRATEGIES[name]
    together = search(model, collate(rows), config)
    backwards = search(model, collate(rows[::-1]), config)[::-1]
    alone = [search(model, collate([row]), config)[0] for row in rows]
    assert len({tuple(h.ids) for h in together}) > 12
    for a, b, c in zip(together, backwards, alone, strict=True):
        assert a.ids == b.ids == c.ids
        assert a.score == pytest.approx(b.score, rel=1e-5)
        assert a.score == pytest.approx(c.score, rel=1e-5)


@pytest.mark.parametrize("name", ["greedy", "beam"])
def test_log_probabilities_are_those_of_full_passes_after_a_forced_prefix(name: str) -> None:
    model, rows = trained_seq2seq(VOCAB), random_rows(6)
    prefixes = [[], [5], [4, 9, 4], [8, 8], [], [7, 4, 5, 6]]
    found = search(model, collate(rows), STRATEGIES[name], prefix=left_padded(prefixes))
    for row, prefix, h in zip(rows, prefixes, found, strict=True):
        assert h.log_prob == pytest.approx(forced_log_prob(model, row.source_ids, prefix, h.ids, h.finished), abs=1e-4)


@pytest.mark.parametrize("name", ["greedy", "beam", "sample"])
def test_prompts_of_a_language_model_are_continued_as_if_each_were_alone(name: str) -> None:
    model, prompts = trained_language_model(VOCAB), [[], [5], [4, 9, 4], [8, 8], [7, 4, 5, 6, 9, 9]]
    config = STRATEGIES[name]
    rows = [Row(None, prompt, {}, i) for i, prompt in enumerate(prompts)]
    together = search(model, collate(rows), config, prefix=left_padded(prompts))
    for row, prompt, h in zip(rows, prompts, together, strict=True):
        alone = search(model, collate([row]), config, prefix=left_padded([prompt]))[0]
        assert h.ids == alone.ids
        assert h.log_prob == pytest.approx(forced_log_prob(model, None, prompt, h.ids, h.finished), abs=1e-4)


def test_a_sentence_at_its_limit_needs_no_positions_beyond_it() -> None:
    torch.manual_seed(0)
    sub_layers = {"self_attention": AttentionConfig(n_heads=2), "ffn": DenseFeedForwardConfig(d_ff=8)}
    decoder = DecoderConfig(
        n_steps=1, cross_attention=AttentionConfig(n_heads=2), positions=LearnedConfig(max_length=20), **sub_layers
    )
    encoder = StackConfig(n_steps=1, **sub_layers)
    config = Seq2SeqConfig(
        d_model=8, source_vocab_size=VOCAB, target_vocab_size=VOCAB, encoder=encoder, decoder=decoder
    )
    model = Seq2Seq(config).eval()
    # Of twelve sentences one is short, and begins with 15 of the 20 positions: fewer than are removed from a batch.
    rows = [Row([4, 5], [], {}, 0), *(Row([4] * 14, [], {}, i) for i in range(1, 12))]
    prefixes = [[5] * 14, *([] for _ in rows[1:])]
    lengths = DecodingConfig(max_length=1, max_length_ratio=1.2, min_length_ratio=1.2)
    together = search(model, collate(rows), lengths, prefix=left_padded(prefixes))
    for row, prefix, found in zip(rows, prefixes, together, strict=True):
        assert found.ids == search(model, collate([row]), lengths, prefix=left_padded([prefix]))[0].ids


def test_without_a_prompt_a_language_model_writes_from_the_begin_symbol() -> None:
    model = trained_language_model(VOCAB)
    batch = collate([Row(None, [4, 5])])
    assert search(model, batch, STRATEGIES["greedy"]) == search(
        model, batch, STRATEGIES["greedy"], prefix=left_padded([[]])
    )


def test_more_steps_of_depth_change_the_output() -> None:
    model, batch = trained_seq2seq(VOCAB), collate(random_rows(8))
    two, same, five = (search(model, batch, STRATEGIES["beam"], n_steps=n) for n in (None, 2, 5))
    assert two == same
    assert [h.ids for h in two] != [h.ids for h in five]


def forced_log_prob(
    model: Seq2Seq | LanguageModel, source: list[int] | None, prefix: list[int], ids: list[int], finished: bool
) -> float:
    total = 0.0
    for place, token in enumerate([*ids, EOS] if finished else ids):
        total += float(next_log_p(model, source, [*prefix, *ids[:place]])[token])
    return total


def left_padded(prompts: list[list[int]]) -> Tokens:
    width = 1 + max(map(len, prompts))
    ids_BT = torch.tensor([[0] * (width - 1 - len(p)) + [BOS, *p] for p in prompts])
    return Tokens(ids_BT, ids_BT != 0)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_search_ends_where_learned_positions_do(beam: int) -> None:
    torch.manual_seed(0)
    stack = StackConfig(
        self_attention=AttentionConfig(n_heads=2),
        ffn=DenseFeedForwardConfig(d_ff=16),
        positions=LearnedConfig(max_length=9),
    )
    model = LanguageModel(LanguageModelConfig(vocab_size=VOCAB, d_model=8, decoder=stack)).eval()
    prefix = left_padded([[5, 6, 7], [8]])
    strategy = "beam" if beam > 1 else "greedy"
    config = DecodingConfig(strategy=strategy, beam=beam, max_length=30, min_length=30)
    found = search_n_best(model, collate([Row(None, [], {}, i) for i in range(2)]), config, prefix)
    # Of nine columns the begin symbol and the prompt take 4 and 2, and the end symbol is not read again.
    assert [len(hypotheses[0].ids) + hypotheses[0].finished for hypotheses in found] == [6, 8]
