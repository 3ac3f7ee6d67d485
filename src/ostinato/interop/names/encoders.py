"""Names of encoder-only models with a masked-language-model head in public weights."""

from __future__ import annotations

from ostinato.config.model import EncoderConfig
from ostinato.config.sub_layers import AttentionConfig
from ostinato.interop.names.parts import attention_rules, both, weights
from ostinato.interop.weights import Rule, Table, rules_of_layers


def bert(config: EncoderConfig) -> Table:
    """Return the names of BERT."""
    layer = "bert.encoder.layer.{i}"
    rules = [
        *_attention(config, f"{layer}.attention", "self.query", "self.key", "self.value", "output.dense"),
        *both("banks.norm.self_attention_encoder_{i}", f"{layer}.attention.output.LayerNorm"),
        *both("banks.ffn.encoder_{i}.up", f"{layer}.intermediate.dense"),
        *both("banks.ffn.encoder_{i}.down", f"{layer}.output.dense"),
        *both("banks.norm.ffn_encoder_{i}", f"{layer}.output.LayerNorm"),
    ]
    head = "cls.predictions"
    return Table(
        [
            *_embeddings("bert.embeddings"),
            *rules_of_layers([(i, i) for i in range(config.encoder.n_steps)], rules),
            *both("output_transform.dense", f"{head}.transform.dense"),
            *both("output_transform.norm", f"{head}.transform.LayerNorm"),
            Rule("output_bias", f"{head}.bias"),
        ],
        tied={
            f"{head}.decoder.weight": "bert.embeddings.word_embeddings.weight",
            f"{head}.decoder.bias": f"{head}.bias",
        },
        ignored=("bert.embeddings.position_ids", "bert.pooler.dense.*", "cls.seq_relationship.*"),
    )


def albert(config: EncoderConfig) -> Table:
    """Return the names of ALBERT: groups of layers are parameter sets, with one layer each (inner_group_num = 1)."""
    layer = "albert.encoder.albert_layer_groups.{i}.albert_layers.0"
    rules = [
        *_attention(config, f"{layer}.attention", "query", "key", "value", "dense"),
        *both("banks.norm.self_attention_encoder_{i}", f"{layer}.attention.LayerNorm"),
        *both("banks.ffn.encoder_{i}.up", f"{layer}.ffn"),
        *both("banks.ffn.encoder_{i}.down", f"{layer}.ffn_output"),
        *both("banks.norm.ffn_encoder_{i}", f"{layer}.full_layer_layer_norm"),
    ]
    groups = sorted({number for number in config.encoder.ffn.sets(config.encoder.n_steps) if number is not None})
    return Table(
        [
            *_embeddings("albert.embeddings"),
            *both("banks.embedding.encoder", "albert.encoder.embedding_hidden_mapping_in"),
            *rules_of_layers([(group, group) for group in groups], rules),
            *both("output_transform.dense", "predictions.dense"),
            *both("output_transform.norm", "predictions.LayerNorm"),
            Rule("output_bias", "predictions.bias"),
        ],
        tied={
            "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
            "predictions.decoder.bias": "predictions.bias",
        },
        ignored=("albert.embeddings.position_ids", "albert.pooler.*", "sop_classifier.*"),
    )


def modernbert(config: EncoderConfig) -> Table:
    """Return the names of ModernBERT, whose first layer has no norm of what its attention reads."""
    layer, n_steps = "model.layers.{i}", config.encoder.n_steps
    rules = [
        *weights("banks.self_attention.encoder_{i}.qkv", f"{layer}.attn.Wqkv"),
        *weights("banks.self_attention.encoder_{i}.out", f"{layer}.attn.Wo"),
        *weights("banks.ffn.encoder_{i}.up", f"{layer}.mlp.Wi"),
        *weights("banks.ffn.encoder_{i}.down", f"{layer}.mlp.Wo"),
        *weights("banks.norm.ffn_encoder_{i}", f"{layer}.mlp_norm"),
    ]
    norms = weights("banks.norm.self_attention_encoder_{i}", f"{layer}.attn_norm")
    return Table(
        [
            Rule("target_weight", "model.embeddings.tok_embeddings.weight"),
            *weights("banks.norm.embedding_encoder", "model.embeddings.norm"),
            *rules_of_layers([(i, i) for i in range(n_steps)], rules),
            *rules_of_layers([(i, i) for i in range(1, n_steps)], norms),
            *weights("banks.norm.final_encoder", "model.final_norm"),
            *weights("output_transform.dense", "head.dense"),
            *weights("output_transform.norm", "head.norm"),
            Rule("output_bias", "decoder.bias"),
        ],
        tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    )


def _embeddings(theirs: str) -> list[Rule]:
    return [
        Rule("target_weight", f"{theirs}.word_embeddings.weight"),
        Rule("type_weight", f"{theirs}.token_type_embeddings.weight"),
        Rule("banks.positions.encoder.weight", f"{theirs}.position_embeddings.weight"),
        *both("banks.norm.embedding_encoder", f"{theirs}.LayerNorm"),
    ]


def _attention(config: EncoderConfig, theirs: str, *names: str) -> list[Rule]:
    settings = config.encoder.self_attention
    assert isinstance(settings, AttentionConfig)
    return attention_rules(settings, config.d_model, "banks.self_attention.encoder_{i}", theirs, names)
