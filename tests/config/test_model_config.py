from __future__ import annotations

import pytest

from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.config.positions import BucketsConfig, CoordinatesConfig, RotaryConfig, SinusoidalConfig, WindowConfig
from ostinato.config.schema import values_of
from ostinato.config.stack import DecoderConfig, NormConfig, StackConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig
from ostinato.errors import ConfigError

FFN = DenseFeedForwardConfig(share="all", bank="both", d_ff=32)


def shared(encoder: dict[str, object], decoder: dict[str, object]) -> Seq2SeqConfig:
    return Seq2SeqConfig(
        encoder=StackConfig(**({"ffn": FFN} | encoder)),  # type: ignore[arg-type]
        decoder=DecoderConfig(**({"ffn": FFN} | decoder)),  # type: ignore[arg-type]
    )


def lines(encoder: dict[str, object], decoder: dict[str, object]) -> list[str]:
    with pytest.raises(ConfigError) as error:
        shared(encoder, decoder)
    return str(error.value).splitlines()


def test_two_stacks_on_one_bank_must_agree_on_everything_that_shapes_its_entries() -> None:
    other = DenseFeedForwardConfig(share="all", bank="both", d_ff=48, activation="gelu")
    assert lines({}, {"ffn": other}) == [
        "decoder.ffn.activation is 'gelu': the ffn bank 'both' serves both stacks, and "
        "encoder.ffn.activation is 'relu'",
        "decoder.ffn.d_ff is 48: the ffn bank 'both' serves both stacks, and encoder.ffn.d_ff is 32",
    ]


def test_norms_must_agree_only_where_they_are_shared_with_the_weights() -> None:
    (line,) = lines({}, {"norm": NormConfig(kind="rms")})
    assert line.startswith("decoder.norm.kind is 'rms': the ffn bank 'both' serves both stacks, and encoder.norm.kind")
    own = DenseFeedForwardConfig(share="all", bank="both", d_ff=32, share_norm=False)
    config = shared({"ffn": own}, {"ffn": own, "norm": NormConfig(kind="rms")})
    assert config.plans()["encoder"].names("ffn") == config.plans()["decoder"].names("ffn") == ("both_0",)


def test_a_window_belongs_to_its_parameter_set() -> None:
    attention = AttentionConfig(share="all", bank="both")
    encoder = {"self_attention": attention, "relative": WindowConfig(window=2)}
    (line,) = lines(encoder, {"self_attention": attention, "relative": WindowConfig(window=3)})
    assert line.startswith("decoder.relative.window is 3: the self_attention bank 'both' serves both stacks")
    shared(encoder, {"self_attention": attention, "relative": RotaryConfig()})


def test_every_impossible_size_is_named_with_a_way_out() -> None:
    with pytest.raises(ConfigError) as error:
        Seq2SeqConfig(
            d_model=30,
            encoder=StackConfig(self_attention=AttentionConfig(n_heads=4)),
            decoder=DecoderConfig(
                self_attention=AttentionConfig(n_heads=2),
                relative=RotaryConfig(),
                cross_attention=AttentionConfig(n_heads=5),
            ),
        )
    assert str(error.value).splitlines() == [
        "encoder.self_attention.n_heads is 4: must divide model.d_model = 30 (nearest: 3), or set "
        "encoder.self_attention.d_head",
        "decoder.self_attention.d_head is 15: rotary positions need an even head width",
    ]


def test_schemes_and_buckets_that_cannot_be_laid_out_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"ffn.share is 'cycle': share 'cycle' needs n_unique in \[1, 6\]"):
        StackConfig(ffn=DenseFeedForwardConfig(share="cycle", n_unique=7))
    with pytest.raises(ConfigError, match="the list has 2 entries but there are 6 steps"):
        StackConfig(ffn=DenseFeedForwardConfig(share=[0, 1]))
    with pytest.raises(ConfigError, match=r"steps_per_round is 4: must divide n_steps = 6"):
        StackConfig(steps_per_round=4)
    with pytest.raises(ConfigError, match=r"max_distance is 16: must be larger than n_buckets / 2 = 16"):
        BucketsConfig(max_distance=16)


def test_a_feed_forward_that_names_no_kind_is_dense() -> None:
    stack = StackConfig.model_validate({"ffn": {"d_ff": 48}})
    assert stack.ffn == DenseFeedForwardConfig(d_ff=48)
    assert StackConfig.model_validate({"ffn": {"kind": "separable_conv"}}).ffn.kind == "separable_conv"


def decoder_only(**halting: object) -> LanguageModelConfig:
    return LanguageModelConfig(decoder=StackConfig(halting=halting))  # type: ignore[arg-type]


def test_rounds_by_length_without_a_source_are_refused_with_all_the_rules_that_such_a_model_can_have() -> None:
    with pytest.raises(ConfigError, match="needs a source") as error:
        decoder_only(kind="length")
    (line,) = str(error.value).splitlines()
    named = line.split("valid here: ")[1].split(", ")
    assert set(named) == {*values_of(StackConfig, "halting")} - {"length"}
    assert [decoder_only(kind=kind).decoder.halting.kind for kind in named] == named


def test_one_probability_for_a_causal_sentence_is_refused_with_the_scopes_that_it_can_have() -> None:
    with pytest.raises(ConfigError, match=r"would halt by what comes after it; valid here: token$"):
        decoder_only(kind="act", scope="global")
    assert decoder_only(kind="act", scope="token").decoder.halting.kind == "act"


@pytest.mark.parametrize(("of_source", "of_target"), [(0, 0), (3, 0), (3, 4)])
def test_random_offsets_are_shared_only_where_they_are_alike(of_source: int, of_target: int) -> None:
    def build(of_target: int) -> Seq2SeqConfig:
        return Seq2SeqConfig(
            random_offsets="shared",
            encoder=StackConfig(positions=CoordinatesConfig(random_offset=of_source)),
            decoder=DecoderConfig(positions=SinusoidalConfig(random_offset=of_target)),
        )

    with pytest.raises(ConfigError) as error:
        build(of_target)
    line = str(error.value)
    assert line.startswith("random_offsets is 'shared': needs encoder.positions.random_offset = decoder.positions")
    assert line.endswith(f"they are {of_source} and {of_target}")
    assert not of_source or build(of_source).random_offsets == "shared"
