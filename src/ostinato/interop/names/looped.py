"""Names of looped language models in public weights."""

from __future__ import annotations

from ostinato.config.model import EncoderConfig, LanguageModelConfig
from ostinato.config.stack import StackConfig
from ostinato.config.sub_layers import DenseFeedForwardConfig
from ostinato.interop.names.parts import attention_rules, both
from ostinato.interop.weights import Part, Reshaped, Rule, Scaled, Table, rules_of_layers


def ouro(config: LanguageModelConfig) -> Table:
    """Return the names of Ouro: layers with a norm before and behind every sub-layer, a norm a round, a gate."""
    stack, layer = config.decoder, "model.layers.{i}"
    assert isinstance(stack.ffn, DenseFeedForwardConfig)
    hidden = [Part(f"{layer}.mlp.{name}_proj.weight", size=stack.ffn.d_ff) for name in ("gate", "up")]
    of_layer = [
        *attention_rules(
            stack.self_attention, config.d_model, "banks.self_attention.decoder_{i}", f"{layer}.self_attn"
        ),
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


def huginn(config: LanguageModelConfig) -> Table:
    """Return the names of Huginn (`raven_modeling_minimal`): prelude, core and coda; one map of [state ; input]."""
    stack, d_model = config.decoder, config.d_model
    attention, ffn = stack.self_attention, "banks.ffn.decoder_{i}"
    n_heads, width = attention.n_heads, attention.head_width(d_model)
    biases = Part("{i}.attn.qk_bias", (Reshaped((2, 1, n_heads, width), (2 * n_heads * width,)),))
    of_layer = [
        Rule("banks.self_attention.decoder_{i}.qkv.weight", "{i}.attn.Wqkv.weight"),
        Rule("banks.self_attention.decoder_{i}.qk_bias", biases),
        Rule("banks.self_attention.decoder_{i}.out.weight", "{i}.attn.proj.weight"),
        Rule("banks.norm.self_attention_decoder_{i}.weight", "{i}.norm_1.weight"),
        Rule("banks.norm.self_attention_decoder_{i}_after.weight", "{i}.norm_2.weight"),
        Rule("banks.norm.ffn_decoder_{i}.weight", "{i}.norm_3.weight"),
        Rule("banks.norm.ffn_decoder_{i}_after.weight", "{i}.norm_4.weight"),
        Rule(f"{ffn}.up.weight", "{i}.mlp.fc.weight"),
        Rule(f"{ffn}.down.weight", "{i}.mlp.proj.weight"),
    ]
    rules = rules_of_layers(zip(_layers(stack), range(stack.n_steps), strict=True), of_layer)
    adapter = "transformer.adapter.weight"
    rules += [
        Rule("target_weight", "transformer.wte.weight"),
        Rule("banks.norm.final_decoder.weight", "transformer.ln_f.weight"),
        Rule("banks.injection.decoder_1.state.weight", Part(adapter, rows=(0, d_model), dim=1)),
        Rule("banks.injection.decoder_1.input.weight", Part(adapter, rows=(d_model, 2 * d_model), dim=1)),
    ]
    return Table(rules, tied={"lm_head.weight": "transformer.wte.weight"}, ignored=("freqs_cis",))


def parcae(config: LanguageModelConfig) -> Table:
    """Return the names of Parcae: prelude, core and coda, tables of values in some layers, a decay by channel.

    The one half of its 0.5 ReLU(z)^2 is in the second map.
    """
    stack = config.decoder
    tables, rules = stack.value_tables() or (None,) * stack.n_steps, list[Rule]()
    for number, (layer, table) in enumerate(zip(_layers(stack), tables, strict=True)):
        attention, ffn = f"banks.self_attention.decoder_{number}", f"banks.ffn.decoder_{number}"
        names = ("c_q", "c_k", "c_v", "c_proj")
        rules += attention_rules(stack.self_attention, config.d_model, attention, f"{layer}.attn", names)
        rules += [
            Rule(f"{ffn}.up.weight", f"{layer}.mlp.fc.weight"),
            Rule(f"{ffn}.down.weight", Part(f"{layer}.mlp.proj.weight", (Scaled(0.5),))),
            Rule(f"banks.norm.self_attention_decoder_{number}.weight", f"{layer}.norm_1.weight"),
            Rule(f"banks.norm.ffn_decoder_{number}.weight", f"{layer}.norm_2.weight"),
        ]
        if table is not None:
            rules += [
                Rule(f"banks.values.decoder_{table}.table_VJ", f"value_embeds.{number}.weight"),
                Rule(f"banks.values.decoder_{table}.gate.weight", f"{layer}.attn.ve_gate.weight"),
            ]
    rules += [
        Rule("target_weight", "transformer.wte.weight"),
        Rule("banks.norm.end_decoder_0.weight", "transformer.ln_prelude.weight"),
        Rule("banks.injection.decoder_1.rate_D", "transformer.adapter.A_log"),
        Rule("banks.injection.decoder_1.step_D", "transformer.adapter.dt_bias"),
        Rule("banks.injection.decoder_1.input.weight", "transformer.adapter.B"),
        Rule("banks.end_map.decoder_1.weight", "transformer.C.weight"),
        Rule("banks.norm.final_decoder.weight", "transformer.ln_f.weight"),
    ]
    return Table(rules, tied={"lm_head.weight": "transformer.wte.weight"})


def loopformer(config: LanguageModelConfig) -> Table:
    """Return the names of LoopFormer: layers whose gates and scales are made of a round's times; no norm has weights
    but the final one."""
    d_model, layer, turns = config.d_model, "transformer.h.blocks.{i}", ("map.weight", "map.bias")
    of_layer = [
        Rule("banks.self_attention.decoder_{i}.qkv.weight", f"{layer}.attn.c_attn.weight"),
        Rule("banks.self_attention.decoder_{i}.out.weight", f"{layer}.attn.c_proj.weight"),
        Rule("banks.ffn.decoder_{i}.up.weight", f"{layer}.mlp.c_fc.weight"),
        Rule("banks.ffn.decoder_{i}.down.weight", f"{layer}.mlp.c_proj.weight"),
    ]
    for kind, first in (("self_attention", 0), ("ffn", d_model)):
        for ours in turns:
            # Theirs are gates of attention and feed-forward, then both scales.
            theirs = f"{layer}.adaLN_modulation.1.{ours.removeprefix('map.')}"
            rows = [(start, start + d_model) for start in (first, first + 2 * d_model)]
            parts = [Part(theirs, rows=one, size=d_model) for one in rows]
            of_layer.append(Rule(f"banks.modulation.{kind}_decoder_step_{{i}}.{ours}", *parts))
    rules = rules_of_layers([(i, i) for i in range(config.decoder.n_steps)], of_layer)
    for ours, theirs in (("before", "time_embedder"), ("step", "dt_embedder")):
        for number, place in ((0, 0), (1, 2)):
            rules += both(f"banks.time.decoder_0.{ours}.{number}", f"{theirs}.mlp.{place}")
    rules += [
        Rule("target_weight", "transformer.wte.weight"),
        Rule("banks.positions.decoder.weight", "transformer.wpe.weight"),
        Rule("banks.norm.final_decoder.weight", "transformer.norm_f.weight"),
    ]
    return Table(rules, tied={"lm_head.weight": "transformer.wte.weight"})


def hrm_text(config: LanguageModelConfig) -> Table:
    """Return the names of HRM-Text: two stacks of layers without parameters in their norms, and a first low state."""
    stack, (low, high) = config.decoder, config.decoder.segments[0].states
    assert isinstance(stack.ffn, DenseFeedForwardConfig)
    layer, ours = "model.{i}", "banks.self_attention.decoder_{i}"
    hidden = [Part(f"{layer}.mlp.{name}_proj.weight", size=stack.ffn.d_ff) for name in ("gate", "up")]
    of_layer = [
        *attention_rules(stack.self_attention, config.d_model, ours, f"{layer}.self_attn"),
        Rule(f"{ours}.output_gate.weight", f"{layer}.self_attn.gate_proj.weight"),
        Rule("banks.ffn.decoder_{i}.up.weight", *hidden),
        Rule("banks.ffn.decoder_{i}.down.weight", f"{layer}.mlp.down_proj.weight"),
    ]
    theirs = [
        *(f"L_module.layers.{i}" for i in range(low.n_steps)),
        *(f"H_module.layers.{i}" for i in range(high.n_steps)),
    ]
    rules = rules_of_layers(zip(theirs, range(stack.n_steps), strict=True), of_layer)
    rules += [
        Rule("target_weight", "model.embed_tokens.weight"),
        Rule("banks.start.decoder_0.0.vector_D", "model.z_L_init"),
    ]
    ignored = ("model.rotary_emb.inv_freq",)
    if config.tie_embeddings == "none":
        return Table([*rules, Rule("output_weight", "lm_head.weight")], ignored=ignored)
    return Table(rules, tied={"lm_head.weight": "model.embed_tokens.weight"}, ignored=ignored)


def trm(config: EncoderConfig) -> Table:
    """Return the names of TRM: the layers that change both states, and what these are first; without its Q-head.

    The output projection is the matrix of a masked head, or the map of a tagging head, whose bias theirs has not.
    """
    stack, layer = config.encoder, "inner.L_level.layers.{i}"
    of_layer = [
        Rule("banks.self_attention.encoder_{i}.qkv.weight", f"{layer}.self_attn.qkv_proj.weight"),
        Rule("banks.self_attention.encoder_{i}.out.weight", f"{layer}.self_attn.o_proj.weight"),
        Rule("banks.ffn.encoder_{i}.up.weight", f"{layer}.mlp.gate_up_proj.weight"),
        Rule("banks.ffn.encoder_{i}.down.weight", f"{layer}.mlp.down_proj.weight"),
    ]
    rules = rules_of_layers([(i, i) for i in range(stack.segments[0].states[0].n_steps)], of_layer)
    rules += [
        Rule("target_weight", "inner.embed_tokens.embedding_weight"),
        Rule("output_weight" if config.head.kind == "masked" else "head.weight", "inner.lm_head.weight"),
        Rule("banks.start.encoder_0.0.vector_D", "inner.L_init"),
        Rule("banks.start.encoder_0.1.vector_D", "inner.H_init"),
    ]
    return Table(rules, ignored=("inner.q_head.*",))


def _layers(stack: StackConfig) -> list[str]:
    """Return their names of the layers of prelude, core and coda."""
    return [
        f"transformer.{part}.{i}"
        for part, segment in zip(("prelude", "core_block", "coda"), stack.segments, strict=True)
        for i in range(segment.n_steps)
    ]
