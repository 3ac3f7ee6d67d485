"""Names of decoder-only models in public weights."""

from __future__ import annotations

from ostinato.config.experts import ExpertAttentionConfig, ExpertFeedForwardConfig
from ostinato.config.model import LanguageModelConfig
from ostinato.interop.names.parts import attention_rules
from ostinato.interop.weights import Part, Rule, Table, Transposed, rules_of_layers


def llama(config: LanguageModelConfig) -> Table:
    """Return the names of Llama, Mistral, Qwen3 and Mixtral: what a layer has follows from the settings."""
    stack, layer = config.decoder, "model.layers.{i}"
    rules = [
        *attention_rules(
            stack.self_attention, config.d_model, "banks.self_attention.decoder_{i}", f"{layer}.self_attn"
        ),
        Rule("banks.norm.self_attention_decoder_{i}.weight", f"{layer}.input_layernorm.weight"),
        Rule("banks.norm.ffn_decoder_{i}.weight", f"{layer}.post_attention_layernorm.weight"),
    ]
    ffn = "banks.ffn.decoder_{i}"
    if isinstance(stack.ffn, ExpertFeedForwardConfig):
        rules += [
            Rule(f"{ffn}.router.experts_ED", f"{layer}.mlp.gate.weight"),
            Rule(f"{ffn}.experts.up_EDF", Part(f"{layer}.mlp.experts.gate_up_proj", (Transposed(),))),
            Rule(f"{ffn}.experts.down_EFD", Part(f"{layer}.mlp.experts.down_proj", (Transposed(),))),
        ]
    else:
        hidden = [Part(f"{layer}.mlp.{name}_proj.weight", size=stack.ffn.d_ff) for name in ("gate", "up")]
        rules += [Rule(f"{ffn}.up.weight", *hidden), Rule(f"{ffn}.down.weight", f"{layer}.mlp.down_proj.weight")]
    return _with_ends(config, rules)


def jetmoe(config: LanguageModelConfig) -> Table:
    """Return the names of JetMoE: attention of experts, and feed-forwards of experts."""
    assert isinstance(config.decoder.self_attention, ExpertAttentionConfig)
    theirs = "model.layers.{i}.self_attention"
    attention, ffn, layer = "banks.self_attention.decoder_{i}", "banks.ffn.decoder_{i}", "model.layers.{i}"
    turned = (Transposed(),)
    rules = [
        Rule(f"{attention}.kv.weight", f"{theirs}.kv_proj.weight"),
        Rule(f"{attention}.router.experts_ED", f"{theirs}.experts.router.layer.weight"),
        Rule(f"{attention}.query_EDI", Part(f"{theirs}.experts.input_linear.weight", turned)),
        Rule(f"{attention}.out_EID", Part(f"{theirs}.experts.output_linear.weight", turned)),
        Rule(f"{attention}.sum_bias_D", f"{theirs}.experts.bias"),
        Rule(f"{ffn}.router.experts_ED", f"{layer}.mlp.router.layer.weight"),
        Rule(f"{ffn}.experts.up_EDF", Part(f"{layer}.mlp.input_linear.weight", turned)),
        Rule(f"{ffn}.experts.down_EFD", Part(f"{layer}.mlp.output_linear.weight", turned)),
        Rule(f"{ffn}.sum_bias_D", f"{layer}.mlp.bias"),
        Rule("banks.norm.self_attention_decoder_{i}.weight", f"{layer}.input_layernorm.weight"),
        Rule("banks.norm.ffn_decoder_{i}.weight", f"{layer}.post_attention_layernorm.weight"),
    ]
    return _with_ends(config, rules)


def _with_ends(config: LanguageModelConfig, of_layer: list[Rule]) -> Table:
    """Return a table with one layer's rules for every step, and embedding, final norm and output projection."""
    rules = rules_of_layers([(i, i) for i in range(config.decoder.n_steps)], of_layer)
    rules.append(Rule("target_weight", "model.embed_tokens.weight"))
    rules.append(Rule("banks.norm.final_decoder.weight", "model.norm.weight"))
    ignored = ("model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")
    if config.tie_embeddings == "none":
        return Table([*rules, Rule("output_weight", "lm_head.weight")], ignored=ignored)
    return Table(rules, tied={"lm_head.weight": "model.embed_tokens.weight"}, ignored=ignored)
