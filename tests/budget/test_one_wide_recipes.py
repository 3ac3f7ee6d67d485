"""The recipes of One Wide FFN have the parameters that the paper prints."""

from __future__ import annotations

import pytest

from ostinato.budget import count_macs, count_parameters
from ostinato.config.model import Seq2SeqConfig
from ostinato.tasks.recipes import list_recipes, load_recipe
from ostinato.tasks.vocabulary import size_model

# Tables 2, 3, 4 and 6: millions of parameters, as printed.
PUBLISHED = {
    "big/baseline": 228,
    "big/shared-enc": 186,
    "big/shared-dec": 186,
    "big/shared-enc-shared-dec": 144,
    "big/shared-enc-dec": 136,
    "big/no-enc": 178,
    "big/no-dec": 178,
    "big/no-enc-no-dec": 127,
    "big/shared-enc-no-dec": 136,
    "big/no-enc-shared-dec": 136,
    "big/one-wide-24576": 177,
    "big/one-wide": 228,
    "big/one-wide-98304": 328,
    "base/baseline": 70,
    "base/shared-enc-no-dec": 47,
    "base/one-wide": 70,
    "decoder-only/baseline": 202,
    "decoder-only/shared-dec": 110,
    "decoder-only/one-wide": 202,
    "deep-shallow/baseline": 236,
    "deep-shallow/shared-enc-no-dec": 127,
    "deep-shallow/one-wide": 236,
    "en-ro/baseline": 64,
    "en-ro/shared-enc-no-dec": 41,
    "en-ro/one-wide": 64,
    "multilingual/baseline": 422,
    "multilingual/shared-enc-no-dec": 330,
    "multilingual/one-wide": 422,
}
# Table 7: several feed-forwards in the encoder. Table 8: attention shared by kind (encoder self, decoder self, cross).
SETTINGS = {
    ("model.encoder.ffn.share=sequence", "model.encoder.ffn.n_unique=2"): 194,
    ("model.encoder.ffn.share=cycle", "model.encoder.ffn.n_unique=3"): 202,
    ("model.encoder.ffn.share=cycle_rev", "model.encoder.ffn.n_unique=3"): 202,
    ("model.encoder.self_attention.share=all",): 207,
    ("model.encoder.self_attention.share=all", "model.decoder.self_attention.share=all"): 186,
    ("model.decoder.self_attention.share=all", "model.decoder.cross_attention.share=all"): 186,
}
VARIANTS = [name.removeprefix("big/") for name in PUBLISHED if name.startswith("big/") and name[-1].isalpha()]


def stored(name: str, *overrides: str) -> int:
    return count_parameters(size_model(load_recipe(f"one-wide-ffn/{name}", overrides)).model).stored


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_has_its_published_parameters_within_a_million(name: str) -> None:
    assert abs(stored(name) / 1e6 - PUBLISHED[name]) < 1.0


@pytest.mark.parametrize("settings", SETTINGS)
def test_settings_on_the_baseline_give_the_appendix_tables(settings: tuple[str, ...]) -> None:
    assert abs(stored("big/baseline", *settings) / 1e6 - SETTINGS[settings]) < 1.0


@pytest.mark.parametrize("size", ["big", "base", "deep-shallow", "en-ro", "multilingual"])
def test_every_size_has_every_variant_as_a_recipe(size: str) -> None:
    have = {info.name for info in list_recipes()}
    assert {f"one-wide-ffn/{size}/{variant}" for variant in VARIANTS} <= have


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name.endswith("/baseline")])
def test_no_variant_has_its_gradient_cut(name: str) -> None:
    """The gradient of shared weights is a sum over steps: one limit would cut it in some variants only."""
    assert load_recipe(f"one-wide-ffn/{name}").training.clip_norm is None


def test_any_translation_recipe_takes_every_variant_by_one_key() -> None:
    sizes = ("model.source_vocab_size=4000", "model.target_vocab_size=4000")
    base = load_recipe("multi30k/transformer", sizes).model
    assert isinstance(base, Seq2SeqConfig)
    for variant in VARIANTS:
        key = () if variant == "baseline" else (f"model.ffn_variant={variant}",)
        model = load_recipe("multi30k/transformer", [*sizes, *key]).model
        assert (count_parameters(model).stored < count_parameters(base).stored) == (variant != "baseline")


def test_equal_parameters_are_not_equal_compute() -> None:
    """The wide feed-forward runs at every encoder step: 6 x 12 d_ff a source token against 6, and none in decoding."""
    baseline, wide = (
        count_macs(size_model(load_recipe(f"one-wide-ffn/big/{name}")).model, 20, 20)
        for name in ("baseline", "one-wide")
    )
    assert wide.by_part["encoder.ffn"] == 12 * baseline.by_part["encoder.ffn"]
    assert "decoder.ffn" not in wide.by_part
    assert wide.per_generated_token < baseline.per_generated_token
    assert wide.per_source_token > 5 * baseline.per_source_token
