"""transformers' Trainer and PEFT train wrapped models."""

from __future__ import annotations

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
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments

from ostinato.hf.export import export_run, wrapped
from ostinato.hf.language_model import OstinatoForCausalLM


def rows(seq2seq: bool) -> list[dict[str, list[int]]]:
    """Return sequences of a rule that is soon learned: one token again and again."""
    texts = [[4 + i % 8] * 6 for i in range(16)]
    if seq2seq:
        return [{"input_ids": ids, "attention_mask": [1] * 6, "labels": [*ids[:5], -100]} for ids in texts]
    return [{"input_ids": ids, "attention_mask": [1] * 6, "labels": ids} for ids in texts]


def collate(examples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    return {key: torch.tensor([one[key] for one in examples]) for key in examples[0]}


def trainer_of(model: Any, folder: Path, batch_size: int = 4, **settings: Any) -> Trainer:
    is_pair = model.config.is_encoder_decoder
    kinds = (Seq2SeqTrainer, Seq2SeqTrainingArguments) if is_pair else (Trainer, TrainingArguments)
    arguments = kinds[1](
        str(folder), per_device_train_batch_size=batch_size, learning_rate=3e-3, report_to=[], use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no", save_strategy="no", seed=3, **settings,
    )  # fmt: skip
    data: Any = rows(is_pair)
    return kinds[0](model=model, args=arguments, train_dataset=data, eval_dataset=data, data_collator=collate)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("experts", {}),
        pytest.param("pairs", {}, marks=pytest.mark.slow),
        pytest.param("halting", {"bf16": True}, marks=pytest.mark.slow),
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
    again = type(model).from_pretrained(tmp_path / "saved")
    assert abs(trainer_of(again, tmp_path / "again", **settings).evaluate()["eval_loss"] - after) < 1e-5


@pytest.mark.slow
def test_two_processes_of_accelerate_train_as_one_does(tmp_path: Path) -> None:
    run = runs.make_run("looped", tmp_path / "run")
    export_run(run, tmp_path / "model")
    one = wrapped(run)
    # Plain gradient steps: Adam makes whole steps of gradients that are rounding errors.
    trainer_of(one, tmp_path / "one", max_steps=4, train_sampling_strategy="sequential", optim="sgd").train()
    program = Path(__file__).with_name("accelerated.py")
    # What `accelerate launch` starts for several processes of one machine.
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               str(program), str(tmp_path / "model"), str(tmp_path / "two"), "2"]  # fmt: skip
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "two" / "found.pt", weights_only=True)
    assert found["processes"] == 2
    two = found["weights"]
    before = run.model.state_dict()
    for name, expected in one.state_dict().items():
        torch.testing.assert_close(two[name], expected, rtol=0, atol=1e-7)
    assert max(float((two[f"model.{name}"] - x).abs().max()) for name, x in before.items()) > 1e-3


@pytest.mark.slow
def test_a_resumed_training_is_the_one_that_was_not_interrupted(tmp_path: Path) -> None:
    run = runs.make_run("halting", tmp_path / "run")
    whole = wrapped(run)
    trainer_of(whole, tmp_path / "whole", max_steps=6).train()
    first = trainer_of(wrapped(run), tmp_path / "parts", max_steps=6)
    first.args.save_strategy, first.args.save_steps = "steps", 3
    first.train()
    resumed = wrapped(run)
    trainer_of(resumed, tmp_path / "parts", max_steps=6).train(
        resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-3")
    )
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(dict(resumed.named_parameters())[name], parameter, rtol=0, atol=1e-6)


def gradients(model: Any) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model.train()
    model(**collate(rows(seq2seq=False))).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_gradient_checkpointing_changes_no_gradient(tmp_path: Path) -> None:
    model = wrapped(runs.make_run("looped", tmp_path / "run"))
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
