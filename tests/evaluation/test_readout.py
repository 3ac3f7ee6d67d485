from __future__ import annotations

import torch
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from ostinato.config.data import DataConfig
from ostinato.config.model import EncoderConfig, SpanHeadConfig
from ostinato.config.special_ids import NO_LABEL, SpecialIds
from ostinato.data.batch import Batch, Tokens
from ostinato.data.example import Example
from ostinato.data.pieces import KeptTokenizer
from ostinato.data.symbols import LabelTokenizer, SymbolTokenizer
from ostinato.data.tokenizers import Tokenizers
from ostinato.evaluation.readout import read_out, text_of

LEAST = torch.finfo(torch.float32).min


def _batch(n_labels: list[int]) -> Batch:
    keep_BT = torch.ones(len(n_labels), 6, dtype=torch.bool)
    loss_BL = torch.arange(max(n_labels)) < torch.tensor(n_labels)[:, None]
    return Batch(Tokens(keep_BT.long(), keep_BT), loss_BL.long(), loss_BL)


def _span(longest: int) -> EncoderConfig:
    return EncoderConfig(head=SpanHeadConfig(max_answer_length=longest))


def test_an_answer_never_ends_before_it_starts_and_is_no_longer_than_allowed() -> None:
    # Columns 0, 1 and 5 are no passage. The best start is 4 and the best end 2, which is no span.
    start = [LEAST, LEAST, 1.0, 0.0, 3.0, LEAST]
    end = [LEAST, LEAST, 3.0, 0.5, 2.5, LEAST]
    logits_BLT = torch.tensor([[start, end]])
    (found,) = read_out(_span(9), logits_BLT, _batch([2]))
    assert found.ids == [4, 4]
    log_probs_2T = logits_BLT[0].log_softmax(-1)
    assert found.score == float(log_probs_2T[0, 4] + log_probs_2T[1, 4])
    wide = torch.tensor([[[LEAST, LEAST, 9.0, 0.0, 1.0, LEAST], [LEAST, LEAST, 0.0, 1.0, 9.0, LEAST]]])
    assert read_out(_span(3), wide, _batch([2]))[0].ids == [2, 4]
    assert read_out(_span(2), wide, _batch([2]))[0].ids in ([2, 3], [3, 4])


def test_labels_are_the_most_probable_ones_of_the_places_that_are_there() -> None:
    config = EncoderConfig.model_validate({"head": {"kind": "tagging"}})
    logits_BLV = torch.tensor([[[0.0, 2.0], [3.0, 1.0]], [[0.0, 1.0], [0.0, 9.0]]])
    first, second = read_out(config, logits_BLV, _batch([2, 1]))
    assert (first.ids, second.ids) == ([1, 0], [1])
    log_probs_BLV = logits_BLV.log_softmax(-1)
    assert first.log_prob == float(log_probs_BLV[0, 0, 1]) + float(log_probs_BLV[0, 1, 0])
    assert first.score == first.log_prob / 2


def test_outputs_become_texts() -> None:
    words = SymbolTokenizer("words", ["who", "Ann", "met", "Bob."])
    tags = Tokenizers(words, LabelTokenizer("tagging", ["O", "PER"]))
    tagging = EncoderConfig.model_validate({"head": {"kind": "tagging"}})
    # Two of three words were cut off and get the most frequent tag.
    assert text_of(tagging, [1], Example("Ann met Bob.", "x"), tags, DataConfig()) == "PER O O"
    some = Example("who Ann met Bob.", f"{NO_LABEL} O O {NO_LABEL}")
    assert text_of(tagging, [1, 0], some, tags, DataConfig()) == f"{NO_LABEL} PER O {NO_LABEL}"
    model = LibraryTokenizer(WordLevel({"[UNK]": 0, "Ann": 1, "met": 2, "</s>": 3}, unk_token="[UNK]"))
    model.normalizer, model.pre_tokenizer = BertNormalizer(lowercase=False), BertPreTokenizer()
    bert = Tokenizers(KeptTokenizer(model.to_str(), SpecialIds(pad=3, bos=3, eos=3)), tags.target)
    # The word between has no token, and gets the most frequent tag, too.
    assert text_of(tagging, [1, 1], Example("Ann \u200b met", "O O O"), bert, DataConfig()) == "PER O PER"
    removed = Example("Ann \u200b met", f"{NO_LABEL} {NO_LABEL} O")
    assert text_of(tagging, [1], removed, bert, DataConfig()) == f"{NO_LABEL} {NO_LABEL} PER"
    joint = Tokenizers(words, words)
    # <bos> who <eos> Ann met Bob.
    assert text_of(_span(9), [4, 5], Example("who\tAnn  met Bob.", "x"), joint, DataConfig()) == "met Bob."
