from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ostinato.analysis import cumulative_share, effective_rank, excess_area, singular_values
from ostinato.analysis.studies.spectra import SPECTRA
from ostinato.config.model import LanguageModelConfig
from ostinato.errors import DataError
from ostinato.models import build_model


def test_singular_values_are_those_of_the_gram_matrix() -> None:
    weight = np.random.default_rng(0).normal(size=(4, 7))
    expected = np.sqrt(np.linalg.eigvalsh(weight @ weight.T))[::-1]
    np.testing.assert_allclose(singular_values(weight), expected)
    np.testing.assert_allclose(singular_values(weight.T), expected)


def test_a_case_by_hand() -> None:
    values = singular_values(np.diag([1.0, 3.0, 0.0, 4.0]))
    np.testing.assert_allclose(cumulative_share(values), [0.5, 0.875, 1.0, 1.0])
    assert effective_rank([1.0, 1.0, 2.0]) == pytest.approx(2**1.5)
    assert excess_area([1.0, 0.0]) == pytest.approx(0.25)


def test_equal_values_use_every_direction_and_a_single_one_uses_one() -> None:
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))
    even = singular_values(5 * turn)
    assert effective_rank(even) == pytest.approx(6.0)
    assert excess_area(even) == pytest.approx(0.0, abs=1e-12)
    outer = singular_values(np.outer([1.0, 2.0, 3.0], [1.0, 1.0]))
    assert effective_rank(outer) == pytest.approx(1.0, abs=1e-10)


def test_scale_changes_nothing() -> None:
    values = np.random.default_rng(0).random(5)
    assert effective_rank(7 * values) == pytest.approx(effective_rank(values))
    assert excess_area(7 * values) == pytest.approx(excess_area(values))


@pytest.mark.parametrize("values", [[0.0, 0.0], [-1.0, 2.0], []])
def test_what_has_no_shares_is_refused(values: list[float]) -> None:
    with pytest.raises(DataError, match="not all 0"):
        cumulative_share(values)


def test_maps_that_are_zero_have_no_numbers_and_no_line() -> None:
    layer = {"after": 1, "n_experts": 2, "n_layers": 1, "d_ff": 6}
    stack = {"n_steps": 2, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}, "sparse_layer": layer}
    model: Any = build_model(LanguageModelConfig.model_validate({"d_model": 4, "vocab_size": 9, "decoder": stack}))
    ((name, down_EFD),) = ((name, p) for name, p in model.banks.ffn.named_parameters() if name.endswith("down_EFD"))
    with torch.no_grad():
        down_EFD[1].normal_()  # of the other expert the map is still what it was before training
    subject: Any = SimpleNamespace(model=model, run=SimpleNamespace(recipe=SimpleNamespace(seed=0)))
    assert SPECTRA.of_run is not None
    finding = SPECTRA.of_run(subject, None)
    maps = {(one["set"], one["map"]): one for one in finding.data["maps"]}
    down = maps.pop((name.removesuffix(".down_EFD"), "down"))
    values = singular_values(down_EFD[1].detach().numpy())
    assert down["matrices"] == 1
    assert down["effective rank / K"] == pytest.approx(effective_rank(values) / 4)
    assert down["area"] == pytest.approx(excess_area(values))
    assert down["the same before training"] is down["area before training"] is None
    assert all(isinstance(cell, int | float) for one in maps.values() for cell in list(one.values())[2:])
    panels = {panel.get_title(): panel for panel in finding.draw(False).axes}
    n_gray = sum(line.get_color() == "gray" for line in panels["down"].lines)
    assert n_gray == sum(part == "down" for _, part in maps)
