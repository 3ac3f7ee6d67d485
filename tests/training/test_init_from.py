"""A run that starts from another's weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import tiny_recipe

from ostinato.config.data import DataConfig
from ostinato.config.load import check_recipe
from ostinato.config.recipe import Recipe
from ostinato.config.training import TrainingConfig
from ostinato.data.example import Example
from ostinato.data.symbols import SymbolTokenizer
from ostinato.data.tokenizers import Tokenizers
from ostinato.errors import CheckpointError, ConfigError, DataError
from ostinato.evaluation.loading import find_checkpoint, load
from ostinato.models.build import build_model
from ostinato.models.checkpoint import load_model, weights_hash
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.start import start_tokenizers
from ostinato.tasks.vocabulary import size_model
from ostinato.training import train
from ostinato.training.initial import start_from
from ostinato.training.reporter import Reporter


class Notes(Reporter):
    """Remembers how a run began."""

    info: dict[str, Any]

    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_start(self, recipe: Recipe, info: dict[str, Any]) -> None:
        self.info = info

    def on_note(self, update: int, message: str) -> None:
        self.notes.append(message)


def changed(recipe: Recipe, **training: Any) -> Recipe:
    """Return the recipe with other training settings."""
    content = recipe.model_dump(mode="json")
    content["training"] |= training
    return check_recipe(content)


def with_gates(recipe: Recipe) -> Recipe:
    """Return the recipe with a halting encoder."""
    content = recipe.model_dump(mode="json")
    content["model"]["encoder"]["halting"] = {"kind": "stick_breaking"}
    return check_recipe(content)


def test_a_run_starts_from_the_weights_and_the_tokenizers_of_another(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path / "data")
    train(recipe, tmp_path / "first")
    best = load_file(find_checkpoint(tmp_path / "first", "best") / "model.safetensors")
    # A rate of next to nothing leaves what a run starts from; its data has other words, and another order of them.
    for split in ("train", "dev", "test"):
        Path(getattr(recipe.data, split)).write_text(
            '{"source": "f e", "target": "e f", "n": 2}\n' * 30, encoding="utf-8"
        )
    notes = Notes()
    still = changed(with_gates(recipe), init_from=str(tmp_path / "first"), optimizer={"kind": "adam", "lr": 1e-12})
    train(still, tmp_path / "second", reporter=notes)
    found = load_file(find_checkpoint(tmp_path / "second", "best") / "model.safetensors")
    assert sorted(notes.info["new_parameters"]) == sorted(found.keys() - best.keys())
    assert all(".halting.encoder." in name for name in notes.info["new_parameters"])
    assert notes.info["new_parameters"]
    assert all(torch.allclose(found[name], best[name], rtol=0, atol=1e-8) for name in best)
    tokenizers = [Tokenizers.load(tmp_path / run / "tokenizers") for run in ("first", "second")]
    assert tokenizers[0].source.encode("a b c") == tokenizers[1].source.encode("a b c")


@pytest.mark.slow
def test_a_run_that_was_interrupted_goes_on_from_its_own_weights(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path / "data")
    train(recipe, tmp_path / "first")
    own = changed(recipe, init_from=str(tmp_path / "first"))
    train(own, tmp_path / "second")
    again = train(own, tmp_path / "second", resume=True)
    assert again == json.loads((tmp_path / "second" / "results.json").read_text(encoding="utf-8"))


def test_weights_without_a_place_and_runs_that_are_not_there_are_refused(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path / "data")
    train(with_gates(recipe), tmp_path / "first")
    model = load_model(find_checkpoint(tmp_path / "first", "best"))
    report = start_from(model, TrainingConfig(init_from=str(tmp_path / "first")))
    assert (report.fresh, report.resized, report.left) == ([], {}, [])
    assert sorted(report.taken) == sorted(model.state_dict())
    with pytest.raises(
        ConfigError, match=r"training\.init_from .* weights do not fit: .*halting.* is not in this model"
    ):
        train(changed(recipe, init_from=str(tmp_path / "first")), tmp_path / "second")
    with pytest.raises(ConfigError, match=r"training\.init_from .*nowhere.*: holds no run"):
        train(changed(recipe, init_from=str(tmp_path / "nowhere")), tmp_path / "third")


@pytest.mark.parametrize("init_shared", [None, "average"])
def test_gates_of_another_rule_are_left_and_its_own_begin_as_in_any_new_model(tmp_path: Path, init_shared: Any) -> None:
    def ruled(kind: str) -> Recipe:
        content = tiny_recipe(tmp_path / "data", n_updates=1).model_dump(mode="json")
        for stack, rule in {"encoder": "act", "decoder": kind}.items():
            content["model"][stack] |= {"n_steps": 3, "halting": {"kind": rule, "initial_bias": -1.0}}
        return check_recipe(content)

    train(ruled("act"), tmp_path / "first")
    best = load_model(find_checkpoint(tmp_path / "first", "best"))
    torch.manual_seed(5)
    new = build_model(best.config.model_copy(update={"decoder": ruled("exit").model.stacks()["decoder"]}))
    before = {name: x.clone() for name, x in new.state_dict().items()}
    report = start_from(new, TrainingConfig(init_from=str(tmp_path / "first"), init_shared=init_shared))
    gates = [name for name in before if name.startswith("banks.halting.decoder.")]
    assert gates == report.fresh == report.left
    for name, found in new.state_dict().items():
        torch.testing.assert_close(found, before[name] if name in gates else best.state_dict()[name], rtol=0, atol=0)


def test_a_start_that_does_not_fit_leaves_no_run_behind(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path / "data", n_updates=1)
    first = tmp_path / "first"
    train(with_gates(recipe), first)
    fits = {"init_from": str(first), "init_except": ["*.halting.*"]}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"init_except": []}, "weights do not fit"),
        ({"init_except": ["head.*"]}, "matches no parameter of either model"),
        ({"init_checkpoint": "update-000777"}, "is no checkpoint of"),
        ({"init_except": [], "init_shared": "average"}, "its donor has 1 steps"),
    ]
    for settings, reason in wrong:
        one = recipe
        if "init_shared" in settings:
            content = recipe.model_dump(mode="json")
            content["model"]["encoder"]["n_steps"] = 2
            one = check_recipe(content)
        with pytest.raises((ConfigError, CheckpointError), match=reason):
            train(changed(one, **fits | settings), tmp_path / "second")
        assert not (tmp_path / "second").exists(), reason
    weights = find_checkpoint(first, "best") / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4] + bytes(4))
    with pytest.raises(CheckpointError, match="SHA-256"):
        train(changed(recipe, **fits), tmp_path / "second")
    assert not (tmp_path / "second").exists()
    weights.write_bytes(whole)
    train(changed(recipe, **fits), tmp_path / "second")


def test_a_start_that_is_gone_before_the_first_checkpoint_is_named_as_such(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path / "data", n_updates=1)
    train(recipe, tmp_path / "first")
    begun = changed(recipe, init_from=str(tmp_path / "first"))
    train(begun, tmp_path / "second")
    shutil.rmtree(tmp_path / "second" / "checkpoints")
    (tmp_path / "second" / "results.json").unlink()
    (tmp_path / "first").rename(tmp_path / "moved")
    with pytest.raises(ConfigError) as error:
        train(begun, tmp_path / "second", resume=True)
    reason = "holds no run: name a run directory, whose best checkpoint is taken"
    assert str(error.value) == f"training.init_from is {str(tmp_path / 'first')!r}: {reason}"


# --- exchanged heads, more words, parts with rates of their own ------------------------------------------------------

STACK: dict[str, Any] = {"n_steps": 1, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}


def encoder_recipe(data: dict[str, Any], task: dict[str, Any], model: dict[str, Any], **training: Any) -> Recipe:
    model = {"kind": "encoder", "d_model": 8, "dropout": 0.0, "encoder": STACK} | model
    training = {"n_updates": 4, "evaluate_every": 4, "save_every": 4, "device": "cpu"} | training
    metrics = {"metrics": []} if task["kind"] == "files" else {}
    return check_recipe({"task": task, "data": data, "model": model, "training": training, "evaluation": metrics})


def lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return dict.fromkeys(("train", "dev", "test"), str(path))


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run of a masked language model that knows the words a b c d."""
    folder = tmp_path_factory.mktemp("pretrained")
    data = lines(folder / "texts.jsonl", [{"text": "a b c d"}, {"text": "d c a"}] * 5)
    task = {"kind": "files", "model_kind": "language_model"}
    train(encoder_recipe(data, task, {"tie_embeddings": "none"}), folder / "run")
    return folder / "run"


def classifier(tmp_path: Path, rows: list[dict[str, str]], **training: Any) -> Recipe:
    data = lines(tmp_path / "labels.jsonl", rows)
    return encoder_recipe(data, {"kind": "classification"}, {"head": {"kind": "classification"}}, **training)


KNOWN = [{"source": "a b", "target": "x"}, {"source": "d c", "target": "y"}] * 4
NEW = [{"source": "a e", "target": "x"}, {"source": "d f e", "target": "y"}] * 4


def test_a_head_is_exchanged_and_every_parameter_accounted_for(tmp_path: Path, pretrained: Path) -> None:
    with pytest.raises(ConfigError, match=r"output_weight is not in this model; training\.init_except names"):
        train(classifier(tmp_path, KNOWN, init_from=str(pretrained)), tmp_path / "strict")
    recipe = classifier(tmp_path, KNOWN, init_from=str(pretrained), init_except=["output_weight"], freeze=["banks.*"])
    train(recipe, tmp_path / "run")
    report = json.loads((tmp_path / "run" / "initial.json").read_text(encoding="utf-8"))
    assert report["left"] == ["output_weight"]
    assert report["weights"] == weights_hash(Path(report["checkpoint"]))
    assert report["fresh"] == ["head.weight", "head.bias"]
    assert report["resized"] == {}
    own, first = (load_model(find_checkpoint(run, "best")) for run in (tmp_path / "run", pretrained))
    assert sorted(report["taken"] + report["fresh"]) == sorted(own.state_dict())
    # What was frozen is still the run's; the embedding has moved.
    assert all(torch.equal(own.state_dict()[name], p) for name, p in first.banks.state_dict(prefix="banks.").items())
    assert not torch.equal(own.target_weight, first.target_weight)
    with pytest.raises(ConfigError, match=r"nothing.* matches no parameter of either model"):
        start_from(own, TrainingConfig(init_from=str(pretrained), init_except=["nothing.*"]))


def test_who_asks_a_masked_run_for_text_is_not_sent_to_predictions_that_it_refuses(pretrained: Path) -> None:
    run = load(pretrained, device="cpu")
    with pytest.raises(ConfigError, match=r"an encoder-only model writes no text$"):
        run.generate(["a b"])


def with_data(recipe: Recipe, **data: Any) -> Recipe:
    """Return the recipe with other settings of its data."""
    content = recipe.model_dump(mode="json")
    content["data"] |= data
    return check_recipe(content)


def test_other_tokenizers_than_the_runs_are_said_and_those_that_are_used_recorded(
    tmp_path: Path, pretrained: Path
) -> None:
    words = classifier(tmp_path, KNOWN, init_from=str(pretrained), init_except=["output_weight"])
    train(words, tmp_path / "words", reporter=(said := Notes()))
    assert said.notes == []
    other = with_data(words, tokenizer={"kind": "characters", "min_count": 3})
    train(other, tmp_path / "other", reporter=(said := Notes()))
    expected = (
        "data.tokenizer is {'kind': 'characters', 'min_count': 3}: the new run keeps the tokenizers of the old one"
    )
    assert said.notes == [expected]
    kept = load_recipe(tmp_path / "other")
    assert kept.data.tokenizer == words.data.tokenizer
    assert kept == load_recipe(tmp_path / "words")
    # It goes on with the command that began it, and from its own recipe.
    for recipe in (other, kept):
        longer = changed(recipe, n_updates=recipe.training.n_updates + 2)
        shutil.copytree(tmp_path / "other", folder := tmp_path / f"longer-{recipe.data.tokenizer.kind}")
        assert train(longer, folder, resume=True)["n_updates"] == 6


def test_a_model_that_writes_does_not_start_from_labels(tmp_path: Path, pretrained: Path) -> None:
    train(classifier(tmp_path, KNOWN), tmp_path / "classified")
    data = lines(tmp_path / "texts.jsonl", [{"text": "a b c d"}] * 4)
    model = {"kind": "language_model", "d_model": 8, "dropout": 0.0, "decoder": STACK}
    training = {"n_updates": 4, "device": "cpu", "init_from": str(tmp_path / "classified"), "init_except": ["*"]}
    task = {"kind": "files", "model_kind": "language_model"}
    recipe = check_recipe({"task": task, "data": data, "model": model, "training": training})
    reason = (
        "its targets are the labels x, y, which are no vocabulary of texts: start from a run without a head for labels"
    )
    with pytest.raises(ConfigError) as error:
        train(recipe, tmp_path / "texts")
    assert str(error.value) == f"training.init_from is {str(tmp_path / 'classified')!r}: {reason}"
    with pytest.raises(ConfigError, match="which are no vocabulary of texts"):
        size_model(recipe)


def test_a_head_with_other_labels_starts_anew(tmp_path: Path, pretrained: Path) -> None:
    first = classifier(tmp_path, KNOWN, init_from=str(pretrained), init_except=["output_weight"])
    train(first, tmp_path / "two")
    three = [*KNOWN, {"source": "a", "target": "z"}]
    with pytest.raises(
        ConfigError, match=r"its head is for the labels x, y, and the data have x, y, z: training\.init_ex"
    ):
        train(classifier(tmp_path, three, init_from=str(tmp_path / "two")), tmp_path / "strict")
    others = [{"source": "a b", "target": "v"}, {"source": "d c", "target": "w"}] * 4
    with pytest.raises(ConfigError, match="its head is for the labels x, y, and the data have v, w"):
        train(classifier(tmp_path, others, init_from=str(tmp_path / "two")), tmp_path / "strict")
    train(classifier(tmp_path, three, init_from=str(tmp_path / "two"), init_except=["head.*"]), tmp_path / "three")
    report = json.loads((tmp_path / "three" / "initial.json").read_text(encoding="utf-8"))
    assert report["fresh"] == ["head.weight", "head.bias"]


@pytest.mark.parametrize("kinds", [("classification", "span"), ("span", "tagging")])
def test_a_head_of_another_kind_is_refused_though_it_has_the_same_shape(tmp_path: Path, kinds: tuple[str, str]) -> None:
    question = {"question": "d", "id": "1", "answers": [{"text": "b", "answer_start": 2}]}
    rows: dict[str, list[dict[str, Any]]] = {
        "classification": [{"source": "a b", "target": "x"}, {"source": "d", "target": "y"}],
        "tagging": [{"source": "a b", "target": "x y"}, {"source": "d", "target": "y"}],
        "span": [{"data": [{"paragraphs": [{"context": "a b", "qas": [question]}]}]}],
    }

    def recipe(kind: str, **training: Any) -> Recipe:
        task = {"kind": "span_extraction" if kind == "span" else kind}
        data = lines(tmp_path / f"{kind}.jsonl", rows[kind])
        return encoder_recipe(data, task, {"head": {"kind": kind}}, n_updates=1, **training)

    before, now = kinds
    train(recipe(before), tmp_path / "first")
    with pytest.raises(ConfigError) as error:
        train(recipe(now, init_from=str(tmp_path / "first")), tmp_path / "second")
    reason = f"its head is of the kind {before}, and the model's of the kind {now}"
    fix = "training.init_except=[head.*] begins with a new one"
    assert str(error.value) == f"training.init_from is {str(tmp_path / 'first')!r}: {reason}: {fix}"
    train(recipe(now, init_from=str(tmp_path / "first"), init_except=["head.*"]), tmp_path / "second")


def test_a_head_keeps_its_labels_in_their_order_however_frequent_they_are_now(tmp_path: Path) -> None:
    train(classifier(tmp_path, [*KNOWN, KNOWN[1]]), tmp_path / "first")
    again = classifier(tmp_path, [*KNOWN, KNOWN[0]], init_from=str(tmp_path / "first"), optimizer={"lr": 1e-12})
    train(again, tmp_path / "second")
    labels = [Tokenizers.load(tmp_path / name / "tokenizers").target.labels for name in ("first", "second")]
    assert labels == [["y", "x"]] * 2
    # Its weights hardly moved: of the same examples it says the same.
    files = [f"data.{split}={tmp_path / 'labels.jsonl'}" for split in ("train", "dev", "test")]
    losses = [load(tmp_path / name, overrides=files).evaluate("dev")["loss"] for name in ("first", "second")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


def test_what_is_added_to_a_vocabulary_is_what_the_new_run_says_of_its_tokenizer(tmp_path: Path) -> None:
    train(classifier(tmp_path, KNOWN), tmp_path / "first")
    before = Tokenizers.load(tmp_path / "first" / "tokenizers").source
    words = "a b c d e e e f f g g h"  # of which a to d are known
    new = [{"source": words, "target": "x"}, {"source": "a", "target": "y"}]

    def added(**tokenizer: Any) -> list[str]:
        start = classifier(tmp_path, new, init_from=str(tmp_path / "first"), extend_vocabulary=True)
        recipe = with_data(start, tokenizer={"kind": "words"} | tokenizer, unknown="replace")
        found = start_tokenizers(recipe, [Example(words, "x"), Example("a", "y")]).source
        assert size_model(recipe).target == found.vocab_size + 1  # the mask symbol's row
        return [word for word in "efgh" if not found.lacks([word])]

    assert added() == list("efgh")
    assert added(min_count=2) == list("efg")
    assert added(vocab_size=before.vocab_size + 2) == list("ef")
    expected = (
        "training.extend_vocabulary is True: has no effect: the run has 8 ids, and data.tokenizer of kind words has "
        "vocab_size=8: raise it"
    )
    with pytest.raises(ConfigError) as error:
        added(vocab_size=8)
    assert (str(error.value), before.vocab_size) == (expected, 8)
    assert added(vocab_size=8, min_count=9) == []  # nothing occurs so often, whatever room there is
    assert added(min_count=3, vocab_size=before.vocab_size + 2) == ["e"]
    # Of another kind they say nothing of words, and the old run's are taken.
    assert added(kind="characters", min_count=3) == list("efgh")
    start = classifier(tmp_path, new, init_from=str(tmp_path / "first"), extend_vocabulary=True)
    fewer = {"kind": "words", "min_count": 2}
    train(with_data(start, tokenizer=fewer, unknown="replace"), tmp_path / "second", reporter=(said := Notes()))
    assert said.notes == []
    assert load_recipe(tmp_path / "second").data.tokenizer.min_count == 2
    assert Tokenizers.load(tmp_path / "second" / "tokenizers").source.vocab_size == before.vocab_size + 3


def test_of_two_vocabularies_the_one_without_room_is_named() -> None:
    both = Tokenizers(SymbolTokenizer("words", list("abcd")), SymbolTokenizer("words", list("vwxy")))
    data = {"tokenizer": {"kind": "words"}, "target_tokenizer": {"kind": "words", "vocab_size": 8}}
    new = DataConfig.model_validate(data)
    assert both.extended(new, [Example("a e", "x")]).source.vocab_size == 9
    with pytest.raises(ConfigError, match=r"data\.target_tokenizer of kind words has vocab_size=8: raise it"):
        both.extended(new, [Example("a e", "x z")])


def test_a_run_whose_vocabulary_was_extended_by_the_old_runs_settings_goes_on_with_its_own_command(
    tmp_path: Path,
) -> None:
    train(classifier(tmp_path, KNOWN), tmp_path / "first")
    start = classifier(tmp_path, NEW, init_from=str(tmp_path / "first"), extend_vocabulary=True, n_updates=2)
    train(start, tmp_path / "second")  # earlier versions recorded these settings also where the recipe had others
    begun = changed(with_data(start, tokenizer={"kind": "words", "min_count": 3}), n_updates=4)
    train(begun, tmp_path / "second", resume=True, reporter=(said := Notes()))
    assert said.notes[0].endswith("'min_count': 3}: the new run keeps the tokenizers of the old one")
    kept = load_recipe(tmp_path / "second")
    assert (kept.data.tokenizer.min_count, kept.training.n_updates) == (1, 4)


def test_a_model_of_one_sequence_reads_by_the_vocabulary_that_the_run_before_wrote_with(tmp_path: Path) -> None:
    tiny = tiny_recipe(tmp_path / "data", n_updates=0)
    content = tiny.model_dump(mode="json")
    content["data"] |= {"target_tokenizer": {"kind": "characters"}}
    content["model"] |= {"tie_embeddings": "none"}
    train(check_recipe(content), tmp_path / "first")
    start = {"init_from": str(tmp_path / "first"), "init_except": ["*"]}
    joined = changed(tiny_recipe(tmp_path / "data", kind="language_model", n_updates=0), **start)
    content = joined.model_dump(mode="json")
    content["task"] |= {"model_kind": "seq2seq"}
    pairs = check_recipe(content)
    assert [start_tokenizers(one, ()).source.kind for one in (joined, pairs)] == ["characters"] * 2
    train(pairs, tmp_path / "second")
    kept = Tokenizers.load(tmp_path / "second" / "tokenizers")
    assert (kept.is_joint, kept.source.kind) == (True, "characters")


def test_a_vocabulary_is_extended_from_a_classifier_too(tmp_path: Path) -> None:
    train(classifier(tmp_path, KNOWN), tmp_path / "first")
    train(classifier(tmp_path, NEW, init_from=str(tmp_path / "first"), extend_vocabulary=True), tmp_path / "second")
    before, after = (Tokenizers.load(tmp_path / name / "tokenizers").source for name in ("first", "second"))
    assert after.encode("a e") == [*before.encode("a"), before.vocab_size]


def test_a_vocabulary_is_extended_and_the_mask_symbol_keeps_its_row(tmp_path: Path, pretrained: Path) -> None:
    settings = {"init_from": str(pretrained), "init_except": ["output_weight"], "optimizer": {"lr": 1e-12}}
    with pytest.raises(DataError, match="'e' is not among the 4 words"):
        train(classifier(tmp_path, NEW, **settings), tmp_path / "strict")
    train(classifier(tmp_path, NEW, extend_vocabulary=True, **settings), tmp_path / "run")
    report = json.loads((tmp_path / "run" / "initial.json").read_text(encoding="utf-8"))
    # 4 special symbols, a b c d, and the mask symbol; e and f are new.
    assert report["resized"] == {"target_weight": [9, 11]}
    before, after = (load_model(find_checkpoint(run, "best")).target_weight for run in (pretrained, tmp_path / "run"))
    torch.testing.assert_close(after[:8], before[:8])
    torch.testing.assert_close(after[10], before[8])
    tokenizer = Tokenizers.load(tmp_path / "run" / "tokenizers").source
    assert tokenizer.encode("a b c d e f") == [
        *Tokenizers.load(pretrained / "tokenizers").source.encode("a b c d"),
        8,
        9,
    ]
    with pytest.raises(ConfigError, match=r"extend_vocabulary is True: needs training\.init_from"):
        classifier(tmp_path, NEW, extend_vocabulary=True)


def test_parts_learn_at_rates_of_their_own(tmp_path: Path) -> None:
    optimizer = {"lr": 1e-2, "lr_scales": [{"pattern": "head.*", "scale": 0.5}, {"pattern": "banks.*", "scale": 1e-9}]}
    schedule = {"kind": "constant", "warmup": 0}
    recipe = classifier(tmp_path, KNOWN, optimizer=optimizer, schedule=schedule, n_updates=1, save_every=1)
    plain = changed(recipe, optimizer={"lr": 1e-2})
    models = {}
    for name, one in (("scaled", recipe), ("plain", plain)):
        train(one, tmp_path / name)
        models[name] = load_model(find_checkpoint(tmp_path / name, "best")).state_dict()
    # Adam's first step is the learning rate in every coordinate that has a gradient.
    apart = {name: (models["plain"][name] - models["scaled"][name]).abs() for name in models["plain"]}
    torch.testing.assert_close(apart["head.weight"], torch.full_like(apart["head.weight"], 5e-3), rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(apart["head.bias"], torch.full_like(apart["head.bias"], 5e-3), rtol=1e-3, atol=1e-6)
    assert all(float(gap.max()) == pytest.approx(1e-2, rel=1e-3) for name, gap in apart.items() if "ffn" in name)
    assert float(apart["target_weight"].max()) == 0.0
    with pytest.raises(ConfigError, match=r"lr_scales is 'x': matches no parameter"):
        train(changed(recipe, optimizer={"lr_scales": [{"pattern": "x", "scale": 1.0}]}), tmp_path / "wrong")


def test_a_rate_that_no_parameter_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: list[tuple[list[str], dict[str, Any], str]] = [
        (["head.*"], {"freeze": ["head.*"]}, "head.*"),
        (["banks.*", "banks.ffn.*"], {}, "banks.ffn.*"),
    ]
    for patterns, training, useless in wrong:
        scales = [{"pattern": pattern, "scale": 0.5} for pattern in patterns]
        with pytest.raises(ConfigError) as error:
            train(classifier(tmp_path, KNOWN, optimizer={"lr_scales": scales}, **training), tmp_path / "run")
        reason = "matches no parameter that is trained and matches no earlier pattern: remove it"
        assert str(error.value) == f"training.optimizer.lr_scales is {useless!r}: {reason}"
    with monkeypatch.context() as patch:  # a run of version 0.1.0, which refused none, is gone on with
        patch.setattr("ostinato.training.prepare.useless_settings", lambda recipe: [])
        scales = [{"pattern": "head.*", "scale": 0.5}]
        recipe = classifier(tmp_path, KNOWN, optimizer={"lr_scales": scales}, freeze=["head.*"], n_updates=1)
        train(recipe, tmp_path / "begun")
    assert train(changed(recipe, n_updates=2), tmp_path / "begun", resume=True)["n_updates"] == 2
    # The first match counts: what is left to a later pattern is enough for it.
    scales = [{"pattern": "banks.ffn.*", "scale": 0.5}, {"pattern": "banks.*", "scale": 2.0}]
    train(
        classifier(tmp_path, KNOWN, optimizer={"lr_scales": scales}, freeze=["head.*"], n_updates=1), tmp_path / "run"
    )


def test_a_language_model_of_blocks_goes_on_with_pairs_and_their_separator(tmp_path: Path) -> None:
    texts = lines(tmp_path / "texts.jsonl", [{"text": "a b c d"}, {"text": "d c a"}] * 5)
    pairs = lines(tmp_path / "pairs.jsonl", [{"source": "a b", "target": "b a"}] * 5)
    model = {"kind": "language_model", "d_model": 8, "dropout": 0.0, "decoder": STACK}
    training = {"n_updates": 4, "evaluate_every": 4, "save_every": 4, "device": "cpu"}
    blocks = {"task": {"kind": "files", "model_kind": "language_model"}, "data": texts | {"block_length": 6}}
    train(check_recipe(blocks | {"model": model, "training": training}), tmp_path / "texts")
    start = training | {"init_from": str(tmp_path / "texts")}
    results = train(check_recipe({"data": pairs, "model": model, "training": start}), tmp_path / "pairs")
    report = json.loads((tmp_path / "pairs" / "initial.json").read_text(encoding="utf-8"))
    assert (report["fresh"], report["left"], report["resized"]) == ([], [], {})
    # Labels are the target and its end symbol: source, end symbol and begin symbol before it are none.
    assert results["splits"]["test"]["n_labels"] == 5 * 3
    assert results["splits"]["test"]["n_generated"] > 0


def test_what_a_converted_start_draws_anew_is_named(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path / "data", halting=True, n_updates=0)
    content = recipe.model_dump(mode="json")
    for stack in ("encoder", "decoder"):
        content["model"][stack]["halting"] = {"kind": "none"}
    content["training"]["halting"] = {}
    train(check_recipe(content), tmp_path / "dense")
    train(changed(recipe, init_from=str(tmp_path / "dense"), init_shared="average"), tmp_path / "halting")
    initial = json.loads((tmp_path / "halting" / "initial.json").read_text())
    assert initial["fresh"]
    assert all(name.startswith("banks.halting.") for name in initial["fresh"])
    assert not {*initial["fresh"]} & {*initial["made"], *initial["taken"]}


@pytest.mark.slow
def test_a_run_with_shared_steps_starts_from_what_a_dense_one_makes_of_them(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path / "data")
    train(recipe, tmp_path / "dense")
    content = changed(recipe, init_from=str(tmp_path / "dense"), init_shared="last").model_dump(mode="json")
    for stack in ("encoder", "decoder"):
        for kind in ("self_attention", "cross_attention", "ffn"):
            if kind in content["model"][stack]:
                content["model"][stack][kind]["share"] = "all"
    shared = check_recipe(content)
    content["training"]["optimizer"] = {"kind": "adam", "lr": 1e-12}
    train(check_recipe(content), tmp_path / "shared")
    made = load_model(find_checkpoint(tmp_path / "shared", "best"))
    dense = load_model(find_checkpoint(tmp_path / "dense", "best"))
    steps = [step.uses[-1].weights for step in dense.stacks["decoder"].plan.steps]
    expected = dense.banks.ffn[steps[-1]].up.weight
    torch.testing.assert_close(made.banks.ffn["decoder_0"].up.weight, expected, rtol=0, atol=1e-6)
    initial = json.loads((tmp_path / "shared" / "initial.json").read_text())
    assert "target_weight" in initial["taken"]
    assert any(name.startswith("banks.ffn.") for name in [*initial["made"], *initial["taken"]])
    assert len(steps) == 1 or any(name.startswith("banks.ffn.") for name in initial["left"])
    for wrong, reason in (({"init_from": None}, "needs training.init_from"),
                          ({"init_except": ["head.*"]}, "does not go with training.init_shared")):  # fmt: skip
        with pytest.raises(ConfigError, match=reason):
            changed(shared, **wrong)
