"""English passivization (Mueller et al. 2022, "Coloring the Blank Slate"), from its files or from its grammar.

    S -> NP verb NP .        NP -> Det N | Det N Prep Det N         N singular or plural, verb in the past tense

    decl:   subject verb object . -> itself            passiv:   object was|were verb by subject .

`were` where the first noun of the object is plural. All words of a class are equally probable, and so are NPs with and
without a phrase.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from random import Random
from typing import ClassVar, Literal, NamedTuple

from ostinato.config.base import Count, Size
from ostinato.data.example import Example
from ostinato.data.lines import bad_line
from ostinato.data.registry import RemoteFile, published_files
from ostinato.tasks.base import Only, Task, TaskConfig

DETERMINERS = ("the", "some", "my", "your", "our", "her")
SINGULARS = (
    *("newt", "orangutan", "peacock", "quail", "raven", "salamander", "tyrannosaurus"),
    *("unicorn", "vulture", "walrus", "xylophone", "yak", "zebra"),
)
PLURALS = tuple(f"{noun}es" if noun.endswith("s") else f"{noun}s" for noun in SINGULARS)
VERBS = (
    *("entertained", "amused", "annoyed", "applauded", "confused"),
    *("admired", "accepted", "remembered", "comforted"),
)
PREPOSITIONS = ("around", "near", "with", "upon", "by", "behind", "above", "below")
COPY, PASSIVE = "decl", "passiv"

_PUBLISHED: dict[str, tuple[int, int | None, str | None]] = {
    "train": (100_000, None, None),
    "dev": (1_000, 113_147, "e2024b0c6030957df2049329d42e9fc3dce8d8c9d0d7bca22a0940b19c747db7"),
    "test": (10_000, 1_126_490, "3d51ce92e274c4745eab84ba4f21391f8a6f88fcf2ab63d14ec765455f5bf4d9"),
    "gen": (10_000, 1_426_261, "f3bae2fa6349038179828515be30eb8778e6de0a93ae443c0b4c220ecd71c902"),
}
"""Rows, bytes and SHA-256 of every file; the training file could not be downloaded when this was written."""
_FILES = published_files(
    repo="sebschu/multilingual-transformations",
    commit="e848833f2df7674022ef02e2b649482d23ade7a7",
    licence="MIT",
    path="data/passiv_en_nps/passiv_en_nps.{}",
    table=_PUBLISHED,
)
_SIZES = {split: n_rows for split, (n_rows, _, _) in _PUBLISHED.items()}


class PassivizationConfig(TaskConfig):
    """Settings of English passivization."""

    only: ClassVar[tuple[Only, ...]] = (Only(("n_train", "seed"), "origin", ("generated",)),)
    kind: Literal["passivization"] = "passivization"
    origin: Literal["published", "generated"] = "published"
    """generated: other sentences of the same grammar, drawn here."""
    n_train: Size = _SIZES["train"]
    """generated: training sentences."""
    seed: Count = 0
    """generated: of the data; independent of the seed of training."""


class PassivizationTask(Task):
    """English passivization: copy a sentence or put it into the passive, as its last word says.

    Splits: train 100,000, dev 1,000 and test 10,000: sentences to copy, one third of them passives instead, none of
    which has a prepositional phrase on the subject; gen 10,000 passives that all have one. (The files' own description
    says 10,000 for dev. The hash of the training file is not known.) origin=generated draws all of them from the
    published grammar, no sentence twice.
    Tokens: words. Every target is checked against the rule of the passive.
    Metric: exact match, free running, and second_word: whether the second word is right, that is whether the right noun
    was moved; by transformation (decl, passiv). Column `supporting` has that noun's place in the source, from 0. The
    published scripts ignore case, which sentences here do not have.
    Selection: dev, without a sentence of the kind gen asks for; gen is for the final measurement only.
    Departures: the depth study (Petty et al. 2023) fine-tunes a language model and reports its last update.
    """

    config: PassivizationConfig
    metrics = ("exact_match", "second_word", "token_accuracy_free")
    by = ("transformation",)
    fixed_splits = ("train", "dev", "test", "gen")

    def files(self) -> tuple[RemoteFile, ...]:
        """Return the four published files; none where they are generated."""
        return tuple(_FILES.values()) if self.config.origin == "published" else ()

    def published_sizes(self) -> dict[str, int]:
        """Return the sizes of the files."""
        return dict(_SIZES)

    def _examples(self, split: str) -> Iterator[Example]:
        if self.config.origin == "generated":
            yield from self._generated[split]
            return
        for path, number, line in self._published(_FILES[split]):
            source, tab, target = line.partition("\t")
            try:
                result = transform(source) if tab else None
            except ValueError as error:
                raise bad_line(path, number, str(error)) from error
            if result != target:
                raise bad_line(path, number, f"expected a source, a tab and {result!r}, not {target!r}")
            yield _example(source, target)

    @cached_property
    def _generated(self) -> dict[str, list[Example]]:
        """All splits, no sentence twice; train is drawn last, so that the others do not depend on its size."""
        rng = Random(f"{self.config.seed}/passivization")
        seen: set[str] = set()
        sizes = {"gen": _SIZES["gen"], "test": _SIZES["test"], "dev": _SIZES["dev"], "train": self.config.n_train}
        return {split: [_draw(rng, split == "gen", seen) for _ in range(n)] for split, n in sizes.items()}


class Phrase(NamedTuple):
    """A noun phrase: its words, and whether a prepositional phrase is in it."""

    words: tuple[str, ...]
    has_phrase: bool


def _draw(rng: Random, is_gen: bool, seen: set[str]) -> Example:
    """Return an example whose sentence was not seen yet; a coin says whether it is copied.

    A passive with a phrase on the subject is drawn again outside gen, and everything else inside.
    """
    while True:
        subject, verb, object_ = _draw_phrase(rng), rng.choice(VERBS), _draw_phrase(rng)
        form = PASSIVE if is_gen or rng.random() < 0.5 else COPY
        sentence = " ".join((*subject.words, verb, *object_.words))
        if sentence in seen or is_gen != (form == PASSIVE and subject.has_phrase):
            continue
        seen.add(sentence)
        source = f"{sentence} . {form}"
        return _example(source, transform(source))


def _draw_phrase(rng: Random) -> Phrase:
    words = [rng.choice(DETERMINERS), rng.choice(rng.choice((SINGULARS, PLURALS)))]
    has_phrase = rng.random() < 0.5
    if has_phrase:
        words += [rng.choice(PREPOSITIONS), rng.choice(DETERMINERS), rng.choice(rng.choice((SINGULARS, PLURALS)))]
    return Phrase(tuple(words), has_phrase)


def transform(source: str) -> str:
    """Return the target of a source.

    Raises:
        ValueError: a source outside the grammar, with the word and the reason.
    """
    words = source.split()
    if words[-2:-1] != ["."] or words[-1] not in (COPY, PASSIVE):
        raise ValueError(f"the source does not end with '. {COPY}' or '. {PASSIVE}'")
    sentence = words[:-2]
    subject = parse_phrase(sentence, 0)
    n_subject = len(subject.words)
    verb = sentence[n_subject] if n_subject < len(sentence) else ""
    if verb not in VERBS:
        raise ValueError(f"word {n_subject + 1}: {verb!r} is no verb")
    object_ = parse_phrase(sentence, n_subject + 1)
    if len(sentence) != n_subject + 1 + len(object_.words):
        raise ValueError("words follow the object")
    if words[-1] == COPY:
        return " ".join(words[:-1])
    was = "were" if object_.words[1] in PLURALS else "was"
    return " ".join((*object_.words, was, verb, "by", *subject.words, "."))


def parse_phrase(words: list[str], start: int) -> Phrase:
    """Return the noun phrase that begins at a word.

    Raises:
        ValueError: there is none.
    """
    head = words[start : start + 2]
    if len(head) < 2 or head[0] not in DETERMINERS or head[1] not in (*SINGULARS, *PLURALS):
        raise ValueError(f"word {start + 1}: expected a determiner and a noun, not {' '.join(head)!r}")
    if words[start + 2 : start + 3] and words[start + 2] in PREPOSITIONS:
        inner = parse_phrase(words, start + 3)
        return Phrase((*head, words[start + 2], *inner.words), True)
    return Phrase(tuple(head), False)


def _example(source: str, target: str) -> Example:
    words = source.split()
    first = 0 if words[-1] == COPY else 1 + len(parse_phrase(words, 0).words)
    return Example(source, target, {"transformation": words[-1], "supporting": [first + 1]})
