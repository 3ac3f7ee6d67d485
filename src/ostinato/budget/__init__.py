"""What a configuration costs, counted from the configuration alone, before anything is built.

from ostinato.budget import count_budget, count_bytes, count_macs, count_parameters

count_parameters(config).stored
count_macs(config, source_length=10, target_length=10).total
count_bytes(config, source_length=10, target_length=10, batch_size=64).activations
count_budget(config).as_dict()  # all of them
make_family(config, range(1, 9)).arms  # other depths, equal parameters
solve(config, count_parameters(reference).stored, free="d_ff").config
"""

from __future__ import annotations

from ostinato.budget.budget import Assumptions, Budget, count_budget, lengths_without_positions
from ostinato.budget.depth import ExpectedDepth, expected_depths, stacks_with_depth
from ostinato.budget.family import Family, make_family
from ostinato.budget.macs import MacCount, MacCounter, SentenceMacs, count_macs, kaplan_forward_flops
from ostinato.budget.memory import ByteCount, count_bytes
from ostinato.budget.parameters import ParameterCount, count_parameters
from ostinato.budget.ranks import RankBytes, count_rank_bytes, set_uses
from ostinato.budget.solver import Solution, solve
from ostinato.config.measures import BudgetName

__all__ = [
    "Assumptions",
    "Budget",
    "BudgetName",
    "ByteCount",
    "ExpectedDepth",
    "Family",
    "MacCount",
    "MacCounter",
    "ParameterCount",
    "RankBytes",
    "SentenceMacs",
    "Solution",
    "count_budget",
    "count_bytes",
    "count_macs",
    "count_parameters",
    "count_rank_bytes",
    "expected_depths",
    "kaplan_forward_flops",
    "lengths_without_positions",
    "make_family",
    "set_uses",
    "solve",
    "stacks_with_depth",
]
