from __future__ import annotations

import json
from pathlib import Path

import pytest

from ostinato.cli.drawing import drawing
from ostinato.cli.output import READABLE_WIDTH, compact
from ostinato.plan import SubLayerPlan, assign, build_plan


def _rows(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_drawing_says_what_is_shared_what_is_absent_and_how_deep_it_runs(run) -> None:
    rows = _rows(run("plan", "one-wide-ffn/base/shared-enc-dec", "model.decoder.ffn.bank=both").out)
    assert "ffn both 0 0 0 0 0 0 with weights" in rows
    assert "self_attention encoder 0 1 2 3 4 5 with weights" in rows
    assert "ffn: bank 'both' serves encoder and decoder with the same sets" in rows
    assert "depth: encoder 6 of 6 rounds (no halting), decoder 6 of 6 rounds (no halting)" in rows
    rows = _rows(run("plan", "one-wide-ffn/base/one-wide").out)
    assert "ffn - - - - - -" in rows
    assert "self_attention 8 heads x 64, ffn relu x 24,576" in rows
    assert any(row.startswith("encoder: 6 steps, post-LayerNorm, positions sinusoidal") for row in rows)


def test_norms_of_every_step_and_rounds_of_several_steps_are_drawn() -> None:
    sets = assign("cycle", 4, 2)
    plan = build_plan("encoder", [SubLayerPlan("ffn", sets, bank="encoder", share_norm=False)], 4, steps_per_round=2)
    lines = [" ".join(line.plain.split()) for line in drawing(plan, ["ffn"], 100)]
    assert lines == ["step bank 1 2 3 4 norms", "round 1 1 2 2", "ffn encoder 0 1 0 1 one per step"]
    for share_norm, words in (
        (True, "with weights"),
        (False, "one per step"),
    ):  # of a set that serves another stack, too
        plan = build_plan("encoder", [SubLayerPlan("ffn", (0, 1), bank="both", share_norm=share_norm)], 2)
        assert [line.plain.split() for line in drawing(plan, ["ffn"], 100)][-1] == [
            "ffn",
            "both",
            "0",
            "1",
            *words.split(),
        ]


PARTS_OF_LOOPS = {
    "looped/huginn-3.5b": [
        "decoder: 132 steps (2 + 4 x 32 + 2) in 32 rounds, sandwich-RMSNorm, positions none, relative rotary",
        "segment 2: starts from noise of deviation 0.632, its input enters every round (linear), "
        "the final norm at the end",
        "step bank 1 2 3 4 5 6 131 132 norms",
        "segment 1 1 2 2 2 2 3 3",
        "times 1 1 32 32 32 32 1 1",
        "ffn decoder 0 1 2 3 4 5 6 7 with weights",
        "in training: 1 + Poisson(r) rounds, r log-normal of mean 32, drawn for every update; "
        "gradient through the last 8 rounds",
    ],
    "looped/mor-360m": [
        "a router chooses among those chosen before: 1, 0.667, 0.333 of the tokens (threshold 0.5)",
        "times 1 3 3 3 3 3 3 3 3 3 3 1",
    ],
    "looped/relaxed-recursive-2b": ["segment 1: norms of every round, maps of every round changed by rank 512"],
    "looped/trm-7m": [
        "encoder: 42 steps ((2 x 6 + 2) x 3) in 3 rounds, post-RMSNorm, positions none, relative rotary",
        "segment 1, state low: starts from a learned vector of deviation 1, adds high and input",
        "segment 1, state high: starts from a learned vector of deviation 1, adds low",
        "in training: gradient through the last round",
    ],
    "looped/cotformer": ["segment 2: a round reads the keys and values of all rounds up to it"],
    "looped/ln-cotformer": ["a vector for every round, a norm after every round"],
    "looped/loopformer-3x8": [
        "segment 1: gates and scales made of the times of a round",
        "in training: a second pass with fewer rounds",
    ],
    "looped/ouro-1.4b": [
        "exit by a learned gate (threshold 1)",
        "in training: losses of all rounds, weighted by the learned exit",
    ],
    "looped/parcae-140m": ["a map at the end", "in training: max(1, Poisson(8)) rounds, drawn for every sentence"],
}


@pytest.mark.sampled
@pytest.mark.parametrize("recipe", PARTS_OF_LOOPS)
def test_a_drawing_of_a_loop_says_all_that_its_rounds_have(run, recipe: str) -> None:
    sizes = ["--source-vocab", 13, "--target-vocab", 12] if recipe == "looped/trm-7m" else []
    drawn = "\n".join(_rows(run("plan", recipe, *sizes).out))
    for part in PARTS_OF_LOOPS[recipe]:
        assert part in drawn
    assert "decoding keeps" not in drawn


def test_a_drawing_says_which_rounds_are_kept_which_are_fixed_and_what_training_does_with_them(run) -> None:
    segments = "model.decoder.segments=[{n_steps: 2, repeats: 3, fixed: true, inject: {kind: add}}, {repeats: 4}, {}]"
    settings = ["model.decoder.n_steps=4", segments, "decoding.cached_rounds=2", "--target-vocab", 40]
    rows = _rows(run("plan", "lm/transformer", *settings, "training.round_loss={kind: weights, weights: [1, 3]}").out)
    assert any(row.startswith("decoder: 11 steps (2 x 3 fixed + 1 x 4 + 1) in 4 rounds") for row in rows)
    assert "segment 1: its input enters every round (add)" in rows
    assert "decoding keeps the keys and values of 2 of 4 rounds" in rows
    assert "step bank 1 2 7 11 norms" in rows
    assert "segment 1 1 2 3" in rows
    assert "times 3 3 4 1" in rows
    assert "in training: loss of the last rounds with the weights 1, 3" in rows
    assert "depth: decoder 4 of 4 rounds (no halting)" in rows
    more = ["training.rounds={kind: uniform, least: 2, most: 6, ramp: 1000}", "training.round_loss={kind: window}"]
    (line,) = [one for one in _rows(run("plan", "lm/transformer", *settings, *more).out) if one.startswith("in tra")]
    assert (
        line == "in training: 2 to 6 rounds, drawn for every update, grown over 1,000 updates; mean loss of all rounds"
    )
    states = "states: [{name: a, adds: [b], repeats: 2}, {name: b, adds: [a]}]"
    loop = [f"model.decoder.segments=[{{n_steps: 2, repeats: 4, {states}}}]", "model.decoder.n_steps=2"]
    loss = ["training.rounds.gradient_repeats=[1, 2]", "training.round_loss={kind: drawn, weight: 0.25}"]
    drawn = _rows(run("plan", "lm/transformer", *loop, *loss, "--target-vocab", 40).out)
    repeats = "gradient through so many changes of a state in the last rounds: 1, 2"
    assert f"in training: {repeats}; loss of the last round and, with weight 0.25, of another that is drawn" in drawn


def test_a_drawing_of_experts_says_how_many_what_they_are_and_who_decides(run) -> None:
    rows = _rows(run("plan", "sut/big").out)
    decides = "(mlp router, renormalised softmax gate"
    assert f"self_attention 4 of 48 experts of 4 heads x 64 {decides}, 1 drawn)" in rows
    assert f"ffn 4 of 48 experts of gelu x 512 {decides})" in rows
    (stated,) = [row for row in rows if row.startswith("experts a token: ")]
    assert "encoder.ffn 4 of 48" in stated
    assert sum(row.startswith("decoder.cross_attention.router ") for row in rows) == 3
    single = ["model.encoder.ffn.n_experts=1", "model.encoder.ffn.top_k=1"]
    assert "ffn 1 expert of gelu x 512" in _rows(run("plan", "sut/base", *single).out)
    assert "experts a token" not in run("plan", "one-wide-ffn/base/baseline").out


def test_a_drawing_of_halting_says_the_rule_and_that_depth_is_assumed(run) -> None:
    assumed = "depth is assumed, for MACs; bytes are those of all rounds (--expected-depth, docs/budgets.md)"
    rows = _rows(run("plan", "sut/base").out)
    assert rows.count("halting stick_breaking (threshold 0.999)") == 2
    rule = "6 of 6 rounds (stick_breaking halting, assumed)"
    assert f"depth: encoder {rule}, decoder {rule}" in rows
    assert assumed in rows
    rows = _rows(run("plan", "universal-transformer/base-act").out)
    listed = "epsilon 0.01, interpolate, halted states go on, no remainder at the last round"
    assert rows.count(f"halting act ({listed})") == 2
    go_on = "6 of 6 rounds (act halting, assumed; halted tokens are computed: all rounds are counted)"
    assert f"depth: encoder {go_on}, decoder {go_on}" in rows
    act = ["model.encoder.halting={kind: act, scope: global}"]
    rows = _rows(run("plan", "universal-transformer/base", *act).out)
    assert rows.count("halting act (epsilon 0.01, accumulate, global probability)") == 1
    assert "depth: encoder 6 of 6 rounds (act halting, assumed), decoder 6 of 6 rounds (no halting)" in rows
    assert assumed not in _rows(run("plan", "universal-transformer/base").out)


def test_an_expected_depth_is_for_the_recipes_whose_tokens_halt(run) -> None:
    names, encoder = ["sut/base", "universal-transformer/base"], ["--expected-depth", "encoder=2.5"]
    (sut, plain), (full, same) = (json.loads(run("plan", *names, *given, "--json").out) for given in (encoder, []))
    assert sut["assumptions"]["depth"]["encoder"]["counted"] == 2.5
    assert sut["assumptions"]["depth"]["decoder"]["counted"] == 6
    assert sut["macs"]["per_source_token"] < full["macs"]["per_source_token"]
    assert sut["macs"]["per_target_token"] == full["macs"]["per_target_token"]
    assert plain["macs"] == same["macs"]
    assert sut["bytes"] == full["bytes"]
    rows = _rows(run("plan", "sut/base", *encoder).out)
    assert any(row.startswith("depth: encoder 2.5 of 6 rounds (stick_breaking halting, assumed)") for row in rows)
    outcome = run("plan", "universal-transformer/base", *encoder)
    assert (outcome.code, "no token halts (model.encoder.halting.kind is none)" in outcome.err) == (2, True)
    outcome = run("plan", *names, "--expected-depth", "encoder=7")
    assert (outcome.code, "must lie in [1, 6], its rounds" in outcome.err) == (2, True)
    outcome = run("plan", "sut/base", "--expected-depth", "4")
    assert (outcome.code, "'4' is not STACK=ROUNDS" in outcome.err) == (2, True)


def test_a_sparse_layer_is_a_column_of_its_own(run) -> None:
    rows = _rows(run("plan", "x-moe/x-moe").out)
    assert "self_attention encoder 0 1 2 3 4 5 - 6 7 8 9 10 11 with weights" in rows
    assert "ffn encoder 0 1 2 3 4 5 S 6 7 8 9 10 11 with weights" in rows
    assert (
        "S: sparse layer after step 6, 1 of 32 experts of 3 feed-forwards of gelu x 3,072 "
        "(hypersphere router of width 16, softmax gate)"
    ) in rows
    assert "self_attention 12 heads x 64, ffn gelu x 3,072" in rows
    alone = ["model.encoder.ffn.share=none", "model.encoder.self_attention.share=all"]
    rows = _rows(run("plan", "x-moe/x-moe", *alone).out)
    assert "ffn encoder - - - - - - S - - - - - -" in rows
    (counted,) = json.loads(run("plan", "x-moe/x-moe", "--json").out)
    assert counted["assumptions"]["experts"] == {"encoder.sparse_layer": {"k": 1, "n_experts": 32}}
    assert counted["macs"]["by_part"]["encoder.sparse_layer.router"] == 32 * 16 * (768 + 32)


def test_the_same_set_has_the_same_colour() -> None:
    plan = build_plan("encoder", [SubLayerPlan("ffn", (0, 1, 0, None), bank="encoder")], 4)
    *_, line = drawing(plan, ["ffn"], 100)
    marks = [(line.plain[span.start : span.end].strip(), span.style) for span in line.spans]
    styles = dict(marks[:4])
    assert [mark for mark, _ in marks[:4]] == ["0", "1", "0", "-"]
    assert marks[0] == marks[2]
    assert styles["0"] != styles["1"]
    assert styles["-"] == "dim"


@pytest.mark.parametrize("n_steps", [1, 6, 24, 32, 120])
def test_a_long_plan_goes_on_in_another_block_and_loses_no_step(n_steps: int) -> None:
    kinds = [SubLayerPlan(kind, tuple(range(n_steps)), bank="decoder") for kind in ("self_attention", "ffn")]
    lines = [line.plain for line in drawing(build_plan("decoder", kinds, n_steps), ["self_attention", "ffn"], 100)]
    assert max(map(len, lines)) <= 100
    marks = [mark for line in lines if line.strip().startswith("ffn") for mark in line.split()[2:-2]]
    assert marks == [str(i) for i in range(n_steps)]


def test_nothing_that_stands_side_by_side_is_wider_than_a_screen(run) -> None:
    names = [
        f"one-wide-ffn/big/{v}" for v in ("baseline", "shared-enc-shared-dec", "no-enc-shared-dec", "one-wide-98304")
    ]
    lines = run("plan", *names).out.splitlines()
    assert max(len(line.rstrip()) for line in lines if not line.startswith("vocabulary")) <= READABLE_WIDTH


@pytest.mark.parametrize(
    ("recipes", "stored"),
    [
        (["one-wide-ffn/big/baseline", "one-wide-ffn/big/shared-enc"], "stored 228,171,776 186,192,896"),
        (["looped/huginn-3.5b", "looped/ouro-1.4b"], "stored 3,564,976,800 1,434,652,673"),
    ],
)
def test_stored_parameters_are_exact(run, recipes: list[str], stored: str) -> None:
    assert stored in _rows(run("plan", *recipes).out)


def test_recipes_side_by_side_show_where_they_differ_and_what_matches(run) -> None:
    names = ["one-wide-ffn/big/baseline", "one-wide-ffn/big/one-wide", "one-wide-ffn/big/shared-enc-dec"]
    rows = _rows(run("plan", *names).out)
    assert "model.encoder.ffn.d_ff 4096 49152 4096" in rows
    assert "model.decoder.ffn.bank null null both" in rows
    assert "decoder.ffn decoder 0-5 - x6 both 0 x6" in rows
    assert not any(row.startswith(("model.d_model ", "decoder.self_attention decoder ")) for row in rows)
    (row,) = [row for row in rows if row.startswith("one-wide 228.1M")]
    assert row.startswith("one-wide 228.1M yes (-0.01 %) 23.44G no (+219.6 %)")
    assert "baseline 228.2M reference 7.333G reference" in " | ".join(rows)


def test_the_tolerance_decides_what_matches(run) -> None:
    names = ["one-wide-ffn/big/baseline", "one-wide-ffn/big/no-enc"]
    for tolerance, expected in ((0.01, False), (0.25, True)):
        _, second = json.loads(run("plan", *names, "--tolerance", tolerance, "--json").out)
        matches = second["matches"]
        assert (matches["reference"], matches["tolerance"]) == (names[0], tolerance)
        assert matches["parameters"]["is_within"] is expected
        assert matches["parameters"]["difference"] == pytest.approx(-0.2208, abs=1e-4)
        assert matches["macs"]["figure"] == second["macs"]["total"]
        assert matches["bytes"]["figure"] == sum(second["bytes"].values())


def test_one_embedding_has_as_many_rows_for_both_sides(run) -> None:
    plan = ("plan", "one-wide-ffn/base/baseline")
    (both,) = json.loads(run(*plan, "--source-vocab", 1000, "--target-vocab", 1000, "--json").out)
    for option in ("--source-vocab", "--target-vocab"):
        (found,) = json.loads(run(*plan, option, 1000, "--json").out)
        assert (found["vocabulary"], found["parameters"]) == (both["vocabulary"], both["parameters"])
    refused = run(*plan, "--source-vocab", 1000, "--target-vocab", 900)
    assert (refused.code, "both sides have one embedding" in refused.err) == (2, True)


def test_json_holds_parameters_macs_bytes_assumptions_plans_and_vocabulary(run) -> None:
    sizes = ["--source-length", 9, "--target-length", 7, "--batch-size", 4, "--beam", 5, "--precision", "bfloat16"]
    (pair,) = json.loads(run("plan", "one-wide-ffn/base/baseline", *sizes, "--json").out)
    assert pair.keys() == {
        "recipe",
        "vocabulary",
        "plans",
        "parameters",
        "macs",
        "kaplan_flops",
        "bytes",
        "assumptions",
    }
    assert pair["parameters"].keys() == {"stored", "active", "executed", "by_part"}
    assert {"per_source_token", "per_target_token", "per_generated_token", "by_part", "total"} < pair["macs"].keys()
    assert pair["bytes"].keys() == {"weights", "activations", "cache"}
    assumed = pair["assumptions"]
    assert (assumed["source_length"], assumed["batch_size"], assumed["beam"]) == (9, 4, 5)
    assert assumed["precision"] == "bfloat16"
    assert assumed["depth"]["encoder"] == {"expected": 6.0, "counted": 6.0, "rounds": 6, "halting": "none"}
    (whole,) = json.loads(run("plan", "one-wide-ffn/base/baseline", "--precision", "float32", "--json").out)
    (own,) = json.loads(run("plan", "one-wide-ffn/base/baseline", "--json").out)
    assert (whole["assumptions"]["precision"], own["assumptions"]["precision"]) == ("float32", "bfloat16")
    (single,) = json.loads(run("plan", "one-wide-ffn/decoder-only/baseline", "--json").out)
    assert "per_token" in single["macs"]
    assert "per_source_token" not in single["macs"]


def test_a_recipe_beside_itself_differs_in_nothing(run) -> None:
    outcome = run("plan", "one-wide-ffn/base/baseline", "one-wide-ffn/base/baseline")
    assert "settings that differ: none\nplans that differ: none\n" in outcome.out
    assert "baseline (2)" in outcome.out


def test_large_counts_are_read_in_four_digits() -> None:
    assert [compact(n) for n in (0, 999, 1000, 228_171_776, 999_999, 10**13)] == [
        "0",
        "999",
        "1.000K",
        "228.2M",
        "1.000M",
        "10.00T",
    ]
    assert [compact(n, 1024) for n in (512, 1023, 1024, 912_687_104, 1023 * 1024)] == [
        "512 B",
        "1023 B",
        "1.000 KiB",
        "870.4 MiB",
        "1023 KiB",
    ]


def test_one_key_a_stack_makes_separable_convolutions_of_a_recipes_feed_forwards(run) -> None:
    kinds = [f"model.{stack}.ffn.kind=separable_conv" for stack in ("encoder", "decoder")]
    drawn = run("plan", "scan/universal", *kinds, "model.encoder.ffn.kernel_out=7").out
    (plain,) = json.loads(run("plan", "scan/universal", "--json").out)
    (convolved,) = json.loads(run("plan", "scan/universal", *kinds, "--json").out)
    assert convolved["plans"] == plain["plans"]
    width = 1412
    assert f"ffn relu x {width:,}" in run("plan", "scan/universal").out
    assert f"ffn separable_conv of kernels 3 and 7 x {width:,}" in drawn
    assert f"ffn separable_conv of kernels 3 and 5 x {width:,}" in drawn
    added = convolved["parameters"]["stored"] - plain["parameters"]["stored"]
    assert added == 2 * (3 * 128 + 5 * width)


def test_activations_are_counted_as_the_recipe_trains(run) -> None:
    name, setting = "one-wide-ffn/base/baseline", "training.checkpoint_activations=true"
    (plain,) = json.loads(run("plan", name, "--json").out)
    (recomputed,) = json.loads(run("plan", name, setting, "--json").out)
    assert [one["assumptions"]["checkpoint_activations"] for one in (plain, recomputed)] == [False, True]
    assert recomputed["bytes"]["activations"] < 0.6 * plain["bytes"]["activations"]


@pytest.mark.slow
def test_the_cache_is_counted_as_the_recipe_decodes(run) -> None:
    found = {}
    for n in (None, 1, 2):
        setting = [] if n is None else [f"decoding.cached_rounds={n}"]
        loops = [f"model.{name}.n_steps=3" for name in ("encoder", "decoder")]
        (one,) = json.loads(run("plan", "digits/universal", *loops, *setting, "--json").out)
        assert one["assumptions"]["cached_rounds"] == n
        found[n] = one["bytes"]["cache"]
    of_a_round = found[2] - found[1]
    assert of_a_round > 0
    assert found[None] - found[2] == of_a_round


def test_a_decoder_only_model_of_pairs_is_counted_for_both_sides(run) -> None:
    sizes = ["--source-vocab", 4000, "--target-vocab", 4000, "--source-length", 8, "--target-length", 24]
    found = json.loads(run("plan", "one-wide-ffn/multi30k/baseline", "multi30k/decoder-only", *sizes, "--json").out)
    pair, joined = (one["assumptions"] for one in found)
    assert (pair["source_length"], pair["target_length"], joined["target_length"]) == (8, 24, 32)
    assert found[1]["macs"]["total"] == 32 * found[1]["macs"]["per_token"]
    assert (
        "MACs (8 source, 24 target tokens)" in run("plan", "multi30k/decoder-only", "multi30k/transformer", *sizes).out
    )


def test_sequences_of_different_lengths_are_said_to_be(run) -> None:
    sizes = ["--source-length", 8, "--target-length", 24, "--source-vocab", 100, "--target-vocab", 100]
    assert "MACs (24 and 32 tokens)" in run("plan", "lm/transformer", "multi30k/decoder-only", *sizes).out
    assert "MACs (24 tokens)" in run("plan", "lm/transformer", "lm/universal", *sizes).out


def test_a_sweep_is_named_with_the_commands_that_read_it(run, tmp_path: Path) -> None:
    sweep = tmp_path / "sw.yaml"
    sweep.write_text("recipe: digits/transformer\narms: [{name: a}]\nseeds: [1]\n", encoding="utf-8")
    outcome = run("plan", sweep)
    assert outcome.code == 2
    assert outcome.err == f"{sweep}: is a sweep, not a recipe: ostinato sweep {sweep}, ostinato table {sweep}\n"


def test_a_split_that_the_task_lacks_is_refused_before_it_is_trained(run, tmp_path: Path) -> None:
    outcomes = [
        run("plan", "algorithmic/copy-universal", "evaluation.splits=[gen]"),
        run("train", "algorithmic/copy-universal", "evaluation.splits=[gen]", "--run-dir", tmp_path / "new"),
    ]
    for outcome in outcomes:
        assert outcome.code == 2
        assert outcome.err == "evaluation.splits is 'gen': the task algorithmic has the splits train, dev, test, long\n"
    assert not (tmp_path / "new").exists()


def test_the_cost_of_the_scaling_laws_is_a_row_of_models_of_one_sequence(run) -> None:
    sizes = ["--source-vocab", "500", "--target-vocab", "500"]
    rows = _rows(run("plan", "lm/transformer", "lm/universal", *sizes).out)
    assert any(row.startswith("C_forward, FLOPs per token") for row in rows)
    assert not any("C_forward" in row for row in _rows(run("plan", "scan/transformer").out))


@pytest.fixture
def own(tmp_path: Path) -> list[str]:
    """A recipe of a small model over three files of the user's own, and the settings that name them."""
    settings = []
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.jsonl").write_text('{"source": "a b", "target": "b a", "n": 2}\n', encoding="utf-8")
        settings.append(f"data.{split}={tmp_path / split}.jsonl")
    return ["files/template", *settings, "data.tokenizer.kind=words", "evaluation.splits=[test]", "model.d_model=16"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["data.dev=null"], "training.selection.split is 'dev': "),
        (["evaluation.splits=[gen]"], "evaluation.splits is 'gen': "),
        (["training.freeze=['zzz*']"], "training.freeze is 'zzz*': matches no parameter of the model"),
        (
            ["training.optimizer.lr_scales=[{pattern: 'zzz*', scale: 0.5}]"],
            "training.optimizer.lr_scales is 'zzz*': matches no parameter of the model",
        ),
        (
            [
                "training.consistency={loss: 0.1}",
                "model.encoder.self_attention.share=all",
                "model.encoder.ffn.share=all",
                "model.encoder.n_steps=1",
            ],
            "training.consistency.loss is 0.1: ",
        ),
        (["training.init_from=nowhere"], "holds no run: name a run directory, whose best checkpoint is taken"),
        (["evaluation.by=[nocol]"], "test: example 1 has no column 'nocol'; its columns are: n"),
        (["data.mixture={column: nocol}"], "row 1 has no column 'nocol' (data.mixture.column), but n"),
    ],
)
def test_what_training_would_refuse_is_refused(
    run, own: list[str], tmp_path: Path, settings: list[str], message: str
) -> None:
    outcome = run("plan", *own, *settings)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1), outcome.err
    assert message in outcome.err
    assert message in run("train", *own, *settings, "--run-dir", tmp_path / "run").err
    assert not (tmp_path / "run").exists()


def test_what_training_would_take_is_taken_and_what_is_not_here_yet_is_not_asked_for(run, own: list[str]) -> None:
    settings = ["evaluation.by=[n]", "data.mixture={column: n}", "training.freeze=['*norm*']"]
    assert run("plan", *own, *settings).code == 0
    sizes = ["--source-vocab", 20, "--target-vocab", 20]
    assert run("plan", "files/template", "evaluation.by=[anything]", *sizes).code == 0
    assert run("plan", "logical-inference/ut-fixed", *sizes).code == 0, "the run it starts from is trained before it"
    assert run("plan", "scan/transformer", "evaluation.by=[anything]", *sizes).code == 0


def test_bytes_of_a_process_are_listed_by_the_number_of_processes(run) -> None:
    sizes = ["--target-vocab", "300", "--target-length", "16", "--batch-size", "8"]
    done = run("plan", "depth/small", *sizes, "--ranks", "1,8,64")
    rows = _rows(done.out)
    assert "bytes a process of depth/small 1 process 8 processes 64 processes" in rows
    assert "sentences 8 1 1" in rows
    [one] = json.loads(run("plan", "depth/small", *sizes, "--ranks", "1,8", "--json").out)
    whole, part = one["ranks"]
    assert whole["parameters"] == one["bytes"]["weights"]
    assert whole["gathered"] == 0
    assert whole["parameters"] / 8 <= part["parameters"] < 1.01 * whole["parameters"] / 8
    assert part["activations"] < whole["activations"]
    [with_mean] = json.loads(run("plan", "depth/small", "training.ema_decay=0.9", *sizes, "--ranks", "1", "--json").out)
    assert with_mean["ranks"][0]["optimizer"] == whole["optimizer"] + whole["parameters"]
    assert run("plan", "depth/small", "--ranks", "0").code == 2


def test_a_setting_may_be_longer_than_the_name_of_a_file(run) -> None:
    done = run("plan", "scan/universal", f"name={'a' * 300}")
    assert done.code == 0, done.err
    refused = run("plan", "scan/universal", f"seed={'a' * 300}")
    assert refused.code == 2
    assert "seed" in refused.err
    assert "too long" not in refused.err
