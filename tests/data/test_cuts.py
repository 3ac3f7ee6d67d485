from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.config.data import DataConfig
from ostinato.config.model import EncoderConfig, LanguageModelConfig, ModelConfig, Seq2SeqConfig
from ostinato.data.cuts import Cuts
from ostinato.data.example import Example
from ostinato.data.packs.files import FileSource
from ostinato.data.packs.make import make_pack
from ostinato.data.packs.rows import packed_rows
from ostinato.data.rows import encode_rows
from ostinato.data.sources import fields_of
from ostinato.data.symbols import LabelTokenizer, SymbolTokenizer
from ostinato.data.tokenizers import Tokenizers

WORDS = SymbolTokenizer("words", list("abcdefgh"))
JOINT = Tokenizers(WORDS, WORDS)
TEXTS = ["a b c d e", "a", "a b c", "a b c d"]
CUT = DataConfig(max_source_length=4, max_target_length=4, over_length="truncate")
NOTE = "train: 2 of 4 texts were cut to data.max_target_length = 4 tokens: 3 of 17 tokens are not used; data.block_leng"
OF_MASKED = NOTE.replace("length = 4", "length = 5").replace("17", "21")


def notes(
    examples: list[Example], tokenizers: Tokenizers, data: DataConfig, config: ModelConfig, *, training: bool = True
) -> list[str]:
    cuts = Cuts()
    list(encode_rows(examples, tokenizers, data, config, training=training, name="train", cuts=cuts))
    return cuts.notes("train")


@pytest.mark.parametrize("training", [True, False])
def test_what_is_cut_of_texts_is_said_with_what_loses_none(training: bool) -> None:
    examples = [Example(None, text) for text in TEXTS]
    (note,) = notes(examples, JOINT, CUT, LanguageModelConfig(), training=training)
    assert note.startswith(NOTE)
    # A masked model reads the begin symbol beside its end symbol.
    (note,) = notes(
        examples, JOINT, CUT.model_copy(update={"max_target_length": 5}), EncoderConfig(), training=training
    )
    assert note.startswith(OF_MASKED)


def test_nothing_is_said_where_nothing_is_cut() -> None:
    examples = [Example(None, text) for text in TEXTS]
    for change in ({"max_target_length": 6}, {"block_length": 4}):
        assert notes(examples, JOINT, CUT.model_copy(update=change), LanguageModelConfig()) == []
    assert notes(examples, JOINT, CUT.model_copy(update={"over_length": "drop"}), LanguageModelConfig()) == []


def test_a_pack_counts_what_rows_in_memory_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    source = FileSource((("a", tmp_path / "a.txt"),), fields_of(CUT, "language_model"))
    pack = make_pack(source, JOINT, n_processes=1)
    for data, n in ((CUT, 1), (CUT.model_copy(update={"over_length": "drop"}), 0)):
        cuts = Cuts()
        packed_rows(pack, data, LanguageModelConfig(), JOINT, name="train", cuts=cuts)
        assert [note.startswith(NOTE) for note in cuts.notes("train")] == [True] * n


def test_each_side_of_pairs_has_its_line() -> None:
    examples = [Example("a b c d e", "a"), Example("a", "a b c d")]
    assert notes(examples, JOINT, CUT, Seq2SeqConfig()) == [
        "train: 1 of 2 sources were cut to data.max_source_length = 4 tokens: 2 of 8 tokens are not used; "
        "raise it to use them",
        "train: 1 of 2 targets were cut to data.max_target_length = 4 tokens: 1 of 7 tokens are not used; "
        "raise it to use them",
    ]


@pytest.mark.parametrize(
    ("head", "example", "limit", "counts"),
    [
        ("classification", Example("a b c\td", "yes"), 4, "3 of 7 tokens"),
        ("tagging", Example("a b c", "yes yes yes"), 4, "1 of 5 tokens"),
        ("span", Example("a\ta b c", "a"), 5, "2 of 7 tokens"),
    ],
)
def test_sources_of_heads_are_counted(head: str, example: Example, limit: int, counts: str) -> None:
    tokenizers = Tokenizers(WORDS, LabelTokenizer("tagging" if head == "tagging" else "classification", ["yes"]))
    config = EncoderConfig.model_validate({"head": {"kind": head}})
    (note,) = notes([example], tokenizers, CUT.model_copy(update={"max_source_length": limit}), config)
    assert f"1 of 1 sources were cut to data.max_source_length = {limit} tokens: {counts} are not used" in note


def test_facts_are_counted_as_such() -> None:
    head = {"kind": "classification", "pooling": "mean"}
    config = EncoderConfig.model_validate({"head": head, "embedder": {"kind": "facts", "max_words": 3}})
    tokenizers = Tokenizers(WORDS, LabelTokenizer("classification", ["yes"]))
    (note,) = notes([Example("a\tb\tc\td\te f", "yes")], tokenizers, CUT, config)
    assert note.startswith("train: 1 of 1 stories were cut to data.max_source_length = 4 facts: 1 of 5 facts are not")
