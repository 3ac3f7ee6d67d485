"""Train a looped language model here, and let transformers write with it: python examples/serve_with_transformers.py"""

import sys
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

import ostinato
import ostinato.hf
from ostinato.hf.export import export_run

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out/serve")
folder.mkdir(parents=True, exist_ok=True)
text = folder / "text.txt"
text.write_text("the old man went to the sea\nthe young man went to the old sea\n" * 200, encoding="utf-8")
loop = "{n_steps: 1, segments: [{n_steps: 1, repeats: 4}], self_attention: {n_heads: 2}, ffn: {d_ff: 64}}"
recipe = ostinato.load_recipe(
    "lm/transformer",
    [f"data.train={text}", f"data.dev={text}", "data.tokenizer={kind: words}", "data.block_length=32",
     "model.d_model=32", f"model.decoder={loop}", "training.n_updates=40", "training.evaluate_every=40",
     "training.save_every=40", "training.schedule.warmup=5", "training.optimizer.lr=0.01",
     "training.selection.max_examples=20", "evaluation.max_examples=20"],
)  # fmt: skip
ostinato.train(recipe, folder / "run")
export_run(ostinato.load(folder / "run"), folder / "model")

model = AutoModelForCausalLM.from_pretrained(folder / "model")
tokenizer = AutoTokenizer.from_pretrained(folder / "model", padding_side="left")
batch = tokenizer(["the old", "the young man"], return_tensors="pt", padding=True)
for n_steps in (1, 4):
    written = model.generate(**batch, max_new_tokens=6, do_sample=False, n_steps=n_steps)
    print(n_steps, tokenizer.batch_decode(written, skip_special_tokens=True))
