"""Translation of parallel text: Multi30k English-German, or the user's own pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from ostinato.config.data import FieldName
from ostinato.data.example import Example
from ostinato.data.lines import bad_line
from ostinato.data.pair_changes import PairChanges
from ostinato.data.registry import RemoteFile, published_files
from ostinato.errors import DataError, Problem
from ostinato.tasks.base import Only, Task, TaskConfig
from ostinato.tasks.own_files import own_source, read_split

if TYPE_CHECKING:
    from ostinato.data.packs.source import PackSource

_FILES = published_files(
    repo="multi30k/dataset",
    commit="a3d2e0d26b56f3846f66a952536ffed4e401d05a",
    licence="none stated (derived from Flickr30K, research use)",
    path="data/task1/raw/{}.gz",
    table={
        "train.en": (29000, 568929, "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
        "train.de": (29000, 637044, "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"),
        "val.en": (1014, 21650, "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
        "val.de": (1014, 24681, "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"),
        "test_2016_flickr.en": (1000, 21077, "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"),
        "test_2016_flickr.de": (1000, 22890, "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"),
        "test_2017_flickr.en": (1000, 19138, "76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074"),
        "test_2017_flickr.de": (1000, 21471, "a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee"),
        "test_2018_flickr.en": (1071, 23514, "ef4f4844037d4c5dea75c9a8ed5fd78905967a26f67c255e230cc9780032654d"),
        "test_2018_flickr.de": (1071, 26461, "ddd0130c7d97482dc5197a02141dae8dd79f20f03586c480d675c09a32daf608"),
    },
)
_FILE_OF = {
    "train": "train",
    "dev": "val",
    "test": "test_2016_flickr",
    "test_2017": "test_2017_flickr",
    "test_2018": "test_2018_flickr",
}


_COMMAS = dict(zip("\u015e\u015f\u0162\u0163", "\u0218\u0219\u021a\u021b", strict=True))
"""S, s, T and t with cedilla, and with comma below."""


class TranslationConfig(TaskConfig):
    """Settings of translation."""

    only: ClassVar[tuple[Only, ...]] = (Only(("target_tag", "normalise"), "corpus", ("files",)),)
    kind: Literal["translation"] = "translation"
    corpus: Literal["multi30k_en_de", "files"] = "multi30k_en_de"
    """files: data.train, data.dev, data.test; two text files side by side, JSON lines or TSV."""
    swap_sides: bool = False
    """Translate in the other direction: for Multi30k from German to English."""
    target_tag: FieldName | None = None
    """files: column with the language of the target. `<2de>` and a blank are written before a source whose target is
    German (`de`), so that one model translates in many directions."""
    normalise: Literal["none", "romanian"] = "none"
    """files: romanian writes s and t of the target with commas below in the place of cedillas, as WMT16's scripts do;
    diacritics stay."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Tags name targets."""
        yield from super().problems(path)
        if self.target_tag is not None and self.swap_sides:
            yield Problem(f"{path}target_tag", self.target_tag, f"is for {path}swap_sides=false")

    @property
    def reads_own_files(self) -> bool:
        """Whether the text is the user's."""
        return self.corpus == "files"

    @property
    def input_field(self) -> str:
        """Setting of `data` that names what is translated."""
        return "target_field" if self.reads_own_files and self.swap_sides else super().input_field

    @property
    def pair_changes(self) -> PairChanges:
        """What is changed of pairs: tags, letters, sides."""
        return PairChanges(self.target_tag, _COMMAS if self.normalise == "romanian" else {}, self.swap_sides)


class TranslationTask(Task):
    """Translation: Multi30k English to German, or parallel text of your own, scored by BLEU and chrF.

    Splits of Multi30k (task 1, raw text, the 2016-2018 shared tasks): train 29,000, dev 1,014 (val), test 1,000 (2016
    flickr, the one papers report), test_2017 1,000 and test_2018 1,071 (flickr). The ambiguous COCO test set of 2017 is
    left out. Blanks at the ends of lines are dropped; nothing else is changed, and nothing is lowercased or tokenised
    beforehand. With corpus=files the splits are the files given; target_tag names a column of target languages, which
    are written before the sources (many-to-many; scores by language), normalise=romanian is WMT16's of the target side.
    Tokens: data.tokenizer; subwords (bpe or unigram, about 8,000 joint ones for Multi30k) are the customary choice.
    Metric: sacreBLEU's corpus BLEU (13a, mixed case) and chrF2 of the plain output text, each with its signature. On
    request (evaluation.metrics, --metric) `bleu_compounds_split`, tensor2tensor's get_ende_bleu, which the Universal
    Transformer's papers report (extra moses), `spbleu`, BLEU of flores200 pieces (extra spbleu), and `comet`, Unbabel's
    wmt22-comet-da (extra comet, in an environment of its own); the last two need models that are not downloaded here.
    Selection: dev, by loss or BLEU.
    Departures: many papers score tokenised, lowercased or compound-split output, so their numbers are not comparable.
    """

    config: TranslationConfig
    metrics = ("bleu", "chrf")
    fixed_splits = tuple(_FILE_OF)

    def _configure(self) -> None:
        if self.config.target_tag is not None:
            self.by = (self.config.target_tag,)

    def files(self) -> tuple[RemoteFile, ...]:
        """Return the ten files of Multi30k, nothing for the user's own text."""
        return () if self.config.corpus == "files" else tuple(_FILES.values())

    def published_sizes(self) -> dict[str, int]:
        """Return the sizes of Multi30k."""
        if self.config.corpus == "files":
            return {}
        return {split: _FILES[f"{name}.en"].n_rows or 0 for split, name in _FILE_OF.items()}

    def _examples(self, split: str) -> Iterator[Example]:
        is_own, changes = self.config.corpus == "files", self.config.pair_changes
        pairs = read_split(self.data, split) if is_own else self._read_multi30k(_FILE_OF[split])
        for number, example in enumerate(pairs, 1):
            try:
                yield changes.of(example)
            except DataError as error:
                raise DataError(f"{split}: example {number} {error}") from error

    def pack_source(self, split: str) -> PackSource | None:
        """Return the files of a split, or its data set; see `Task`."""
        if self.config.corpus != "files" or type(self)._examples is not TranslationTask._examples:
            return super().pack_source(split)
        return own_source(self.data, split, changes=self.config.pair_changes)

    def _read_multi30k(self, name: str) -> Iterator[Example]:
        english, german = (self._published(_FILES[f"{name}.{language}"]) for language in ("en", "de"))
        for (path, number, source), (_, _, target) in zip(english, german, strict=True):
            if not source.strip() or not target.strip():
                raise bad_line(path, number, "one side of the pair is empty")
            yield Example(source.strip(), target.strip(), {})
