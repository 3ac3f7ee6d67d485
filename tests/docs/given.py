"""What pages take as given: files of the reader's own, runs of earlier days, a server that is running."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from documents import ROOT, blocks
from page_runs import Reader, cut

Given = Callable[[Reader], Any]
WORDS = [{"source": f"jump {i} times", "target": f"times {i} jump"} for i in range(24)]
TEXTS = ["good morning to all", "guten Morgen allerseits"]


def write_lines(path: Path, rows: list[Any]) -> None:
    """Write JSON lines."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def own_files(reader: Reader) -> None:
    """Files of pairs and of texts."""
    for name in ("train", "dev", "test"):
        write_lines(reader.folder / f"{name}.jsonl", WORDS)
        (reader.folder / f"{name}.txt").write_text("The cat sat.\nThe dog ran.\n", encoding="utf-8")
    (reader.folder / "sources.txt").write_text("3 1 4 1 5\n2 7\n9\n", encoding="utf-8")


def train(reader: Reader, recipe: str, *settings: str, to: str) -> None:
    """A finished run."""
    reader.ostinato(cut(["train", recipe, *settings, "--run-dir", to]))


def of_analysis(reader: Reader) -> None:
    """Three runs; nothing that takes a minute to compile."""
    reader._patch.setattr("ostinato.analysis.studies.token_map.can_umap", lambda: False)
    for name in ("x", "x-seed-2", "y"):
        train(reader, "passivization/universal-sparse-halting", to=f"runs/{name}")


def of_budgets(reader: Reader) -> None:
    """Two runs of one task."""
    own_files(reader)
    data = [f"data.{split}={split}.jsonl" for split in ("train", "dev", "test")]
    for name in ("baseline", "one-wide"):
        train(reader, "files/template", *data, to=f"runs/{name}")


def of_decoding(reader: Reader) -> None:
    """Sources, as lines and as records with the beginning of an output."""
    own_files(reader)
    lines = (reader.folder / "sources.txt").read_text(encoding="utf-8").splitlines()
    records = [{"id": i, "source": line, "begun": "5 1" if i else ""} for i, line in enumerate(lines)]
    write_lines(reader.folder / "sources.jsonl", records)


def of_extending(reader: Reader) -> None:
    """The module that the page shows, under the name that it has there."""
    (code,) = blocks(ROOT / "docs" / "extending.md", "python")
    (reader.folder / "mine.py").write_text(code, encoding="utf-8")
    reader._patch.delitem(sys.modules, "mine", raising=False)


def of_halting(reader: Reader) -> None:
    """A run whose tokens halt and whose examples count their operations, and a looped model of texts."""
    import torch

    import ostinato

    own_files(reader)
    # Not where the page's own training of that recipe writes.
    train(reader, "looped/ouro-toy", "data.train=train.txt", "data.dev=dev.txt", to="runs/of-texts")
    rows = [row | {"n_ops": i % 3} for i, row in enumerate(WORDS)]
    write_lines(reader.folder / "test.jsonl", rows)
    (reader.folder / "sources.txt").write_text("jump 1 times\n", encoding="utf-8")
    settings = ["data.train=test.jsonl", "data.dev=dev.jsonl", "data.test=test.jsonl"]
    for stack, parts in (("encoder", ("self_attention",)), ("decoder", ("self_attention", "cross_attention"))):
        settings += [f"model.{stack}.{part}.share=all" for part in (*parts, "ffn")]
        settings.append(f"model.{stack}.halting.kind=act")
    train(reader, "files/template", *settings, to="runs/mine")
    model = ostinato.load("runs/of-texts").model
    reader.names |= {"model": model, "ids": torch.tensor([[1, 5, 6]])}


def of_hugging_face(reader: Reader) -> None:
    """A looped run, a published model, and a text."""
    pytest.importorskip("transformers", reason="needs the extra hf")
    sys.path.append(str(ROOT / "tests" / "hf"))
    import runs
    import tiny

    (reader.folder / "models").mkdir()
    sub_layers = (
        "self_attention: {n_heads: 2, bias: false, share: all}, ffn: {d_ff: 24, activation: swiglu, bias: false"
    )
    decoder = f"model.decoder={{n_steps: 2, norm: {{kind: rms}}, {sub_layers}, share: all}}}}"
    runs.make_run("looped", reader.folder / "runs" / "mine", decoder)
    tiny.save("gpt2", reader.folder / "models" / "gpt2")
    (reader.folder / "text.txt").write_text("w7 w8 w9\nw10 w11\n", encoding="utf-8")
    sentences = [f"w{5 + i} w{6 + i % 7} w{8 + i % 3}\n" for i in range(24)]
    (reader.folder / "sentences.txt").write_text("".join(sentences), encoding="utf-8")


def of_texts(reader: Reader) -> None:
    """A run that continues texts, which are at hand, too."""
    sys.path.append(str(ROOT / "tests" / "hf"))
    import runs

    own_files(reader)
    write_lines(reader.folder / "dev.jsonl", [{"text": text} for text in runs.TEXTS])
    data = [f"data.{split}={reader.folder}/dev.jsonl" for split in ("train", "dev")]
    runs.make_run("looped", reader.folder / "runs" / "mine", *data)


def of_lm_eval(reader: Reader) -> None:
    """A run that continues texts."""
    pytest.importorskip("lm_eval", reason="the page needs the extra [lm-eval]: pip install 'ostinato[lm-eval]'")
    of_texts(reader)


def of_onnx(reader: Reader) -> None:
    """A run that continues texts."""
    for name in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name, reason="the page needs the extra [onnx]: pip install 'ostinato[onnx]'")
    of_texts(reader)


def of_large_data(reader: Reader) -> None:
    """Texts in Parquet."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="the page needs the extra [data]")
    import pyarrow

    own_files(reader)
    (reader.folder / "texts").mkdir()
    for name in ("a", "b"):
        table = pyarrow.table({"text": ["The cat sat.", "The dog ran."] * 8})
        parquet.write_table(table, reader.folder / "texts" / f"{name}.parquet")


def of_own_data(reader: Reader) -> None:
    """Pairs, parallel and plain texts, and a tokenizer of the library tokenizers."""
    own_files(reader)
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    model = tokenizers.Tokenizer(models.BPE())
    model.pre_tokenizer, model.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=280, special_tokens=["<s>"], initial_alphabet=alphabet)
    model.train_from_iterator(TEXTS, trainer)
    model.save(str(reader.folder / "tokenizer.json"))
    for name in ("train", "dev"):
        write_lines(reader.folder / f"{name}.jsonl", [dict(zip(("source", "target"), TEXTS, strict=True))] * 2)
        for language, text in zip(("en", "de"), TEXTS, strict=True):
            (reader.folder / f"{name}.{language}").write_text(f"{text}\n" * 2, encoding="utf-8")


def of_sweeps(reader: Reader) -> None:
    """A run that a sweep can take, and another folder of runs."""
    for recipe, to in (("digits/transformer", "runs/digits-transformer"), ("digits/universal", "runs/other-store/a")):
        train(reader, recipe, to=to)


def of_language(reader: Reader) -> None:
    """Labelled sentences, and runs of several depths, of several languages, and of what was fine-tuned from them."""
    own_files(reader)
    labelled = [{"source": f"jump {i} times", "target": "ab"[i % 2], "lang": ("en", "de")[i % 3 % 2]} for i in range(8)]
    for name in ("a", "b", "nli"):
        write_lines(reader.folder / f"{name}.jsonl", labelled)
    # Enough of them to be drawn from.
    (reader.folder / "dev.txt").write_text("The cat sat.\nThe dog ran.\n" * 3, encoding="utf-8")
    texts = ["data.train=train.txt", "data.dev=dev.txt", "training.evaluate_every=1", "training.save_every=1"]
    pairs = ["data.train=train.jsonl", "data.dev=dev.jsonl", "data.test={gen: test.jsonl}", "training.evaluate_every=5"]
    # Long enough for all of them to pass the same losses.
    long = ["training.n_updates=40", "training.save_every=5", "training.keep_last=9", "training.schedule.warmup=5"]
    labels = [*(f"data.{split}=nli.jsonl" for split in ("train", "dev", "test")), "evaluation.by=[lang]"]
    for n in (1, 2, 4):
        train(reader, "lm/transformer", *texts, f"model.decoder.n_steps={n}", to=f"runs/depth-{n}")
        words = ["lm/transformer", "task.model_kind=seq2seq", *pairs, f"model.decoder.n_steps={n}"]
        reader.ostinato([*cut(["train", *words, "--run-dir", f"runs/cogs-{n}"]), *long])
    for n in (1, 2, 3):
        train(reader, "classification/small", *labels, f"seed={n}", to=f"runs/nli-{n}")


@contextmanager
def of_view(reader: Reader) -> Iterator[None]:
    """A second run, and a server whose address the program knows."""
    for name in ("starlette", "uvicorn", "tensorboard"):
        pytest.importorskip(name, reason="the page needs the extra [view], and tensorboard")
    from ostinato.evaluation.loading import load
    from ostinato.viewer.opened import open_runs
    from ostinato.viewer.schema import Limits
    from ostinato.viewer.server import view_app
    from serving import serving

    train(reader, "passivization/universal-sparse-halting", to="runs/passivization-seed-2")
    opened = open_runs({"sparse": load(ROOT / "tests" / "old_runs" / "trained" / "sparse", device="cpu")}, Limits())
    with serving(view_app(opened, Limits())) as address:
        reader.names |= {"address": address, "run": "sparse", "text": "1 2"}
        yield
    opened["sparse"].close()
