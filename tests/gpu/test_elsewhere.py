"""The contract's tests and those of the kernels on another device than the CPU: that they find what is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from plans import model_of, ragged_batch

from elsewhere import built, elsewhere
from pretended import DEVICE

TESTS = Path(__file__).parents[1]


def test_what_is_made_inside_is_there_and_a_tensor_that_is_not_is_an_error() -> None:
    with elsewhere("pretended"):
        assert {x.device for x in (torch.ones(2), torch.tensor([1]), torch.arange(3))} == {DEVICE}
        drawn = torch.randn(3, generator=torch.Generator().manual_seed(1))
        model = built(lambda: model_of("dense"))
        assert {p.device for p in (*model.parameters(), drawn)} == {DEVICE}
        model(ragged_batch(2).to(DEVICE))
        with pytest.raises(RuntimeError, match="a tensor on the CPU beside one on the device"):
            drawn + torch.ones(3, device="cpu")
        assert drawn.tolist() == torch.randn(3, generator=torch.Generator().manual_seed(1), device="cpu").tolist()
    assert torch.ones(2).device == torch.device("cpu")
    assert built(lambda: model_of("dense")).device == torch.device("cpu")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["models", "kernels"])
def test_the_contract_and_the_kernels_pass_on_a_pretended_device(what: str) -> None:
    given = {name: value for name, value in os.environ.items() if name != "OSTINATO_ALL_DRAWS"}
    given |= {"OSTINATO_DEVICE": "pretended", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-W", "default", "-m", "device"]
    found = subprocess.run([*command, str(TESTS / what)], env=given, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout[-5000:]
