"""How a model is cut into the groups that processes gather: one for every parameter set of sub-layers, and the rest."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from ostinato.config.model import LanguageModelConfig
from ostinato.config.training import TrainingConfig
from ostinato.models import LanguageModel
from ostinato.training.processes import Processes
from ostinato.training.sharding import Sharded

N_EXPERTS, N_ROUNDS = 6, 3
EXPERTS: dict[str, Any] = {"kind": "experts", "n_experts": N_EXPERTS, "top_k": 2, "d_ff": 8}


@pytest.mark.parametrize(("share", "n_sets"), [("all", 1), ("individual", N_ROUNDS)])
def test_groups_are_parameter_sets_however_many_experts_and_rounds(share: str, n_sets: int) -> None:
    stack = {"n_steps": N_ROUNDS, "self_attention": {"n_heads": 2, "share": share}, "ffn": EXPERTS | {"share": share}}
    config = LanguageModelConfig.model_validate({"d_model": 8, "decoder": stack, "vocab_size": 9})
    model = LanguageModel(config)
    experts = {name for name, p in model.named_parameters() if name.startswith("banks.ffn.") and len(p) == N_EXPERTS}
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        sharded = Sharded(model, Processes(0, 1), TrainingConfig(n_updates=1), model.device, keep_shared=True)
    finally:
        dist.destroy_process_group()
    # The attention's sets and those of the experts, and all else.
    groups = [module for module in sharded._root.modules() if isinstance(module, FSDPModule)]
    assert len(groups) == 2 * n_sets + 1
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [
        {names[id(parameter)] for parameter in group.parameters()} for group in groups if group is not sharded._root
    ]
    assert not any(one & other for i, one in enumerate(found) for other in found[:i])
    # A group with experts has all of them, stacked.
    assert sum(bool(group & experts) for group in found) == n_sets
    assert experts <= set().union(*found)
    assert {len(parameter) for name, parameter in model.named_parameters() if name in experts} == {N_EXPERTS}
