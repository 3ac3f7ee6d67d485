from __future__ import annotations

import math

import pytest
import torch

from ostinato.evaluation.scores import SentenceScores, Totals, score_sentences


def test_sentence_scores_have_their_hand_computed_values() -> None:
    probs_BTV = torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]], [[0.2, 0.2, 0.6], [1.0, 0.0, 0.0]]])
    labels_BT = torch.tensor([[0, 2], [2, 0]])
    loss_mask_BT = torch.tensor([[True, True], [True, False]])
    one, two = score_sentences(probs_BTV.log(), labels_BT, loss_mask_BT)
    assert one.nll == pytest.approx(math.log(2) + math.log(10))
    assert (one.n_labels, one.n_right) == (2, 1)
    assert two.nll == pytest.approx(-math.log(0.6))
    assert (two.n_labels, two.n_right) == (1, 1)


def test_a_batch_of_more_labels_than_are_scored_at_a_time_is_scored_whole() -> None:
    torch.manual_seed(0)
    logits_BTV, labels_BT = torch.randn(70, 61, 5), torch.randint(0, 5, (70, 61))
    keep_BT = torch.rand(70, 61) < 0.7
    scores = score_sentences(logits_BTV, labels_BT, keep_BT)
    nll_BT = -torch.log_softmax(logits_BTV.double(), 2).gather(2, labels_BT[..., None])[..., 0]
    for row, score in enumerate(scores):
        assert score.nll == pytest.approx(float(nll_BT[row][keep_BT[row]].sum()), abs=1e-4)
        assert score.n_right == int((logits_BTV.argmax(2) == labels_BT)[row][keep_BT[row]].sum())


def test_sums_do_not_lose_small_losses_beside_a_large_total() -> None:
    totals = Totals([])
    for _ in range(100_000):
        totals.add(SentenceScores(1000.1, 1, 1))
    assert totals.compute()["loss"] == pytest.approx(1000.1, abs=1e-7)


def test_a_loss_too_large_for_a_perplexity_gives_infinity() -> None:
    totals = Totals([])
    totals.add(SentenceScores(5000.0, 1, 0))
    assert totals.compute()["perplexity"] == math.inf
