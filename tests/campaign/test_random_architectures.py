"""The contract again, on random architectures that the ordinary suite does not draw.

Every property of tests/models/test_contract_*.py that is checked on drawn architectures is taken from there and given
draws from another seed.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

import architectures

pytestmark = pytest.mark.slow

SEED = 24
LEAST = 200
N_DRAWS: list[int] = []
"""Of the properties taken over."""


def other_draws(n: int, *, quick: int | None = None) -> Callable[[Any], Any]:
    """Return what `architectures.draws` does, with other draws, and half as many; `quick`: see there, of no effect."""
    n = n // 2
    N_DRAWS.append(n)
    ordinary = settings(drawn(n), derandomize=False)
    return lambda test: seed(SEED)(ordinary(test))


drawn = architectures.draws


def contract(path: Path) -> ModuleType:
    """Return a file of the contract, imported anew under another name."""
    spec = importlib.util.spec_from_file_location(f"again_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def draws_architectures(test: object) -> bool:
    """Return whether a test is itself a property of what is drawn."""
    return getattr(test, "is_hypothesis_test", False)


PATHS = sorted((Path(__file__).parents[1] / "models").glob("test_contract_*.py"))
for own in PATHS:
    importlib.import_module(own.stem)  # what they read of each other keeps its own draws
with patch.object(architectures, "draws", other_draws):
    MODULES = [contract(path) for path in PATHS]

PROPERTIES = {
    f"{name}_in_{module.__name__.removeprefix('again_test_contract_')}": test
    for module in MODULES
    for name, test in vars(module).items()
    if name.startswith("test_") and draws_architectures(test)
}
globals().update(PROPERTIES)
compare_with_twin = next(vars(one)["compare_with_twin"] for one in MODULES if "compare_with_twin" in vars(one))


@other_draws(2 * LEAST)
@given(st.data(), st.sampled_from(["seq2seq", "language_model"]))
def test_every_model_equals_its_per_token_twin(data: st.DataObject, kind: str) -> None:
    compare_with_twin(data, data.draw(architectures.any_architecture(kind=kind)))


def test_the_draws_are_as_many_as_promised(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"{len(PROPERTIES)} properties, {sum(N_DRAWS)} random architectures and more")
    assert len(PROPERTIES) > 30
    assert sum(N_DRAWS) > LEAST
