from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tables import axis, space

from ostinato.advise.space import free_of, in_balance, load_space, name_of, settings_of
from ostinato.config.files import shipped_files
from ostinato.config.space import AxisConfig, LevelConfig, SpaceConfig
from ostinato.errors import ConfigError
from ostinato.tasks.recipes import load_recipe

RECIPE = load_recipe("digits/transformer").model_dump(mode="json")


def test_the_shipped_space_has_the_axes_that_are_promised() -> None:
    names = [one.name for one in load_space("default").axes]
    assert names == ["depth", "plan", "width", "experts", "halting", "positions"]


def test_every_shipped_space_is_sound() -> None:
    assert all(load_space(name).axes for name in shipped_files("spaces"))


def test_any_prefix_of_the_combinations_is_in_balance() -> None:
    ours = space(axis("a", "1", "2", "3"), axis("b", "1", "2"), axis("c", "1", "2"))
    found = list(in_balance(ours))
    assert len(found) == len({tuple(one.values()) for one in found}) == 12
    first = found[:6]
    for name, n in (("a", 2), ("b", 3), ("c", 3)):
        assert set(Counter(one[name] for one in first).values()) == {n}
    pairs = Counter((one["b"], one["c"]) for one in first)
    assert max(pairs.values()) - min(pairs.values()) <= 1


def test_a_star_stands_for_all_groups_in_which_the_rest_is_found() -> None:
    level = LevelConfig(name="all", set={"model.*.*.share": "all", "model.*.n_steps": 3})
    ours = SpaceConfig(name="x", axes=[AxisConfig(name="plan", levels=[level])])
    subs = ["decoder.cross_attention", "decoder.ffn", "decoder.self_attention", "encoder.ffn", "encoder.self_attention"]
    assert sorted(settings_of(ours, {"plan": "all"}, RECIPE)) == sorted(
        [*(f"model.{sub}.share" for sub in subs), "model.encoder.n_steps", "model.decoder.n_steps"]
    )


def test_numbers_of_one_axis_fill_settings_of_another() -> None:
    depth = AxisConfig(name="depth", levels=[LevelConfig(name="8", set={"model.*.n_steps": 8}, numbers={"core": 6})])
    segments = [{"n_steps": 1}, {"n_steps": 1, "repeats": "$core"}]
    plan = AxisConfig(
        name="plan", levels=[LevelConfig(name="loop", set={"model.*.n_steps": 2, "model.encoder.segments": segments})]
    )
    found = settings_of(SpaceConfig(name="x", axes=[depth, plan]), {"depth": "8", "plan": "loop"}, RECIPE)
    assert found["model.encoder.n_steps"] == 2, "the later axis wins"
    assert found["model.encoder.segments"] == [{"n_steps": 1}, {"n_steps": 1, "repeats": 6}]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model.*.n_step": 3}, "is no setting of this recipe"),
        ({"model.*.n_steps": "$half"}, "^'b' needs the number 'half', which no level of this combination gives$"),
    ],
)
def test_what_a_level_cannot_set_is_named(settings: dict[str, object], message: str) -> None:
    ours = SpaceConfig(name="x", axes=[AxisConfig(name="a", levels=[LevelConfig(name="b", set=settings)])])
    with pytest.raises(ConfigError, match=message):
        settings_of(ours, {"a": "b"}, RECIPE)


def test_of_two_steps_none_are_left_for_a_core() -> None:
    ours = load_space("default")
    looped = next(in_balance(ours)) | {"plan": "looped"}
    with pytest.raises(
        ConfigError, match=r"^'looped' needs the number 'core', which no level of this combination gives"
    ):
        settings_of(ours, looped | {"depth": "2 steps"}, RECIPE)
    found = settings_of(ours, looped | {"depth": "4 steps"}, RECIPE)
    assert found["model.encoder.segments"][1] == {"n_steps": 1, "repeats": 2}


def test_a_level_may_say_what_is_solved() -> None:
    ours = load_space("default")
    combination = next(in_balance(ours))
    assert free_of(ours, combination | {"width": "wide states"}) == ["d_model+d_ff", "d_ff"]
    assert free_of(ours, combination | {"width": "wide feed-forward"}) == ["d_ff"]


def test_names_leave_out_levels_that_change_nothing_and_tell_alike_ones_apart() -> None:
    nothing = AxisConfig(name="c", levels=[LevelConfig(name="as given")])
    ours = space(axis("a", "on", "off"), axis("b", "on", "off"), nothing)
    assert name_of(ours, {"a": "on", "b": "off", "c": "as given"}) == "a on, b off"


def test_a_space_that_is_not_there_is_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        load_space("defalt")
    assert str(caught.value) == "--space is 'defalt': no space or file of that name; did you mean default?"


def test_all_that_is_wrong_with_a_space_is_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("rates: [1, 1]\naxes:\n  - {name: a, levels: []}\n  - {name: a, levels: [{name: x, sett: {}}]}\n")
    with pytest.raises(ConfigError) as caught:
        load_space(str(path))
    text = str(caught.value)
    assert "sett" in text
    assert "rates is 1.0: is there twice" in text
    assert "axes is 'a': is there twice" in text
    assert "axes.0.levels is []: needs one or more" in text


@pytest.mark.parametrize(
    "settings",
    [
        {"training.optimizer.lr": 1e-3},
        {"training": {"n_updates": 9}},
        {"training.selection.metric": "bleu"},
        {"seed": 3},
    ],
)
def test_what_the_search_decides_is_no_level(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="is decided by the search"):
        SpaceConfig(name="mine", axes=[AxisConfig(name="one", levels=[LevelConfig(name="a", set=settings)])])


@pytest.mark.parametrize("settings", [{"task.max_length": 3}, {"data": {"dev": "b.txt"}}, {"data.train": "a.txt"}])
def test_all_candidates_have_the_same_examples(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="gives candidates other examples: change it for all of them, by KEY=VALUE"):
        LevelConfig.model_validate({"name": "a", "set": settings})
    LevelConfig.model_validate({"name": "a", "set": {"data.tokenizer.kind": "words", "data.mixture": None}})
