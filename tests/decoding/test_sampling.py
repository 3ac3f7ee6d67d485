from __future__ import annotations

from collections import Counter

import pytest
import torch
from table_model import TableModel, sources

from ostinato.config.decoding import DecodingConfig
from ostinato.decoding import search
from ostinato.decoding.proposals import sentence_seed

EOS = 2


def first_tokens(config: DecodingConfig, n: int = 4000) -> tuple[Counter[int], torch.Tensor]:
    """First sampled tokens of n equal sentences, and the model's distribution."""
    model = TableModel(9, 6)
    found = search(model, sources([[3, 4]] * n), config)
    state = model.encode(sources([[3, 4]])).state_B
    logits_V = model.logits_NV[model.next_state(state, torch.tensor([1]))][0].double()
    logits_V[:2] = -torch.inf
    return Counter(h.ids[0] if h.ids else EOS for h in found), logits_V


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_samples_follow_the_tempered_distribution(temperature: float) -> None:
    counts, logits_V = first_tokens(DecodingConfig(strategy="sample", max_length=1, temperature=temperature))
    probs_V = torch.softmax(logits_V / temperature, 0)
    for token, p in enumerate(probs_V.tolist()):
        # Four standard deviations of a count of 4000 draws.
        assert abs(counts[token] / 4000 - p) < 4 * (p * (1 - p) / 4000) ** 0.5 + 1e-9


def test_top_k_samples_only_the_k_most_probable_in_their_proportions() -> None:
    counts, logits_V = first_tokens(DecodingConfig(strategy="sample", max_length=1, top_k=3))
    top = logits_V.topk(3)
    assert set(counts) == set(top.indices.tolist())
    for token, p in zip(top.indices.tolist(), torch.softmax(top.values, 0).tolist(), strict=True):
        assert abs(counts[token] / 4000 - p) < 4 * (p * (1 - p) / 4000) ** 0.5


def test_top_one_is_greedy() -> None:
    model = TableModel(9, 6, bias={EOS: 0.5})
    batch = sources([[3, 4], [5], [6, 7]])
    greedy = search(model, batch, DecodingConfig(max_length=9))
    sampled = search(model, batch, DecodingConfig(strategy="sample", top_k=1, max_length=9))
    assert [h.ids for h in sampled] == [h.ids for h in greedy]


def test_a_seed_gives_the_same_samples_again_and_another_seed_others() -> None:
    model = TableModel(9, 6)
    batch = sources([[3, 4]] * 20)
    one, again, other = (
        [h.ids for h in search(model, batch, DecodingConfig(strategy="sample", max_length=9, seed=seed))]
        for seed in (1, 1, 2)
    )
    assert one == again
    assert one != other
    assert len(set(map(tuple, one))) > 10, "equal sources on different rows get different samples"


def test_the_log_probability_of_a_sample_is_the_models_own() -> None:
    model = TableModel(9, 6)
    config = DecodingConfig(strategy="sample", max_length=9, temperature=0.5, top_k=4)
    for h in search(model, sources([[3, 4]] * 5), config):
        ids = h.ids + [EOS] * h.finished
        assert h.log_prob == pytest.approx(model.log_prob([3, 4], [1], ids), abs=1e-4)


def test_sentence_seeds_are_distinct_for_near_seeds_and_rows() -> None:
    seeds = {sentence_seed(seed, index) for seed in range(50) for index in range(200)}
    assert len(seeds) == 50 * 200
    assert all(0 <= seed < 2**64 for seed in seeds)
