from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostinato.budget import count_parameters
from ostinato.budget.solver import Solution
from ostinato.experiments.compare import matched_models
from ostinato.experiments.compare.matched_models import MATCHES
from ostinato.tasks.recipes import load_recipe


@pytest.mark.parametrize(
    ("recipe", "millions"), [("depth/41m", 41.3), ("depth/134m", 134.3), ("depth/374m", 374.1), ("depth/small", 1.8)]
)
def test_the_depth_recipes_have_their_published_sizes_without_any_data(run, recipe: str, millions: float) -> None:
    (counted,) = json.loads(run("plan", recipe, "--json").out)
    assert round(counted["parameters"]["stored"] / 1e6, 1) == millions


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("recipe", "depths", "widths"),
    [
        ("depth/41m", "1..9", [4779, 2048, 1138, 683, 410, 228, 98]),
        ("depth/134m", "1,4,12,20,32,36", [35840, 8192, 2048, 819, 128]),
        ("depth/374m", "2,24,42,64,74", [48811, 2816, 1024, 203]),
    ],
)
def test_the_families_of_the_depth_recipes_have_the_published_widths(
    run, recipe: str, depths: str, widths: list[int]
) -> None:
    found = json.loads(run("family", recipe, "--depths", depths, "--json").out)
    assert [arm["d_ff"] for arm in found["arms"]] == widths
    assert all(arm.keys() == {"n_steps", "d_ff", "parameters", "residual", "macs"} for arm in found["arms"])
    assert all(abs(arm["residual"]) < 0.001 * found["parameters"] for arm in found["arms"])
    macs = [arm["macs"] for arm in found["arms"]]
    assert macs == sorted(macs)
    assert found["infeasible"]
    assert all("cannot hold" in one["reason"] for one in found["infeasible"])


def test_a_family_is_shown_as_a_table_with_the_reasons_of_what_is_missing(run) -> None:
    text = run("family", "depth/41m", "--depths", "7..9").out
    assert "equal: matrices and embeddings" in text
    assert "at 1,024 tokens of context" in text
    (row,) = (line.split() for line in text.splitlines() if line.strip().startswith("7 "))
    assert row[:5] == ["7", "98", "0.1914", "41,300,736", "10,240"]
    assert "41M cannot hold 9 layers at d_model 512: attention and embeddings alone are 42.3M" in text
    exact = run("family", "depth/41m", "--depths", "4", "--count", "exact", "--n-ctx", 256).out
    assert "equal: stored parameters" in exact
    assert " 682 " in exact


def test_every_written_arm_is_a_recipe_of_equal_parameters(run, tmp_path: Path) -> None:
    folder = tmp_path / "arms"
    sizes = ["--source-vocab", 747, "--target-vocab", 687]
    call = ["family", "cogs/transformer", "seed=5", "--depths", "1..3", *sizes, "--write", folder, "--json"]
    found = json.loads(run(*call).out)
    assert found["files"] == [str(folder / f"cogs-transformer-{n}-steps.yaml") for n in (1, 2, 3)]
    for arm, file in zip(found["arms"], found["files"], strict=True):
        recipe = load_recipe(file)
        sized = recipe.model.model_copy(update={"source_vocab_size": 747, "target_vocab_size": 687})
        assert count_parameters(sized).stored == arm["parameters"]
        assert [stack.n_steps for stack in sized.stacks().values()] == [arm["n_steps"]] * 2
        assert recipe.seed == 5
        (counted,) = json.loads(run("plan", file, *sizes, "--json").out)
        assert counted["parameters"]["stored"] == arm["parameters"]
    first = Path(found["files"][0]).read_text(encoding="utf-8").splitlines()[0]
    of_data = "--source-vocab 747 --target-vocab 687"
    assert first == f"# Written by: ostinato family cogs/transformer seed=5 --depths 1..3 --rounding nearest {of_data}"


def test_arms_of_recipes_whose_names_have_dots_have_files_of_their_own(run, tmp_path: Path) -> None:
    sizes = ["--target-vocab", 400, "--depths", "2", "--write", tmp_path, "--json"]
    files = [json.loads(run("family", f"dense/t5-v1.1-{size}", *sizes).out)["files"] for size in ("small", "toy")]
    assert files == [[str(tmp_path / f"dense-t5-v1.1-{size}-2-steps.yaml")] for size in ("small", "toy")]


@pytest.mark.parametrize("depths", ["0..3", "x", "1..", "1,,2", "-1"])
def test_depths_that_are_none_are_wrong_use(run, depths: str) -> None:
    outcome = run("family", "depth/41m", f"--depths={depths}")
    assert outcome.code == 2
    assert "is no depth: 1..12, or 1,2,4" in " ".join(outcome.err.split())


def test_an_empty_range_of_depths_is_said_to_be_one(run) -> None:
    outcome = run("family", "depth/41m", "--depths", "4..2")
    assert outcome.code == 2
    assert "the range '4..2' is empty" in " ".join(outcome.err.split())


def test_other_settings_are_refused_with_what_is_valid(run) -> None:
    assert "'all' is not one of 'exact', 'paper'" in run("family", "depth/41m", "--count", "all").err
    assert "stack is 'encoder': this model has the stacks decoder" in run("family", "depth/41m", "--stack=encoder").err
    assert "'up' is not one of 'nearest', 'down'" in run("solve", "depth/41m", "--rounding", "up").err
    assert "'speed' is not one of parameters" in run("solve", "depth/41m", "--match", "speed").err
    assert "give a reference or a number" in run("solve", "depth/41m", "depth/134m", "--target", 3).err
    assert "name one recipe" in run("solve", "free=2").err
    assert "did you mean d_ff" in run("solve", "depth/41m", "--free", "dff").err
    assert "--beam: has no effect on parameters" in run("solve", "depth/41m", "--beam", 5).err
    assert "--rounding: has no effect on latency" in run("solve", "depth/41m", "--match=latency", "--rounding=down").err


def test_a_recipe_is_solved_for_the_size_of_another(run, tmp_path: Path) -> None:
    file = tmp_path / "solved.yaml"
    call = ["solve", "lm/universal", "lm/transformer", "model.decoder.n_steps=8", "--write", file]
    solved = json.loads(run(*call, "--json").out)
    reference = json.loads(run("plan", "lm/transformer", "--json").out)[0]["parameters"]["stored"]
    assert solved["target"] == reference == solved["parts"]["reference"]["stored"]
    assert solved["achieved"] - reference == solved["residual"]
    assert abs(solved["residual"]) < 513
    recipe = load_recipe(file)
    assert recipe.model.stacks()["decoder"].n_steps == 8
    assert {"model.decoder.ffn.d_ff": recipe.model.stacks()["decoder"].ffn.d_ff} == solved["values"]
    text = run(*call).out
    assert f"lm/universal: model.decoder.ffn.d_ff={recipe.model.stacks()['decoder'].ffn.d_ff}" in text
    assert "residual" in text
    assert "decoder.self_attention" in text
    assert f"wrote {file}" in text


def test_a_solved_recipe_names_the_options_that_made_it_and_no_defaults(run, tmp_path: Path) -> None:
    file = tmp_path / "solved.yaml"
    lengths = "--beam", 2, "--source-length", 32
    run("solve", "depth/small", "--match", "bytes", "--target", 9_000_123, *lengths, "--write", file)
    assert "--free d_ff --match bytes --target 9000123 --beam 2\n" in file.read_text()


def test_without_a_reference_a_recipe_keeps_its_own_cost_under_other_settings(run) -> None:
    call = ["solve", "depth/small", "model.decoder.n_steps=6", "--match", "macs", "--json"]
    solved = json.loads(run(*call).out)
    assert solved["reference"] == "depth/small"
    assert abs(solved["residual"]) < 0.01 * solved["target"]
    number = json.loads(run("solve", "depth/small", "--target", 2_000_000, "--json").out)
    assert number["reference"] is None
    assert abs(number["residual"]) <= 3 * 3 * 128 / 2


def test_a_recipe_beside_itself_has_the_vocabulary_of_the_same_data(run, tmp_path: Path) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text("".join(f'{{"source": "a{i} b", "target": "b a{i}"}}\n' for i in range(20)), encoding="utf-8")
    words = [
        "solve",
        "files/template",
        f"data.train={data}",
        "data.tokenizer.kind=words",
        "data.tokenizer.vocab_size=null",
    ]
    solved = json.loads(run(*words, "model.encoder.ffn.share=all", "--json").out)
    assert solved["parts"]["solved"]["embeddings"] == solved["parts"]["reference"]["embeddings"]
    assert solved["parts"]["reference"]["embeddings"] < 256 * 100


def test_a_target_that_nothing_reaches_is_one_line(run) -> None:
    outcome = run("solve", "depth/41m", "--target", 1000)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "model.decoder.ffn.d_ff is 2048: even the smallest value, 1, costs" in outcome.err


def test_a_nearest_value_that_is_far_off_is_said_to_be(run) -> None:
    words = ["solve", "scan/universal", "scan/transformer", "--free", "d_model", "--match", "macs"]
    assert "not within 5 %: this is the nearest value" in run(*words).out
    assert json.loads(run(*words, "--json").out)["is_within"] is False
    assert "further off" not in run(*words).out
    assert "not within" not in run(*words, "--tolerance", "0.5").out
    down = run(*words, "--rounding", "down").out
    assert "not within 5 %: this is the nearest value that does not cost more\n" in down


def test_a_latency_that_is_far_off_is_said_to_be_the_nearest_measured(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def match_model(model: Any, target: float, *_: Any) -> Solution:
        return Solution(model, "d_ff", {"decoder.ffn.d_ff": 7}, 2 * target, target)

    monkeypatch.setattr(matched_models, "match_model", match_model)
    text = run("solve", "depth/small", "--target", "0.5", "--match", "latency").out
    assert "not within 5 %: this is the nearest of those that were measured" in text


@pytest.mark.parametrize(
    ("words", "key", "multiple"),
    [
        (["scan/lstm", "scan/transformer", "--free", "d_model"], "model.d_model", 2),
        (["dense/llama-toy", "--free", "n_heads", "--target-vocab", 400], "model.decoder.self_attention.n_heads", 2),
        (
            ["dense/llama-toy", "--free", "n_kv_heads", "--target-vocab", 400],
            "model.decoder.self_attention.n_kv_heads",
            1,
        ),
    ],
)
def test_widths_and_heads_that_must_be_multiples_are_solved(run, words: list[object], key: str, multiple: int) -> None:
    outcome = run("solve", *words, "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["values"][key] % multiple == 0


def test_lengths_that_a_model_has_no_positions_for_are_named_where_they_are_counted(run) -> None:
    sizes = ["--source-vocab", 400, "--target-vocab", 400]
    said = "dense/gpt2-toy: model.decoder.positions.max_length is 32, and 33 tokens are counted, which the model cannot"
    for words in (["plan"], ["solve", "--match", "macs"]):
        long = run(*words, "dense/gpt2-toy", *sizes, "--target-length", 33)
        (line,) = (line for line in long.err.splitlines() if "positions" in line)
        assert line.startswith(said)
        assert "positions" not in run(*words, "dense/gpt2-toy", *sizes, "--target-length", 32).err
    # Sizes depend on no length.
    few = ["model.decoder.positions.max_length=16", "data.max_target_length=16", "decoding.max_length=16"]
    assert "positions" not in run("solve", "dense/gpt2-toy", *few, *sizes).err
    pairs = ["model.encoder.positions={kind: learned, max_length: 16}", "data.max_source_length=16"]
    lengths = ["--source-length", 40, "--target-length", 99]
    lines = run("plan", "dense/marian-toy", *pairs, *sizes, *lengths).err.splitlines()
    assert [line.partition(", which")[0] for line in lines if "positions" in line] == [
        "dense/marian-toy: model.encoder.positions.max_length is 16, and 40 tokens are counted"
    ]


@pytest.mark.slow
def test_a_cache_that_keeps_some_rounds_is_matched_as_it_is_kept(run, tmp_path: Path) -> None:
    (tmp_path / "kept.yaml").write_text("base: looped/novels\ndecoding: {cached_rounds: 1}\n", encoding="utf-8")
    size, lengths = ["model.vocab_size=4096"], ["--target-length", 64]

    def cache_of(recipe: object, *settings: str) -> int:
        return int(json.loads(run("plan", recipe, *size, *settings, *lengths, "--json").out)[0]["bytes"]["cache"])

    found = {}
    for reference in ("looped/novels", tmp_path / "kept.yaml"):
        call = [
            "solve",
            "lm/transformer",
            reference,
            *size,
            *lengths,
            "--free",
            "n_steps",
            "--match",
            "cache",
            "--json",
        ]
        found[reference] = solved = json.loads(run(*call).out)
        assert solved["target"] == cache_of(reference)
        settings = [f"{key}={value}" for key, value in solved["values"].items()]
        assert solved["achieved"] == cache_of("lm/transformer", *settings)
    whole, kept = found.values()
    assert kept["values"]["model.decoder.n_steps"] < whole["values"]["model.decoder.n_steps"]
    # The recipe that is solved has a decoding of its own, too; alone, it is matched to what it is without the settings.
    call = ["solve", "looped/novels", "decoding.cached_rounds=1", *size, *lengths, "--free", "d_head"]
    solved = json.loads(run(*call, "--match", "cache", "--json").out)
    assert solved["target"] == cache_of("looped/novels")
    own = [f"{key}={value}" for key, value in solved["values"].items()]
    assert solved["achieved"] == cache_of("looped/novels", "decoding.cached_rounds=1", *own)
    both = json.loads(
        run(*call[:-2], tmp_path / "kept.yaml", "--free", "d_head", "--match", "cache,bytes", "--json").out
    )
    assert both["models"][0]["cache"] == kept["target"]
    assert both["models"][1]["cache"] == kept["target"]


def test_a_model_for_every_budget_of_a_looped_one_in_one_table(run) -> None:
    words = ["solve", "lm/transformer", "looped/novels", "model.vocab_size=4096", "--target-length", 64]
    call = [*words, "--free", "n_steps", "--match", "parameters,macs,cache"]
    reference, *models = json.loads(run(*call, "--json").out)["models"]
    assert reference["match"] is None
    assert [model["match"] for model in models] == ["parameters", "macs", "cache"]
    for model in models:
        settings = [f"{key}={value}" for key, value in model["values"].items()]
        planned = run("plan", "lm/transformer", "model.vocab_size=4096", *settings, "--target-length", 64, "--json").out
        budget = json.loads(planned)[0]
        assert model["parameters"] == budget["parameters"]["stored"]
        assert model["macs"] == budget["macs"]["total"]
        assert model["cache"] == budget["bytes"]["cache"]
    text = run(*call).out
    assert "looped/novels (reference)" in text
    assert f"{models[1]['macs'] / reference['macs']:.3g} x" in text


def test_a_budget_that_nothing_meets_leaves_the_other_models_standing(run) -> None:
    words = ["solve", "lm/transformer", "looped/huginn-toy", "model.vocab_size=4096", "--match", "parameters,macs"]
    text = run(*words, "--free", "n_steps").out
    assert "lm/transformer, equal macs" in text
    assert "equal parameters: even the smallest value, 1, costs" in text


def test_a_match_that_the_reference_or_the_setting_has_nothing_of_leaves_the_others_standing(run) -> None:
    of_data = ["--source-vocab", "100", "--target-vocab", "100"]
    outcome = run(
        "solve", "lm/transformer", "masked/small", "--free", "n_steps", "--match", "parameters,cache", *of_data
    )
    assert outcome.code == 0, outcome.err
    assert "equal parameters" in outcome.out
    outcome = run("solve", "lm/transformer", "masked/small", "--match", "parameters,cache", *of_data)
    assert outcome.code == 0, outcome.err
    assert "equal cache: changes nothing of what is to be matched" in " ".join(outcome.out.split())


def test_several_matches_write_no_recipe(run, tmp_path: Path) -> None:
    words = ["solve", "lm/universal", "lm/transformer", "--match", "parameters,macs"]
    assert "several matches need a reference" in run(*words, "--write", tmp_path / "a.yaml").err
    assert "several matches need a reference" in run("solve", "lm/universal", "--target", 5, *words[3:]).err


def test_the_help_names_everything_that_can_be_matched(run) -> None:
    text = " ".join(run("solve", "--help").out.split())
    assert all(match in text for match in MATCHES)
