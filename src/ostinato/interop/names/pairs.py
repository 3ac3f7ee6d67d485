"""Names of encoder-decoder models in public weights."""

from __future__ import annotations

from ostinato.config.model import Seq2SeqConfig
from ostinato.config.sub_layers import GATED, AttentionConfig, DenseFeedForwardConfig
from ostinato.interop.names.parts import attention_rules, both, weights
from ostinato.interop.weights import Part, Reshaped, Rule, Table, rules_of_layers


def t5(config: Seq2SeqConfig) -> Table:
    """Return the names of T5 and of T5 1.1, whose feed-forwards have a gate, wi_0."""
    rules = [Rule("target_weight", "shared.weight")]
    for name, stack in config.stacks().items():
        kinds = [kind for kind, _ in stack.sub_layers()]
        for place, (kind, sub) in enumerate(stack.sub_layers()):
            theirs, ours = f"{name}.block.{{i}}.layer.{place}", f"banks.{kind}.{name}_{{i}}"
            of_layer = weights(f"banks.norm.{kind}_{name}_{{i}}", f"{theirs}.layer_norm")
            if isinstance(sub, AttentionConfig):
                called = f"{theirs}.{'EncDecAttention' if kind == 'cross_attention' else 'SelfAttention'}"
                of_layer += attention_rules(sub, config.d_model, ours, called, ("q", "k", "v", "o"))
            elif isinstance(sub, DenseFeedForwardConfig):
                parts = ("wi_0", "wi_1") if sub.activation in GATED else ("wi",)
                names = [f"{theirs}.DenseReluDense.{part}" for part in parts]
                of_layer += weights(f"{ours}.up", *names, sizes=[sub.d_ff] * len(parts))
                of_layer += weights(f"{ours}.down", f"{theirs}.DenseReluDense.wo")
            rules += rules_of_layers([(i, i) for i in range(stack.n_steps)], of_layer)
        first = f"{name}.block.0.layer.{kinds.index('self_attention')}"
        rules.append(Rule(f"banks.relative.{name}.table_RH", f"{first}.SelfAttention.relative_attention_bias.weight"))
        rules += weights(f"banks.norm.final_{name}", f"{name}.final_layer_norm")
    tied = dict.fromkeys(("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), "shared.weight")
    # Of the first files: a table that no T5 reads.
    ignored = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)
    if config.tie_embeddings == "all":
        return Table(rules, tied=tied | {"lm_head.weight": "shared.weight"}, ignored=ignored)
    return Table([*rules, Rule("output_weight", "lm_head.weight")], tied=tied, ignored=ignored)


def bart(config: Seq2SeqConfig) -> Table:
    """Return the names of BART and of Marian, whose sinusoids are stored and made anew here."""
    as_row = _as_row(config)
    rules = [
        Rule("target_weight", "model.shared.weight"),
        Rule("output_bias", Part("final_logits_bias", (as_row,))),
    ]
    ignored = []
    for name, stack in config.stacks().items():
        layer = f"model.{name}.layers.{{i}}"
        of_layer = [
            *both(f"banks.ffn.{name}_{{i}}.up", f"{layer}.fc1"),
            *both(f"banks.ffn.{name}_{{i}}.down", f"{layer}.fc2"),
            *both(f"banks.norm.ffn_{name}_{{i}}", f"{layer}.final_layer_norm"),
        ]
        for kind, sub in stack.sub_layers():
            if isinstance(sub, AttentionConfig):
                called = f"{layer}.{'encoder_attn' if kind == 'cross_attention' else 'self_attn'}"
                bank = f"banks.{kind}.{name}_{{i}}"
                of_layer += attention_rules(
                    sub, config.d_model, bank, called, ("q_proj", "k_proj", "v_proj", "out_proj")
                )
                of_layer += both(f"banks.norm.{kind}_{name}_{{i}}", f"{called}_layer_norm")
        rules += rules_of_layers([(i, i) for i in range(stack.n_steps)], of_layer)
        if stack.norm.embedding:
            rules += both(f"banks.norm.embedding_{name}", f"model.{name}.layernorm_embedding")
        positions = f"model.{name}.embed_positions.weight"
        if stack.positions.kind == "learned":
            rules.append(Rule(f"banks.positions.{name}.weight", positions))
        else:
            ignored.append(positions)
    names = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
    tied = dict.fromkeys(names, "model.shared.weight")
    return Table(rules, tied=tied, ignored=ignored, zeros={"final_logits_bias": as_row.theirs})


def _as_row(config: Seq2SeqConfig) -> Reshaped:
    n_rows = config.target_vocab_size or 0
    return Reshaped((1, n_rows), (n_rows,))
