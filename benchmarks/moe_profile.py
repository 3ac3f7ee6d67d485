"""What the operations of a mixture of feed-forwards are for."""

from __future__ import annotations

from layer_parts import FORWARD, Sizes
from moe_layers import Cell

_PURPOSE = {
    "gate": (
        "softmax",
        "_softmax",
        "topk",
        "_softmax_backward_data",
        "gather",
        "gather_backward",
        "div",
        "scatter_add",
    ),
    "dispatch": (
        "sort",
        "argsort",
        "bincount",
        "cumsum",
        "arange",
        "floor_divide",
        "repeat_interleave",
        "item",
        "tolist",
    ),
    "rows taken out": ("index_select", "index", "slice_backward"),
    "rows put back": ("index_add", "index_add_", "index_copy", "index_copy_", "index_put_", "cat"),
    "activation": (
        "drop_relu",
        "drop_relu_gradient",
        "relu",
        "relu_",
        "clamp_min",
        "clamp_min_",
        "gelu",
        "gelu_",
        "threshold_backward",
        "gelu_backward",
    ),
    "sums and products with gates": (
        "row_products",
        "mul",
        "mul_",
        "sum",
        "add",
        "add_",
        "addcmul_",
        "bmm",
        "addmv_",
        "masked_fill_",
    ),
    "room made": ("empty", "new_empty", "new_zeros", "zeros", "empty_like", "zeros_like", "zero_", "fill_", "clone"),
}
_NAMES = {operation: part for part, operations in _PURPOSE.items() for operation in operations}
_PRODUCTS = ("mm", "addmm", "matmul", "linear", "_grouped_mm", "grouped_mm", "baddbmm")


def purpose(cell: Cell, operation: str, sizes: Sizes, direction: str) -> str:
    """Return the part of a layer that an operation belongs to; products are told apart by their sizes."""
    if operation in ("large_product", "grouped_products"):  # of which a profile shows no sizes
        return "products by a kernel of ours"
    if operation not in _PRODUCTS:
        return _NAMES.get(operation, "other operations")
    matrices = [size for size in sizes if len(size) >= 2]
    if any(cell.n_experts in size[-2:] for size in matrices):
        return "router"
    right = tuple(matrices[1][-2:]) if len(matrices) > 1 else ()
    if right == (cell.d_model, cell.d_ff):
        return "up" if direction == FORWARD else "gradient of hidden units"
    if right == (cell.d_ff, cell.d_model):
        return "down" if direction == FORWARD else "gradient of inputs"
    return "gradients of weights"
