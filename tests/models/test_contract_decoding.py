"""Contract 3: cached decoding equals the full forward pass, for every plan, position kind and padding."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from architectures import (
    BOS,
    Model,
    Sentence,
    any_architecture,
    draws,
    left_padded,
    random_model,
    right_padded,
    sentences,
)
from contract import assert_equal, real_logits
from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.data.batch import Batch

pytestmark = pytest.mark.device


def _cuts(data: st.DataObject, width: int, least: int) -> list[tuple[int, int]]:
    """Draw how many columns each call feeds: ones, or several at once; the first at least `least`."""
    ends = sorted({*data.draw(st.sets(st.integers(least, width), max_size=width)), width})
    if data.draw(st.booleans()):
        ends = list(range(least, width + 1))
    return list(zip([0, *ends], ends, strict=False))


def _least_first_step(config: Seq2SeqConfig | LanguageModelConfig, batch: Batch) -> int:
    """Columns that hold the prefixes of all sentences, padding included; 1 where there are none."""
    if not isinstance(config, LanguageModelConfig) or config.mask == "causal":
        return 1
    assert batch.prefix_lengths_B is not None
    is_short_BT = batch.target.keep_BT.cumsum(1) < batch.prefix_lengths_B[:, None]
    return int(is_short_BT.sum(1).max()) + 1


def check_cached_steps(
    model: Model, batch: Batch, cuts: Sequence[tuple[int, int]], *, n_rounds: int | None = None, says_keep: bool = True
) -> None:
    """Compare the logits of steps, which feed columns from cut to cut, with those of a full pass."""
    full_BTV = model(batch, n_steps=n_rounds).logits_BTV
    with torch.no_grad():
        cache = model.encode(batch, n_steps=n_rounds)
        for start, end in cuts:
            keep = batch.target.keep_BT[:, start:end] if says_keep else None
            logits_BV = model.step(batch.target.ids_BT[:, start:end], cache, keep)
            real = batch.target.keep_BT[:, end - 1]
            assert_equal(logits_BV[real], full_BTV[real, end - 1], f"columns {start} to {end}")
            assert logits_BV.dtype == full_BTV.dtype == torch.float64


@draws(60, quick=16)
@given(st.data())
def test_decoding_with_a_cache_equals_the_full_forward_pass(data: st.DataObject) -> None:
    n_rounds = data.draw(st.sampled_from([None, None, 1, 3]))
    config = data.draw(any_architecture(fully_shared=n_rounds is not None))
    batch = data.draw(st.sampled_from([right_padded, left_padded]))(data.draw(sentences(config)))
    says_keep = not bool(batch.target.keep_BT.all()) or data.draw(st.booleans())
    cuts = _cuts(data, batch.target.ids_BT.shape[1], _least_first_step(config, batch))
    check_cached_steps(random_model(config), batch, cuts, n_rounds=n_rounds, says_keep=says_keep)


@draws(30)
@given(st.data())
def test_hypotheses_that_are_expanded_reordered_and_dropped_stay_themselves(data: st.DataObject) -> None:
    config = data.draw(any_architecture())
    batch = data.draw(sentences(config))
    rows = config.vocab_size if isinstance(config, LanguageModelConfig) else config.target_vocab_size
    tokens = st.integers(3, (rows or 0) - 1)
    n_beams = data.draw(st.integers(2, 3))
    model = random_model(config)
    start = left_padded(batch)
    texts = [list(s.target) for s in batch for _ in range(n_beams)]
    owner = [s for s in range(len(batch)) for _ in range(n_beams)]

    def feed() -> None:
        n_new = data.draw(st.integers(1, 2))
        new = [data.draw(st.lists(tokens, min_size=n_new, max_size=n_new)) for _ in texts]
        for text, some in zip(texts, new, strict=True):
            text.extend(some)
        logits_BV = model.step(torch.tensor(new), cache)
        for row, (text, sentence) in enumerate(zip(texts, owner, strict=True)):
            (wanted,) = real_logits(model, right_padded([batch[sentence].with_target(text)]))
            assert_equal(logits_BV[row], wanted[-1], f"hypothesis {row}")

    with torch.no_grad():
        cache = model.encode(start)
        model.step(start.target.ids_BT, cache, start.target.keep_BT)
        cache.expand(n_beams, len(batch))
        feed()
        parents = [s * n_beams + data.draw(st.integers(0, n_beams - 1)) for s in owner]
        cache.reorder(torch.tensor(parents))
        texts[:] = [list(texts[parent]) for parent in parents]
        feed()
        kept = sorted(data.draw(st.sets(st.integers(0, len(batch) - 1), min_size=1)))
        cache.keep(torch.tensor(kept))
        texts[:] = [text for text, sentence in zip(texts, owner, strict=True) if sentence in kept]
        owner[:] = [sentence for sentence in owner if sentence in kept]
        feed()


def test_a_cache_grows_past_its_first_block_unchanged() -> None:
    config = any_window_model()
    model = random_model(config)
    ids = torch.randint(2, 9, (2, 70), generator=torch.Generator().manual_seed(0))
    ids[:, 0] = BOS
    full_BTV = model(right_padded([Sentence(None, row) for row in ids.tolist()])).logits_BTV
    with torch.no_grad():
        cache = model.encode(right_padded([Sentence(None, row) for row in ids.tolist()]))
        for column in range(ids.shape[1]):
            logits_BV = model.step(ids[:, column : column + 1], cache)
            assert_equal(logits_BV, full_BTV[:, column], f"column {column}")


def any_window_model() -> LanguageModelConfig:
    """Return a model whose every position matters: window offsets and coordinates."""
    return LanguageModelConfig.model_validate(
        {
            "d_model": 8,
            "dropout": 0.0,
            "vocab_size": 9,
            "decoder": {
                "n_steps": 2,
                "self_attention": {"n_heads": 2, "share": "all"},
                "ffn": {"d_ff": 8, "share": "all"},
                "positions": {"kind": "coordinates"},
                "relative": {"kind": "window", "window": 40},
            },
        }
    )
