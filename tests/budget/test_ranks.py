"""Bytes of a process are those of the parts that torch's fully_shard leaves it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import ostinato as o
from ostinato.budget import count_parameters, count_rank_bytes, set_uses
from ostinato.budget.ranks import shard_dimension
from ostinato.config.training import FsdpConfig, PlainParallelConfig, TrainingConfig
from ostinato.models import build_model
from ostinato.models.build import parameter_shapes

D_MODEL = 36
FFN = {"d_ff": 48, "share": "all", "kind": "experts", "n_experts": 6, "top_k": 2, "router": {"kind": "hypersphere"}}
STACK = {"n_steps": 3, "self_attention": {"n_heads": 4, "share": "all"}, "ffn": FFN}


def _config(**changes: Any) -> o.LanguageModelConfig:
    return o.LanguageModelConfig(d_model=D_MODEL, vocab_size=101, decoder=o.StackConfig(**STACK | changes))


@contextmanager
def _pretended_group(rank: int, n: int) -> Iterator[None]:
    """A process group whose messages go nowhere: enough to divide a model."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=n)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def _held(config: o.LanguageModelConfig, rank: int, n: int) -> int:
    """Return the bytes of the parts that a process really has."""
    from ostinato.training.processes import Processes
    from ostinato.training.sharding import Sharded

    with _pretended_group(rank, n):
        with torch.device("meta"):
            model = build_model(config)
        Sharded(model, Processes(rank, n), TrainingConfig(), torch.device("cpu"), keep_shared=True)
        parts = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]
        return sum(part.numel() * part.element_size() for part in parts)


@pytest.mark.parametrize("n", [2, 5, 8, 64])
def test_parameters_of_a_process_are_those_that_fully_shard_leaves_it(n: int) -> None:
    config = _config()
    counted = count_rank_bytes(
        parameter_shapes(config), set_uses(config.plans().values(), is_drawn=False), FsdpConfig(), n
    )
    assert counted.parameters == _held(config, 0, n)
    assert counted.parameters >= _held(config, n - 1, n)
    assert (counted.gradients, counted.optimizer) == (counted.parameters, 2 * counted.parameters)


def test_what_is_whole_is_whole_in_every_process_and_gathers_nothing() -> None:
    config = _config()
    shapes, uses = parameter_shapes(config), set_uses(config.plans().values(), is_drawn=False)
    for parallel, n in ((PlainParallelConfig(), 8), (FsdpConfig(), 1)):
        counted = count_rank_bytes(shapes, uses, parallel, n, activations=7, frozen={"banks.norm.ffn_decoder_0.weight"})
        assert counted.gathered == 0
        assert counted.parameters == 4 * count_parameters(config).stored
        assert counted.total == 4 * counted.parameters - 3 * 4 * D_MODEL + 7


def test_shared_sets_stay_gathered_and_others_come_two_at_a_time() -> None:
    config = _config(self_attention={"n_heads": 4, "share": "individual"})
    shapes, uses = parameter_shapes(config), set_uses(config.plans().values(), is_drawn=False)
    assert uses["ffn", "decoder_0"] == 3
    assert [uses["self_attention", f"decoder_{i}"] for i in range(3)] == [1, 1, 1]

    def whole(prefix: str) -> int:
        return 8 * sum(torch.Size(shape).numel() for name, shape in shapes.items() if name.startswith(prefix) and shape)

    rest = whole("") - whole("banks.ffn") - whole("banks.self_attention")
    one = whole("banks.self_attention.decoder_0")
    kept = count_rank_bytes(shapes, uses, FsdpConfig(), 4)
    assert kept.gathered == rest + whole("banks.ffn") + 2 * one
    by_use = count_rank_bytes(shapes, uses, FsdpConfig(keep_shared=False), 4)
    assert by_use.gathered == rest + 2 * max(one, whole("banks.ffn"))
    frozen = count_rank_bytes(shapes, uses, FsdpConfig(), 4, frozen=set(shapes))
    assert (frozen.gradients, frozen.optimizer, frozen.gathered) == (0, 0, kept.gathered // 2)


def test_experts_that_are_fewer_than_the_processes_are_divided_along_another_dimension() -> None:
    assert shard_dimension((6, 36, 48), 4) == 1
    assert shard_dimension((6, 36, 48), 3) == 0
    assert shard_dimension((5, 7), 2) == 0
