"""One process of several, without the others: its share of a batch, its device, its place in the environment."""

from __future__ import annotations

import logging
import signal
import socket
from typing import Any

import pytest
import torch
from routed_models import tiny_batches
from torch import Tensor, nn

from ostinato.cli import main
from ostinato.errors import ConfigError
from ostinato.training import gradients, processes
from ostinato.training.gradients import all_reduce_gradients
from ostinato.training.processes import SINGLE_PROCESS, Interrupts, Processes
from ostinato.training.rng import seed_everything, seed_rank

LAUNCHED = ("RANK", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def test_one_process_is_alone_and_does_nothing_about_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (None, "1"):
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        if size is not None:
            monkeypatch.setenv("WORLD_SIZE", size)
        assert Processes.from_environment() == SINGLE_PROCESS
    [batch, _] = tiny_batches()
    assert SINGLE_PROCESS.shard(batch) is batch
    calls = []
    assert SINGLE_PROCESS.with_all_reduced(lambda add_up: calls.append(add_up(batch.labels_BT))) is None
    assert len(calls) == 1
    assert calls[0] is batch.labels_BT
    before = signal.getsignal(signal.SIGINT)
    with Interrupts(SINGLE_PROCESS) as interrupts:
        assert not interrupts.is_pending()
        signal.raise_signal(signal.SIGINT)
        assert interrupts.is_pending()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    with Interrupts(SINGLE_PROCESS) as interrupts, interrupts.at_once(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts(SINGLE_PROCESS) as interrupts:
            signal.raise_signal(signal.SIGINT)
            assert not interrupts.is_pending()
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_shares_of_all_processes_are_the_batch_and_some_may_be_empty() -> None:
    [batch, _] = tiny_batches()
    shares = [Processes(rank, 5).shard(batch) for rank in range(5)]
    assert [share.n_sentences for share in shares] == [1, 1, 1, 0, 0]
    assert sum(share.n_labels for share in shares) == batch.n_labels
    first, second = (Processes(rank, 2).shard(batch) for rank in range(2))
    assert torch.equal(first.labels_BT, batch.labels_BT[::2])
    assert second.source is not None
    assert batch.source is not None
    assert torch.equal(second.source.ids_BT, batch.source.ids_BT[1::2])


def test_a_process_that_knows_only_how_many_there_are_is_told_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"WORLD_SIZE is '2': RANK, MASTER_ADDR, MASTER_PORT not set: .* torchrun"):
        Processes.from_environment()
    # Whoever is not the first says who it is, and nothing else.
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as ended:
        main(["train", "digits/universal", "--run-dir", "never-written"])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("process 1: environment variable WORLD_SIZE is '2': MASTER_ADDR")
    assert logging.getLogger("ostinato").level == logging.NOTSET  # whoever called it goes on and is told things


def test_a_port_that_another_program_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ConfigError, match=rf"MASTER_PORT is '{port}': another program has this port"):
            Processes.from_environment()


def test_several_processes_are_refused_a_device_that_they_cannot_talk_from() -> None:
    assert Processes(1, 2).device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"training\.device is 'meta': several processes need 'cuda' or 'cpu'"):
        Processes(1, 2).device("meta")


def test_every_process_of_a_machine_takes_a_gpu_of_its_own_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(processes, "resolve_device", torch.device)
    for local, name in enumerate(["auto", "cuda", "auto", "cuda:0"]):
        monkeypatch.setenv("LOCAL_RANK", str(local))
        assert Processes(4 + local, 8).device(name) == taken[-1]
    assert [str(device) for device in taken] == ["cuda:0", "cuda:1", "cuda:0", "cuda:0"]
    assert SINGLE_PROCESS.device("cuda") == torch.device("cuda")
    assert len(taken) == 4
    # With a GPU for each of them NCCL is used, which refuses one that several have.
    monkeypatch.setattr(processes.dist, "is_nccl_available", lambda: True)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"training\.device is 'cuda:1': every process of this machine would have"):
        Processes(1, 2).device("cuda:1")


def test_gradients_are_added_up_in_buckets_and_one_that_nobody_has_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    def double(tensor: Tensor) -> None:
        """Stand for two processes with the same gradients."""
        sent.append(tensor.numel())
        tensor.mul_(2)

    monkeypatch.setattr(gradients, "all_reduce", double)
    monkeypatch.setattr(gradients, "_BUCKET_SIZE", 10)
    shapes: list[tuple[int, ...]] = [(2, 3), (4,), (5,), (30,), (3,), (2,), (1,)]
    parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    parameters[5] = nn.Parameter(torch.randn(2, dtype=torch.float64))
    parameters[6].requires_grad_(False)
    for parameter in parameters[:6]:
        parameter.grad = torch.randn_like(parameter)
    # As those of projections do, it lies in memory the other way round.
    parameters[0].grad = torch.randn(3, 2).T
    expected: list[Any] = [None if parameter.grad is None else 2 * parameter.grad for parameter in parameters]
    parameters[2].grad = expected[2] = None
    assert all_reduce_gradients(parameters, torch.tensor([1.0, 2.0])).tolist() == [2.0, 4.0]
    assert sent == [2 + 6, 6 + 4, 30, 3, 2]
    for parameter, grad in zip(parameters, expected, strict=True):
        assert (parameter.grad is None) == (grad is None)
        assert grad is None or torch.equal(parameter.grad, grad)


def test_processes_draw_apart_and_the_first_draws_on() -> None:
    drawn = []
    for rank, update in [(0, 0), (1, 0), (2, 0), (1, 5)]:
        seed_everything(7)
        seed_rank(7, rank, update)
        drawn.append(torch.rand(4).tolist())
    assert len({tuple(numbers) for numbers in drawn}) == 4
    seed_everything(7)
    assert torch.rand(4).tolist() == drawn[0]
