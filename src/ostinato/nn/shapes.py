"""Shape annotations: jaxtyping's where it is installed (the test suite checks them), plain names elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ImportError:

        class _Plain:
            def __class_getitem__(cls, item: Any) -> type[Tensor]:
                return Tensor

        Bool = Float = Int = _Plain

__all__ = ["Bool", "Float", "Int", "Tensor"]
