"""The work that models are timed on: an update, a teacher-forced pass, a search of fixed length; on random ids.

Every model gets the same numbers of sentences and tokens, without padding. An encoder-decoder model reads
`source_length` tokens in its encoder and `target_length` in its decoder; a language model reads both as one sequence,
and in decoding its first step holds the source and the begin symbol.

Searches of different models would end at different lengths, on random weights at any length. Here the end symbol is
impossible, so that every search generates exactly `target_length` tokens a sentence with the real search and cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal

import torch
from torch import Tensor

from ostinato.config.common import SequenceModelConfig
from ostinato.config.decoding import DecodingConfig, LengthPenaltyConfig
from ostinato.config.model import EncoderConfig, ModelConfig
from ostinato.config.special_ids import SpecialIds
from ostinato.config.training import PlannedRoundsConfig, TrainingConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.data.tokenizer import BOS_ID
from ostinato.decoding.search import Decodable, inference, search
from ostinato.errors import ConfigError, Problem
from ostinato.models import Encoder, build_model
from ostinato.nn.cache import Cache
from ostinato.training.freeze import freeze
from ostinato.training.optim import build_optimizer
from ostinato.training.rng import preserved_randomness
from ostinato.training.update import Updater, execution_of

_FIRST_ID = 4
"""Ids below are padding, begin, end and unknown."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What one timed call does.

    Args:
        kind: update: forward, backward, clipping and the optimiser's step. forward: a teacher-forced pass without
            gradients. decoding: a search.
        batch_size: sentences. source_length, target_length: tokens of each, or generated.
        beam: of the search; 1 is greedy. cached_rounds: of a loop, whose keys and values the search keeps; None: all.
    """

    kind: Literal["update", "forward", "decoding"]
    batch_size: int
    source_length: int
    target_length: int
    beam: int = 1
    cached_rounds: int | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that no call can have.

        Raises:
            ConfigError: all of them.
        """
        least = {"batch_size": 1, "source_length": 0, "target_length": 1, "beam": 1}
        found = [
            Problem(f"workload.{key}", getattr(self, key), f"must be at least {low}")
            for key, low in least.items()
            if getattr(self, key) < low
        ]
        if found:
            raise ConfigError(found)

    @property
    def n_tokens(self) -> int:
        """Target tokens of one call: what an update learns from, or what a search returns (not times its beam)."""
        return self.batch_size * self.target_length

    def __str__(self) -> str:
        beam = f", beam {self.beam}" if self.kind == "decoding" else ""
        return f"{self.kind}, batch {self.batch_size}{beam}"


@dataclass(frozen=True, slots=True)
class TimedModel:
    """A model to time: vocabulary sizes set; `training` says how it is updated.

    Args:
        cached_rounds: of a loop, whose keys and values a search keeps where its workload does not say; None: all.
    """

    name: str
    model: ModelConfig
    training: TrainingConfig = field(default_factory=TrainingConfig)
    cached_rounds: int | None = None


class Bench:
    """A candidate with random weights, ready to work.

    Args:
        seed: of weights and ids; torch's global generator is left as it was.

    Raises:
        ConfigError: a vocabulary size that is not set, or too small for a real token.
    """

    def __init__(self, candidate: TimedModel, device: torch.device, seed: int = 1) -> None:
        self.candidate, self.device, self.seed = candidate, device, seed
        with preserved_randomness():
            torch.manual_seed(seed)
            self.model = build_model(candidate.model, execution_of(candidate.training)).to(device)
        if frozen := candidate.training.freeze:
            freeze(self.model, frozen, candidate.training.freeze_except)

    def call(self, workload: Workload) -> Callable[[], object]:
        """Return a function that does the work once, on the same ids every time.

        Updates go on from one call to the next, with the optimiser's state that belongs to the returned function. They
        run the rounds of the plan, as all counts do, also where `training.rounds` draws others.
        """
        batch = random_batch(self.candidate.model, workload, self.seed).to(self.device)
        model = self.model
        match workload.kind:
            case "update":
                training, numbers = self.candidate.training, count(1)
                of_gradient = training.rounds.model_dump(include={"gradient_rounds", "gradient_repeats"})
                training = training.model_copy(update={"rounds": PlannedRoundsConfig(**of_gradient)})
                updater = Updater(model, build_optimizer(model, training.optimizer), training)
                return lambda: updater.apply(updater.accumulate([batch]), next(numbers))
            case "forward":
                return inference(model)(lambda: model(batch).logits_BTV)
            case "decoding":
                config = DecodingConfig(
                    strategy="beam" if workload.beam > 1 else "greedy",
                    beam=workload.beam,
                    length_penalty=LengthPenaltyConfig(kind="none"),
                    max_length=workload.target_length,
                )
                assert not isinstance(model, Encoder)  # there are no batches for one
                endless, kept = Endless(model), workload.cached_rounds or self.candidate.cached_rounds

                def decode() -> object:
                    with model.execution(cached_rounds=kept):
                        return search(endless, batch, config)

                return inference(model)(decode)


class Endless:
    """A model that never ends an output: the end symbol's logit is -inf."""

    def __init__(self, model: Decodable) -> None:
        self.model = model

    @property
    def special_ids(self) -> SpecialIds:
        """The model's."""
        return self.model.special_ids

    def encode(self, batch: Batch, *, n_steps: int | None = None) -> Cache:
        """Return the model's cache."""
        return self.model.encode(batch, n_steps=n_steps)

    def step(self, ids_BT: Tensor, cache: Cache, keep_BT: Tensor | None = None) -> Tensor:
        """Return the model's logits without the end symbol."""
        logits_BV = self.model.step(ids_BT, cache, keep_BT)
        logits_BV[:, self.special_ids.eos] = -torch.inf
        return logits_BV


def random_batch(model: ModelConfig, workload: Workload, seed: int) -> Batch:
    """Return a batch of random ids, the same for every model of the same kind and vocabulary.

    An encoder-only model reads `target_length` tokens, and has the labels of its head.

    Raises:
        ConfigError: a vocabulary without real tokens, or a source of length 0 for an encoder; a search by a model that
            writes nothing.
    """
    if isinstance(model, EncoderConfig) and workload.kind == "decoding":
        raise ConfigError([Problem("model.kind", model.kind, "an encoder-only model writes no text")])
    generator = torch.Generator().manual_seed(seed)
    B, S, T = workload.batch_size, workload.source_length, workload.target_length
    if isinstance(model, EncoderConfig):
        return _labelled(model, _ids(B, T, model.vocab_size, generator), generator)
    if isinstance(model, SequenceModelConfig):
        labels_BT = _ids(B, T, model.vocab_size, generator)
        if S == 0:
            return _texts(labels_BT)
        source_BS = _ids(B, S, model.vocab_size, generator)
        texts = _texts(torch.cat([source_BS, labels_BT], dim=1))
        ids_BT = torch.cat([source_BS, _begun(labels_BT)], dim=1)
        is_target_BT = texts.loss_mask_BT & (torch.arange(S + T) >= S)
        return replace(texts, target=_tokens(ids_BT), loss_mask_BT=is_target_BT, prefix_lengths_B=torch.full((B,), S))
    if S == 0:
        raise ConfigError([Problem("workload.source_length", 0, "must be at least 1 for an encoder-decoder model")])
    source = _tokens(_ids(B, S, model.source_vocab_size, generator))
    return replace(_texts(_ids(B, T, model.target_vocab_size, generator)), source=source)


def _labelled(model: EncoderConfig, ids_BT: Tensor, generator: torch.Generator) -> Batch:
    """Return a batch with a label for every text, word, or end of an answer, or for one token of seven."""
    B, T = ids_BT.shape
    tokens, places_BL, prefix_lengths_B = _tokens(ids_BT), None, None
    if model.embedder.kind == "facts":
        n_words = min(3, model.embedder.max_words)
        tokens = Tokens(ids_BT[..., None].expand(-1, -1, n_words).contiguous(), tokens.keep_BT)
    match model.head.kind:
        case "classification":
            labels_BL = torch.randint(model.n_labels or 1, (B, 1), generator=generator)
        case "tagging":
            labels_BL = torch.randint(model.n_labels or 1, (B, T), generator=generator)
        case "span":
            labels_BL = torch.tensor([[T // 2, T - 1]]).expand(B, -1)
            prefix_lengths_B = torch.full((B,), T // 2)
        case "masked":
            places_BL = torch.arange(0, T, 7).expand(B, -1)
            labels_BL = ids_BT.gather(1, places_BL)
            assert model.vocab_size is not None  # there are ids
            masked_BT = ids_BT.scatter(1, places_BL, model.vocab_size - 1)
            tokens = _tokens(masked_BT)
    counted_BL = torch.ones_like(labels_BL, dtype=torch.bool)
    return Batch(tokens, labels_BL, counted_BL, places_BL=places_BL, prefix_lengths_B=prefix_lengths_B)


def _texts(labels_BT: Tensor) -> Batch:
    """Return a batch without sources that learns all of these."""
    return Batch(_tokens(_begun(labels_BT)), labels_BT, torch.ones_like(labels_BT, dtype=torch.bool))


def _begun(labels_BT: Tensor) -> Tensor:
    """Return what stands before each label: the begin symbol, then the labels."""
    return torch.cat([torch.full_like(labels_BT[:, :1], BOS_ID), labels_BT[:, :-1]], dim=1)


def _tokens(ids_BT: Tensor) -> Tokens:
    return Tokens(ids_BT, torch.ones_like(ids_BT, dtype=torch.bool))


def _ids(n_rows: int, length: int, vocabulary: int | None, generator: torch.Generator) -> Tensor:
    if vocabulary is None or vocabulary <= _FIRST_ID:
        reason = f"must be above {_FIRST_ID}: the first {_FIRST_ID} ids are no tokens of a text"
        raise ConfigError([Problem("model vocabulary size", vocabulary, reason)])
    return torch.randint(_FIRST_ID, vocabulary, (n_rows, length), generator=generator)
