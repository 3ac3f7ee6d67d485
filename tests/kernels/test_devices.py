"""What is asked of torch about devices and tracing, in ways that all of its versions answer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ostinato.kernels import autocast_dtype, is_exporting
from ostinato.kernels.choose import numbers
from ostinato.kernels.devices import moved, on_device, wait_for


@pytest.mark.parametrize("kind", ["cpu", "cuda", "mps", "xpu", "meta"])
def test_devices_without_autocast_are_those_that_torch_knows(kind: str) -> None:
    device = torch.device(kind)
    assert autocast_dtype(device) is None
    if torch.amp.is_autocast_available(kind):
        torch.is_autocast_enabled(kind)  # what the answer was read from
    else:
        with pytest.raises(RuntimeError):
            torch.is_autocast_enabled(kind)


def test_numbers_of_the_host_are_made_there_whatever_the_default_device_is() -> None:
    cpu = torch.device("cpu")
    expected = numbers((2, 3), cpu, torch.float32)
    with torch.device("meta"):
        assert torch.equal(numbers((2, 3), cpu, torch.float32), expected)
        assert on_device([3, 4], cpu).tolist() == [3, 4]


def test_rows_with_gaps_between_them_are_pinned_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = list[Tensor]()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(Tensor, "pin_memory", lambda x: pinned.append(x) or x)
    monkeypatch.setattr(Tensor, "to", lambda x, *_, **__: x)
    every_second_row = torch.arange(8).view(4, 2)[::2]
    assert moved(every_second_row, "cuda").tolist() == [[0, 1], [4, 5]]
    assert [x.is_contiguous() for x in pinned] == [True]


def test_what_is_compiled_pins_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = list[Tensor]()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(Tensor, "pin_memory", lambda x: pinned.append(x) or x)
    monkeypatch.setattr(Tensor, "to", lambda x, *_, **__: x)
    x = torch.ones(2)
    assert moved(x, "cuda") is x
    assert len(pinned) == 1
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert moved(x, "cuda") is x
    assert len(pinned) == 1


@pytest.mark.parametrize(("device", "waits"), [("cuda", False), ("meta", False), ("mps", True), ("cpu", True)])
def test_only_what_may_be_read_later_is_sent_without_a_wait(
    monkeypatch: pytest.MonkeyPatch, device: str, waits: bool
) -> None:
    asked = list[bool]()
    monkeypatch.setattr(Tensor, "to", lambda x, device, *, non_blocking: asked.append(non_blocking) or x)
    moved(torch.ones(2), device)
    on_device([3, 4], torch.device(device))
    assert asked == [not waits] * 2


def test_a_device_is_waited_for_by_its_own_means(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = list[str]()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waited.append(str(device)))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append("mps"))
    for name in ("cpu", "cuda:1", "mps", "meta"):
        wait_for(torch.device(name))
    assert waited == ["cuda:1", "mps"]


class Tells(torch.nn.Module):
    """Returns 1 where it is exported, 0 elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.ones_like(x) if is_exporting() else torch.zeros_like(x)


@pytest.mark.parametrize("strict", [False, True])
def test_a_pass_that_is_compiled_is_none_that_is_exported(strict: bool) -> None:
    x = torch.randn(2)
    assert Tells()(x).tolist() == [0, 0]
    assert torch.compile(Tells(), backend="eager", fullgraph=True)(x).tolist() == [0, 0]
    assert torch.export.export(Tells(), (x,), strict=strict).module()(x).tolist() == [1, 1]
    assert Tells()(x).tolist() == [0, 0]
