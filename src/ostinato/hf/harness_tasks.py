"""Splits of our tasks as task files of lm-eval: a YAML file with a JSON lines file of its documents beside it.

    {"context": "the keys to it", "continuation": " stand"}                           output_type loglikelihood
    {"context": "the keys to it", "choices": [" stands", " stand"], "right": 1}       output_type multiple_choice

A split with wrong targets (`Task.contrast`) becomes choices, of which the right one stands last: lm-eval takes the
first of equal ones, and a tie is wrong here. What lm-eval reports is then what `ostinato evaluate` does:

    acc of loglikelihood        sequence_accuracy_forced
    acc of multiple_choice      ranking.accuracy
    perplexity                  exp(-mean log p of a continuation), of texts that continue another one

A text that continues another one has no special symbols, so that any model may be scored on it. Pairs have those that
the run's model reads: `source` and `target<eos>`, and where both are one sequence `source<eos><bos>` before it.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from ostinato.data.disk import write_text
from ostinato.data.example import Example
from ostinato.data.output_files import check_new_folder, new_output_folder
from ostinato.data.registry import DataAccess
from ostinato.errors import ConfigError, DataError, Problem
from ostinato.evaluation.loading import LoadedRun
from ostinato.evaluation.ranking import wrong_targets
from ostinato.hf.fast_tokenizer import fast_tokenizer
from ostinato.tasks.registry import build_task


def write_tasks(
    run: LoadedRun, folder: str | Path, splits: Iterable[str], access: DataAccess | None = None
) -> list[Path]:
    """Write splits of a run's task into a new folder, and return the YAML files, one a split.

    The files name their documents by an absolute path, as lm-eval reads them from anywhere.

    Raises:
        CheckpointError: the folder is there. ConfigError: the task has no such split, or the model gives no
            probabilities of texts, or texts are packed into blocks. DataError: an example that lm-eval would read
            otherwise, or that is longer than the run's limits, which lm-eval does not cut.
    """
    folder = Path(folder)
    check_new_folder(folder)
    if not run.model.config.generates:
        reason = "only models that write text give probabilities of texts"
        raise ConfigError([Problem("model.kind", run.model.config.kind, reason)])
    if run.recipe.data.block_length is not None:
        reason = "lm-eval scores every text by itself: load the run with data.block_length=null"
        raise ConfigError([Problem("data.block_length", run.recipe.data.block_length, reason)])
    task = build_task(run.recipe.task, run.recipe.data, access, trains=False)
    written: list[Path] = []
    with new_output_folder(folder) as target:
        for number, split in enumerate(dict.fromkeys(splits), 1):
            contrast = task.contrast_of(split)
            name = re.sub(r"\W+", "_", f"ostinato_{task.name}_{split}", flags=re.ASCII)
            while folder / f"{name}.yaml" in written:
                name += f"_{number}"
            examples = list(task.examples(split))
            documents = [json.dumps(one) for one in _documents(run, examples, split, contrast)]
            write_text(target / f"{name}.jsonl", "".join(f"{line}\n" for line in documents))
            settings = _settings(
                name,
                (folder / f"{name}.jsonl").absolute(),
                has_choices=contrast is not None,
                continues=any(example.continues for example in examples),
            )
            write_text(target / f"{name}.yaml", yaml.safe_dump(settings, sort_keys=False))
            written.append(folder / f"{name}.yaml")
    return written


def _settings(name: str, documents: Path, *, has_choices: bool, continues: bool) -> dict[str, Any]:
    """Return the content of a task's YAML file.

    Args:
        continues: documents are words that continue a text. Only they have a perplexity: lm-eval's is of documents,
            and that of a document of 150 tokens is beyond any float.
    """
    accuracy = {"metric": "acc", "aggregation": "mean", "higher_is_better": True}
    perplexity = {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False}
    kind: dict[str, Any] = {"output_type": "loglikelihood", "doc_to_target": "continuation"}
    if has_choices:
        kind = {"output_type": "multiple_choice", "doc_to_target": "right", "doc_to_choice": "choices"}
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": glob.escape(str(documents))}},
        "test_split": "test",
        "doc_to_text": "context",
        **kind,
        "target_delimiter": "",
        "num_fewshot": 0,
        "metric_list": [perplexity, accuracy] if continues and not has_choices else [accuracy],
        "metadata": {"version": 1.0},
    }


def _documents(
    run: LoadedRun, examples: Iterable[Example], split: str, contrast: str | None
) -> Iterator[dict[str, Any]]:
    """Yield what a JSON lines file has of every example."""
    symbols = fast_tokenizer(run)
    begin, end = str(symbols.bos_token), str(symbols.eos_token)
    read_as_symbols = [one.content for one in symbols.added_tokens_decoder.values() if one.special]
    for number, example in enumerate(examples, 1):
        where = f"{split}: example {number}"
        targets = [example.target]
        if contrast is not None:
            targets = [*wrong_targets(example, contrast, where), example.target]
        source, between, after = example.source or "", "", end
        for symbol in read_as_symbols:
            if any(symbol in text for text in (source, *targets)):
                reason = f"it has {symbol!r}, which lm-eval reads as a special symbol, and the run as text: remove it"
                raise DataError(f"{where}: {reason}")
        if example.continues:
            between, after = "" if source[-1:].isspace() else " ", ""
        else:
            _check_lengths(run, example.source, targets, where)
            if source != source.rstrip():
                reason = "its source ends in white space, which lm-eval moves to the target: remove it"
                raise DataError(f"{where}: {reason}")
            source += f"{end}{begin}" if example.source is not None and run.model.config.joins_pairs else ""
        texts = [f"{between}{target}{after}" for target in targets]
        if contrast is None:
            yield {"context": source, "continuation": texts[0]}
        else:
            yield {"context": source, "choices": texts, "right": len(texts) - 1}


def _check_lengths(run: LoadedRun, source: str | None, targets: Sequence[str], where: str) -> None:
    """Refuse what `ostinato evaluate` cuts or refuses."""
    data = run.recipe.data
    sources = [] if source is None else [source]
    for side, texts, tokenizer, longest in (
        ("source", sources, run.tokenizers.source, data.max_source_length),
        ("target", targets, run.tokenizers.target, data.max_target_length),
    ):
        n = 1 + max((len(tokenizer.encode(text, unknown="replace")) for text in texts), default=0)
        if n > longest:
            key = f"data.max_{side}_length"
            reason = f"the {side} has {n} tokens with its end symbol, but {key} is {longest}"
            raise DataError(f"{where}: {reason}: raise {key} (data.over_length does not hold for lm-eval)")
