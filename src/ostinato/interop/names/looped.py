"""Names of looped language models in public weights."""

from __future__ import annotations

from ostinato.config.model import LanguageModelConfig
from ostinato.config.sub_layers import DenseFeedForwardConfig
from ostinato.interop.names.decoders import attention_rules
from ostinato.interop.weights import Part, Rule, Table, rules_of_layers


def ouro(config: LanguageModelConfig) -> Table:
    """Return the names of Ouro: layers with a norm before and behind every sub-layer, a norm a round, a gate."""
    stack, layer = config.decoder, "model.layers.{i}"
    assert isinstance(stack.ffn, DenseFeedForwardConfig)
    hidden = [Part(f"{layer}.mlp.{name}_proj.weight", size=stack.ffn.d_ff) for name in ("gate", "up")]
    of_layer = [
        *attention_rules(stack.self_attention, config.d_model, f"{layer}.self_attn", "decoder_{i}"),
        Rule("banks.norm.self_attention_decoder_{i}.weight", f"{layer}.input_layernorm.weight"),
        Rule("banks.norm.self_attention_decoder_{i}_output.weight", f"{layer}.input_layernorm_2.weight"),
        Rule("banks.norm.ffn_decoder_{i}.weight", f"{layer}.post_attention_layernorm.weight"),
        Rule("banks.norm.ffn_decoder_{i}_output.weight", f"{layer}.post_attention_layernorm_2.weight"),
        Rule("banks.ffn.decoder_{i}.up.weight", *hidden),
        Rule("banks.ffn.decoder_{i}.down.weight", f"{layer}.mlp.down_proj.weight"),
    ]
    rules = rules_of_layers([(i, i) for i in range(stack.n_steps)], of_layer)
    rules += [
        Rule("target_weight", "model.embed_tokens.weight"),
        Rule("output_weight", "lm_head.weight"),
        Rule("banks.norm.round_decoder_0.weight", "model.norm.weight"),
        Rule("banks.halting.decoder.map.weight", "model.early_exit_gate.weight"),
        Rule("banks.halting.decoder.map.bias", "model.early_exit_gate.bias"),
    ]
    return Table(rules, ignored=("model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"))
