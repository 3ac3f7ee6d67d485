"""What one would write with torch alone: read pairs, build a vocabulary and a transformer, do one update, say so.

python benchmarks/startup_torch.py PAIRS.jsonl WIDTH STEPS THREADS
"""

import json
import math
import sys
from pathlib import Path

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, vocabulary: int, width: int, steps: int) -> None:
        super().__init__()
        self.source = nn.Embedding(vocabulary, width)
        self.target = nn.Embedding(vocabulary, width)
        self.body = nn.Transformer(width, 8, steps, steps, 4 * width, 0.1, batch_first=True)
        self.width = width

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        source, target = (self.place(states) for states in (self.source(source), self.target(target)))
        return self.body(source, target, tgt_mask=mask, tgt_is_causal=True) @ self.target.weight.t()

    def place(self, states):
        time = torch.arange(states.shape[1])[:, None]
        angles = time * torch.exp(torch.arange(0, self.width, 2) * (-math.log(10000.0) / self.width))
        signal = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
        return nn.functional.dropout(states * math.sqrt(self.width) + signal, 0.1)


def main() -> None:
    path, width, steps, threads = Path(sys.argv[1]), *map(int, sys.argv[2:])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    pairs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    words = sorted({word for pair in pairs for text in pair.values() for word in text.split()})
    ids = {word: number for number, word in enumerate(words, 4)}
    batch = pairs[:40]  # 25 tokens each, the end included: about 1,024
    source = torch.tensor([[ids[word] for word in pair["source"].split()] + [2] for pair in batch])
    target = torch.tensor([[1] + [ids[word] for word in pair["target"].split()] + [2] for pair in batch])
    model = Model(len(words) + 4, width, steps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    logits = model(source, target[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"update 1: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
