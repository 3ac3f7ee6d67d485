from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from architectures import draws
from ostinato.config.data import DataConfig, MixtureConfig
from ostinato.config.model import EncoderConfig, LanguageModelConfig
from ostinato.data.batching import TrainingBatches
from ostinato.data.collate import LabelledRow, Row
from ostinato.data.example import Example
from ostinato.data.mixture import Mixture, counts, data_sets_of
from ostinato.data.rows import encode_rows
from ostinato.data.symbols import SymbolTokenizer
from ostinato.data.tokenizers import Tokenizers
from ostinato.errors import DataError


def test_shares_follow_the_temperature() -> None:
    assert counts({"a": 900, "b": 100}, 1.0) == {"a": 900, "b": 100}
    # Square roots: 30 : 10.
    assert counts({"a": 900, "b": 100}, 2.0) == {"a": 750, "b": 250}
    assert counts({"a": 900, "b": 100}, 1e9) == {"a": 500, "b": 500}


@draws(50)
@given(st.lists(st.integers(1, 500), min_size=1, max_size=6), st.floats(1.0, 100.0))
def test_an_epoch_has_as_many_rows_as_there_are(sizes: list[int], temperature: float) -> None:
    found = counts({str(i): n for i, n in enumerate(sizes)}, temperature)
    assert sum(found.values()) == sum(sizes)


def _columns(sizes: dict[str, int]) -> list[dict[str, object]]:
    return [{"set": name} for name, n in sizes.items() for _ in range(n)]


def test_rows_are_drawn_as_often_as_goes_whole_and_at_most_once_more() -> None:
    columns = _columns({"a": 70, "b": 10})
    rows, config = [Row(None, [5], one) for one in columns], MixtureConfig(column="set", temperature=4.0)
    mixture = Mixture(config, data_sets_of(config, rows))
    drawn = mixture.draw(np.random.default_rng(0))
    times = Counter(drawn.tolist())
    by_set = Counter(str(columns[i]["set"]) for i in drawn.tolist())
    assert by_set == mixture.counts
    assert by_set["b"] > 20
    assert {times[i] for i in range(70, 80)} <= {by_set["b"] // 10, by_set["b"] // 10 + 1}
    assert max(times[i] for i in range(70)) == 1
    with pytest.raises(DataError, match=r"row 1 has no column 'lang' \(data.mixture.column\), but set"):
        data_sets_of(MixtureConfig(column="lang"), rows)


def test_weights_are_shares_whatever_the_sizes_and_name_every_data_set() -> None:
    assert counts({"a": 90, "b": 10}, 1.0, {"a": 1.0, "b": 3.0}) == {"a": 25, "b": 75}
    rows = {"a": np.arange(90), "b": np.arange(90, 100)}
    mixture = Mixture(MixtureConfig(column="set", weights={"a": 1.0, "b": 3.0}), rows)
    times = Counter(mixture.draw(np.random.default_rng(0)).tolist())
    assert sum(times[i] for i in range(90)) == 25
    assert {times[i] for i in range(90, 100)} == {7, 8}
    with pytest.raises(DataError, match=r"data\.mixture\.weights names the data sets a, c, but there are a, b"):
        Mixture(MixtureConfig(column="set", weights={"a": 1.0, "c": 3.0}), rows)
    with pytest.raises(ValidationError, match="greater than 0"):
        MixtureConfig(column="set", weights={"a": 0.0})


def test_batches_of_a_mixture_go_on_where_they_were() -> None:
    rows = [Row(None, [5] * (1 + i % 4), column, i) for i, column in enumerate(_columns({"a": 30, "b": 5}))]
    mixture = MixtureConfig(column="set", temperature=5.0)
    first = TrainingBatches(rows, 30, 1, mixture=mixture)
    taken = [next(first).indices for _ in range(12)]
    again = TrainingBatches(rows, 30, 1, mixture=mixture)
    assert [next(again).indices for _ in range(5)] == taken[:5]
    resumed = TrainingBatches(rows, 30, 1, mixture=mixture)
    resumed.restore(again.state())
    assert [next(resumed).indices for _ in range(7)] == taken[5:]


def test_a_row_that_is_drawn_again_has_other_random_numbers() -> None:
    drawn: list[tuple[int, int]] = []

    def note(row: LabelledRow, generator: np.random.Generator) -> LabelledRow:
        drawn.append((row.index, int(generator.integers(1 << 62))))
        return row

    columns = _columns({"a": 1, "b": 39})
    rows = [LabelledRow([1, 5], [5, 2], columns=own, index=i) for i, own in enumerate(columns)]
    mixture = MixtureConfig(column="set", weights={"a": 1.0, "b": 1.0})
    batches = TrainingBatches(rows, 8, 1, note, mixture)
    for _ in range(batches.n_batches):
        next(batches)
    of_first = [number for index, number in drawn if index == 0]
    assert len(of_first) == 20
    assert len(set(of_first)) == 20
    plain = list(drawn)
    drawn.clear()
    next(TrainingBatches(rows, 8, 1, note, mixture))
    assert drawn == plain[: len(drawn)]


@pytest.mark.parametrize("config", [LanguageModelConfig(), EncoderConfig()])
def test_blocks_hold_texts_of_one_data_set(config: LanguageModelConfig | EncoderConfig) -> None:
    words = SymbolTokenizer("words", list("abxy"))
    texts = ["a b a", "x y", "b", "x x x x"]
    examples = [Example(None, text, {"set": "ab" if text[0] in "ab" else "xy"}) for text in texts]
    data = DataConfig(block_length=4, mixture=MixtureConfig(column="set"))
    rows = list(encode_rows(examples, Tokenizers(words, words), data, config, training=True, name="x"))
    assert [row.index for row in rows] == list(range(len(rows)))
    for row in rows:
        assert isinstance(row, LabelledRow)
        letters = {words.symbols[i - 4] for i in row.ids if i >= 4}
        assert letters <= set(str(row.columns["set"]))
    seen = Counter(i for row in rows for i in (row.ids if config.reads == "masked" else row.labels) if i >= 4)  # type: ignore[union-attr]
    assert seen == Counter(i for text in texts for i in words.encode(text))
