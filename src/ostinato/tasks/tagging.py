"""Tagging: a label for every word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

from ostinato.data.example import Example
from ostinato.data.lines import bad_line, read_lines
from ostinato.data.paths import find_files
from ostinato.data.sources import kind_of_file
from ostinato.errors import DataError
from ostinato.tasks.base import Only
from ostinato.tasks.files import LanguagesConfig, LanguagesTask
from ostinato.tasks.own_files import check_no_data_set, paths_of, read_split

_DOCUMENT = "-DOCSTART-"
_OF_SENTENCES = {"json": "JSON lines", "csv": "CSV", "parquet": "Parquet", "arrow": "Arrow"}
"""Kinds of files that hold a sentence a row."""


class TaggingConfig(LanguagesConfig):
    """Settings of tagging; the files are named under `data`."""

    only: ClassVar[tuple[Only, ...]] = (
        Only(("word_column", "tag_column", "languages"), "format", ("columns",)),
        Only(("languages",), "language_field", but=(None,)),
    )
    kind: Literal["tagging"] = "tagging"
    format: Literal["sentences", "columns"] = "sentences"
    """sentences: JSON lines or TSV, words and as many tags, both with blanks between them. columns: a word a line,
    columns separated by white space, an empty line after every sentence (CoNLL)."""
    word_column: int = 0
    """columns: 0-based place of the word; negative ones count from the end."""
    tag_column: int = -1
    """columns: 0-based place of the tag; negative ones count from the end."""
    languages: dict[str, str] | None = None
    """columns: language of every file, by its name without folder; becomes the column `language_field`."""

    @property
    def fields(self) -> frozenset[str]:
        """Those of sentences and their tags, none of columns."""
        return super().fields if self.format == "sentences" else frozenset()


class TaggingTask(LanguagesTask):
    """Tagging: a label for every word, such as parts of speech or names, from sentences or CoNLL columns.

    Splits: data.train, data.dev, data.test as they are given; lines with -DOCSTART- and comments (#) are left out of
    columns, and so are words with a range or an empty node for a number, where the first column numbers them
    (CoNLL-U). With train_languages train and dev keep only those languages, and test keeps all.
    Tokens: data.tokenizer, which must split at white space; a tag is read at its word's first token.
    Metric: tag accuracy (over words; for parts of speech) and span F1 by the rules of CoNLL (conlleval: both ends and
    the type of a span right; for names and chunks), by language.
    Selection: dev, as training.selection says.
    Departures: XTREME reports an F1 over parts of speech that is micro-averaged over tags and so equals tag accuracy;
    tags are chosen one by one, without a random field over them.
    """

    config: TaggingConfig
    answers = "tags"
    metrics = ("tag_accuracy", "span_f1")

    def _examples(self, split: str) -> Iterator[Example]:
        if self.config.format == "sentences":
            examples = read_split(self.data, split, keeps_words=True)
        else:
            check_no_data_set(self.data, split, "task.format=sentences reads data sets")
            paths = find_files(paths_of(self.data, split))
            for path in paths:
                if (kind := _OF_SENTENCES.get(kind_of_file(path))) is not None:
                    reason = f"is {kind}, and task.format=columns reads a word a line: task.format=sentences reads it"
                    raise DataError(f"{path}: {reason}")
            examples = (example for path in paths for example in self._read_columns(path))
        for number, example in enumerate(self.config.select(examples, split), 1):
            n_words, n_tags = len((example.source or "").split()), len(example.target.split())
            if n_words != n_tags:
                raise DataError(f"{split}: example {number} has {n_tags} tags for {n_words} words")
            yield example

    def _read_columns(self, path: Path) -> Iterator[Example]:
        columns = self.config.language_column((self.config.languages or {}).get(path.name))
        words: list[str] = []
        tags: list[str] = []
        comments: list[tuple[int, int]] = []  # their lines, and how many cells they would have
        for number, line in read_lines(path):
            # Where there are tabs, blanks are parts of words, in a sentence whose words stand apart: they become "_".
            cells = ["_".join(cell.split()) for cell in line.split("\t")] if "\t" in line else line.split()
            if not line.strip() and words:
                yield Example(" ".join(words), " ".join(tags), columns)
                words, tags = [], []
            # Comments stand before a sentence; the word `#` has columns beside it.
            is_comment = not words and line.startswith("#") and "\t" not in line
            if not line.strip() or cells[0] == _DOCUMENT or is_comment:
                comments = [*comments, (number, len(cells))] if is_comment else []
                continue
            for place, n_cells in comments if "\t" not in line else ():
                if n_cells == len(cells):
                    reason = (
                        "may be a comment or a word, as lines have as many columns: put tabs between columns, or an"
                    )
                    raise bad_line(path, place, f"{reason} empty line behind the comment")
            comments = []
            # CoNLL-U has ten columns; 3-4 numbers a contraction whose words follow, 5.1 a word that is not in the text.
            is_number_or_range = cells[0].replace("-", "").replace(".", "").isdecimal()
            if len(cells) == 10 and is_number_or_range and not cells[0].isdecimal():
                continue
            word_column, tag_column = self.config.word_column, self.config.tag_column
            try:
                word, tag = cells[word_column], cells[tag_column]
            except IndexError as error:
                reason = f"{len(cells)} columns, but columns {word_column} and {tag_column} are asked for"
                raise bad_line(path, number, reason) from error
            if word_column != tag_column and word_column % len(cells) == tag_column % len(cells):
                named = f"task.word_column={word_column} and task.tag_column={tag_column}"
                raise bad_line(path, number, f"{named} name one of {len(cells)} columns: a word needs a tag beside it")
            if "\t" in line and word_column != tag_column:
                n_words, n_tags = (len(line.split("\t")[place].split()) for place in (word_column, tag_column))
                if n_words == n_tags > 1:  # beside one word they are one tag: work of art
                    reason = f"its tag {tag!r} has several words: task.format=sentences reads a sentence a row"
                    raise bad_line(path, number, reason)
            words.append(word)
            tags.append(tag)
        if words:
            yield Example(" ".join(words), " ".join(tags), columns)
