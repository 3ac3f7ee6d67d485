from __future__ import annotations

import pytest
from tables import space

from ostinato.advise.candidates import BASE, make_candidates
from ostinato.advise.limits import Limits
from ostinato.advise.space import load_space
from ostinato.budget import count_parameters
from ostinato.config.space import AxisConfig, LevelConfig, SpaceConfig
from ostinato.errors import ConfigError

TINY = ["task.n_train=100", "model.d_model=16", "model.encoder.ffn.d_ff=32", "model.decoder.ffn.d_ff=32"]
ONE = AxisConfig(name="plan", levels=[LevelConfig(name="shared", set={"model.*.*.share": "all"})])
PLAN = AxisConfig(
    name="plan",
    levels=[
        LevelConfig(name="shared", set={"model.*.*.share": "all"}),
        LevelConfig(name="deep", set={"model.*.n_steps": 30}),
        LevelConfig(name="same", set={"model.*.n_steps": 2}),
        LevelConfig(name="wrong", set={"model.*.self_attention.n_heads": 5}),
    ],
)


def test_candidates_meet_the_budget_exactly_and_the_others_have_a_reason() -> None:
    found = make_candidates("digits/transformer", TINY, space(PLAN), Limits())
    base, shared = found.found
    assert (base.name, shared.name) == (BASE, "shared")
    assert base.settings["model.encoder.ffn.d_ff"] == 32, "its own budget is met by itself"
    parameters = count_parameters(base.model).stored
    assert 0.98 * parameters <= count_parameters(shared.model).stored <= parameters
    assert shared.settings["model.encoder.ffn.d_ff"] > 32
    reasons = {one.name: one.reason for one in found.left_out}
    assert "parameters even at its narrowest" in reasons["deep"]
    assert "n_heads" in reasons["wrong"]
    assert "same" not in reasons, "the recipe has taken its place"
    assert base.levels == {"plan": "same"}


def test_of_several_budgets_the_narrowest_binds() -> None:
    alone = make_candidates("digits/transformer", TINY, space(ONE), Limits(parameters=20_000)).found[0]
    macs = 0.8 * alone.figures["macs"]
    both = make_candidates("digits/transformer", TINY, space(ONE), Limits(parameters=20_000, macs=macs)).found[0]
    assert both.figures["macs"] <= macs < alone.figures["macs"]
    assert both.figures["macs"] > 0.98 * macs


def test_a_budget_that_nothing_fits_names_the_nearest_that_does() -> None:
    with pytest.raises(ConfigError) as caught:
        make_candidates("digits/transformer", TINY, space(ONE), Limits(parameters=1000))
    text = str(caught.value)
    assert text.startswith("nothing in this space fits 1,000 parameters: the nearest needs ")
    needed = int(text.split("needs ")[1].split(" ")[0].replace(",", ""))
    assert make_candidates("digits/transformer", TINY, space(ONE), Limits(parameters=needed)).found


def test_the_default_space_is_one_of_recipes_as_they_are() -> None:
    default = load_space("default")
    found = make_candidates("digits/transformer", TINY, default.model_copy(update={"n_candidates": 3}), Limits())
    base, *others = found.found
    assert (base.name, len(others)) == (BASE, 3)
    for one in others:
        assert list(one.levels) == ["depth", "plan", "width", "experts", "halting", "positions"]
        assert 0.98 <= one.figures["parameters"] / base.figures["parameters"] <= 1
    assert others[0].name == "2 steps, individual, wide feed-forward, sinusoidal"


def test_the_default_space_has_every_plan_for_a_recipe_that_is_a_loop() -> None:
    default = load_space("default").model_copy(update={"n_candidates": 9})
    data = ["data.train=README.md", "data.dev=README.md", "data.test=null", "data.tokenizer={kind: characters}"]
    found = make_candidates("looped/novels", data, default, Limits(parameters=100_000)).found
    assert {one.levels["plan"] for one in found if one.name != BASE} >= {"individual", "shared", "cycle", "looped"}


def test_a_recipe_that_is_a_combination_takes_no_place_of_another() -> None:
    same = LevelConfig(name="same", set={"model.*.n_steps": 2})
    partly = LevelConfig(name="partly", set={"model.decoder.ffn.share": "all"})
    axis = AxisConfig(name="plan", levels=[same, ONE.levels[0], partly])
    ours = SpaceConfig(name="x", axes=[axis], n_candidates=2)
    found = make_candidates("digits/transformer", TINY, ours, Limits()).found
    assert [(one.name, one.levels["plan"]) for one in found] == [
        (BASE, "same"),
        ("shared", "shared"),
        ("partly", "partly"),
    ]


def test_a_model_without_stacks_has_no_space() -> None:
    level = LevelConfig(name="deep", set={"model.*.n_steps": 3})
    ours = SpaceConfig(name="x", axes=[AxisConfig(name="depth", levels=[level])])
    with pytest.raises(ConfigError, match="no candidate can be made"):
        make_candidates("algorithmic/copy-lstm", ["task.n_train=100"], ours, Limits())


def test_a_space_of_mistyped_paths_is_refused_and_one_that_holds_the_recipe_alone_is_not() -> None:
    same = LevelConfig(name="same", set={"model.*.n_steps": 2})
    mistyped = LevelConfig(name="deep", set={"model.*.n_step": 3})
    for levels in ([mistyped], [same, mistyped]):
        with pytest.raises(ConfigError) as caught:
            make_candidates("digits/transformer", TINY, space(AxisConfig(name="depth", levels=levels)), Limits())
        said = f"space is 'model.*.n_step': is no setting of this recipe, in 1 of {len(levels)} combinations"
        assert str(caught.value) == f"no candidate can be made beside the recipe: {said}"
    again = LevelConfig(name="again", set={"model.*.n_steps": 2})
    for levels in ([same], [same, again]):
        (base,) = make_candidates(
            "digits/transformer", TINY, space(AxisConfig(name="depth", levels=levels)), Limits()
        ).found
        assert (base.name, base.levels) == (BASE, {"depth": "same"})


def test_a_space_whose_models_come_not_near_the_budget_leaves_the_recipe_alone() -> None:
    level = LevelConfig(name="deep", set={"model.*.n_steps": 3})
    coarse = space(AxisConfig(name="depth", levels=[level])).model_copy(update={"free": ["d_model"]})
    found = make_candidates("digits/transformer", TINY, coarse, Limits())
    assert [one.name for one in found.found] == [BASE]
    assert "comes no nearer to the budget than" in found.left_out[0].reason


def test_a_level_that_changes_the_training_is_another_candidate() -> None:
    levels = [
        LevelConfig(name=name, set={"training.label_smoothing": x}) for name, x in (("rough", 0.0), ("smooth", 0.2))
    ]
    found = make_candidates("digits/transformer", TINY, space(AxisConfig(name="smoothing", levels=levels)), Limits())
    base, smooth = found.found
    assert (base.name, base.levels) == (BASE, {"smoothing": "rough"})
    assert (smooth.name, smooth.settings["training.label_smoothing"]) == ("smooth", 0.2)
    assert smooth.model == base.model


def test_bytes_alone_are_a_budget() -> None:
    limits = Limits(bytes=200_000)
    found = make_candidates("digits/transformer", TINY, space(ONE), limits).found
    assert [one.name for one in found] == [BASE, "shared"]
    assert all(0.9 < limits.share(one.model) <= 1 for one in found)


def test_bytes_are_those_of_how_a_level_trains() -> None:
    levels = [
        LevelConfig(name=name, set={"training.checkpoint_activations": x})
        for name, x in (("recomputed", True), ("kept", False))
    ]
    limits = Limits(bytes=200_000)
    ours = space(AxisConfig(name="activations", levels=levels))
    settings = [*TINY, "training.checkpoint_activations=true"]
    base, kept = make_candidates("digits/transformer", settings, ours, limits).found
    assert (base.levels, kept.name) == ({"activations": "recomputed"}, "kept")
    assert 0.9 < limits.share(kept.model) <= 1, "all activations are counted"
    assert limits.share(base.model) > 1
    assert kept.figures["bytes"] == limits.figures(kept.model)["bytes"]
