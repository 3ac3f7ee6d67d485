from __future__ import annotations

import pytest

from ostinato.config.data import DataConfig
from ostinato.data.batching import evaluation_batches
from ostinato.data.collate import Row, collate
from ostinato.data.example import Example
from ostinato.data.rows import encode_examples
from ostinato.data.tokenizer import UNK_ID
from ostinato.data.tokenizers import Tokenizers
from ostinato.errors import DataError

EXAMPLES = [Example("a b", "x"), Example("a b c d", "x y"), Example("a", "x y x y x", {"k": 1})]
TOKENIZERS = Tokenizers.train(DataConfig(), EXAMPLES)


def test_joined_rows_keep_to_the_budget_and_to_the_longest_length_of_each_side() -> None:
    examples = [Example("a b c", "x y"), Example("a", "y y x")]
    data = DataConfig(max_source_length=4, max_target_length=4)
    rows = list(encode_examples(examples, TOKENIZERS, data, training=True, name="train", joins_pairs=True))
    assert [row.length for row in rows] == [7, 6]
    with pytest.raises(
        DataError, match=r"the source has 4 tokens with its end symbol, but data\.max_source_length is 3"
    ):
        list(encode_examples(examples, TOKENIZERS, DataConfig(max_source_length=3), training=True, name="t"))
    many = [Row([5] * n, [6] * (n % 4), {}, n, is_joined=True) for n in range(20)]
    for batch in evaluation_batches(many, 60):
        assert batch.target.ids_BT.numel() <= 60
    texts = [Example(None, "a b")]
    (text,) = encode_examples(texts, TOKENIZERS, data, training=True, name="train", joins_pairs=True)
    assert not text.is_joined


def encode(data: DataConfig, *, training: bool, examples: list[Example] = EXAMPLES) -> list[Row]:
    return list(encode_examples(examples, TOKENIZERS, data, training=training, name="dev"))


def test_encoded_examples_keep_columns_and_numbers() -> None:
    rows = encode(DataConfig(), training=True)
    assert [row.index for row in rows] == [0, 1, 2]
    assert [row.length for row in rows] == [3, 5, 6]
    assert rows[2].columns == {"k": 1}
    assert TOKENIZERS.source.decode(rows[1].source_ids or []) == "a b c d"
    assert TOKENIZERS.target.decode(rows[1].target_ids) == "x y"


def test_a_length_equal_to_the_limit_is_allowed() -> None:
    data = DataConfig(max_source_length=5, max_target_length=6)
    assert len(encode(data, training=True)) == 3


@pytest.mark.parametrize("training", [True, False])
def test_a_longer_example_is_an_error_that_names_it(training: bool) -> None:
    with pytest.raises(DataError) as caught:
        encode(DataConfig(max_source_length=4), training=training)
    assert str(caught.value).startswith(
        "dev: example 2: the source has 5 tokens with its end symbol, but data.max_source_length is 4: "
        "raise data.max_source_length, or set data.over_length to 'truncate'"
    )
    assert ("or 'drop'" in str(caught.value)) == training
    with pytest.raises(DataError, match=r"example 3: the target has 6 .* data\.max_target_length is 5"):
        encode(DataConfig(max_target_length=5), training=training)


def test_longer_examples_are_dropped_in_training_only() -> None:
    data = DataConfig(max_source_length=4, max_target_length=5, over_length="drop")
    assert [row.index for row in encode(data, training=True)] == [0]
    with pytest.raises(DataError, match=r"example 2: .*evaluation drops nothing"):
        encode(data, training=False)


@pytest.mark.parametrize("training", [True, False])
def test_longer_examples_can_be_truncated(training: bool) -> None:
    data = DataConfig(max_source_length=4, max_target_length=5, over_length="truncate")
    rows = encode(data, training=training)
    assert TOKENIZERS.source.decode(rows[1].source_ids or []) == "a b c"
    assert TOKENIZERS.target.decode(rows[2].target_ids) == "x y x y"
    assert collate(rows).target.ids_BT.shape == (3, 5)


def test_an_unknown_symbol_names_example_and_side() -> None:
    examples = [EXAMPLES[0], Example("a q", "x")]
    with pytest.raises(DataError, match=r"^dev: example 2, source: 'q' is not among the 6 words"):
        encode(DataConfig(), training=False, examples=examples)
    rows = encode(DataConfig(unknown="replace"), training=False, examples=examples)
    assert rows[1].source_ids is not None
    assert rows[1].source_ids[1] == UNK_ID


def test_language_model_examples_have_no_source_ids() -> None:
    rows = encode(DataConfig(), training=True, examples=[Example(None, "x y")])
    assert rows[0].source_ids is None
    assert rows[0].length == 3
