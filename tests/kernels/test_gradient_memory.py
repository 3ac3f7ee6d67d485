"""Memory that gradients of large weights use again, and blocks the C library keeps."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ostinato.kernels import ExpertWeights, dispatch, expert_feed_forward, memory
from ostinato.kernels.memory import keep_freed_memory, room_for_gradient

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no private memory maps")


@pytest.fixture(autouse=True)
def _all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LEAST_BYTES", 1)


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def test_a_gradient_takes_the_memory_of_one_that_is_gone() -> None:
    weight = parameter(4, 3, 5, dtype=torch.float64)
    first = room_for_gradient(weight)
    address = first.data_ptr()
    assert (first.shape, first.dtype, first.is_contiguous()) == (weight.shape, weight.dtype, True)
    del first
    assert room_for_gradient(weight).data_ptr() == address


def test_a_gradient_that_somebody_holds_keeps_its_memory() -> None:
    weight = parameter(4, 3, 5)
    first = room_for_gradient(weight).fill_(1.0)
    part = first[1]
    second = room_for_gradient(weight).fill_(2.0)
    del first
    third = room_for_gradient(weight).fill_(3.0)
    assert len({part.untyped_storage().data_ptr(), second.data_ptr(), third.data_ptr()}) == 3
    assert part.eq(1.0).all()
    assert second.eq(2.0).all()
    weight.grad = second
    del second
    assert room_for_gradient(weight).data_ptr() != weight.grad.data_ptr()
    assert weight.grad.eq(2.0).all()


def test_weights_do_not_share_memory_and_take_theirs_with_them() -> None:
    before = len(memory._blocks)
    weights = [parameter(4, 3, 5), parameter(4, 3, 5)]
    grads = [room_for_gradient(weight).fill_(float(n)) for n, weight in enumerate(weights)]
    assert [bool(grad.eq(float(n)).all()) for n, grad in enumerate(grads)] == [True, True]
    assert len(memory._blocks) == before + 2
    del weights
    gc.collect()
    assert len(memory._blocks) == before
    assert grads[1].eq(1.0).all()


def test_small_weights_and_what_is_no_parameter_have_ordinary_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(memory._blocks)
    transposed = parameter(3, 4, 5).transpose(1, 2)
    assert room_for_gradient(transposed).shape == (3, 5, 4)
    assert room_for_gradient(transposed).is_contiguous()
    monkeypatch.setattr(memory, "LEAST_BYTES", 2**25)
    room_for_gradient(parameter(3, 4, 5))
    assert len(memory._blocks) == before


def test_a_changed_type_gets_memory_of_its_size() -> None:
    weight = torch.nn.Parameter(torch.randn(4, 3, 5))
    room_for_gradient(weight)
    weight.data = weight.data.double()
    assert room_for_gradient(weight).dtype == torch.float64


@pytest.mark.parametrize("n_uses", [1, 3])
def test_gradients_of_shared_experts_equal_those_of_fresh_memory(n_uses: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    weights = ExpertWeights(parameter(4, 6, 8), parameter(4, 8), parameter(4, 8, 6), parameter(4, 6))
    experts, gates = torch.randint(0, 3, (9, 2)), torch.rand(9, 2)
    to, x = dispatch(experts, 4), torch.randn(9, 6)  # the last expert has no rows

    def update() -> list[Tensor]:
        states = x
        for _ in range(n_uses):
            states = states + expert_feed_forward(states, weights, gates, to, "gelu", backend="segments")
        states.square().sum().backward()  # type: ignore[no-untyped-call]
        assert weights.up_EDF.grad is not None
        addresses.append(weights.up_EDF.grad.data_ptr())
        found = [weight.grad.clone() for weight in weights if weight is not None and weight.grad is not None]
        for weight in weights:
            if weight is not None:
                weight.grad = None
        return found

    addresses: list[int] = []
    updates = [update() for _ in range(3)]
    assert len(set(addresses)) == 1
    assert len(memory._blocks[weights.up_EDF]) == min(n_uses, 2), "more uses are added in place"
    monkeypatch.setattr(memory, "LEAST_BYTES", 2**25)
    expected = update()
    for found in updates:
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


_FAULTS = """
import random, resource, sys, torch
from ostinato.kernels.memory import keep_freed_memory
told = keep_freed_memory() if sys.argv[1] == "keep" else False
draw = random.Random(0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt  # of what is imported
for _ in range(8):
    held = []
    for _ in range(40):
        held.append(torch.empty(draw.choice([1, 2, 3, 5, 7]) * 2**20).fill_(1.0))
        if len(held) > 6:
            held.pop(draw.randrange(6))
    del held
print(told, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*, keep: bool) -> tuple[bool, int]:
    """Return whether the library was told, and how many new pages blocks of 4 to 28 MiB took that come and go."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", _FAULTS, "keep" if keep else "leave"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=own).stdout.split()
    return said[0] == "True", int(said[1])


@pytest.mark.slow
def test_kept_memory_needs_few_new_pages() -> None:
    told, n_faults = faults(keep=True)
    if not told:
        pytest.skip("not the GNU C library")
    assert n_faults < faults(keep=False)[1] / 2


def test_what_the_environment_says_of_memory_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TOP_PAD_", "1000000")
    assert keep_freed_memory() is False


_LOOP = """
import ctypes, sys
told = []
class Library(ctypes.CDLL):
    def __getattr__(self, name):
        told.extend(["mallopt"] * (name == "mallopt"))
        return super().__getattr__(name)
ctypes.CDLL = Library
import torch
import ostinato as o
if sys.argv[1] == "keep":
    o.keep_freed_memory()
torch.manual_seed(0)
stack = {"n_steps": 2, "ffn": {"d_ff": 512}, "self_attention": {"n_heads": 4}}
sizes = {"d_model": 128, "source_vocab_size": 3000, "target_vocab_size": 3000}
decoder = stack | {"cross_attention": {"n_heads": 4}}
model = o.build_model(o.Seq2SeqConfig.model_validate({"encoder": stack, "decoder": decoder, **sizes}))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
rows = torch.randint(4, 3000, (32, 12)).tolist()
for _ in range(3):
    loss = model.loss(o.Batch.from_lists(rows, rows))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(float(loss).hex(), float(sum(p.double().sum() for p in model.parameters())).hex(), bool(told))
"""


@pytest.mark.slow
def test_a_loop_of_ones_own_learns_the_same_whether_freed_memory_is_kept_or_not() -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    (*kept, was_told), (*left, is_told) = (
        subprocess.run(
            [sys.executable, "-c", _LOOP, how], capture_output=True, text=True, check=True, env=own
        ).stdout.split()
        for how in ("keep", "leave")
    )
    assert kept == left
    assert (was_told, is_told) == ("True", "False"), "the C library is told when asked to, by no import and no model"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says what a program alone has held")
def test_the_peak_of_memory_is_not_that_of_the_program_that_started_this_one() -> None:
    child = "import torch; from ostinato.kernels import peak_memory; print(peak_memory(torch.device('cpu')))"
    parent = f"""
import subprocess, sys
held = bytearray(3 * 2**29)
held[::4096] = bytes([1]) * len(held[::4096])
print(subprocess.run([sys.executable, "-c", {child!r}], capture_output=True, text=True, check=True).stdout)
"""
    said = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=True).stdout
    assert 2**24 < int(said) < 2**30
