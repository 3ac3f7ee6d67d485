"""transformers' Trainer and PEFT train wrapped models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra hf")
pytest.importorskip("accelerate", reason="needs the extra hf")

import runs
from torch import Tensor
from torch.nn import functional as F
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments

from ostinato.data.batch import Batch, Tokens
from ostinato.errors import ConfigError
from ostinato.hf.export import export_run, wrapped
from ostinato.hf.language_model import OstinatoForCausalLM
from ostinato.hf.outputs import IGNORED

RECOMPUTES = next(name for name in ("activation_checkpointing", "gradient_checkpointing")
                  if name in TrainingArguments.__dataclass_fields__)  # fmt: skip
"""The setting that keeps the states between steps only, which transformers 5.24 has renamed."""


def rows(seq2seq: bool) -> list[dict[str, list[int]]]:
    """Return sequences of a rule that is soon learned: one token again and again."""
    texts = [[4 + i % 8] * 6 for i in range(16)]
    if seq2seq:
        return [{"input_ids": ids, "attention_mask": [1] * 6, "labels": [*ids[:5], -100]} for ids in texts]
    return [{"input_ids": ids, "attention_mask": [1] * 6, "labels": ids} for ids in texts]


def collate(examples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    return {key: torch.tensor([one[key] for one in examples]) for key in examples[0]}


def labelled_rows(model: Any) -> list[dict[str, Any]]:
    """Return rows of a rule that a head soon learns: each label follows from a token, an answer is where token 4 is."""
    head, special = model.model.config.head.kind, [1, 2]
    rows = []
    for i in range(16):
        at = 1 + i % 6
        words = [5 + i % 7] * 6
        row: dict[str, Any] = {"input_ids": [special[0], *words, special[1]], "attention_mask": [1] * 8}
        if head == "span":
            row["input_ids"][at] = 4
            row |= {"start_positions": at, "end_positions": at}
        elif head == "masked":
            row["labels"] = [word if column == at else IGNORED for column, word in enumerate(row["input_ids"])]
            row["input_ids"][at] = model.model.mask_id
        elif head == "tagging":
            row["input_ids"][at] = 4
            row["labels"] = [IGNORED, *(int(column == at) for column in range(1, 7)), IGNORED]
        else:
            row["labels"] = i % 7 % 3
        rows.append(row)
    return rows


def trainer_of(model: Any, folder: Path, batch_size: int = 4, **settings: Any) -> Trainer:
    is_pair = model.config.is_encoder_decoder
    kinds = (Seq2SeqTrainer, Seq2SeqTrainingArguments) if is_pair else (Trainer, TrainingArguments)
    arguments = kinds[1](
        str(folder), per_device_train_batch_size=batch_size, report_to=[], use_cpu=True, disable_tqdm=True,
        logging_strategy="no", seed=3, **{"save_strategy": "no", "learning_rate": 3e-3, **settings},
    )  # fmt: skip
    data: Any = labelled_rows(model) if hasattr(model, "head") else rows(is_pair)
    return kinds[0](model=model, args=arguments, train_dataset=data, eval_dataset=data, data_collator=collate)


def plainly(model: Any, folder: Path, batch_size: int, **settings: Any) -> Trainer:
    """Return a Trainer of few plain gradient steps: Adam makes whole steps of gradients that are rounding errors."""
    how: dict[str, Any] = {"max_steps": 4, "train_sampling_strategy": "sequential", "optim": "sgd"}
    return trainer_of(model, folder, batch_size, **{**how, **settings})


def assert_same_weights(found: dict[str, Tensor], expected: dict[str, Tensor], atol: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=atol, msg=lambda said, name=name: f"{name}: {said}")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("experts", {}),
        pytest.param("pairs", {}, marks=pytest.mark.slow),
        *(pytest.param(name, {"bf16": True}, marks=pytest.mark.slow) for name in ("experts", "halting", "pairs")),
    ],
)
def test_trainer_learns_and_what_it_saves_is_the_same_model(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    model = wrapped(runs.make_run(name, tmp_path / "run"))
    trainer = trainer_of(model, tmp_path / "out", max_steps=24, gradient_accumulation_steps=2, **settings)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    assert after < 0.8 * before
    trainer.save_model(str(tmp_path / "saved"))
    assert (tmp_path / "saved" / "modeling_ostinato.py").is_file()
    again = type(model).from_pretrained(tmp_path / "saved")
    assert abs(trainer_of(again, tmp_path / "again", **settings).evaluate()["eval_loss"] - after) < 1e-5


def test_label_smoothing_of_trainer_is_of_the_next_tokens(tmp_path: Path) -> None:
    model = wrapped(runs.make_run("looped", tmp_path / "run"))
    trainer = trainer_of(model, tmp_path / "out", max_steps=1, label_smoothing_factor=0.1)
    ids = torch.tensor([[1, 5, 6, 7, 8], [1, 9, 4, 6, 5]])
    given = {"input_ids": ids, "labels": ids.clone()}
    with torch.no_grad():
        found = trainer.compute_loss(model.train(), dict(given))
        logits, labels = model(given["input_ids"]).logits[:, :-1], given["labels"][:, 1:]
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
    torch.testing.assert_close(found, expected)


def test_two_passes_may_come_before_their_gradients(tmp_path: Path) -> None:
    router = (
        "model.decoder.ffn={kind: experts, n_experts: 4, top_k: 2, d_ff: 8, router: {kind: hypersphere, d_router: 3}}"
    )
    model = wrapped(runs.make_run("looped", tmp_path / "run", router)).train()
    ids = torch.tensor([[1, 5, 6, 7], [1, 7, 5, 4]])
    (model(ids, labels=ids).loss + model(ids.flip(0), labels=ids.flip(0)).loss).backward()
    torch.optim.AdamW(model.parameters(), lr=0.1, fused=True).step()  # Trainer's: torch counts none of its writes
    norms = [one.router.experts_EC.norm(dim=1) for module in model.model.routed() for one in module.named_routers()]
    assert not all(torch.allclose(x, torch.tensor(0.1)) for x in norms)
    model(ids, labels=ids)
    for module in model.model.routed():
        for one in module.named_routers():
            torch.testing.assert_close(one.router.experts_EC.norm(dim=1), torch.full((4,), 0.1))


def test_several_gpus_in_one_process_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="start one process a GPU"):
        wrapped(runs.make_run("looped", tmp_path / "run"))._replicate_for_data_parallel()


WITH_COSTS = {
    "experts": "training.balance.switch=0.5",
    "halting": "training.halting.weight=0.5",
    "pairs": "training.halting.weight=0.5",
}
"""Runs whose loss has a part beside that of the labels, large enough to be seen in four updates."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "experts")) for name in WITH_COSTS]
)
def test_what_trainer_follows_has_the_costs_of_routing_and_depth(name: str, tmp_path: Path) -> None:
    run = runs.make_run(name, tmp_path / "run", WITH_COSTS[name])
    one, without = wrapped(run), wrapped(run)
    without.config.balance = without.config.halting = None
    for model, folder in ((one, "one"), (without, "without")):
        plainly(model, tmp_path / folder, 4, max_steps=1).train()
    # One plain step of the whole loss, by hand.
    expected = wrapped(run).train()
    training, given = run.recipe.training, collate(rows(run.model.config.has_two_sides)[:4])
    batch = batch_of(expected, given)
    costs = {"balance": training.balance, "halting": training.halting}
    expected.model.loss(batch, label_smoothing=training.label_smoothing, **costs).backward()
    torch.nn.utils.clip_grad_norm_(expected.parameters(), 1.0)
    with torch.no_grad():
        for parameter in expected.parameters():
            parameter.sub_(0 if parameter.grad is None else 3e-3 * parameter.grad)
    assert_same_weights(one.state_dict(), expected.state_dict(), 1e-7)
    apart = [float((x - without.state_dict()[key]).abs().max()) for key, x in one.state_dict().items()]
    assert max(apart) > 1e-5


def batch_of(model: Any, given: dict[str, Tensor]) -> Batch:
    """Return what `collate` made of rows as a batch of ours."""
    ids, labels = given["input_ids"], given["labels"]
    source = Tokens(ids, torch.ones_like(ids).bool())
    if model.config.is_encoder_decoder:
        target = torch.cat([torch.full_like(labels[:, :1], model.config.bos_token_id), labels[:, :-1]], dim=1)
        counts = labels != IGNORED
        keep = torch.cat([torch.ones_like(counts[:, :1]), counts[:, :-1]], dim=1)
        return Batch(Tokens(target.masked_fill(~keep, 0), keep), labels.clamp_min(0), counts, source=source)
    counts = torch.ones_like(ids).bool()
    counts[:, -1] = False
    return Batch(source, labels.roll(-1, 1), counts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("looped", {}),
        ("experts", {}),
        ("halting", {RECOMPUTES: True}),
        ("pairs", {}),
        ("pairs", {"bf16": True, RECOMPUTES: True}),
    ],
)
def test_two_processes_train_as_one_does_and_resume(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    run = runs.make_run(name, tmp_path / "run", *([WITH_COSTS[name]] if name in WITH_COSTS else []))
    export_run(run, tmp_path / "model")
    one = wrapped(run)
    # Costs are those of a batch: the same two batches are an update's, one process after the other.
    plainly(one, tmp_path / "one", 2, gradient_accumulation_steps=2, **settings).train()
    assert one.is_gradient_checkpointing == (RECOMPUTES in settings)
    program = Path(__file__).with_name("accelerated.py")
    # What `accelerate launch` starts for several processes of one machine.
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               str(program), str(tmp_path / "model"), str(tmp_path / "two"), runs.auto(run).__name__,
               json.dumps(settings)]  # fmt: skip
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "two" / "found.pt", weights_only=True)
    assert found["processes"] == 2
    assert_same_weights(found["whole"], one.state_dict(), 1e-7)
    assert_same_weights(found["resumed"], found["whole"], 1e-7)
    before = run.model.state_dict()
    assert max(float((found["whole"][f"model.{key}"] - x).abs().max()) for key, x in before.items()) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [("halting", {}), ("experts", {}), ("pairs", {}), ("experts", {"bf16": True}), ("pairs", {"bf16": True})],
)
def test_a_resumed_training_is_the_one_that_was_not_interrupted(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    run = runs.make_run(name, tmp_path / "run")
    whole = wrapped(run)
    trainer_of(whole, tmp_path / "whole", max_steps=6, **settings).train()
    trainer_of(wrapped(run), tmp_path / "parts", max_steps=6, save_strategy="steps", save_steps=3, **settings).train()
    resumed = wrapped(run)
    trainer_of(resumed, tmp_path / "parts", max_steps=6, **settings).train(
        resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-3")
    )
    assert_same_weights(resumed.state_dict(), whole.state_dict(), 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name != "classification")) for name in ("masked", *runs.HEADS)],
)
def test_heads_are_trained_evaluated_saved_and_resumed(name: str, tmp_path: Path) -> None:
    run = runs.make_run(name, tmp_path / "run")
    how: dict[str, Any] = {"max_steps": 30, "save_strategy": "steps", "save_steps": 15, "learning_rate": 1e-2}
    whole, resumed = wrapped(run), wrapped(run)
    trainer = trainer_of(whole, tmp_path / "out", **how)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    assert after < 0.5 * before
    trainer.save_model(str(tmp_path / "saved"))
    again = runs.auto(run).from_pretrained(tmp_path / "saved")
    assert abs(trainer_of(again, tmp_path / "again").evaluate()["eval_loss"] - after) < 1e-5
    checkpoint = str(tmp_path / "out" / "checkpoint-15")
    trainer_of(resumed, tmp_path / "parts", **how).train(resume_from_checkpoint=checkpoint)
    assert_same_weights(resumed.state_dict(), whole.state_dict(), 1e-6)


@pytest.mark.slow
def test_the_trainer_of_pairs_evaluates_what_the_model_writes(tmp_path: Path) -> None:
    run = runs.make_run("pairs", tmp_path / "run")
    model = wrapped(run)
    trainer = trainer_of(model, tmp_path / "out", predict_with_generate=True, generation_max_length=9)
    found = trainer.predict(trainer.eval_dataset)
    ids = torch.tensor([one["input_ids"] for one in rows(seq2seq=True)])
    expected = model.generate(ids, max_length=9)
    padding = found.predictions.shape[1] - expected.shape[1]  # transformers' own, to a length that it chooses
    assert torch.equal(
        torch.from_numpy(found.predictions), F.pad(expected, (0, padding), value=run.model.special_ids.pad)
    )
    assert found.metrics["test_loss"] == pytest.approx(trainer.evaluate()["eval_loss"])
    assert len({tuple(row) for row in expected.tolist()}) > 1


def gradients(model: Any) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model.train()
    model(**collate(rows(model.config.is_encoder_decoder))).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", ["looped", *WITH_COSTS])
def test_gradient_checkpointing_changes_no_gradient(name: str, tmp_path: Path) -> None:
    model = wrapped(runs.make_run(name, tmp_path / "run"))
    plain = gradients(model)
    model.gradient_checkpointing_enable() if not hasattr(
        model, "activation_checkpointing_enable"
    ) else model.activation_checkpointing_enable()
    assert model.is_gradient_checkpointing
    again = gradients(model)
    assert plain.keys() == again.keys()
    for name, expected in plain.items():
        torch.testing.assert_close(again[name], expected, rtol=0, atol=1e-6)


def test_lora_on_a_bank_acts_in_every_step_that_uses_it(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs the extra peft")
    run = runs.make_run("looped", tmp_path / "run")
    model = wrapped(run)
    assert isinstance(model, OstinatoForCausalLM)
    ids = torch.tensor([[1, 5, 6, 7]])
    with torch.no_grad():
        before = model(ids).logits
    target = "model.banks.ffn.decoder_0.up"
    tuned = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=[target], init_lora_weights=False))
    names = [name for name, p in tuned.named_parameters() if p.requires_grad]
    assert len(names) == 2
    assert all(target in name for name in names)
    with torch.no_grad():
        found = tuned(ids).logits
        written = tuned.generate(input_ids=ids, max_new_tokens=8, do_sample=False, top_k=None)[0, 4:].tolist()
    assert not torch.allclose(found, before)
    # With compiled kernels, which read weights, as without.
    for packs in (True, False):
        [mine] = tuned.base_model.model.model.generate(ids, max_length=8, pack_weights=packs)
        assert mine == (written[: written.index(2)] if 2 in written else written)
    merged = tuned.merge_and_unload()
    with torch.no_grad():
        torch.testing.assert_close(merged(ids).logits, found, rtol=0, atol=1e-5)


def test_ids_that_a_collator_makes_of_labels_are_padded_where_these_are(tmp_path: Path) -> None:
    model = wrapped(runs.make_run("pairs", tmp_path / "run", "training.halting.weight=0.5")).train()
    labels = torch.tensor([[5, 6, 2, -100, -100, -100], [-100, 8, 4, 9, 5, 2]])
    source = torch.tensor([[5, 6, 2], [7, 8, 2]])
    made = model.prepare_decoder_input_ids_from_labels(labels)
    expected = model(input_ids=source, labels=labels).loss
    found = model(input_ids=source, labels=labels, decoder_input_ids=made).loss
    all_real = torch.ones_like(made)
    counted = model(input_ids=source, labels=labels, decoder_input_ids=made, decoder_attention_mask=all_real).loss
    torch.testing.assert_close(found[None], expected[None])
    assert (counted - expected).abs().item() > 1e-4
    # Ids of one's own are all real, whatever the labels are.
    own, none = torch.tensor([[1, 7, 8, 9]]), torch.full((1, 4), -100)
    with torch.no_grad():
        model.eval()
        plain = model(input_ids=source[:1], decoder_input_ids=own).logits
        torch.testing.assert_close(model(input_ids=source[:1], decoder_input_ids=own, labels=none).logits, plain)


@pytest.mark.parametrize("name", ["halting", "experts", "pairs", "classification"])
def test_lora_on_every_map_is_what_is_merged(name: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs the extra peft")
    model, ids = wrapped(runs.make_run(name, tmp_path / "run")), torch.tensor([[1, 5, 6, 7]])
    config = peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    tuned = peft.get_peft_model(model, config).eval()
    given = {"input_ids": ids} | ({"decoder_input_ids": ids} if name == "pairs" else {})
    with torch.no_grad():
        found = tuned(**given).logits
        torch.testing.assert_close(tuned.merge_and_unload()(**given).logits, found, rtol=0, atol=1e-4)


def test_noise_on_embeddings_is_refused_and_gradients_of_inputs_are_not_needed(tmp_path: Path) -> None:
    model = wrapped(runs.make_run("language-model", tmp_path / "run"))
    model.enable_input_require_grads()
    model.disable_input_require_grads()
    with pytest.raises(ConfigError, match="neftune_noise_alpha, would change nothing"):
        trainer_of(model, tmp_path / "out", max_steps=1, neftune_noise_alpha=5.0).train()
