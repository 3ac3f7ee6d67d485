"""What the operations of cached decoding are for."""

from __future__ import annotations

from layer_parts import Sizes

_PURPOSE = {
    "sub-layers in one call": ("chain",),
    "gates of tokens that may halt": ("act_enter", "act_after", "stick_halt"),
    "products": (
        "few_rows",
        "linear",
        "addmm",
        "mm",
        "matmul",
        "bmm",
        "baddbmm",
        "_linear_pointwise",
        "_reorder_linear_weight",
        "large_product",
        "grouped_products",
    ),
    "attention": (
        "read_cache",
        "full_attention",
        "scaled_dot_product_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "softmax",
    ),
    "norms": ("layer_norm", "rms_norm"),
    "additions and activations": ("add", "add_", "relu", "relu_", "clamp_min_", "mul", "mul_", "addcmul"),
    "caches": ("copy_", "cat", "stack", "index_select", "index", "index_copy_", "contiguous", "clone", "gather"),
    "scores and choices": (
        "log_softmax",
        "logsumexp",
        "topk",
        "argmax",
        "max",
        "sort",
        "where",
        "masked_fill",
        "masked_fill_",
        "item",
        "tolist",
        "eq",
        "ne",
        "lt",
        "gt",
        "ge",
        "any",
        "all",
        "nonzero",
    ),
    "views": (
        "view",
        "reshape",
        "_unsafe_view",
        "transpose",
        "unbind",
        "select",
        "slice",
        "flatten",
        "expand",
        "squeeze",
        "unsqueeze",
        "permute",
        "as_strided",
        "chunk",
        "split",
        "t",
        "unflatten",
    ),
}
_NAMES = {operation: part for part, operations in _PURPOSE.items() for operation in operations}


def purpose(operation: str, sizes: Sizes, direction: str) -> str:
    """Return the part of a search that an operation belongs to."""
    return _NAMES.get(operation, "other operations")
