"""What a model is: encoder-decoder, decoder-only, encoder-only with a head, or a recurrence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from ostinato.config.base import Config, Size, SizeOrZero, inert
from ostinato.config.common import CommonModelConfig, PairModelConfig, Reads, SequenceModelConfig
from ostinato.config.halting import ActConfig
from ostinato.config.lstm import LstmLanguageModelConfig, LstmSeq2SeqConfig
from ostinato.config.one_wide import FfnVariant, apply_variant, variant_problems
from ostinato.config.positions import WindowConfig
from ostinato.config.schema import leaves, values_of
from ostinato.config.stack import DecoderConfig, StackConfig
from ostinato.config.sub_layers import AttentionConfig
from ostinato.errors import Inert, Problem


class _StackedConfig(CommonModelConfig):
    """What models made of stacks share: the feed-forward variants, and parameter sets that two stacks may share."""

    d_embedding: Size | None = None
    """Width of the embeddings and of what is added to them; a map leads from it to d_model (ALBERT). null: d_model."""
    embedding_bias: bool = True
    """Bias of the map from d_embedding to d_model."""
    ffn_variant: FfnVariant | None = None
    """Feed-forwards shared or removed as One Wide FFN names it: see `ostinato.config.one_wide`."""
    shared_d_ff: Size | Literal["parity"] | None = None
    """Width of the feed-forwards that `ffn_variant` shares; parity: all feed-forwards together stay as wide as they
    were. None: their d_ff as given (one-wide: parity)."""

    @property
    def embedding_width(self) -> int:
        """Width of the embeddings, and of the output projection's rows."""
        return self.d_embedding or self.d_model

    def given_stacks(self) -> dict[str, StackConfig]:
        """Return the stacks as configured, before `ffn_variant`, by name, in the order they run."""
        fields = {name: getattr(self, name, None) for name in ("encoder", "decoder")}
        return {name: stack for name, stack in fields.items() if isinstance(stack, StackConfig)}

    def stacks(self) -> dict[str, StackConfig]:
        """Return the stacks as they are built, by name, in the order they run."""
        return apply_variant(self.given_stacks(), self.ffn_variant, self.shared_d_ff)

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Sizes that do not fit the width, variants the model cannot have, and banks whose users disagree."""
        yield from super().problems(path)
        yield from variant_problems(self.given_stacks(), self.ffn_variant, self.shared_d_ff, path)
        if self.d_embedding is not None and self.has_vocabulary_output and self.output.transform is None:
            reason = (
                f"the output projection is as wide as the embeddings: set {path}output.transform, which leads from "
                f"{path}d_model = {self.d_model} to it"
            )
            yield Problem(f"{path}d_embedding", self.d_embedding, reason)
        if self.d_embedding is None and not self.embedding_bias:
            yield Inert(f"{path}embedding_bias", False, f"has no effect without {path}d_embedding: remove it")
        for name, stack in self.stacks().items():
            yield from stack.size_problems(f"{path}{name}.", self.d_model, self.embedding_width)
            if name == "decoder" and not self.has_two_sides and stack.halting.kind == "length":
                valid = ", ".join(kind for kind in values_of(StackConfig, "halting") if kind != "length")
                reason = f"needs a source, whose length is known before; valid here: {valid}"
                yield Problem(f"{path}{name}.halting.kind", "length", reason)
            if name in self.causal_stacks and isinstance(stack.halting, ActConfig) and stack.halting.scope == "global":
                valid = ", ".join(scope for scope in values_of(ActConfig, "scope") if scope != "global")
                reason = (
                    "its one probability a sentence is the mean over all tokens, so that a token of a causal stack "
                    f"would halt by what comes after it; valid here: {valid}"
                )
                yield Problem(f"{path}{name}.halting.scope", stack.halting.scope, reason)
        # A parameter set has one shape, one norm and one table of positions, whichever stack uses it.
        seen: dict[tuple[str, str], tuple[str, dict[str, object]]] = {}
        for name, stack in self.stacks().items():
            for kind, sub in stack.sub_layers():
                if sub.is_absent:
                    continue
                bank = sub.bank or name
                mine = dict(leaves(sub.model_dump(exclude={"share", "n_unique", "share_norm", "bank"}), f"{kind}."))
                if sub.share_norm:
                    mine |= {f"norm.{name}": value for name, value in stack.norm.shape().items()}
                if isinstance(sub, AttentionConfig) and sub.qk_norm != "none" and sub.qk_norm_eps is None:
                    mine["norm.eps"] = stack.norm.eps
                if kind == "self_attention" and isinstance(stack.relative, WindowConfig):
                    mine["relative.window"] = stack.relative.window
                other, first = seen.setdefault((kind, bank), (name, mine))
                for key in sorted(k for k in mine if k in first and mine[k] != first[k]):
                    reason = f"the {kind} bank '{bank}' serves both stacks, and {path}{other}.{key} is {first[key]!r}"
                    yield Problem(f"{path}{name}.{key}", mine[key], reason)


class Seq2SeqConfig(_StackedConfig, PairModelConfig):
    """An encoder-decoder model."""

    kind: Literal["seq2seq"] = "seq2seq"
    encoder: StackConfig = StackConfig()
    """The stack that reads the source."""
    decoder: DecoderConfig = DecoderConfig()
    """The stack that writes the target."""
    random_offsets: Literal["apart", "shared"] = "apart"
    """Where positions start at random in training. apart: the encoder draws a number for every source, the decoder one
    for its target (code of Dehghani et al. 2019). shared: one for both, so that equal places have equal positions."""
    source_separator: str | None = None
    """Token of the source that ends a text: the encoder's tokens see none of the other texts beside them, so that a
    pair of sentences is encoded apart. Positions go on, and what a call lets stop whole sources (`exit_scope`) looks at
    all texts. None: they see the whole source."""
    source_separator_id: SizeOrZero | None = None
    """Its id; None: from the tokenizer. Models without recipes name it alone."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Offsets that cannot be shared, and encoders whose tokens take in more than they see."""
        yield from super().problems(path)
        key = "source_separator_id" if self.source_separator is None else "source_separator"
        if (separator := getattr(self, key)) is not None:
            yield from (Problem(f"{path}{key}", separator, reason) for reason in self._why_texts_touch(path))
        size = self.source_vocab_size
        if self.source_separator_id is not None and size is not None and self.source_separator_id >= size:
            reason = f"must be below the size of the source's vocabulary, {size}"
            yield Problem(f"{path}source_separator_id", self.source_separator_id, reason)
        if self.random_offsets == "shared":
            of_source, of_target = (getattr(one.positions, "random_offset", 0) for one in self.given_stacks().values())
            if not of_source or of_source != of_target:
                reason = (
                    f"needs {path}encoder.positions.random_offset = {path}decoder.positions.random_offset above 0; "
                    f"they are {of_source} and {of_target}"
                )
                yield Problem(f"{path}random_offsets", "shared", reason)

    def _why_texts_touch(self, path: str) -> Iterator[str]:
        """Yield why the texts of a source would not be encoded apart."""
        encoder = self.stacks()["encoder"]
        if encoder.ffn.kind == "separable_conv" and not encoder.ffn.is_absent:
            yield f"the convolutions of {path}encoder.ffn reach across texts: remove it"
        if encoder.halting.kind in ("select", "length") or getattr(encoder.halting, "scope", "token") == "global":
            yield f"{path}encoder.halting decides by the whole source, and not text by text: remove it"


class LanguageModelConfig(_StackedConfig, SequenceModelConfig):
    """A decoder-only model: one stack without cross-attention."""

    kind: Literal["language_model"] = "language_model"
    mask: Literal["causal", "prefix"] = "causal"
    """causal: a token sees none after it. prefix: the source's tokens also see each other in both directions (One Wide
    FFN, decoder-only model)."""
    decoder: StackConfig = StackConfig()
    """The only stack."""

    @property
    def sees_prefix(self) -> bool:
        """Whether `mask` is prefix."""
        return self.mask == "prefix"


class TokensConfig(Config):
    """Every token has a position of its own: its embedding."""

    kind: Literal["tokens"] = "tokens"


class FactsConfig(Config):
    """Every fact has a position, and the question has one (Universal Transformers, bAbI).

    e(fact) = sum_w M[w] * E[token w], with masks M learned for each place in a fact, and others in the question.
    """

    kind: Literal["facts"] = "facts"
    max_words: Size = 16
    """Tokens of the longest fact or question: places that have a mask."""


EmbedderConfig = Annotated[TokensConfig | FactsConfig, Field(discriminator="kind")]


class MaskedHeadConfig(Config):
    """The token that stood where one is masked: logits = states O^T, see `output` and `tie_embeddings` of the model."""

    kind: Literal["masked"] = "masked"


class ClassificationHeadConfig(Config):
    """One label for the whole input, a sentence or a pair: logits = W pooled + b."""

    kind: Literal["classification"] = "classification"
    pooling: Literal["first", "mean"] = "first"
    """first: the state of the begin symbol (BERT's [CLS]). mean: of all real tokens, both symbols included."""


class TaggingHeadConfig(Config):
    """One label for every white-space separated word, read from the state of its first token: logits = W state + b."""

    kind: Literal["tagging"] = "tagging"


class SpanHeadConfig(Config):
    """Where an answer begins and ends in a passage: two scores for every token of it, [start, end] = W state + b."""

    kind: Literal["span"] = "span"
    max_answer_length: Size = 30
    """Tokens of the longest answer that is given."""


HeadConfig = Annotated[
    MaskedHeadConfig | ClassificationHeadConfig | TaggingHeadConfig | SpanHeadConfig, Field(discriminator="kind")
]


class EncoderConfig(_StackedConfig):
    """An encoder-only model: one stack whose tokens all see each other, and a head that reads their states.

    It reads ``<bos> text <eos>``, of a pair (two texts separated by a tab) ``<bos> text <eos> text <eos>``. The
    embeddings have one row more than the tokenizer has ids: the last one is the mask symbol's, whatever the head is,
    so that a model pre-trained with a `masked` head can be fine-tuned with another.
    """

    kind: Literal["encoder"] = "encoder"
    vocab_size: Size | None = None
    """Rows of the embedding, the mask symbol's included; None: from the tokenizer."""
    n_labels: Size | None = None
    """Labels of a classification or tagging head; None: from the training split."""
    tie_embeddings: Literal["none", "output"] = "output"
    """Whether a masked head reads with the embeddings, or with a matrix of its own."""
    n_token_types: SizeOrZero = 0
    """Rows of a table of token types, of which row 0 is added to every embedding where a call gives no types (BERT and
    ALBERT: 2); 0: there is none."""
    embedder: EmbedderConfig = TokensConfig()
    """facts: a story's facts and its question, with tabs between them, are positions; for a classification head."""
    mask: Literal["none", "causal"] = "none"
    """none: all tokens see each other. causal: a token sees none after it, which tells it where it stands without any
    position (Fan et al. 2024); for heads that label tokens, or read the mean of all."""
    encoder: StackConfig = StackConfig()
    """The only stack."""
    head: HeadConfig = MaskedHeadConfig()
    """What is predicted from the encoder's output."""

    @property
    def reads(self) -> Reads:
        """What the head is for."""
        return self.head.kind

    @property
    def causal_stacks(self) -> frozenset[str]:
        """Names of the stacks whose tokens see none after them."""
        return frozenset({"encoder"} if self.mask == "causal" else ())

    @property
    def max_words(self) -> int | None:
        """Tokens of the longest fact; None where a position is a token."""
        return self.embedder.max_words if isinstance(self.embedder, FactsConfig) else None

    @property
    def n_outputs(self) -> int | None:
        """Numbers that a projection of the head's own gives; None: the head reads with a matrix over the vocabulary."""
        return {"masked": None, "span": 2}.get(self.head.kind, self.n_labels or 0)

    def vocabulary_sizes(self, source: int, target: int) -> dict[str, int]:
        """Return the rows of the embedding, and for heads that choose a label how many there are."""
        labels = {"n_labels": target} if self.head.kind in ("classification", "tagging") else {}
        return {"vocab_size": source + (self.special_ids.mask is None)} | labels

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Settings that belong to another head, mask or embedder."""
        yield from super().problems(path)
        if self.tie_embeddings == "none" and self.head.kind != "masked":
            reason = f"has no effect: {path}head.kind={self.head.kind} has no output over the vocabulary"
            yield Problem(f"{path}tie_embeddings", "none", reason)
        if not self.has_vocabulary_output:
            reason = f"has no effect: {path}head.kind={self.head.kind} has no output over the vocabulary"
            yield from inert(self.output, f"{path}output.", reason)
        if isinstance(self.embedder, FactsConfig) and getattr(self.head, "pooling", "first") != "mean":
            reason = f"has no begin symbol and no words: needs {path}head={{kind: classification, pooling: mean}}"
            yield Problem(f"{path}embedder.kind", self.embedder.kind, reason)
        if self.mask == "causal" and self.head.kind != "tagging" and getattr(self.head, "pooling", "first") != "mean":
            reason = f"with {path}head.kind tagging, or classification with pooling=mean, only: must be none"
            yield Problem(f"{path}mask", "causal", reason)
        if isinstance(self.embedder, FactsConfig) and self.encoder.value_embeddings is not None:
            reason = "belong to single tokens, and a position is a fact of several: remove them"
            yield Problem(f"{path}encoder.value_embeddings", "set", reason)
        if isinstance(self.embedder, FactsConfig) and self.n_token_types:
            yield Problem(f"{path}n_token_types", self.n_token_types, "facts have no token types: needs 0")
        if self.n_labels is not None and self.head.kind in ("masked", "span"):
            yield Problem(f"{path}n_labels", self.n_labels, f"{path}head.kind={self.head.kind} has no labels")


StackModelConfig = Seq2SeqConfig | LanguageModelConfig | EncoderConfig
"""Models that are made of stacks of steps."""
ModelConfig = Annotated[
    Seq2SeqConfig | LanguageModelConfig | EncoderConfig | LstmSeq2SeqConfig | LstmLanguageModelConfig,
    Field(discriminator="kind"),
]
