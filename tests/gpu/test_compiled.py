"""Training passes are one graph, the same for all lengths; where tokens halt, one for every stretch between rounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from plans import HALTING, PLANS

pytestmark = pytest.mark.slow
MOST_ANEW = 3
"""Times that an epoch of real batches may be compiled anew after the first."""


def _said(what: str, plan: str) -> Any:
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("compiled_passes.py")), what, plan]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


@pytest.mark.parametrize("name", PLANS)
def test_a_pass_is_compiled_once_for_all_lengths_and_gives_what_is_not_compiled(name: str) -> None:
    said = _said("epoch", name)
    graphs = said["graphs"]
    if name in HALTING:
        assert graphs[-1] <= graphs[3] + MOST_ANEW, graphs  # stretches, nearly none of them once lengths have varied
    else:
        assert graphs[-1] <= 1 + MOST_ANEW, graphs
    assert said["apart"] <= (0.05 if name == "experts" else 1e-5)  # experts run in bfloat16


@pytest.mark.parametrize("name", ["dense", "shared"])
def test_nothing_of_a_pass_is_left_to_python(name: str) -> None:
    assert _said("explain", name) == [1, 0]  # graphs, and breaks between them


def test_the_gradient_of_a_compiled_pass_is_that_of_one_that_is_not() -> None:
    assert _said("gradients", "dense") < 1e-5
