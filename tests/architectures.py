"""One hypothesis strategy over every model the configuration can express, and ragged batches for them.

Everything is tiny: widths under 10, at most four steps. Vocabularies are tiny too; ids 0-3 are the special symbols.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from drawn_parts import (
    ATTENTIONS,
    BUCKETS,
    FEED_FORWARDS,
    attentions,
    feed_forwards,
    norms,
    outputs,
    relatives,
    segments_of,
    signals,
    sparse_layers,
    spreads,
    with_fixed,
    without_gaps,
)
from elsewhere import built
from haltings import haltings, sometimes_by_length
from ostinato.config.halting import HaltingConfig, NoHaltingConfig
from ostinato.config.loops import NoModulationConfig, SegmentConfig
from ostinato.config.model import (
    ClassificationHeadConfig,
    EncoderConfig,
    HeadConfig,
    LanguageModelConfig,
    MaskedHeadConfig,
    ModelConfig,
    Seq2SeqConfig,
    SpanHeadConfig,
    TaggingHeadConfig,
)
from ostinato.config.positions import ByStepConfig, NoRelativeConfig, NoSignalConfig, RelativeConfig
from ostinato.config.stack import DecoderConfig, NormConfig, StackConfig, ValueEmbeddingsConfig
from ostinato.config.sub_layers import GATED, SeparableConvConfig, SubLayerConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.models import Model, build_model
from ostinato.plan import PLACES, Kind, Placement

PAD, BOS, EOS = 0, 1, 2


def draws(n: int, *, quick: int | None = None) -> settings:
    """Return the settings of a property that is checked on `n` draws, the same ones in every run.

    `make test-all`, which sets OSTINATO_ALL_DRAWS, looks at all of them; on the pretended device, where operations take
    many times as long, at a twentieth.

    Args:
        quick: how many `make test` looks at; None: an eighth of them. Few, where a list of models is checked beside
            them; all, where the property counts what they have covered.
    """
    n = n if os.environ.get("OSTINATO_ALL_DRAWS") else -(-n // 8) if quick is None else quick
    is_elsewhere = "OSTINATO_DEVICE" in os.environ
    n = -(-n // 20) if os.environ.get("OSTINATO_DEVICE") == "pretended" else n
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    phases = [Phase.explicit, Phase.generate, *([] if is_elsewhere else [Phase.shrink, Phase.explain])]
    return settings(
        max_examples=n, deadline=None, derandomize=True, database=None, suppress_health_check=slow, phases=phases
    )


@dataclass(frozen=True)
class Sentence:
    """One example without padding; the target begins with BOS. Language models have no source.

    A pair as one sequence is a target whose first `n_prefix` tokens are the source, EOS included.
    """

    source: list[int] | None
    target: list[int]
    n_prefix: int | None = None

    def with_target(self, target: list[int]) -> Sentence:
        """Return the sentence with another target, of which the prefix is still a part."""
        return Sentence(self.source, target, self.n_prefix)


# --- architectures ---------------------------------------------------------------------------------------------------


@st.composite
def any_architecture(
    draw: st.DrawFn,
    *,
    kind: str | None = None,
    fully_shared: bool = False,
    halting: st.SearchStrategy[HaltingConfig] | None = None,
    placements: Sequence[Placement] = tuple(PLACES),
    has_values: bool = True,
    has_experts: bool = True,
    heads: Sequence[HeadConfig] | None = None,
) -> Any:
    """Draw a small model, its vocabulary sizes set and its dropout zero.

    Args:
        kind: "seq2seq", "language_model" or "encoder"; None draws one of the first two, which generate.
        fully_shared: every round runs the same parameter sets, so that `n_steps` may be given at call time.
        halting: rules of the stacks; None: any. placements: of norms. has_values: tokens may add to values.
        has_experts: sub-layers may have experts. heads: of encoders; None: any.
    """
    kind = kind or draw(st.sampled_from(["seq2seq", "language_model"]))
    d_model = draw(st.sampled_from([4, 6, 8]))
    common: dict[str, Any] = {
        "d_model": d_model,
        "dropout": 0.0,
        "init": draw(st.sampled_from(["xavier", "normal", "unit_scaling", "torch", "depth_scaled"])),
        "embedding_scale": draw(st.sampled_from([True, False, 3.0])),
        "d_embedding": draw(st.sampled_from([None, None, 4, 6])),
    }
    if common["d_embedding"] is not None:
        common["embedding_bias"] = draw(st.booleans())
    if kind != "encoder":
        common["output"] = draw(outputs(is_mapped=common["d_embedding"] is not None))
    stack = _Stacks(draw, d_model, fully_shared, halting, placements, has_values, has_experts)
    if kind == "language_model":
        tie = draw(st.sampled_from(["none", "output"]))
        mask = draw(st.sampled_from(["causal", "prefix"]))
        rows = draw(st.integers(5, 9))
        decoder = stack.draw("decoder")
        return LanguageModelConfig(mask=mask, vocab_size=rows, tie_embeddings=tie, decoder=decoder, **common)
    if kind == "encoder":
        return _encoder(draw, stack.draw("encoder"), heads or HEADS, common)
    encoder, decoder = stack.pair()
    tie = draw(st.sampled_from(["none", "output", "input", "all"]))
    target = draw(st.integers(5, 9))
    source = target if tie in ("input", "all") else draw(st.integers(5, 9))
    config = Seq2SeqConfig(
        source_vocab_size=source,
        target_vocab_size=target,
        tie_embeddings=tie,
        encoder=encoder,
        decoder=decoder,
        **common,
    )
    # An encoder that takes in more than it sees keeps no texts apart.
    apart = config.model_copy(update={"source_separator_id": draw(st.sampled_from([None, None, 4]))})
    return config if list(apart.problems()) else apart


HEADS: list[HeadConfig] = [
    MaskedHeadConfig(),
    ClassificationHeadConfig(pooling="first"),
    ClassificationHeadConfig(pooling="mean"),
    TaggingHeadConfig(),
    SpanHeadConfig(),
]


def _encoder(draw: st.DrawFn, stack: StackConfig, heads: Sequence[HeadConfig], common: dict[str, Any]) -> EncoderConfig:
    head = draw(st.sampled_from(heads))
    if head.kind == "masked":
        common["output"] = draw(outputs(is_mapped=common["d_embedding"] is not None))
    reads_all = head.kind == "tagging" or getattr(head, "pooling", "first") == "mean"
    can_be_causal = reads_all and getattr(stack.halting, "scope", "token") != "global"
    return EncoderConfig(
        mask=draw(st.sampled_from(["none", "none", "causal"])) if can_be_causal else "none",
        n_token_types=draw(st.sampled_from([0, 0, 2])),
        vocab_size=draw(st.integers(5, 9)),
        n_labels=draw(st.integers(2, 5)) if head.kind in ("classification", "tagging") else None,
        tie_embeddings=draw(st.sampled_from(["none", "output"])) if head.kind == "masked" else "output",
        encoder=stack,
        head=head,
        **common,
    )


class _Stacks:
    """Draws the stacks of one model: the second may use the banks of the first."""

    def __init__(
        self,
        draw: st.DrawFn,
        d_model: int,
        fully_shared: bool,
        halting: st.SearchStrategy[HaltingConfig] | None,
        placements: Sequence[Placement],
        has_values: bool,
        has_experts: bool,
    ) -> None:
        self._draw, self._d_model, self._fully_shared, self._halting = draw, d_model, fully_shared, halting
        self._placements, self._has_values, self._has_experts = placements, has_values, has_experts

    def draw(self, name: str, shared: dict[str, Any] | None = None) -> Any:
        """Draw the stack called `name`; `shared` holds the settings it must take over with another stack's banks."""
        draw, shared = self._draw, shared or {}
        n_rounds, steps_per_round = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        n_steps, segments = n_rounds * steps_per_round, list[SegmentConfig]()
        if not draw(st.integers(0, 3)):
            before, looped, after = draw(st.integers(0, 1)), draw(st.integers(1, 2)), draw(st.integers(0, 1))
            segments = with_fixed(draw(segments_of(before, looped, after)))
            n_steps, steps_per_round = sum(segment.n_steps for segment in segments), 1
        # Rounds that run the same sets have the same positions at each of their steps.
        most = steps_per_round if self._fully_shared and not segments else n_steps
        relative: RelativeConfig = shared.get("relative") or draw(relatives(most))
        if isinstance(relative, ByStepConfig) and len(relative.pattern) > most:  # of another stack
            relative = relative.settings[relative.pattern[0]]
        norm: NormConfig = shared.get("norm") or draw(norms())
        norm = norm.model_copy(update=self._where_norms_are())
        if norm.has_final and not norm.weight:
            norm = norm.model_copy(update={"final_weight": self._draw(st.booleans())})
        if norm.has_final and n_rounds == 3:  # by no further draw: other models stay as they are
            norm = norm.model_copy(update={"final_eps": 0.1})
        if not norm.has_final:
            segments = [s.model_copy(update={"end_norm": "own"}) if s.end_norm == "final" else s for s in segments]
        ffn = self._sub("ffn", n_steps, steps_per_round, shared, relative)
        grows = getattr(ffn, "activation", None) in (*GATED, "relu2")  # with the square of what it reads
        if norm.placement == "scores" and grows and any(segment.states for segment in segments):
            # Nothing keeps those squares small, and there may be dozens: no float64 would hold them.
            norm = norm.model_copy(update={"placement": "pre", "final": norm.has_final})
        of_loop = (s.repeats for s in segments if s.repeats and not s.fixed)
        n_rounds = next(of_loop, n_steps // steps_per_round)
        can_select = not isinstance(ffn, SeparableConvConfig)
        rules = haltings(is_causal=name != "encoder", n_rounds=n_rounds, can_select=can_select)
        signal = draw(signals())
        halting = draw(rules if self._halting is None else self._halting)
        if self._halting is None and name != "decoder":  # that of a language model has no source
            halting = sometimes_by_length(halting, (n_steps, segments, norm, relative, ffn))
        if any(segment.states for segment in segments):
            halting = halting if halting.kind == "length" else NoHaltingConfig()
            signal = NoSignalConfig() if signal.kind == "coordinates" else signal
        if halting.kind == "length":
            by_time = {"modulation": NoModulationConfig()}
            segments = [one.model_copy(update=by_time) if one.modulation.kind == "by_time" else one for one in segments]
        settings: dict[str, Any] = {
            "n_steps": n_steps,
            "steps_per_round": steps_per_round,
            "segments": segments,
            "norm": norm,
            "positions": signal,
            "relative": relative,
            "self_attention": self._sub("self_attention", n_steps, steps_per_round, shared, relative),
            "ffn": ffn,
            "sparse_layer": draw(sparse_layers(n_steps)) if self._has_experts and not self._fully_shared else None,
            "halting": halting,
        }
        if settings["sparse_layer"] or all(
            settings[kind].kind not in ("dense", "experts") or settings[kind].is_absent
            for kind in ("self_attention", "ffn")
        ):
            segments = [one.model_copy(update={"delta_rank": 0}) for one in segments]
        if norm.placement == "scores":
            nothing = {"delta_rank": 0, "modulation": NoModulationConfig()}
            segments = [one.model_copy(update=nothing) for one in segments]
        settings["segments"] = segments
        settings |= _more_of_attention(settings, self._fully_shared, self._has_values)
        if name == "decoder_of_pair":
            cross = self._sub("cross_attention", n_steps, steps_per_round, {}, relative)
            return DecoderConfig(cross_attention=cross, **settings)
        return StackConfig(**settings)

    def _where_norms_are(self) -> dict[str, Any]:
        draw = self._draw
        placement, final = draw(st.sampled_from(self._placements)), draw(st.sampled_from([None, None, True, False]))
        first = (
            self._fully_shared
            or placement not in ("pre", "peri", "sandwich")
            or draw(st.sampled_from([True, True, False]))
        )
        return {"placement": placement, "embedding": draw(st.booleans()), "final": final, "first": first}

    def pair(self) -> tuple[StackConfig, DecoderConfig]:
        """Draw an encoder and a decoder that may serve themselves from the same banks."""
        draw = self._draw
        encoder: StackConfig = self.draw("encoder")
        shared: dict[str, Any] = {}
        kinds: list[Kind] = ["self_attention", "ffn"]
        for kind in kinds:
            if draw(st.integers(0, 2)) == 0:
                bank = draw(st.sampled_from(["encoder", "both"]))
                sub = getattr(encoder, kind).model_copy(update={"bank": bank})
                encoder = encoder.model_copy(update={kind: sub})
                shared |= {kind: sub.model_dump(exclude={"share", "n_unique", "share_norm"}), "norm": encoder.norm}
                if kind == "self_attention" and (encoder.relative.kind == "window" or encoder.is_rotary):
                    shared["relative"] = encoder.relative
        if "self_attention" in shared and not encoder.is_rotary:
            # An odd head width does not fit rotary positions, and a window's table belongs to the weights.
            shared.setdefault("relative", draw(st.sampled_from([NoRelativeConfig(), BUCKETS])))
        return encoder, self.draw("decoder_of_pair", shared)

    def _sub(
        self, kind: Kind, n_steps: int, steps_per_round: int, shared: dict[str, Any], relative: RelativeConfig
    ) -> SubLayerConfig:
        draw = self._draw
        spread = draw(spreads(n_steps, steps_per_round, self._fully_shared))
        if kind in shared:
            own = shared[kind]
        elif kind == "ffn":
            own = draw(feed_forwards(has_experts=self._has_experts))
        else:
            is_self = kind == "self_attention"
            given = self._d_model, relative if is_self else NoRelativeConfig()
            own = draw(attentions(*given, has_experts=self._has_experts, has_head_experts=is_self))
        return (FEED_FORWARDS if kind == "ffn" else ATTENTIONS)[own["kind"]](**spread, **own)


def _more_of_attention(settings: dict[str, Any], fully_shared: bool, has_values: bool) -> dict[str, Any]:
    """Choose tables of values for a fourth of the stacks, and an epsilon of their own for some norms of keys.

    They follow from the other settings of the stack: one more draw would turn every model after it into another one.
    """
    choose = random.Random(repr(settings))
    attention = settings["self_attention"]
    changed: dict[str, Any] = {}
    if attention.qk_norm != "none" and attention.bank is None and choose.randrange(2):
        changed["self_attention"] = attention.model_copy(update={"qk_norm_eps": 1e-2})
    of_steps = attention.sets(settings["n_steps"])
    if has_values and not choose.randrange(4) and any(one is not None for one in of_steps):
        tables = [0] if fully_shared else [None, 0, 1]
        share = [None if one is None else choose.choice(tables) for one in of_steps]
        if any(one is not None for one in share):
            gate_width = choose.randint(1, 4)
            changed["value_embeddings"] = ValueEmbeddingsConfig(share=without_gaps(share), gate_width=gate_width)
    return changed


# --- models and batches ----------------------------------------------------------------------------------------------


def random_model(config: ModelConfig, seed: int = 0) -> Model:
    """Build a float64 model in evaluation mode whose every parameter is random: no zero table, no unit norm.

    Temperatures stay above their floor, so that gates are neither all 0 and 1 nor without a gradient. Halting units are
    far from constant, and from each other, so that tokens halt in every round. Gates made of times stay near those that
    are learned: they are made of 256 sinusoids.
    """
    return built(lambda: _random_model(config, seed))


def _random_model(config: ModelConfig, seed: int) -> Model:
    torch.manual_seed(seed)
    model = build_model(config).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.5)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1.0)
            if name.endswith("router.tau"):
                parameter.abs_().add_(0.2)
            if ".halting." in name:
                parameter.mul_(3.0 if parameter.ndim > 1 else 5.0)
            if "banks.time." in name and parameter.ndim > 1:
                parameter.mul_(0.2)
    return model


@st.composite
def sentences(
    draw: st.DrawFn, config: Seq2SeqConfig | LanguageModelConfig, max_sentences: int = 3, max_length: int = 6
) -> list[Sentence]:
    """Draw one to `max_sentences` sentences of ragged lengths, one token among them.

    Prefix language models get pairs as one sequence; causal ones texts or such pairs.
    """
    target_rows = config.vocab_size if isinstance(config, LanguageModelConfig) else config.target_vocab_size

    def ids(rows: int | None, least: int) -> list[int]:
        assert rows is not None
        return draw(st.lists(st.integers(EOS, rows - 1), min_size=least, max_size=max_length - 1))

    is_joined = isinstance(config, LanguageModelConfig) and (config.mask == "prefix" or draw(st.booleans()))
    drawn = []
    for _ in range(draw(st.integers(1, max_sentences))):
        if is_joined:
            prefix = [*ids(target_rows, 0), EOS]
            drawn.append(Sentence(None, [*prefix, BOS, *ids(target_rows, 0)], len(prefix)))
            continue
        source = None if isinstance(config, LanguageModelConfig) else [*ids(config.source_vocab_size, 0), EOS]
        drawn.append(Sentence(source, [BOS, *ids(target_rows, 0)]))
    return drawn


@st.composite
def texts(draw: st.DrawFn, config: EncoderConfig, max_sentences: int = 3) -> list[Sentence]:
    """Draw texts behind a begin symbol and before an end symbol; before a passage stands a question of some tokens."""
    assert config.vocab_size is not None
    ids = st.lists(st.integers(EOS, config.vocab_size - 1), min_size=2, max_size=5)
    drawn = [[BOS, *draw(ids), EOS] for _ in range(draw(st.integers(1, max_sentences)))]
    return [Sentence(None, text, draw(st.integers(1, len(text) - 2))) for text in drawn]


def right_padded(batch: Sequence[Sentence], extra: int = 0, fill: int = PAD) -> Batch:
    """Put sentences side by side, padding (with `extra` more columns of it) on the right."""
    return _side_by_side(batch, lambda ids, width: ids + [None] * (width - len(ids)), extra, fill, with_positions=False)


def left_padded(batch: Sequence[Sentence], extra: int = 0, fill: int = PAD) -> Batch:
    """Put sentences side by side, padding on the left; positions count real tokens."""
    return _side_by_side(batch, lambda ids, width: [None] * (width - len(ids)) + ids, extra, fill, with_positions=True)


Pad = Callable[[list[int | None], int], list[int | None]]


def _side_by_side(batch: Sequence[Sentence], pad: Pad, extra: int, fill: int, with_positions: bool) -> Batch:
    def tokens(rows: list[list[int]]) -> Tokens:
        width = max(map(len, rows)) + extra
        padded = [pad(list(row), width) for row in rows]
        keep = torch.tensor([[i is not None for i in row] for row in padded])
        ids = torch.tensor([[fill if i is None else i for i in row] for row in padded])
        return Tokens(ids, keep, (keep.long().cumsum(1) - 1).clamp_min(0) if with_positions else None)

    target = tokens([s.target for s in batch])
    labels = tokens([[*s.target[1:], EOS] for s in batch]).ids_BT
    source = None if batch[0].source is None else tokens([s.source or [] for s in batch])
    prefixes = None if batch[0].n_prefix is None else torch.tensor([s.n_prefix for s in batch])
    return Batch(target=target, labels_BT=labels, loss_mask_BT=target.keep_BT, source=source, prefix_lengths_B=prefixes)
