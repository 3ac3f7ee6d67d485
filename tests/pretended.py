"""A device that is none: tensors that say they are elsewhere and live on the CPU, so that what a GPU would punish can
be counted on a machine without one.

    with pretended_device() as device:
        pretend_model(model)                 # its parameters say `meta`
        ...                                  # run what is to be looked at
    device.waits                             # what would have made the host wait, with the line of the library

The tensors hold real numbers, so that code that depends on them runs as it would: rows are gathered, hypotheses end.
They call their device `meta`, the one that torch knows everywhere; the library asks only whether a device is the CPU.

A wait is counted where CUDA's streams are waited for (`torch.cuda.set_sync_debug_mode` warns of the same): numbers read
by the host, results whose size depends on numbers, and copies in either direction that do not say `non_blocking`. A
launch is every other operation that is no view and makes no empty memory: a kernel or more.

What it cannot show: kernels that torch has for CUDA only (fused attention and fused AdamW count as their parts), and
time.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

import ostinato
from ostinato.nn import loops, positions

DEVICE = torch.device("meta")
_LIBRARY = str(Path(ostinato.__file__).parent)
_BY_NUMBERS = (
    *("_local_scalar_dense", "nonzero", "masked_select", "bincount", "equal", "is_nonzero", "histc"),
    *("_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive"),
)
"""Operations that read numbers on the host, or whose result has a size that numbers decide."""
_OF_OTHERS = torch._C.DispatchKey.CompositeImplicitAutograd
_NO_LAUNCH = ("detach", "alias", "_unsafe_view", "lift_fresh", "empty", "empty_like", "empty_strided", "new_empty")


@dataclass(frozen=True)
class Wait:
    """One time that the host would have waited: the operation, and the line of the library that asked for it."""

    operation: str
    line: str


class Pretended(Tensor):
    """A tensor on the device that is none; `held` is the one with the numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Pretended:
        with torch.inference_mode(False):  # autograd could not follow views of parameters into such a tensor
            made: Any = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
                cls,
                held.size(),
                strides=held.stride(),
                storage_offset=held.storage_offset(),
                dtype=held.dtype,
                layout=held.layout,
                device=DEVICE,
            )
        made.held = held
        return made  # type: ignore[no-any-return]

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Pretended({self.held!r})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held"], None

    def tolist(self) -> Any:
        """Return the numbers: torch does not know how to, of tensors of other classes."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _MadeOnTheHost(TorchFunctionMode):
    """`torch.tensor(numbers, device=...)` makes the tensor on the CPU and copies it, where dispatch can see it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        return func(*args, **kwargs)


class PretendedDevice(TorchDispatchMode):
    """Counts inside; `waits` in order, `launches` by operation."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[Wait] = []
        self.launches: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and _is_made_of_others(func):
            with self:
                return func._op_dk(_OF_OTHERS, *args, **kwargs)
        found = _run(func, args, kwargs)
        name = func.overloadpacket.__name__
        if any(isinstance(x, Pretended) for x in _tensors((args, kwargs, found))):
            if _waits(name, args, kwargs, found):
                self.waits.append(Wait(name, _line()))
            elif not func.is_view and name not in _NO_LAUNCH and "profiler" not in str(func):
                self.launches[name] += 1
        return found

    @property
    def n_launches(self) -> int:
        """Kernels that would have been launched."""
        return sum(self.launches.values())

    def forget(self) -> None:
        """Count anew."""
        self.waits.clear()
        self.launches.clear()


@contextmanager
def pretended_device() -> Iterator[PretendedDevice]:
    """Count what is done inside. Tables that are kept for `meta` are of another device before, in it, and after it."""
    _forget_tables()
    try:
        with PretendedDevice() as device, _MadeOnTheHost():
            yield device
    finally:
        _forget_tables()


def _forget_tables() -> None:
    for table in (positions._table, loops._noise):
        table.cache_clear()


def pretend_model(model: nn.Module) -> None:
    """Move the parameters and buffers of a model to the device; what is shared stays shared."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:
                new = nn.Parameter(Pretended(parameter.detach()), requires_grad=parameter.requires_grad)
                made[id(parameter)] = new
            module._parameters[name] = made[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = Pretended(buffer)


def numbers_of(x: Tensor) -> Tensor:
    """Return a tensor's numbers on the CPU, without a wait."""
    return x.held if isinstance(x, Pretended) else x


def _tensors(given: Any) -> list[Tensor]:
    """Return the tensors among arguments; torch's own walk over them takes most of the time."""
    if isinstance(given, Tensor):
        return [given]
    if isinstance(given, dict):
        given = given.values()
    elif not isinstance(given, (list, tuple)):
        return []
    return [x for one in given for x in _tensors(one)]


def _mapped(given: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return arguments or results with their tensors changed."""
    if isinstance(given, Tensor):
        return change(given)
    if isinstance(given, dict):
        return {name: _mapped(one, change) for name, one in given.items()}
    return type(given)(_mapped(one, change) for one in given) if type(given) in (list, tuple) else given


def _run(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on what is held; its results are where they would be."""
    given = _tensors((args, kwargs))
    here = any(isinstance(x, Pretended) for x in given)
    name = func.overloadpacket.__name__  # type: ignore[attr-defined]
    stray = [x for x in given if not isinstance(x, Pretended) and x.ndim]
    if here and stray and name not in ("copy_", "_to_copy"):
        raise RuntimeError(f"{func}: a tensor on the CPU beside one on the device, {_line()}")
    own_args, own_kwargs = _mapped(args, numbers_of), _mapped(kwargs, numbers_of)
    device = kwargs.get("device")
    if device is not None:
        here = torch.device(device).type == DEVICE.type
        own_kwargs["device"] = torch.device("cpu")
    found = func(*own_args, **own_kwargs)
    if name == "_local_scalar_dense":
        return found
    if here:
        found = _mapped(found, Pretended)
    if any(isinstance(x, Pretended) for x in given) and here:
        return return_and_correct_aliasing(func, args, kwargs, found)
    return found


@cache
def _is_made_of_others(func: Any) -> bool:
    """Return whether an operation is made of others, which in inference mode torch would not show by themselves."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _waits(name: str, args: Any, kwargs: dict[str, Any], found: Any) -> bool:
    """Return whether an operation with tensors of the device makes the host wait."""
    if name in _BY_NUMBERS:
        return True
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    if name in ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"):
        return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
    if name == "_to_copy" and kwargs.get("device") is not None:
        is_here = isinstance(args[0], Pretended)
        crosses = is_here != (torch.device(kwargs["device"]).type == DEVICE.type)
        # A copy to the host must be waited for before its numbers are read, whatever it says.
        return crosses and (is_here or not kwargs.get("non_blocking", False))
    if name == "copy_" and isinstance(args[0], Pretended) != isinstance(args[1], Pretended):
        non_blocking = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
        return isinstance(args[1], Pretended) or not non_blocking
    return False


def _line() -> str:
    """Return the innermost line of the library that is running."""
    for frame in reversed(traceback.extract_stack()):
        if frame.filename.startswith(_LIBRARY):
            return f"{Path(frame.filename).relative_to(_LIBRARY)}:{frame.lineno}: {frame.line}"
    return "?"
