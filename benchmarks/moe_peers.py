"""Public mixtures of feed-forwards: of transformers, st-moe-pytorch and mixture-of-experts, where they are installed.

Each is built for a cell's sizes as its package builds it, its router's matrix replaced by the cell's. Gated experts
have two thirds of the hidden units. Weights are random: only their shapes matter for the time.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from functools import partial

import torch
from layers import Absent, Contestant, layer
from moe_layers import Work
from torch import Tensor, nn

_FEW_TOKENS = 256
"""batched_mm copies an expert's weights for every token: 17 GiB for 4,096 of them."""

_PACKAGES = {"st-moe": "st_moe_pytorch", "mixture-of-experts": "mixture_of_experts"}
"""Those that are not of transformers."""
DROPS = "drops tokens"
"""Noted of those that do less work: tokens beyond an expert's capacity are left out."""
MIXTRAL = ("eager", "grouped_mm", "batched_mm")


def peers(work: Work) -> Iterator[Contestant | Absent]:
    """Yield every peer that can do a cell's work, and why others cannot."""
    builders: dict[str, Callable[[Work], Contestant]] = {
        **{f"HF Mixtral {kind}": partial(mixtral, implementation=kind) for kind in MIXTRAL},
        "HF Switch": switch,
        "st-moe": st_moe,
        "mixture-of-experts": mixture_of_experts,
    }
    for name, build in builders.items():
        if (reason := _unfit(name, work)) is not None:
            yield Absent(name, reason)
            continue
        try:
            yield build(work)
        except Exception as error:  # Others' code, of any version: it is named and left out.
            yield Absent(name, f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")


def _unfit(name: str, work: Work) -> str | None:
    package = _PACKAGES.get(name, "transformers")
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed"
    k, n_tokens = work.cell.k, work.cell.n_tokens
    if name == "HF Mixtral batched_mm" and n_tokens > _FEW_TOKENS:
        return f"copies weights for every token: only up to {_FEW_TOKENS} tokens"
    if name == "HF Switch" and k != 1:
        return "knows k = 1 only"
    if name == "st-moe" and k == 1:
        return "knows k >= 2 only"
    if name == "mixture-of-experts" and k != 2:
        return "knows k = 2 only"
    return None


def mixtral(work: Work, implementation: str) -> Contestant:
    """Mixtral's block: SiLU-gated experts, dropless."""
    found = importlib.import_module("transformers.models.mixtral.modeling_mixtral")
    cell = work.cell
    config = found.MixtralConfig(
        hidden_size=cell.d_model,
        intermediate_size=cell.d_gated,
        num_local_experts=cell.n_experts,
        num_experts_per_tok=cell.k,
    )
    config._experts_implementation = implementation
    block = found.MixtralSparseMoeBlock(config)
    return _layer(f"HF Mixtral {implementation}", work, block, lambda: block.gate.weight, note="gated")


def switch(work: Work) -> Contestant:
    """Switch Transformer's block: one expert a token, with room for all."""
    found = importlib.import_module("transformers.models.switch_transformers.modeling_switch_transformers")
    cell = work.cell
    config = found.SwitchTransformersConfig(
        d_model=cell.d_model,
        d_ff=cell.d_ff,
        num_experts=cell.n_experts,
        expert_capacity=cell.n_tokens,
        router_jitter_noise=0.0,
        dropout_rate=0.0,
    )
    block = found.SwitchTransformersSparseMLP(config)
    return _layer("HF Switch", work, block, lambda: block.router.classifier.weight)


def st_moe(work: Work) -> Contestant:
    """ST-MoE's block: GEGLU experts; tokens beyond an expert's capacity are dropped."""
    found = importlib.import_module("st_moe_pytorch")
    cell = work.cell
    mult = (cell.d_gated + 0.01) * 1.5 / cell.d_model  # It takes two thirds of this, rounded down.
    block = found.MoE(cell.d_model, num_experts=cell.n_experts, gating_top_n=cell.k, expert_hidden_mult=mult)
    note = f"gated; {DROPS}"
    return _layer("st-moe", work, block, lambda: block.gate.to_gates.weight, run=lambda x: block(x)[0], note=note)


def mixture_of_experts(work: Work) -> Contestant:
    """Two experts a token, as batched products; tokens beyond an expert's capacity are dropped."""
    found = importlib.import_module("mixture_of_experts")
    cell = work.cell
    block = found.MoE(cell.d_model, num_experts=cell.n_experts, hidden_dim=cell.d_ff, activation=nn.ReLU)
    return _layer(
        "mixture-of-experts",
        work,
        block,
        lambda: block.gate.w_gating,
        run=lambda x: block(x)[0],
        note=DROPS,
    )


def _layer(
    name: str,
    work: Work,
    block: nn.Module,
    router: Callable[[], Tensor],
    run: Callable[[Tensor], Tensor] | None = None,
    note: str = "",
) -> Contestant:
    """Give a block weights, its router the cell's, and make it a contestant."""
    with torch.no_grad():
        for parameter in block.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.02)
        matrix = router()
        matrix.copy_(work.router_ED if matrix.shape == work.router_ED.shape else work.router_ED.t())
    block.to(work.x_BTD.device).train()
    return layer(name, "peer", block, work.x_BTD, run=run, note=note)
