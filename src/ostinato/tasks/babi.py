"""bAbI: twenty kinds of questions on short stories (Weston et al. 2015, arXiv 1502.05698), version 1.2."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ostinato.config.base import Count, Size
from ostinato.data.example import Example
from ostinato.data.lines import bad_line
from ostinato.data.registry import RemoteFile
from ostinato.errors import DataError
from ostinato.tasks.base import Only, Share, Task, TaskConfig

NAMES = (
    *("single-supporting-fact", "two-supporting-facts", "three-supporting-facts", "two-arg-relations"),
    *("three-arg-relations", "yes-no-questions", "counting", "lists-sets", "simple-negation", "indefinite-knowledge"),
    *("basic-coreference", "conjunction", "compound-coreference", "time-reasoning", "basic-deduction"),
    *("basic-induction", "positional-reasoning", "size-reasoning", "path-finding", "agents-motivations"),
)
"""The tasks, number 1 first."""
_TRAIN_1K: tuple[tuple[int, str], ...] = (
    (94346, "c64ba9b1a49bbb111ffc4cd2ae4f129d25c012399dd7ade9679eea464b9afb05"),
    (177412, "a4978af5bc0dc30191810e7c9949aaa6eae939ed0f6beb9fcb5f4330c2a27860"),
    (529204, "a6e78019f36a02a7ed71fe6aaded0b563ff09c8deec392931801fcd9c6af4d60"),
    (117470, "c9370502d85fa382f32d1fea2111e817f81ae9e3e79eb2924a1a5392a90417fa"),
    (199473, "086cd59c3ca9677bfac3d6a22ca5853c76a5c1fbae3159c7c4a6aef759a74ec0"),
    (100561, "5a133115ee35d475776df703ff605d145b11effbcdbf7e74861f9d5639246a5a"),
    (135895, "dca03bd91876951c49f1c971c83c9dd55404de60201b7b6435451cf7ddb4751c"),
    (124487, "058604df6f9440458317e8ae685d2b7b84261e1a80b4d6410a9140d16f81bf06"),
    (97310, "0c3b89921af0caea1c4059ee3f7b7f2a88869f924195a428da37820446b8c49f"),
    (99217, "0b7691689447bab05476c5b48c44999b41e747c3978df69c18fdd87b60d6e8b3"),
    (104520, "9468de9a1f256f43dfda693a5d07182d21149a82b65f7c2451c64e9cff5eb138"),
    (114560, "45c2764bb2d3c8f699d35e9d9aa7958fcd96379c6e907116cdf74526c108bb25"),
    (116516, "533a391edbda743e4c99504de88b40cdded5b1d5ef454d1390f0863f748a4cc9"),
    (152131, "b7561cbc624205c9c2fdbb8c843cfa8ad90edd65e78bb223fc6dea8113662df8"),
    (87688, "e856ebfdcce4dd7d617c1d10f985e96a0850c0ca18e9a19a017cb710d135ed3d"),
    (208334, "20121005137e3d4b061a086eb177a456303d5742b764eb8da2d0e480b6af4d28"),
    (68596, "20083bf56ff74f0e7cf5e3e2f8c3905cdb8ef09293c3e8cf7a96ed8b45ae2277"),
    (104815, "18b7dcf52c9a0e87e4e7dd3d65b7e5a630de039645f52a1294197af7481d739d"),
    (247496, "dcb788352a56effb7bea1449128f31cc9c342c8c327b6df2caeee0e379e6ad3a"),
    (67892, "29580ad55fb7b4b29ba014696056cc68f8f347dac3be88470fd692ad60150398"),
)
_TEST: tuple[tuple[int, str], ...] = (
    (94477, "55acf66cef2f6d798e2aa1d056e1ec8f24e910ea9215b639450574321132959b"),
    (179835, "eff93fb9cd81ba02eb765772cf7cc269769ed44ec71cbbbc19cfb16ee5eba0f6"),
    (526527, "17795c977100baf8188f386522ae301b62d6c1a13efc01b3aea781e588b4d57f"),
    (117394, "07f0ca18ddeea9eed4ba6d59e162adcb0ce44815721114b3540d92825509331e"),
    (207037, "ec825c1c8a76e63a31f0d7a7763cd63740e98332fa9bdf246a19068949bd5f97"),
    (100109, "b108b16f1eccbd1c24df6dca2649079a7b2f10af7fd12d4c45a3393802de59e3"),
    (130136, "a74d1f2b91329b2bae814d41cdac2fbdfdf0328562b7d8afa9a0fa576d461e27"),
    (126863, "362a653c821a580fa315a85243b4f03bfa06fa7e0269b6f8e596f8fe6911646a"),
    (97208, "63590aff3f89993db409f0e9a9eb39c2a5b9d5efff99b255d800a891b0044d9f"),
    (99632, "fde8f20ed0b3ba979058ed391a566af34653f23baab5b2793ee37f87ef4e88b7"),
    (104800, "46f3290d0158ce1285a40cd2d793f5a65f86ae5000226e165cbc85a3dfeb2f6f"),
    (114489, "6437718f8f9801ce345869e910b896836cdc6fd2d01dc7b4d2df49730703b4b1"),
    (116444, "76a25b684f23c9cc473d8cd1465506168b9a1ec8891cfc59d0bbd87e6a064990"),
    (151420, "e3f0b19858ffbec3ed1e49076cc4d1295a89ce146c50318b862f13f202b3caf2"),
    (87769, "32b77e117fe9acf5f94906684e3b5206de0108e646c76e1da3e022896ec7ee94"),
    (208208, "4a11e55366f2a5a859b5a81f683ee23801bdbe71ef984e51adb976bd053e8dcf"),
    (68578, "9e1e0250ed4ec1831757fab26c04138f81ea557ebf6976a220db879cbed04bac"),
    (103626, "d34f70eb7228a276fcb3a7854174fe562c5634f4fb454a39fc3d1ad9934be3ef"),
    (247449, "023e391f0d7f79c9e6ae1c46c093e2d0dbd50ab8fbd8965e037a75e3614c20e5"),
    (67963, "bd3bde3788ac14ba0ae095078f7b820fbd2bfa6a34dba9d1d46a34afde9c2729"),
)
"""Bytes and SHA-256, task 1 first. The 10k version has the same test files, byte for byte."""
_TRAIN_10K: dict[int, tuple[int, str]] = {
    1: (944248, "749ea9f7c99070feb2d88c975a254417a0dcc8274add4435ae5ae24c7afc7e9d"),
    2: (1794716, "d4074c0c5d54f70ce2f538056ce2b6ef6a313da336da4245f1a24f1298e37ef3"),
    4: (1175065, "5d11b821d35234988ab907866aa7ce718e6b6d751acf63bdef52262afb59f12c"),
    5: (2122413, "2506910935b701bac64fc8b1d7ff12bd8d0f47ceefca183454282bec784c12a5"),
    6: (1003212, "602f379184bf3cb59660d0f7769d9c94ccdc1fc4d82dfe90bd460d985b1ff0c5"),
    7: (1345275, "4a2508733bef9b38cfce4b3108a91b83cdee378de4a7370e4d32fea2dacd3b7d"),
    8: (1256367, "9518da2d3aa5d98bec33335e0d5ba3a22c2bd1929ee679085d37eb50a7652e4a"),
    9: (971173, "5f8949f6ef7d64516fc4dd5732b12b5932d057b1a614e8ac94e795fb020d4ff0"),
    10: (997635, "c5c0788b0446095c07a0442784cad2b59c1d58e875ebe8ad852f5e3f628613f4"),
    11: (1046139, "edfcd97fecd4a5045af25e1790cf1408856ae362c39521b1b69cd32b88ec0ced"),
    12: (1144705, "39d58df3564916c66cebc98befb65d605c032181e51208730fd8837a77bc166a"),
    13: (1163109, "c530fdf122d26617a8a03ba5cdbacee87c22624ba7f50d1f07f9658c900e22d8"),
    14: (1506583, "c322e0814eef71f088af1aa1334e7ae4b1ee6ca18f2ee94c05e2189226964ed6"),
    15: (877358, "0a86673f7fafa484f8ee394048f03de19405bdc40b58f21086969efad2862010"),
    16: (2082804, "27fef347ce0b25dd148efea2b15f154926e0e9069d4ea6ab9cfca3add492ab35"),
    17: (684293, "8a383651e009db50d6c9effed5778b8646c28c55fadb1592b5f4d8d3a187bbce"),
    18: (1058260, "9e7c15107067d2070170ef12579a8bfe34dfc35a7ac9ebd13f2001dc1a7488f9"),
    19: (2475046, "6cfdc6f448e3cf0e3d8a390fa3add461935b033f89ede32aeef30812401ec91e"),
    20: (678651, "36f20f3baf6bad2297d5b9fd877e633550c36106fe78bc10ddfb7b1eede62573"),
}
"""Of the 10k version. The file of task 3 could not be downloaded when this was written."""
_SIZES = {"1k": 1_000, "10k": 10_000}
_N_TEST = 1_000
_MOST_FACTS, _MOST_FACTS_OF_TASK_3 = 70, 130
_THREE_FACTS = 3
_MARKS = re.compile(r"([.?,])")
_LINE = re.compile(r"(?P<number>\d+) (?P<text>.*)")


def _remote(number: int, part: str, size: str) -> RemoteFile:
    folder = "en-10k" if part == "train" and size == "10k" else "en"
    known = _TRAIN_10K if folder == "en-10k" else dict(enumerate(_TRAIN_1K if part == "train" else _TEST, 1))
    n_bytes, sha256 = known.get(number, (None, None))
    return RemoteFile(
        repo="patrickachase/dynamic-memory-networks",
        commit="0bf9e2c84ba500cecafe2c27519c500a65154a93",
        path=f"data/babi/tasks_1-20_v1-2/{folder}/qa{number}_{NAMES[number - 1]}_{part}.txt",
        sha256=sha256,
        n_bytes=n_bytes,
        n_rows=None,
        licence="CC BY 3.0",
    )


TaskNumber = Annotated[int, Field(ge=1, le=len(NAMES))]


class BabiConfig(TaskConfig):
    """Settings of bAbI."""

    only: ClassVar[tuple[Only, ...]] = (Only(("dev_seed",), "dev_fraction", but=(0,)),)
    kind: Literal["babi"] = "babi"
    number: TaskNumber | Annotated[list[TaskNumber], Field(min_length=1)] | None = None
    """One task alone (single), several together, or None: all twenty together (joint)."""
    size: Literal["1k", "10k"] = "1k"
    """Training questions for every task."""
    max_facts: Size | None = None
    """Most facts before the question; of more, the last ones. None: 70, and 130 for task 3."""
    form: Literal["plain", "facts"] = "plain"
    """How a story is written. plain: word after word, for models that read tokens. facts: with a tab between facts,
    the question last, for an encoder with model.embedder.kind=facts."""
    answer_form: Literal["words", "label"] = "words"
    """How an answer of several words is written. words: one after the other. label: as one token, as in the papers."""
    dev_fraction: Share = 0.1
    """Share of the training stories that becomes `dev`; 0: train whole, no dev."""
    dev_seed: Count = 0
    """Of the choice of dev."""

    @property
    def of_train(self) -> tuple[str, ...]:
        """The size, which dev is cut from, too, where there is one."""
        return ("size",) if self.dev_fraction == 0 else ()


class BabiTask(Task):
    """bAbI: twenty kinds of questions on short stories, one alone or all together; error by task, failed tasks.

    Splits of every task: train 1,000 or 10,000 questions (size), of which a seeded 10 % of the stories become dev
    (version 1.2 has no validation set), test 1,000. number=1..20 is one task (single), a list of
    numbers several, without it all twenty (joint).
    Source: the facts of the story before the question, earlier questions left out, the last 70 of them (130 for task
    3), then the question. Target: the answer; answer_form=label writes several words as one token, which makes a new
    token of every combination.
    The five questions of a story stand in a row, the first after the fewest facts: max_examples that takes every fifth
    row takes the easiest alone (200 of 1,000 does, 333 does not). 257 of the 20,000 test stories are in train.
    Tokens: words; full stops, question marks and commas are separate.
    Metric: exact match, free running, by task: 1 minus it is the error of a task, its mean over tasks (macro) gives the
    papers' average, and a task fails with more than 5 % (`failed` in the results). Also by the number of supporting
    facts, `n_supporting`.
    Selection: dev.
    Departures: Dehghani et al. 2019 report the best of ten seeds by a validation set they do not describe. form=facts
    is theirs, a position for every fact and one for the question, but the choice is among all answers of the training
    split (theirs: of train and test); of form=plain a decoder writes the answer to a sequence of words.
    Column `supporting` has the positions of the supporting facts, in plain of their words, from 0.
    """

    config: BabiConfig
    missing = ("dev", "bAbI has no validation set: task.dev_fraction above 0 cuts one from train")
    by = ("task", "n_supporting")

    def files(self) -> tuple[RemoteFile, ...]:
        """Return training and test files of the tasks."""
        parts = ("train", "test")
        return tuple(_remote(number, part, self.config.size) for part in parts for number in self._chosen)

    def splits(self) -> tuple[str, ...]:
        """Return train, dev (unless dev_fraction is 0) and test."""
        return ("train", "dev", "test") if self.config.dev_fraction > 0 else ("train", "test")

    def published_sizes(self) -> dict[str, int]:
        """Return the sizes of the chosen tasks, train with the dev set that is cut from it here."""
        n_tasks = len(self._chosen)
        return {"train": n_tasks * _SIZES[self.config.size], "test": n_tasks * _N_TEST}

    @property
    def _chosen(self) -> Sequence[int]:
        match self.config.number:
            case None:
                return range(1, len(NAMES) + 1)
            case int(number):
                return (number,)
            case numbers:
                return sorted(set(numbers))

    def _examples(self, split: str) -> Iterator[Example]:
        for number in self._chosen:
            for question in self._questions(number, "test" if split == "test" else "train"):
                if split == "test" or self._is_dev(number, question.story) == (split == "dev"):
                    yield self._example(number, question)

    def _is_dev(self, number: int, story: int) -> bool:
        """Return whether a story's questions are held out: by a seeded hash, so that no order matters."""
        digest = hashlib.sha256(f"{self.config.dev_seed}:{number}:{story}".encode()).digest()
        return int.from_bytes(digest[:8], "big") < self.config.dev_fraction * 2**64

    def _questions(self, number: int, part: str) -> Iterator[Question]:
        file = _remote(number, part, self.config.size)
        wanted = _N_TEST if part == "test" else _SIZES[self.config.size]
        found = 0
        for question in read_questions(self._published(file)):
            found += 1
            yield question
        if found != wanted:
            raise DataError(f"{file.path}: {found} questions, but {wanted} were published")

    def _example(self, number: int, question: Question) -> Example:
        most = self.config.max_facts or (_MOST_FACTS_OF_TASK_3 if number == _THREE_FACTS else _MOST_FACTS)
        between = "\t" if self.config.form == "facts" else " "
        source = between.join(map(spaced, (*question.facts[-most:], question.text)))
        target = question.answer if self.config.answer_form == "label" else spaced(question.answer)
        # Facts before the last `most` are left out of the source, so that the positions of the others are lower.
        n_left_out = max(0, len(question.facts) - most)
        supporting = [position - n_left_out for position in question.supporting if position >= n_left_out]
        if self.config.form == "plain":
            # The positions of the facts' words in a story that is read word by word.
            ends = [0, *accumulate(len(spaced(fact).split()) for fact in question.facts[n_left_out:])]
            supporting = [word for fact in sorted(set(supporting)) for word in range(ends[fact], ends[fact + 1])]
        columns: dict[str, object] = {
            "task": number,
            "n_facts": len(question.facts),
            "n_supporting": len(question.supporting),
            "supporting": supporting,
        }
        return Example(source, target, columns)


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the facts before it, and the positions (from 0) of the facts that answer it."""

    story: int
    facts: tuple[str, ...]
    text: str
    answer: str
    supporting: tuple[int, ...]


def read_questions(lines: Iterator[tuple[object, int, str]]) -> Iterator[Question]:
    """Yield the questions of a file; `lines` are its path, the numbers of the lines and their texts.

    Lines are numbered within a story, which begins with number 1; a question has its answer and the numbers of its
    supporting facts behind it, between tabs.

    Raises:
        DataError: a line that is neither a fact nor a question.
    """
    story = -1
    facts: list[str] = []
    positions: dict[str, int] = {}
    for path, number, line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            raise bad_line(str(path), number, "expected a number, a blank and a sentence")
        if match["number"] == "1":
            story, facts, positions = story + 1, [], {}
        text, *rest = match["text"].split("\t")
        if not rest:
            positions[match["number"]] = len(facts)
            facts.append(text.strip())
            continue
        supporting = rest[1].split() if len(rest) == 2 else []
        if not supporting or any(fact not in positions for fact in supporting):
            raise bad_line(str(path), number, "expected an answer and the numbers of facts before it behind tabs")
        yield Question(
            story, tuple(facts), text.strip(), rest[0].strip(), tuple(positions[fact] for fact in supporting)
        )


def spaced(text: str) -> str:
    """Return a text with blanks round full stops, question marks and commas."""
    return " ".join(_MARKS.sub(r" \1 ", text).split())
