"""Learning to Execute: read a program, write its result (Zaremba and Sutskever 2014; Dehghani et al. 2019, 4.5)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ostinato.config.base import Count, Size
from ostinato.data.example import Example
from ostinato.errors import Problem
from ostinato.tasks.base import Only, Task, TaskConfig
from ostinato.tasks.programs import MEMORY, draw_family, draw_script

Strategy = Literal["baseline", "naive", "mix", "combined"]

_PARTS = ("train", "dev", "test")
_PROGRAM_LENGTH, _MEMORY_LENGTH, _NESTING = 5, 55, 2
_MOST_NESTING = 10
"""A script has ten variables and uses each of them once."""
_MIX_SHARE = 0.2


class LearningToExecuteConfig(TaskConfig):
    """Settings of Learning to Execute; lengths are in digits."""

    only: ClassVar[tuple[Only, ...]] = (
        Only(("family",), "generator", ("families",)),
        Only(("stage_length", "stage_nesting"), "strategy", ("naive", "combined")),
        Only(("max_nesting", "stage_nesting"), "family", but=MEMORY),
    )
    kind: Literal["learning_to_execute"] = "learning_to_execute"
    generator: Literal["families", "scripts"] = "families"
    """families: expressions of one kind, without variables. scripts: lines of Python with variables (Zaremba, 2014)."""
    family: Literal["copy", "double", "reverse", "addition", "algebra", "control", "program", "all"] = "program"
    """families: which operations. copy, double and reverse repeat one number; program is + - if, control if for."""
    max_length: Annotated[int, Field(ge=1, le=400)] | None = None
    """None: 5, and 55 for copy, double and reverse."""
    max_nesting: Annotated[int, Field(ge=1, le=_MOST_NESTING)] = _NESTING
    """Operations in one program; copy, double and reverse have none."""
    strategy: Strategy = "mix"
    """Difficulty of train and dev. mix: uniform up to the maximum. baseline: always the maximum. naive: always the
    stage. combined: up to the stage (scripts: one in five as mix, the others as naive)."""
    stage_length: Size = 1
    """naive, combined: the stage of the length."""
    stage_nesting: Size = 1
    """naive, combined: the stage of the nesting."""
    source_form: Literal["plain", "reversed", "doubled"] = "plain"
    """How the program is read."""
    n_train: Size = 100_000
    """Examples in train."""
    n_eval: Size = 10_000
    """Examples in each of dev and test."""
    seed: Count = 0
    """Of the data; independent of the seed of training."""

    @property
    def longest(self) -> int:
        """Digits at the highest difficulty."""
        if self.max_length is not None:
            return self.max_length
        return _MEMORY_LENGTH if self.generator == "families" and self.family in MEMORY else _PROGRAM_LENGTH

    def problems(self, path: str = "") -> Iterator[Problem]:
        """A stage lies below the maximum, and there must be enough programs to split in three."""
        yield from super().problems(path)
        has_stage = self.strategy in ("naive", "combined")
        for name, most in (("length", self.longest), ("nesting", self.max_nesting)) if has_stage else ():
            stage = getattr(self, f"stage_{name}")
            if stage > most:
                yield Problem(f"{path}stage_{name}", stage, f"must be at most the maximum, {most}")
        if self.longest < 2 and self.generator == "families":
            yield Problem(
                f"{path}max_length", self.longest, "must be at least 2: shorter programs are too few to split"
            )


class LearningToExecuteTask(Task):
    """Learning to Execute: read a program character by character, write what it gives; six tasks, two generators.

    Splits: train (`n_train`), dev and test (`n_eval` each), drawn. A hash of program and result modulo 3 says which
    split a program may be in, so that none is in two (Zaremba and Sutskever; the families' own generator has no such
    rule). train and dev follow `strategy`, by default mix: length and nesting uniform up to the maximum. test always
    has the maximum, 5 digits and 2 operations, or 55 digits for copy, double and reverse (Dehghani et al. 2019).
    generator=families (default): the six tasks copy, double, reverse, addition, control, program, and algebra and all;
    no variables, values modulo 10^(L+1). generator=scripts: whole programs in Python with assignments of variables,
    loops and conditionals, values as they are, maybe negative. The programs of the UT paper's appendix D.4 assign
    variables, as scripts do; the six names of its tables 5 and 6 are those of the families, and it names neither
    generator. The families are the default because they alone have all six tasks.
    An expression is `(91405-2204)if8<15else60312`, a line of a script `for x in range(8):j+=920#`.
    Tokens: characters on both sides; `#` ends a line of a script, `@` the script, `.` its result.
    Metric: character accuracy and whole results right, the end symbol included. Dehghani et al. 2019: free running, no
    target is given at test time (character_accuracy_free, exact_match). Zaremba and Sutskever: teacher-forced, the true
    characters before are given (token_accuracy, sequence_accuracy_forced), which is easier. By length and nesting.
    Selection: dev, which has all difficulties; nothing is selected on test.
    Departures: training sees `n_train` programs again and again, where the papers draw fresh ones for every batch.
    Which operations the UT paper's `program` has is not published: ours is + - if, and `all` is the other reading. A
    stage of the curriculum (strategy naive or combined) is a run, the next one starts from its weights
    (training.init_from): the length grows by one, then begins at 1 with one more nesting; at 95 % accuracy the papers
    move on.
    """

    config: LearningToExecuteConfig
    metrics = ("exact_match", "character_accuracy_free")
    forced = ("token_accuracy", "sequence_accuracy_forced")
    by = ("length", "nesting")

    def _examples(self, split: str) -> Iterator[Example]:
        config = self.config
        strategy: Strategy = "baseline" if split == "test" else config.strategy
        name = config.family if config.generator == "families" else "scripts"
        stage = f"{config.stage_length}-{config.stage_nesting}" if strategy in ("naive", "combined") else ""
        rng = Random(f"{config.seed}/{name}/{split}/{strategy}{stage}/{config.longest}-{config.max_nesting}")
        left = config.n_train if split == "train" else config.n_eval
        while left:
            if config.generator == "scripts":
                program = draw_script(rng, lambda: self._difficulty(rng, strategy))
            else:
                program = draw_family(rng, config.family, *self._difficulty(rng, strategy))
            digest = hashlib.sha256(f"{program.source}\n{program.target}".encode()).digest()
            if _PARTS[int.from_bytes(digest[:8], "big") % len(_PARTS)] != split:
                continue
            left -= 1
            columns: dict[str, object] = {"length": program.length, "nesting": program.nesting}
            text = program.source
            source = {"plain": text, "reversed": text[::-1], "doubled": text * 2}[config.source_form]
            yield Example(source, program.target, columns)

    def _difficulty(self, rng: Random, strategy: Strategy) -> tuple[int, int]:
        """Return the length and nesting of the next program by the strategy: a fixed pair, or a random one."""
        config = self.config
        most, stage = (config.longest, config.max_nesting), (config.stage_length, config.stage_nesting)
        if strategy == "combined" and config.generator == "scripts":
            strategy = "mix" if rng.random() < _MIX_SHARE else "naive"
        if strategy in ("baseline", "naive"):
            return most if strategy == "baseline" else stage
        length, nesting = most if strategy == "mix" else stage
        return rng.randint(1, length), rng.randint(1, nesting)
