"""Names of GPT-2 in public weights."""

from __future__ import annotations

from ostinato.config.model import LanguageModelConfig
from ostinato.interop.names.parts import both
from ostinato.interop.weights import Rule, Table, Transposed, rules_of_layers


def gpt2(config: LanguageModelConfig) -> Table:
    """Return the names of GPT-2, whose maps are stored as [in, out]."""
    layer, turned = "transformer.h.{i}", (Transposed(),)
    rules = [
        *both("banks.self_attention.decoder_{i}.qkv", f"{layer}.attn.c_attn", changes=turned),
        *both("banks.self_attention.decoder_{i}.out", f"{layer}.attn.c_proj", changes=turned),
        *both("banks.ffn.decoder_{i}.up", f"{layer}.mlp.c_fc", changes=turned),
        *both("banks.ffn.decoder_{i}.down", f"{layer}.mlp.c_proj", changes=turned),
        *both("banks.norm.self_attention_decoder_{i}", f"{layer}.ln_1"),
        *both("banks.norm.ffn_decoder_{i}", f"{layer}.ln_2"),
    ]
    return Table(
        [
            *rules_of_layers([(i, i) for i in range(config.decoder.n_steps)], rules),
            *both("banks.norm.final_decoder", "transformer.ln_f"),
            Rule("target_weight", "transformer.wte.weight"),
            Rule("banks.positions.decoder.weight", "transformer.wpe.weight"),
        ],
        tied={"lm_head.weight": "transformer.wte.weight"},
        ignored=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"),
    )
