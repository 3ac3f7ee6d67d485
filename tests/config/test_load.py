from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ostinato.config.load import dump_recipe, load_recipe_config
from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.config.positions import CoordinatesConfig, SinusoidalConfig
from ostinato.config.recipe import Recipe
from ostinato.errors import ConfigError, Problem


def lines(settings: dict[str, Any], *overrides: str, **options: Any) -> list[str]:
    """The lines of the error that loading these settings gives."""
    with pytest.raises(ConfigError) as caught:
        load_recipe_config(settings, overrides, **options)
    return str(caught.value).splitlines()


def test_an_empty_recipe_is_the_defaults() -> None:
    assert load_recipe_config({}) == Recipe()


def test_a_wrong_key_a_wrong_type_and_an_impossible_head_count_give_three_lines() -> None:
    encoder = {"n_stps": 3, "self_attention": {"n_heads": 7}}
    found = lines({"model": {"encoder": encoder}, "training": {"n_updates": "eight"}})
    assert sorted(found) == [
        "model.encoder.n_stps is 3: no such setting; did you mean n_steps? (docs/recipes.md)",
        "model.encoder.self_attention.n_heads is 7: must divide model.d_model = 512 (nearest: 4), "
        "or set model.encoder.self_attention.d_head",
        "training.n_updates is 'eight': must be an integer in [0, 2^31 - 1]",
    ]


def test_near_names_are_looked_for_as_often_as_a_recipe_may_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    monkeypatch.setattr("ostinato.config.load.suggestions", lambda *given: looked.append(given) or [])
    with pytest.raises(ConfigError) as caught:
        load_recipe_config({f"key{i}": i for i in range(3_000)})
    assert len(caught.value.problems) == 3_000
    assert len(looked) < 200


def test_the_three_lines_also_come_from_a_file_and_overrides(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("model:\n  encoder:\n    self_attention: {n_heads: 7}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_recipe_config(path, ["model.encoder.n_stps=3", "training.n_updates=eight"])
    assert [problem.key for problem in caught.value.problems] == [
        "model.encoder.n_stps",
        "training.n_updates",
        "model.encoder.self_attention.n_heads",
    ]


def test_no_combination_is_blamed_on_the_default_of_a_faulty_setting() -> None:
    broken_width = {"model": {"d_model": "wide", "encoder": {"self_attention": {"n_heads": 7}}}}
    assert lines(broken_width) == ["model.d_model is 'wide': must be an integer in [1, 2^31 - 1]"]
    misspelt_width = {"model": {"dmodel": 70, "encoder": {"self_attention": {"n_heads": 7}}}}
    assert lines(misspelt_width) == ["model.dmodel is 70: no such setting; did you mean d_model? (docs/recipes.md)"]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.encoder.n_heads=4", "did you mean model.encoder.self_attention.n_heads?"),
        ("lr=1e-3", "did you mean training.optimizer.lr?"),
        ("model.encoder.ffn.dff=8", "did you mean d_ff?"),
        ("model.vocab_size=8", "did you mean target_vocab_size?"),
        (
            "training.schedule.lr=1",
            "valid here: kind, warmup, final_fraction; did you mean training.optimizer.lr?",
        ),
        ("zzz=1", "valid here: name, description, task, data, model, training, decoding, evaluation, seed, reference"),
    ],
)
def test_an_unknown_key_names_the_nearest_setting(override: str, expected: str) -> None:
    (line,) = lines({}, override)
    key, _, _ = override.partition("=")
    assert line.startswith(f"{key} is ")
    assert line.endswith(f"no such setting; {expected} (docs/recipes.md)")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.encoder.n_steps=two", "is 'two': must be an integer in [1, 10000]"),
        ("model.encoder.n_steps=2.5", "is 2.5: must be an integer in [1, 10000]"),
        ("model.encoder.n_steps=true", "is True: must be an integer in [1, 10000]"),
        ("model.dropout=1.0", "is 1.0: must be a number in [0.0, 1.0)"),
        ("training.optimizer.lr=fast", "is 'fast': must be a number above 0"),
        ("training.clip_norm=-1", "is -1: must be a number above 0, or null"),
        ("model.embedding_scale=wide", "is 'wide': must be true or false, or a number above 0"),
        ("model.encoder.norm.bias=1", "is 1: must be true or false"),
        ("training.precision=fp16", "is 'fp16': must be one of float32, bfloat16"),
        ("model.encoder.ffn=512", "is 512: must be a group of settings with kind: dense, separable_conv"),
        ("model.encoder.norm=512", "is 512: must be a group of settings (kind, eps, "),
        ("evaluation.splits=test", "is 'test': must be a list (text in each place)"),
        ("data.train=7", "is 7: must be text, or a list (text in each place), or a group of settings (hf, split, "),
        ("model.encoder.positions=null", "must be a group of settings with kind: none, sinusoidal, coordinates"),
        ("model.encoder.ffn.share=some", "is 'some': must be one of individual, all, sequence, cycle, cycle_rev, none"),
        ("model.encoder.ffn.share=[0,-1]", "or a list (an integer in [0, 10000], or null in each place)"),
    ],
)
def test_a_wrong_value_is_told_in_plain_words(override: str, expected: str) -> None:
    (line,) = lines({}, override)
    assert line.startswith(override.partition("=")[0])
    assert expected in line


def test_a_wrong_kind_lists_the_valid_ones_and_does_not_hide_other_problems() -> None:
    found = lines({"model": {"kind": "seq3seq", "d_model": 0}}, "model.encoder.positions.kind=foo")
    assert found == [
        "model.kind is 'seq3seq': must be one of seq2seq, language_model, encoder, "
        "lstm_seq2seq, lstm_language_model; did you mean seq2seq?",
        "model.d_model is 0: must be an integer in [1, 2^31 - 1]",
        "model.encoder.positions.kind is 'foo': must be one of none, sinusoidal, coordinates, learned",
    ]


def test_a_missing_required_setting_is_named() -> None:
    assert lines({"reference": [{"source": "paper", "split": "gen", "metric": "exact_match"}]}) == [
        "reference.0.value is None: is required: a number"
    ]


def test_a_setting_left_open_by_the_recipe_must_be_given() -> None:
    settings = {"data": {"train": "???"}, "seed": -1}
    assert lines(settings) == [
        "data.train is '???': must be given, for example data.train=...",
        "seed is -1: must be an integer in [0, 2^63 - 1]",
    ]
    assert load_recipe_config(settings, ["data.train=a.jsonl", "seed=2"]).data.train == "a.jsonl"


def test_further_checks_see_the_recipe_and_are_reported_with_the_rest() -> None:
    def check(recipe: Recipe) -> list[Problem]:
        return [Problem("task.kind", recipe.task.kind, "is not a task")]

    found = lines({"task": {"kind": "scam"}}, "seed=x", extra_problems=check)
    assert found == ["seed is 'x': must be an integer in [0, 2^63 - 1]", "task.kind is 'scam': is not a task"]


def test_further_checks_do_not_blame_a_faulty_task_node() -> None:
    def check(recipe: Recipe) -> list[Problem]:
        return [Problem("task.kind", recipe.task.kind, "is not a task")]

    assert lines({"task": {"kind": 5}}, extra_problems=check) == ["task.kind is 5: must be text"]


def test_overrides_are_yaml_values() -> None:
    recipe = load_recipe_config(
        {},
        [
            "model.encoder.ffn.d_ff=1024",
            "training.optimizer.lr=1e-3",
            "training.clip_norm=null",
            "data.train=[a.en, a.de]",
            "data.dev=*.jsonl.zst",
            "data.test={new: '*.txt'}",
            "model.encoder.ffn.share=[0, null, 0, 1, 1, null]",
            "evaluation.max_examples=10",
            "name='7'",
        ],
    )
    assert isinstance(recipe.model, Seq2SeqConfig)
    assert recipe.model.encoder.ffn.d_ff == 1024
    assert recipe.training.optimizer.lr == 0.001
    assert recipe.training.clip_norm is None
    assert recipe.data.train == ["a.en", "a.de"]
    assert recipe.data.dev == "*.jsonl.zst"
    assert recipe.data.test == {"new": "*.txt"}
    assert recipe.model.encoder.ffn.share == [0, None, 0, 1, 1, None]
    assert recipe.name == "7"


def test_a_column_may_be_named_by_its_plain_number() -> None:
    recipe = load_recipe_config({"data": {"target_field": 2}}, ["data.source_field=0"])
    assert (recipe.data.source_field, recipe.data.target_field) == ("0", "2")
    assert lines({}, "data.source_field=true") == ["data.source_field is True: must be text"]


def test_the_last_of_two_overrides_wins_and_their_order_does_not_matter_for_kinds() -> None:
    assert load_recipe_config({}, ["seed=2", "seed=3"]).seed == 3
    for overrides in (
        ["model.encoder.positions.kind=coordinates", "model.encoder.positions.random_offset=5"],
        ["model.encoder.positions.random_offset=5", "model.encoder.positions.kind=coordinates"],
    ):
        model = load_recipe_config({}, overrides).model
        assert model.stacks()["encoder"].positions == CoordinatesConfig(random_offset=5)


def test_an_override_of_a_group_keeps_those_inside_it_whatever_their_order() -> None:
    one, group = "model.encoder.ffn.d_ff=10", "model.encoder.ffn={share: all}"
    for overrides in ([one, group], [group, one]):
        ffn = load_recipe_config({}, overrides).model.stacks()["encoder"].ffn
        assert (ffn.d_ff, ffn.share) == (10, "all")
    kinds = ["model.encoder.positions={kind: coordinates}", "model.encoder.positions.kind=none"]
    for overrides in (kinds, kinds[::-1]):
        positions = load_recipe_config({}, overrides).model.stacks()["encoder"].positions
        assert positions.kind == ("none" if overrides is kinds else "coordinates")
    # One key twice: the last alone counts, so that it may be of another kind.
    two = ["model.encoder.relative={kind: window, window: 3}", "model.encoder.relative={kind: none}"]
    assert load_recipe_config({}, two).model.stacks()["encoder"].relative.kind == "none"
    assert load_recipe_config({}, two[::-1]).model.stacks()["encoder"].relative.kind == "window"


@pytest.mark.parametrize("overrides", ["training.n_updates=3", {"training.n_updates": 3}])
def test_overrides_that_are_no_list_are_one_line(overrides: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe_config({}, overrides)
    assert str(caught.value) == f'overrides are {overrides!r}: a list of texts is needed, as ["model.d_model=256"]'


def test_malformed_overrides_are_all_named() -> None:
    assert lines({}, "seed", "name=", "a..b=1", "seed=[1") == [
        "override is 'seed': must look like key=value, for example model.d_model=256",
        "name is '': needs a value (null for none, '' in quotes for empty text)",
        "override is 'a..b=1': must look like key=value, for example model.d_model=256",
        "seed is '[1': is not a YAML value (did not find expected ',' or ']')",
    ]


def test_a_pattern_that_lost_its_quotes_is_told_how_to_keep_them() -> None:
    quoted = 'training.freeze=["*"]'
    reason = "did not find expected alphabetic or numeric character"
    hint = f"put patterns in quotes, and all of it for the shell: '{quoted}'"
    for text in ("[*]", "[head.*, *.halting.*]"):  # what a shell makes of [head.*, "*.halting.*"], in one word
        assert lines({}, f"training.freeze={text}") == [
            f"training.freeze is {text!r}: is not a YAML value ({reason}): {hint}"
        ]
    assert load_recipe_config({}, [quoted]).training.freeze == ["*"]


def test_another_kind_starts_the_group_afresh_and_the_same_kind_does_not() -> None:
    settings = {"model": {"encoder": {"positions": {"random_offset": 5}, "relative": {"kind": "window", "window": 3}}}}
    kept = load_recipe_config(settings, ["model.encoder.positions.kind=sinusoidal"]).model.stacks()["encoder"]
    assert kept.positions == SinusoidalConfig(random_offset=5)
    changed = load_recipe_config(settings, ["model.encoder.relative.kind=buckets"]).model.stacks()["encoder"]
    assert changed.relative.kind == "buckets"
    model = load_recipe_config(settings | {"seed": 4}, ["model.kind=language_model"]).model
    assert model == LanguageModelConfig()


def test_a_kind_whose_keys_are_the_same_for_all_keeps_them() -> None:
    settings = {"training": {"optimizer": {"lr": 0.1}, "schedule": {"warmup": 7}}}
    training = load_recipe_config(settings, ["training.optimizer.kind=adam", "training.schedule.kind=linear"]).training
    assert (training.optimizer.kind, training.optimizer.lr) == ("adam", 0.1)
    assert (training.schedule.kind, training.schedule.warmup) == ("linear", 7)


def test_another_task_drops_the_settings_of_the_old_one() -> None:
    settings = {"task": {"kind": "scan", "split": "length"}}
    assert load_recipe_config(settings, ["task.split=simple"]).task.settings() == {"kind": "scan", "split": "simple"}
    assert load_recipe_config(settings, ["task.kind=cogs"]).task.settings() == {"kind": "cogs"}


def test_settings_may_refer_to_each_other() -> None:
    recipe = load_recipe_config({"seed": 7, "training": {"n_updates": "${seed}"}}, ["seed=9"])
    assert recipe.training.n_updates == 9
    assert lines({"name": "${nowhere}"})[0].startswith(
        "name: cannot be resolved: Interpolation key 'nowhere' not found: "
        "only what the recipe, its base or an override sets is found, no default"
    )


def test_loading_leaves_the_given_settings_alone() -> None:
    settings = {"model": {"encoder": {"n_stps": 3}}}
    lines(settings, "seed=4")
    assert settings == {"model": {"encoder": {"n_stps": 3}}}


def test_a_resolved_recipe_is_written_with_every_default(tmp_path: Path) -> None:
    dump_recipe(Recipe(), tmp_path / "recipe.yaml")
    text = (tmp_path / "recipe.yaml").read_text(encoding="utf-8")
    assert "label_smoothing: 0.0" in text
    assert load_recipe_config(tmp_path / "recipe.yaml") == Recipe()


@pytest.mark.parametrize(
    "override",
    [
        *("training.optimizer.lr=.inf", "training.optimizer.eps=.inf", "model.encoder.norm.eps=.inf", "seed=1e30"),
        *("decoding.length_penalty.alpha=.inf", "training.clip_norm=.nan", "decoding.max_length_ratio=.inf"),
        *(
            "model.encoder.self_attention.n_heads=10000000000",
            "model.encoder.n_steps=1000000000",
            "data.block_length=1",
        ),
        f"seed={10**30}",
    ],
)
def test_numbers_beyond_any_machine_are_refused_at_once(override: str) -> None:
    key = override.partition("=")[0]
    (line,) = lines({"model": {"kind": "seq2seq"}}, override)
    assert line.startswith(f"{key} is ")
    assert len(line) < 300
