from __future__ import annotations

import json
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from toy_task import DATA, letter_tokenizers, tiny_seq2seq

from ostinato.config.load import check_recipe, dump_recipe
from ostinato.config.recipe import Recipe, TaskRef
from ostinato.config.training import SelectionConfig, TrainingConfig
from ostinato.data.disk import sha256_of
from ostinato.errors import CheckpointError
from ostinato.evaluation.averaging import average_checkpoints, parse_average, read_members
from ostinato.evaluation.loading import load
from ostinato.models import load_model, save_average, save_model
from weights import write_weights

LOSSES = {10: 3.0, 20: 1.0, 30: 2.0, 40: 2.0, 50: None, 60: 5.0}
"""What a run of six checkpoints found; at update 50 the loss was not finite, and 35 was not kept."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory whose checkpoints are random models."""
    directory = tmp_path_factory.mktemp("runs") / "letters"
    tokenizers, records = letter_tokenizers(), []
    tokenizers.save(directory / "tokenizers")
    for update, loss in {**LOSSES, 35: 0.5}.items():
        scores = {"n": 2, "loss": loss, "exact_match": 0.1 * (loss or 0.0)}
        records.append({"kind": "evaluation", "update": update, "split": "dev", "scores": scores})
        if update in LOSSES:
            torch.manual_seed(update)
            model = tiny_seq2seq(tokenizers.target.vocab_size)
            for parameter in model.parameters():
                torch.nn.init.normal_(parameter, std=update)
            folder = directory / "checkpoints" / f"update-{update:06d}"
            folder.mkdir(parents=True)
            save_model(model, folder)
    write_records(directory, [{"kind": "training", "update": 10, "loss": 1.0}, *records])
    data = DATA.model_copy(update={"train": "a.jsonl"})
    training = TrainingConfig(keep_best=3, keep_last=2, save_every=10)
    dump_recipe(Recipe(task=TaskRef(kind="files"), data=data, model=model.config, training=training), recipe(directory))
    return directory


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


def recipe(directory: Path) -> Path:
    return directory / "recipe.yaml"


def write_records(directory: Path, records: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(record) + "\n" for record in records)
    (directory / "metrics.jsonl").write_text(text, encoding="utf-8")


def weights(directory: Path, *updates: int) -> list[dict[str, torch.Tensor]]:
    return [load_file(directory / "checkpoints" / f"update-{u:06d}" / "model.safetensors") for u in updates]


def names(folder: Path) -> list[str]:
    return [member["checkpoint"] for member in read_members(folder) or []]


@pytest.mark.parametrize(
    ("role", "n", "updates"),
    [("best", 1, [20]), ("best", 3, [20, 30, 40]), ("best", 5, [20, 30, 40, 10, 60]), ("last", 3, [60, 50, 40])],
)
def test_an_average_is_the_mean_of_the_best_or_the_newest(copy: Path, role: Any, n: int, updates: list[int]) -> None:
    folder = average_checkpoints(copy, role, n)
    assert folder == copy / "checkpoints" / f"average-{role}-{n}"
    assert names(folder) == [f"update-{u:06d}" for u in updates]
    found, parts = load_file(folder / "model.safetensors"), weights(copy, *updates)
    assert found.keys() == parts[0].keys()
    for name, tensor in found.items():
        # By hand: the sum in float64, in order, divided once and rounded once.
        total = parts[0][name].double()
        for part in parts[1:]:
            total = total + part[name].double()
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, (total / n).float()), name


@pytest.mark.parametrize(("off_updates", "updates"), [(20, [30, 40]), (39, [40, 60]), (60, [20, 30])])
def test_untrained_gates_are_in_no_mean_once_there_are_others(copy: Path, off_updates: int, updates: list[int]) -> None:
    settings = load(copy, checkpoint="update-000010").recipe.model_dump(mode="json")
    settings["model"]["decoder"]["halting"] = {"kind": "act"}
    settings["training"]["halting"]["off_updates"] = off_updates
    dump_recipe(check_recipe(settings), recipe(copy))
    assert names(average_checkpoints(copy, "best", 2)) == [f"update-{u:06d}" for u in updates]


@pytest.mark.parametrize(("save_every", "updates"), [(20, [60, 40, 20]), (30, [60, 30]), (25, [60, 50])])
def test_of_the_newest_those_count_that_were_saved_where_it_was_due_and_the_last(
    copy: Path, save_every: int, updates: list[int]
) -> None:
    settings = load(copy, checkpoint="update-000010").recipe.model_dump(mode="json")
    settings["training"]["save_every"] = save_every
    dump_recipe(check_recipe(settings), recipe(copy))
    assert names(average_checkpoints(copy, "last", len(updates))) == [f"update-{u:06d}" for u in updates]
    # Others stand in where these are too few, as of runs of earlier versions, which kept the newest whatever they were.
    other = max({10, 20, 30, 40, 50, 60} - {*updates})
    more = [f"update-{u:06d}" for u in sorted([*updates, other], reverse=True)]
    assert names(average_checkpoints(copy, "last", len(updates) + 1)) == more


def test_better_checkpoints_that_were_not_kept_are_named_where_others_stand_in(
    copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    average_checkpoints(copy, "best", 3)
    line = f"{copy}: best:3 is the mean of the best that were kept; better ones were not: update 35"
    assert [record.getMessage() for record in caplog.records] == [line]
    caplog.clear()
    lines = (copy / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (copy / "metrics.jsonl").write_text("".join(line for line in lines if '"update": 35' not in line), encoding="utf-8")
    average_checkpoints(copy, "best", 5)
    assert not caplog.records


def test_a_larger_value_is_better_where_the_run_selects_the_largest(copy: Path) -> None:
    chosen = TrainingConfig(selection=SelectionConfig(metric="exact_match", mode="max"))
    dump_recipe(load(copy, checkpoint="update-000010").recipe.model_copy(update={"training": chosen}), recipe(copy))
    assert names(average_checkpoints(copy, "best", 2)) == ["update-000060", "update-000010"]


def test_a_mean_is_exact_where_a_sum_of_single_precision_is_not(copy: Path, tmp_path: Path) -> None:
    folders = sorted((copy / "checkpoints").glob("update-*"))[:3]
    name = next(iter(load_file(folders[0] / "model.safetensors")))
    for folder, value in zip(folders, (2.0**24, 1.0, 1.0), strict=True):
        stored = load_file(folder / "model.safetensors")
        write_weights(folder, stored | {name: torch.full_like(stored[name], value)})
    save_average(folders, tmp_path)
    mean = load_file(tmp_path / "model.safetensors")[name]
    assert torch.equal(mean, torch.full_like(mean, (2**24 + 2) / 3))
    assert (torch.tensor(2.0**24) + 1.0 + 1.0) / 3 != mean.flatten()[0]


def test_a_loaded_mean_is_of_the_members_it_was_loaded_of(copy: Path) -> None:
    loaded = load(copy, checkpoint="last:1")
    weights, members = sha256_of(loaded.checkpoint / "model.safetensors"), read_members(loaded.checkpoint)
    shutil.rmtree(loaded.checkpoint)
    load(copy, checkpoint="last:2").checkpoint.rename(loaded.checkpoint)
    assert loaded.mean_of == members
    assert loaded.mean_line == "average-last-1: the mean of update-000060 (5)"
    assert loaded.hashes[1] == weights != load(copy, checkpoint="average-last-1").hashes[1]
    assert load(copy, checkpoint="update-000060").mean_line == ""
    other = copy / "checkpoints" / "update-000010" / "model.safetensors"
    shutil.copy(copy / "checkpoints" / "update-000020" / "model.safetensors", other)
    assert load(copy, checkpoint="update-000010", verify=False).hashes[1] == sha256_of(other), (
        "not what model.json says"
    )


def test_best_and_last_of_several_are_checkpoints_like_any_other(copy: Path) -> None:
    best, last = load(copy, checkpoint="best:3"), load(copy, checkpoint="last:2")
    assert (best.checkpoint.name, last.checkpoint.name) == ("average-best-3", "average-last-2")
    named = load(copy, checkpoint="average-best-3")
    one = load_model(copy / "checkpoints" / "update-000020").state_dict()
    for name, tensor in best.model.state_dict().items():
        assert torch.equal(tensor, named.model.state_dict()[name])
        assert not torch.equal(tensor, one[name])
    assert best.generate(["a b"]) == named.generate(["a b"])
    with pytest.raises(CheckpointError, match=r"average-best-3, average-last-2, update-000010"):
        load(copy, checkpoint="update-9")


def test_a_shared_parameter_set_is_averaged_and_stored_once(copy: Path) -> None:
    folder = average_checkpoints(copy, "last", 2)
    model, (member,) = load_model(folder), weights(copy, 60)
    stored = load_file(folder / "model.safetensors")
    assert stored.keys() == member.keys()
    assert sum(tensor.numel() for tensor in stored.values()) == model.n_parameters()


def test_an_average_is_used_again_until_its_members_change(copy: Path) -> None:
    folder = average_checkpoints(copy, "last", 2)
    before = (folder / "model.safetensors").stat().st_ino
    assert average_checkpoints(copy, "last", 2) == folder
    assert (folder / "model.safetensors").stat().st_ino == before
    newest = copy / "checkpoints" / "update-000060"
    for name in ("model.safetensors", "model.json"):
        shutil.copy(copy / "checkpoints" / "update-000010" / name, newest / name)
    average_checkpoints(copy, "last", 2)
    found, parts = load_file(folder / "model.safetensors"), weights(copy, 10, 50)
    assert all(torch.equal(t, ((parts[0][k].double() + parts[1][k]) / 2).float()) for k, t in found.items())
    (folder / "average.json").write_text("{", encoding="utf-8")
    assert names(average_checkpoints(copy, "last", 2)) == ["update-000060", "update-000050"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs FIFOs")
def test_what_is_no_file_is_not_waited_for(copy: Path) -> None:
    folder = average_checkpoints(copy, "last", 2)
    (folder / "average.json").unlink()
    os.mkfifo(folder / "average.json")
    assert read_members(folder) is None
    (log := copy / "metrics.jsonl").unlink()
    os.mkfifo(log)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: is a FIFO, not a file"):
        average_checkpoints(copy, "best", 2)


def test_too_few_checkpoints_name_those_there_are_and_the_setting_that_keeps_more(copy: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        load(copy, checkpoint="best:6")
    assert "has 5 checkpoints with a score of its selection (update-000020, update-000030" in str(caught.value)
    assert "training.keep_best is 3; train with training.keep_best=6" in str(caught.value)
    with pytest.raises(CheckpointError, match=r"6 checkpoints .*, not 7: training\.keep_last is 2; .*keep_last=7"):
        load(copy, checkpoint="last:7")
    for update in (10, 30, 40, 60):
        shutil.rmtree(copy / "checkpoints" / f"update-{update:06d}")
    with pytest.raises(CheckpointError, match=r"1 checkpoint .* not 2: the run has not saved more so far"):
        load(copy, checkpoint="best:2")
    (copy / "results.json").write_text("{}", encoding="utf-8")
    shutil.rmtree(copy / "checkpoints" / "update-000050")
    for name, setting in (("best:2", r"evaluate_every \(500\)"), ("last:2", r"save_every \(10\)")):
        reason = f"1 checkpoint .*not 2: the run is finished; train with a smaller training.{setting} to save more"
        with pytest.raises(CheckpointError, match=reason):
            load(copy, checkpoint=name)


def test_a_mean_whose_members_were_deleted_is_named_where_it_is_asked_for_again(copy: Path) -> None:
    mean = load(copy, checkpoint="best:4").model.state_dict()
    for update in (10, 30, 40, 60):
        shutil.rmtree(copy / "checkpoints" / f"update-{update:06d}")
    with pytest.raises(CheckpointError, match=r"not 4: their mean was made .*: --checkpoint average-best-4 reads it"):
        load(copy, checkpoint="best:4")
    kept = load(copy, checkpoint="average-best-4").model.state_dict()
    assert all(torch.equal(tensor, mean[name]) for name, tensor in kept.items())
    (copy / "checkpoints" / "average-best-4" / "average.json").unlink()
    with pytest.raises(CheckpointError, match=r"not 4: training\.keep_best is 3"):
        load(copy, checkpoint="best:4")


@pytest.mark.parametrize("name", ["best:", "last:0", "best:-1", "last:two", "best:1.5"])
def test_a_number_that_is_none_is_a_named_error(run: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=f"checkpoint is '{name}': after '{name[:4]}:' comes how many"):
        load(run, checkpoint=name)
    assert parse_average("best:12") == ("best", 12)
    assert parse_average("update-000010") is None


def test_checkpoints_of_different_models_and_damaged_ones_are_refused(copy: Path, tmp_path: Path) -> None:
    folders = sorted((copy / "checkpoints").glob("update-*"))
    other = json.loads((folders[1] / "model.json").read_text(encoding="utf-8"))
    other["config"]["dropout"] = 0.25
    (folders[1] / "model.json").write_text(json.dumps(other), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"update-000020 is another model than .*update-000010"):
        save_average(folders[:2], tmp_path)
    (folders[1] / "model.json").write_text(json.dumps({"format_version": other["format_version"]}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"model\.json: not a model configuration: it has no 'config'"):
        save_average(folders[:2], tmp_path)
    (folders[2] / "model.safetensors").write_bytes(b"0" * 20)
    with pytest.raises(CheckpointError, match=r"update-000030.model\.safetensors: not the file that was written"):
        save_average([folders[0], folders[2]], tmp_path)
    (copy / "metrics.jsonl").write_text("[", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: cannot be read"):
        average_checkpoints(copy, "best", 1)


def test_tensors_that_are_no_floating_point_must_agree(copy: Path, tmp_path: Path) -> None:
    folders = sorted((copy / "checkpoints").glob("update-*"))[:2]
    for value, folder in enumerate(folders):
        stored = load_file(folder / "model.safetensors")
        write_weights(folder, stored | {"steps": torch.tensor([7, value])})
    with pytest.raises(CheckpointError, match="steps differs"):
        save_average(folders, tmp_path)
    save_average(folders[:1] * 2, tmp_path)
    assert load_file(tmp_path / "model.safetensors")["steps"].tolist() == [7, 0]


def test_two_that_want_one_average_make_it_once(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def slow(folders: list[Path], target: Path) -> None:
        made.append(target)
        save_average(folders, target)
        time.sleep(0.3)

    monkeypatch.setattr("ostinato.evaluation.averaging.save_average", slow)
    with ThreadPoolExecutor(2) as pool:  # a lock of the operating system holds between threads as between processes
        first, second = pool.map(lambda _: average_checkpoints(copy, "last", 2), range(2))
    assert first == second
    assert len(made) == 1
    assert names(first) == ["update-000060", "update-000050"]
