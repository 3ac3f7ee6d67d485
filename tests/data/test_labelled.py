from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.models import BPE, WordLevel, WordPiece
from tokenizers.normalizers import BertNormalizer, Lowercase
from tokenizers.pre_tokenizers import BertPreTokenizer, Whitespace, WhitespaceSplit
from torch.nn.functional import cross_entropy

import ostinato.data.rows
from architectures import draws
from ostinato.config.data import DataConfig, MaskingConfig, TokenizerConfig
from ostinato.config.model import EncoderConfig, LanguageModelConfig, ModelConfig
from ostinato.config.special_ids import NO_LABEL, SpecialIds
from ostinato.data.batch import TextSize
from ostinato.data.batching import TrainingBatches
from ostinato.data.collate import LabelledRow, collate
from ostinato.data.example import NOT_IN_PASSAGE, Example
from ostinato.data.labelled import classification_row, continuation_row, first_tokens, passage_of, span_row, tagging_row
from ostinato.data.objectives import mask_tokens, objective_of, split_prefix
from ostinato.data.pieces import KeptTokenizer
from ostinato.data.rows import Blocks, encode_rows
from ostinato.data.symbols import LabelTokenizer, SymbolTokenizer
from ostinato.data.tokenizer import BOS_ID, EOS_ID, Tokenizer
from ostinato.data.tokenizers import Tokenizers, train_tokenizer
from ostinato.errors import ConfigError, DataError
from ostinato.models import build_model

WORDS = SymbolTokenizer("words", list("abcdefgh"))
A, B, C, D = (4 + i for i in range(4))
LABELS = Tokenizers(WORDS, LabelTokenizer("classification", ["yes", "no way"]))
TAGS = Tokenizers(WORDS, LabelTokenizer("tagging", ["O", "X"]))
JOINT = Tokenizers(WORDS, WORDS)
DATA = DataConfig()
MASKED = EncoderConfig()
CAUSAL = LanguageModelConfig()


def test_a_pair_is_read_with_an_end_symbol_after_each_text() -> None:
    row = classification_row(Example("a b\tc", "no way"), LABELS, DATA, 3)
    assert row == LabelledRow([BOS_ID, A, B, EOS_ID, C, EOS_ID], [1], index=3)
    alone = classification_row(Example("a", " yes "), LABELS, DATA, 0)
    assert alone is not None
    assert (alone.ids, alone.labels) == ([BOS_ID, A, EOS_ID], [0])


def test_too_long_pairs_are_cut_at_the_longer_text() -> None:
    long = Example("a b c d a b\tc d", "yes")
    cut = classification_row(long, LABELS, DataConfig(max_source_length=8, over_length="truncate"), 0)
    assert cut is not None
    assert cut.ids == [BOS_ID, A, B, C, EOS_ID, C, D, EOS_ID]
    assert classification_row(long, LABELS, DataConfig(max_source_length=8, over_length="drop"), 0) is None
    with pytest.raises(DataError, match="11 tokens"):
        classification_row(long, LABELS, DataConfig(max_source_length=8), 0)
    with pytest.raises(DataError, match="3 texts"):
        classification_row(Example("a\tb\tc", "yes"), LABELS, DATA, 0)


def test_a_pair_that_leaves_no_room_for_its_end_symbols_is_refused() -> None:
    with pytest.raises(DataError, match="max_source_length = 2 leaves no room for the end symbols"):
        classification_row(Example("a\tb", "yes"), LABELS, DataConfig(max_source_length=2, over_length="truncate"), 0)


def test_labels_are_a_closed_list_by_frequency() -> None:
    labels = LabelTokenizer.count("classification", ["b c", "a", "b c", "a", "z"])
    assert labels.labels == ["a", "b c", "z"]
    assert labels.decode([1]) == "b c"
    with pytest.raises(DataError, match="'q' is not among the 3 labels"):
        labels.encode("q")
    assert LabelTokenizer.count("tagging", ["O X O"]).decode([0, 1, 0]) == "O X O"
    assert LabelTokenizer.count("tagging", [f"O {NO_LABEL} X {NO_LABEL} O"]).labels == ["O", "X"]


def test_label_tokenizers_survive_their_file(tmp_path: object) -> None:
    for tokenizers in (LABELS, TAGS):
        folder = tmp_path / tokenizers.target.kind  # type: ignore[operator]
        tokenizers.save(folder)
        loaded = Tokenizers.load(folder).target
        assert isinstance(loaded, LabelTokenizer)
        assert (loaded.kind, loaded.labels) == (tokenizers.target.kind, tokenizers.target.labels)  # type: ignore[attr-defined]


def test_words_have_their_label_at_their_first_piece() -> None:
    pieces = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=270), ["ab ab abba"])
    text = " ab  abbaé b"
    ids = pieces.encode(text)
    assert len(pieces.spans(text)) == len(ids)
    firsts = list(first_tokens(text, pieces))
    assert [text[slice(*pieces.spans(text)[n])][:1] for n in firsts] == ["a", "a", "b"]
    row = tagging_row(Example("a b c", "O X O"), TAGS, DATA, 0)
    assert row is not None
    assert (row.ids, row.places, row.labels) == ([BOS_ID, A, B, C, EOS_ID], [1, 2, 3], [0, 1, 0])
    with pytest.raises(DataError, match="2 labels for 3 words"):
        tagging_row(Example("a b c", "O X"), TAGS, DATA, 0)
    some = tagging_row(Example("a b c", f"{NO_LABEL} X {NO_LABEL}"), TAGS, DATA, 0)
    assert some is not None
    assert (some.ids, some.places, some.labels) == (row.ids, [2], [1])
    none = tagging_row(Example("a b", f"{NO_LABEL} {NO_LABEL}"), TAGS, DATA, 0)
    assert none is not None
    assert collate([none]).loss_mask_BT.tolist() == [[False]]
    cut = tagging_row(Example("a b c", "O X O"), TAGS, DataConfig(max_source_length=4, over_length="truncate"), 0)
    assert cut is not None
    assert (cut.ids, cut.places, cut.labels) == ([BOS_ID, A, B, EOS_ID], [1, 2], [0, 1])


def test_a_word_has_its_label_at_the_first_token_in_it_and_none_where_the_tokenizer_removes_it() -> None:
    model = LibraryTokenizer(WordPiece({"[UNK]": 0, "ab": 1, "##c": 2, "d": 3, "</s>": 4}, unk_token="[UNK]"))
    model.normalizer, model.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    bert = KeptTokenizer(model.to_str(), SpecialIds(pad=4, bos=4, eos=4))
    tokenizers = Tokenizers(bert, LabelTokenizer("tagging", ["O", "X", "Y"]))
    text = "ab \u200babc \u200e\ufeff d"
    assert first_tokens(text, bert) == [0, 1, None, 3]
    for tags, places, labels in (
        ("O X Y O", [1, 2, 4], [0, 1, 0]),
        (f"O X {NO_LABEL} O", [1, 2, 4], [0, 1, 0]),
        (f"{NO_LABEL} X Y O", [2, 4], [1, 0]),
    ):
        row = tagging_row(Example(text, tags), tokenizers, DATA, 0)
        assert row is not None
        assert (row.ids, row.places, row.labels) == ([4, 1, 1, 2, 3, 4], places, labels)
    cut = tagging_row(Example(text, "O X Y O"), tokenizers, DataConfig(max_source_length=5, over_length="truncate"), 0)
    assert cut is not None
    assert (cut.places, cut.labels) == ([1, 2], [0, 1])
    nothing = tagging_row(Example("\u200b", "X"), tokenizers, DATA, 0)
    assert nothing is not None
    assert (nothing.ids, collate([nothing]).loss_mask_BT.tolist()) == ([4, 4], [[False]])


def test_a_word_that_begins_inside_a_token_is_refused() -> None:
    model = LibraryTokenizer(
        BPE({"a": 0, " ": 1, "b": 2, "a ": 3, "a b": 4, "c": 5, "</s>": 6}, [("a", " "), ("a ", "b")])
    )
    pieces = KeptTokenizer(model.to_str(), SpecialIds(pad=6, bos=6, eos=6))
    assert pieces.spans("a bc") == [(0, 3), (3, 4)]
    for text in ("a b", "a bc", "c a bc"):
        with pytest.raises(DataError, match=r"^the word 'bc?' has no token of its own: choose a tokenizer that splits"):
            first_tokens(text, pieces)


@draws(40)
@given(st.text(alphabet="ab é日\t", max_size=12))
def test_spans_cover_what_their_ids_stand_for(text: str) -> None:
    for kind in ("words", "characters", "bpe", "unigram"):
        tokenizer = _trained(kind)
        spans, ids = tokenizer.spans(text), tokenizer.encode(text, unknown="replace")
        assert len(spans) == len(ids)
        covered = {i for start, end in spans for i in range(start, end)}
        assert covered == {i for i, symbol in enumerate(text) if not symbol.isspace()}


_CACHE: dict[str, Tokenizer] = {}


def _trained(kind: str) -> Tokenizer:
    if kind not in _CACHE:
        config = TokenizerConfig(kind=kind, vocab_size=270)  # type: ignore[arg-type]
        _CACHE[kind] = train_tokenizer(config, ["ab ab é 日本 ba", "abba"])
    return _CACHE[kind]


def test_an_answer_is_found_where_it_is_said_to_be() -> None:
    example = Example("a b\tc d c d", "c d", {"answer_start": 4})
    row = span_row(example, JOINT, DATA, 0)
    assert row is not None
    assert row.ids == [BOS_ID, A, B, EOS_ID, C, D, C, D, EOS_ID]
    assert (row.labels, row.n_prefix) == ([6, 7], 4)
    first = span_row(Example("a b\tc d c d", "c d\tother"), JOINT, DATA, 0)
    assert first is not None
    assert first.labels == [4, 5]
    _, passage = passage_of(example, WORDS, DATA)
    assert passage.answer(5, 6) == "d c"
    with pytest.raises(DataError, match="does not hold the answer 'x'"):
        span_row(Example("a\tc d", "x"), JOINT, DATA, 0)
    for place in ("4", 4.0):  # what tables make of a column with gaps
        same = span_row(Example(example.source, "c d", {"answer_start": place}), JOINT, DATA, 0)
        assert same is not None
        assert same.labels == [6, 7]
    with pytest.raises(DataError, match=r"answer_start is '4\.5', which is no whole number"):
        span_row(Example(example.source, "c d", {"answer_start": "4.5"}), JOINT, DATA, 0)
    cut = span_row(example, JOINT, DataConfig(max_source_length=7, over_length="truncate"), 0)
    assert cut is not None
    assert (cut.ids[-2:], cut.labels) == ([D, EOS_ID], [-1, -1])
    nowhere = span_row(Example("a\tc d", "x", {"answer_start": NOT_IN_PASSAGE}), JOINT, DATA, 0)
    assert nowhere is not None
    assert (nowhere.ids, nowhere.labels) == ([BOS_ID, A, EOS_ID, C, D, EOS_ID], [-1, -1])


def test_batches_of_labelled_rows_count_the_labels_that_are_there() -> None:
    rows = [LabelledRow([1, 4, 5, 2], [1, 0], [1, 2], index=7), LabelledRow([1, 4, 2], [-1], [1], index=8)]
    batch = collate(rows)
    assert batch.target.ids_BT.tolist() == [[1, 4, 5, 2], [1, 4, 2, 0]]
    assert batch.labels_BT.tolist() == [[1, 0], [0, 0]]
    assert batch.loss_mask_BT.tolist() == [[True, True], [False, False]]
    assert batch.places_BL is not None
    assert batch.places_BL.tolist() == [[1, 2], [1, 0]]
    assert (batch.indices, batch.n_labels) == ((7, 8), 2)


# --- masking ---------------------------------------------------------------------------------------------------------


def _row(n: int) -> LabelledRow:
    return LabelledRow([BOS_ID, *(4 + i % 20 for i in range(n)), EOS_ID], [])


@pytest.mark.parametrize("mean_span", [1.0, 3.0])
def test_masking_hides_the_share_it_says_and_remembers_what_stood_there(mean_span: float) -> None:
    masking = MaskingConfig(mean_span=mean_span)
    fates = {"masked": 0, "kept": 0, "random": 0}
    for seed in range(40):
        row = _row(200)
        found = mask_tokens(row, np.random.default_rng(seed), masking=masking, n_ids=1000)
        assert found.places is not None
        assert len(found.labels) == len(set(found.places)) == 30
        assert found.labels == [row.ids[place] for place in found.places]
        assert [i for i, (a, b) in enumerate(zip(row.ids, found.ids, strict=True)) if a != b] == sorted(
            place for place in found.places if found.ids[place] != row.ids[place]
        )
        for place, label in zip(found.places, found.labels, strict=True):
            now = found.ids[place]
            fates["masked" if now == 1000 else "kept" if now == label else "random"] += 1
    total = sum(fates.values())
    assert fates["masked"] / total == pytest.approx(0.8, abs=0.05)
    assert fates["kept"] / total == pytest.approx(0.1, abs=0.04)
    assert fates["random"] / total == pytest.approx(0.1, abs=0.04)


def test_spans_are_runs_of_about_the_mean_length() -> None:
    masking = MaskingConfig(mean_span=4.0, keep=0.0, random=0.0)
    n_runs = n_tokens = 0
    for seed in range(50):
        places = mask_tokens(_row(400), np.random.default_rng(seed), masking=masking, n_ids=99).places
        assert places is not None
        n_tokens += len(places)
        n_runs += sum(place - 1 not in places for place in places)
    # Runs that touch count as one, and lengths are cut at 10.
    assert 3.0 < n_tokens / n_runs < 6.0


def test_special_symbols_are_never_masked_and_short_texts_have_one_label() -> None:
    found = mask_tokens(_row(1), np.random.default_rng(0), masking=MaskingConfig(), n_ids=99)
    assert found.places == [1]
    empty = mask_tokens(LabelledRow([1, 2], []), np.random.default_rng(0), masking=MaskingConfig(), n_ids=99)
    assert collate([empty]).n_labels == 0
    with pytest.raises(ConfigError, match="exceed 1"):
        MaskingConfig(keep=0.6, random=0.5)


def test_masks_follow_from_seed_epoch_and_row_and_go_on_after_a_restore() -> None:
    objective = objective_of(MASKED, DATA, JOINT)
    rows = [_row(n) for n in (5, 9, 12, 30)]

    def taken(batches: TrainingBatches, n: int) -> list[list[list[int]]]:
        return [next(batches).target.ids_BT.tolist() for _ in range(n)]

    first = taken(TrainingBatches(rows, 40, 1, objective), 9)
    again = TrainingBatches(rows, 40, 1, objective)
    assert taken(again, 4) == first[:4]
    resumed = TrainingBatches(rows, 40, 1, objective)
    resumed.restore(again.state())
    assert taken(resumed, 5) == first[4:]
    other = taken(TrainingBatches(rows, 40, 2, objective), 9)
    assert other != first


def test_evaluation_masks_the_same_tokens_every_time_and_training_rows_are_whole() -> None:
    texts = [Example(None, "a b c d e f g h"), Example(None, "h g f e")]

    def rows(training: bool) -> list[object]:
        return list(encode_rows(texts, JOINT, DATA, MASKED, training=training, name="dev"))

    assert rows(False) == rows(False)
    assert [len(row.labels) for row in rows(False)] == [1, 1]  # type: ignore[attr-defined]
    assert [row.labels for row in rows(True)] == [[], []]  # type: ignore[attr-defined]


# --- blocks, prefixes, continuations ---------------------------------------------------------------------------------


def _packed(texts: list[str], length: int, config: ModelConfig = CAUSAL) -> Iterator[LabelledRow]:
    data = DataConfig(block_length=length)
    for row in encode_rows([Example(None, t) for t in texts], JOINT, data, config, training=False, name="x"):
        assert isinstance(row, LabelledRow)
        yield row


@draws(30)
@given(st.lists(st.integers(2, 9), min_size=1, max_size=6), st.integers(2, 7))
def test_packing_predicts_every_token_and_every_end_once(lengths: list[int], block_length: int) -> None:
    texts = [" ".join("abcdefgh"[i % 8] for i in range(n)) for n in lengths]
    rows = list(_packed(texts, block_length))
    expected = [i for text in texts for i in (*WORDS.encode(text), EOS_ID)]
    assert [label for row in rows for label in row.labels] == expected
    assert all(row.ids == [BOS_ID, *row.labels[:-1]] for row in rows)
    assert all(row.length == block_length for row in rows[:-1])
    sizes = [row.size for row in rows]
    total = TextSize(0, 0)
    for size in sizes:
        assert size is not None
        total += size
    assert total == TextSize(sum(n + 1 for n in lengths), sum(len(text) + 1 for text in texts))
    assert [row.index for row in rows] == list(range(len(rows)))


def test_a_text_with_an_unknown_token_has_no_size() -> None:
    """Its bytes would be divided by, and what they say is in no loss."""
    replaced = DataConfig(unknown="replace")
    texts = [Example(None, "a b"), Example(None, "a new"), Example("new", "c", continues=True)]
    texts.append(Example("a", "new", continues=True))
    rows = list(encode_rows(texts, JOINT, replaced, CAUSAL, training=False, name="x"))
    assert [row.size for row in rows] == [TextSize(3, 4), None, TextSize(1, 1), None]
    blocks = replaced.model_copy(update={"block_length": 2})
    rows = list(encode_rows(texts[:2], JOINT, blocks, CAUSAL, training=False, name="x"))
    assert [row.size for row in rows] == [TextSize(0, 0), None, None]
    # An id that is unknown text in one tokenizer is any piece in another.
    pieces = {"[UNK]": 0, "a": 1, "b": 2, "c": 3, "</s>": 4}
    model = LibraryTokenizer(WordLevel(pieces, unk_token="[UNK]"))
    model.pre_tokenizer = WhitespaceSplit()
    kept = KeptTokenizer(model.to_str(), SpecialIds(pad=4, bos=4, eos=4))
    known = Tokenizers(kept, kept)
    rows = list(encode_rows([*texts[:2], Example(None, "c")], known, replaced, CAUSAL, training=False, name="x"))
    assert [row.size for row in rows] == [TextSize(3, 4), None, TextSize(2, 2)]


def test_a_size_is_that_of_what_the_tokens_say_of_a_text() -> None:
    texts = [Example(None, "a b"), Example(None, "  a\n\n b "), Example(None, "A b")]
    rows = encode_rows(texts[:2], JOINT, DATA, CAUSAL, training=False, name="x")
    assert [row.size for row in rows] == [TextSize(3, 4)] * 2
    model = LibraryTokenizer(WordLevel({"[UNK]": 0, "a": 1, "b": 2, "</s>": 3}, unk_token="[UNK]"))
    model.pre_tokenizer, model.normalizer = WhitespaceSplit(), Lowercase()
    lower = KeptTokenizer(model.to_str(), SpecialIds(pad=3, bos=3, eos=3))
    rows = encode_rows(texts, Tokenizers(lower, lower), DATA, CAUSAL, training=False, name="x")
    assert [row.size for row in rows] == [TextSize(3, 4), TextSize(3, 4), None]
    apart = LibraryTokenizer(WordLevel({"[UNK]": 0, "a": 1, "b": 2, "</s>": 3, "!": 4}, unk_token="[UNK]"))
    apart.pre_tokenizer = Whitespace()
    marks = KeptTokenizer(apart.to_str(), SpecialIds(pad=3, bos=3, eos=3))
    rows = encode_rows([Example(None, "a!b a")], Tokenizers(marks, marks), DATA, CAUSAL, training=False, name="x")
    assert [row.size for row in rows] == [TextSize(3, 6)]  # its tokens say "a ! b a"
    pieces = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=270), ["ab ab abba"])
    rows = encode_rows(texts, Tokenizers(pieces, pieces), DATA, CAUSAL, training=False, name="x")
    assert [row.size for row in rows] == [TextSize.of(text.target) for text in texts]


def test_masked_blocks_hold_the_texts_with_their_ends() -> None:
    data = DataConfig(block_length=5)
    texts = [Example(None, "a b c"), Example(None, "d e")]
    rows = list(encode_rows(texts, JOINT, data, MASKED, training=True, name="x"))
    assert [row.ids for row in rows] == [[BOS_ID, A, B, C, EOS_ID], [BOS_ID, D, 8, EOS_ID]]  # type: ignore[union-attr]
    with pytest.raises(DataError, match="packs texts"):
        list(encode_rows([Example("a", "b")], JOINT, data, CAUSAL, training=True, name="x"))


def test_texts_that_are_continued_are_in_no_block() -> None:
    data = DataConfig(block_length=5)
    texts = [Example("a b", "c", continues=True), Example("d", "a b", continues=True)]
    blocks = list(encode_rows(texts, JOINT, data, CAUSAL, training=False, name="x"))
    alone = list(encode_rows(texts, JOINT, DataConfig(), CAUSAL, training=False, name="x"))
    assert blocks == alone
    assert [row.index for row in blocks] == [0, 1]


def test_a_text_that_is_continued_has_no_more_tokens_than_there_are_positions() -> None:
    positions = {"kind": "learned", "max_length": 4}
    config = LanguageModelConfig.model_validate({"decoder": {"positions": positions, "relative": {"kind": "none"}}})
    data = DataConfig(block_length=4)
    fits, long = Example("a b c", "d", continues=True), Example("a b c d", "a", continues=True)
    texts = [Example(None, "a b c d a b c d"), fits]
    assert [row.length for row in encode_rows(texts, JOINT, data, config, training=False, name="dev")] == [4, 4, 4, 1]
    for training in (True, False):
        with pytest.raises(DataError, match=r"^dev: example 2 has 5 tokens, but the model has 4 positions, and .*$"):
            list(encode_rows([fits, long], JOINT, data, config, training=training, name="dev"))


def test_a_text_that_is_cut_does_not_end_there() -> None:
    texts = [Example(None, "a b c d a"), Example(None, "c a"), Example(None, "a b c")]
    cut = DataConfig(max_target_length=3, over_length="truncate")
    for training in (True, False):
        rows = list(encode_rows(texts, JOINT, cut, CAUSAL, training=training, name="x"))
        batch = collate(rows)
        assert batch.target.ids_BT.tolist() == [[BOS_ID, A, B], [BOS_ID, C, A], [BOS_ID, A, B]]
        assert batch.labels_BT.tolist() == [[A, B, C], [C, A, EOS_ID], [A, B, C]]
        assert [row.length for row in rows] == [3, 3, 3]
        assert [row.size is None for row in rows] == [True, training, True]  # its bytes are not those of the labels
    prefix = LanguageModelConfig(mask="prefix")
    labelled = list(encode_rows(texts, JOINT, cut, prefix, training=True, name="x"))
    assert [row.labels for row in labelled if isinstance(row, LabelledRow)] == [[A, B, C], [C, A, EOS_ID], [A, B, C]]
    one = cut.model_copy(update={"max_target_length": 1})
    (row,) = encode_rows(texts[:1], JOINT, one, CAUSAL, training=True, name="x")
    assert collate([row]).labels_BT.tolist() == [[A]]
    # Outputs have to end, so that those that are cut end there.
    pairs = DataConfig(max_source_length=2, max_target_length=3, over_length="truncate")
    (pair,) = encode_rows([Example("a b c", "a b c d")], JOINT, pairs, CAUSAL, training=True, name="x")
    batch = collate([pair])
    assert batch.labels_BT[batch.loss_mask_BT].tolist() == [A, B, EOS_ID]


@torch.inference_mode()
def test_the_loss_of_a_text_that_is_cut_is_that_of_the_whole_text_up_to_there() -> None:
    config = LanguageModelConfig.model_validate(
        {"vocab_size": WORDS.vocab_size, "d_model": 16, "decoder": {"self_attention": {"n_heads": 2}}}
    )
    torch.manual_seed(1)
    model = build_model(config).eval()
    text, n = [Example(None, "a b c d a b h g")], 5
    cut = DataConfig(max_target_length=n, over_length="truncate")
    losses_of = []
    for data in (DATA, cut):
        batch = collate(list(encode_rows(text, JOINT, data, CAUSAL, training=True, name="x")))
        losses_of.append(cross_entropy(model(batch).logits_BTV[0], batch.labels_BT[0], reduction="none"))
    whole, of_cut = losses_of
    assert len(of_cut) == n
    torch.testing.assert_close(of_cut, whole[:n])


def test_a_prefix_is_no_label_and_what_follows_is() -> None:
    row = LabelledRow([BOS_ID, A, B, C], [A, B, C, EOS_ID], size=TextSize(4, 6))
    seen = set()
    for seed in range(60):
        found = split_prefix(row, np.random.default_rng(seed))
        assert found.n_prefix is not None
        n = found.n_prefix
        assert found.labels == [-1] * (n - 1) + row.labels[n - 1 :]
        assert found.size is None
        seen.add(n)
    assert seen == {1, 2, 3}
    objective = objective_of(LanguageModelConfig(mask="prefix"), DATA, JOINT)
    assert objective is split_prefix
    assert objective_of(CAUSAL, DATA, JOINT) is None


def test_a_continuation_is_one_text_of_which_the_last_part_counts() -> None:
    row = continuation_row(Example("a b", "c d", {}, continues=True), JOINT, DATA, 0)
    assert row.ids == [BOS_ID, A, B, C]
    assert row.labels == [-1, -1, C, D]
    assert row.size == TextSize(2, 3)
    pieces = _trained("bpe")
    joint = Tokenizers(pieces, pieces)
    broken = continuation_row(Example("ab\n", "ba", continues=True), joint, DATA, 0)
    counted = [label for label in broken.labels if label != -1]
    assert pieces.decode(counted).strip() == "ba"
    with pytest.raises(DataError, match="never cut"):
        continuation_row(Example("a b", "c d"), JOINT, DataConfig(max_target_length=3, over_length="truncate"), 0)


def test_a_continuation_whose_letters_the_tokenizer_changes_has_no_size() -> None:
    model = LibraryTokenizer(WordLevel({"[UNK]": 0, "a": 1, "b": 2, "</s>": 3}, unk_token="[UNK]"))
    model.pre_tokenizer, model.normalizer = WhitespaceSplit(), Lowercase()
    lower = KeptTokenizer(model.to_str(), SpecialIds(pad=3, bos=3, eos=3))
    texts = [Example("A", "b  a", continues=True), Example("a", "b A", continues=True)]
    sizes = [continuation_row(text, Tokenizers(lower, lower), DATA, 0).size for text in texts]
    # What the source becomes costs nothing; of two blanks one is in the tokens.
    assert sizes == [TextSize(2, 3), None]
    pieces = _trained("bpe")
    broken = continuation_row(Example("ab\n", "é  日", continues=True), Tokenizers(pieces, pieces), DATA, 0)
    assert broken.size == TextSize(2, 7)


def test_a_batch_of_continuations_goes_through_a_language_model_with_other_examples_untouched() -> None:
    examples = [Example("a b", "c", continues=True), Example("a", "b c d", continues=True)]
    batch = collate(list(encode_rows(examples, JOINT, DATA, CAUSAL, training=False, name="x")))
    assert batch.n_labels == 4
    assert batch.prefix_lengths_B is None
    assert torch.equal(batch.loss_mask_BT.sum(1), torch.tensor([1, 3]))


def test_a_long_text_is_cut_in_one_pass() -> None:
    """Blocks were cut off the front of what was left, which costs a text's length squared."""
    moved = [0]

    class Counted(list[int]):
        def __getitem__(self, key: Any) -> Any:
            found = super().__getitem__(key)
            moved[0] += len(found) if isinstance(key, slice) else 0
            return found

        def __iadd__(self, other: Any) -> Any:
            super().extend(other)
            return self

    packer = ostinato.data.rows._Packer(Blocks(64, True, False, SpecialIds()), {})
    packer.held = Counted()
    ids = list(range(5, 100_005))
    blocks = list(packer.add(LabelledRow([BOS_ID, *ids], [*ids, EOS_ID])))
    assert len(blocks) == 100_001 // 64
    assert [i for block in blocks for i in block.labels] + list(packer.held) == [*ids, EOS_ID]
    assert moved[0] <= len(ids) + 64
