from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from architectures import draws
from ostinato.config.files import find_file, parse_overrides, read_yaml, resolve_references, write_yaml
from ostinato.config.load import dump_recipe, load_recipe_config
from ostinato.config.recipe import Recipe
from ostinato.config.sub_layers import DenseFeedForwardConfig, SeparableConvConfig
from ostinato.errors import ConfigError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def error(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_recipe_config(path)
    return str(caught.value)


def test_a_number_in_scientific_notation_is_a_number(tmp_path: Path) -> None:
    recipe = load_recipe_config(write(tmp_path / "a.yaml", "training: {optimizer: {lr: 1e-3, eps: 1E-9}}"))
    assert (recipe.training.optimizer.lr, recipe.training.optimizer.eps) == (1e-3, 1e-9)


def test_a_syntax_error_names_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", "seed: 1\nmodel:\n  d_model: [1, 2\ndata: {}\n")
    assert error(path).startswith(f"{path}, line 4: is not valid YAML: ")


def test_a_repeated_key_names_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", "seed: 1\nname: x\nseed: 2\n")
    assert error(path) == f"{path}, line 3: is not valid YAML: found duplicate key seed"


def test_files_that_are_no_settings_are_refused(tmp_path: Path) -> None:
    assert error(write(tmp_path / "list.yaml", "- a\n- b\n")).endswith("must hold settings as 'key: value' lines")
    assert error(tmp_path / "none.yaml").endswith("none.yaml: cannot be read (No such file or directory)")
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    assert "is not UTF-8 text" in error(tmp_path / "latin.yaml")
    assert load_recipe_config(write(tmp_path / "empty.yaml", "# nothing\n")) == Recipe()


def test_keys_that_yaml_reads_as_other_things_are_unknown_settings(tmp_path: Path) -> None:
    assert error(write(tmp_path / "a.yaml", "1: 2\n")).startswith("1 is 2: no such setting")


def test_bases_chain_and_each_file_finds_its_own_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "far" / "root.yaml", "name: root\ndescription: the root\nseed: 3\ntraining: {n_updates: 10}\n")
    write(tmp_path / "far" / "middle.yaml", "base: root.yaml\ntraining: {accumulate: 2}\n")
    path = write(tmp_path / "leaf.yaml", "base: far/middle.yaml\ntraining: {n_updates: 20}\n")
    recipe = load_recipe_config(path, default_name="leaf")
    assert (recipe.seed, recipe.training.n_updates, recipe.training.accumulate) == (3, 20, 2)
    assert (recipe.name, recipe.description) == ("leaf", "")


def test_a_base_may_be_a_recipe_by_name(tmp_path: Path) -> None:
    shelf = write(tmp_path / "shelf" / "plain.yaml", "seed: 8\n")
    path = write(tmp_path / "a.yaml", "base: plain\n")
    assert load_recipe_config(path, find_base=lambda name: shelf.with_stem(name)).seed == 8


def test_bases_in_a_circle_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "b.yaml", "base: a.yaml\n")
    message = error(write(tmp_path / "a.yaml", "base: b.yaml\n"))
    assert message.endswith("a recipe cannot derive from itself (a.yaml -> b.yaml -> a.yaml)")


def test_a_base_that_is_absent_or_no_name_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", "base: gone.yaml\n")
    assert error(path) == f"base is 'gone.yaml': there is no such file beside {path}"
    assert error(write(tmp_path / "b.yaml", "base: [x]\n")).startswith("base is ['x']: must be the name of a recipe")
    assert error(write(tmp_path / "c.yaml", "base: scan\n")).startswith("base is 'scan': must be a path to a YAML file")


def test_a_base_and_a_kind_it_does_not_have(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "model: {kind: seq2seq, encoder: {relative: {kind: window, window: 2}}}\n")
    path = write(tmp_path / "b.yaml", "base: a.yaml\nmodel: {encoder: {relative: {kind: rotary}}}\n")
    assert load_recipe_config(path).model.stacks()["encoder"].relative.kind == "rotary"


def test_another_kind_of_feed_forward_keeps_its_width_and_sharing_but_no_key_it_does_not_know(tmp_path: Path) -> None:
    ffn = "{d_ff: 96, share: all, bank: both, dropout: 0.2, activation: gelu}"
    path = write(tmp_path / "a.yaml", f"model: {{kind: seq2seq, encoder: {{ffn: {ffn}}}, decoder: {{ffn: {ffn}}}}}\n")
    kinds = [f"model.{stack}.ffn.kind=separable_conv" for stack in ("encoder", "decoder")]
    kept = SeparableConvConfig(d_ff=96, share="all", bank="both", dropout=0.2)
    stacks = load_recipe_config(path, kinds).model.stacks()
    assert [stack.ffn for stack in stacks.values()] == [kept, kept]
    stacks = load_recipe_config(
        path, [*kinds, "model.encoder.ffn.bank=null", "model.encoder.ffn.kernel_in=7"]
    ).model.stacks()
    assert stacks["encoder"].ffn == kept.model_copy(update={"bank": None, "kernel_in": 7})
    back = write(tmp_path / "b.yaml", "base: a.yaml\nmodel: {encoder: {ffn: {kind: separable_conv, kernel_out: 7}}}\n")
    again = [*kinds[1:], "model.encoder.ffn.kind=dense"]
    assert load_recipe_config(back, [*again, "model.decoder.ffn.bank=null"]).model.stacks()["encoder"].ffn == (
        DenseFeedForwardConfig(d_ff=96, share="all", bank="both", dropout=0.2)
    )


def test_settings_a_kind_of_feed_forward_does_not_know_and_banks_of_two_kinds_are_refused(tmp_path: Path) -> None:
    ffn = "{d_ff: 96, bank: both}"
    path = write(tmp_path / "a.yaml", f"model: {{kind: seq2seq, encoder: {{ffn: {ffn}}}, decoder: {{ffn: {ffn}}}}}\n")
    with pytest.raises(ConfigError) as caught:
        load_recipe_config(path, ["model.decoder.ffn.kind=separable_conv"])
    wanted = "model.decoder.ffn.kind is 'separable_conv': the ffn bank 'both' serves both stacks, and"
    assert any(str(problem).startswith(wanted) for problem in caught.value.problems)
    with pytest.raises(ConfigError, match=r"model\.encoder\.ffn\.activation is 'gelu': no such setting; valid here: "):
        load_recipe_config(path, ["model.encoder.ffn.kind=separable_conv", "model.encoder.ffn.activation=gelu"])
    with pytest.raises(ConfigError, match="must be one of dense, separable_conv, experts; did you mean separable_conv"):
        load_recipe_config(path, ["model.encoder.ffn.kind=separable_con"])


_texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12).filter(
    lambda t: t != "???"
)
_values = st.one_of(_texts, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False))


@draws(25)
@given(
    name=st.one_of(
        _texts, st.sampled_from(["1e3", "null", "yes", "${seed}", "\\${x}", "a: b", "0x1f", "-", "~", "1_0"])
    ),
    lr=st.floats(min_value=1e-12, max_value=1e6, exclude_min=True),
    share=st.sampled_from(["all", "individual", "cycle", [0, 0, None, 1, None, 1]]),
    files=st.one_of(st.none(), _texts, st.lists(_texts, max_size=3)),
    extra=st.dictionaries(
        st.from_regex(r"[a-z]{1,5}", fullmatch=True).filter(lambda k: k != "kind"), _values, max_size=3
    ),
    band=st.one_of(st.none(), st.tuples(st.floats(0, 1), st.floats(0, 1))),
)
def test_what_is_written_loads_back_equal(
    name: str, lr: float, share: object, files: object, extra: dict[str, object], band: object
) -> None:
    row = {"source": "a paper", "split": "gen", "metric": "exact_match", "value": 0.3, "band": band}
    encoder = {
        "ffn": {"share": share, "n_unique": 3 if share == "cycle" else None},
        "positions": {"kind": "coordinates", "random_offset": 3},
    }
    recipe = Recipe.model_validate(
        {
            "name": name,
            "task": {"kind": "x", **extra},
            "data": {"train": files},
            "model": {"kind": "seq2seq", "encoder": encoder},
            "training": {"optimizer": {"lr": lr}, "clip_norm": None},
            "reference": [row],
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        dump_recipe(recipe, path)
        (path.parent / "versions.json").write_text("{}")  # a run, whose paths are no longer relative to its file
        again = load_recipe_config(path)
    assert again == recipe
    assert again.task.settings() == recipe.task.settings()


def test_texts_that_look_like_other_values_are_written_as_texts(tmp_path: Path) -> None:
    numbers = ["1", "-7", "1_000", "0x1f", "0o17", "017", "1:30", "1:30.5", "1.5", "1.", ".5", "+.5e3", "1e3", "-1e-3"]
    others = [
        "",
        " ",
        "yes",
        "Off",
        "null",
        "~",
        "=",
        "<<",
        ".inf",
        "-.INF",
        ".nan",
        "2026-11-27",
        "*a",
        "&a",
        "a: b",
        "-",
    ]
    settings = {text: [text, {"own": text}] for text in [*numbers, *others, "${seed}", "zwei\nZeilen", "ä → b"]}
    write_yaml(settings, tmp_path / "a.yaml")
    again = read_yaml(tmp_path / "a.yaml")
    assert resolve_references(again) == settings
    floats = {"value": [1e-5, 1e16, 0.1, -2.0, 1e300]}
    write_yaml(floats, tmp_path / "b.yaml")
    assert read_yaml(tmp_path / "b.yaml") == floats


def test_a_file_is_read_without_its_references_resolved(tmp_path: Path) -> None:
    assert read_yaml(write(tmp_path / "a.yaml", "name: run-${seed}\n")) == {"name": "run-${seed}"}


@pytest.mark.parametrize(
    "text",
    [
        "${oc.env:HOME}",
        "a ${oc.env:HOME} b",
        "${oc.decode:1}",
        "${${seed}}",
        "${.seed}",
        "\\\\${oc.env:HOME}",
        "${oc.env:A,${seed}}",
    ],
)
def test_references_name_settings_and_nothing_else(text: str) -> None:
    with pytest.raises(ConfigError, match=r"only \$\{key\}, the full path of another setting, may stand here"):
        resolve_references({"seed": 3, "name": text})
    assert resolve_references({"seed": 3, "name": "\\${oc.env:HOME} ${seed}"}) == {
        "seed": 3,
        "name": "${oc.env:HOME} 3",
    }


def test_references_do_not_build_on_each_other() -> None:
    chain = {f"k{i}": f"${{k{i + 1}}}${{k{i + 1}}}" for i in range(30)} | {"k30": "x"}
    with pytest.raises(ConfigError, match=r"k0 is .*: refers to k1, which holds a reference itself"):
        resolve_references(chain)
    with pytest.raises(ConfigError, match="refers to a, which holds a reference itself"):
        resolve_references({"a": {"b": "${c}"}, "c": 1, "d": "${a}"})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: " + "[" * 100_000, "deeper than 60 levels|exceeded maximum nesting depth"),
        ("\n".join(" " * i + "a:" for i in range(500)), "deeper than 60 levels"),
        ("a: " + "{b: " * 61 + "1" + "}" * 61, "deeper than 60 levels"),
        ("a: [" + "1, " * 300_000 + "]", "more than 200,000 values"),
        (
            "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 9}]\n" for i in range(1, 9)),
            "more than 200,000 values",
        ),
        ("x: '" + "y" * 3_000_000 + "'", "larger than 2,000,000 bytes"),
        ("a: " + "9" * 5_000, "a number of 5,000 digits"),
        ("a: 0x" + "f" * 5_000, "a number of 5,002 digits"),
        ("a: " + "1:" * 3_000 + "1", "a number of 6,001 digits"),
        ("a: " + "1_" * 3_000 + "1", "a number of 6,001 digits"),
        ("a: !!int x", "is not valid YAML"),
        ("a: !!int ''", "is not valid YAML"),
        ("a: !!bool x", "is not valid YAML"),
        ("a: !!float x", "is not valid YAML"),
        ("a: !!timestamp x", "is not valid YAML"),
        ("a: !!binary x", "is not valid YAML"),
        ("3", "must hold settings"),
        ("a: !!python/object/apply:os.system [true]", "is not valid YAML"),
    ],
)
def test_files_beyond_any_recipe_are_refused_before_they_cost_anything(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        read_yaml(write(tmp_path / "a.yaml", text))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.yaml", "x: 1\n")
    os.truncate(path, 2_000_001)
    monkeypatch.setattr(Path, "read_text", lambda *given, **how: pytest.fail("it was read"))
    assert error(path) == f"{path}: is not valid YAML: larger than 2,000,000 bytes"


@pytest.mark.parametrize(
    "text",
    ["a=" + "[" * 100_000, "a=" + "9" * 5_000, "a=!!int x", "a=!!bool x", "a=0x" + "f" * 5_000, "a=[" + "1," * 300_000],
)
def test_so_are_overrides(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_overrides([text])
    assert len(str(caught.value)) < 400


def test_a_name_of_another_kind_of_file_is_recognised() -> None:
    with pytest.raises(ConfigError, match="no sweep or file of that name; there is a recipe of that name"):
        find_file("sweeps", "digits/transformer", "sweep")
    with pytest.raises(ConfigError, match="no claim or file of that name; there is a sweep of that name"):
        find_file("claims", "parity-rates", "claim")
    with pytest.raises(ConfigError, match="did you mean parity"):
        find_file("sweeps", "parityy", "sweep")
