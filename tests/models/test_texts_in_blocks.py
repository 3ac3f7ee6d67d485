"""Texts that stand side by side in a row, and see nothing of each other, are what they are alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from architectures import BOS, EOS, any_architecture, draws, random_model
from contract import assert_all_equal, assert_equal, gradients
from ostinato.config.model import LanguageModelConfig
from ostinato.config.special_ids import SpecialIds
from ostinato.config.stack import StackConfig
from ostinato.data.batch import Batch
from ostinato.data.collate import LabelledRow, collate
from ostinato.data.rows import Blocks
from ostinato.models import build_model

UNDECIDED = ("select", "length")
"""Halting rules that decide by the whole row."""


def blocks_of(texts: list[list[int]], length: int) -> list[LabelledRow]:
    """Return the blocks of texts one after the other."""
    blocks = Blocks(length, labels_all=True, by_text=True, special_ids=SpecialIds())
    stream = [i for text in texts for i in (*text, EOS)]
    return [blocks.row(stream[n : n + length], {}, 0) for n in range(0, len(stream), length)]


def pieces_of(block: LabelledRow) -> list[LabelledRow]:
    """Return the texts of a block as rows of their own, which know of no positions."""
    assert block.positions is not None
    starts = [column for column, position in enumerate(block.positions) if not position]
    ends = [*starts[1:], len(block.ids)]
    return [LabelledRow(block.ids[a:b], block.labels[a:b]) for a, b in zip(starts, ends, strict=True)]


def logits_of(model: Any, batch: Batch) -> Tensor:
    return model(batch).logits_BTV[batch.target.keep_BT]  # type: ignore[no-any-return]


@draws(36)
@given(st.data())
def test_a_text_in_a_block_has_the_logits_and_gradients_that_it_has_alone(data: st.DataObject) -> None:
    config = data.draw(any_architecture(kind="language_model"))
    config = config.model_copy(update={"mask": "causal"})
    assume(config.decoder.ffn.kind != "separable_conv" and config.decoder.halting.kind not in UNDECIDED)
    ids = st.lists(st.integers(3, (config.vocab_size or 0) - 1), min_size=0, max_size=6)
    texts = data.draw(st.lists(ids, min_size=2, max_size=5))
    blocks = blocks_of(texts, data.draw(st.integers(2, 9)))
    alone = [piece for block in blocks for piece in pieces_of(block)]
    assert all(piece.ids[0] == BOS for piece in alone)
    model = random_model(config)
    expected = torch.cat([logits_of(model, collate([piece])) for piece in alone])
    found = logits_of(model, collate(blocks))
    assert_equal(found, expected, "logits")
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert_all_equal(gradients(model, [found], [weights]), gradients(model, [expected], [weights]))


def test_in_training_tokens_of_other_texts_and_the_order_of_texts_change_nothing() -> None:
    stack = StackConfig(n_steps=2, self_attention={"n_heads": 2}, ffn={"d_ff": 16}, relative={"kind": "rotary"})
    config = LanguageModelConfig(d_model=8, vocab_size=12, dropout=0.0, decoder=stack)
    torch.manual_seed(0)
    model = build_model(config).train()
    first, second, third = [4, 5, 6], [7, 8], [9, 10, 11, 4]
    one = collate(blocks_of([first, second, third], 12))
    other = collate(blocks_of([third, second, first], 12))
    logits, moved = model(one).logits_BTV[0], model(other).logits_BTV[0]
    assert_equal(moved[8:12], logits[:4], "the first text at the end")
    assert_equal(moved[5:8], logits[4:7], "the second text")
    assert_equal(moved[:5], logits[7:12], "the last text at the beginning")
    together = model(replace(one, target=replace(one.target, texts_BT=None, positions_BT=None))).logits_BTV[0]
    assert not torch.allclose(together[4:7], logits[4:7], atol=1e-4)


def test_blocks_of_one_text_each_need_no_mask() -> None:
    batch = collate(blocks_of([[4, 5, 6, 7, 8]], 3))
    assert batch.target.texts_BT is None
    assert batch.target.positions_BT is None
    assert batch.target.ids_BT.tolist() == [[BOS, 4, 5], [BOS, 7, 8]]
    assert batch.labels_BT.tolist() == [[4, 5, 6], [7, 8, EOS]]
