from __future__ import annotations

from typing import Any

import pytest

from ostinato.budget import count_parameters, kaplan_forward_flops
from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.config.positions import BucketsConfig, WindowConfig
from ostinato.config.stack import DecoderConfig, NormConfig, StackConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig
from ostinato.errors import ConfigError
from ostinato.plan import Scheme

MILLION = 1e6
# One Wide FFN: the vocabulary that its totals imply (section 2.4 of its specification).
WIDE_VOCABULARY = 50_600


def seq2seq(
    *,
    d_model: int = 1024,
    n_heads: int = 16,
    n_encoder: int = 6,
    n_decoder: int = 6,
    encoder_ffn: dict[str, Any] | None = None,
    decoder_ffn: dict[str, Any] | None = None,
    shares: tuple[Scheme, Scheme, Scheme] = ("individual", "individual", "individual"),
    vocabulary: int = WIDE_VOCABULARY,
    bias: bool = True,
) -> Seq2SeqConfig:
    """Return a post-norm model with one joint vocabulary; `shares`: encoder self, decoder self, decoder cross."""
    encoder_self, decoder_self, decoder_cross = (AttentionConfig(n_heads=n_heads, share=s, bias=bias) for s in shares)
    wide = {"d_ff": 4 * d_model}
    return Seq2SeqConfig(
        d_model=d_model,
        source_vocab_size=vocabulary,
        target_vocab_size=vocabulary,
        tie_embeddings="all",
        encoder=StackConfig(
            n_steps=n_encoder,
            self_attention=encoder_self,
            ffn=DenseFeedForwardConfig(**(wide | (encoder_ffn or {}))),
        ),
        decoder=DecoderConfig(
            n_steps=n_decoder,
            self_attention=decoder_self,
            cross_attention=decoder_cross,
            ffn=DenseFeedForwardConfig(**(wide | (decoder_ffn or {}))),
        ),
    )


ALL: dict[str, Any] = {"share": "all"}
NONE: dict[str, Any] = {"share": "none"}
ONE_SET: dict[str, Any] = {"share": "all", "bank": "both"}


def _cycle(n_unique: int, share: str = "cycle") -> dict[str, Any]:
    return {"share": share, "n_unique": n_unique}


# Tables 2, 3, 4 and 7 of One Wide FFN: feed-forwards of encoder and decoder, published total in millions.
BIG = {
    "Transformer Big": ({}, {}, 228),
    "SharedEnc": (ALL, {}, 186),
    "SharedDec": ({}, ALL, 186),
    "SharedEncSharedDec": (ALL, ALL, 144),
    "SharedEncDec": (ONE_SET, ONE_SET, 135.7),
    "NoEnc": (NONE, {}, 178),
    "NoDec": ({}, NONE, 178),
    "NoEncNoDec": (NONE, NONE, 127),
    "SharedEncNoDec": (ALL, NONE, 135.7),
    "NoEncSharedDec": (NONE, ALL, 136),
    "SharedEncNoDec, 24,576": (ALL | {"d_ff": 24_576}, NONE, 177.7),
    "One Wide FFN, 49,152": (ALL | {"d_ff": 49_152}, NONE, 228),
    "SharedEncNoDec, 98,304": (ALL | {"d_ff": 98_304}, NONE, 328.7),
    "Sequence M=2": (_cycle(2, "sequence"), {}, 194),
    "Sequence M=3": (_cycle(3, "sequence"), {}, 202),
    "Cycle M=2": (_cycle(2), {}, 194),
    "Cycle M=3": (_cycle(3), {}, 202),
    "Cycle Rev M=2": (_cycle(2, "cycle_rev"), {}, 194),
    "Cycle Rev M=3": (_cycle(3, "cycle_rev"), {}, 202),
}


@pytest.mark.parametrize("name", BIG)
def test_the_totals_of_one_wide_ffn_are_met_within_a_million(name: str) -> None:
    encoder_ffn, decoder_ffn, published = BIG[name]
    count = count_parameters(seq2seq(encoder_ffn=encoder_ffn, decoder_ffn=decoder_ffn))
    assert count.stored / MILLION == pytest.approx(published, abs=1.0)


# Table 8: which attention weights are shared over depth (encoder self, decoder self, decoder cross).
ATTENTION = {
    ("all", "all", "all"): 165,
    ("all", "all", "individual"): 186,
    ("all", "individual", "individual"): 207,
    ("individual", "all", "individual"): 207,
    ("individual", "all", "all"): 186,
    ("individual", "individual", "all"): 207,
}


@pytest.mark.parametrize("shares", ATTENTION)
def test_the_totals_with_shared_attention_are_met_within_a_million(shares: tuple[Scheme, Scheme, Scheme]) -> None:
    assert count_parameters(seq2seq(shares=shares)).stored / MILLION == pytest.approx(ATTENTION[shares], abs=1.0)


@pytest.mark.parametrize(
    ("sizes", "published"),
    [
        ({"d_model": 512, "n_heads": 8}, 70),
        ({"d_model": 512, "n_heads": 8, "encoder_ffn": ALL, "decoder_ffn": NONE}, 47),
        ({"d_model": 512, "n_heads": 8, "encoder_ffn": ALL | {"d_ff": 24_576}, "decoder_ffn": NONE}, 70),
        ({"d_model": 512, "n_heads": 8, "vocabulary": 39_000}, 64),
        ({"vocabulary": 240_000}, 422),
        ({"vocabulary": 240_000, "encoder_ffn": ALL, "decoder_ffn": NONE}, 330),
        ({"n_encoder": 12, "n_decoder": 2, "vocabulary": 50_000}, 236),
        ({"n_encoder": 12, "n_decoder": 2, "vocabulary": 50_000, "encoder_ffn": ALL, "decoder_ffn": NONE}, 127),
    ],
)
def test_the_totals_of_its_other_sizes_are_met_within_a_million(sizes: dict[str, Any], published: float) -> None:
    assert count_parameters(seq2seq(**sizes)).stored / MILLION == pytest.approx(published, abs=1.0)


@pytest.mark.parametrize(("ffn", "published"), [({}, 202), (ALL, 110), (ALL | {"d_ff": 49_152}, 202)])
def test_the_totals_of_its_decoder_only_models_are_met_within_a_million(ffn: dict[str, Any], published: float) -> None:
    config = LanguageModelConfig(
        d_model=1024,
        vocab_size=50_000,
        decoder=StackConfig(
            n_steps=12,
            self_attention=AttentionConfig(n_heads=16),
            ffn=DenseFeedForwardConfig(**({"d_ff": 4096} | ffn)),
        ),
    )
    assert count_parameters(config).stored / MILLION == pytest.approx(published, abs=1.0)


def test_the_base_universal_transformer_has_its_published_size() -> None:
    shares: tuple[Scheme, Scheme, Scheme] = ("all", "all", "all")
    count = count_parameters(seq2seq(shares=shares, encoder_ffn=ALL, decoder_ffn=ALL, vocabulary=32_000, bias=False))
    encoder = count.by_part["encoder.self_attention"] + count.by_part["encoder.ffn"]
    decoder = sum(n for part, n in count.by_part.items() if part.startswith("decoder."))
    assert encoder / MILLION == pytest.approx(12.6, abs=0.05)
    assert decoder / MILLION == pytest.approx(16.8, abs=0.05)
    assert 61 <= count.stored / MILLION <= 62.5


# --- by hand ---------------------------------------------------------------------------------------------------------

D, F, I = 6, 10, 8  # d_model, d_ff, and two heads of four


def _small(**settings: Any) -> LanguageModelConfig:
    attention = {"n_heads": 2, "d_head": 4, "bias": False}
    stack = {"n_steps": 3, "self_attention": attention, "ffn": {"d_ff": F, "bias": False}, "norm": {"kind": "rms"}}
    stack |= {key: stack.get(key, {}) | value if isinstance(value, dict) else value for key, value in settings.items()}
    return LanguageModelConfig.model_validate(
        {"d_model": D, "vocab_size": 7, "tie_embeddings": "output", "decoder": stack}
    )


ATTENTION_SIZE, FFN_SIZE = 4 * D * I, 2 * D * F


def test_stored_active_and_executed_differ_as_their_definitions_say() -> None:
    shared = count_parameters(_small(self_attention={"share": "all"}))
    assert shared.by_part == {
        "decoder.self_attention": ATTENTION_SIZE,
        "decoder.ffn": 3 * FFN_SIZE,
        "norms": D + 3 * D,
        "embeddings": 7 * D,
    }
    assert shared.stored == shared.active == ATTENTION_SIZE + 3 * FFN_SIZE + 4 * D + 7 * D
    # Once per use, one row of the embedding, and the whole output projection.
    assert shared.executed == 3 * (ATTENTION_SIZE + FFN_SIZE + 2 * D) + D + 7 * D


def test_a_separable_convolution_has_its_taps_and_maps_and_a_generated_token_touches_all_of_them() -> None:
    without = {"kind": "separable_conv", "kernel_in": 2, "kernel_out": 4, "share": "cycle", "n_unique": 2}
    count = count_parameters(_small(ffn=without))
    assert count.by_part["decoder.ffn"] == 2 * (2 * D + 4 * F + FFN_SIZE)
    assert count.active == count.stored
    with_bias = count_parameters(_small(ffn=without | {"bias": True}))
    assert with_bias.stored - count.stored == 2 * (F + D)
    assert with_bias.executed - count.executed == 3 * (F + D)


def test_a_generated_token_touches_neither_the_encoder_nor_the_projections_of_the_memory() -> None:
    attention = {"n_heads": 2, "d_head": 4}
    stack = {"n_steps": 2, "self_attention": attention, "ffn": {"d_ff": F}}
    config = Seq2SeqConfig.model_validate(
        {
            "d_model": D,
            "source_vocab_size": 9,
            "target_vocab_size": 7,
            "tie_embeddings": "none",
            "encoder": stack,
            "decoder": stack | {"cross_attention": attention | {"share": "all"}},
        }
    )
    attention_size, ffn_size = ATTENTION_SIZE + 3 * I + D, FFN_SIZE + F + D
    count = count_parameters(config)
    cross_touched = attention_size - 2 * (D * I + I)
    decoder = 2 * (attention_size + ffn_size + 4 * D) + cross_touched + 2 * D
    assert count.active == decoder + D + 7 * D
    encoder = 2 * (attention_size + ffn_size + 4 * D)
    assert count.stored == encoder + 2 * (attention_size + ffn_size + 4 * D) + attention_size + 2 * D + (9 + 7 + 7) * D
    assert count.by_part["output"] == 7 * D
    assert count.by_part["embeddings"] == (9 + 7) * D
    # The shared cross-attention and its norm run twice.
    assert count.executed == 2 * encoder + 2 * (attention_size + 2 * D) + D + D + 7 * D


def test_gates_biases_norms_and_tables_are_counted() -> None:
    plain = count_parameters(_small()).stored
    assert count_parameters(_small(ffn={"activation": "geglu"})).stored - plain == 3 * D * F
    assert count_parameters(_small(ffn={"bias": True})).stored - plain == 3 * (F + D)
    assert count_parameters(_small(self_attention={"bias": True})).stored - plain == 3 * (3 * I + D)
    assert count_parameters(_small(norm={"kind": "layer"})).stored - plain == 6 * D
    assert count_parameters(_small(norm={"placement": "pre"})).stored - plain == D
    shared_norm = count_parameters(_small(ffn={"share": "all"})).stored
    own_norms = count_parameters(_small(ffn={"share": "all", "share_norm": False})).stored
    assert own_norms - shared_norm == 2 * D
    # One window table per parameter set, one table of buckets per stack.
    assert count_parameters(_small(relative={"kind": "window", "window": 3})).by_part["positions"] == 3 * I * 7
    buckets = count_parameters(_small(relative={"kind": "buckets", "n_buckets": 8, "max_distance": 20}))
    assert buckets.by_part["positions"] == 8 * 2
    assert "positions" not in count_parameters(_small(relative={"kind": "rotary"})).by_part


def test_a_window_table_is_shared_with_its_weights_and_buckets_with_the_stack() -> None:
    shared = {"share": "all"}
    window = _small(self_attention=shared, relative={"kind": "window", "window": 3})
    assert isinstance(window.decoder.relative, WindowConfig)
    assert count_parameters(window).by_part["positions"] == I * 7
    individual = _small(relative={"kind": "buckets", "n_buckets": 8, "max_distance": 20})
    assert isinstance(individual.decoder.relative, BucketsConfig)
    assert count_parameters(individual).by_part["positions"] == 16


def test_more_rounds_at_call_time_change_what_is_executed_only() -> None:
    config = _small(self_attention={"share": "all"}, ffn={"share": "all"})
    three, ten = count_parameters(config), count_parameters(config, n_steps=10)
    assert (ten.stored, ten.active) == (three.stored, three.active)
    assert ten.executed - three.executed == 7 * (ATTENTION_SIZE + FFN_SIZE + 2 * D)


BORROWED: dict[str, tuple[dict[str, Any], dict[str, Any], int, int]] = {
    # settings of attention and of the segment; of a use that borrows keys: what it does not run, what it does not touch
    "plain": ({}, {}, 2 * D * I, 0),
    "biases": ({"bias": True}, {}, 2 * D * I + 2 * I, 0),
    "norm of keys": ({"qk_norm": "rms"}, {}, 2 * D * I + 4, 0),
    "experts": ({"kind": "experts", "n_experts": 3, "top_k": 2}, {}, 2 * D * I, 0),
    # Keys, the values of two experts, and the router of both heads' values.
    "experts of heads": (
        {"kind": "head_experts", "n_experts": 8, "top_k": 2},
        {},
        D * I + 2 * D * I + 2 * 8 * D,
        2 * D * I,
    ),
    "deltas": ({}, {"delta_rank": 2}, 2 * D * I + 2 * 2 * (D + I), 2 * 2 * (D + I)),
}


@pytest.mark.parametrize("name", BORROWED)
def test_rounds_that_read_the_keys_of_the_first_one_run_nothing_that_makes_keys(name: str) -> None:
    attention, segment, not_run, not_touched = BORROWED[name]

    def looped(keys: str) -> LanguageModelConfig:
        segments = [{"n_steps": 3, "repeats": 4, "keys": keys} | segment]
        return _small(self_attention=attention, segments=segments)

    own, first = count_parameters(looped("own")), count_parameters(looped("first"))
    n_borrowing = 3 * 3
    assert own.by_part == first.by_part
    assert own.executed - first.executed == n_borrowing * not_run
    assert own.active - first.active == n_borrowing * not_touched
    macs = [kaplan_forward_flops(looped(keys), 10) for keys in ("own", "first")]
    assert macs[0] is not None
    assert macs[1] is not None
    assert macs[0] - macs[1] == 2 * n_borrowing * not_run


def test_a_bank_that_serves_both_stacks_is_a_part_of_its_own() -> None:
    count = count_parameters(seq2seq(encoder_ffn=ONE_SET, decoder_ffn=ONE_SET))
    assert "encoder.ffn" not in count.by_part
    assert count.by_part["shared.ffn"] == 2 * 1024 * 4096 + 4096 + 1024


def test_an_open_vocabulary_is_named_or_passed() -> None:
    config = Seq2SeqConfig(encoder=StackConfig(norm=NormConfig(placement="pre")))
    with pytest.raises(ConfigError, match=r"model\.target_vocab_size is None: .*pass vocab_size"):
        count_parameters(config)
    passed = count_parameters(config, vocab_size=100)
    assert passed.by_part["embeddings"] == 200 * 512
    with pytest.raises(ConfigError, match=r"model\.vocab_size is 0"):
        count_parameters(LanguageModelConfig(), vocab_size=0)


def test_rounds_that_differ_cannot_be_run_for_another_number() -> None:
    with pytest.raises(ConfigError, match="n_steps is 4: the decoder has 3 rounds"):
        count_parameters(_small(), n_steps=4)
