"""COGS: English sentences and their logical forms (Kim and Linzen 2020, arXiv 2010.05465)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ostinato.data.example import Example
from ostinato.data.lines import bad_line
from ostinato.data.registry import RemoteFile, published_files
from ostinato.tasks.base import Task, TaskConfig
from ostinato.tasks.variable_free import variable_free

STRUCTURAL = ("obj_pp_to_subj_pp", "cp_recursion", "pp_recursion")
"""Categories of `gen` that need a new structure; the other 18 use a word of training in a new role."""
LEXICAL = (
    "subj_to_obj_common",
    "subj_to_obj_proper",
    "obj_to_subj_common",
    "obj_to_subj_proper",
    "prim_to_subj_common",
    "prim_to_subj_proper",
    "prim_to_obj_common",
    "prim_to_obj_proper",
    "prim_to_inf_arg",
    "active_to_passive",
    "passive_to_active",
    "obj_omitted_transitive_to_transitive",
    "unacc_to_transitive",
    "do_dative_to_pp_dative",
    "pp_dative_to_do_dative",
    "only_seen_as_transitive_subj_as_unacc_subj",
    "only_seen_as_unacc_subj_as_obj_omitted_transitive_subj",
    "only_seen_as_unacc_subj_as_unerg_subj",
)

_COLUMNS = 3
_PUBLISHED = {
    "train": (24155, 4146574, "220b3804b562c0156ee986eff1bdd15c27e52142549362a64f57baf86e304c78"),
    "train_100": (39500, 5237347, "3c2be2294582874c219a2290dfc713db20b475d61f32fb0a30ee993f321f0727"),
    "dev": (3000, 522121, "ab66388a309c7ac1ad210c781a6a0ce12281a9ef24619a12422a752cef61bc21"),
    "test": (3000, 521111, "68f8e51e9f6d9cd22d64efe68dd21d7ea5ba327e9a2359481030161aea757035"),
    "gen": (21000, 5532102, "d013d9eee0bafc153f8decc85f42814ac97260f84964d980e1e2b84577b82361"),
}
"""Rows, bytes and SHA-256 of every file. This commit has the correction of September 2022 to 50 rows of `gen`."""
_FILES = published_files(
    repo="najoungkim/COGS",
    commit="165a7b669eade971fa47bf568a2e51925360fed8",
    licence="MIT",
    path="data/{}.tsv",
    table=_PUBLISHED,
)


class CogsConfig(TaskConfig):
    """Settings of COGS."""

    kind: Literal["cogs"] = "cogs"
    target_form: Literal["logical", "variable_free"] = "logical"
    """variable_free: COGS-vf, the shorter form without variables."""
    train_file: Literal["train", "train_100"] = "train"
    """What the split `train` is. train_100: every exposure example and primitive in a hundred rows instead of one."""

    @property
    def of_train(self) -> tuple[str, ...]:
        """The file of train."""
        return ("train_file",)


class CogsTask(Task):
    """COGS and COGS-vf: English sentences with their logical forms; 21 kinds of compositional generalisation.

    Splits, all published: train 24,155 (24,000 ordinary sentences, 143 primitives, 12 exposure examples), dev 3,000,
    test 3,000 (both like train), gen 21,000 (21 categories of 1,000; 18 lexical, 3 structural), train_100 39,500 (the
    exposure examples and primitives a hundred times). train_file=train_100 trains on the last.
    Targets: target_form=logical is the published logical form. target_form=variable_free (COGS-vf, Qiu et al. 2022) is
    made from it, see `ostinato.tasks.variable_free`; a primitive's target becomes its own source word. The two forms'
    scores are not comparable.
    Tokens: words; the files' own blanks separate them, on both sides. A vocabulary of the training split lacks tokens
    of some published rows, which can never be an exact match: with logical forms 2 rows of dev, 1 of test and 1,634 of
    gen (844 of cp_recursion, 782 of pp_recursion: variables numbered higher than any in training), with variable-free
    forms 1, 1 and 22 ("gardner", "monastery"). Named recipes read them as unknown (data.unknown=replace) and count them
    wrong.
    Metric: exact match of the whole form, white space aside, free running; by category and by lexical / structural.
    Selection: dev, which is like train. gen is for the final measurement only: there is no validation set of its kind.
    Departures: the depth study (Petty et al. 2023) reports the last of 10,000 updates of fine-tuning, here it is the
    best on dev.
    """

    config: CogsConfig
    by = ("case_type", "category")
    fixed_splits = ("train", "dev", "test", "gen", "train_100")

    def files(self) -> tuple[RemoteFile, ...]:
        """Return the five published files."""
        return tuple(_FILES.values())

    def published_sizes(self) -> dict[str, int]:
        """Return the sizes of the five files."""
        sizes = {split: _PUBLISHED[split][0] for split in self.splits()}
        return sizes | {"train": sizes[self.config.train_file]}

    def _examples(self, split: str) -> Iterator[Example]:
        file = _FILES[self.config.train_file if split == "train" else split]
        is_variable_free = self.config.target_form == "variable_free"
        for path, number, line in self._published(file):
            cells = line.split("\t")
            if len(cells) != _COLUMNS:
                raise bad_line(path, number, f"{len(cells)} columns separated by tabs, but there should be {_COLUMNS}")
            source, target, category = cells
            if is_variable_free:
                try:
                    target = source if category == "primitive" else variable_free(target)
                except ValueError as error:
                    raise bad_line(path, number, f"has no variable-free form: {error}") from error
            yield Example(source, target, {"category": category, "case_type": case_type(category)})


def case_type(category: str) -> str:
    """Return the kind of a category: lexical, structural, or of training rows in_distribution, primitive, exposure."""
    if category in STRUCTURAL:
        return "structural"
    if category in LEXICAL:
        return "lexical"
    return "exposure" if category.startswith("exposure_example") else category
