"""What every model has, whatever it is made of: its width, its vocabularies, and what it reads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ostinato.config.base import Config, Positive, Probability, Size
from ostinato.config.halting import ChoosingConfig
from ostinato.config.output import OutputConfig
from ostinato.config.special_ids import SpecialIds
from ostinato.config.stack import StackConfig
from ostinato.errors import ConfigError, Problem
from ostinato.plan import Plan

Init = Literal["xavier", "normal", "unit_scaling", "torch", "depth_scaled"]
Reads = Literal["pair", "sequence", "masked", "classification", "tagging", "span"]
"""pair: a source, and a target to write. sequence: one text, or a pair joined to one. The others: the heads of
encoder-only models (`ostinato.config.model`)."""
Score = Literal["general", "dot", "additive", "none"]


@dataclass(frozen=True, slots=True)
class Recurrence:
    """LSTM layers one upon the other, each of which reads and gives states of the model's width.

    Args:
        n_layers: how many. n_directions: 2 reads forwards and backwards, with half the units each way.
        score: attention to the source's states behind the last layer; "none" where there is none.
    """

    n_layers: int
    n_directions: int = 1
    score: Score = "none"


class CommonModelConfig(Config):
    """Width, dropout, and what data, training, decoding and counts need to know of any model.

    Tokens are read either by stacks of steps, each with its plan, or by recurrences over positions. A model of
    recurrences has no plan, no rounds and no halting.
    """

    d_model: Size = 512
    """Width of the states."""
    dropout: Probability = 0.1
    """Dropout of the embeddings and of every sub-layer's output before its residual."""
    init: Init = "xavier"
    """Initialisation of the weights: see `ostinato.nn.init`."""
    embedding_scale: bool | Positive = True
    """Factor of the embeddings: true for sqrt(d_model) (Vaswani et al. 2017, 3.4), false for 1, or a number."""
    output: OutputConfig = OutputConfig()
    """How states become logits over the vocabulary."""
    special_ids: SpecialIds = SpecialIds()
    """Ids of padding, begin and end symbol, for models that are given token ids in Python. Tokenizers of recipes have
    the defaults."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Special ids that an embedding does not have."""
        sizes = [getattr(self, name) for name in self.vocabulary_sizes(1, 1) if name.endswith("vocab_size")]
        if known := [size for size in sizes if size is not None]:
            yield from self.special_ids.size_problems(f"{path}special_ids.", min(known))

    @property
    def embedding_width(self) -> int:
        """Width of the embeddings, and of the output projection's rows."""
        return self.d_model

    @property
    def embedding_factor(self) -> float:
        """What embeddings are multiplied by."""
        return math.sqrt(self.d_model) if self.embedding_scale is True else float(self.embedding_scale or 1.0)

    @property
    def has_vocabulary_output(self) -> bool:
        """Whether the model gives logits over a vocabulary."""
        return self.reads in ("pair", "sequence", "masked")

    @property
    def reads(self) -> Reads:
        """What the model reads of an example, and what it predicts."""
        raise TypeError(type(self).__name__)

    @property
    def joins_pairs(self) -> bool:
        """Whether source and target of a pair are read as one sequence."""
        return self.reads == "sequence"

    @property
    def sees_prefix(self) -> bool:
        """Whether the tokens that are given, of one sequence, see each other in both directions."""
        return False

    @property
    def has_two_sides(self) -> bool:
        """Whether source and target are read by parts of their own; else there is one sequence, the target side."""
        return self.reads == "pair"

    @property
    def generates(self) -> bool:
        """Whether the model writes text, token by token."""
        return self.reads in ("pair", "sequence")

    @property
    def max_words(self) -> int | None:
        """Tokens of the longest fact, where a position holds the tokens of a fact; None: it holds one token."""
        return None

    def vocabulary_key(self, side: str) -> str:
        """Return the setting that holds the rows of one side's vocabulary."""
        return f"{side}_vocab_size" if self.has_two_sides else "vocab_size"

    def side_of(self, reader: str) -> Literal["source", "target"]:
        """Return whose tokens a reader (see `readers`) reads."""
        return "source" if self.has_two_sides and reader == "encoder" else "target"

    def vocabulary_sizes(self, source: int, target: int) -> dict[str, int]:
        """Return the fields that hold sizes of vocabularies, with what they are for tokenizers of so many ids."""
        raise TypeError(type(self).__name__)

    def stacks(self) -> dict[str, StackConfig]:
        """Return the stacks as they are built, by name, in the order they run."""
        return {}

    @property
    def causal_stacks(self) -> frozenset[str]:
        """Names of the stacks whose tokens see none after them."""
        return frozenset({"decoder"})

    def plans(self) -> dict[str, Plan]:
        """Return the plan of every stack."""
        return {name: stack.plan(name) for name, stack in self.stacks().items()}

    def recurrences(self) -> dict[str, Recurrence]:
        """Return the recurrences over positions, by name, in the order they run."""
        return {}

    def readers(self) -> list[str]:
        """Return the names of what reads tokens, in the order it runs: stacks, or recurrences."""
        return [*self.stacks(), *self.recurrences()]

    def why_not_some_rounds(self) -> str | None:
        """Return why decoding cannot keep keys and values of some rounds only; None: it can."""
        plan = self.plans().get("decoder")
        if plan is None or not plan.is_fully_shared:
            return "needs a decoder whose rounds share all weights: the keys of others cannot stand for each other"
        if plan.loop.keys != "own":
            return f"rounds read the keys of other rounds as the model says (keys: {plan.loop.keys})"
        if isinstance(self.stacks()["decoder"].halting, ChoosingConfig):
            return "the tokens of a round are chosen, and see the keys of that round only (halting.kind: select)"
        return None

    def check_rounds(self, n_steps: int | None) -> None:
        """Refuse a number of rounds at call time where there are none.

        Raises:
            ConfigError: `n_steps` for a model without stacks.
        """
        if n_steps is not None and not self.stacks():
            reason = "this model is a recurrence over positions: it has no rounds of depth to run more or fewer of"
            raise ConfigError([Problem("n_steps", n_steps, reason)])


class PairModelConfig(CommonModelConfig):
    """What encoder-decoder models share: two vocabularies."""

    source_vocab_size: Size | None = None
    """Rows of the source embedding; None: from the tokenizer."""
    target_vocab_size: Size | None = None
    """Rows of the target embedding and of the output projection; None: from the tokenizer."""
    tie_embeddings: Literal["none", "output", "input", "all"] = "output"
    """output: target embedding = output projection. input: target embedding = source embedding (T5 1.1). all: the three
    are one. Sides that share an embedding have one joint vocabulary."""

    @property
    def has_joint_embedding(self) -> bool:
        """Whether source and target have one embedding."""
        return self.tie_embeddings in ("input", "all")

    @property
    def reads(self) -> Reads:
        """Pairs, whose sides are read by parts of their own."""
        return "pair"

    def vocabulary_sizes(self, source: int, target: int) -> dict[str, int]:
        """Return the sizes of both sides."""
        return {"source_vocab_size": source, "target_vocab_size": target}

    def problems(self, path: str = "") -> Iterator[Problem]:
        """One matrix for both sides needs one vocabulary size."""
        yield from super().problems(path)
        if self.has_joint_embedding and self.source_vocab_size != self.target_vocab_size:
            reason = (
                f"needs one joint vocabulary, but source_vocab_size is {self.source_vocab_size} and "
                f"target_vocab_size is {self.target_vocab_size}"
            )
            yield Problem(f"{path}tie_embeddings", self.tie_embeddings, reason)


class SequenceModelConfig(CommonModelConfig):
    """What language models share: one vocabulary.

    Trained on texts, or on pairs read as one sequence: source, end symbol, begin symbol, target. The loss is then on
    the target and its end symbol.
    """

    vocab_size: Size | None = None
    """Rows of the embedding and of the output projection; None: from the tokenizer."""
    tie_embeddings: Literal["none", "output"] = "output"
    """output: embedding = output projection."""

    @property
    def reads(self) -> Reads:
        """Texts, and pairs as one sequence."""
        return "sequence"

    def vocabulary_sizes(self, source: int, target: int) -> dict[str, int]:
        """Return the one size there is."""
        return {"vocab_size": target}
