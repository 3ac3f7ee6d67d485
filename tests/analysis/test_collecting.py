"""What a streamed pass keeps: the same for batches of any size, and what the captures say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from architectures import BOS, Sentence, random_model, right_padded
from ostinato.analysis import analyze as logic
from ostinato.analysis import linear_cka, representation_collapse
from ostinato.analysis.capture import CapturedBatch, stream
from ostinato.analysis.collectors import (
    AttentionTotals,
    ExpertStates,
    ExpertTotals,
    FirstExperts,
    Outcomes,
    RoutedSample,
    SentenceVectors,
    SubLayerKey,
)
from ostinato.analysis.studies import Subject
from ostinato.analysis.studies.similarity import pairs_of_stack
from ostinato.config.model import LanguageModelConfig
from ostinato.evaluation.loading import load


class Keeping:
    """Keeps batches as they are."""

    request = frozenset({"input", "output", "residual", "weights"})

    def __init__(self) -> None:
        self.captured: list[CapturedBatch] = []

    def add(self, captured: CapturedBatch) -> None:
        self.captured.append(captured)


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
    for captured in keeping.captured:
        for name, stack in captured.output.stacks.items():
            assert stack.halting is not None
            for b, t in captured.keep(name).nonzero().tolist()[:1]:
                n_tokens = int(captured.keep(name)[b].sum())
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
                    np.testing.assert_allclose(vectors.after[module][captured.batch.indices[b]], expected, atol=1e-5)
    assert n_frozen > 0


ROUTED = [
    {"kind": "select", "among": "all", "capacities": [None, 0.5], "mix": "interpolate", "gate": "score", "scale": 0.3},
    {"kind": "select", "capacities": [1.0, 0.5]},
    {"kind": "token_choice"},
]


@pytest.mark.parametrize("rule", ROUTED)
def test_where_routers_weigh_rounds_the_state_behind_the_last_sub_layer_is_that_which_leaves(
    rule: dict[str, object],
) -> None:
    stack = {"n_steps": 4, "self_attention": {"n_heads": 2, "share": "all"}, "ffn": {"d_ff": 24, "share": "all"}}
    settings = {"d_model": 16, "vocab_size": 11, "dropout": 0.0, "decoder": stack | {"halting": rule}}
    model = random_model(LanguageModelConfig.model_validate(settings)).eval()
    batch = right_padded([Sentence(None, [BOS, 3, 4, 5, 6, 7], 1), Sentence(None, [BOS, 8, 9], 1)])
    batch = replace(batch, indices=(0, 1))
    vectors = SentenceVectors(2)
    with torch.no_grad():
        output = model(batch, request=vectors.request)
    vectors.add(CapturedBatch(model, batch, output))
    after = list(vectors.after.values())[-1]
    for row, n_tokens in enumerate((6, 3)):
        states_TD = output.stacks["decoder"].states_BTD[row, :n_tokens]
        np.testing.assert_allclose(after[row], states_TD.mean(0).numpy(), atol=1e-5)


def test_collapse_of_a_stream_is_that_of_all_its_states(subject: Subject) -> None:
    collector, keeping = ExpertStates(), Keeping()
    stream(subject.run, subject.examples, [collector, keeping], tokens_per_batch=40)
    for site, moments in collector.moments.items():
        states, classes = [], []
        for captured in keeping.captured:
            stack = captured.output.stacks[site.stack]
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


def test_of_heads_that_choose_among_experts_of_their_own_the_first_of_each_counts() -> None:
    attention = {"kind": "head_experts", "n_heads": 2, "n_experts": 3, "top_k": 2, "share": "all"}
    stack = {"n_steps": 2, "self_attention": attention, "ffn": {"d_ff": 24, "share": "all"}}
    settings = {"d_model": 16, "vocab_size": 11, "dropout": 0.0, "decoder": stack}
    model = random_model(LanguageModelConfig.model_validate(settings)).eval()
    batch = right_padded([Sentence(None, [BOS, 3, 4, 5, 6, 7], 1), Sentence(None, [BOS, 8, 9], 1)])
    with torch.no_grad():
        output = model(batch)
    first = FirstExperts()
    first.add(CapturedBatch(model, batch, output))
    first.add(CapturedBatch(model, batch, output))
    routings = output.stacks["decoder"].routings
    assert {routing.n_heads for routing in routings} == {2}
    for routing, experts in zip(routings, first.experts().values(), strict=True):
        of_heads = routing.experts_NK[routing.weight_N > 0][:, [0, 2]]
        assert of_heads.shape == (9, 2)
        assert experts.tolist() == of_heads.flatten().tolist() * 2


def test_states_of_a_router_of_values_are_those_it_was_asked_about() -> None:
    attention = {"kind": "head_experts", "n_heads": 2, "n_experts": 3, "top_k": 2, "share": "all"}
    stack = {"n_steps": 4, "self_attention": attention, "ffn": {"d_ff": 24, "share": "all"}}
    rule = {"kind": "stick_breaking", "threshold": 0.9, "initial_bias": -1.0}
    settings = {"d_model": 16, "vocab_size": 11, "dropout": 0.0, "decoder": stack | {"halting": rule}}
    model: Any = random_model(LanguageModelConfig.model_validate(settings)).float().eval()
    batch = right_padded([Sentence(None, [BOS, 3, 4, 5, 6, 7], 1), Sentence(None, [BOS, 8, 9], 1)])
    (module,), asked = model.banks.self_attention.values(), list[torch.Tensor]()
    module.value_router.register_forward_pre_hook(lambda router, given: asked.append(given[0]))
    sample = RoutedSample(10**6)
    with torch.no_grad():
        output = model(batch, request=sample.request)
    sample.add(CapturedBatch(model, batch, output))
    ((states_ND, _, steps_N),) = (one for (router, _), one in sample.samples.items() if router.endswith(".values"))
    of_values = [routing for routing in output.stacks["decoder"].routings if routing.router.endswith(".values")]
    differences = []
    for routing, asked_ND in zip(of_values, asked, strict=True):
        counted_N = routing.weight_N > 0
        expected_ND = asked_ND[: len(counted_N)][counted_N]
        found_ND = states_ND[steps_N == routing.step]
        assert len(found_ND) == len(expected_ND)
        assert all((found_ND == row).all(1).any() for row in expected_ND.numpy())
        present_BTD = output.stacks["decoder"].captures["decoder", routing.step, "self_attention", "input"]
        present_ND = present_BTD.flatten(0, 1)[routing.rows_N[counted_N]]
        differences.append(float((present_ND - expected_ND).abs().max()))
    assert max(differences) > 1e-3, "others see what is expected of a token, not its present state"


def test_the_exact_cka_of_a_run_is_that_of_its_sentences(subject: Subject, surveyed: logic.Survey) -> None:
    vectors = SentenceVectors(len(subject.examples))
    stream(subject.run, subject.examples, [vectors])
    finding = next(found[0] for study, found in surveyed.found if study.name == "self-similarity")
    rows = [rows for module, rows in vectors.after.items() if module.stack == "encoder"]
    assert finding.arrays["encoder_after_MM"][0, 3] == pytest.approx(linear_cka(rows[0], rows[3]), abs=1e-6)


def test_stacks_that_lack_sub_layers_are_compared_after_every_step() -> None:
    whole = [SubLayerKey("decoder", step, kind) for step in range(2) for kind in ("self_attention", "ffn")]
    lacking = [SubLayerKey("decoder", step, "self_attention") for step in range(2)]
    assert pairs_of_stack(whole, whole) == [(module, module) for module in whole]
    assert pairs_of_stack(whole, lacking) == [(whole[1], lacking[0]), (whole[3], lacking[1])]
    assert pairs_of_stack(whole, lacking[:1]) == [(whole[3], lacking[0])]


def test_outcomes_are_those_of_an_evaluation(subject: Subject) -> None:
    outcomes = Outcomes(len(subject.examples))
    stream(subject.run, subject.examples, [outcomes], tokens_per_batch=40)
    result = subject.run.evaluate(subject.split, metrics=[], by=[], max_examples=len(subject.examples))
    assert outcomes.token_accuracy == result["token_accuracy"]
    assert outcomes.sequence_accuracy == result["sequence_accuracy_forced"]
    assert outcomes.nll_N.sum() / outcomes.labels_N.sum() == pytest.approx(result["loss"], rel=1e-6)
    assert outcomes.macs_N2.mean(0) == pytest.approx([result["macs"]["full"], result["macs"]["realised"]])
    depth, expected = outcomes.depths.compute()["encoder"], result["halting"]["encoder"]
    assert depth["histogram"] == expected["histogram"]
    assert depth["expected"] == pytest.approx(expected["expected"], rel=1e-6)


def test_a_sample_holds_all_there_is_where_that_is_little_and_few_of_many(subject: Subject) -> None:
    every, few, states = RoutedSample(10**6), RoutedSample(7), ExpertStates()
    stream(subject.run, subject.examples, [every, few, states], tokens_per_batch=40)
    for (router, stack), sample in every.samples.items():
        sites = [moments for site, moments in states.moments.items() if (site.router, site.stack) == (router, stack)]
        assert len(sample.states_ND) == sum(moments.n for moments in sites)
        counts = np.bincount(sample.experts_N, minlength=len(sites[0].counts_C))
        np.testing.assert_array_equal(counts, sum(moments.counts_C for moments in sites))
        taken = few.samples[router, stack]
        assert len(taken.states_ND) == len(taken.experts_N) == len(taken.steps_N) == 7
        assert all((sample.states_ND == row).all(1).any() for row in taken.states_ND)


def test_marked_words_get_the_weight_that_lies_on_them(subject: Subject) -> None:
    marks = {i: [0, 2] for i in range(0, len(subject.examples), 2)}
    totals, keeping = AttentionTotals(marks), Keeping()
    stream(subject.run, subject.examples, [totals, keeping], tokens_per_batch=40)
    module = SubLayerKey("decoder", 0, "cross_attention")
    expected, n = 0.0, 0
    for captured in keeping.captured:
        weights_BHTS = captured.output.stacks["decoder"].captures[(*module, "weights")]
        for row, index in enumerate(captured.batch.indices):
            if index in marks:
                kept_T = captured.ran("decoder", 0)[row]
                expected = expected + weights_BHTS[row][:, kept_T][..., [0, 2]].double().sum((1, 2)).numpy()
                n += int(kept_T.sum())
    assert totals.sums[module].n_marked == n
    np.testing.assert_allclose(totals.sums[module].marked_H, expected, rtol=1e-9)
    assert totals.sums[SubLayerKey("decoder", 0, "self_attention")].n_marked == 0
