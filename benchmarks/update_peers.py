"""Public encoder-decoder transformers of one size, updated by one function: torch.nn, transformers, x-transformers.

Weights are as each package makes them, embeddings shared by both sides and the output. Dropout acts on embeddings,
residuals, attention weights and the hidden layer of feed-forwards, where the package has it; what differs is in the
note. All read the same ids, and learn the same labels with the same loss, clipping and optimiser.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from layers import Absent, Contestant, of_package
from torch import Tensor, nn

from ostinato.data.batch import Batch
from ostinato.nn.positions import sinusoids

if TYPE_CHECKING:
    from train_step import Cell

UPDATE = "update"
_CLIP_NORM = 1.0


def peers(cell: Cell, batch: Batch) -> Iterator[Contestant | Absent]:
    """Yield every peer, and why others cannot take part."""
    builders: dict[str, tuple[str, Callable[[Cell, Batch], Contestant]]] = {
        "torch.nn": ("torch", torch_nn),
        "HF Bart": ("transformers", bart),
        "HF Marian": ("transformers", marian),
        "HF T5": ("transformers", t5),
        "x-transformers": ("x_transformers", x_transformers),
    }
    for name, (package, build) in builders.items():
        yield of_package(name, package, partial(build, cell, batch))


def updated(
    name: str, model: nn.Module, loss: Callable[[], Tensor], *, note: str = "", fused: bool | None = True
) -> Contestant:
    """Return a model as a contestant: forward, backward, clipping, AdamW, and forgetting the gradients."""
    model.train()
    parameters = tuple(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=fused)

    def update() -> None:
        loss().backward()
        nn.utils.clip_grad_norm_(parameters, _CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Contestant(name, "peer", {UPDATE: update}, parameters, note)


class TorchSeq2Seq(nn.Module):
    """torch.nn.Transformer with embeddings and sinusoidal positions."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.embedding = nn.Embedding(cell.vocabulary, cell.d_model)
        nn.init.normal_(self.embedding.weight, std=cell.d_model**-0.5)
        self.body = nn.Transformer(
            cell.d_model,
            cell.n_heads,
            cell.n_steps,
            cell.n_steps,
            cell.d_ff,
            cell.dropout,
            batch_first=True,
        )
        self.dropout, self.scale = cell.dropout, math.sqrt(cell.d_model)
        length = max(cell.source_length, cell.target_length)
        self.register_buffer("positions", sinusoids(torch.arange(length), cell.d_model))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(cell.target_length))

    def embed(self, ids_BT: Tensor) -> Tensor:
        embedded = self.embedding(ids_BT) * self.scale + self.positions[: ids_BT.shape[1]]
        return F.dropout(embedded, self.dropout, self.training)

    def forward(self, source_BS: Tensor, target_BT: Tensor) -> Tensor:
        states = self.body(self.embed(source_BS), self.embed(target_BT), tgt_mask=self.mask, tgt_is_causal=True)
        return F.linear(states, self.embedding.weight)


def torch_nn(cell: Cell, batch: Batch) -> Contestant:
    """torch's own layers, which drop what ours drop."""
    model = TorchSeq2Seq(cell)
    return updated("torch.nn", model, lambda: _loss(model(_source(batch), batch.target.ids_BT), batch))


def _of_transformers(name: str, model: Any, batch: Batch, note: str = "") -> Contestant:
    def loss() -> Tensor:
        given = {"input_ids": _source(batch), "decoder_input_ids": batch.target.ids_BT, "use_cache": False}
        return _loss(model(**given).logits, batch)

    return updated(name, model, loss, note=note)


def _bart_sizes(cell: Cell) -> dict[str, Any]:
    sizes: dict[str, Any] = {"vocab_size": cell.vocabulary, "d_model": cell.d_model, "max_position_embeddings": 64}
    for side in ("encoder", "decoder"):
        sizes |= {
            f"{side}_layers": cell.n_steps,
            f"{side}_ffn_dim": cell.d_ff,
            f"{side}_attention_heads": cell.n_heads,
        }
    dropout = {"dropout": cell.dropout, "attention_dropout": cell.dropout, "activation_dropout": cell.dropout}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    return sizes | dropout | ids | {"forced_eos_token_id": None}


def bart(cell: Cell, batch: Batch) -> Contestant:
    """Bart: GELU, learned positions."""
    found = importlib.import_module("transformers")
    model = found.BartForConditionalGeneration(found.BartConfig(**_bart_sizes(cell)))
    return _of_transformers("HF Bart", model, batch)


def marian(cell: Cell, batch: Batch) -> Contestant:
    """Marian: ReLU, sinusoidal positions, embeddings shared by both sides."""
    found = importlib.import_module("transformers")
    config = found.MarianConfig(
        **_bart_sizes(cell), activation_function="relu", scale_embedding=True, share_encoder_decoder_embeddings=True
    )
    return _of_transformers("HF Marian", found.MarianMTModel(config), batch)


def t5(cell: Cell, batch: Batch) -> Contestant:
    """T5: ReLU, learned biases of relative positions, no biases in maps."""
    found = importlib.import_module("transformers")
    config = found.T5Config(
        vocab_size=cell.vocabulary,
        d_model=cell.d_model,
        d_kv=cell.d_model // cell.n_heads,
        d_ff=cell.d_ff,
        num_layers=cell.n_steps,
        num_heads=cell.n_heads,
        dropout_rate=cell.dropout,
        decoder_start_token_id=0,
    )
    return _of_transformers("HF T5", found.T5ForConditionalGeneration(config), batch, "relative positions")


def x_transformers(cell: Cell, batch: Batch) -> Contestant:
    """x-transformers, with its fused attention."""
    found = importlib.import_module("x_transformers")
    length = max(cell.source_length, cell.target_length) + 1
    sides: dict[str, Any] = {}
    for side in ("enc", "dec"):
        sides |= {
            f"{side}_num_tokens": cell.vocabulary,
            f"{side}_depth": cell.n_steps,
            f"{side}_heads": cell.n_heads,
            f"{side}_max_seq_len": length,
            f"{side}_attn_dim_head": cell.d_model // cell.n_heads,
            f"{side}_ff_mult": cell.d_ff // cell.d_model,
            f"{side}_attn_dropout": cell.dropout,
            f"{side}_ff_dropout": cell.dropout,
            f"{side}_emb_dropout": cell.dropout,
            f"{side}_attn_flash": True,
        }
    model = found.XTransformer(dim=cell.d_model, tie_token_emb=True, **sides)
    # It makes inputs and labels of one sequence: what ours reads, and the last label.
    target_BT = torch.cat([batch.target.ids_BT, batch.labels_BT[:, -1:]], dim=1)
    note = "does not drop residuals"
    return updated("x-transformers", model, lambda: model(_source(batch), target_BT), note=note)


def _source(batch: Batch) -> Tensor:
    assert batch.source is not None, "the benchmark's batches have sources"
    return batch.source.ids_BT


def _loss(logits_BTV: Tensor, batch: Batch) -> Tensor:
    return F.cross_entropy(logits_BTV.flatten(0, 1), batch.labels_BT.flatten())
