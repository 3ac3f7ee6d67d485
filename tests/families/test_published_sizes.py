"""Recipes at published sizes have as many parameters as follow from the published settings: the published totals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from family import families
from twins import TWINS

from ostinato.budget import count_parameters
from ostinato.config.schema import leaves
from ostinato.models import build_model
from ostinato.tasks.recipes import find_recipe, list_recipes, load_recipe


def attention(d: int, inner: int, *, bias: bool) -> int:
    """Four maps."""
    return 4 * d * inner + (3 * inner + d if bias else 0)


def feed_forward(d: int, f: int, *, bias: bool, gated: bool = False) -> int:
    """Two maps, or three with a gate."""
    return (3 if gated else 2) * d * f + ((2 if gated else 1) * f + d if bias else 0)


def layer(d: int, f: int, n_norms: int = 2, n_attentions: int = 1) -> int:
    """A layer with biases everywhere and layer norms."""
    return n_attentions * attention(d, d, bias=True) + feed_forward(d, f, bias=True) + n_norms * 2 * d


GPT2 = 50_257 * 768 + 1024 * 768 + 12 * layer(768, 3072) + 2 * 768
BERT_EMBEDDINGS = (30_522 + 512 + 2) * 768 + 2 * 768
BERT_HEAD = 768 * 768 + 768 + 2 * 768 + 30_522
BERT = BERT_EMBEDDINGS + 12 * layer(768, 3072) + BERT_HEAD
ALBERT_EMBEDDINGS = (30_000 + 512 + 2) * 128 + 2 * 128 + 128 * 768 + 768
ALBERT = ALBERT_EMBEDDINGS + layer(768, 3072) + 768 * 128 + 128 + 2 * 128 + 30_000
BART_SIDES = 2 * (1026 * 768 + 2 * 768) + 6 * layer(768, 3072) + 6 * layer(768, 3072, n_norms=3, n_attentions=2)
BART = 50_265 * 768 + BART_SIDES + 50_265
MARIAN = 58_101 * 512 + 6 * layer(512, 2048) + 6 * layer(512, 2048, n_norms=3, n_attentions=2) + 58_101


def t5(d: int, inner: int, f: int, n_steps: int, n_heads: int, *, gated: bool) -> int:
    """Both stacks: no biases, RMS norms, a table of 32 buckets each."""
    reader = attention(d, inner, bias=False) + feed_forward(d, f, bias=False, gated=gated) + 2 * d
    writer = reader + attention(d, inner, bias=False) + d
    return n_steps * (reader + writer) + 2 * (32 * n_heads + d)


T5 = 32_128 * 512 + t5(512, 512, 2048, 6, 8, gated=False)
T5_GATED = 2 * 32_128 * 512 + t5(512, 384, 1024, 8, 6, gated=True)
# No biases; a norm of the embeddings, two a layer less the first, a final one, and the head's.
MODERNBERT_LAYER = attention(768, 768, bias=False) + feed_forward(768, 1152, bias=False, gated=True)
MODERNBERT = 50_368 * 768 + 22 * MODERNBERT_LAYER + (1 + 43 + 1 + 1) * 768 + 768 * 768 + 50_368


def grouped(d: int, heads: int, kv_heads: int, width: int) -> int:
    """Queries and output of all heads, keys and values of some."""
    return 2 * d * heads * width + 2 * d * kv_heads * width


def rms_layers(d: int, n: int, parts: int) -> int:
    """n layers with two RMS norms each, and one behind them."""
    return n * (parts + 2 * d) + d


LLAMA = 128_256 * 2048 + rms_layers(
    2048, 16, grouped(2048, 32, 8, 64) + feed_forward(2048, 8192, bias=False, gated=True)
)
QWEN3_LAYER = grouped(1024, 16, 8, 128) + 2 * 128 + feed_forward(1024, 3072, bias=False, gated=True)
QWEN3 = 151_936 * 1024 + rms_layers(1024, 28, QWEN3_LAYER)
MIXTRAL_EXPERTS = 8 * (feed_forward(4096, 14_336, bias=False, gated=True) + 4096)
MIXTRAL = 2 * 32_000 * 4096 + rms_layers(4096, 32, grouped(4096, 32, 8, 128) + MIXTRAL_EXPERTS)
JETMOE_ATTENTION = 2 * 2048 * 2048 + 8 * (2 * 2048 * 2048 + 2048) + 2048
JETMOE_EXPERTS = 8 * (feed_forward(2048, 5632, bias=False, gated=True) + 2048) + 2048
JETMOE = 32_000 * 2048 + rms_layers(2048, 24, JETMOE_ATTENTION + JETMOE_EXPERTS)

SIZES = {
    # recipe: (by equations, published; what ours has beside it: buffers of theirs that are parameters of ours)
    "dense/gpt2-124m": (GPT2, 124_439_808, 0),
    "dense/bert-base": (BERT, 109_514_298, 0),
    "dense/albert-base": (ALBERT, 11_221_680, 0),
    "dense/bart-base": (BART, 139_420_416, 50_265),
    "dense/marian-opus": (MARIAN, 73_886_208, 58_101),
    "dense/t5-small": (T5, 60_506_624, 0),
    "dense/t5-v1.1-small": (T5_GATED, 76_961_152, 0),
    "dense/modernbert-base": (MODERNBERT, 149_655_232, 0),
    "dense/llama-3.2-1b": (LLAMA, 1_235_814_400, 0),
    "dense/qwen3-0.6b": (QWEN3, 596_049_920, 0),
    "dense/mixtral-8x7b": (MIXTRAL, 46_702_792_704, 0),
    "dense/jetmoe-8b": (JETMOE, 8_522_237_952, 0),
}

OURO = 2 * 49_152 * 2048 + 24 * (4 * 2048**2 + 3 * 2048 * 5632 + 4 * 2048) + 2048 + 2048 + 1
HUGINN_LAYER = 4 * 5280**2 + 2 * 5280 + 3 * 5280 * 17_920 + 4 * 5280
HUGINN = 65_536 * 5280 + 8 * HUGINN_LAYER + 2 * 5280**2 + 5280
# No biases, also of norms; the published vocabulary is filled up to 50,304.
COTFORMER_LAYER = attention(768, 768, bias=False) + feed_forward(768, 3072, bias=False) + 2 * 768
COTFORMER = 50_257 * 768 + 24 * COTFORMER_LAYER + 768
LN_COTFORMER = COTFORMER + 5 * 768 + 768
# SmolLM-360M has 32 such layers; a router for each of three rounds.
MOR_LAYER = grouped(960, 15, 5, 64) + feed_forward(960, 2560, bias=False, gated=True)
SMOLLM = 49_152 * 960 + rms_layers(960, 32, MOR_LAYER)
MOR = SMOLLM - 20 * (MOR_LAYER + 2 * 960) + 3 * 960
# Sizes of which no total is published: gates and scales of 6 sub-layers, and two functions of a number.
LOOPFORMER_TIME = 6 * (2 * 2048**2 + 2 * 2048) + 2 * (256 * 2048 + 2048**2 + 2 * 2048)
LOOPFORMER = (50_257 + 1024) * 2048 + 3 * (4 * 2048**2 + 2 * 2048 * 5120) + LOOPFORMER_TIME + 2048
# Gemma 2B's layers are 110,104,576 weights each; rank 512 on seven maps, twice.
RELAXED_DELTAS = 512 * (2048 + 2048 + 2 * (2048 + 256) + 2048 + 2048 + 3 * (2048 + 16_384))
RELAXED = 256_000 * 2048 + 9 * (grouped(2048, 8, 1, 256) + 3 * 2048 * 16_384) + 18 * (RELAXED_DELTAS + 4096) + 2048
HRM_TEXT_LAYER = 5 * 1536**2 + 3 * 1536 * 4096
HRM_TEXT = 2 * 65_536 * 1536 + 32 * HRM_TEXT_LAYER + 1536
HRM_LAYER = 4 * 512**2 + 3 * 512 * 1536
# Of Sudoku: 11 symbols read and written, the map that writes them with a bias, and two states that stay as drawn.
OF_PUZZLES = 2 * 11 * 512 + 11 + 2 * 512


def moeut(d: int, heads: int, experts: int, of_heads: int, width: int, layers: int) -> int:
    """Dense queries and keys; experts of values and of outputs in heads, with routers; experts of 128; layer norms."""
    attention = 2 * d * heads * width + of_heads * 2 * d * heads * width + 2 * heads * of_heads * d
    return 2 * 8000 * d + 8000 + layers * (attention + experts * (2 * d * 128 + d) + 4 * d) + 2 * d


# No total is published: one table read and written, three of values, six layers, a map at both ends of the loop.
PARCAE_LAYERS = 6 * (attention(768, 768, bias=False) + feed_forward(768, 3072, bias=False)) + 3 * 32 * 6
PARCAE = 4 * 32_768 * 768 + PARCAE_LAYERS + 2 * 768**2 + 2 * 768 + 14 * 768

# TinyLlama's layers: 16 of 22, and a map of state and input.
RETROFIT_LAYER = grouped(2048, 32, 4, 64) + feed_forward(2048, 5632, bias=False, gated=True)
RETROFIT = 2 * 32_000 * 2048 + rms_layers(2048, 16, RETROFIT_LAYER) + 2 * 2048**2
# The published code prints 0.79 M, without positions; here are 1,000 words, read and written.
YANG = layer(256, 1024) + 2 * 256 + 203 * 256 + 2 * 1000 * 256 + 1000

VOCABULARIES = {
    "looped/trm-7m": ["model.vocab_size=11", "model.n_labels=11"],
    "looped/hrm-27m": ["model.vocab_size=11", "model.n_labels=11"],
    "looped/yang": ["model.vocab_size=1000"],
}
LOOPED = {
    "looped/retrofit-tinyllama": (RETROFIT, 844_171_264),
    "looped/yang": (YANG, 790_272 + 564_968),
    "looped/ouro-1.4b": (OURO, 1_434_652_673),
    "looped/huginn-3.5b": (HUGINN, 3_564_976_800),
    "looped/parcae-140m": (PARCAE, 144_323_136),
    "looped/cotformer": (COTFORMER, 208_504_320),
    "looped/ln-cotformer": (LN_COTFORMER, 208_508_928),
    "looped/adaptive-cotformer": (LN_COTFORMER + 4 * 768, 208_512_000),
    "looped/mor-360m": (MOR, 165_177_600),
    "looped/mor-token-360m": (MOR, 165_177_600),
    "looped/mod-360m": (SMOLLM + 16 * 960, 361_836_480),
    "looped/loopformer-3x8": (LOOPFORMER, 278_073_344),
    "looped/relaxed-recursive-2b": (RELAXED, 2_142_840_832),
    "looped/hrm-text-1b": (HRM_TEXT, 1_182_795_264),
    "looped/trm-7m": (2 * HRM_LAYER + OF_PUZZLES, 6_828_043),
    "looped/hrm-27m": (8 * HRM_LAYER + OF_PUZZLES, 27_275_275),
    "looped/moeut-44m": (moeut(412, 4, 155, 8, 82, 2), 44_345_792),
    "looped/moeut-244m": (moeut(1024, 4, 387, 10, 128, 2), 243_326_784),
    "looped/moeut-1b": (moeut(1536, 6, 565, 12, 128, 4), 1_040_319_296),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", LOOPED)
def test_a_looped_recipe_has_the_parameters_of_the_equations(name: str) -> None:
    by_equations, known = LOOPED[name]
    config = load_recipe(name, VOCABULARIES.get(name, [])).model
    assert count_parameters(config).stored == by_equations == known
    with torch.device("meta"):
        assert sum(p.numel() for p in build_model(config).parameters()) == known


@pytest.mark.sampled
@pytest.mark.parametrize("name", SIZES)
def test_a_recipe_has_the_published_parameters(name: str) -> None:
    by_equations, published, beside = SIZES[name]
    config = load_recipe(name).model
    assert by_equations == published + beside
    assert count_parameters(config).stored == by_equations
    with torch.device("meta"):
        assert sum(p.numel() for p in build_model(config).parameters()) == by_equations


@pytest.mark.parametrize("name", SIZES)
def test_the_reference_class_has_as_many(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    kinds = {
        "dense/gpt2-124m": ("GPT2LMHeadModel", {}),
        "dense/bert-base": ("BertForMaskedLM", {}),
        "dense/albert-base": (
            "AlbertForMaskedLM",
            {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
        ),
        "dense/bart-base": (
            "BartForConditionalGeneration",
            {
                "d_model": 768,
                "encoder_layers": 6,
                "decoder_layers": 6,
                "encoder_ffn_dim": 3072,
                "decoder_ffn_dim": 3072,
                "encoder_attention_heads": 12,
                "decoder_attention_heads": 12,
            },
        ),
        "dense/marian-opus": (
            "MarianMTModel",
            {
                "vocab_size": 58_101,
                "decoder_vocab_size": 58_101,
                "d_model": 512,
                "encoder_layers": 6,
                "decoder_layers": 6,
                "encoder_ffn_dim": 2048,
                "decoder_ffn_dim": 2048,
                "encoder_attention_heads": 8,
                "decoder_attention_heads": 8,
                "pad_token_id": 58_100,
                "decoder_start_token_id": 58_100,
            },
        ),
        "dense/t5-small": ("T5ForConditionalGeneration", {}),
        "dense/t5-v1.1-small": (
            "T5ForConditionalGeneration",
            {
                "d_ff": 1024,
                "num_layers": 8,
                "num_heads": 6,
                "feed_forward_proj": "gated-gelu",
            },
        ),
        "dense/modernbert-base": ("ModernBertForMaskedLM", {}),
        "dense/llama-3.2-1b": (
            "LlamaForCausalLM",
            {
                "vocab_size": 128_256,
                "hidden_size": 2048,
                "intermediate_size": 8192,
                "num_hidden_layers": 16,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "tie_word_embeddings": True,
            },
        ),
        "dense/qwen3-0.6b": (
            "Qwen3ForCausalLM",
            {
                "vocab_size": 151_936,
                "hidden_size": 1024,
                "intermediate_size": 3072,
                "num_hidden_layers": 28,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "tie_word_embeddings": True,
            },
        ),
        "dense/mixtral-8x7b": ("MixtralForCausalLM", {}),
        "dense/jetmoe-8b": ("JetMoeForCausalLM", {"num_hidden_layers": 24}),
    }
    class_name, settings = kinds[name]
    kind = getattr(transformers, class_name)
    config = kind.config_class(**settings)
    beside: tuple[str, ...] = ()
    if name == "dense/marian-opus":
        beside = ("embed_positions",)  # sinusoids, stored as parameters that nothing trains
    elif name == "dense/t5-v1.1-small":
        config.tie_word_embeddings = False  # its constructor ties all of them whatever it is given
        beside = ("embed_tokens",)  # which then are copies of the one that is stored
    with torch.device("meta"):
        model = kind(config)
    counted = [p.numel() for key, p in model.named_parameters() if not any(one in key for one in beside)]
    assert sum(counted) == SIZES[name][1]


OUR_SIZES = {
    "looped/iso-depth-r4": "width and vocabulary: the paper's are many",
    "looped/length": "all: the paper's are not known to us",
    "looped/mod-360m": "all: the paper's are not known to us; those of looped/mor-360m",
}
"""Recipes that toys are made of, and whose sizes are nevertheless our own; docs/families.md says so of each."""
ONE_OF_SEVERAL = {"looped/moeut-244m", "looped/moeut-1b"}
"""Published sizes whose toy is made of another one."""
NO_FAMILY = {
    "looped/small",
    "looped/novels",
    "looped/ouro-toy-gate",
    "looped/trm-sudoku",
    "looped/trm-maze",
    "looped/trm-arc",
    "looped/hrm-sudoku",
    "looped/hrm-maze",
    "looped/hrm-arc",
}
"""Recipes that stand for no family's size: of studies and puzzles, and a second stage."""
OTHER_IN_TOYS = {
    "dense/albert-toy": {"encoder.self_attention.share", "encoder.ffn.share"},  # groups of steps
    "dense/llama-toy": {"tie_embeddings"},  # as in Llama 3.1
}


def toys() -> dict[str, str]:
    """Return every recipe that is compared with a reference or a twin, and what it is made of."""
    compared = {family.recipe for family in families().values()} | {twin.recipe for twin in TWINS.values()}
    return {name: yaml.safe_load(find_recipe(name).read_text(encoding="utf-8"))["base"] for name in compared}


def test_every_published_size_has_a_toy_that_is_compared_and_every_toy_a_published_size() -> None:
    named = {recipe.name for recipe in list_recipes() if recipe.name.startswith(("dense/", "looped/"))}
    large = SIZES.keys() | LOOPED.keys() | OUR_SIZES.keys()
    assert named == toys().keys() | large | NO_FAMILY
    assert set(toys().values()) == large - ONE_OF_SEVERAL


def test_a_toy_is_what_it_is_made_of_but_for_numbers() -> None:
    for toy, large in toys().items():
        small, whole = (dict(leaves(without_numbers(load_recipe(name).model.model_dump()))) for name in (toy, large))
        other = {key for key in small.keys() | whole.keys() if small.get(key) != whole.get(key)}
        assert other == OTHER_IN_TOYS.get(toy, set()), toy


def without_numbers(value: Any) -> Any:
    """Return settings in which numbers, and those that are not given, are all alike; lists of them, too."""
    if isinstance(value, dict):
        return {key: without_numbers(one) for key, one in value.items()}
    if isinstance(value, list):
        found = [without_numbers(one) for one in value]
        return None if all(one is None for one in found) else found
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return None if is_number else value


def test_the_documents_say_whose_sizes_are_our_own_and_how_many_families_there_are() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "families.md").read_text(encoding="utf-8")
    ours = set(re.findall(r"`((?:dense|looped)/[\w.-]+)` \([^)]*ours", page))
    assert ours == OUR_SIZES.keys()
    n_families = len(re.findall(r"^\| [^|]+ \| `(?:dense|looped)/", page, re.M))
    (said,) = re.findall(r"(\d+) public families", (root / "README.md").read_text(encoding="utf-8"))
    assert int(said) == n_families
