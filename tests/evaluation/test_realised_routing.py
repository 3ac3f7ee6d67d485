"""What an evaluation says about routers, against a plain loop over single tokens."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from toy_task import DATA, letter_examples, letter_tokenizers, tiny_seq2seq

from ostinato.cli.results import print_splits
from ostinato.config.decoding import DecodingConfig
from ostinato.config.experts import ExpertFeedForwardConfig
from ostinato.data.collate import collate
from ostinato.data.rows import encode_examples
from ostinato.evaluation import evaluate
from ostinato.evaluation.routing import RoutingTotals, routing_sums
from ostinato.experiments.results import table
from ostinato.models import Seq2Seq
from ostinato.nn.types import Routing

GREEDY = DecodingConfig(max_length=8)
EXPERTS = {"encoder": (5, 2), "decoder": (3, 1)}


@pytest.fixture(scope="module")
def model() -> Seq2Seq:
    dense = tiny_seq2seq(letter_tokenizers().target.vocab_size).config
    stacks = {
        name: getattr(dense, name).model_copy(
            update={"ffn": ExpertFeedForwardConfig(n_experts=n, top_k=k, d_ff=8, share="all")}
        )
        for name, (n, k) in EXPERTS.items()
    }
    return Seq2Seq(dense.model_copy(update=stacks)).eval()


def numbers(model: Seq2Seq, n: int, size: int, n_steps: int | None = None) -> dict[str, Any]:
    data = DATA.model_copy(update={"eval_tokens_per_batch": size})
    tokenizers = letter_tokenizers()
    return evaluate(model, letter_examples(n), tokenizers, data=data, decoding=GREEDY, metrics=[], n_steps=n_steps)


@torch.no_grad()
def by_hand(model: Seq2Seq, n: int, n_steps: int | None = None) -> dict[str, dict[str, Any]]:
    """Every example by itself, without padding, every token of every round in a loop."""
    counts = {name: [0] * experts for name, (experts, _) in EXPERTS.items()}
    entropies: dict[str, list[float]] = {name: [] for name in EXPERTS}
    for row in encode_examples(letter_examples(n), letter_tokenizers(), DATA, training=False, name="dev"):
        for name, stack in model(collate([row]), n_steps=n_steps).stacks.items():
            for routing in stack.routings:
                for probs, chosen in zip(routing.probs_NE.tolist(), routing.experts_NK.tolist(), strict=True):
                    entropies[name].append(-sum(p * math.log(p) for p in probs))
                    for expert in chosen:
                        counts[name][expert] += 1
    found = {}
    for name, (_, k) in EXPERTS.items():
        load = [count / sum(counts[name]) for count in counts[name]]
        found[f"ffn.{name}_0"] = {
            "load": pytest.approx(load),
            "load_entropy": pytest.approx(-sum(p * math.log(p) for p in load if p)),
            "row_entropy": pytest.approx(sum(entropies[name]) / len(entropies[name]), abs=1e-5),
            "n_dead": load.count(0.0),
            "experts_per_token": k,
        }
    return found


@pytest.mark.parametrize("size", [1, 37, 10_000])
def test_realised_routing_equals_a_loop_over_tokens_and_rounds_for_every_batch_size(model: Seq2Seq, size: int) -> None:
    assert numbers(model, 12, size)["routing"] == by_hand(model, 12)


def test_realised_routing_covers_the_rounds_that_ran(model: Seq2Seq) -> None:
    found = numbers(model, 5, 64, n_steps=4)
    assert found["depth"] == {"encoder": 4.0, "decoder": 4.0}
    assert found["routing"] == by_hand(model, 5, n_steps=4)


def test_rows_count_by_their_weight_and_halted_ones_get_no_expert() -> None:
    probs_NE = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]])
    experts_NK, weight_N = torch.tensor([[0], [1], [1]]), torch.tensor([1.0, 0.25, 0.0])
    rows = Routing("r", "encoder", 0, probs_NE, probs_NE, experts_NK, probs_NE[:, :1], weight_N, torch.arange(3))
    totals = RoutingTotals()
    for _ in range(2):
        totals.add(routing_sums({"r": [rows]}))
    [found] = totals.compute().values()
    assert found["load"] == pytest.approx([0.8, 0.2])
    assert found["row_entropy"] == pytest.approx(0.2 * math.log(2))
    assert found["experts_per_token"] == 1.0


def test_sums_over_many_steps_take_the_memory_of_one_step() -> None:
    class Largest(TorchDispatchMode):
        """Notes the size of the largest tensor that is made."""

        n = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            if isinstance(found, torch.Tensor):
                self.n = max(self.n, found.numel())
            return found

    probs_NE = torch.full((200, 10), 0.1)
    numbers = probs_NE, probs_NE, torch.arange(200)[:, None] % 10, probs_NE[:, :1], torch.ones(200), torch.arange(200)
    with Largest() as largest:
        sums = routing_sums({"r": [Routing("r", "encoder", step, *numbers) for step in range(30)]})
    assert float(sums["r"][0]) == 6000
    assert largest.n == probs_NE.numel()


def test_a_model_without_routers_has_no_routing(capsys: pytest.CaptureFixture[str]) -> None:
    result = numbers(tiny_seq2seq(letter_tokenizers().target.vocab_size), 3, 64)
    assert "routing" not in result
    print_splits({"dev": result})
    assert "router" not in capsys.readouterr().out


def test_results_with_routing_are_shown_and_tabled_beside_old_ones(
    model: Seq2Seq, capsys: pytest.CaptureFixture[str]
) -> None:
    result = json.loads(json.dumps(numbers(model, 12, 64)))
    old = {key: value for key, value in result.items() if key != "routing"}
    print_splits({"old": old, "new": result})
    out = capsys.readouterr().out
    scores, routers = out.split("new: router")
    assert "load" not in scores
    [line] = [line for line in routers.splitlines() if line.strip().startswith("ffn.encoder_0")]
    found = result["routing"]["ffn.encoder_0"]
    evenness = found["load_entropy"] / math.log(5)
    shown = ["ffn.encoder_0", "5", "2", f"{evenness:.4g}", f"{found['row_entropy']:.4g}", str(found["n_dead"])]
    assert line.split() == shown
    row = {"name": "x", "seed": 1, "parameters": 1, "macs": {"total": 1}, "seconds": 1.0}
    columns, lines = table([row | {"splits": {"old": old, "new": result}}])
    assert "routing" not in columns
    assert lines[0][6:] == lines[1][6:]
