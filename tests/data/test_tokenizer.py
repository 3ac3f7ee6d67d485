from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers as library
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from ostinato.config.data import DataConfig, TokenizerConfig
from ostinato.config.load import check_recipe
from ostinato.config.special_ids import SpecialIds
from ostinato.data.example import Example
from ostinato.data.pieces import KeptTokenizer
from ostinato.data.sources import read_examples
from ostinato.data.tokenizer import BOS_ID, EOS_ID, N_SPECIAL, PAD_ID, UNK_ID, UNKNOWN_TEXT, Tokenizer
from ostinato.data.tokenizers import Tokenizers, load_tokenizer, train_tokenizer
from ostinato.errors import CheckpointError, ConfigError, DataError

SHARED = Path(__file__).parents[3] / "shared" / "data"
TEXTS = [
    "jump around right_1 AND [MAX 2 9 [MIN 4 7 ] 0 ] ] * x _ 1 = y",
    "a rose ( x _ 2 , Emma ) <pad> <bos> <eos> <unk> </s> [UNK] ## \u2581 Ġ",
    "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche .",
]
KINDS = ["words", "characters", "bpe", "unigram"]
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
task_symbols = st.text("abI_[]()*=<>/#&|~^.,'\" 019\u2581Ġ", max_size=40)


def tokenizer_of(kind: str, texts: list[str] | None = None, **settings: int) -> Tokenizer:
    config = TokenizerConfig.model_validate(
        {"kind": kind, **({"vocab_size": 300} if kind in ("bpe", "unigram") else {}), **settings}
    )
    return train_tokenizer(config, TEXTS if texts is None else texts)


BPE, UNIGRAM = tokenizer_of("bpe"), tokenizer_of("unigram")


@given(st.lists(task_symbols | any_text))
def test_words_come_back_with_single_spaces(texts: list[str]) -> None:
    tokenizer = tokenizer_of("words", [*texts, "x"])
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == " ".join(text.split())
        assert len(tokenizer.encode(text)) == len(text.split())


@given(st.lists(task_symbols | any_text))
def test_characters_come_back_with_every_space(texts: list[str]) -> None:
    tokenizer = tokenizer_of("characters", [*texts, "x"])
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@given(task_symbols | any_text, st.sampled_from([BPE, UNIGRAM]))
def test_subwords_give_back_any_text_exactly(text: str, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(4 <= i < tokenizer.vocab_size for i in ids)


@given(task_symbols | any_text, task_symbols | any_text, st.sampled_from([BPE, UNIGRAM]))
def test_a_text_and_what_follows_it_are_the_whole(text: str, more: str, tokenizer: Tokenizer) -> None:
    before, ids = tokenizer.encode(text), tokenizer.encode(more)
    assert text + tokenizer.decode_after(before, ids) == tokenizer.decode([*before, *ids])


@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_a_text_begins_with_the_blank_between_them(kind: str) -> None:
    tokenizer = tokenizer_of(kind, ["the cat sat"])
    before, ids = tokenizer.encode("the"), tokenizer.encode("the cat sat")
    assert ids[: len(before)] == before
    assert tokenizer.decode_after(before, ids[len(before) :]) == " cat sat"
    assert tokenizer.decode_after([], ids) == "the cat sat"


@given(st.sampled_from([BPE, UNIGRAM]), st.data())
def test_any_ids_have_a_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=20))
    assert tokenizer.decode(ids).count(UNKNOWN_TEXT) <= ids.count(UNK_ID)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["<pad>", "<bos>", "<eos>", "<unk>", "</s>", "[UNK]"])
def test_the_text_of_a_special_symbol_is_ordinary_text(kind: str, text: str) -> None:
    tokenizer = tokenizer_of(kind, [*TEXTS, *["<pad><bos><eos><unk></s>[UNK] <pad> <eos>"] * 50])
    ids = tokenizer.encode(text)
    assert not {PAD_ID, BOS_ID, EOS_ID, UNK_ID} & set(ids)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("kind", KINDS)
def test_special_ids_are_left_out_of_the_text_and_unknown_ones_are_shown(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode("jump around")
    assert tokenizer.decode([BOS_ID, *ids, EOS_ID, PAD_ID, PAD_ID]) == "jump around"
    assert tokenizer.decode([UNK_ID]) == UNKNOWN_TEXT
    with pytest.raises(DataError, match=f"token id {tokenizer.vocab_size} is outside the vocabulary"):
        tokenizer.decode([tokenizer.vocab_size])
    with pytest.raises(DataError, match="token id -1 is outside"):
        tokenizer.decode([-1])


@pytest.mark.parametrize(("kind", "text", "symbol"), [("words", "jump twice AND", "twice"), ("characters", "jQ", "Q")])
def test_an_unknown_symbol_is_a_named_error_unless_replaced(kind: str, text: str, symbol: str) -> None:
    tokenizer = tokenizer_of(kind)
    with pytest.raises(DataError, match=f"^'{symbol}' is not among the .* data.unknown=replace"):
        tokenizer.encode(text)
    ids = tokenizer.encode(text, unknown="replace")
    assert ids.count(UNK_ID) == 1
    assert tokenizer.decode(ids) == text.replace(symbol, UNKNOWN_TEXT)


def test_rare_symbols_become_unknown() -> None:
    tokenizer = tokenizer_of("words", ["a b a", "b c"], min_count=2)
    assert tokenizer.vocab_size == 6
    assert tokenizer.encode("a b c", unknown="replace") == [4, 5, UNK_ID]
    with pytest.raises(DataError, match="none of the 3 words occurs 9 times"):
        tokenizer_of("words", ["a b a", "b c"], min_count=9)


@pytest.mark.parametrize("kind", ["words", "characters"])
def test_the_most_frequent_symbols_are_kept_and_ties_go_by_code_points(kind: str) -> None:
    texts = ["d d c c b a", "e a b d"] if kind == "words" else ["ddccba", "eabd"]
    whole = tokenizer_of(kind, texts)
    assert whole.vocab_size == 4 + 5
    cut = tokenizer_of(kind, texts, vocab_size=8)
    assert cut.vocab_size == 8
    assert [cut.encode(symbol, unknown="replace") for symbol in "dabce"] == [[4], [5], [6], [7], [UNK_ID]]
    # a, b and c occur twice each: those that come later in the order of code points go first.
    assert [tokenizer_of(kind, texts * 2, vocab_size=9).encode(s) for s in "dabce"] == [[4], [5], [6], [7], [8]]
    assert tokenizer_of(kind, [*texts, "e e" if kind == "words" else "ee"], vocab_size=8).encode("e") == [5]
    with pytest.raises(DataError, match=f"'e' is not among the 4 {kind} .*data.unknown=replace"):
        cut.encode("e")


def test_more_words_than_there_are_is_no_error_and_a_file_has_its_own_size(tmp_path: Path) -> None:
    assert tokenizer_of("words", ["a b"], vocab_size=60_000).vocab_size == 6
    assert tokenizer_of("words", ["a b a"], vocab_size=8, min_count=2).vocab_size == 5
    tokenizer_of("words").save(tmp_path / "t.json")
    for settings, message in (
        ({"kind": "file", "path": str(tmp_path / "t.json"), "vocab_size": 100}, "vocab_size is 100: has no effect"),
        ({"kind": "file", "path": str(tmp_path / "t.json"), "min_count": 2}, "min_count is 2: has no effect"),
        ({"kind": "bpe", "min_count": 2}, "min_count is 2: has no effect"),
    ):
        with pytest.raises(ConfigError, match=f"data.tokenizer.{message}"):
            check_recipe({"data": {"tokenizer": settings}})


@pytest.mark.parametrize("kind", KINDS)
def test_there_must_be_text_to_train_on(kind: str) -> None:
    with pytest.raises(DataError, match=f"{kind}.*there is no text"):
        tokenizer_of(kind, [])


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_vocabulary_has_the_size_asked_for_and_room_for_all_bytes(kind: str) -> None:
    assert tokenizer_of(kind, TEXTS * 5, vocab_size=290).vocab_size == 290
    assert tokenizer_of(kind, vocab_size=260).vocab_size == 260
    with pytest.raises(ConfigError, match=r"vocab_size is 259: .* at least 260"):
        tokenizer_of(kind, vocab_size=259)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_frequent_words_become_one_piece(kind: str) -> None:
    tokenizer = tokenizer_of(kind, ["walk around the house", "the walk around", "around"] * 9, vocab_size=300)
    assert len(tokenizer.encode("around")) == len(tokenizer.encode("walk")) == 1
    assert tokenizer.encode("around around") == tokenizer.encode("around") * 2


@pytest.mark.parametrize("kind", KINDS)
def test_training_twice_gives_the_same_file(kind: str, tmp_path: Path) -> None:
    for name in "ab":
        tokenizer_of(kind).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_loads_unchanged(kind: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(kind)
    tokenizer.save(tmp_path / "t.json")
    existing = TokenizerConfig(kind="file", path=str(tmp_path / "t.json"))
    for again in (load_tokenizer(tmp_path / "t.json"), train_tokenizer(existing, [])):
        assert again.vocab_size == tokenizer.vocab_size
        assert again.kind == kind
        for text in TEXTS:
            assert again.encode(text) == tokenizer.encode(text)
            assert again.decode(again.encode(text)) == text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is damaged"),
        ("[]", "is damaged: holds a JSON list"),
        ('{"format": "ostinato-tokenizer", "version": 9}', "tokenizer format 9"),
        ('{"format": "ostinato-tokenizer", "version": 1, "kind": "words"}', "damaged"),
        ('{"format": "ostinato-tokenizer", "version": 1, "kind": "words", "symbols": 5}', "damaged"),
        ('{"format": "ostinato-tokenizer", "version": 1, "kind": "words", "symbols": ["a", "a"]}', "distinct"),
        ('{"format": "ostinato-tokenizer", "version": 1, "kind": "bpe", "model": {}}', "damaged"),
    ],
)
def test_a_damaged_tokenizer_file_is_named(content: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(CheckpointError, match=f"{path}: .*{reason}"):
        load_tokenizer(path)
    with pytest.raises(CheckpointError, match=r"none\.json: cannot be read"):
        load_tokenizer(tmp_path / "none.json")


def existing_file(path: Path) -> TokenizerConfig:
    """A file as other software writes it: its own special symbols, template, padding and truncation."""
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "walk": 3, "twice": 4}
    model = library.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model.add_special_tokens(["[PAD]", "[UNK]", "[CLS]"])
    model.post_processor = processors.TemplateProcessing("[CLS] $A", special_tokens=[("[CLS]", 2)])
    model.enable_padding(length=9)
    model.enable_truncation(2)
    model.save(str(path))
    return TokenizerConfig(kind="file", path=str(path))


def test_an_existing_file_keeps_its_pieces_and_adds_nothing(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(existing_file(tmp_path / "tokenizer.json"), [])
    assert tokenizer.vocab_size == 9
    assert tokenizer.encode("walk twice walk [PAD]") == [7, 8, 7, 4]
    assert tokenizer.decode([BOS_ID, 7, 8, 4, EOS_ID]) == "walk twice [PAD]"
    with pytest.raises(DataError, match="'run' is not among the 5 pieces"):
        tokenizer.encode("walk run twice")
    assert tokenizer.encode("walk run twice", unknown="replace") == [7, UNK_ID, 8]
    assert (
        tokenizer.decode([7, UNK_ID, 8, UNK_ID, UNK_ID]) == f"walk {UNKNOWN_TEXT} twice {UNKNOWN_TEXT} {UNKNOWN_TEXT}"
    )
    tokenizer.save(tmp_path / "saved.json")
    again = load_tokenizer(tmp_path / "saved.json")
    assert again.encode("walk run twice", unknown="replace") == [7, UNK_ID, 8]


def test_the_ids_of_an_existing_file_are_kept_in_their_order_after_the_four_special_ones(tmp_path: Path) -> None:
    model = library.Tokenizer(models.BPE())
    model.pre_tokenizer, model.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    model.train_from_iterator(TEXTS * 5, trainer)
    model.add_special_tokens(["<extra>"])
    model.save(str(tmp_path / "tokenizer.json"))
    tokenizer = train_tokenizer(TokenizerConfig(kind="file", path=str(tmp_path / "tokenizer.json")), [])
    assert tokenizer.vocab_size == N_SPECIAL + model.get_vocab_size()
    model.encode_special_tokens = True  # "</s>" in a text is text
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert [i - N_SPECIAL for i in ids] == model.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == model.decode([i - N_SPECIAL for i in ids]) == text


def test_an_unusable_existing_file_is_named(tmp_path: Path) -> None:
    config = TokenizerConfig(kind="file", path=str(tmp_path / "t.json"))
    with pytest.raises(DataError, match=r"t\.json: cannot read data\.tokenizer\.path: No such file"):
        train_tokenizer(config, [])
    for content in ("{", "[]", '{"model": {}}'):
        (tmp_path / "t.json").write_text(content)
        with pytest.raises(DataError, match=r"t\.json: data\.tokenizer\.path is no tokenizer\.json"):
            train_tokenizer(config, [])


EXAMPLES = [Example("walk twice", "WALK WALK"), Example("run", "RUN")]


def test_a_joint_tokenizer_knows_both_sides(tmp_path: Path) -> None:
    pair = Tokenizers.train(DataConfig(), iter(EXAMPLES))
    assert pair.is_joint
    assert pair.source.vocab_size == 4 + 5
    pair.save(tmp_path / "tokenizers")
    again = Tokenizers.load(tmp_path / "tokenizers")
    assert again.is_joint
    assert again.target.encode("RUN twice") == pair.source.encode("RUN twice")


def test_two_tokenizers_know_one_side_each(tmp_path: Path) -> None:
    data = DataConfig(target_tokenizer=TokenizerConfig(kind="characters"))
    pair = Tokenizers.train(data, iter(EXAMPLES))
    assert not pair.is_joint
    assert (pair.source.vocab_size, pair.target.vocab_size) == (4 + 3, 4 + 8)
    pair.save(tmp_path)
    again = Tokenizers.load(tmp_path)
    assert not again.is_joint
    assert again.target.decode(again.target.encode("RUN  K")) == "RUN  K"
    assert again.source.encode("run") == pair.source.encode("run")


def test_a_language_model_has_one_tokenizer() -> None:
    texts = [Example(None, "a b"), Example(None, "c")]
    assert Tokenizers.train(DataConfig(), texts).target.vocab_size == 7
    data = DataConfig(target_tokenizer=TokenizerConfig(kind="characters"))
    with pytest.raises(ConfigError, match=r"data\.target_tokenizer is 'characters': the examples have no source"):
        Tokenizers.train(data, texts)


def test_training_leaves_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    tokenizer_of("bpe")
    assert "TOKENIZERS_PARALLELISM" not in os.environ
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    tokenizer_of("bpe")
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"


@pytest.mark.sampled
@pytest.mark.skipif(not SHARED.exists(), reason="the published data are not here")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["cogs/dev", "cogs_vf/dev", "pcfg_set/pcfgset_dev", "geoquery_funql/standard_train"])
def test_published_task_symbols_come_back(kind: str, name: str) -> None:
    path = SHARED / f"{name}.jsonl.gz"
    rows = list(read_examples(str(path), DataConfig()))[:600]
    pair = Tokenizers.train(
        DataConfig(
            tokenizer=TokenizerConfig.model_validate(
                {"kind": kind, "vocab_size": 400 if kind in ("bpe", "unigram") else None}
            )
        ),
        rows,
    )
    for row in rows:
        for text in (row.source, row.target):
            assert text is not None
            expected = " ".join(text.split()) if kind == "words" else text
            assert pair.source.decode(pair.source.encode(text)) == expected


def _of_whole_words() -> library.Tokenizer:
    words = {"<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3, "b": 4}
    return library.Tokenizer(models.WordLevel(words, unk_token="<unk>"))


def _of_unigram_pieces() -> library.Tokenizer:
    letters = [(letter, -5.0) for letter in "</s>padunk"]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("▁a", -1.0), *letters]
    return library.Tokenizer(models.Unigram(pieces, unk_id=2))


def test_a_special_symbol_that_merges_make_keeps_its_name() -> None:
    model = library.Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2, "<s>": 3}, [("a", "b")]))
    model.add_special_tokens(["ab", "<s>"])
    kept = KeptTokenizer(model.to_str(), SpecialIds(bos=3))
    assert kept.encode("ab") == [2]
    assert kept.special_texts == {2: "ab", 3: "<s>"} | {i: kept.special_texts[i] for i in kept.special_tokens - {2, 3}}
    assert json.loads(kept.to_json()) == json.loads(model.to_str())


@pytest.mark.parametrize("is_special", [False, True])
def test_unknown_pieces_have_the_blanks_around_them_that_others_have(is_special: bool) -> None:
    words, pieces = _of_whole_words(), _of_unigram_pieces()
    pieces.decoder = decoders.Metaspace()
    for model, ids, text in ((words, [3, 2, 4, 2], "a ? b ?"), (pieces, [4, 2, 4, 3, 2], "a? a ?")):
        if is_special:
            model.add_special_tokens(["<unk>", "</s>"])
        kept = KeptTokenizer(model.to_str(), SpecialIds(pad=0, bos=1, eos=1))
        assert kept.decode([1, *ids, 1]) == text.replace("?", UNKNOWN_TEXT)
        assert json.loads(kept.to_json()) == json.loads(model.to_str())


def test_an_unknown_piece_that_merges_make_is_shown_by_its_name() -> None:
    pieces = {piece: i for i, piece in enumerate(["<pad>", "<s>", "</s>", "a", "b", "ab"])}
    model = library.Tokenizer(models.BPE(pieces, [("a", "b")], unk_token="ab"))
    model.decoder = decoders.Fuse()
    model.add_special_tokens(["ab", "<s>"])
    assert KeptTokenizer(model.to_str(), SpecialIds()).decode([1, 3, 5, 4, 2]) == "aabb"


def test_special_symbols_have_their_texts_under_any_normaliser() -> None:
    model = _of_whole_words()
    model.normalizer = normalizers.BertNormalizer()
    model.add_special_tokens([library.AddedToken(text, normalized=True) for text in ("<pad>", "</s>", "<unk>")])
    kept = KeptTokenizer(model.to_str(), SpecialIds(pad=0, bos=1, eos=1))
    assert kept.special_texts == {0: "<pad>", 1: "</s>", 2: "<unk>"}


@pytest.mark.parametrize("make", [_of_whole_words, _of_unigram_pieces])
def test_special_symbols_among_the_pieces_of_a_kept_model_are_text_in_a_text(
    make: Callable[[], library.Tokenizer],
) -> None:
    model = make()
    is_unigram = make is _of_unigram_pieces
    model.pre_tokenizer = pre_tokenizers.Metaspace() if is_unigram else pre_tokenizers.WhitespaceSplit()
    model.decoder = decoders.Metaspace() if is_unigram else None
    model.add_special_tokens(["<pad>", "</s>", "<unk>"])
    model.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    kept = KeptTokenizer(model.to_str(), SpecialIds(pad=0, bos=1, eos=1))
    assert kept.encode("a") == model.encode("a", add_special_tokens=False).ids
    if is_unigram:
        ids = kept.encode("a </s> <pad> a")
        assert not set(ids) & {0, 1, 2}
        assert kept.decode(ids) == "a </s> <pad> a"
        assert not set(kept.encode("a <unk>")) & {0, 1, 2}
    else:
        with pytest.raises(DataError, match="'</s>' is not among"):
            kept.encode("a </s> b")
        assert kept.encode("a </s> <pad> b", unknown="replace") == [3, 2, 2, 4]
    assert kept.special_texts == {0: "<pad>", 1: "</s>", 2: "<unk>"}
    assert json.loads(kept.to_json()) == json.loads(model.to_str())
    assert KeptTokenizer(kept.to_json(), kept.special_ids).encode("a") == kept.encode("a")


@pytest.mark.parametrize("is_among_others", [False, True])
def test_a_template_of_symbols_without_ids_is_refused(is_among_others: bool) -> None:
    model = _of_whole_words()
    model.add_special_tokens(["<pad>", "</s>", "<unk>"])
    template = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    model.post_processor = processors.Sequence([template]) if is_among_others else template
    content = json.loads(model.to_str())
    one = content["post_processor"]
    (one["processors"][0] if is_among_others else one)["special_tokens"] = {}
    with pytest.raises(ValueError, match=r"names no ids of the symbols \['</s>'\]"):
        KeptTokenizer(json.dumps(content), SpecialIds(pad=0, bos=1, eos=1))
