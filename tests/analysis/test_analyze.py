"""Every analysis on runs of a moment: what is collected, what is written, and what the report says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from halting_runs import DEEP, RULES, TINY, draw_gates, plain_run
from ostinato.analysis import analyze as logic
from ostinato.analysis import linear_cka, representation_collapse
from ostinato.analysis.capture import Seen, stream
from ostinato.analysis.collectors import AttentionTotals, Module, SentenceVectors
from ostinato.analysis.routing_collectors import ExpertStates, ExpertTotals, FirstExperts
from ostinato.analysis.studies import STUDIES, Subject
from ostinato.analysis.studies.similarity import pairs_of_stack
from ostinato.errors import ConfigError
from ostinato.evaluation.loading import load
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train

EXPERTS = [
    "model.encoder.ffn={kind: experts, n_experts: 4, k: 2, d_ff: 16, share: all}",
    "model.encoder.self_attention={kind: experts, n_experts: 3, k: 1, n_heads: 2, d_head: 8, share: all, "
    "gate: {kind: sigmoid}}",
]
SHALLOW = ["model.encoder.n_steps=3", "model.decoder.n_steps=3"]
KEEP = ["training.keep_last=3", "training.save_every=1", "training.n_updates=3"]


def sparse_run(folder: Path, seed: int) -> Path:
    """Train a run in which tokens halt in both stacks and the encoder has experts."""
    train(load_recipe("demo/universal", [*TINY, *DEEP, *RULES, *EXPERTS, *KEEP, *SHALLOW, f"seed={seed}"]), folder)
    draw_gates(folder)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [sparse_run(root / "first", 1), sparse_run(root / "second", 2)]


@pytest.fixture(scope="module")
def subject(runs: list[Path]) -> Subject:
    return logic.subjects([load(runs[0], device="cpu")], None, 24)[0]


@pytest.fixture(scope="module")
def written(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> logic.Analysed:
    given = logic.subjects([load(run, device="cpu") for run in runs], None, 24)
    return logic.analyze(given, tmp_path_factory.mktemp("out"))


class Keeping:
    """Keeps batches as they are."""

    request = frozenset({"input", "output", "residual", "weights"})

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def add(self, seen: Seen) -> None:
        self.seen.append(seen)


def test_every_analysis_applies_to_runs_that_have_everything(written: logic.Analysed) -> None:
    assert (written.left_out, written.found) == ({}, tuple(study.name for study in STUDIES))
    for name in written.found:
        assert {path.suffix for path in written.files if path.name.startswith(f"{name}-")} >= {".json", ".svg", ".png"}
    assert all(path.stat().st_size > 100 for path in written.files)


def test_the_report_asks_nothing_of_the_network_and_its_links_lead_somewhere(written: logic.Analysed) -> None:
    html = written.report.read_text(encoding="utf-8")
    used = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert not [one for one in used if re.match(r"(https?:)?//", one)]
    assert "url(" not in html
    assert "<script" not in html
    files = [one for one in used if not one.startswith(("data:", "#"))]
    assert files
    assert all((written.report.parent / one).is_file() for one in files)
    assert all(f'id="{one[1:]}"' in html for one in used if one.startswith("#"))
    for study in STUDIES:
        assert html.count(f'<section id="{study.name}">') == 1
    assert 'name="viewport"' in html


def test_numbers_are_json_with_null_for_what_is_none(written: logic.Analysed) -> None:
    for path in (path for path in written.files if path.suffix == ".json"):
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)
        assert {"analysis", "runs", "table"} <= found.keys()
        assert all(len(row) == len(found["table"]["columns"]) for row in found["table"]["rows"])


def test_small_batches_collect_what_large_ones_do(subject: Subject) -> None:
    kinds = [SentenceVectors, AttentionTotals, ExpertTotals, ExpertStates]
    large, small = ([subject.collector(kind) for kind in kinds] for _ in range(2))
    stream(subject.run, subject.examples, large)
    stream(subject.run, subject.examples, small, tokens_per_batch=20)
    for module, rows in large[0].after.items():
        np.testing.assert_allclose(small[0].after[module], rows, atol=1e-5)
        np.testing.assert_allclose(small[0].before[module], large[0].before[module], atol=1e-5)
    for module, sums in large[1].sums.items():
        assert small[1].sums[module].n == sums.n
        np.testing.assert_allclose(small[1].sums[module].entropy_H, sums.entropy_H, rtol=1e-5)
    for key, counts_VE in large[2].tokens.items():
        np.testing.assert_array_equal(small[2].tokens[key], counts_VE)
    for site, moments in large[3].moments.items():
        assert small[3].moments[site].n == moments.n
        assert small[3].moments[site].collapse() == pytest.approx(moments.collapse(), rel=1e-3, nan_ok=True)


def test_a_sentence_is_the_mean_of_its_tokens_and_halted_ones_stand_still(subject: Subject) -> None:
    vectors, keeping = SentenceVectors(len(subject.examples)), Keeping()
    stream(subject.run, subject.examples, [vectors, keeping], tokens_per_batch=40)
    n_frozen = 0
    for seen in keeping.seen:
        for name, stack in seen.output.stacks.items():
            assert stack.halting is not None
            for b, t in seen.keep(name).nonzero().tolist()[:1]:
                n_tokens = int(seen.keep(name)[b].sum())
                state: dict[int, torch.Tensor] = {}
                for module in (m for m in vectors.after if m.stack == name):
                    total = torch.zeros(subject.model.config.d_model)
                    for token in range(t, t + n_tokens):
                        ran = module.step < stack.halting.executed_BTR.shape[-1]
                        if ran and stack.halting.executed_BTR[b, token, module.step]:
                            state[token] = stack.captures[*module, "residual"][b, token]
                        else:
                            n_frozen += 1
                        total += state[token]
                    expected = (total / n_tokens).numpy()
                    np.testing.assert_allclose(vectors.after[module][seen.batch.indices[b]], expected, atol=1e-5)
    assert n_frozen > 0


def test_collapse_of_a_stream_is_that_of_all_its_states(subject: Subject) -> None:
    collector, keeping = ExpertStates(), Keeping()
    stream(subject.run, subject.examples, [collector, keeping], tokens_per_batch=40)
    for site, moments in collector.moments.items():
        states, classes = [], []
        for seen in keeping.seen:
            stack = seen.output.stacks[site.stack]
            for routing in (r for r in stack.routings if (r.router, r.step) == (site.router, site.step)):
                inputs = stack.captures[site.stack, site.step, site.router.split(".")[0], "input"].flatten(0, 1)
                for row in (routing.weight_N > 0).nonzero()[:, 0].tolist():
                    states.append(inputs[routing.rows_N[row]].numpy())
                    classes.append(int(routing.experts_NK[row, 0]))
        assert len(states) == moments.n
        expected = representation_collapse(np.stack(states), classes)
        assert moments.collapse() == pytest.approx(expected, rel=1e-6, nan_ok=True)


def test_first_experts_of_one_model_do_not_fluctuate(subject: Subject, runs: list[Path]) -> None:
    first, second, other = FirstExperts(), FirstExperts(), FirstExperts()
    stream(subject.run, subject.examples, [first], tokens_per_batch=40)
    stream(subject.run, subject.examples, [second], tokens_per_batch=40)
    stream(subject.run, subject.examples, [other], model=load(runs[1], device="cpu").model, tokens_per_batch=40)
    found = first.experts()
    assert all((second.experts()[site] == experts).all() for site, experts in found.items())
    assert any((other.experts()[site] != experts).any() for site, experts in found.items())
    assert len({len(experts) for experts in found.values()}) == 1


def test_a_run_is_as_similar_to_itself_as_can_be(runs: list[Path], tmp_path: Path) -> None:
    loaded = load(runs[0], device="cpu")
    given = logic.subjects([loaded, loaded], None, 24)
    assert [one.name for one in given] == ["first", "first-2"]
    found = logic.analyze(given, tmp_path, only=["similarity"])
    (path,) = [path for path in found.files if path.suffix == ".json"]
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["seeds"] == ["first-2"]
    values = content["runs"]["first-2"]
    assert all(one["cka"] == pytest.approx(1.0) and one["lns"] == 1.0 for one in values)
    untrained = [one["lns"] for one in content["runs"]["untrained"]]
    assert max(untrained) < 1.0


def test_the_exact_cka_of_a_run_is_that_of_its_sentences(subject: Subject, written: logic.Analysed) -> None:
    vectors = SentenceVectors(len(subject.examples))
    stream(subject.run, subject.examples, [vectors])
    arrays = np.load(written.report.parent / "self-similarity-first.npz")
    rows = [rows for module, rows in vectors.after.items() if module.stack == "encoder"]
    assert arrays["encoder_after_MM"][0, 3] == pytest.approx(linear_cka(rows[0], rows[3]), abs=1e-6)


def test_a_plain_run_says_what_does_not_apply_and_why(tmp_path: Path) -> None:
    given = logic.subjects([load(plain_run(tmp_path / "plain"), device="cpu")], None, 24)
    told: list[int] = []
    found = logic.analyze(given, tmp_path / "out", on_start=told.append, on_progress=told.append)
    assert told[0] == sum(told[1:]) == 24
    assert set(found.left_out) == {
        *("depth", "halting-map", "experts", "expert-tokens", "collapse", "fluctuation", "consistency", "similarity")
    }
    assert found.left_out["depth"] == "plain: no token of its model can halt"
    assert found.left_out["similarity"] == "it compares runs, and one was given"
    html = found.report.read_text(encoding="utf-8")
    assert all(f"<b>{name}</b>" in html for name in found.left_out)


def test_a_name_that_is_no_analysis_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"only is 'umap': must be one of depth, halting-map"):
        logic.choose(["depth", "umap"])


def test_stacks_that_lack_sub_layers_are_compared_after_every_step() -> None:
    whole = [Module("decoder", step, kind) for step in range(2) for kind in ("self_attention", "ffn")]
    lacking = [Module("decoder", step, "self_attention") for step in range(2)]
    assert pairs_of_stack(whole, whole) == [(module, module) for module in whole]
    assert pairs_of_stack(whole, lacking) == [(whole[1], lacking[0]), (whole[3], lacking[1])]
    assert pairs_of_stack(whole, lacking[:1]) == [(whole[3], lacking[0])]
