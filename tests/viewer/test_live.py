from __future__ import annotations

import json
import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opened_runs import OLD_RUNS
from starlette.testclient import TestClient

from ostinato.tasks.recipes import load_recipe
from ostinato.viewer import live, schema
from ostinato.viewer.chosen import ChosenRun
from ostinato.viewer.live import Watch, WatchedRunFiles, read_lines
from ostinato.viewer.schema import Limits, MetricsQuery
from ostinato.viewer.server import watch_app

SPARSE = OLD_RUNS / "trained" / "sparse"


def query(metrics: int = 0, timings: int = 0, **marks: str) -> MetricsQuery:
    return MetricsQuery(run="x", metrics=metrics, timings=timings, **marks)


def append(path: Path, *records: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def training(update: int, **more: Any) -> dict[str, Any]:
    return {"kind": "training", "update": update, "nll": 1 / update, "lr": 0.1, "grad_norm": 2.0, **more}


def test_a_run_that_was_trained_is_read_with_load_and_depth() -> None:
    found = WatchedRunFiles("x", SPARSE).metrics(query())
    records = [json.loads(line) for line in (SPARSE / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    trained = [record for record in records if record["kind"] == "training"]
    assert [point.update for point in found.training] == [record["update"] for record in trained]
    assert [point.loss for point in found.training] == [record["nll"] for record in trained]
    assert found.training[-1].load == {name: own["load"] for name, own in trained[-1]["routing"].items()}
    assert found.training[-1].depth == {name: own["histogram"] for name, own in trained[-1]["depth"].items()}
    evaluated = [record for record in records if record["kind"] == "evaluation"]
    assert [one.scores["loss"] for one in found.evaluations] == [record["scores"]["loss"] for record in evaluated]
    assert found.run.state == "begun"  # it was interrupted
    assert found.run.update == trained[-1]["update"]
    done = WatchedRunFiles("x", SPARSE.parent / "dense").summary()
    assert (done.state, done.left) == ("finished", None)
    assert found.metrics == (SPARSE / "metrics.jsonl").stat().st_size


def test_a_recipe_is_read_once_as_long_as_it_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def counted(path: Path) -> Any:
        read.append(path)
        return load_recipe(path)

    monkeypatch.setattr(live, "load_recipe", counted)
    folder = tmp_path / "run"
    run, recipe = WatchedRunFiles("x", folder, 40), folder / "recipe.yaml"
    assert run.n_updates() == 40
    shutil.copytree(SPARSE, folder)
    own = load_recipe(SPARSE).training.n_updates
    assert [run.n_updates() for _ in range(5)] == [own] * 5
    assert len(read) == 1
    recipe.write_text("}{", encoding="utf-8")
    assert [run.n_updates() for _ in range(2)] == [own] * 2
    assert len(read) == 2


def test_only_what_was_added_is_read_and_half_a_line_is_left_for_later(tmp_path: Path) -> None:
    log, run = tmp_path / "metrics.jsonl", WatchedRunFiles("x", tmp_path, 40)
    assert run.metrics(query()).run.state == "waiting"
    append(log, training(10), training(20))
    with log.open("a", encoding="utf-8") as file:
        file.write('{"kind": "training", "upd')
    first = run.metrics(query())
    assert [point.update for point in first.training] == [10, 20]
    with log.open("a", encoding="utf-8") as file:
        file.write('ate": 30}\n')
    second = run.metrics(query(first.metrics))
    assert [point.update for point in second.training] == [30]
    assert second.training[0].loss is None
    assert not second.again
    assert run.metrics(query(second.metrics)).training == []


def test_a_log_that_was_cut_back_is_read_again(tmp_path: Path) -> None:
    log, run = tmp_path / "metrics.jsonl", WatchedRunFiles("x", tmp_path)
    append(log, training(10), training(20))
    before = run.metrics(query())
    log.write_text("", encoding="utf-8")
    append(log, training(10))
    found = run.metrics(query(before.metrics))
    assert found.again
    assert [point.update for point in found.training] == [10]


@pytest.mark.parametrize("name", ["metrics", "timings"])
def test_a_log_that_was_cut_back_and_has_grown_past_its_old_length_is_read_again(tmp_path: Path, name: str) -> None:
    log, run = tmp_path / f"{name}.jsonl", WatchedRunFiles("x", tmp_path)
    append(log, *(training(update) for update in range(1, 6)))
    before = run.metrics(query())
    mark = {f"{name}_mark": getattr(before, f"{name}_mark")}
    append(log, training(6))
    assert not run.metrics(query(before.metrics, before.timings, **mark)).again
    log.write_text("", encoding="utf-8")
    append(log, training(1), training(2), *(training(update, nll=0.5) for update in range(3, 9)))
    found = run.metrics(query(before.metrics, before.timings, **mark))
    assert found.again
    if name == "metrics":
        assert [point.update for point in found.training] == list(range(1, 9))


def test_a_damaged_log_shows_what_it_holds_else(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    append(log, training(10))
    with log.open("ab") as file:
        file.write(
            b"\xff\xfe\n[]\nnull\n"
            + b"[" * 5000
            + b"\n"
            + b'{"update": "x"}\n{"kind": "training"}\n{"kind": "evaluation", "update": null}\n'
            + b'{"kind": "training", "update": 15, "nll": "a"}\n'
        )
    timings = [{"kind": "training", "update": 10, "seconds": 2.0, "labels_per_second": 5.0}]
    timings += [{"kind": "training", "update": 20, "seconds": 2.0, "labels_per_second": 6.0}]
    with (tmp_path / "timings.jsonl").open("w") as file:
        for record in (
            timings[0],
            {"kind": "training"},
            {"kind": "training", "update": 15, "seconds": None},
            timings[1],
        ):
            file.write(f"{json.dumps(record)}\n")
    append(log, {"kind": "evaluation", "update": 20, "scores": [1]}, training(20, routing=[1], depth={"x": 1}))
    found = WatchedRunFiles("x", tmp_path).metrics(query())
    assert [point.update for point in found.training] == [10, 15, 20]
    assert found.speeds == {10: 5.0, 20: 6.0}
    assert found.run.update == 20
    assert found.evaluations[0].scores == {}


def test_long_logs_come_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST", 500)
    log, run = tmp_path / "metrics.jsonl", WatchedRunFiles("x", tmp_path)
    append(log, *(training(update) for update in range(1, 41)), training(41, note="x" * 2000), training(42))
    seen, place, parts = list[int](), 0, 0
    while True:
        found = run.metrics(query(place))
        seen, place, parts = [*seen, *(point.update for point in found.training)], found.metrics, parts + 1
        if not found.more:
            break
    assert seen == list(range(1, 43))
    assert parts > 3
    left = read_lines(log, place)
    assert (left.records, left.place, left.is_cut) == ([], place, False)


def test_a_log_that_is_a_device_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/zero")
    found = WatchedRunFiles("x", tmp_path).metrics(query())
    assert (found.training, found.metrics, found.more) == ([], 0, False)


def test_of_a_log_without_line_breaks_no_more_than_a_part_is_held_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MOST", 500)
    monkeypatch.setattr(live, "_LONGEST_LINE", 3000)
    log = tmp_path / "metrics.jsonl"
    append(log, training(1))
    os.truncate(log, 20_000)
    with log.open("a", encoding="utf-8") as file:
        file.write("\n")
    append(log, training(2))
    seen, places = list[int](), [0]
    while places[-1] < log.stat().st_size:
        found = read_lines(log, places[-1])
        seen += [record["update"] for record in found.records]
        places.append(found.place)
    assert seen == [1, 2]
    assert all(0 < after - before <= 3500 for before, after in pairwise(places))


def test_the_time_left_is_that_of_the_updates_to_come_at_the_speed_of_the_last(tmp_path: Path) -> None:
    append(tmp_path / "metrics.jsonl", training(30))
    timing = {"kind": "training", "labels_per_second": 100.0}
    speeds = [(10, 50.0), (20, 5.0), (30, 5.0)]  # the first record has the start of the program in it
    append(tmp_path / "timings.jsonl", *(timing | {"update": update, "seconds": s} for update, s in speeds))
    found = WatchedRunFiles("x", tmp_path, 70).metrics(query())
    assert found.run.left == pytest.approx(40 * 0.5)
    assert found.run.n_updates == 70
    assert found.speeds == {10: 100.0, 20: 100.0, 30: 100.0}
    # A run that goes on from an earlier update logs it again: what came before says nothing of how long one takes.
    for update, seconds, left in ((20, 90.0, None), (30, 5.0, 40 * 0.5), (40, 5.0, 30 * 0.5)):
        append(tmp_path / "timings.jsonl", timing | {"update": update, "seconds": seconds})
        found = WatchedRunFiles("x", tmp_path, 70).metrics(query())
        assert found.run.left == (left if left is None else pytest.approx(left))


def test_the_page_and_its_api_answer(tmp_path: Path) -> None:
    with TestClient(watch_app(Watch([ChosenRun("sparse", SPARSE)]), Limits()), base_url="http://127.0.0.1") as client:
        assert "ostinato watch" in client.get("/").text
        schema.Watched.model_validate(client.get("/api/runs").json())
        schema.Metrics.model_validate(client.get("/api/metrics", params={"run": "sparse"}).json())
        for wrong in ({"run": "../sparse"}, {"run": "sparse", "metrics": "-1"}, {}, {"run": "sparse", "metrics": "x"}):
            answer = client.get("/api/metrics", params=wrong)
            assert answer.status_code == 400
            assert "\n" not in answer.json()["error"]
        assert set(client.get("/api/schema").json()["paths"]) == {"/api/runs", "/api/metrics"}
        assert client.get("/api/runs", headers={"host": "evil.example"}).status_code == 421
