"""The output of a sentence, token by token."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ostinato.data.collate import AnyRow
from ostinato.decoding import Hypothesis, inference
from ostinato.viewer.calls import Call
from ostinato.viewer.opened import OpenRun
from ostinato.viewer.reading import given, output_text, read_row, write
from ostinato.viewer.schema import Output, Sentence, Token, Written


def generate(opened: OpenRun, sentence: Sentence, call: Call, emit: Callable[[Token | Output], None]) -> None:
    """Search a sentence's output, and tell it as it grows.

    Raises:
        ConfigError: a request that is not possible, or a model that writes nothing. DataError: a text that cannot be
            read. ClientGone, TimeLimitError: see `Call.check`.
    """
    model = opened.run.writer
    sentence = sentence.model_copy(update={"reads": "output"})

    def on_step(leading: Mapping[int, list[int]]) -> None:
        ids = [i for i in leading[0] if i != model.special_ids.eos]
        shown = [opened.subject.text("decoder", i) for i in ids]
        emit(Token(text=output_text(opened, row, ids), tokens=shown))

    row = read_row(opened, sentence, given(opened, sentence))
    packs = opened.run.recipe.decoding.pack_weights
    with model.execution(**opened.execution(sentence)), inference(model, packs_weights=packs):
        began = time.perf_counter()
        best = write(opened, sentence, row, call, on_step)
        seconds = time.perf_counter() - began
    emit(Output(output=written(opened, row, best, 1000 * seconds)))


def written(opened: OpenRun, row: AnyRow, found: Hypothesis, ms: float | None) -> Written:
    """Return what a search found for a row as the page shows it."""
    text = output_text(opened, row, found.ids)
    return Written(text=text, ids=found.ids, finished=found.finished, score=found.score, ms=ms)
