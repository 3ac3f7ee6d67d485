"""Rules that tables of names have in common: affine maps, norms, and attention with maps of its own for q, k and v."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.config.sub_layers import AttentionConfig
from ostinato.interop.weights import Change, Part, Rule


def both(
    ours: str, *theirs: str, sizes: Sequence[int | None] = (None,), changes: tuple[Change, ...] = ()
) -> list[Rule]:
    """Return the rules of weight and bias of a map or a norm.

    Args:
        ours, theirs: before `.weight` and `.bias`. sizes: outputs of every one of theirs, where there are several.
        changes: of the weight.
    """
    parts = list(zip(theirs, sizes, strict=True))
    return [
        Rule(f"{ours}.weight", *(Part(f"{name}.weight", changes, size=size) for name, size in parts)),
        Rule(f"{ours}.bias", *(Part(f"{name}.bias", size=size) for name, size in parts)),
    ]


def weights(ours: str, *theirs: str, sizes: Sequence[int | None] = (None,)) -> list[Rule]:
    """Return the rule of the weight of a map or a norm without a bias; arguments as of `both`."""
    return both(ours, *theirs, sizes=sizes)[:1]


def attention_rules(
    config: AttentionConfig,
    d_model: int,
    ours: str,
    theirs: str,
    names: Sequence[str] = ("q_proj", "k_proj", "v_proj", "o_proj"),
) -> list[Rule]:
    """Return the rules of an attention with maps of its own for queries, keys and values.

    Args:
        ours: its parameter set, with its bank. theirs: before the names. names: of queries, keys, values and output.
    """
    width = config.head_width(d_model)
    sizes = [heads * width for heads in (config.n_heads, config.n_key_heads, config.n_key_heads)]
    *of_inputs, out = (f"{theirs}.{name}" for name in names)
    inputs, output = both if config.bias in (True, "qkv") else weights, both if config.bias is True else weights
    rules = [*inputs(f"{ours}.qkv", *of_inputs, sizes=sizes), *output(f"{ours}.out", out)]
    if config.bias == "qk":
        biases = zip(of_inputs[:2], sizes[:2], strict=True)
        rules.append(Rule(f"{ours}.qk_bias", *(Part(f"{name}.bias", size=size) for name, size in biases)))
    if config.qk_norm == "rms":
        rules += [Rule(f"{ours}.{name}_norm.weight", f"{theirs}.{name}_norm.weight") for name in "qk"]
    return rules
