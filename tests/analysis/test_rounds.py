"""States by round beyond the trained depth: measures with known answers, and the study on real runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from architectures import random_model
from halting_runs import TINY
from ostinato.analysis import analyze as logic
from ostinato.analysis.round_map import RoundSums, spectral_radius
from ostinato.analysis.studies import Subject
from ostinato.analysis.studies.rounds import EXAMPLES, rounds_of_radii
from ostinato.config.model import LanguageModelConfig
from ostinato.evaluation.loading import load
from ostinato.models import LanguageModel
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train

IDS = torch.tensor([[1, 5, 6, 7, 3], [1, 4, 4, 9, 8]])
DECAY = math.sqrt(1 / 5)


def _model(**core: Any) -> LanguageModel:
    segments = [{}, {"repeats": 4, "state": {"kind": "zeros"}, **core}, {}]
    stack = {"n_steps": 3, "segments": segments, "norm": {"kind": "rms", "placement": "pre"}}
    stack |= {"self_attention": {"n_heads": 2}, "ffn": {"d_ff": 24}}
    config = {"d_model": 16, "vocab_size": 11, "dropout": 0.0, "decoder": stack}
    return random_model(LanguageModelConfig.model_validate(config)).eval()  # type: ignore[return-value]


def test_the_radius_of_a_linear_map_is_its_largest_eigenvalue_real_or_complex() -> None:
    turn = 0.9 * torch.tensor([[math.cos(1), -math.sin(1)], [math.sin(1), math.cos(1)]], dtype=torch.float64)
    matrix = torch.block_diag(turn, torch.diag(torch.tensor([0.8, -0.5, 0.1], dtype=torch.float64)))
    torch.manual_seed(0)
    change = torch.randn(5, 5, dtype=torch.float64)
    matrix = change @ matrix @ torch.linalg.inv(change)
    at = torch.randn(5, dtype=torch.float64)
    assert spectral_radius(lambda h: matrix @ h, at) == pytest.approx(0.9, rel=1e-8)
    # Not linear: tanh has slope 1 at 0.
    assert spectral_radius(lambda h: torch.tanh(matrix @ h), torch.zeros_like(at)) == pytest.approx(0.9, rel=1e-8)
    assert spectral_radius(lambda h: 0.25 * h, at) == pytest.approx(0.25, rel=1e-12)
    assert spectral_radius(lambda h: 0 * h, at) == 0.0
    assert math.isnan(spectral_radius(lambda h: h * float("inf"), at))
    wide = torch.diag(torch.cat([torch.linspace(0, 0.7, 200), torch.tensor([1.3])])).double()
    found = [spectral_radius(lambda h: wide @ h, torch.zeros(201, dtype=torch.float64)) for _ in range(2)]
    assert found[0] == found[1] == pytest.approx(1.3, rel=1e-4)


def test_norm_change_and_cosine_are_means_over_real_tokens() -> None:
    torch.manual_seed(1)
    before, left = torch.randn(2, 2, 4, 3)
    keep = torch.tensor([[True, True, True, True], [True, True, False, False]])
    sums = RoundSums()
    sums.add(left[:1], before[:1], keep[:1])
    sums.add(left[1:], before[1:], keep[1:])
    tokens = [(b, t) for b in range(2) for t in range(4) if keep[b, t]]
    norms = [float(left[at].norm()) for at in tokens]
    changes = [float((left[at] - before[at]).norm() / left[at].norm()) for at in tokens]
    cosines = [
        float(torch.cosine_similarity(left[a], left[b], dim=0))
        for a in tokens
        for b in tokens
        if a[0] == b[0] and a != b
    ]
    expected = [sum(values) / len(values) for values in (norms, changes, cosines)]
    assert sums.means() == pytest.approx(expected, rel=1e-6)
    alone = RoundSums()
    alone.add(left[:1, :1], None, keep[:1, :1])
    assert math.isnan(alone.means()[2])


@pytest.mark.parametrize(
    "core",
    [
        {"state": {"kind": "input"}},
        {"inject": {"kind": "linear"}, "end_map": True},
        {"inject": {"kind": "linear"}, "keys": "first"},
        {"inject": {"kind": "add"}, "modulation": {"kind": "by_time"}, "vectors": True},
        {"inject": {"kind": "add"}, "delta_rank": 2, "norms": "by_round", "modulation": {"kind": "by_round"}},
        {"inject": {"kind": "decay"}, "state": {"kind": "learned"}, "round_norm": True, "end_norm": "own"},
    ],
)
def test_the_map_of_a_round_leads_from_the_states_of_one_to_those_of_the_next(core: dict[str, Any]) -> None:
    model = _model(**core)
    keep = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    found = model(IDS, keep=keep, n_steps=6, request=["rounds"]).stacks["decoder"]
    assert len(found.left) == 6
    assert found.advance is not None
    for index in range(1, 6):
        states = found.advance(index, found.left[index - 1])
        torch.testing.assert_close(states[keep], found.left[index][keep], rtol=0, atol=1e-12)
    assert model(IDS).stacks["decoder"].advance is None


def test_the_map_of_a_round_makes_its_own_keys_of_the_states_it_is_given() -> None:
    model = _model(inject={"kind": "add"}, keys="all")
    found = model(IDS, n_steps=4, request=["rounds"]).stacks["decoder"]
    for index in (1, 2, 3):
        states = found.left[index - 1].detach().requires_grad_()
        (own,) = torch.autograd.grad(found.advance(index, states)[0, -1].sum(), states)
        # The last token reads of every other one what it is in this round, too: its keys are made of the states.
        assert float(own[0, :-1].abs().max()) > 1e-6


def test_a_loop_that_only_decays_has_the_radius_of_its_decay_at_every_round() -> None:
    model = _model(inject={"kind": "decay"})
    injection = model.banks.injection["decoder_1"]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "decoder_1" in name and ".injection." not in name:
                parameter.zero_()
        torch.nn.init.zeros_(injection.rate_D)
        injection.step_D.fill_(math.log(math.expm1(-math.log(DECAY))))
        rest = [name for name, p in model.named_parameters() if "decoder_1" in name and not p.any()]
        assert rest
    found = model(IDS, n_steps=6, request=["rounds"]).stacks["decoder"]
    for index in (1, 3, 5):
        radius = spectral_radius(lambda left, i=index: found.advance(i, left), found.left[index - 1])
        assert radius == pytest.approx(DECAY, rel=1e-6)


def test_radii_are_measured_at_a_dozen_rounds_with_the_trained_number() -> None:
    assert rounds_of_radii(2) == list(range(2, 9))
    many = rounds_of_radii(12)
    assert {2, 12, 48} <= set(many)
    assert len(many) <= 13


@pytest.fixture(scope="module")
def looped(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder: Path = tmp_path_factory.mktemp("looped") / "run"
    train(load_recipe("digits/universal", TINY), folder)
    return logic.subjects([load(folder, device="cpu")], None, 10)[0]


@pytest.mark.slow
def test_losses_by_round_are_those_of_models_that_run_so_many(looped: Subject) -> None:
    ((_, (found,)),) = logic.survey([looped], only=["rounds"]).found
    data = found.data["stacks"]
    assert list(data) == ["encoder", "decoder"]
    trained = looped.model.stacks["decoder"].plan.n_rounds
    by_round = data["decoder"]["by_round"]
    assert data["decoder"]["trained_rounds"] == trained
    assert [one["round"] for one in by_round] == list(range(1, 4 * trained + 1))
    assert min(EXAMPLES, len(looped.examples)) == len(looped.examples)
    for n in (1, trained, 4 * trained):
        with looped.model.execution(rounds={"decoder": n}):
            result = looped.run.evaluate(looped.split, metrics=[], by=[], max_examples=len(looped.examples))
        assert by_round[n - 1]["loss"] == pytest.approx(result["loss"], rel=1e-5)
    assert all(one["loss"] is None for one in data["encoder"]["by_round"])
    for stack in data.values():
        assert stack["by_round"][0]["change"] is stack["by_round"][0]["radius"] is None
        assert all(one["radius"] > 0 and one["change"] > 0 for one in stack["by_round"][1:])
        assert all(-1 <= one["cosine"] <= 1 < one["norm"] for one in stack["by_round"])
    figure = found.draw(False)
    assert sum(line.get_linestyle() == "--" for axes in figure.axes for line in axes.lines) == len(figure.axes)
    assert looped.model.current_execution.rounds == {}


@pytest.mark.slow
def test_it_does_not_apply_where_rounds_differ(tmp_path: Path) -> None:
    train(load_recipe("digits/transformer", TINY), tmp_path / "run")
    given = logic.subjects([load(tmp_path / "run", device="cpu")], None, 4)
    surveyed = logic.survey(given, only=["rounds"])
    assert surveyed.found == []
    assert "no stack of its model has several rounds that share all weights" in surveyed.reasons["rounds"]
