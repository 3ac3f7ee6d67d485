"""A model whose steps share weights as one whose every step has its own, and that one under another library's names.

    step i of the new model has a copy of what step i of the old one runs: weights, norms

The two compute the same. Models in whose rounds something else happens (halting, input that enters every round,
vectors or deltas of a round, coordinates) are refused: a ConfigError names every such setting.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig, StackModelConfig
from ostinato.config.positions import NoScalingConfig, RotaryConfig
from ostinato.config.schema import leaves
from ostinato.config.special_ids import SpecialIds
from ostinato.config.stack import StackConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig
from ostinato.errors import ConfigError, Problem, see
from ostinato.interop.architectures import ARCHITECTURES
from ostinato.interop.weights import from_ours
from ostinato.models import Model
from ostinato.plan import Plan
from ostinato.tasks.recipes import load_recipe

_OF_SEGMENTS = ("start", "inject", "vectors", "time", "round_norm", "end_map", "end_norm")
_IGNORED = ("dropout", "init", "special_ids", "description", "random_offset", "random_offsets")
Weights = dict[str, Tensor]


Prepared = tuple[Any, Weights, list[int]]
"""The configuration of an unrolled model, its parameters, and of every id of it the one of the model it was."""


@dataclass(frozen=True)
class Written:
    """A plain model: the content of its config.json, tensors by their names, and of every id of it the one of ours."""

    config: dict[str, Any]
    tensors: Weights
    ids: list[int]


def unroll(model: Model) -> tuple[StackModelConfig, dict[str, Tensor]]:
    """Return the configuration and the parameters of a model with a parameter set of its own for every executed step.

    Raises:
        ConfigError: a recurrence, or rounds in which more happens than their steps: every setting.
    """
    config = model.config
    if not isinstance(config, Seq2SeqConfig | LanguageModelConfig):
        reason = f"only encoder-decoder and language models made of stacks are unrolled{see('hugging-face')}"
        raise ConfigError([Problem("model.kind", config.kind, reason)])
    given = config.stacks()
    problems = [one for name, stack in given.items() for one in _problems(name, stack, stack.plan(name))]
    if (criterion := model.current_execution.exit) is not None:
        reason = "a plain model runs all its steps: load the run without it (halting-threshold.json may have chosen it)"
        problems.append(Problem("exit", criterion, reason))
    if problems:
        raise ConfigError(problems)
    stacks = {name: _individual(stack, len(stack.plan(name).steps)) for name, stack in given.items()}
    new = config.model_copy(update={**stacks, "ffn_variant": None, "shared_d_ff": None})
    ours = {name: x.detach() for name, x in model.named_parameters()}
    copied: dict[str, Tensor] = {}
    taken: set[str] = set()
    for name, stack in stacks.items():
        for old_name, new_name in _renamed(given[name].plan(name), stack.plan(name)):
            for key, x in ours.items():
                if key.startswith(f"{old_name}."):
                    copied[f"{new_name}.{key.removeprefix(f'{old_name}.')}"] = x.clone()
                    taken.add(key)
    return new, {key: x.clone() for key, x in ours.items() if key not in taken} | copied


def _problems(name: str, stack: StackConfig, plan: Plan) -> Iterator[Problem]:
    path = f"model.{name}."
    if stack.halting.kind != "none":
        yield Problem(f"{path}halting.kind", stack.halting.kind, "a plain model has no halting: must be none")
    if stack.positions.kind == "coordinates":
        yield Problem(f"{path}positions.kind", "coordinates", "are added in every round, which a plain model does not")
    if stack.value_embeddings is not None:
        yield Problem(f"{path}value_embeddings", "set", "a plain model adds nothing to values: remove them")
    for number, segment in enumerate(plan.segments):
        has = [one for one in _OF_SEGMENTS if getattr(segment, one) is not None]
        has += ["states"] * bool(segment.phases) + ["keys"] * (segment.keys != "own")
        has += ["delta_rank"] * any(use.delta is not None for step in segment.steps for use in step.uses)
        has += ["modulation"] * any(use.modulation is not None for step in segment.steps for use in step.uses)
        for one in has:
            yield Problem(f"{path}segments.{number}", one, "a plain model has nothing like it")
    kinds = [kind for kind, _ in stack.sub_layers()]
    for step in plan.steps:
        if [use.kind for use in step.uses] != kinds:
            found = ", ".join(use.kind for use in step.uses)
            yield Problem(f"{path}step {step.index}", found, f"a plain layer has {', '.join(kinds)}")


def _individual(stack: StackConfig, n_steps: int) -> StackConfig:
    """Return a stack of so many steps, each with parameter sets of its own."""
    own = {"share": "individual", "n_unique": None, "bank": None, "share_norm": True}
    update: dict[str, Any] = {"n_steps": n_steps, "steps_per_round": 1, "segments": []}
    update |= {str(kind): sub.model_copy(update=own) for kind, sub in stack.sub_layers()}
    return stack.model_copy(update=update)


def _renamed(old: Plan, new: Plan) -> Iterator[tuple[str, str]]:
    """Yield what every parameter set is called before and after."""
    for before, after in zip(old.steps, new.steps, strict=True):
        for one, other in zip(before.uses, after.uses, strict=True):
            yield f"banks.{one.kind}.{one.weights}", f"banks.{other.kind}.{other.weights}"
            yield from ((f"banks.norm.{a}", f"banks.norm.{b}") for a, b in zip(one.norms, other.norms, strict=True))
            if one.position is not None and one.position != other.position:
                yield f"banks.relative.{one.position}", f"banks.relative.{other.position}"


def as_plain(model: Model, name: str, n_positions: int = 1024) -> Written:
    """Return a model as a plain one of another library: unrolled, under that library's names.

    Args:
        name: one of `PLAIN`. n_positions: the longest sequence that those who serve it are told of; of learned
            positions there are as many as there are.

    Raises:
        ConfigError: the library's model computes something else; every setting that differs.
    """
    if name not in PLAIN:
        raise ConfigError([Problem("as", name, f"must be one of {', '.join(PLAIN)}")])
    architecture, settings_of, prepare = PLAIN[name]
    known = ARCHITECTURES[architecture]
    if model.config.kind != (kind := load_recipe(known.recipe).model.kind):
        reason = f"{architecture} is of kind {kind!r}, and only such a model is written as one{see('hugging-face')}"
        raise ConfigError([Problem("model.kind", model.config.kind, reason)])
    config, ours, ids = prepare(*unroll(model))
    given: dict[str, Any] = {"architectures": [architecture], **settings_of(config, n_positions)}
    special = config.special_ids
    given |= {"pad_token_id": special.pad, "bos_token_id": special.bos, "eos_token_id": special.eos}
    settings = [f"{key}={json.dumps(value)}" for key, value in known.settings(given).items()]
    expected = load_recipe(known.recipe, settings)
    if problems := list(_differences(config, expected.model, architecture)):
        raise ConfigError(problems)
    return Written(given, from_ours(known.table(expected.model), ours), ids)


def _as_it_is(config: Any, ours: Weights) -> Prepared:
    return config, ours, list(range(len(ours["target_weight"])))


def _without_scale(config: Any, ours: Weights) -> Prepared:
    """Return a language model whose embeddings are not scaled: they are other ones, and not the output projection."""
    if isinstance(config, LanguageModelConfig) and config.embedding_factor != 1.0:
        ours.setdefault("output_weight", ours["target_weight"].clone())
        ours["target_weight"] = ours["target_weight"] * config.embedding_factor
        config = config.model_copy(update={"embedding_scale": False, "tie_embeddings": "none"})
    return _as_it_is(config, ours)


def _begun_by_zeros(config: Any, ours: Weights) -> Prepared:
    """Return a pair whose targets begin with a zero embedding, that of its last id, which is the padding's, too.

    With e the embedding of the begin symbol, s the scale of embeddings and c = s e, all embeddings become E - e. The
    first sub-layers read x - c in place of x, and give back what they take away (norms are behind them):

        W (x - c) + (b + W c) = W x + b                           queries, keys, values
        (x - c) + attended + (b_o + c) = x + attended + b_o       residual and output

    The tied projection gives every logit of a position the same number less, h e, so that probabilities stay.

    Engines of Marian take that embedding for granted, and leave out the last id. Begin symbol and padding, which are
    never written, become this one id.
    """
    first = [f"banks.self_attention.{stack}_0" for stack in ("encoder", "decoder")]
    names = {f"{one}.{map_}.bias" for one in first for map_ in ("qkv", "out")}
    if config.tie_embeddings != "all" or config.d_embedding is not None or not names <= ours.keys():
        return _as_it_is(config, ours)  # which Marian cannot be: `as_plain` says why
    special, table_VD = config.special_ids, ours["target_weight"]
    ids = [i for i in range(len(table_VD)) if i not in {special.pad, special.bos} - {special.eos}] + [special.bos]
    e_D = table_VD[special.bos]
    c_D = config.embedding_factor * e_D
    ours = ours | {"target_weight": table_VD[ids] - e_D}
    if "output_bias" in ours:
        ours["output_bias"] = ours["output_bias"][ids]
    for one in first:
        ours[f"{one}.qkv.bias"] = ours[f"{one}.qkv.bias"] + ours[f"{one}.qkv.weight"] @ c_D
        ours[f"{one}.out.bias"] = ours[f"{one}.out.bias"] + c_D
    sizes = {"source_vocab_size": len(ids), "target_vocab_size": len(ids)}
    new = SpecialIds(pad=len(ids) - 1, bos=len(ids) - 1, eos=ids.index(special.eos))
    return config.model_copy(update={**sizes, "special_ids": new}), ours, ids


def _differences(config: StackModelConfig, expected: Any, architecture: str) -> Iterator[Problem]:
    mine, theirs = dict(_normal(config)), dict(_normal(expected))
    for key in sorted(mine.keys() | theirs.keys()):
        if mine.get(key) != theirs.get(key) and not any(part in _IGNORED for part in key.split(".")):
            yield Problem(f"model.{key}", mine.get(key), f"{architecture} has {theirs.get(key)!r}")


def _normal(config: Any) -> Iterator[tuple[str, object]]:
    """Yield settings with what follows from others filled in."""
    filled: dict[str, object] = {}
    for name, stack in config.stacks().items():
        for kind, sub in stack.sub_layers():
            if isinstance(sub, AttentionConfig):
                filled[f"{name}.{kind}.n_kv_heads"] = sub.n_key_heads
                filled[f"{name}.{kind}.d_head"] = sub.head_width(config.d_model)
        filled[f"{name}.norm.final"] = stack.norm.has_final
        filled[f"{name}.norm.final_eps"] = stack.norm.of_final.eps
    for key, value in leaves(config.model_dump()):
        yield key, filled.get(key, value)
    yield "embedding_scale", config.embedding_factor


def _dense(stack: StackConfig) -> tuple[AttentionConfig, DenseFeedForwardConfig]:
    if not isinstance(stack.self_attention, AttentionConfig) or not isinstance(stack.ffn, DenseFeedForwardConfig):
        raise ConfigError(
            "only models with dense attention and dense feed-forwards are unrolled, not those of experts"
            + see("hugging-face")
        )
    return stack.self_attention, stack.ffn


def _llama(config: Any, n_positions: int) -> dict[str, Any]:
    stack = config.decoder
    attention, ffn = _dense(stack)
    rotary = stack.relative if isinstance(stack.relative, RotaryConfig) else RotaryConfig()
    if rotary.scaling != NoScalingConfig():
        raise ConfigError([Problem("model.decoder.relative.scaling", rotary.scaling.kind, "must be none")])
    return {
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": ffn.d_ff,
        "num_hidden_layers": stack.n_steps,
        "num_attention_heads": attention.n_heads,
        "num_key_value_heads": attention.n_key_heads,
        "head_dim": attention.head_width(config.d_model),
        "hidden_act": "silu",
        "rms_norm_eps": stack.norm.eps,
        "rope_theta": rotary.base,
        "rope_parameters": {"rope_type": "default", "rope_theta": rotary.base},
        "max_position_embeddings": n_positions,
        "attention_bias": attention.bias is True,
        "attention_dropout": attention.dropout,
        "mlp_bias": False,
        "tie_word_embeddings": config.tie_embeddings == "output",
    }


def _qwen3(config: Any, n_positions: int) -> dict[str, Any]:
    return {**_llama(config, n_positions), "model_type": "qwen3", "use_sliding_window": False}


def _gpt2(config: Any, n_positions: int) -> dict[str, Any]:
    stack = config.decoder
    attention, ffn = _dense(stack)
    return {
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_embd": config.d_model,
        "n_layer": stack.n_steps,
        "n_head": attention.n_heads,
        "n_positions": getattr(stack.positions, "max_length", n_positions),
        "n_inner": ffn.d_ff,
        "activation_function": _ACTIVATIONS.get(ffn.activation, "gelu_new"),
        "layer_norm_epsilon": stack.norm.eps,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": attention.dropout,
        "tie_word_embeddings": True,
    }


def _marian(config: Any, n_positions: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "model_type": "marian",
        "vocab_size": config.target_vocab_size,
        "d_model": config.d_model,
        "scale_embedding": config.embedding_factor != 1.0,
        "max_position_embeddings": n_positions,
        "is_encoder_decoder": True,
        "decoder_start_token_id": config.special_ids.bos,
        "forced_eos_token_id": None,
        "tie_word_embeddings": True,
        "dropout": config.dropout,
    }
    for name, stack in config.stacks().items():
        attention, ffn = _dense(stack)
        found |= {
            f"{name}_layers": stack.n_steps,
            f"{name}_attention_heads": attention.n_heads,
            f"{name}_ffn_dim": ffn.d_ff,
            "attention_dropout": attention.dropout,
            "activation_dropout": ffn.dropout,
            "activation_function": _ACTIVATIONS.get(ffn.activation, "gelu"),
        }
    return found


def _bart(config: Any, n_positions: int) -> dict[str, Any]:
    n_positions = getattr(config.encoder.positions, "max_length", n_positions)
    # What older files say of their norms, which converters read: behind sub-layers, and one of the embeddings.
    norms = {"normalize_before": False, "normalize_embedding": True}
    return {**_marian(config, n_positions), "model_type": "bart", **norms}


def _t5(config: Any, n_positions: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "model_type": "t5",
        "vocab_size": config.target_vocab_size,
        "d_model": config.d_model,
        "num_layers": config.encoder.n_steps,
        "num_decoder_layers": config.decoder.n_steps,
        "tie_word_embeddings": config.tie_embeddings == "all",
        "dropout_rate": config.dropout,
        "is_encoder_decoder": True,
        "decoder_start_token_id": config.special_ids.bos,
    }
    attention, ffn = _dense(config.decoder)
    relative = config.decoder.relative
    return found | {
        "d_kv": attention.head_width(config.d_model),
        "num_heads": attention.n_heads,
        "d_ff": ffn.d_ff,
        "feed_forward_proj": _T5_FEED_FORWARDS.get(ffn.activation, "relu"),
        "layer_norm_epsilon": config.decoder.norm.eps,
        "relative_attention_num_buckets": getattr(relative, "n_buckets", 32),
        "relative_attention_max_distance": getattr(relative, "max_distance", 128),
    }


# An activation that is not in these tables is written as the architecture's usual one: then `_differences` names the
# setting, and the model is refused.
_ACTIVATIONS = {"relu": "relu", "relu2": "relu2", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}
_T5_FEED_FORWARDS = {
    "relu": "relu",
    "gelu": "gelu",
    "silu": "silu",
    "geglu_tanh": "gated-gelu",
    "swiglu": "gated-silu",
}
PLAIN: dict[str, tuple[str, Callable[[Any, int], dict[str, Any]], Callable[[Any, Weights], Prepared]]] = {
    "llama": ("LlamaForCausalLM", _llama, _without_scale),
    "qwen3": ("Qwen3ForCausalLM", _qwen3, _without_scale),
    "gpt2": ("GPT2LMHeadModel", _gpt2, _as_it_is),
    "marian": ("MarianMTModel", _marian, _begun_by_zeros),
    "bart": ("BartForConditionalGeneration", _bart, _as_it_is),
    "t5": ("T5ForConditionalGeneration", _t5, _as_it_is),
}
"""By name: the architecture, what its config.json says of a model of ours, and what becomes of that model before."""
