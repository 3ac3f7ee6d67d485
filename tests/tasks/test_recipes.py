from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ostinato.budget import count_macs, count_parameters
from ostinato.config.experts import RoutedConfig
from ostinato.config.files import shipped_directory
from ostinato.config.halting import ChoosingConfig
from ostinato.config.load import dump_recipe
from ostinato.config.model import ModelConfig
from ostinato.errors import ConfigError
from ostinato.tasks.cfq import CfqTask
from ostinato.tasks.recipes import find_recipe, list_recipes, load_recipe, write_derived
from ostinato.tasks.registry import build_task, task_config, task_problems
from ostinato.training import train

NAMES = [recipe.name for recipe in list_recipes()]
NOTES = {"description": "a smaller one", "command": "ostinato solve ..."}
COMPARED = [(name, name.replace("universal", "transformer")) for name in NAMES if re.search("(/|-)universal$", name)]
VOCABULARIES = {"scan": (17, 10), "cogs": (747, 687), "cogs-vf": (747, 662), "logical-inference": (16, 11)}
VOCABULARIES |= {"algorithmic": (15, 15), "digits": (14, 14), "parity": (6, 2), "relay": (17, 17)}
VOCABULARIES |= {"learning-to-execute": (25, 25), "listops": (19, 19)}
VOCABULARIES |= {"pcfg-set": (535, 535), "passivization": (58, 58), "geoquery": (144, 51)}
VOCABULARIES |= {"cfq": (250, 250), "mcwq": (166, 166), "babi": (25, 25)}


def sized(name: str) -> ModelConfig:
    """The recipe's model with the vocabulary its task has (subwords: the size asked for)."""
    recipe = load_recipe(name)
    source, target = VOCABULARIES.get(name.split("/")[0], (recipe.data.tokenizer.vocab_size or 8000,) * 2)
    return recipe.model.model_copy(update=recipe.model.vocabulary_sizes(source, target))


def test_the_promised_recipes_are_there() -> None:
    pairs = ["scan/", "scan/length-", "cogs/", "cogs-vf/", "logical-inference/", "multi30k/", "lm/"]
    pairs += [f"algorithmic/{operation}-" for operation in ("copy", "reverse", "addition")]
    promised = {f"{pair}{model}" for pair in pairs for model in ("transformer", "universal")}
    promised |= {"files/template", "transformer/base", "transformer/big", "universal-transformer/base"}
    promised |= {"universal-transformer/base-act", "sut/base", "sut/big"}
    assert promised <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_loads_and_says_what_it_is(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert 20 < len(recipe.description) < 110
    assert task_problems(recipe.task.settings()) == []


@pytest.mark.sampled
@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_counts_itself(name: str) -> None:
    for plan in load_recipe(name).model.plans().values():
        assert plan.steps
        assert all(step.uses for step in plan.steps)
    model = sized(name)
    parameters = count_parameters(model)
    assert sum(parameters.by_part.values()) == parameters.stored > 0
    assert count_macs(model, 16, 16).total > 0


@pytest.mark.sampled
@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_is_written_and_read_again(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    dump_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml") == recipe


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("learning-to-execute/")])
def test_published_scores_of_programs_stand_beside_free_running_ones(name: str) -> None:
    # Dehghani et al. 2019 give the model no target at test time.
    recipe = load_recipe(name)
    settings = task_config(recipe.task).model_dump()
    rows = [row for row in recipe.reference if row.task.items() <= settings.items()]
    assert [row.metric for row in rows] == (["character_accuracy_free", "exact_match"] if "tiny" not in name else [])


def test_scores_of_turned_queries_are_said_to_rest_on_a_guess() -> None:
    protocol = " ".join((CfqTask.__doc__ or "").split())
    assert "which ten is a guess" in protocol[protocol.index("Metric:") : protocol.index("Selection:")]
    for name in ("cfq/transformer", "cfq/universal-sut", "cfq/universal-t5"):
        header = find_recipe(name).read_text(encoding="utf-8")
        assert "a guess" in header, name


def test_the_act_recipe_names_the_rounds_of_the_authors_code_and_takes_them() -> None:
    name = "universal-transformer/base-act"
    more = ["model.encoder.n_steps=12", "model.decoder.n_steps=12"]
    header = find_recipe(name).read_text(encoding="utf-8").partition("\nbase:")[0]
    assert all(word in header for word in ("caps at 6 rounds", "2 x 6 = 12", *more))
    found = [load_recipe(name, overrides).model for overrides in ([], more)]
    assert [plan.n_rounds for model in found for plan in model.plans().values()] == [6, 6, 12, 12]
    assert len({count_parameters(model, vocab_size=32768).stored for model in found}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_takes_separable_convolutions_as_wide_and_as_shared_as_its_feed_forwards(name: str) -> None:
    given = {name: stack for name, stack in load_recipe(name).model.stacks().items() if stack.ffn.share != "none"}
    # Where routers choose tokens, a convolution has no neighbours to read, and is refused.
    given = {name: stack for name, stack in given.items() if not isinstance(stack.halting, ChoosingConfig)}
    kinds = [f"model.{stack}.ffn.kind=separable_conv" for stack in given]
    stacks = load_recipe(name, kinds).model.stacks()
    for stack in given:
        convolved = stacks[stack]
        own = {"kind", "activation", "kernel_in", "kernel_out", "sum_bias", *RoutedConfig.model_fields}
        assert convolved.ffn.kind == "separable_conv"
        assert convolved.ffn.model_dump(exclude=own) == given[stack].ffn.model_dump(exclude=own)


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_file_begins_with_what_it_is_its_source_and_its_command(name: str) -> None:
    lines = find_recipe(name).read_text(encoding="utf-8").splitlines()
    header = "\n".join(lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))])
    assert all(f"# {word}:" in header for word in ("What", "Source", "Command"))
    assert f"ostinato train {name}" in header
    runs = re.findall(r"training\.init_from=runs/([\w-]+)", header)
    assert {*runs} <= {other.replace("/", "-") for other in NAMES}, "runs lie where their trainings write them"
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize(("universal", "transformer"), COMPARED)
def test_compared_recipes_have_equal_parameters_within_one_percent(universal: str, transformer: str) -> None:
    ours, theirs = count_parameters(sized(universal)), count_parameters(sized(transformer))
    assert abs(ours.stored / theirs.stored - 1) < 0.01
    assert all(plan.is_fully_shared for plan in sized(universal).plans().values())
    assert not any(plan.is_fully_shared for plan in sized(transformer).plans().values())


def test_compared_recipes_differ_in_their_models_alone() -> None:
    for universal, transformer in COMPARED:
        ours, theirs = load_recipe(universal), load_recipe(transformer)
        assert (ours.task, ours.data, ours.training, ours.decoding) == (
            theirs.task,
            theirs.data,
            theirs.training,
            theirs.decoding,
        )


def test_the_published_sizes_are_met() -> None:
    # Universal Transformer base: 12.6 M encoder block, 16.8 M decoder block, 33.5 M embedding.
    parts = count_parameters(sized("universal-transformer/base")).by_part
    encoder = parts["encoder.self_attention"] + parts["encoder.ffn"]
    decoder = parts["decoder.self_attention"] + parts["decoder.cross_attention"] + parts["decoder.ffn"]
    assert [round(n / 1e6, 1) for n in (encoder, decoder, parts["embeddings"])] == [12.6, 16.8, 33.6]
    # Vaswani et al. 2017, table 3 print 65 M and 213 M.
    assert round(count_parameters(sized("transformer/base")).stored / 1e6) == 63
    assert round(count_parameters(sized("transformer/big")).stored / 1e6) == 214


def test_a_recipe_is_found_by_name_by_file_and_by_run(tmp_path: Path) -> None:
    assert find_recipe("scan/universal") == shipped_directory("recipes") / "scan" / "universal.yaml"
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: scan/universal\nseed: 7\n", encoding="utf-8")
    assert find_recipe(mine) == mine
    recipe = load_recipe(mine, ["task.split=length"])
    assert (recipe.name, recipe.seed, recipe.task.settings()["split"]) == ("mine", 7, "length")
    run = tmp_path / "run-3"
    run.mkdir()
    dump_recipe(recipe, run / "recipe.yaml")
    assert find_recipe(run) == run / "recipe.yaml"
    assert load_recipe(run) == recipe


def test_a_run_without_a_name_is_called_after_its_directory(tmp_path: Path) -> None:
    run = tmp_path / "night"
    run.mkdir()
    (run / "recipe.yaml").write_text("seed: 2\n", encoding="utf-8")
    assert load_recipe(run).name == "night"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("scan/univresal", "did you mean scan/universal"),
        ("lm", "did you mean lm/transformer or lm/universal?"),
        ("zzz", "no recipe, file or run directory of that name (`ostinato recipes`"),
        ("gone.yaml", "recipe is 'gone.yaml': there is no such file"),
    ],
)
def test_an_unknown_recipe_names_the_nearest_ones(name: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_recipe(name)
    assert expected in str(caught.value)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"this folder holds no recipe\.yaml, so it is not a run"):
        find_recipe(tmp_path)


def test_problems_of_the_task_stand_beside_the_others() -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe("scan/transformer", ["task.split=lenght", "seed=x", "evaluation.metrics=[blue]"])
    assert sorted(problem.key for problem in caught.value.problems) == ["evaluation.metrics", "seed", "task.split"]


def test_a_selection_that_would_keep_the_worst_model_is_reported_before_any_data_is_read() -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe("cogs/transformer", ["training.selection.metric=exact_match", "seed=x"])
    assert sorted(problem.key for problem in caught.value.problems) == ["seed", "training.selection.mode"]


@pytest.mark.parametrize(
    ("task", "metrics"),
    [
        ("{kind: files}", ("exact_match", "token_accuracy_free")),
        ("{kind: translation, corpus: files}", ("bleu", "chrf")),
        ("{kind: classification}", ("accuracy", "macro_f1")),
    ],
)
def test_the_template_is_measured_by_the_metrics_of_its_task(task: str, metrics: tuple[str, ...]) -> None:
    recipe = load_recipe("files/template", [f"task={task}", "data.train=a.jsonl", "data.dev=b.jsonl"])
    assert recipe.evaluation.metrics is None
    assert build_task(recipe.task, recipe.data, trains=False).metrics == metrics


def test_a_model_that_the_task_cannot_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one line\n")
    texts = ["task.model_kind=language_model", f"data.train={tmp_path / 'a.txt'}"]
    with pytest.raises(ConfigError, match=r"model\.kind is 'seq2seq': the task files .* texts without a source, which"):
        load_recipe("files/template", texts)
    encoder = ["model={kind: encoder, head: {kind: span}}", "training.label_smoothing=0.1", "data.block_length=9"]
    with pytest.raises(ConfigError) as caught:
        load_recipe("files/template", [f"data.train={tmp_path / 'a.jsonl'}", *encoder])
    assert {problem.key for problem in caught.value.problems} == {"training.label_smoothing", "data.block_length"}
    with pytest.raises(ConfigError, match=r"model\.head\.kind is 'masked': the task files has pairs"):
        load_recipe("files/template", [f"data.train={tmp_path / 'a.jsonl'}", "model={kind: encoder}"])
    with pytest.raises(ConfigError, match=r"model\.kind is 'encoder': .* encoder with model\.head\.kind=masked"):
        load_recipe("files/template", [*texts, encoder[0]])


def test_a_language_model_may_read_pairs_with_one_tokenizer_and_all_that_is_wrong_is_said_at_once() -> None:
    model = {"kind": "language_model", "d_model": 32, "decoder": {"self_attention": {"n_heads": 4}, "ffn": {"d_ff": 8}}}
    as_language_model = ["data.target_tokenizer=null", f"model={json.dumps(model)}"]
    assert load_recipe("scan/transformer", as_language_model).model.kind == "language_model"
    wrong = ["model.decoder.self_attention.n_heads=5", "data.target_tokenizer={kind: words}", "evaluation.metrics=[x]"]
    with pytest.raises(ConfigError) as caught:
        load_recipe("scan/transformer", [*as_language_model, *wrong])
    assert {problem.key for problem in caught.value.problems} == {
        "model.decoder.self_attention.n_heads",
        "data.target_tokenizer",
        "evaluation.metrics",
    }
    assert "one vocabulary" in str(caught.value)


def test_a_derived_recipe_loads_with_its_settings_and_says_where_it_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "new" / "small.yaml"
    overrides = ["seed=7", "model.decoder.n_steps=2", "model.decoder.ffn.d_ff=${model.d_model}"]
    write_derived(path, "lm/transformer", overrides=overrides, model={"decoder.n_steps": 3}, **NOTES)
    recipe, base = load_recipe(path), load_recipe("lm/transformer")
    assert (recipe.name, recipe.description, recipe.seed) == ("small", "a smaller one", 7)
    stack = recipe.model.stacks()["decoder"]
    assert (stack.n_steps, stack.ffn.d_ff) == (3, base.model.d_model)
    assert (recipe.training, recipe.data) == (base.training, base.data)
    assert path.read_text(encoding="utf-8").startswith("# Written by: ostinato solve ...\nbase: lm/transformer\n")


def test_a_base_that_is_a_file_is_found_from_the_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("base: lm/transformer\nseed: 3\n", encoding="utf-8")
    path = write_derived(Path("arms/a.yaml"), "mine.yaml", model={"decoder.n_steps": 1}, **NOTES)
    assert "base: ../mine.yaml\n" in path.read_text(encoding="utf-8")
    assert load_recipe(path).seed == 3
    run = tmp_path / "runs" / "x"
    run.mkdir(parents=True)
    (run / "recipe.yaml").write_text("base: lm/transformer\nseed: 4\n", encoding="utf-8")
    assert load_recipe(write_derived(Path("b.yaml"), "runs/x", **NOTES)).seed == 4


def test_files_of_a_recipe_are_found_from_the_recipe_and_overrides_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine" / "arms").mkdir(parents=True)
    for name in ("a.en", "a.de", "t.jsonl", "t.json"):
        (tmp_path / "mine" / name).write_text("x\n", encoding="utf-8")
    data = "train: [a.en, a.de], dev: gone.jsonl, test: {gen: t.jsonl}, tokenizer: {kind: file, path: t.json}"
    base = f"base: files/template\ndata: {{{data}}}\n"
    (tmp_path / "mine" / "base.yaml").write_text(base, encoding="utf-8")
    arm = "base: ../base.yaml\ndata: {target_tokenizer: null, source_field: a}\nmodel: {dropout: 0.2}\n"
    (tmp_path / "mine" / "arms" / "arm.yaml").write_text(arm, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = load_recipe("mine/arms/arm.yaml", ["data.test.far=t.jsonl"]).data
    here = Path("mine/arms/..")
    assert [Path(path) for path in found.train or []] == [here / "a.en", here / "a.de"]
    assert found.dev == str(here / "gone.jsonl")
    assert found.test == {"gen": str(here / "t.jsonl"), "far": "t.jsonl"}
    assert found.tokenizer.path == str(here / "t.json")
    monkeypatch.chdir(tmp_path / "mine")
    assert load_recipe("base.yaml").data.train == ["a.en", "a.de"]
    assert load_recipe(tmp_path / "mine" / "base.yaml").data.train == [
        str(tmp_path / "mine" / n) for n in ("a.en", "a.de")
    ]


def test_a_file_that_is_in_the_current_folder_alone_is_taken_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "only-here.jsonl").write_text("{}\n", encoding="utf-8")
    (tmp_path / "mine" / "a.yaml").write_text(
        "base: files/template\ndata: {train: only-here.jsonl}\n", encoding="utf-8"
    )
    for _ in range(2):
        assert load_recipe("mine/a.yaml").data.train == "only-here.jsonl"
    (said,) = caplog.messages
    assert said.startswith("data.train: only-here.jsonl is not beside mine/a.yaml, but in the current folder")
    assert "\n" not in said


def test_values_that_are_no_paths_yet_stay_as_they_are(tmp_path: Path) -> None:
    text = "base: files/template\ndata:\n  train: /data/a.jsonl\n  dev: ${data.train}\n  test: ???\n"
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"data\.test is '\?\?\?'"):
        load_recipe(tmp_path / "a.yaml")
    found = load_recipe(tmp_path / "a.yaml", ["data.test=null"]).data
    assert (found.train, found.dev) == ("/data/a.jsonl", "/data/a.jsonl")


def test_a_derived_recipe_finds_the_files_of_its_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text("{}\n", encoding="utf-8")
    overrides = ["data.train=a.jsonl", "data.tokenizer={kind: file, path: a.jsonl}"]
    path = write_derived(Path("arms/x.yaml"), "files/template", overrides=overrides, **NOTES)
    assert "train: ../a.jsonl" in path.read_text(encoding="utf-8")
    found = load_recipe(path).data
    assert [Path(str(name)).resolve() for name in (found.train, found.tokenizer.path)] == [tmp_path / "a.jsonl"] * 2


def test_only_files_that_were_written_so_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    write_derived(path, "lm/transformer", model={"d_model": 64}, **NOTES)
    write_derived(path, "lm/transformer", model={"d_model": 32}, **NOTES)
    assert load_recipe(path).model.d_model == 32
    path.write_text("seed: 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="is there already, and was not written by this command"):
        write_derived(path, "lm/transformer", **NOTES)
    assert path.read_text(encoding="utf-8") == "seed: 1\n"


def test_an_unknown_base_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="recipe is 'lm/transfromer'"):
        write_derived(tmp_path / "new" / "a.yaml", "lm/transfromer", **NOTES)
    assert not (tmp_path / "new").exists()


def test_a_derived_recipe_is_written_to_no_link(tmp_path: Path) -> None:
    path, target = tmp_path / "a.yaml", tmp_path / "target.yaml"
    path.symlink_to(target)
    with pytest.raises(ConfigError, match=r"a\.yaml: is a link"):
        write_derived(path, "lm/transformer", **NOTES)
    assert path.is_symlink()
    assert not target.exists()


def test_the_fine_tuning_of_the_depth_study_is_scored_by_its_last_update(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"source": "a b", "target": "b a"}\n{"source": "a", "target": "a"}\n' * 4)
    files = [f"data.{split}={tmp_path / 'a.jsonl'}" for split in ("train", "dev", "test")]
    tiny = ["model.d_model=8", "model.decoder.n_steps=1", "model.decoder.self_attention.n_heads=2"]
    # A rate that spoils the model: dev is best at the first evaluation.
    spoilt = ["n_updates=4", "evaluate_every=1", "optimizer.lr=30", "schedule.warmup=1", "device=cpu"]
    changes = [*files, *tiny, *(f"training.{text}" for text in spoilt)]
    task = ["task={kind: files}", "data.tokenizer={kind: words}", "evaluation.splits=[test]"]
    results = train(load_recipe("depth/small-cogs-vf", [*task, *changes]), tmp_path / "run")
    assert results["best_update"] < results["n_updates"] == 4
    assert results["checkpoint"] == "update-000004"


@pytest.mark.parametrize(("name", "n_ctx"), [("41m", 1024), ("134m", 1024), ("374m", 1024), ("small", 256)])
def test_the_texts_of_the_depth_study_fill_contexts_and_are_not_cut_off(name: str, n_ctx: int) -> None:
    data = load_recipe(f"depth/{name}").data
    assert data.block_length == n_ctx
    assert data.over_length == "error"
    assert load_recipe("depth/small-cogs-vf").data.block_length is None
