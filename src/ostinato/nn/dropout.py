"""What modules that drop something have in common."""

from __future__ import annotations

from ostinato.kernels import Draws, drop
from ostinato.nn.shapes import Tensor


class Drops:
    """A module with a probability of dropout, which acts in training only."""

    training: bool
    dropout: float
    draws: Draws = "auto"
    """Where random numbers come from, see `ostinato.kernels.dropout`."""

    @property
    def drops(self) -> bool:
        """Whether anything is dropped now."""
        return self.training and self.dropout > 0.0

    def drop(self, x: Tensor) -> Tensor:
        """Return x, in training dropped."""
        return drop(x, self.dropout, self.draws) if self.drops else x
