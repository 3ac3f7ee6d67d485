"""Exported heads say what ours say: the same tokens, logits, losses, and the same labels and answers as text."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import torch.nn.functional as F
from kept_tokenizers import keep_tokenizer
from torch import Tensor

pytest.importorskip("transformers", reason="needs the extra hf")

import runs
import transformers

import ostinato.hf  # noqa: F401  (registers the classes)
from ostinato.data.batch import Batch
from ostinato.data.collate import collate
from ostinato.data.example import Example
from ostinato.data.rows import encode_rows
from ostinato.errors import ConfigError
from ostinato.evaluation.loading import LoadedRun
from ostinato.evaluation.readout import read_out, text_of
from ostinato.hf.export import export_run
from ostinato.hf.fast_tokenizer import fast_tokenizer

IGNORED = -100
HALTING = "training.halting.weight=0.05"
CASES = [
    pytest.param(head, tokenizer, marks=[pytest.mark.slow] * (tokenizer == "{kind: words}"))
    for head in runs.HEADS
    for tokenizer in ("{kind: words}", "{kind: bpe, vocab_size: 300}")
]


class Exported:
    """A run and its folder in transformers, with the examples that both read."""

    def __init__(self, name: str, folder: Path, *more: str) -> None:
        self.run: LoadedRun = runs.make_run(name, folder / "run", HALTING, *more)
        self.examples: list[Example] = runs.labelled(name)
        if name == "classification":
            with torch.no_grad():  # no label is that of all texts
                self.run.model.head.bias.sub_(self.run.model(self.batch()).logits_BTV.mean((0, 1)))  # type: ignore[union-attr]
        export_run(self.run, folder / "out")
        self.model: Any = runs.auto(self.run).from_pretrained(folder / "out")
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder / "out")
        self.encoded = [
            self.tokenizer(*example.source.split("\t"), return_offsets_mapping=True) for example in self.examples
        ]

    def batch(self) -> Batch:
        """Return the examples as our evaluation reads them."""
        run = self.run
        rows = encode_rows(self.examples, run.tokenizers, run.recipe.data, run.model.config, training=False, name="dev")
        return collate(list(rows))

    def given(self, side: str = "right") -> Any:
        """Return the examples as transformers reads them, padded on a side."""
        plain = [{key: one[key] for key in ("input_ids", "attention_mask")} for one in self.encoded]
        return self.tokenizer.pad(plain, padding_side=side, return_tensors="pt")

    def texts(self, logits: Tensor, batch: Batch) -> list[str]:
        """Return what our evaluation makes of logits."""
        run: Any = self.run
        found = read_out(run.model.config, logits, batch)
        return [
            text_of(run.model.config, one.ids, example, run.tokenizers, run.recipe.data)
            for one, example in zip(found, self.examples, strict=True)
        ]

    def answer(self, number: int, start_T: Tensor, end_T: Tensor) -> str:
        """Return the likeliest answer by the offsets of the fast tokenizer alone."""
        sums_TT = start_T[:, None] + end_T[None]
        ends_before_TT = torch.ones_like(sums_TT).tril(-1).bool()
        start, end = divmod(int(sums_TT.masked_fill(ends_before_TT, -torch.inf).argmax()), len(start_T))
        encoded, passage = self.encoded[number], self.examples[number].source.split("\t")[1]
        assert encoded.sequence_ids()[start] == encoded.sequence_ids()[end] == 1
        offsets = encoded["offset_mapping"]
        return str(passage[offsets[start][0] : offsets[end][1]]).strip()

    def words(self, number: int) -> list[int]:
        """Return the column of the first token of every word, by the offsets of the fast tokenizer alone."""
        encoded, text = self.encoded[number], self.examples[number].source
        ends = [(column, end) for column, (_, end) in enumerate(encoded["offset_mapping"])
                if encoded.sequence_ids()[column] == 0]  # fmt: skip
        starts = [match.start() for match in re.finditer(r"\S+", text)]
        return [next(column for column, end in ends if end > start) for start in starts]

    def columns(self, number: int) -> tuple[int, int]:
        """Return the columns of an example's answer: the last that begins at it or before, the first that ends it."""
        encoded, example = self.encoded[number], self.examples[number]
        first = example.source.split("\t")[1].find(example.target)
        in_passage = [(column, *span) for column, span in enumerate(encoded["offset_mapping"])
                      if encoded.sequence_ids()[column] == 1]  # fmt: skip
        starts = [column for column, start, _ in in_passage if start <= first]
        return starts[-1], next(column for column, _, end in in_passage if end >= first + len(example.target))


def loss_of(run: LoadedRun, batch: Batch) -> Tensor:
    training = run.recipe.training
    return run.model.loss(batch, balance=training.balance, halting=training.halting)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("name", "tokenizer"), CASES)
def test_heads_say_the_same_and_have_the_same_losses(name: str, tokenizer: str, tmp_path: Path) -> None:
    one = Exported(name, tmp_path, f"data.tokenizer={tokenizer}")
    run, model, batch, given = one.run, one.model, one.batch(), one.given()
    assert torch.equal(given["input_ids"], batch.target.ids_BT)
    assert torch.equal(given["attention_mask"].bool(), batch.target.keep_BT)
    labels = torch.full_like(batch.target.ids_BT, IGNORED)
    with torch.no_grad():
        expected, plain = run.model(batch).logits_BTV, run.model.loss(batch)
        if name == "classification":
            labels = torch.tensor([model.config.label2id[example.target] for example in one.examples])
            answers = {"labels": labels}
            output = model(**given, **answers)
            found, texts = output.logits[:, None], [model.config.id2label[int(i)] for i in output.logits.argmax(-1)]
        elif name == "tagging":
            for row, example in enumerate(one.examples):
                labels[row, one.words(row)] = torch.tensor([model.config.label2id[x] for x in example.target.split()])
            answers = {"labels": labels}
            output = model(**given, **answers)
            of_words = [output.logits[row, one.words(row)] for row in range(len(one.examples))]
            found = torch.nn.utils.rnn.pad_sequence(of_words, batch_first=True)
            expected = expected.masked_fill(~batch.loss_mask_BT[..., None], 0.0)
            texts = [" ".join(model.config.id2label[int(i)] for i in row.argmax(-1)) for row in of_words]
        else:
            starts, ends = torch.tensor([one.columns(row) for row in range(len(one.examples))]).unbind(1)
            answers = {"start_positions": starts, "end_positions": ends}
            output = model(**given, **answers)
            found = torch.stack([output.start_logits, output.end_logits], dim=1)
            texts = [one.answer(row, *found[row]) for row in range(len(one.examples))]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(output.loss, plain, rtol=0, atol=1e-6)
    assert texts == one.texts(run.model(batch).logits_BTV, batch)
    assert len(set(texts)) > 1
    with torch.no_grad():
        loss = loss_of(replace(run, model=run.model.train()), batch)
        torch.testing.assert_close(model.train()(**given, **answers).loss, loss, rtol=0, atol=1e-6)
    assert float(loss - plain) > 1e-3  # the cost of depth is in it


def test_another_number_of_labels_is_that_of_the_model_that_is_saved(tmp_path: Path) -> None:
    export_run(runs.make_run("classification", tmp_path / "run"), tmp_path / "three")
    kind = transformers.AutoModelForSequenceClassification
    model = kind.from_pretrained(tmp_path / "three", num_labels=2, ignore_mismatched_sizes=True)
    model.save_pretrained(tmp_path / "two")
    again = kind.from_pretrained(tmp_path / "two")
    ids = torch.tensor([[1, 5, 6, 2]])
    assert torch.equal(again(ids).logits, model(ids).logits)
    assert again(ids).logits.shape == (1, 2)


@pytest.mark.parametrize(
    ("single", "pair"),
    [
        ("<s> $A </s>", "<s> $A </s> </s> $B </s>"),
        ("<s> $A </s>", None),
        ("[CLS] $A [SEP]", None),  # besides begin and end symbol
        ("$A [SEP]", "$A [SEP] $B [SEP]"),
    ],
)
def test_two_texts_are_written_as_the_run_reads_them(single: str, pair: str | None, tmp_path: Path) -> None:
    words = sorted({word for one in runs.labelled("classification") for word in one.source.split()})
    symbols = ["<unk>", "<pad>", "<s>", "</s>", "<mask>", "[CLS]", "[SEP]", *words]
    kept = keep_tokenizer(tmp_path / "kept", symbols)
    content = tokenizers.Tokenizer.from_file(str(kept / "tokenizer.json"))
    content.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    named = [(text, symbols.index(text)) for text in ("<s>", "</s>", "[CLS]", "[SEP]")]
    content.post_processor = tokenizers.processors.TemplateProcessing(single, pair, named)
    content.save(str(kept / "tokenizer.json"))
    run = runs.make_run("classification", tmp_path / "run", f"data.tokenizer={{kind: hf, path: {kept}}}")
    fast = fast_tokenizer(run)
    first, second = "one b", "two c"
    ids = [run.tokenizers.source.encode(text) for text in (first, second)]
    assert fast(first, second)["input_ids"] == [2, *ids[0], 3, *ids[1], 3]
    assert fast(first)["input_ids"] == [2, *ids[0], 3]


def test_a_mask_in_a_text_of_subwords_stands_for_a_piece_with_its_blank(tmp_path: Path) -> None:
    run = runs.make_run("masked", tmp_path / "run", "data.tokenizer={kind: bpe, vocab_size: 300}")
    encode, special = run.tokenizers.source.encode, run.model.special_ids
    expected = [special.bos, *encode("the old"), run.model.mask_id, *encode("and the sea,"), special.eos]
    assert fast_tokenizer(run)("the old <mask> and the sea,")["input_ids"] == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", runs.HEADS)
def test_padding_on_the_left_says_the_same(name: str, tmp_path: Path) -> None:
    one = Exported(name, tmp_path, "data.tokenizer={kind: words}")
    model = one.model.double()
    right, left = one.given("right"), one.given("left")
    assert not torch.equal(right["input_ids"], left["input_ids"])
    keep = [given["attention_mask"].bool() for given in (right, left)]
    with torch.no_grad():
        first, second = (model(**given) for given in (right, left))
    for x, y in zip(first.to_tuple(), second.to_tuple(), strict=True):
        x, y = (x, y) if name == "classification" else (x[keep[0]], y[keep[1]])
        torch.testing.assert_close(y, x, rtol=1e-9, atol=1e-9)


def test_an_answer_outside_its_passage_does_not_count(tmp_path: Path) -> None:
    one = Exported("span", tmp_path, "data.tokenizer={kind: words}")
    given = one.given()
    starts, ends = torch.tensor([one.columns(row) for row in range(len(one.examples))]).unbind(1)
    outside = starts.clone(), ends.clone()
    outside[0][0], outside[1][0] = 0, 10**6  # the first column, and one past all
    with torch.no_grad():
        whole = one.model(**given, start_positions=starts, end_positions=ends)
        found = one.model(**given, start_positions=outside[0], end_positions=outside[1]).loss
        none = one.model(**given, start_positions=starts * 0, end_positions=ends * 0).loss
    losses_2B = [F.cross_entropy(logits, labels, reduction="none") for logits, labels in
                 ((whole.start_logits, starts), (whole.end_logits, ends))]  # fmt: skip
    losses_B = torch.stack(losses_2B).mean(0)
    cost_of_depth = whole.loss - losses_B.mean()
    torch.testing.assert_close(found, losses_B[1:].mean() + cost_of_depth, rtol=0, atol=1e-5)
    assert float(none) == 0


WITHOUT_A_LOSS: list[tuple[dict[str, Any], Tensor, str]] = [
    ({"num_labels": 1}, torch.tensor([0, 0]), "num_labels is 1: must be 2 or more"),
    ({}, torch.tensor([0.5, 1.0]), r"labels is 'torch\.float32': must be whole numbers"),
    ({"problem_type": "multi_label_classification"}, torch.tensor([0, 1]), "problem_type is 'multi_label_class"),
]


@pytest.mark.parametrize(("settings", "labels", "line"), WITHOUT_A_LOSS)
def test_labels_of_other_losses_are_refused(made: Any, settings: dict[str, Any], labels: Tensor, line: str) -> None:
    run, folder = made("classification")
    more = {"ignore_mismatched_sizes": True} if settings else {}
    model = runs.auto(run).from_pretrained(folder, **settings, **more)
    ids = torch.tensor([[1, 5, 6], [1, 6, 7]])
    with pytest.raises(ConfigError, match=line) as caught:
        model(ids, labels=labels)
    assert "\n" not in str(caught.value)
    assert model(ids).logits.shape[0] == 2
