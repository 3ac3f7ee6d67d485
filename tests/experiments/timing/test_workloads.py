from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_candidates import language_model, seq2seq
from torch import Tensor

from ostinato.config.model import LanguageModelConfig
from ostinato.config.training import TrainingConfig
from ostinato.data.tokenizer import BOS_ID, EOS_ID
from ostinato.decoding.beams import Hypothesis
from ostinato.errors import ConfigError
from ostinato.experiments.timing.workloads import Bench, Endless, TimedModel, Workload, random_batch
from ostinato.models.losses import label_smoothed_loss
from ostinato.training.optim import build_optimizer, learning_rate, set_learning_rate

CPU = torch.device("cpu")
CANDIDATES = [seq2seq(), language_model(), language_model("prefix", "prefix")]


@pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda c: c.name)
@pytest.mark.parametrize("beam", [1, 3])
def test_every_search_generates_the_length_asked_for(candidate: TimedModel, beam: int) -> None:
    bench = Bench(candidate, CPU)
    # An end symbol that the model finds certain at every step: only its removal lets the search go on.
    with torch.no_grad():
        bench.model.output_projection[EOS_ID] = 100.0 * bench.model.output_projection.abs().sum(0)
    found = bench.call(Workload("decoding", batch_size=3, source_length=4, target_length=7, beam=beam))()
    assert isinstance(found, list)
    assert [len(h.ids) for h in found] == [7, 7, 7]
    assert all(isinstance(h, Hypothesis) and not h.finished for h in found)
    assert all(EOS_ID not in h.ids and BOS_ID not in h.ids for h in found)


@pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda c: c.name)
def test_a_search_takes_one_step_for_the_prompt_and_one_for_every_token_but_the_last(
    candidate: TimedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[tuple[int, int]] = []
    step = Endless.step

    def counted(self: Endless, ids_BT: Tensor, *more: object) -> Tensor:
        shapes.append((ids_BT.shape[0], ids_BT.shape[1]))
        return step(self, ids_BT, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Endless, "step", counted)
    Bench(candidate, CPU).call(Workload("decoding", 2, source_length=4, target_length=5, beam=3))()
    prompt = 1 if candidate.name == "seq2seq" else 4 + 1
    assert shapes == [(2, prompt), *[(6, 1)] * 4]


def test_all_models_of_a_kind_get_the_same_ids() -> None:
    workload = Workload("forward", 3, 4, 5)
    one, other = (random_batch(c.model, workload, seed=2) for c in (seq2seq(), seq2seq("deep", n_steps=3)))
    assert one.source is not None
    assert other.source is not None
    assert torch.equal(one.source.ids_BT, other.source.ids_BT)
    assert torch.equal(one.labels_BT, other.labels_BT)
    assert int(one.labels_BT.min()) >= 4
    assert torch.equal(one.target.ids_BT[:, 1:], one.labels_BT[:, :-1])
    assert one.target.ids_BT[:, 0].tolist() == [BOS_ID] * 3
    assert one.n_labels == workload.n_tokens == 15


def test_a_language_model_reads_source_and_target_as_one_and_learns_from_the_target() -> None:
    batch = random_batch(CANDIDATES[2].model, Workload("update", 2, 4, 5), seed=1)
    assert batch.source is None
    assert batch.target.ids_BT.shape == (2, 9)
    assert batch.target.ids_BT[:, 4].tolist() == [BOS_ID] * 2
    assert torch.equal(batch.target.ids_BT[:, 5:], batch.labels_BT[:, 4:8])
    assert batch.loss_mask_BT.tolist() == [[False] * 4 + [True] * 5] * 2
    assert batch.prefix_lengths_B is not None
    assert batch.prefix_lengths_B.tolist() == [4, 4]
    text = random_batch(CANDIDATES[1].model, Workload("update", 2, 0, 5), seed=1)
    assert (text.n_labels, text.prefix_lengths_B) == (10, None)


def test_an_update_is_trainings_own() -> None:
    training = TrainingConfig(label_smoothing=0.1, clip_norm=0.01)
    candidate = TimedModel("one", seq2seq().model.model_copy(update={"dropout": 0.0}), training)
    workload = Workload("update", 2, 4, 5)
    bench = Bench(candidate, CPU)
    call = bench.call(workload)
    call()
    call()
    twin = Bench(candidate, CPU).model
    optimizer = build_optimizer(twin, training.optimizer)
    batch = random_batch(candidate.model, workload, seed=1)
    for update in (1, 2):
        loss = label_smoothed_loss(twin(batch).logits_BTV, batch.labels_BT, batch.loss_mask_BT, 0.1).loss
        (loss / batch.n_labels).backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.01)
        set_learning_rate(
            optimizer, learning_rate(training.optimizer, training.schedule, update, training.n_updates, 8)
        )
        optimizer.step()
        optimizer.zero_grad()
    for mine, theirs in zip(bench.model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


def test_timed_updates_run_the_rounds_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: dict[str, Any] = {"kind": "uniform", "most": 9, "gradient_rounds": 1}
    training = TrainingConfig.model_validate({"rounds": rounds})
    shared = {"n_steps": 3, "self_attention": {"n_heads": 2, "share": "all"}, "ffn": {"d_ff": 8, "share": "all"}}
    config = {"d_model": 8, "vocab_size": 9, "dropout": 0.0, "decoder": shared}
    bench = Bench(TimedModel("drawn", LanguageModelConfig.model_validate(config), training), CPU)
    seen: list[tuple[object, object]] = []
    run = type(bench.model).__call__

    def noted(model: Any, *args: Any, **named: Any) -> Any:
        seen.append((model.n_rounds(), model.current_execution.gradient_rounds))
        return run(model, *args, **named)

    monkeypatch.setattr(type(bench.model), "__call__", noted)
    call = bench.call(Workload("update", 2, 0, 5))
    call()
    call()
    assert seen == [({"decoder": 3}, 1)] * 2


def test_a_pass_changes_nothing_and_leaves_the_model_in_its_mode() -> None:
    bench = Bench(seq2seq(), CPU)
    before = [p.detach().clone() for p in bench.model.parameters()]
    logits_BTV = bench.call(Workload("forward", 2, 4, 5))()
    assert isinstance(logits_BTV, Tensor)
    assert logits_BTV.shape == (2, 5, 11)
    assert not logits_BTV.requires_grad
    assert bench.model.training
    assert all(torch.equal(a, b) for a, b in zip(before, bench.model.parameters(), strict=True))


def test_weights_come_from_the_seed_and_leave_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    one, same, other = (next(Bench(seq2seq(), CPU, seed).model.parameters()) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_impossible_work_is_a_named_error() -> None:
    with pytest.raises(ConfigError) as error:
        Workload("decoding", 0, -1, 0, beam=0)
    assert [problem.key for problem in error.value.problems] == [
        "workload.batch_size",
        "workload.source_length",
        "workload.target_length",
        "workload.beam",
    ]
    with pytest.raises(ConfigError, match=r"source_length is 0: must be at least 1 for an encoder-decoder model"):
        random_batch(seq2seq().model, Workload("forward", 1, 0, 5), seed=1)
    small = language_model().model.model_copy(update={"vocab_size": 4})
    with pytest.raises(ConfigError, match="must be above 4"):
        random_batch(small, Workload("forward", 1, 0, 5), seed=1)
