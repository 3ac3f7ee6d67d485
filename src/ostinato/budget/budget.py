"""All counts of one model together, with what was assumed for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ostinato.budget.depth import ExpectedDepth, expected_depths
from ostinato.budget.macs import MacCount, count_macs, kaplan_forward_flops
from ostinato.budget.memory import ByteCount, Precision, count_bytes
from ostinato.budget.parameters import ParameterCount, count_parameters
from ostinato.budget.sizes import TopK, chosen_experts, plans
from ostinato.config.measures import FigureName
from ostinato.config.model import ModelConfig
from ostinato.config.positions import LearnedConfig
from ostinato.config.training import RoundLossConfig

_OF_BYTES = ("batch_size", "beam", "precision", "checkpoint_activations", "cached_rounds")


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What a budget is counted for.

    Args:
        source_length, target_length: tokens of every sentence; a generated token sees `target_length` of them.
        batch_size, beam, precision, checkpoint_activations, cached_rounds: of the bytes; see `count_bytes`. MACs are
            those of one sentence.
        round_loss: says how many of the rounds that a model runs predict with a gradient; of the bytes.
        expected_depth: rounds per token by stack, of the MACs; a stack that is not named runs all of them.
        n_steps: rounds at call time; None: the plans' own.
    """

    source_length: int = 32
    target_length: int = 32
    batch_size: int = 1
    beam: int = 1
    precision: Precision = "float32"
    checkpoint_activations: bool = False
    cached_rounds: int | None = None
    round_loss: RoundLossConfig = field(default_factory=RoundLossConfig)
    expected_depth: Mapping[str, float] | None = None
    n_steps: int | None = None


def lengths_without_positions(config: ModelConfig, assumed: Assumptions) -> Iterator[str]:
    """Yield a line for every stack that reads more tokens than it has learned positions for: they can be counted, but
    not run."""
    for name, stack in config.stacks().items():
        length = assumed.source_length if config.side_of(name) == "source" else assumed.target_length
        if isinstance(stack.positions, LearnedConfig) and length > stack.positions.max_length:
            where = f"model.{name}.positions.max_length is {stack.positions.max_length}"
            yield f"{where}, and {length} tokens are counted, which the model cannot read: count fewer, or raise it"


@dataclass(frozen=True, slots=True)
class Budget:
    """What a model stores, touches, executes and keeps.

    Args:
        depth: of every stack: assumed where tokens may halt. experts: that a token gets, by routed sub-layer
            (``<stack>.<kind>``, ``<stack>.sparse_layer``). assumptions: what else the counts are for.
        n_predictions: rounds whose predictions have a gradient.
        kaplan_flops: a token's C_forward at `target_length`, see `kaplan_forward_flops`; None where it says nothing.
    """

    parameters: ParameterCount
    macs: MacCount
    kaplan_flops: int | None
    bytes: ByteCount
    depth: dict[str, ExpectedDepth]
    experts: dict[str, TopK]
    assumptions: Assumptions
    n_predictions: int
    has_two_sides: bool

    def figure(self, name: FigureName) -> int:
        """Return the number two models are compared by."""
        parameters, macs, memory = self.parameters, self.macs, self.bytes
        match name:
            case "parameters":
                return parameters.stored
            case "active" | "executed":
                return int(getattr(parameters, name))
            case "macs":
                return macs.total
            case "macs_without_attention":
                return macs.without_attention
            case "macs_per_generated_token":
                return macs.per_generated_token
            case "bytes":
                return memory.weights + memory.activations + memory.cache
            case "weights" | "activations" | "cache":
                return int(getattr(memory, name))

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data: parameters, macs, bytes, assumptions."""
        p, m, b, a = self.parameters, self.macs, self.bytes, self.assumptions
        if not self.has_two_sides:
            per_token = {"per_token": m.per_token}
        else:
            per_token = {"per_source_token": m.per_source_token, "per_target_token": m.per_target_token}
        macs = per_token | {
            "per_generated_token": m.per_generated_token,
            "by_part": m.by_part,
            "total": m.total,
            "without_attention": m.without_attention,
        }
        depth = {
            stack: {"expected": d.expected, "counted": d.counted, "rounds": d.rounds, "halting": d.halting}
            for stack, d in self.depth.items()
        }
        return {
            "parameters": {"stored": p.stored, "active": p.active, "executed": p.executed, "by_part": p.by_part},
            "macs": macs,
            "kaplan_flops": self.kaplan_flops,
            "bytes": {"weights": b.weights, "activations": b.activations, "cache": b.cache},
            "assumptions": {
                "depth": depth,
                "experts": {
                    part: {"k": chosen.top_k, "n_experts": chosen.n_experts} for part, chosen in self.experts.items()
                },
                "source_length": a.source_length if self.has_two_sides else None,
                "target_length": a.target_length,
                **{name: getattr(a, name) for name in _OF_BYTES},
                "n_predictions": self.n_predictions,
            },
        }


def count_budget(config: ModelConfig, assumptions: Assumptions | None = None) -> Budget:
    """Return the parameters, multiply-accumulates and bytes of a model whose vocabulary sizes are set.

    Raises:
        ConfigError: see `count_parameters`, `count_macs`, `count_bytes` and `expected_depths`.
    """
    a = assumptions or Assumptions()
    length = a.source_length if config.has_two_sides else a.target_length
    depth = expected_depths(config, a.expected_depth, n_steps=a.n_steps, source_length=length)
    n_predictions = a.round_loss.n_predictions(plans(config, a.n_steps))
    return Budget(
        parameters=count_parameters(config, n_steps=a.n_steps),
        macs=count_macs(config, a.source_length, a.target_length, n_steps=a.n_steps, expected_depth=a.expected_depth),
        kaplan_flops=kaplan_forward_flops(config, a.target_length, n_steps=a.n_steps),
        bytes=count_bytes(
            config,
            a.source_length,
            a.target_length,
            **{name: getattr(a, name) for name in _OF_BYTES},
            n_predictions=n_predictions,
            n_steps=a.n_steps,
        ),
        depth=depth,
        experts=chosen_experts(config),
        assumptions=a,
        n_predictions=n_predictions,
        has_two_sides=config.has_two_sides,
    )
