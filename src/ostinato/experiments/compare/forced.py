"""Teacher-forced scores of several runs on the same examples: which can be compared, and their intervals."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.errors import ConfigError, Problem
from ostinato.evaluation.scores import COUNTS_UNKNOWN, ForcedCounts
from ostinato.evaluation.stored import Outputs
from ostinato.metrics.bootstrap import Compared, paired_counts
from ostinato.tasks.checks import FORCED_METRICS, OF_TEXTS

_OF_LABELS = ("loss", "perplexity", "token_accuracy")
"""Means over labels, which are other ones with another tokenizer."""


def is_forced(name: str) -> bool:
    """Return whether a metric is a teacher-forced score; others are of outputs."""
    return name in FORCED_METRICS


def why_not(
    name: str, written: Sequence[Outputs], vocabularies: Sequence[Sequence[str]], *, has_unknown: bool
) -> str | None:
    """Return why systems cannot be compared by a teacher-forced score, None where they can.

    Args:
        vocabularies: of each, see `System.vocabulary`; a loss is that of a choice among all of it.
        has_unknown: whether one of them reads part of the references as its unknown token.
    """
    counts = [outputs.counts or [] for outputs in written]
    if name in OF_TEXTS and not all(one.n_words for rows in counts for one in rows):
        return "is of whole texts, every token of which is a label and known, and not all of these are"
    labels = [([one.n_labels for one in rows], words) for rows, words in zip(counts, vocabularies, strict=True)]
    if name in _OF_LABELS and any(other != labels[0] for other in labels[1:]):
        return f"is a mean over labels, and these runs have other labels (tokenizers): use {' or '.join(OF_TEXTS)}"
    if name == "sequence_accuracy_forced" and has_unknown and any(other != vocabularies[0] for other in vocabularies):
        return f"{COUNTS_UNKNOWN}: compare runs of one vocabulary, or whose tokenizers know all text (bpe, unigram)"
    return None


def forced_bootstrap(
    name: str,
    written: Sequence[Outputs],
    vocabularies: Sequence[Sequence[str]],
    *,
    has_unknown: bool,
    n_samples: int,
    seed: int,
) -> list[Compared]:
    """Return every system's score and difference to the first one's, as `paired_bootstrap` does of outputs.

    Args:
        vocabularies, has_unknown: as of `why_not`.

    Raises:
        ConfigError: the systems cannot be compared by it. DataError: too few examples.
    """
    if (reason := why_not(name, written, vocabularies, has_unknown=has_unknown)) is not None:
        raise ConfigError([Problem("metrics", name, reason)])
    groups = [[outputs.counts or []] for outputs in written]
    return paired_counts(lambda sums: ForcedCounts(*sums).scores()[name], groups, n_samples=n_samples, seed=seed)
