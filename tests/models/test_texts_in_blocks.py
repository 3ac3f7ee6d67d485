"""Texts that stand side by side in a row, and see nothing of each other, are what they are alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from architectures import BOS, EOS, any_architecture, draws, random_model
from contract import assert_all_equal, assert_equal, gradients
from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.config.special_ids import SpecialIds
from ostinato.config.stack import StackConfig
from ostinato.data.batch import Batch
from ostinato.data.collate import LabelledRow, collate
from ostinato.data.rows import Blocks
from ostinato.errors import ConfigError
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


@draws(24)
@given(st.data())
def test_texts_of_a_source_with_a_separator_see_nothing_of_each_other(data: st.DataObject) -> None:
    config = data.draw(any_architecture(kind="seq2seq"))
    separator = config.source_vocab_size - 1
    config = config.model_copy(update={"source_separator_id": separator})
    assume(not list(config.problems()))
    ids = st.lists(st.integers(3, separator - 1), min_size=1, max_size=5)
    left, right, other = data.draw(ids), data.draw(ids), data.draw(ids)
    model = random_model(config)

    def states(*sources: list[int]) -> Tensor:
        batch = Batch.from_lists([[4]] * len(sources), sources)
        return model.encode(batch).memory_BSD  # type: ignore[no-any-return]

    both = states([*left, separator, *right])
    with_other = states([*left, separator, *other], [*left, separator, *other, separator, *right])
    n = len(left) + 1
    assert_equal(with_other[:1, :n], both[:, :n], "the first text beside another one")
    assert_equal(with_other[1:, :n], both[:, :n], "the first text beside two others")
    exchanged = states([*other[:1] * len(left), separator, *right])
    assert_equal(exchanged[:, n:], both[:, n:], "the second text behind another one")


def test_without_a_separator_the_texts_of_a_source_see_each_other() -> None:
    stack = StackConfig(n_steps=1, self_attention={"n_heads": 2}, ffn={"d_ff": 16})
    config = Seq2SeqConfig(d_model=8, source_vocab_size=12, target_vocab_size=12, dropout=0.0, encoder=stack)
    torch.manual_seed(0)
    together = build_model(config).eval()
    apart = build_model(config.model_copy(update={"source_separator_id": 11})).eval()
    apart.load_state_dict(together.state_dict())
    batches = [Batch.from_lists([[4]], [[5, 6, 11, *right]]) for right in ([7, 8], [9, 10])]
    one, other = (apart.encode(batch).memory_BSD for batch in batches)
    assert_equal(one[:, :3], other[:, :3], "the first text, encoded apart")
    one, other = (together.encode(batch).memory_BSD for batch in batches)
    assert not torch.allclose(one[:, :3], other[:, :3], atol=1e-4)
    named = build_model(config.model_copy(update={"source_separator": "|||"}))
    with pytest.raises(ConfigError, match=r"source_separator_id is None: .* which id '\|\|\|' has"):
        named.encode(batches[0])


@pytest.mark.parametrize(
    ("encoder", "reason"),
    [
        ({"ffn": {"kind": "separable_conv"}}, "reach across texts"),
        ({"n_steps": 2, "halting": {"kind": "select", "capacities": [1.0, 0.5]}}, "decides by the whole source"),
        ({"halting": {"kind": "act", "scope": "global"}}, "decides by the whole source"),
    ],
)
def test_encoders_that_take_in_more_than_they_see_keep_no_texts_apart(encoder: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"source_separator is '#SEP#': .*{reason}"):
        Seq2SeqConfig(encoder=encoder, source_separator="#SEP#")
