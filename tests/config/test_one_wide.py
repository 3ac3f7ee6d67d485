"""The variants of One Wide FFN by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.budget import count_parameters
from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.config.one_wide import FfnVariant
from ostinato.config.stack import DecoderConfig, StackConfig
from ostinato.config.sub_layers import DenseFeedForwardConfig
from ostinato.errors import ConfigError

SIZES: dict[str, Any] = {"d_model": 16, "source_vocab_size": 11, "target_vocab_size": 11, "tie_embeddings": "all"}

# Table 1 and table 3 of the paper for 3 encoder and 2 decoder steps: which set every step uses.
TABLE: dict[FfnVariant, tuple[list[str | None], list[str | None]]] = {
    "shared-enc": (["encoder_0"] * 3, ["decoder_0", "decoder_1"]),
    "shared-dec": (["encoder_0", "encoder_1", "encoder_2"], ["decoder_0"] * 2),
    "shared-enc-shared-dec": (["encoder_0"] * 3, ["decoder_0"] * 2),
    "shared-enc-dec": (["both_0"] * 3, ["both_0"] * 2),
    "no-enc": ([None] * 3, ["decoder_0", "decoder_1"]),
    "no-dec": (["encoder_0", "encoder_1", "encoder_2"], [None] * 2),
    "no-enc-no-dec": ([None] * 3, [None] * 2),
    "shared-enc-no-dec": (["encoder_0"] * 3, [None] * 2),
    "no-enc-shared-dec": ([None] * 3, ["decoder_0"] * 2),
    "one-wide": (["encoder_0"] * 3, [None] * 2),
}


def translator(variant: FfnVariant | None = None, encoder_ffn: int = 32, decoder_ffn: int = 32, **more: Any) -> Any:
    return Seq2SeqConfig(
        encoder=StackConfig(n_steps=3, ffn=DenseFeedForwardConfig(d_ff=encoder_ffn)),
        decoder=DecoderConfig(n_steps=2, ffn=DenseFeedForwardConfig(d_ff=decoder_ffn)),
        ffn_variant=variant,
        **SIZES,
        **more,
    )


def widths(config: Any) -> dict[str, int]:
    return {name: stack.ffn.d_ff for name, stack in config.stacks().items() if stack.ffn.share != "none"}


@pytest.mark.parametrize("variant", TABLE)
def test_every_variant_spreads_the_feed_forwards_as_the_papers_table_says(variant: FfnVariant) -> None:
    plans = translator(variant).plans()
    assert (list(plans["encoder"].row("ffn")), list(plans["decoder"].row("ffn"))) == TABLE[variant]
    assert None not in plans["encoder"].row("self_attention") + plans["decoder"].row("cross_attention")


def test_without_a_variant_the_stacks_are_those_given() -> None:
    config = translator()
    assert config.stacks() == {"encoder": config.encoder, "decoder": config.decoder}


def test_the_wide_feed_forward_is_as_wide_as_all_that_it_replaces() -> None:
    assert widths(translator("one-wide")) == {"encoder": 5 * 32}
    assert widths(translator("one-wide", encoder_ffn=32, decoder_ffn=20)) == {"encoder": 3 * 32 + 2 * 20}
    assert widths(translator("shared-enc-no-dec")) == {"encoder": 32}


def test_parity_leaves_the_feed_forwards_that_are_not_shared_as_they_are() -> None:
    assert widths(translator("shared-enc", shared_d_ff="parity")) == {"encoder": 3 * 32, "decoder": 32}
    assert widths(translator("shared-enc-dec", shared_d_ff="parity")) == {"encoder": 5 * 32, "decoder": 5 * 32}
    assert widths(translator("shared-enc-shared-dec", shared_d_ff="parity")) == {"encoder": 80, "decoder": 80}


def test_the_width_of_shared_feed_forwards_is_free() -> None:
    assert widths(translator("shared-enc", shared_d_ff=7)) == {"encoder": 7, "decoder": 32}
    assert widths(translator("one-wide", shared_d_ff=98)) == {"encoder": 98}


@given(
    variant=st.sampled_from([v for v in TABLE if "shared" in v or v == "one-wide"]),
    d_ff=st.integers(1, 60),
    n_encoder=st.integers(1, 5),
    n_decoder=st.integers(1, 5),
)
def test_at_parity_matrices_weigh_what_they_weighed(
    variant: FfnVariant, d_ff: int, n_encoder: int, n_decoder: int
) -> None:
    ffn = DenseFeedForwardConfig(d_ff=d_ff, bias=False)
    base = Seq2SeqConfig(
        encoder=StackConfig(n_steps=n_encoder, ffn=ffn), decoder=DecoderConfig(n_steps=n_decoder, ffn=ffn), **SIZES
    )
    wide = base.model_copy(update={"ffn_variant": variant, "shared_d_ff": "parity"})
    before, after = (
        sum(n for part, n in count_parameters(c).by_part.items() if part.endswith(".ffn")) for c in (base, wide)
    )
    n_shared = len({(s.ffn.bank or n, s.ffn.d_ff) for n, s in wide.stacks().items() if s.ffn.share == "all"})
    # One width for all shared sets: what does not divide stays over.
    assert abs(after - before) < 2 * 16 * n_shared


def test_a_decoder_only_model_has_its_own_three_variants() -> None:
    def model(variant: FfnVariant) -> LanguageModelConfig:
        decoder = StackConfig(n_steps=4, ffn=DenseFeedForwardConfig(d_ff=8))
        return LanguageModelConfig(d_model=16, vocab_size=9, decoder=decoder, ffn_variant=variant)

    assert model("shared-dec").plans()["decoder"].row("ffn") == ("decoder_0",) * 4
    assert model("no-dec").plans()["decoder"].row("ffn") == (None,) * 4
    assert widths(model("one-wide")) == {"decoder": 32}
    with pytest.raises(ConfigError, match=r"ffn_variant.*without an encoder has only shared-dec, no-dec, one-wide"):
        model("shared-enc")


def test_a_width_that_nothing_has_and_feed_forwards_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"shared_d_ff is 64: .*ffn_variant=no-dec shares none"):
        translator("no-dec", shared_d_ff=64)
    with pytest.raises(ConfigError, match=r"shared_d_ff is 64: .*ffn_variant=null shares none"):
        translator(shared_d_ff=64)
    without = DecoderConfig(n_steps=2, ffn=DenseFeedForwardConfig(share="none"))
    with pytest.raises(ConfigError, match=r"takes the feed-forwards of decoder, which has none"):
        Seq2SeqConfig(decoder=without, ffn_variant="one-wide", **SIZES)


def test_a_list_of_absent_feed_forwards_has_none_to_share() -> None:
    absent = StackConfig(n_steps=3, ffn=DenseFeedForwardConfig(share=[None, None, None]))
    with pytest.raises(ConfigError, match="takes the feed-forwards of encoder, which has none"):
        Seq2SeqConfig(encoder=absent, ffn_variant="shared-enc", **SIZES)


def test_a_bank_named_after_the_other_stack_would_mix_what_a_variant_keeps_apart() -> None:
    ffn = DenseFeedForwardConfig(d_ff=8, bank="encoder")
    decoder = DecoderConfig(n_steps=3, ffn=ffn)
    encoder = StackConfig(n_steps=3, ffn=DenseFeedForwardConfig(d_ff=8))
    Seq2SeqConfig(encoder=encoder, decoder=decoder, **SIZES)
    with pytest.raises(ConfigError, match=r"decoder.ffn.bank is 'encoder': is the name of the other stack's own sets"):
        Seq2SeqConfig(encoder=encoder, decoder=decoder, ffn_variant="shared-enc", **SIZES)


def test_parity_without_room_is_refused() -> None:
    ffn = DenseFeedForwardConfig(d_ff=8, bank="common")
    with pytest.raises(ConfigError, match="leaves no width for the shared feed-forwards"):
        Seq2SeqConfig(
            encoder=StackConfig(n_steps=2, ffn=ffn),
            decoder=DecoderConfig(n_steps=3, ffn=ffn),
            ffn_variant="shared-enc",
            shared_d_ff="parity",
            **SIZES,
        )


def test_one_set_for_both_stacks_needs_one_width() -> None:
    with pytest.raises(ConfigError, match="bank 'both' serves both stacks"):
        translator("shared-enc-dec", encoder_ffn=32, decoder_ffn=20)
    assert widths(translator("shared-enc-dec", 32, 20, shared_d_ff=24)) == {"encoder": 24, "decoder": 24}


def test_two_sets_stay_two_where_both_stacks_named_one_bank() -> None:
    ffn = DenseFeedForwardConfig(d_ff=8, bank="common")
    config = Seq2SeqConfig(
        encoder=StackConfig(n_steps=3, ffn=ffn),
        decoder=DecoderConfig(n_steps=2, ffn=ffn),
        ffn_variant="shared-enc-shared-dec",
        **SIZES,
    )
    assert config.plans()["encoder"].names("ffn") != config.plans()["decoder"].names("ffn")
