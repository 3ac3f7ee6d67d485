"""Scores of labels, tags and answers.

    accuracy      = examples whose label is right / examples
    macro_f1      = mean over classes c of 2 TP_c / (2 TP_c + FP_c + FN_c), over the classes that occur as a label or as
                    a prediction; equal to scikit-learn's f1_score(average="macro")
    tag_accuracy  = words whose tag is right / words, without those that have none (`NO_LABEL`)
    span_f1       = 2 C / (P + G) with P spans predicted, G in the reference, C in both with both ends and the type
                    right: the score of CoNLL-2000 and 2003 (conlleval); 1 where there is no span at all
    answer_em     = answers that equal one of the references after normalisation / answers          SQuAD
    answer_f1     = mean over answers of the largest F1 of their words with those of a reference    SQuAD

Spans follow conlleval: B- and S- begin one, and so do I- and E- where the word before has another type, is outside or
has ended one (E-, S-). L- and U- (BILOU) are E- and S-. Tags without such a prefix are types of their own: adjacent
equal ones are one span. Outside is O. Normalisation follows SQuAD v1.1's official script: lower case, then without
ASCII punctuation, without the articles a, an, the, and with single blanks. References with tabs between them are
several right answers.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from ostinato.config.special_ids import NO_LABEL
from ostinato.metrics.base import Metric, Proportion
from ostinato.metrics.matching import ExactMatch

_UNIT = 10**9
"""F1 of one answer is counted in billionths, so that sums are whole numbers, whose order does not matter."""
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Accuracy(ExactMatch):
    """Share of the examples, in [0, 1], whose label is right."""

    name = "accuracy"


class MacroF1(Metric):
    """F1 of every class, in [0, 1], each class counting once."""

    name = "macro_f1"
    _totals: list[float]

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        super().__init__()
        # It has counted an empty output, which must not become a class.
        self._places.clear()
        self._totals.clear()

    def counts(self, prediction: str, reference: str, source: str = "") -> dict[int, int]:
        """Return TP and FP + FN by place: of every class both in turn, classes in the order of their first examples."""
        return dict.fromkeys(self._counted(prediction.strip(), reference.strip()), 1)

    def update(self, prediction: str, reference: str, source: str = "") -> None:
        """Count one output, in place.

        A model that writes labels as text may write a new class for every example: to copy all totals each time, as
        `Metric.update` does, would take time that grows with the square of the number of examples.
        """
        self._n += 1
        counted = self._counted(prediction.strip(), reference.strip())
        self._totals += [0] * (2 * len(self._places) - len(self._totals))
        for place in counted:
            self._totals[place] += 1

    def _counted(self, prediction: str, reference: str) -> list[int]:
        """Return the places of the counts that one output adds to."""
        right, wrong = (2 * self._places.setdefault(label, len(self._places)) for label in (reference, prediction))
        return [right] if prediction == reference else [right + 1, wrong + 1]

    def score(self, totals: Sequence[float]) -> float:
        """Return the mean of F1 over the classes with any count."""
        pairs = [pair for pair in zip_longest(totals[::2], totals[1::2], fillvalue=0) if any(pair)]
        return sum(2 * right / (2 * right + wrong) for right, wrong in pairs) / len(pairs)


class TagAccuracy(Proportion):
    """Share of the words, in [0, 1], whose tag is right; missing tags are wrong."""

    name = "tag_accuracy"

    def counts(self, prediction: str, reference: str, source: str = "") -> list[int]:
        """Return the words that are right, and the words."""
        written, wanted = prediction.split(), reference.split()
        pairs = [pair for pair in zip_longest(written[: len(wanted)], wanted) if pair[1] != NO_LABEL]
        return [sum(a == b for a, b in pairs), len(pairs)]


class SpanF1(Metric):
    """F1 of spans of words, in [0, 1], by the rules of CoNLL."""

    name = "span_f1"

    def counts(self, prediction: str, reference: str, source: str = "") -> list[int]:
        """Return the spans in both, in the prediction, and in the reference."""
        tags = prediction.split(), reference.split()
        # Words without a label are in no span of either.
        outside = [place for place, tag in enumerate(tags[1]) if tag == NO_LABEL]
        for own in tags:
            for place in outside:
                own[place : place + 1] = ["O"]
        written, wanted = (set(spans_of_tags(own)) for own in tags)
        return [len(written & wanted), len(written), len(wanted)]

    def score(self, totals: Sequence[float]) -> float:
        """Return F1; 1 where neither has a span."""
        n_right, n_written, n_wanted = totals
        return 2 * n_right / (n_written + n_wanted) if n_written + n_wanted else 1.0


def spans_of_tags(tags: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Yield the spans of a sentence as first word, one past the last word, type."""
    # A last O ends a span at the end of the sentence.
    start, before, kind = 0, "O", ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, name = _split_tag(tag)
        if before != "O" and (prefix in ("O", "B", "S") or before in ("E", "S") or name != kind):
            yield start, place, kind
            before = "O"
        if prefix != "O" and (before == "O" or prefix in ("B", "S")):
            start = place
        before, kind = prefix, name


def _split_tag(tag: str) -> tuple[str, str]:
    """Return one of O B I E S, and the type."""
    if tag == "O":
        return "O", ""
    prefix, dash, name = tag.partition("-")
    prefix = {"L": "E", "U": "S"}.get(prefix, prefix)  # as BILOU calls them
    return (prefix, name) if dash and prefix in ("B", "I", "E", "S") else ("I", tag)


class AnswerEm(Proportion):
    """Share of the answers, in [0, 1], that are one of their references after SQuAD's normalisation."""

    name = "answer_em"

    def counts(self, prediction: str, reference: str, source: str = "") -> list[int]:
        """Return whether it is right, and 1."""
        return [int(normalised(prediction) in {normalised(one) for one in reference.split("\t")}), 1]


class AnswerF1(Metric):
    """Mean over answers, in [0, 1], of the best F1 of their words with those of a reference."""

    name = "answer_f1"

    def counts(self, prediction: str, reference: str, source: str = "") -> list[int]:
        """Return the best F1 in billionths, and 1."""
        return [round(_UNIT * max(_word_f1(prediction, one) for one in reference.split("\t"))), 1]

    def score(self, totals: Sequence[float]) -> float:
        """Return the mean."""
        total, n = totals
        return total / _UNIT / n


def normalised(answer: str) -> str:
    """Return an answer in lower case, without punctuation, articles and superfluous white space."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def _word_f1(prediction: str, reference: str) -> float:
    written, wanted = normalised(prediction).split(), normalised(reference).split()
    if not written or not wanted:
        return float(written == wanted)
    n_both = sum((Counter(written) & Counter(wanted)).values())
    return 2 * n_both / (len(written) + len(wanted))
