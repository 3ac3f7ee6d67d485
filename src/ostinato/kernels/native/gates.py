"""Gates of tokens that halt as compiled kernels: one call a round decides for all rows. Float32, on a CPU.

What a pass holds of its rows is changed in place; rows are contiguous. Plain twins: `ostinato.nn.act` and
`ostinato.nn.stick_breaking`. Letters: N rows, D width.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from ostinato.kernels.native.calls import MatrixOf, address, kernels, n_threads, room

MOST_ROWS = 320
"""Most rows of one call: for many more, separate products with packed copies of the weights are faster."""


_ENDS, _ACT, _STICK = range(3)


class _Rule(ctypes.Structure):
    _fields_ = [
        *(("kind", c_int64), ("ends", c_void_p), ("act", c_void_p), ("stick", c_void_p)),
        *(("enough", c_float), ("forces_remainder", c_int64), ("interpolates", c_int64)),
    ]


class HaltsBy:
    """What says who halts in `Chain.rounds`: numbers of rounds, or a gate.

    Args:
        n_rows: that it knows; None: any number. held: what the structure points into.
    """

    def __init__(self, structure: _Rule, held: Any, n_rows: int | None = None) -> None:
        self.structure, self._held, self.n_rows = structure, held, n_rows

    @classmethod
    def ends(cls, ends_N: Tensor) -> HaltsBy:
        """Return the rule that every row runs so many rounds, 1 or more."""
        ends_N = ends_N.long().contiguous()
        return cls(_Rule(_ENDS, ends_N.data_ptr()), ends_N, ends_N.shape[0])


class ActGate:
    """The gate of adaptive computation time: p = sigmoid(w x + b).

    Args:
        weight_1D, bias_1: w and b.
    """

    def __init__(self, weight_1D: Tensor, bias_1: Tensor) -> None:
        self._held: Any = (weight_1D, bias_1)
        self._map = MatrixOf.of(weight_1D, bias_1)

    def halts(self, threshold: float, *, forces_remainder: bool, interpolates: bool) -> HaltsBy:
        """Return the rule of this gate; see `ostinato.nn.act.Act`."""
        gate = ctypes.addressof(self._map)
        return HaltsBy(_Rule(_ACT, None, gate, None, threshold, forces_remainder, interpolates), self)

    def enter(
        self, x_ND: Tensor, total_N: Tensor, active_N: Tensor | None, threshold: float, *, is_last: bool
    ) -> tuple[Tensor, Tensor, int]:
        """Add this round's weights to `total_N`; return them, who goes on, and how many do.

        Args:
            x_ND: states that enter the round. active_N: who takes part; None: all.
            threshold: of the sum of p. is_last: whoever takes part halts after the round.
        """
        x_ND, n = x_ND.contiguous(), x_ND.shape[0]
        weight_N, next_N = room(n), torch.empty(n, dtype=torch.bool, device="cpu")
        given = x_ND.data_ptr(), n, address(active_N), threshold, is_last
        made = total_N.data_ptr(), weight_N.data_ptr(), next_N.data_ptr()
        return weight_N, next_N, kernels().act_enter(byref(self._map), *given, *made)

    @staticmethod
    def after(
        entered_ND: Tensor,
        left_ND: Tensor,
        weight_N: Tensor,
        mix_ND: Tensor,
        active_N: Tensor | None,
        *,
        interpolates: bool,
    ) -> Tensor:
        """Mix the states that left a round into `mix_ND`; return them, those that took no part as they entered."""
        left_ND, entered_ND = left_ND.contiguous(), entered_ND.contiguous()
        given = weight_N.data_ptr(), address(active_N), entered_ND.data_ptr(), interpolates
        kernels().act_after(*given, left_ND.data_ptr(), mix_ND.data_ptr(), *left_ND.shape)
        return left_ND


class _Stick(ctypes.Structure):
    _fields_ = [("hidden", MatrixOf), ("map", c_void_p), ("bias", c_void_p)]


class StickBreakingGate:
    """The gate of stick-breaking: log (1 - a), log a = log_softmax(V gelu(W h + b) + (0, c)).

    Args:
        hidden_DD, hidden_bias_D: W and b. map_2D: V. bias: c; None: there is none.
    """

    def __init__(self, hidden_DD: Tensor, hidden_bias_D: Tensor, map_2D: Tensor, bias: Tensor | None) -> None:
        self._held: Any = (hidden_DD, hidden_bias_D, map_2D, bias)
        self._gate = _Stick(MatrixOf.of(hidden_DD, hidden_bias_D), map_2D.data_ptr(), address(bias))

    def halts(self, least: float) -> HaltsBy:
        """Return the rule of this gate; `least`: mass to go on with."""
        return HaltsBy(_Rule(_STICK, None, None, ctypes.addressof(self._gate), least), self)

    def __call__(
        self,
        states_ND: Tensor,
        log_left_N: Tensor,
        left_N: Tensor,
        mean_ND: Tensor,
        active_N: Tensor | None,
        least: float,
    ) -> tuple[Tensor, int]:
        """Give out mass for the round that these states left; return who goes on, and how many do.

        Args:
            log_left_N, left_N: mass, changed to what is left after it; `left_N` becomes 0 for those that halt.
            mean_ND: states weighted by what they were given; who halts gets all that is left.
            least: mass to go on with.
        """
        states_ND, (n, _) = states_ND.contiguous(), states_ND.shape
        next_N, work = torch.empty(n, dtype=torch.bool, device="cpu"), room(*states_ND.shape)
        given = states_ND.data_ptr(), n, address(active_N), least
        masses = log_left_N.data_ptr(), left_N.data_ptr(), mean_ND.data_ptr()
        threads = n_threads(n * self._held[0].numel())
        made = kernels().stick_halt(byref(self._gate), *given, *masses, next_N.data_ptr(), work.data_ptr(), threads)
        return next_N, made
