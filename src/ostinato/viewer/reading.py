"""From a request to a batch: an example or one's own text, with what the model wrote or with the answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ostinato.data.batch import Batch
from ostinato.data.collate import AnyRow, Row, collate
from ostinato.data.example import NOT_IN_PASSAGE, Example
from ostinato.data.rows import encode_rows, labelled_text
from ostinato.data.symbols import LabelTokenizer
from ostinato.decoding import Hypothesis
from ostinato.decoding.generate import encode_prompt
from ostinato.decoding.search import OnStep, left_padded, search_n_best
from ostinato.errors import ConfigError, DataError, Problem
from ostinato.tasks.registry import task_config
from ostinato.viewer.calls import Call
from ostinato.viewer.opened import OpenRun
from ostinato.viewer.schema import Sentence


@dataclass(frozen=True, slots=True)
class Given:
    """What a request names.

    Args:
        example: its target is the answer, or stands for one that is not known. knows_answer: it is.
        has_several: answers, of which any is right, with tabs between them.
    """

    example: Example
    knows_answer: bool
    has_several: bool = False

    @property
    def answer(self) -> str | None:
        """The right output, where it is known; a text by itself has none."""
        return self.example.target if self.knows_answer and self.example.source is not None else None

    def is_right(self, output: str) -> bool | None:
        """Return whether an output has the words of the answer; None where that is not known, or texts go on behind."""
        if self.answer is None or self.example.continues:
            return None
        answers = self.answer.split("\t") if self.has_several else [self.answer]
        return any(output.split() == one.split() for one in answers)


def given(opened: OpenRun, sentence: Sentence) -> Given:
    """Return the example that a request names, or one made of its text.

    Raises:
        ConfigError: neither or both are named; no such example. DataError: its data cannot be read here.
    """
    if (sentence.text is None) == (sentence.example is None):
        raise ConfigError([Problem("text", sentence.text, "give either text or example")])
    if sentence.example is not None:
        reads_spans = opened.run.model.config.reads == "span"
        return Given(opened.example(sentence.example), knows_answer=True, has_several=reads_spans)
    text = task_config(opened.run.recipe.task).pair_changes.of_source(sentence.text or "", {})
    if not text.strip():
        raise ConfigError([Problem("text", text, "there is nothing to read")])
    if opened.run.reads_prompts:
        return Given(Example(None, text), knows_answer=False)
    target, columns = _placeholder(opened, text)
    return Given(Example(text, target, columns), knows_answer=False)


def _placeholder(opened: OpenRun, text: str) -> tuple[str, dict[str, object]]:
    """Return a target that stands for one that is not known: labels must be some of those there are."""
    config, tokenizer = opened.run.model.config, opened.run.tokenizers.target
    if config.reads == "span":
        return "", {"answer_start": NOT_IN_PASSAGE}
    if isinstance(tokenizer, LabelTokenizer):
        n = len(text.split()) if config.reads == "tagging" else 1
        return " ".join([tokenizer.labels[0]] * n), {}
    return "", {}


def read_row(opened: OpenRun, sentence: Sentence, found: Given) -> AnyRow:
    """Return the row whose pass is looked at, but for what the model writes: then with an empty target, or the prompt.

    Raises:
        DataError: it cannot be encoded, or is too long.
    """
    run, example = opened.run, found.example
    if not (run.model.config.generates and sentence.reads == "output"):
        return row_of(opened, example)
    if example.continues or example.source is None:  # a prompt, whose tokens are no labels
        prompt = (example.source or "") if example.continues else example.target
        try:
            ids = encode_prompt(run.writer, prompt, run.tokenizers.target, run.recipe.data)
        except DataError as error:
            raise DataError(f"text: {error}") from error
        return _shown(opened, Row(None, ids, special_ids=run.model.special_ids))
    return _emptied(row_of(opened, Example(example.source, "", example.columns)))


def _emptied(row: AnyRow) -> AnyRow:
    """Return a row without a target: of an empty text a tokenizer may make a blank, with which no search begins."""
    return replace(row, target_ids=[]) if isinstance(row, Row) else row


def row_of(opened: OpenRun, example: Example) -> AnyRow:
    """Return an example as token ids, every text by itself; those of a run in blocks may be cut.

    Raises:
        DataError: it cannot be encoded, or is too long.
    """
    run = opened.run
    data = run.recipe.data_by_text()
    rows = list(encode_rows([example], run.tokenizers, data, run.model.config, training=False, name="text"))
    if not rows:
        raise DataError("text: it is longer than this run reads")
    return _shown(opened, rows[0])


def _shown(opened: OpenRun, row: AnyRow) -> AnyRow:
    if row.length > opened.limits.tokens:
        raise DataError(f"text: {row.length} tokens; at most {opened.limits.tokens} are shown")
    return row


def with_output(opened: OpenRun, row: AnyRow, ids: list[int]) -> AnyRow:
    """Return a row with what the model wrote behind what it was given.

    Raises:
        ConfigError: ids that are none of the vocabulary's. DataError: more tokens than are shown.
    """
    if not isinstance(row, Row):
        raise ConfigError([Problem("output_ids", ids, "this model reads labels, and writes nothing")])
    run = opened.run
    n_ids = run.tokenizers.target.vocab_size
    if wrong := [i for i in ids if i >= n_ids]:
        raise ConfigError([Problem("output_ids", wrong[0], f"must be below {n_ids}, the ids of the vocabulary")])
    whole = replace(row, target_ids=[*row.target_ids, *ids], size=None)
    if whole.length > opened.limits.tokens:
        raise DataError(f"text and output have {whole.length} tokens; at most {opened.limits.tokens} are shown")
    if whole.source_ids is None and run.recipe.model.sees_prefix:
        # What was given sees all of itself, as it does in the search.
        return replace(labelled_text(whole, is_masked=False), n_prefix=1 + len(row.target_ids))
    return whole


def output_text(opened: OpenRun, row: AnyRow, ids: list[int]) -> str:
    """Return the text of what the model wrote for a row, as `ostinato.decoding.generate` does."""
    prompt = row.target_ids if isinstance(row, Row) and row.source_ids is None else []
    return opened.run.tokenizers.target.decode_after(prompt, ids)


def batch_of(opened: OpenRun, row: AnyRow) -> Batch:
    """Return a row as a batch on the model's device."""
    return collate([row]).to(opened.run.model.device)


def write(opened: OpenRun, sentence: Sentence, row: AnyRow, call: Call, on_step: OnStep) -> Hypothesis:
    """Search the output for a row.

    The model is used as it stands (`ostinato.decoding.inference`, and its execution).

    Args:
        on_step: see `ostinato.decoding.search`; the call is checked before it.
    """

    def step(ids: object) -> None:
        call.check()
        on_step(ids)  # type: ignore[arg-type]

    model = opened.run.writer
    assert isinstance(row, Row)  # what a model that writes reads
    prefix = None
    if row.source_ids is None and row.target_ids:
        special = model.special_ids
        prefix = left_padded([[special.bos, *row.target_ids]], special.pad, model.device)
    batch, decoding = batch_of(opened, row), opened.decoding(sentence, sentence.max_length)
    at_most = opened.limits.generated
    ((best, *_),) = search_n_best(model, batch, decoding, prefix, on_step=step, at_most=at_most)
    return best
