"""What a configuration costs, counted from the configuration alone, before anything is built.

from ostinato.budget import count_budget, count_bytes, count_macs, count_parameters

count_parameters(config).stored
count_macs(config, source_length=10, target_length=10).total
count_bytes(config, source_length=10, target_length=10, batch_size=64).activations
count_budget(config).as_dict()  # all of them
"""

from __future__ import annotations

from ostinato.budget.budget import Assumptions, Budget, BudgetName, count_budget
from ostinato.budget.depth import Depth, expected_depths
from ostinato.budget.macs import MacCount, count_macs
from ostinato.budget.memory import ByteCount, count_bytes
from ostinato.budget.parameters import ParameterCount, count_parameters

__all__ = [
    "Assumptions",
    "Budget",
    "BudgetName",
    "ByteCount",
    "Depth",
    "MacCount",
    "ParameterCount",
    "count_budget",
    "count_bytes",
    "count_macs",
    "count_parameters",
    "expected_depths",
]
