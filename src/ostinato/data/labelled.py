"""Examples as sequences with labels of their own, for encoder-only models and for texts whose last part is scored.

    classification  <bos> text <eos>, of a pair <bos> text <eos> text <eos>;   one label
    tagging         <bos> words <eos>;                                          one label a word, at its first token;
                                                                                none where the target has `NO_LABEL`
                                                                                or the word has no token
    span            <bos> question <eos> passage <eos>;                         two labels, columns of the sequence
    facts           fact, fact, ..., question: a column each;                   one label

    continuation    <bos> text;                                                 one label a token of its last part

A pair is two texts with one tab between them; facts and their question have one tab between each two. What is too long
gives no row (None) where `data.over_length` is "drop"; continuations are never dropped.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from ostinato.config.special_ids import NO_LABEL
from ostinato.data.batch import TextSize
from ostinato.data.collate import IGNORED_LABEL, LabelledRow
from ostinato.data.cuts import Cuts, Kind
from ostinato.data.example import NOT_IN_PASSAGE
from ostinato.data.symbols import LabelTokenizer
from ostinato.data.tokenizer import Tokenizer
from ostinato.data.tokenizers import Tokenizers
from ostinato.errors import DataError

if TYPE_CHECKING:
    from ostinato.config.data import DataConfig
    from ostinato.data.example import Example

_TAB = "\t"


def facts_row(
    example: Example,
    tokenizers: Tokenizers,
    data: DataConfig,
    index: int,
    cuts: Cuts | None = None,
    *,
    max_words: int,
) -> LabelledRow | None:
    """Return a story's facts, its question last, and its one label; of too many facts the last ones are kept.

    With `data.unknown` "replace" a label that is not in the training data is ignored in the loss, and every output is
    wrong.

    Args:
        cuts: counts the facts, and those that are too many. max_words: most tokens that a fact may have.

    Raises:
        DataError: no facts, an empty one, or one that is too long.
    """
    parts = source_of(example).split(_TAB)
    if len(parts) == 1:
        raise DataError("no facts: a source of facts with tabs between them, the question last, is needed")
    facts = [tokenizers.source.encode(part, unknown=data.unknown) for part in parts]
    for number, (part, fact) in enumerate(zip(parts, facts, strict=True), start=1):
        if not 1 <= len(fact) <= max_words:
            limit = f"has {len(fact)} tokens, and model.embedder.max_words is {max_words}: raise it"
            raise DataError(f"fact {number} ({part!r}) {limit if fact else 'is empty'}")
    _count(len(facts), data, cuts, "story")
    if len(facts) > data.max_source_length:
        if _is_dropped(len(facts), data, "facts with the question"):
            return None
        facts = facts[-data.max_source_length :]
    target = tokenizers.target
    is_new = data.unknown == "replace" and isinstance(target, LabelTokenizer) and not target.knows(example.target)
    labels = [IGNORED_LABEL] if is_new else target.encode(example.target)
    special = tokenizers.source.special_ids
    return LabelledRow([], labels, columns=example.columns, index=index, facts=facts, special_ids=special)


def classification_row(
    example: Example, tokenizers: Tokenizers, data: DataConfig, index: int, cuts: Cuts | None = None
) -> LabelledRow | None:
    """Return a sentence or a pair with its one label; too long pairs lose tokens at the end of the longer text.

    Raises:
        DataError: no source, more than two texts, or too long a row where `data.over_length` is "error".
    """
    parts = source_of(example).split(_TAB)
    if len(parts) > 2:
        raise DataError(f"{len(parts)} texts between tabs: one or two can be classified")
    texts = [tokenizers.source.encode(part, unknown=data.unknown) for part in parts]
    room = data.max_source_length - 1 - len(texts)
    _count(sum(map(len, texts)) + 1 + len(texts), data, cuts)
    if sum(map(len, texts)) > room:
        if _is_dropped(sum(map(len, texts)) + 1 + len(texts), data):
            return None
        if room < 0:
            raise DataError(f"data.max_source_length = {data.max_source_length} leaves no room for the end symbols")
        while sum(map(len, texts)) > room:
            max(texts, key=len).pop()
    special = tokenizers.source.special_ids
    ids = [special.bos, *(i for text in texts for i in (*text, special.eos))]
    return LabelledRow(ids, tokenizers.target.encode(example.target), columns=example.columns, index=index)


def tagging_row(
    example: Example, tokenizers: Tokenizers, data: DataConfig, index: int, cuts: Cuts | None = None
) -> LabelledRow | None:
    """Return words with a label each, at its word's first token; truncated words lose their labels.

    So do words of which the tokenizer leaves nothing.

    Raises:
        DataError: another number of labels than of words, or a word that begins inside a token.
    """
    text = source_of(example)
    ids = tokenizers.source.encode(text, unknown=data.unknown)
    tags = example.target.split()
    firsts = first_tokens(text, tokenizers.source)
    if len(tags) != len(firsts):
        raise DataError(f"{len(tags)} labels for {len(firsts)} words: every word needs one")
    labelled = [first for first, tag in zip(firsts, tags, strict=True) if tag != NO_LABEL]
    all_labels = tokenizers.target.encode(example.target)
    places = [1 + first for first in labelled if first is not None]
    labels = [label for first, label in zip(labelled, all_labels, strict=True) if first is not None]
    room = data.max_source_length - 2
    _count(len(ids) + 2, data, cuts)
    if len(ids) > room:
        if _is_dropped(len(ids) + 2, data):
            return None
        if room < 0:
            raise DataError(f"data.max_source_length = {data.max_source_length} leaves no room for the end symbols")
        ids = ids[:room]
        places = [place for place in places if place <= room]
    special = tokenizers.source.special_ids
    framed = [special.bos, *ids, special.eos]
    if not places:  # none counts; a row has one place at least
        return LabelledRow(framed, [IGNORED_LABEL], [0], columns=example.columns, index=index)
    return LabelledRow(framed, labels[: len(places)], places, columns=example.columns, index=index)


class Passage(NamedTuple):
    """A passage in a sequence: the number of columns before it, its text, and the characters of every token."""

    n_before: int
    text: str
    spans: list[tuple[int, int]]

    def answer(self, start: int, end: int) -> str:
        """Return the text of the columns `start` to `end` of the sequence, both included."""
        return self.text[self.spans[start - self.n_before][0] : self.spans[end - self.n_before][1]]


def passage_of(example: Example, tokenizer: Tokenizer, data: DataConfig) -> tuple[list[int], Passage]:
    """Return the ids of question and passage, without the passage's end symbol, and the passage's position.

    Raises:
        DataError: not a question and a passage with one tab between them.
    """
    parts = source_of(example).split(_TAB)
    if len(parts) != 2:
        raise DataError("a question, one tab and a passage are needed")
    special = tokenizer.special_ids
    question = [special.bos, *tokenizer.encode(parts[0], unknown=data.unknown), special.eos]
    ids = [*question, *tokenizer.encode(parts[1], unknown=data.unknown)]
    return ids, Passage(len(question), parts[1], tokenizer.spans(parts[1]))


def span_row(
    example: Example, tokenizers: Tokenizers, data: DataConfig, index: int, cuts: Cuts | None = None
) -> LabelledRow | None:
    """Return a question and a passage with the columns of the first answer's first and last token.

    The answer begins at the character `answer_start` of the passage (a column of the example), or else at its first
    occurrence. Of several answers with tabs between them the first one is the label. With `answer_start` =
    `NOT_IN_PASSAGE` the labels are ignored.

    Raises:
        DataError: the answer is not in the passage.
    """
    ids, passage = passage_of(example, tokenizers.source, data)
    labels = [IGNORED_LABEL, IGNORED_LABEL]
    if example.columns.get("answer_start") != NOT_IN_PASSAGE:
        labels = _answer_columns(example, passage)
    room = data.max_source_length - 1
    _count(len(ids) + 1, data, cuts)
    if len(ids) > room:
        if _is_dropped(len(ids) + 1, data):
            return None
        ids = ids[:room]
        if passage.n_before >= room:
            raise DataError(f"data.max_source_length = {data.max_source_length} leaves no room for the passage")
    if labels[1] >= len(ids):  # The end of the answer was truncated.
        labels = [IGNORED_LABEL, IGNORED_LABEL]
    ids.append(tokenizers.source.special_ids.eos)
    return LabelledRow(ids, labels, n_prefix=passage.n_before, columns=example.columns, index=index)


def _answer_columns(example: Example, passage: Passage) -> list[int]:
    """Return the columns of the first and the last token that have characters of the answer."""
    answer = example.target.split(_TAB)[0]
    given = example.columns.get("answer_start")
    start = passage.text.find(answer) if given is None else _whole(given)
    end = start + len(answer)
    if start < 0 or passage.text[start:end] != answer:
        raise DataError(f"the passage does not hold the answer {answer!r}{'' if given is None else f' at {given}'}")
    touched = [n for n, (first, last) in enumerate(passage.spans) if first < end and last > start]
    if not touched:
        raise DataError(f"no token of the passage stands for the answer {answer!r}")
    return [passage.n_before + touched[0], passage.n_before + touched[-1]]


def _whole(given: object) -> int:
    """Return a place in a passage, also where a table made a text or a fraction of it."""
    try:
        number = float(given)  # type: ignore[arg-type]
        if number.is_integer():
            return int(number)
    except (TypeError, ValueError):
        pass
    raise DataError(f"answer_start is {given!r}, which is no whole number")


def continuation_row(example: Example, tokenizers: Tokenizers, data: DataConfig, index: int) -> LabelledRow:
    """Return source and target as one text, of which only the target's tokens are labels.

    A blank separates them unless the source ends in white space. The target's first token is the first one that has a
    character of it.

    Raises:
        DataError: the text is too long; a source is never truncated.
    """
    source = source_of(example)
    whole = f"{source}{'' if source[-1:].isspace() else ' '}{example.target}"
    ids = tokenizers.target.encode(whole, unknown=data.unknown)
    n_source = len(whole) - len(example.target)
    spans = enumerate(tokenizers.target.spans(whole))
    first = next((n for n, (_, end) in spans if end > n_source), None)
    if first is None:
        raise DataError(f"the tokenizer leaves nothing of {example.target!r}")
    if len(ids) > data.max_target_length:
        raise DataError(
            f"{len(ids)} tokens, but data.max_target_length is {data.max_target_length}: raise it (what comes before "
            "the part that is scored is never cut)"
        )
    labels = [IGNORED_LABEL] * first + ids[first:]
    size, said = None, tokenizers.target.decode(ids[first:])
    # As of a text (`ostinato.data.rows`), letters that the tokenizer changes are in no loss. The first token may have
    # characters of the source, too.
    if tokenizers.target.unknown_id not in labels and "".join(said.split()).endswith("".join(example.target.split())):
        n_bytes = min(len(said.encode()), len(example.target.encode()))
        size = TextSize(len(example.target.split()), n_bytes)
    begun = [tokenizers.target.special_ids.bos, *ids[:-1]]
    return LabelledRow(begun, labels, columns=example.columns, index=index, size=size)


def first_tokens(text: str, tokenizer: Tokenizer) -> list[int | None]:
    """Return the number of the first token of every white-space separated word.

    None: the word has none, as tokenizers may remove signs that are not seen (zero-width spaces).

    Raises:
        DataError: a word begins inside a token of the word before it.
    """
    words = list(re.finditer(r"\S+", text))
    starts = [word.start() for word in words]
    firsts: list[int | None] = [None] * len(words)
    for number, (start, end) in enumerate(tokenizer.spans(text)):
        if start == end:
            continue
        first, last = bisect_right(starts, start) - 1, bisect_left(starts, end) - 1
        if last > first:
            word = words[first + 1].group()
            raise DataError(f"the word {word!r} has no token of its own: choose a tokenizer that splits at white space")
        if firsts[first] is None:
            firsts[first] = number
    return firsts


def source_of(example: Example) -> str:
    """Return the source; a DataError where there is none."""
    if example.source is None:
        raise DataError("has no source to read")
    return example.source


def _count(n: int, data: DataConfig, cuts: Cuts | None, kind: Kind = "source") -> None:
    """Count a sequence of so many tokens, symbols included, or of so many facts."""
    if cuts is not None:
        cuts.add(kind, n, data.max_source_length)


def _is_dropped(n: int, data: DataConfig, what: str = "tokens with their begin and end symbols") -> bool:
    """Return whether what is too long is dropped, not truncated; a DataError where it may be neither."""
    if data.over_length == "error":
        raise DataError(
            f"{n} {what}, but data.max_source_length is "
            f"{data.max_source_length}: raise it, or set data.over_length to 'truncate'"
        )
    return data.over_length == "drop"
