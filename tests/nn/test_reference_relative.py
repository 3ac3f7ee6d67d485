"""Relative positions against the papers' formulas, one pair of positions at a time."""

from __future__ import annotations

import pytest
import torch

from ostinato.data.batch import Batch, Tokens
from ostinato.interop import HalfSplit
from ostinato.models import build_model
from ostinato.nn.execution import Execution
from ostinato.nn.relative import Alibi, Buckets, LinearScaling, Llama3Scaling, RelativeWindow, Rotary
from ostinato.tasks.recipes import load_recipe
from reference.equations import alibi_slope, bucket, llama3_frequency, rotate, window_entry

T, S, H, K = 5, 7, 2, 4


def _distances() -> torch.Tensor:
    return torch.arange(S)[None, None, :] - torch.arange(T)[None, :, None] - 1


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("n_buckets", "max_distance"), [(32, 128), (4, 3), (6, 50), (8, 9), (16, 4096), (64, 33)])
def test_buckets_are_those_of_the_paper_at_every_distance(n_buckets: int, max_distance: int, is_causal: bool) -> None:
    distances = torch.arange(-2 * max_distance, 2 * max_distance + 1)
    found = Buckets(1, n_buckets, max_distance).bucket(distances, is_causal).tolist()
    expected = [bucket(0, int(d), n_buckets, max_distance, is_causal) for d in distances]
    assert found == expected
    assert set(found) <= set(range(n_buckets))


def test_the_buckets_of_t5_start_and_end_where_its_authors_say() -> None:
    # 32 buckets, max distance 128: causal distances 0 .. 15 are exact, 128 and beyond share the last one.
    buckets = Buckets(1, 32, 128)
    distances = torch.tensor([0, -1, -15, -16, -127, -128, -5000, 1, 90])
    assert buckets.bucket(distances, True).tolist() == [0, 1, 15, 16, 31, 31, 31, 0, 0]
    # Bidirectional: 16 for each direction, of which 8 are exact; keys to the right come second.
    assert buckets.bucket(distances, False).tolist() == [0, 1, 9, 10, 15, 15, 15, 17, 30]


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_bias_of_buckets_is_the_tables_entry(is_causal: bool) -> None:
    torch.manual_seed(0)
    module = Buckets(H, 6, 5).double()
    torch.nn.init.normal_(module.table_RH)
    distances = _distances()
    bias = module.bias(torch.zeros(1, H, T, K).double(), distances, 1.0, is_causal)
    assert bias is not None
    for t in range(T):
        for s in range(S):
            row = bucket(0, int(distances[0, t, s]), 6, 5, is_causal)
            assert torch.equal(bias[0, :, t, s], module.table_RH[row])


def test_a_window_bias_is_the_product_of_the_query_with_its_offset() -> None:
    torch.manual_seed(0)
    module = RelativeWindow(H, K, 2).double()
    torch.nn.init.normal_(module.table_HKR)
    q_BHTK = torch.randn(3, H, T, K).double()
    distances = _distances()
    bias = module.bias(q_BHTK, distances, 0.5, True)
    assert bias is not None
    for t in range(T):
        for s in range(S):
            entry = window_entry(0, int(distances[0, t, s]), 2)
            for h in range(H):
                expected = (0.5 * q_BHTK[:, h, t] * module.table_HKR[h, :, entry]).sum(-1)
                torch.testing.assert_close(bias[:, h, t, s], expected)


def _frequencies(base: float, n_turned: int = K) -> list[float]:
    return [base ** (-2 * j / n_turned) for j in range(n_turned // 2)]


@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize("n_turned", [K, K - 2])
def test_rotations_are_the_papers_and_scores_know_distances_only(is_interleaved: bool, n_turned: int) -> None:
    torch.manual_seed(0)
    module = Rotary(K, base=100.0, n_turned=n_turned, is_interleaved=is_interleaved)
    x_BHTK = torch.randn(1, 1, T, K).double()
    turned = module.rotate(x_BHTK, module.turns(torch.arange(T)[None], x_BHTK.dtype))
    for t in range(T):
        expected = rotate(x_BHTK[0, 0, t], t, _frequencies(100.0, n_turned), is_interleaved=is_interleaved)
        torch.testing.assert_close(turned[0, 0, t], expected)
    shifted = module.rotate(x_BHTK, module.turns(torch.arange(T)[None] + 1000, x_BHTK.dtype))
    torch.testing.assert_close(turned[0, 0] @ turned[0, 0].T, shifted[0, 0] @ shifted[0, 0].T)
    torch.testing.assert_close(turned.norm(dim=-1), x_BHTK.norm(dim=-1))


def test_rotations_keep_their_precision_far_into_a_text() -> None:
    x_BHTK = torch.ones(1, 1, 1, K)
    far = torch.tensor([[1_000_003]])
    expected = rotate(x_BHTK[0, 0, 0].double(), 1_000_003, _frequencies(10_000.0))
    module = Rotary(K, 10_000.0)
    turned = module.rotate(x_BHTK, module.turns(far, x_BHTK.dtype))
    torch.testing.assert_close(turned[0, 0, 0].double(), expected, rtol=0, atol=1e-6)


def test_rows_in_another_order_turn_interleaved_pairs_into_halves() -> None:
    q, k = torch.randn(2, 1, 1, T, K, dtype=torch.float64)
    scores = []
    for is_interleaved in (True, False):
        rotary = Rotary(K, 50.0, is_interleaved=is_interleaved)
        turns = rotary.turns(torch.arange(T)[None], torch.float64)
        rows = [x if is_interleaved else HalfSplit(K).to_ours(x[0, 0].T).T[None, None] for x in (q, k)]
        turned = [rotary.rotate(x, turns) for x in rows]
        scores.append(turned[0] @ turned[1].transpose(-1, -2))
    torch.testing.assert_close(*scores)


def test_scaled_frequencies_are_kept_divided_or_mixed() -> None:
    frequencies = _frequencies(500.0, 32)
    given = torch.tensor(frequencies, dtype=torch.float64)
    torch.testing.assert_close(LinearScaling(4.0)(given), given / 4)
    scaled = Llama3Scaling(8.0, 1.0, 4.0, 32)(given)
    expected = [llama3_frequency(f, 8.0, 1.0, 4.0, 32) for f in frequencies]
    torch.testing.assert_close(scaled, torch.tensor(expected, dtype=torch.float64))
    kinds = {
        "kept" if a == b else "divided" if a == b / 8 else "mixed" for a, b in zip(expected, frequencies, strict=True)
    }
    assert kinds == {"kept", "divided", "mixed"}


def test_penalties_grow_with_the_distance_by_the_slopes_of_the_heads() -> None:
    # Press et al. 2021: 1/2, 1/4, ..., 1/256 for 8 heads.
    assert Alibi(8).slopes == tuple(2.0**-h for h in range(1, 9))
    distances = _distances()
    for n_heads in (1, 2, 3, 6, 12):
        bias = Alibi(n_heads).bias(torch.zeros(1, n_heads, T, 1).double(), distances, 1.0, True)
        assert bias is not None
        for h in range(n_heads):
            expected = -alibi_slope(h, n_heads) * distances[:, :].abs().double()
            torch.testing.assert_close(bias[:, h], expected)


@pytest.mark.parametrize("execution", [Execution(), Execution(recompute=True)])
def test_positions_are_turned_into_angles_once_a_pass_for_all_steps(
    monkeypatch: pytest.MonkeyPatch, execution: Execution
) -> None:
    config = load_recipe("dense/llama-toy", ["model.decoder.n_steps=3"]).model
    model = build_model(config.model_copy(update=config.vocabulary_sizes(20, 20))).train()
    asked, turns = [], Rotary.turns
    monkeypatch.setattr(Rotary, "turns", lambda self, *given: asked.append(given) or turns(self, *given))
    ids = torch.randint(4, 20, (2, 5))
    tokens = Tokens(ids, torch.ones_like(ids, dtype=torch.bool))
    model(Batch(tokens, ids, tokens.keep_BT), execution=execution).logits_BTV.sum().backward()
    assert len(asked) == 1
