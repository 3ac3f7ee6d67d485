from __future__ import annotations

from typing import Any

import pytest

from ostinato.budget import MacCounter, count_macs
from ostinato.budget.products import products, use_products
from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.errors import ConfigError

MILLION = 1e6


def _published(d_model: int, n_heads: int, d_ff: int, **ffn: Any) -> Seq2SeqConfig:
    attention = {"n_heads": n_heads}
    stack = {"n_steps": 6, "self_attention": attention, "ffn": {"d_ff": d_ff} | ffn}
    return Seq2SeqConfig.model_validate(
        {
            "d_model": d_model,
            "source_vocab_size": 32_000,
            "target_vocab_size": 32_000,
            "tie_embeddings": "all",
            "encoder": stack,
            "decoder": stack | {"cross_attention": attention},
        }
    )


@pytest.mark.parametrize(("sizes", "published"), [((512, 8, 2048), 604), ((1024, 16, 4096), 2090)])
def test_the_macs_of_sut_table_1_are_met(sizes: tuple[int, int, int], published: float) -> None:
    # Their column is a pass over 10 source and 10 target tokens, attention scores not counted.
    count = count_macs(_published(*sizes), source_length=10, target_length=10)
    assert count.without_attention / MILLION == pytest.approx(published, abs=1.0)


def test_the_tokens_of_the_base_transformer_cost_what_its_formulas_say() -> None:
    count = count_macs(_published(512, 8, 2048), source_length=10, target_length=10)
    d, f = 512, 2048
    scores = 6 * 2 * 10 * d
    keys_values = 6 * 2 * d * d
    assert count.per_source_token == 6 * (4 * d * d + 2 * d * f) + scores + keys_values
    assert count.per_target_token == 6 * (6 * d * d + 2 * d * f) + 2 * scores + d * 32_000
    assert count.total == 10 * (count.per_source_token + count.per_target_token)


def test_sharing_weights_saves_no_macs_but_the_keys_and_values_of_cross_attention() -> None:
    individual, shared = _stacks("individual"), _stacks("all")
    before, after = (count_macs(config, source_length=7, target_length=5) for config in (individual, shared))
    assert before.by_part.keys() == after.by_part.keys()
    changed = {part for part in before.by_part if before.by_part[part] != after.by_part[part]}
    assert changed == {"decoder.cross_attention.projections"}
    # Three sets make keys and values of seven source tokens, or one does.
    assert before.total - after.total == 2 * 2 * 12 * 12 * 7


def _stacks(share: str) -> Seq2SeqConfig:
    attention = {"n_heads": 3, "share": share}
    stack = {"n_steps": 3, "self_attention": attention, "ffn": {"d_ff": 20, "share": share}}
    return Seq2SeqConfig.model_validate(
        {"d_model": 12, "target_vocab_size": 9, "encoder": stack, "decoder": stack | {"cross_attention": attention}}
    )


D, F, I, W = 6, 10, 8, 3


def _small(**settings: Any) -> LanguageModelConfig:
    stack = {"n_steps": 2, "self_attention": {"n_heads": 2, "d_head": 4}, "ffn": {"d_ff": F}}
    return LanguageModelConfig.model_validate({"d_model": D, "vocab_size": 7, "decoder": stack | settings})


def test_every_part_is_what_its_formula_says() -> None:
    count = count_macs(_small(relative={"kind": "window", "window": W}), source_length=99, target_length=5)
    assert count.by_part == {
        "decoder.self_attention.projections": 2 * 4 * D * I * 5,
        "decoder.self_attention.scores": 2 * 2 * I * 5 * 5,
        "decoder.self_attention.positions": 2 * I * (2 * W + 1) * 5,
        "decoder.ffn": 2 * 2 * D * F * 5,
        "output": D * 7 * 5,
    }
    assert count.total == sum(count.by_part.values())
    assert count.per_source_token == 0
    assert count.per_token * 5 == count.total
    gated = count_macs(_small(ffn={"d_ff": F, "activation": "geglu"}), source_length=0, target_length=5)
    assert gated.by_part["decoder.ffn"] == 2 * 3 * D * F * 5
    convolved = count_macs(_small(ffn={"kind": "separable_conv", "d_ff": F, "kernel_out": 4}), 0, 5)
    assert convolved.by_part["decoder.ffn"] == 2 * (3 * D + 4 * F + 2 * D * F) * 5


def test_a_generated_token_pays_for_its_context_only() -> None:
    config = _small()
    at = {n: count_macs(config, 0, 20, context=n).per_generated_token for n in (1, 2, 20)}
    assert at[2] - at[1] == 2 * 2 * I
    assert at[20] == count_macs(config, 0, 20).per_generated_token == count_macs(config, 0, 20).per_target_token


def test_a_sub_layer_that_is_absent_costs_nothing() -> None:
    none = count_macs(_small(ffn={"share": "none"}), 0, 5)
    assert "decoder.ffn" not in none.by_part
    one = count_macs(_small(ffn={"d_ff": F, "share": [None, 0]}), 0, 5)
    assert one.by_part["decoder.ffn"] == 2 * D * F * 5


def test_more_rounds_cost_in_proportion() -> None:
    shared = {"n_heads": 2, "d_head": 4, "share": "all"}
    config = _small(self_attention=shared, ffn={"d_ff": F, "share": "all"})
    two, six = count_macs(config, 0, 5), count_macs(config, 0, 5, n_steps=6)
    assert six.total - six.by_part["output"] == 3 * (two.total - two.by_part["output"])


def test_impossible_questions_are_refused_with_the_value() -> None:
    with pytest.raises(ConfigError, match="target_length is 0: a sentence has at least one token"):
        count_macs(_small(), 0, 0)
    with pytest.raises(ConfigError, match="source_length is -1"):
        count_macs(_stacks("all"), -1, 4)
    with pytest.raises(ConfigError, match=r"model\.target_vocab_size is None"):
        count_macs(Seq2SeqConfig(), 4, 4)
    assert count_macs(Seq2SeqConfig(), 4, 4, vocab_size=10).by_part["output"] == 4 * 512 * 10


def test_rounds_by_stack_cost_what_models_of_so_many_steps_cost() -> None:
    config = _stacks("all")
    deeper = config.model_copy(update={"encoder": config.encoder.model_copy(update={"n_steps": 7})})
    assert products(config, {"encoder": 7}, None) == products(deeper, None, None)
    assert products(config, {"encoder": 7, "decoder": 7}, None) == products(config, 7, None)
    depths = {"encoder": [0, 0, 0, 0, 0, 0, 4], "decoder": [0, 0, 5]}
    assert MacCounter(config, n_steps={"encoder": 7}).count(depths) == MacCounter(deeper).count(depths)
    with pytest.raises(ConfigError, match="different parameter sets"):
        products(_stacks("individual"), {"decoder": 4}, None)


def test_the_products_of_uses_are_those_of_the_pass_without_its_output() -> None:
    config = _stacks("individual")
    of_uses = [product for _, own in use_products(config) for product in own]
    of_pass = [product for own in products(config, None, None).values() for product in own]
    assert [product for product in of_pass if product.part != "output" and "halting" not in product.part] == of_uses
