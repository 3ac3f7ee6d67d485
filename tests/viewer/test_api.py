from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from opened_runs import KINDS, TEXTS, example_of
from own_metric import OURS, OWN, scored_by_both
from starlette.testclient import TestClient

from ostinato.analysis.capture import batches
from ostinato.analysis.collectors import SubLayerKey
from ostinato.data import hub
from ostinato.data.example import Example
from ostinato.decoding import inference
from ostinato.errors import DataError
from ostinato.evaluation import evaluate
from ostinato.evaluation.loading import load
from ostinato.evaluation.scores import score_sentences
from ostinato.nn.execution import CRITERIA_AT_TEST
from ostinato.viewer import schema
from ostinato.viewer.opened import OpenRun, open_runs
from ostinato.viewer.reading import row_of
from ostinato.viewer.schema import Limits
from ostinato.viewer.server import ENDPOINTS, view_app

Opened = dict[str, OpenRun]


def post(client: TestClient, path: str, body: Any) -> Any:
    response = client.post(f"/api/{path}", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def lines(client: TestClient, path: str, body: Any) -> list[dict[str, Any]]:
    response = client.post(f"/api/{path}", json=body)
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


def error_of(client: TestClient, path: str, body: Any) -> str:
    response = client.post(f"/api/{path}", json=body)
    assert response.status_code == 400, response.text
    message = response.json()["error"]
    assert isinstance(message, str)
    assert "\n" not in message
    return message


def test_the_runs_are_described_with_their_plans(client: TestClient, opened: Opened) -> None:
    found = schema.Runs.model_validate(client.get("/api/runs").json())
    assert [run.name for run in found.runs] == KINDS
    by_name = {run.name: run for run in found.runs}
    sparse = by_name["sparse"]
    assert [stack.name for stack in sparse.stacks] == ["encoder", "decoder"]
    assert all(stack.varies and stack.rounds == 3 and stack.halting == "stick_breaking" for stack in sparse.stacks)
    cells = {cell.set: cell.parameters for stack in sparse.stacks for step in stack.plan for cell in step.cells}
    bank = opened["sparse"].run.model.banks.ffn
    assert cells["encoder_0"] == sum(p.numel() for p in bank["encoder_0"].parameters())
    assert sparse.exits == list(CRITERIA_AT_TEST)
    assert by_name["classification"].exits == ["change", "cosine"]
    assert by_name["lstm"].stacks == []


@pytest.mark.sampled
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_model_is_looked_into_by_example_and_by_text(
    client: TestClient, opened: Opened, name: str
) -> None:
    run = opened[name]
    example = run.examples(run.splits[0])[0]
    text = TEXTS.get(name, example.source or "")
    for asked in (example_of(run), {"run": name, "text": text}):
        found = schema.Inspection.model_validate(post(client, "inspect", asked | {"max_length": 6}))
        assert [stack.name for stack in found.stacks] == list(run.run.model.stacks)
        assert found.predictions.rounds[-1] == "output"
        for by_round in found.predictions.probabilities:
            assert len(by_round) == len(found.predictions.rounds)
            assert all(best == sorted(best, reverse=True) and 0 <= best[0] <= 1 for best in by_round)
        assert {i for by_round in found.predictions.ids for best in by_round for i in best} == set(
            found.predictions.texts
        )
        assert 0 < found.cost.macs <= found.cost.macs_full
        assert (found.output is None) == (name == "masked")
    assert found.answer is None
    assert found.right is None


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("masked", "language-model")])
def test_surprisal_and_cost_are_those_of_an_evaluation(client: TestClient, opened: Opened, name: str) -> None:
    run = opened[name]
    asked = example_of(run) | {"reads": "answer"}
    found = post(client, "inspect", asked)
    example = run.examples(run.splits[0])[0]
    (batch,) = batches(run.run, [example])
    with inference(run.run.model):
        output = run.run.model(batch)
    (scores,) = score_sentences(output.logits_BTV, batch.labels_BT, batch.loss_mask_BT)
    bits = [label["bits"] for label in found["predictions"]["labels"] if label["bits"] is not None]
    assert len(bits) == scores.n_labels
    assert sum(bits) == pytest.approx(scores.nll / math.log(2), abs=1e-3)
    result = run.run.evaluate(run.splits[0], metrics=[], by=[], max_examples=1)
    assert found["cost"]["macs"] == pytest.approx(result["macs"]["realised"])
    assert found["cost"]["macs_full"] == pytest.approx(result["macs"]["full"])


@pytest.mark.parametrize("name", ["sparse", "act-convolution"])
def test_what_tokens_did_is_the_trace_of_the_pass(client: TestClient, opened: Opened, name: str) -> None:
    run = opened[name]
    found = post(client, "inspect", example_of(run) | {"reads": "answer", "threshold": 0.6})
    (batch,) = batches(run.run, run.examples(run.splits[0])[:1])
    with inference(run.run.model), run.run.model.execution(halting_threshold=0.6):
        output = run.run.model(batch)
    for stack in found["stacks"]:
        trace = output.stacks[stack["name"]].halting
        assert trace is not None
        assert [token["rounds"] for token in stack["tokens"]] == trace.executed_BTR[0].sum(-1).tolist()
        assert torch.allclose(torch.tensor(stack["halting"]["probability"]), trace.probs_BTR[0], atol=1e-4)
        assert torch.allclose(torch.tensor(stack["halting"]["remaining"]), trace.remaining_BTR[0], atol=1e-4)
        routings = output.stacks[stack["name"]].routings
        assert len(stack["experts"]) == len(routings)
        for shown, routing in zip(stack["experts"], routings, strict=True):
            chosen = [experts for experts in shown["chosen"] if experts is not None]
            assert chosen == routing.experts_NK[routing.weight_N > 0].tolist()
    assert found["thresholds"] == {"encoder": 0.6, "decoder": 0.6}


def test_the_last_round_predicts_what_the_output_does_where_no_token_halts(client: TestClient, opened: Opened) -> None:
    for name in ("dense", "one-wide", "classification", "prefix-language-model"):
        found = post(client, "inspect", example_of(opened[name]) | {"reads": "answer"})["predictions"]
        assert len(found["rounds"]) > 1
        assert all(by_round[-1] == by_round[-2] for by_round in found["ids"])


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("name", ["sparse", "dense", "lstm", "language-model", "prefix-language-model"])
def test_what_is_written_token_by_token_is_what_generate_writes(client: TestClient, opened: Opened, name: str) -> None:
    run = opened[name]
    text = TEXTS.get(name) or run.examples(run.splits[0])[0].source
    for beam in (1, 3):
        asked = {"run": name, "text": text, "beam": beam, "max_length": 6}
        *tokens, last = lines(client, "generate", asked)
        (expected,) = run.run.generations([str(text)], beam=beam, max_length=6, max_length_ratio=0.0)
        assert last["output"]["text"] == expected.text
        assert last["output"]["score"] == pytest.approx(expected.score)
        assert len(tokens) >= 1
        assert all(line["kind"] == "tokens" for line in tokens)
        whole = post(client, "inspect", asked)
        again = post(client, "inspect", asked | {"output_ids": last["output"]["ids"]})
        assert again["predictions"] == whole["predictions"]
        assert again["stacks"] == whole["stacks"]
    drawn = [lines(client, "generate", asked | {"beam": 1, "temperature": 2.0, "seed": 5})[-1] for _ in range(2)]
    assert drawn[0]["output"]["ids"] == drawn[1]["output"]["ids"]


@pytest.mark.parametrize("name", ["dense", "lstm", "language-model", "prefix-language-model"])
def test_limits_by_the_source_are_those_of_generate(opened: Opened, name: str) -> None:
    run = opened[name].run
    decoding = run.decoding(max_length=1, max_length_ratio=2.0, min_length_ratio=1.0)
    run = replace(run, recipe=run.recipe.model_copy(update={"decoding": decoding}))
    text = TEXTS.get(name) or str(opened[name].examples(opened[name].splits[0])[0].source)
    (whole,) = run.generations([text])
    two, three = (run.generations([text], max_length=n, max_length_ratio=0.0)[0] for n in (2, 3))
    assert whole.text not in (two.text, three.text)
    tried: list[tuple[Any, Limits, dict[str, Any]]] = [
        *((whole, Limits(), {}), (two, Limits(), {"max_length": 2}), (three, Limits(generated=3), {})),
    ]
    for wanted, limits, asked in tried:
        shown = open_runs({"run": run}, limits)
        with TestClient(view_app(shown, limits), base_url="http://127.0.0.1") as client:
            output = lines(client, "generate", {"run": "run", "text": text, **asked})[-1]["output"]
        shown["run"].close()
        assert (output["text"], output["score"]) == (wanted.text, pytest.approx(wanted.score))


def test_attention_is_the_captured_one_and_sums_to_one(client: TestClient, opened: Opened) -> None:
    run = opened["sparse"]
    asked = example_of(run) | {"reads": "answer"}
    places = [(s["name"], p) for s in post(client, "inspect", asked)["stacks"] for p in s["attention"]]
    assert {place["kind"] for _, place in places} == {"self_attention", "cross_attention"}
    for stack, place in places:
        found = post(client, "attention", asked | {"stack": stack, "step": place["step"], "kind": place["kind"]})
        assert len(found["weights"]) == place["n_heads"]
        for head in found["weights"]:
            assert len(head) == len(found["queries"])
            for row in head:
                assert row is None or (len(row) == len(found["keys"]) and sum(row) == pytest.approx(1, abs=1e-2))
    for stack, step in (("encoder", 99), ("x", 0)):
        wrong = asked | {"stack": stack, "step": step, "kind": "self_attention"}
        assert str(SubLayerKey("encoder", 0, "self_attention")) in error_of(client, "attention", wrong)
    deeper = asked | {"rounds": {"encoder": 6}, "threshold": 1.0}
    deeper |= {"stack": "encoder", "step": 5, "kind": "self_attention"}
    assert len(post(client, "attention", deeper)["weights"][0]) == len(
        post(client, "inspect", asked)["stacks"][0]["tokens"]
    )


def test_more_rounds_change_the_pass_and_not_what_full_depth_costs(client: TestClient, opened: Opened) -> None:
    asked = example_of(opened["sparse"]) | {"reads": "answer"}
    plain = post(client, "inspect", asked)
    deeper = post(client, "inspect", asked | {"rounds": {"encoder": 6}, "threshold": 1.0})
    assert [stack["rounds"] for stack in deeper["stacks"]] == [6, 3]
    assert deeper["cost"]["macs_full"] == plain["cost"]["macs_full"] < deeper["cost"]["macs"]
    assert post(client, "inspect", asked)["stacks"] == plain["stacks"]


@pytest.mark.slow
def test_a_curve_has_the_point_where_one_stands_and_the_numbers_of_an_evaluation(
    client: TestClient, opened: Opened
) -> None:
    run = opened["sparse"]
    asked = {"run": "sparse", "split": run.splits[0], "n": 6, "along": "threshold", "threshold": 0.6}
    first, *others, end = lines(client, "curve", asked)
    assert first["here"]
    assert first["setting"] == 0.6
    assert end == {"kind": "end", "n": 6, "notes": []}
    same = next(point for point in others if point["setting"] == 0.6)
    assert same | {"here": True} == first
    macs = [point["macs"] for point in others]
    assert macs == sorted(macs)
    by_rounds = lines(client, "curve", asked | {"along": "rounds", "threshold": 1.0})
    assert [point["setting"] for point in by_rounds[1:-1]] == [1, 2, 3, 4, 6]
    result = run.run.evaluate(run.splits[0], metrics=[], by=[], max_examples=6, n_steps=2)
    (two,) = (point for point in by_rounds[1:-1] if point["setting"] == 2)
    assert two["token_accuracy"] == pytest.approx(result["token_accuracy"])
    assert first["score"] is None
    assert "this run's metrics are exact_match" in lines(client, "curve", asked | {"metric": "bleu"})[-1]["error"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked_search", "search"),
    [
        ({"beam": 2}, {"beam": 2}),
        ({"temperature": 0.5, "seed": 7}, {"strategy": "sample", "temperature": 0.5, "seed": 7}),
    ],
)
def test_a_curve_scores_what_is_written_as_an_evaluation_does(
    client: TestClient, opened: Opened, asked_search: dict[str, Any], search: dict[str, Any]
) -> None:
    run = opened["sparse"]
    asked = {"run": "sparse", "split": "train", "n": 20, "along": "rounds", **asked_search}
    for metric in run.metrics:
        (two,) = (p for p in lines(client, "curve", asked | {"metric": metric})[1:-1] if p["setting"] == 2)
        data, decoding = run.run.recipe.data, run.run.decoding(**search)
        settings: dict[str, Any] = {"data": data, "decoding": decoding, "metrics": [metric], "n_steps": 2}
        result = evaluate(run.run.model, run.examples("train"), run.run.tokenizers, **settings)
        assert two["score"] == pytest.approx(result[metric])
        assert two["macs"] == pytest.approx(result["macs"]["realised"])
    assert 0 < two["score"] < 1


def test_a_curve_says_what_was_cut_and_that_blocks_are_read_by_text(
    client: TestClient, opened: Opened, run_folders: list[Path]
) -> None:
    run = opened["language-model"]
    asked = {"run": run.name, "split": run.splits[0], "n": 2, "along": "threshold", "exit": "change", "threshold": 0.5}
    (note,) = lines(client, "curve", asked)[-1]["notes"]
    assert note == "every text is read by itself, while `ostinato evaluate` reads blocks (data.block_length)"
    (folder,) = (path for path in run_folders if path.name == run.name)
    short = open_runs({run.name: load(folder, device="cpu", overrides=["data.max_target_length=4"])}, Limits())
    assert row_of(short[run.name], Example(None, "the cat sat on the mat")).length == 4
    with TestClient(view_app(short, Limits()), base_url="http://127.0.0.1:8765") as client:
        assert lines(client, "curve", asked)[-1]["notes"] == [f"{note}; longer texts are cut to 4 tokens"]
    (folder,) = (path for path in run_folders if path.name == "sparse")
    cutting = ["data.over_length=truncate", "data.max_source_length=3"]
    shown = open_runs({"run": load(folder, device="cpu", overrides=cutting)}, Limits())
    with TestClient(view_app(shown, Limits()), base_url="http://127.0.0.1:8765") as client:
        (note,) = lines(client, "curve", {"run": "run", "split": "test", "n": 4, "along": "rounds"})[-1]["notes"]
    assert note.startswith("test: 3 of 4 sources were cut to data.max_source_length = 3 tokens: ")
    shown["run"].close()


def test_a_curve_gives_a_score_as_it_is_where_a_perfect_one_is_0(opened: Opened) -> None:
    shown = open_runs({"run": scored_by_both(opened["sparse"].run)}, Limits())
    asked = {"run": "run", "split": "train", "n": 4, "along": "rounds"}
    with TestClient(view_app(shown, Limits()), base_url="http://127.0.0.1") as client:
        ours, own = (lines(client, "curve", asked | {"metric": metric})[:-1] for metric in (OURS, OWN))
    shown["run"].close()
    assert len(own) == len(ours) > 1
    assert [point["score"] for point in own] == pytest.approx([point["score"] - 1.0 for point in ours])
    assert {(a["is_share"], b["is_share"]) for a, b in zip(ours, own, strict=True)} == {(True, False)}


def test_whether_an_output_is_right_is_said_where_an_answer_is_known(client: TestClient, opened: Opened) -> None:
    found = post(client, "inspect", example_of(opened["classification"]))
    assert found["right"] == (found["output"]["text"] == found["answer"])
    pair = post(client, "inspect", example_of(opened["dense"]))
    assert pair["right"] == (pair["output"]["text"].split() == pair["answer"].split())
    text = post(client, "inspect", example_of(opened["language-model"]) | {"max_length": 3})
    assert (text["right"], text["answer"]) == (None, None)
    assert post(client, "inspect", {"run": "dense", "text": "1 2"})["right"] is None


def test_examples_come_with_answers_and_metadata(client: TestClient, opened: Opened) -> None:
    run = opened["dense"]
    query: dict[str, str | int] = {"run": "dense", "split": run.splits[0], "offset": 1, "limit": 2}
    found = schema.Examples.model_validate(client.get("/api/examples", params=query).json())
    known = run.examples(run.splits[0])
    assert [(one.index, one.source, one.target) for one in found.examples] == [
        (i, known[i].source, known[i].target) for i in (1, 2)
    ]
    assert found.total == len(known)
    assert client.get("/api/examples", params=query | {"offset": 10**9}).json()["examples"] == []


def test_a_run_whose_data_is_elsewhere_reads_ones_own_text(run_folders: list[Path], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(next(path for path in run_folders if path.name == "language-model"), tmp_path / "run"))
    recipe = copy / "recipe.yaml"
    recipe.write_text(recipe.read_text(encoding="utf-8").replace("/texts/", "/nowhere/"), encoding="utf-8")
    limits = Limits()
    opened = open_runs({"run": load(copy, device="cpu")}, limits)
    with TestClient(view_app(opened, limits), base_url="http://127.0.0.1") as client:
        assert client.get("/api/runs").json()["runs"][0]["splits"] == []
        post(client, "inspect", {"run": "run", "text": "the cat", "max_length": 3})
        asked = {"run": "run", "example": {"split": "dev", "index": 0}}
        assert "examples cannot be read here" in error_of(client, "inspect", asked)
    opened["run"].close()


def test_examples_are_shown_without_the_training_file(run_folders: list[Path], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(next(path for path in run_folders if path.name == "language-model"), tmp_path / "run"))
    recipe = copy / "recipe.yaml"
    lines = recipe.read_text(encoding="utf-8").splitlines(keepends=True)
    elsewhere = ["  train: /nowhere/train.txt\n" if line.startswith("  train:") else line for line in lines]
    assert elsewhere != lines
    recipe.write_text("".join(elsewhere), encoding="utf-8")
    opened = open_runs({"run": load(copy, device="cpu")}, Limits())["run"]
    assert "dev" in opened.splits
    assert "train" not in opened.splits
    assert opened.examples("dev")
    opened.close()


@pytest.mark.parametrize("replaced", [["train"], ["train", "dev", "test"]])
def test_no_hub_is_asked_for_a_data_set_that_a_recipe_names(
    run_folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: list[str]
) -> None:
    copy = Path(shutil.copytree(next(path for path in run_folders if path.name == "language-model"), tmp_path / "run"))
    recipe = copy / "recipe.yaml"
    text = recipe.read_text(encoding="utf-8")
    for split in replaced:
        text = re.sub(rf"(?m)^  {split}: .*$", f"  {split}: {{hf: owner/name, split: {split}}}", text, count=1)
    recipe.write_text(text, encoding="utf-8")
    monkeypatch.setattr(hub, "load", lambda *_: pytest.fail("the hub was asked"))
    opened = open_runs({"run": load(copy, device="cpu")}, Limits())["run"]
    assert opened.splits == [split for split in ("test", "dev") if split not in replaced]
    for split in replaced:
        with pytest.raises(DataError, match=r"the data set owner/name is no file or folder here, and the page asks no"):
            opened.examples(split)
    opened.close()


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("inspect", {"run": "nobody", "text": "1"}, "run is 'nobody': must be one of act-convolution"),
    ("inspect", {"run": "dense"}, "give either text or example"),
    ("inspect", {"run": "dense", "text": "  "}, "there is nothing to read"),
    ("inspect", {"run": "dense", "text": "1", "example": {"split": "test", "index": 0}}, "give either"),
    ("inspect", {"run": "dense", "text": "1 2 x"}, "'x'"),
    ("inspect", {"run": "dense", "text": "1 " * 200}, "at most 64 are shown"),
    ("inspect", {"run": "dense", "text": "1", "rounds": {"x": 2}}, "its stacks are: encoder, decoder"),
    ("inspect", {"run": "sparse", "text": "1", "rounds": {"encoder": 900}}, "must be at most 24"),
    ("inspect", {"run": "dense", "text": "1", "threshold": 0.5}, "no token of this model can halt"),
    ("inspect", {"run": "sparse", "text": "1", "threshold": 1.5}, "threshold is 1.5: Input should be less"),
    ("inspect", {"run": "sparse", "text": "1", "exit": "x", "threshold": 0.5}, "must be one of change"),
    ("inspect", {"run": "dense", "text": "1", "beam": 3, "temperature": 1.0}, "beam must be 1"),
    ("inspect", {"run": "dense", "text": "1", "output_ids": [4, 10**9]}, "the ids of the vocabulary"),
    ("inspect", {"run": "dense", "text": "1", "reads": "answer"}, "not known"),
    ("inspect", {"run": "dense", "text": "1", "colour": "red"}, "colour is 'red': Extra inputs"),
    ("inspect", {"run": "dense", "example": {"split": "x", "index": 0}}, "split is 'x': the task "),
    ("inspect", {"run": "dense", "example": {"split": "dev", "index": 10**6}}, "must be below 8"),
]


@pytest.mark.parametrize(("path", "body", "message"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_a_request_that_cannot_be_answered_is_one_line(
    client: TestClient, path: str, body: dict[str, Any], message: str
) -> None:
    assert re.search(message, error_of(client, path, body))


def test_errors_of_a_stream_are_its_last_line(client: TestClient) -> None:
    (only,) = lines(client, "generate", {"run": "dense", "text": "1 2 x"})
    assert only["kind"] == "error"
    (only,) = lines(client, "generate", {"run": "classification", "text": "the cat"})
    assert "writes no text" in only["error"]
    (only,) = lines(client, "curve", {"run": "dense", "split": "dev", "n": 5, "along": "threshold"})
    assert "no token of this run halts" in only["error"]
    (only,) = lines(client, "curve", {"run": "dense", "split": "dev", "n": 5, "along": "rounds"})
    assert "no stack of this run" in only["error"]


def test_the_schema_has_every_address_of_the_api(client: TestClient) -> None:
    found = client.get("/api/schema").json()
    assert set(found["paths"]) == {"/api/runs", *(path for _, path, *_ in ENDPOINTS)}
    for own in found["paths"].values():
        for method, operation in own.items():
            assert operation["summary"].endswith(".")
            assert ("requestBody" in operation) == (method == "post")
    names = json.dumps(found)
    for part in names.split('"#/components/schemas/')[1:]:
        assert part.partition('"')[0] in found["components"]["schemas"]
