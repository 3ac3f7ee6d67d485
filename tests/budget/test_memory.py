from __future__ import annotations

from typing import Any

import pytest

from ostinato.budget import count_bytes
from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.errors import ConfigError

D, F, I, V = 6, 10, 8, 7
STEPS: dict[str, Any] = {"n_steps": 3, "self_attention": {"n_heads": 2, "d_head": 4}, "ffn": {"d_ff": F}}


def _language_model(**settings: Any) -> LanguageModelConfig:
    stack = STEPS | settings
    return LanguageModelConfig.model_validate({"d_model": D, "vocab_size": V, "dropout": 0.0, "decoder": stack})


def _seq2seq(share: str = "individual", **settings: Any) -> Seq2SeqConfig:
    cross = {"n_heads": 2, "d_head": 4, "share": share}
    return Seq2SeqConfig.model_validate(
        {
            "d_model": D,
            "source_vocab_size": V,
            "target_vocab_size": V,
            "encoder": STEPS,
            "decoder": STEPS | {"cross_attention": cross} | settings,
        }
    )


def test_keys_and_values_are_held_per_step_room_is_made_by_32_positions_and_hypotheses_move_between_two_buffers() -> (
    None
):
    at = {n: count_bytes(_language_model(), 0, n, batch_size=5, beam=4).cache for n in (1, 32, 33)}
    assert at[1] == at[32] == 2 * 4 * 3 * 2 * 5 * 4 * I * 32
    assert at[33] == 2 * at[32]
    shared = _language_model(self_attention={"n_heads": 2, "d_head": 4, "share": "all"})
    assert count_bytes(shared, 0, 32, batch_size=5, beam=4).cache == at[32]


def test_keys_and_values_of_the_source_are_held_per_set_and_never_per_hypothesis() -> None:
    parts = {
        (share, beam): count_bytes(_seq2seq(share), 11, 4, batch_size=2, beam=beam).by_part["cache"]
        for share in ("individual", "all")
        for beam in (1, 5)
    }
    one_set = 4 * 2 * 2 * 11 * I
    assert parts["individual", 1]["decoder.cross_attention"] == 3 * one_set
    assert parts["all", 1]["decoder.cross_attention"] == parts["all", 5]["decoder.cross_attention"] == one_set
    assert parts["all", 5]["memory"] == 4 * 2 * 11 * D
    assert parts["all", 5]["decoder.self_attention"] == 2 * 5 * parts["all", 1]["decoder.self_attention"]


def test_a_convolution_holds_the_inputs_it_will_see_again() -> None:
    conv = {"kind": "separable_conv", "d_ff": F, "kernel_in": 3, "kernel_out": 5}
    held = count_bytes(_language_model(ffn=conv), 0, 4, batch_size=2, beam=3).by_part["cache"]["decoder.ffn"]
    assert held == 4 * 3 * 2 * 3 * (D * 2 + F * 4)


def test_sharing_saves_bytes_of_weights_and_none_of_activations() -> None:
    own = count_bytes(_language_model(), 0, 9)
    shared = count_bytes(_language_model(ffn={"d_ff": F, "share": "all"}), 0, 9)
    assert own.weights - shared.weights == 4 * 2 * (2 * D * F + F + D + 2 * D)
    assert own.activations == shared.activations


def test_activations_by_hand() -> None:
    # Three post-norm steps over two sentences of nine tokens, without dropout.
    parts = count_bytes(_language_model(), 0, 9, batch_size=2).by_part["activations"]
    tokens = 2 * 9
    assert parts == {
        "decoder.norms": 4 * 3 * 2 * tokens * (D + 2),
        "decoder.self_attention": 4 * 3 * tokens * (D + 4 * I + 2 * 2),
        "decoder.ffn": 4 * 3 * tokens * (D + F),
        "embeddings": 8 * tokens,
        "output": tokens * (4 * D + 4 * V + 8),
    }


def test_activations_grow_with_the_batch_and_shrink_with_recomputed_steps_and_bfloat16() -> None:
    config = _seq2seq()
    one, eight = (count_bytes(config, 9, 12, batch_size=n).activations for n in (1, 8))
    assert eight == 8 * one
    large: dict[str, Any] = {"batch_size": 64}
    plain = count_bytes(config, 9, 12, **large)
    assert count_bytes(config, 9, 12, **large, checkpoint_activations=True).activations < plain.activations / 2
    half = count_bytes(config, 9, 12, **large, precision="bfloat16")
    assert plain.activations / 2 < half.activations < plain.activations
    # Weights stay float32 under autocast, and decoding does not autocast.
    assert (half.weights, half.cache) == (plain.weights, plain.cache)


def test_what_cannot_be_counted_is_named() -> None:
    with pytest.raises(ConfigError) as error:
        count_bytes(_seq2seq(), 0, 4, batch_size=0, beam=-1)
    assert [(p.key, p.value) for p in error.value.problems] == [("batch_size", 0), ("beam", -1), ("source_length", 0)]
    assert count_bytes(_language_model(), 0, 4).cache > 0
    with pytest.raises(ConfigError, match="n_steps is 5: the decoder has 3 rounds"):
        count_bytes(_language_model(), 0, 4, n_steps=5)
