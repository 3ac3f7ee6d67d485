"""Score minimal pairs by lm-eval, as `ostinato evaluate` does: python examples/score_with_lm_eval.py"""

import sys
from pathlib import Path

import ostinato
from ostinato.hf.harness import score
from ostinato.hf.harness_tasks import write_tasks

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out/lm-eval")
loop = "{n_steps: 1, segments: [{n_steps: 1, repeats: 3}], self_attention: {n_heads: 2}, ffn: {d_ff: 64}}"
recipe = ostinato.load_recipe(
    "lm/transformer",
    ["task={kind: agreement, n_train: 2000, n_eval: 20, max_attractors: 2}", "data.tokenizer={kind: words}",
     "data.block_length=null", "model.d_model=32", f"model.decoder={loop}", "training.n_updates=40",
     "training.evaluate_every=40", "training.save_every=40", "training.schedule.warmup=5",
     "training.optimizer.lr=0.01", "evaluation.splits=[test]"],
)  # fmt: skip
ostinato.train(recipe, folder / "run")
run = ostinato.load(folder / "run")
[task] = write_tasks(run, folder / "tasks", ["test"])  # a YAML file, and its documents as JSON lines
for n_steps in (1, 3):
    found = score(run, [str(task)], n_steps=n_steps)["results"]["ostinato_agreement_test"]
    ours = run.evaluate("test", n_steps=n_steps)["ranking"]["accuracy"]
    print(f"{n_steps} rounds: lm-eval {found['acc,none']:.4f}, ostinato evaluate {ours:.4f}")
