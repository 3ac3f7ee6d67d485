"""Import a Llama, make a loop of its layers, and train it on: python examples/loop_a_llama.py [OUT] [MODEL]

Without a MODEL, which has an even number of layers, it is a small one with random weights: nothing is fetched.
"""

import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import ostinato
from ostinato.training.converted import convert_run
from ostinato.training.imported import import_run

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out/llama")
folder.mkdir(parents=True, exist_ok=True)
source = sys.argv[2] if len(sys.argv) > 2 else folder / "llama"
if len(sys.argv) < 3:
    words = ["<pad>", "<s>", "</s>", "<unk>", "the", "old", "man", "went", "to", "sea"]
    content = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    content.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=content, unk_token="<unk>").save_pretrained(source)
    sizes = {"vocab_size": 10, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
    config = LlamaConfig(**sizes, num_attention_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    LlamaForCausalLM(config).save_pretrained(source)
(text := folder / "text.txt").write_text("the old man went to the sea\n" * 100, encoding="utf-8")

print("dense:", import_run(str(source), folder / "dense").model.n_parameters())
dense = ostinato.load(folder / "dense")
n = dense.recipe.model.decoder.n_steps // 2  # half of the layers, each of which runs twice
loop = [f"model.decoder.n_steps={n}", f"model.decoder.segments=[{{n_steps: {n}, repeats: 2, delta_rank: 2}}]"]
print("looped:", convert_run(dense, loop, folder / "looped").model.n_parameters())
heal = [f"training.init_from={folder / 'looped'}", "training.n_updates=30", "training.schedule.warmup=3"]
heal += [f"data.train={text}", f"data.dev={text}", "training.evaluate_every=30", "training.save_every=30"]
ostinato.train(ostinato.load_recipe(folder / "looped", heal), folder / "healed")
for name in ("dense", "looped", "healed"):
    print(name, ostinato.load(folder / name, overrides=heal[3:5]).evaluate("dev", max_examples=10)["perplexity"])
