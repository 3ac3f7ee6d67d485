"""Train a model of ours by the Trainer of transformers: python examples/train_with_trainer.py"""

import sys

import torch
from transformers import Trainer, TrainingArguments

import ostinato
from ostinato.hf import OstinatoConfig, OstinatoForCausalLM

folder = sys.argv[1] if len(sys.argv) > 1 else "examples-out/trainer"
loop = ostinato.StackConfig(
    n_steps=1, segments=[{"n_steps": 1, "repeats": 3}], self_attention={"n_heads": 2}, ffn={"d_ff": 64}
)
config = ostinato.LanguageModelConfig(d_model=32, vocab_size=20, decoder=loop)
torch.manual_seed(1)
model = OstinatoForCausalLM(OstinatoConfig(model=config.model_dump(mode="json")))

rows = [torch.arange(4 + i, 12 + i) for i in range(8)]  # one number after the other
data = [{"input_ids": row, "labels": row} for row in rows]
arguments = TrainingArguments(
    folder, max_steps=80, learning_rate=1e-2, per_device_train_batch_size=8, report_to=[], use_cpu=True, save_steps=80
)
trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data)
print("before", trainer.evaluate()["eval_loss"])
trainer.train()
print("after", trainer.evaluate()["eval_loss"])
print(model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, do_sample=False)[0].tolist())
