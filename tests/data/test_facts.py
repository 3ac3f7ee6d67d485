"""Stories as facts: rows, batches, and what is refused."""

from __future__ import annotations

import pytest
import torch

from ostinato.config.data import DataConfig
from ostinato.data.collate import LabelledRow, collate
from ostinato.data.example import Example
from ostinato.data.labelled import facts_row
from ostinato.data.tokenizer import PAD_ID
from ostinato.data.tokenizers import Tokenizers
from ostinato.errors import DataError

STORY = "mary went home .\tjohn sat .\twhere is mary ?"


def _data(**settings: object) -> DataConfig:
    return DataConfig.model_validate({"tokenizer": {"kind": "words"}, **settings})


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    examples = [Example(STORY, "home"), Example("john sat .\twho sat ?", "john,mary")]
    return Tokenizers.train(_data(), examples, "classification")


def _row(tokenizers: Tokenizers, source: str, target: str = "home", **settings: object) -> LabelledRow | None:
    return facts_row(Example(source, target, {"n": 1}), tokenizers, _data(**settings), 3, max_words=5)


def test_every_fact_is_a_column_and_the_question_is_the_last(tokenizers: Tokenizers) -> None:
    row = _row(tokenizers, STORY)
    assert row is not None
    assert row.facts is not None
    assert [tokenizers.source.decode(fact) for fact in row.facts] == STORY.split("\t")
    assert (row.length, row.ids, row.index, row.columns) == (3, [], 3, {"n": 1})
    assert tokenizers.target.decode(row.labels) == "home"


def test_stories_stand_side_by_side_padded_to_most_facts_and_longest_fact(tokenizers: Tokenizers) -> None:
    rows = [_row(tokenizers, STORY), _row(tokenizers, "john sat .\twho sat ?")]
    batch = collate([row for row in rows if row is not None])
    ids_BTW, keep_BT = batch.target.ids_BT, batch.target.keep_BT
    assert ids_BTW.shape == (2, 3, 4)
    assert keep_BT.tolist() == [[True, True, True], [True, True, False]]
    assert (ids_BTW != PAD_ID).sum(-1).tolist() == [[4, 3, 4], [3, 3, 0]]
    assert batch.labels_BT.shape == (2, 1)
    assert bool(batch.loss_mask_BT.all())
    assert batch.to("cpu").n_sentences == 2


def test_facts_and_tokens_make_no_batch_together(tokenizers: Tokenizers) -> None:
    row = _row(tokenizers, STORY)
    assert row is not None
    with pytest.raises(DataError, match="rows of one kind"):
        collate([row, LabelledRow([4, 5], [0])])


def test_a_label_that_training_never_had_counts_in_no_loss(tokenizers: Tokenizers) -> None:
    with pytest.raises(DataError, match="not among the 2 labels"):
        _row(tokenizers, STORY, "garden")
    row = _row(tokenizers, STORY, "garden", unknown="replace")
    assert row is not None
    batch = collate([row])
    assert batch.n_labels == 0
    assert torch.equal(batch.labels_BT, torch.zeros(1, 1, dtype=torch.int64))


def test_what_is_no_story_is_refused_by_its_fact(tokenizers: Tokenizers) -> None:
    with pytest.raises(DataError, match="no facts"):
        _row(tokenizers, "where is mary ?")
    with pytest.raises(DataError, match=r"fact 2 \(''\) is empty"):
        _row(tokenizers, "john sat .\t\twho sat ?")
    with pytest.raises(DataError, match=r"fact 1 .* has 6 tokens, and model.embedder.max_words is 5: raise it"):
        _row(tokenizers, "mary went home mary went home\twho sat ?")


def test_of_too_many_facts_the_last_are_kept_or_the_story_is_dropped_or_refused(tokenizers: Tokenizers) -> None:
    row = _row(tokenizers, STORY, max_source_length=2, over_length="truncate")
    assert row is not None
    assert row.facts is not None
    assert [tokenizers.source.decode(fact) for fact in row.facts] == STORY.split("\t")[1:]
    assert _row(tokenizers, STORY, max_source_length=2, over_length="drop") is None
    with pytest.raises(DataError, match=r"3 facts with the question, but data\.max_source_length is 2"):
        _row(tokenizers, STORY, max_source_length=2)
