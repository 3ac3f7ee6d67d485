"""What models of the Hugging Face library are: of every architecture a recipe, what its config.json changes, and names.

An architecture is the name that stands under `architectures` in a config.json. Its recipe (`ostinato/recipes/dense`)
says what such a model computes; the functions here return what the sizes and options of a config.json set in it, as
dotted settings. An option of what a model computes that no setting stands for is refused by its name; rates of
training that none stands for are named (`ostinato.interop.pretrained.other_rates`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ostinato.config.base import MOST
from ostinato.errors import CheckpointError
from ostinato.interop.names.decoders import jetmoe, llama
from ostinato.interop.names.encoders import albert, bert, modernbert
from ostinato.interop.names.gpt2 import gpt2
from ostinato.interop.names.looped import hrm_text
from ostinato.interop.names.pairs import bart, t5
from ostinato.interop.weights import Table

Given = Mapping[str, Any]
"""The content of a config.json."""
Settings = dict[str, Any]
"""Dotted settings of a recipe."""

_ACTIVATIONS = {
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
_GATED = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh"}


@dataclass(frozen=True, slots=True)
class Architecture:
    """How a model becomes one of ours.

    Args:
        recipe: what it computes. settings: from config.json to settings of the recipe. table: its parameters' names.
        prefix: what names of its body begin with, which files of the body alone leave out.
    """

    recipe: str
    settings: Callable[[Given], Settings]
    table: Callable[[Any], Table]
    prefix: str = ""


def _activation(given: Given, key: str) -> str:
    name = given.get(key)
    if name not in _ACTIVATIONS:
        raise _unsupported(key, name, f"one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _gated(given: Given, key: str) -> str:
    name = _activation(given, key)
    if name not in _GATED:
        raise _unsupported(key, given[key], "silu or gelu, with a gate")
    return _GATED[name]


def _unsupported(key: str, value: object, valid: str) -> CheckpointError:
    return CheckpointError(f"config.json: {key} is {value!r}, which is not read: must be {valid}")


def _only(given: Given, key: str, *valid: object) -> None:
    """Refuse other values of an option than those that the recipe stands for; the first one is the default."""
    if given.get(key, valid[0]) not in valid:
        raise _unsupported(key, given[key], " or ".join(map(repr, valid)))


def _size(given: Given, key: str, most: int = 2**31 - 1, *, default: int | None = None) -> int:
    """Return a size, or with `MOST` a number of things; None: the file must have it."""
    found = given[key] if default is None else _option(given, key, default)
    if type(found) is not int or not 1 <= found <= most:
        raise _unsupported(key, found, f"a whole number in [1, {most}]")
    return found


def _option(given: Given, key: str, default: Any) -> Any:
    """Return an option that may lack or be null."""
    found = given.get(key)
    return default if found is None else found


def _object(given: Given, key: str) -> dict[str, Any]:
    """Return a group of options; empty where there is none."""
    found = given.get(key)
    if not isinstance(found, dict | None):
        raise _unsupported(key, found, "an object, or null")
    return found or {}


def _flag(given: Given, key: str, default: bool) -> bool:
    found = given.get(key, default)
    if not isinstance(found, bool):
        raise _unsupported(key, found, "true or false")
    return found


def _tied(given: Given, default: bool = True) -> bool:
    return _flag(given, "tie_word_embeddings", default)


def _learned(stack: str, length: int) -> Settings:
    """Return what goes with learned positions: no text is longer."""
    return {f"model.{stack}.positions.max_length": length}


def _gpt2(given: Given) -> Settings:
    _only(given, "scale_attn_weights", True)
    _only(given, "scale_attn_by_inverse_layer_idx", False)
    _only(given, "tie_word_embeddings", True)
    width, length = _size(given, "n_embd"), _size(given, "n_positions")
    return {
        "model.vocab_size": _size(given, "vocab_size"),
        "model.d_model": width,
        "model.dropout": given.get("resid_pdrop", 0.1),
        "model.decoder.n_steps": _size(given, "n_layer", MOST),
        "model.decoder.norm.eps": given.get("layer_norm_epsilon", 1e-5),
        "model.decoder.self_attention.n_heads": _size(given, "n_head", MOST),
        "model.decoder.self_attention.dropout": given.get("attn_pdrop", 0.1),
        "model.decoder.ffn.d_ff": _size(given, "n_inner", default=4 * width),
        "model.decoder.ffn.activation": _activation(given, "activation_function"),
        **_learned("decoder", length),
        "data.max_target_length": length,
        "decoding.max_length": min(100, max(1, length // 2)),
    }


def _rotary(given: Given, base: float = 10_000.0) -> Settings:
    """Return rotary positions, as newer files have them (rope_parameters) and as older ones do.

    Args:
        base: where the file has none.
    """
    rope = _object(given, "rope_scaling") or _object(given, "rope_parameters")
    for options in (given, rope):
        _only(options, "partial_rotary_factor", 1.0, None)
    kind = rope.get("rope_type", rope.get("type", "default"))
    theta = rope.get("rope_theta", given.get("rope_theta", base))
    relative: Settings = {"kind": "rotary", "base": theta, "fraction": 1.0}
    match kind:
        case "default":
            relative["scaling"] = {"kind": "none"}
        case "linear":
            relative["scaling"] = {"kind": "linear", "factor": rope["factor"]}
        case "llama3":
            relative["scaling"] = {
                "kind": "llama3",
                "factor": rope["factor"],
                "low": rope["low_freq_factor"],
                "high": rope["high_freq_factor"],
                "original_length": rope["original_max_position_embeddings"],
            }
        case _:
            raise _unsupported("rope_type", kind, "default, linear or llama3")
    return relative


def _window(relative: Settings, width: int | None) -> Settings:
    """Return positions that see so many tokens, themselves among them; None: all."""
    return relative if width is None else relative | {"reach": width - 1}


def _by_layer(given: Given, whole: Settings, local: Settings, is_local: Callable[[int], bool]) -> Settings:
    """Return the positions of layers of which some see all tokens, and others those in a window.

    Args:
        is_local: says so of a layer, where the file does not (layer_types).
    """
    n_steps, names = _size(given, "num_hidden_layers", MOST), {"full_attention": whole, "sliding_attention": local}
    kinds = given.get("layer_types")
    if kinds is None:
        kinds = [list(names)[is_local(i)] for i in range(n_steps)]
    if not isinstance(kinds, list) or len(kinds) != n_steps or any(kind not in names for kind in kinds):
        raise _unsupported("layer_types", kinds, f"a list of {' or '.join(names)} for {n_steps} layers")
    used = [name for name in names if name in kinds]
    if len(used) == 1:
        return names[used[0]]
    return {
        "kind": "by_step",
        "settings": [names[name] for name in used],
        "pattern": [used.index(kind) for kind in kinds],
    }


def _llama(given: Given) -> Settings:
    heads = _size(given, "num_attention_heads", MOST)
    _only(given, "mlp_bias", False)
    return {
        "model.vocab_size": _size(given, "vocab_size"),
        "model.d_model": _size(given, "hidden_size"),
        "model.tie_embeddings": "output" if _tied(given, default=False) else "none",
        "model.decoder.n_steps": _size(given, "num_hidden_layers", MOST),
        "model.decoder.norm.eps": given["rms_norm_eps"],
        "model.decoder.self_attention.n_heads": heads,
        "model.decoder.self_attention.n_kv_heads": _size(given, "num_key_value_heads", MOST, default=heads),
        "model.decoder.self_attention.d_head": _size(given, "head_dim", default=_size(given, "hidden_size") // heads),
        "model.decoder.self_attention.bias": _flag(given, "attention_bias", False),
        "model.decoder.self_attention.dropout": given.get("attention_dropout", 0.0),
        "model.decoder.ffn.d_ff": _size(given, "intermediate_size"),
        "model.decoder.relative": _rotary(given),
        "data.max_target_length": _size(given, "max_position_embeddings"),
    }


def _dense_llama(given: Given) -> Settings:
    return {**_llama(given), "model.decoder.ffn.activation": _gated(given, "hidden_act")}


def _mistral(given: Given) -> Settings:
    relative = _window(_rotary(given), given.get("sliding_window", 4096))
    return {**_dense_llama(given), "model.decoder.relative": relative}


def _qwen3(given: Given) -> Settings:
    width = given.get("sliding_window", 4096) if _flag(given, "use_sliding_window", False) else None
    first, whole = given.get("max_window_layers", 28), _rotary(given)
    relative = _by_layer(given, whole, _window(whole, width), lambda i: width is not None and i >= first)
    return {**_dense_llama(given), "model.decoder.relative": relative}


def _qwen2(given: Given) -> Settings:
    return {**_qwen3(given), "model.decoder.self_attention.bias": "qkv"}


def _mixtral(given: Given) -> Settings:
    _only(given, "hidden_act", "silu")
    return {
        **_llama(given),
        "model.decoder.relative": _window(_rotary(given, 1_000_000.0), given.get("sliding_window")),
        "model.decoder.ffn.n_experts": _size(given, "num_local_experts", MOST),
        "model.decoder.ffn.top_k": _size(given, "num_experts_per_tok", MOST),
    }


def _jetmoe(given: Given) -> Settings:
    _only(given, "activation_function", "silu")
    final_eps = given.get("rms_norm_eps", 1e-6)
    if final_eps is None:  # to us None means the eps of the other norms
        raise _unsupported("rms_norm_eps", None, "a number")
    experts = {"n_experts": _size(given, "num_local_experts", MOST), "top_k": _size(given, "num_experts_per_tok", MOST)}
    found: Settings = {
        "model.vocab_size": _size(given, "vocab_size"),
        "model.d_model": _size(given, "hidden_size"),
        "model.tie_embeddings": "output" if _tied(given) else "none",
        "model.decoder.n_steps": _size(given, "num_hidden_layers", MOST),
        # The class takes what the file says for the final norm alone.
        "model.decoder.norm.eps": 1e-6,
        "model.decoder.norm.final_eps": final_eps,
        "model.decoder.self_attention.n_heads": _size(given, "num_key_value_heads", MOST),
        "model.decoder.self_attention.d_head": _size(given, "kv_channels"),
        "model.decoder.self_attention.dropout": given.get("attention_dropout", 0.0),
        "model.decoder.ffn.d_ff": _size(given, "intermediate_size"),
        "model.decoder.relative": _rotary(given),
        "data.max_target_length": _size(given, "max_position_embeddings"),
    }
    for kind in ("self_attention", "ffn"):
        found |= {f"model.decoder.{kind}.{key}": value for key, value in experts.items()}
    return found


def _hrm_text(given: Given) -> Settings:
    """Return two states of so many layers each; with prefix_lm marked tokens, those of a source, see each other."""
    for key in ("attention_bias", "mlp_bias"):
        _only(given, key, False)
    layers = _size(given, "num_layers_per_stack", MOST, default=_size(given, "num_hidden_layers", MOST))
    high_cycles, low_cycles = given.get("H_cycles", 2), given.get("L_cycles", 3)
    if given.get("num_layers_per_stack") is not None:  # newer files: the other number is of executed layers
        _only(given, "num_hidden_layers", layers * high_cycles * (low_cycles + 1))
    low = {"name": "low", "n_steps": layers, "repeats": low_cycles, "adds": ["high"], "norm": True}
    high = {"name": "high", "n_steps": layers, "adds": ["low"], "norm": True}
    states = [low | {"state": {"kind": "learned", "std": 0.0}}, high]
    return {
        "model.vocab_size": _size(given, "vocab_size"),
        "model.d_model": _size(given, "hidden_size"),
        "model.tie_embeddings": "output" if _tied(given, default=False) else "none",
        "model.mask": "prefix" if _flag(given, "prefix_lm", True) else "causal",
        "model.embedding_scale": _option(given, "embedding_scale", 1 / given.get("initializer_range", 0.02)),
        "model.decoder.n_steps": 2 * layers,
        "model.decoder.segments": [{"n_steps": 2 * layers, "repeats": high_cycles, "states": states}],
        "model.decoder.norm.eps": given["rms_norm_eps"],
        "model.decoder.self_attention.n_heads": _size(given, "num_attention_heads", MOST),
        "model.decoder.self_attention.d_head": given.get("head_dim", 128),
        "model.decoder.self_attention.dropout": _option(given, "attention_dropout", 0.0),
        "model.decoder.ffn.d_ff": _size(given, "intermediate_size"),
        "model.decoder.ffn.activation": _gated(given, "hidden_act"),
        "model.decoder.relative": _rotary(given),
        "data.max_target_length": _size(given, "max_position_embeddings"),
    }


def _modernbert(given: Given) -> Settings:
    for key in ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"):
        _only(given, key, False)
    _only(given, "decoder_bias", True)
    _only(given, "tie_word_embeddings", True)
    _only(given, "rope_scaling", None)
    rope, rotary = _object(given, "rope_parameters"), {}
    for kind, key, base in (
        ("full_attention", "global_rope_theta", 160_000.0),
        ("sliding_attention", "local_rope_theta", 10_000.0),
    ):
        of_kind = _object(rope, kind)
        _only(of_kind, "rope_type", "default")
        _only(of_kind, "type", "default")
        rotary[kind] = {"kind": "rotary", "base": of_kind.get("rope_theta", given.get(key, base))}
    whole, local = rotary.values()
    every, reach = given.get("global_attn_every_n_layers", 3), _size(given, "local_attention") // 2
    relative = _by_layer(given, whole | {"reach": None}, local | {"reach": reach}, lambda i: bool(i % every))
    return {
        "model.vocab_size": _size(given, "vocab_size"),
        "model.d_model": _size(given, "hidden_size"),
        "model.output.transform.activation": _activation(given, "classifier_activation"),
        "model.output.transform.norm.eps": given["norm_eps"],
        "model.encoder.n_steps": _size(given, "num_hidden_layers", MOST),
        "model.encoder.norm.eps": given["norm_eps"],
        "model.encoder.self_attention.n_heads": _size(given, "num_attention_heads", MOST),
        # The class drops the outputs of attention at this rate, too.
        "model.encoder.self_attention.dropout": given.get("attention_dropout", 0.0),
        "model.encoder.ffn.d_ff": _size(given, "intermediate_size"),
        "model.encoder.ffn.activation": _gated(given, "hidden_activation"),
        "model.encoder.ffn.dropout": given.get("mlp_dropout", 0.0),
        "model.encoder.relative": relative,
        "data.block_length": min(_size(given, "max_position_embeddings"), 1024),
    }


def _bert(given: Given) -> Settings:
    _only(given, "position_embedding_type", "absolute")
    _only(given, "tie_word_embeddings", True)
    _only(given, "is_decoder", False)
    activation, length = _activation(given, "hidden_act"), _size(given, "max_position_embeddings")
    return {
        "model.vocab_size": _size(given, "vocab_size"),
        "model.d_model": _size(given, "hidden_size"),
        "model.dropout": given.get("hidden_dropout_prob", 0.1),
        "model.n_token_types": _size(given, "type_vocab_size"),
        "model.output.transform.activation": activation,
        "model.output.transform.norm.eps": given["layer_norm_eps"],
        "model.encoder.n_steps": _size(given, "num_hidden_layers", MOST),
        "model.encoder.norm.eps": given["layer_norm_eps"],
        "model.encoder.self_attention.n_heads": _size(given, "num_attention_heads", MOST),
        "model.encoder.self_attention.dropout": given.get("attention_probs_dropout_prob", 0.1),
        "model.encoder.ffn.d_ff": _size(given, "intermediate_size"),
        "model.encoder.ffn.activation": activation,
        **_learned("encoder", length),
        "data.block_length": length,
    }


def _albert(given: Given) -> Settings:
    _only(given, "inner_group_num", 1)
    groups = given.get("num_hidden_groups", 1)
    sharing: Settings = {}
    for kind in ("self_attention", "ffn"):
        sharing[f"model.encoder.{kind}.share"] = "all" if groups == 1 else "sequence"
        if groups > 1:
            sharing[f"model.encoder.{kind}.n_unique"] = groups
    plain = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return {**_bert(plain | dict(given)), "model.d_embedding": _size(given, "embedding_size"), **sharing}


def _t5(given: Given) -> Settings:
    found: Settings = {
        "model.source_vocab_size": _size(given, "vocab_size"),
        "model.target_vocab_size": _size(given, "vocab_size"),
        "model.d_model": _size(given, "d_model"),
        "model.dropout": given.get("dropout_rate", 0.1),
        "model.tie_embeddings": "all" if _tied(given) else "input",
        "model.output.scale": _flag(given, "scale_decoder_outputs", _tied(given)),
    }
    gate, _, name = str(given.get("feed_forward_proj", "relu")).rpartition("-")
    _only(given, "is_gated_act", bool(gate))
    # Files of T5 1.1 say gated-gelu, and mean the approximation by tanh.
    _only(given, "dense_act_fn", "gelu_new" if gate and name == "gelu" else name, None)
    known = {"relu": "relu", "gelu": "gelu", "silu": "silu"}
    gated = {"gelu": "geglu_tanh", "silu": "swiglu"}
    if name not in (gated if gate else known):
        raise _unsupported("feed_forward_proj", given.get("feed_forward_proj"), "relu, gelu, silu or gated-gelu")
    layers = {
        "encoder": _size(given, "num_layers", MOST),
        "decoder": _size(given, "num_decoder_layers", MOST, default=_size(given, "num_layers", MOST)),
    }
    for stack, n_steps in layers.items():
        start = f"model.{stack}"
        for kind in _attentions(stack):
            found[f"{start}.{kind}.n_heads"] = _size(given, "num_heads", MOST)
            found[f"{start}.{kind}.d_head"] = _size(given, "d_kv")
            found[f"{start}.{kind}.dropout"] = given.get("dropout_rate", 0.1)
        found |= {
            f"{start}.n_steps": n_steps,
            f"{start}.norm.eps": given["layer_norm_epsilon"],
            f"{start}.ffn.d_ff": _size(given, "d_ff"),
            f"{start}.ffn.activation": gated[name] if gate else known[name],
            f"{start}.ffn.dropout": given.get("dropout_rate", 0.1),
            f"{start}.relative.n_buckets": _size(given, "relative_attention_num_buckets"),
            f"{start}.relative.max_distance": given.get("relative_attention_max_distance", 128),
        }
    return found


def _attentions(stack: str) -> tuple[str, ...]:
    return ("self_attention", "cross_attention") if stack == "decoder" else ("self_attention",)


def _marian(given: Given) -> Settings:
    _only(given, "share_encoder_decoder_embeddings", True)
    _only(given, "tie_word_embeddings", True)
    _only(given, "decoder_vocab_size", _size(given, "vocab_size"), None)
    found: Settings = {
        "model.source_vocab_size": _size(given, "vocab_size"),
        "model.target_vocab_size": _size(given, "vocab_size"),
        "model.d_model": _size(given, "d_model"),
        "model.dropout": given.get("dropout", 0.1),
        "model.embedding_scale": _flag(given, "scale_embedding", False),
    }
    for stack in ("encoder", "decoder"):
        start = f"model.{stack}"
        for kind in _attentions(stack):
            found[f"{start}.{kind}.n_heads"] = _size(given, f"{stack}_attention_heads", MOST)
            found[f"{start}.{kind}.dropout"] = given.get("attention_dropout", 0.0)
        found |= {
            f"{start}.n_steps": _size(given, f"{stack}_layers", MOST),
            f"{start}.ffn.d_ff": _size(given, f"{stack}_ffn_dim"),
            f"{start}.ffn.activation": _activation(given, "activation_function"),
            f"{start}.ffn.dropout": given.get("activation_dropout", 0.0),
        }
    return found


def _bart(given: Given) -> Settings:
    length = _size(given, "max_position_embeddings")
    return {
        **_marian(given),
        **_learned("encoder", length),
        **_learned("decoder", length),
        "data.max_source_length": length,
        "data.max_target_length": length,
        "decoding.max_length": length,
        "decoding.max_length_ratio": 0.0,
    }


_GPT2 = Architecture("dense/gpt2-124m", _gpt2, gpt2, "transformer.")
_LLAMA = Architecture("dense/llama-3.2-1b", _dense_llama, llama, "model.")
_BART = Architecture("dense/bart-base", _bart, bart, "model.")
_BERT = Architecture("dense/bert-base", _bert, bert)
_ALBERT = Architecture("dense/albert-base", _albert, albert)
_T5 = Architecture("dense/t5-small", _t5, t5)
ARCHITECTURES = {
    "GPT2LMHeadModel": _GPT2,
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": Architecture("dense/llama-3.2-1b", _mistral, llama, "model."),
    "Qwen2ForCausalLM": Architecture("dense/llama-3.2-1b", _qwen2, llama, "model."),
    "Qwen3ForCausalLM": Architecture("dense/qwen3-0.6b", _qwen3, llama, "model."),
    "MixtralForCausalLM": Architecture("dense/mixtral-8x7b", _mixtral, llama),
    "HrmTextForCausalLM": Architecture("looped/hrm-text-1b", _hrm_text, hrm_text),
    "JetMoeForCausalLM": Architecture("dense/jetmoe-8b", _jetmoe, jetmoe),
    "ModernBertForMaskedLM": Architecture("dense/modernbert-base", _modernbert, modernbert),
    "BertForMaskedLM": _BERT,
    "BertForPreTraining": _BERT,
    "AlbertForMaskedLM": _ALBERT,
    "AlbertForPreTraining": _ALBERT,
    "T5ForConditionalGeneration": _T5,
    "T5WithLMHeadModel": _T5,
    "MarianMTModel": Architecture("dense/marian-opus", _marian, bart, "model."),
    "BartForConditionalGeneration": _BART,
    "BartModel": _BART,
}
"""By the name in config.json."""
