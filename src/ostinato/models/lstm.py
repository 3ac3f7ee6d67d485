"""LSTM baselines: an encoder-decoder with attention, and a language model. Neither has rounds of depth."""

from __future__ import annotations

from collections.abc import Collection

from ostinato.config.lstm import LstmLanguageModelConfig, LstmSeq2SeqConfig
from ostinato.config.model import ModelConfig
from ostinato.data.batch import Batch
from ostinato.errors import ConfigError, Problem
from ostinato.models.base import TokenModel, as_batch, check_no_source, keep_or_none, source_of
from ostinato.models.output import ModelOutput
from ostinato.nn.cache import Cache, RecurrentState
from ostinato.nn.execution import Execution
from ostinato.nn.init import init_global_attention, init_lstm
from ostinato.nn.recurrent import GlobalAttention, Lstm, LstmState
from ostinato.nn.shapes import Bool, Float, Int, Tensor

_STATE = "decoder"
_KEYS = "attention"


class LstmSeq2Seq(TokenModel):
    """An encoder and a decoder of LSTM layers, and attention between them.

        m, s = encoder(E_s[source]),   h = decoder(E_t[target]; first states s),   logits = attention(h, m) O^T

    Args:
        config: with both vocabulary sizes set. `tie_embeddings`: "output": O = E_t; "input": E_t = E_s; "all": both.
    """

    config: LstmSeq2SeqConfig

    def __init__(self, config: LstmSeq2SeqConfig, execution: Execution | None = None) -> None:
        super().__init__(config, execution)
        self.encoder = _lstm(config, "encoder")
        self.decoder = _lstm(config, "decoder")
        self.attention: GlobalAttention | None = None
        if config.attention != "none":
            self.attention = GlobalAttention(config.d_model, config.attention)
            init_global_attention(self.attention, config.init)
        self.make_embeddings()

    def forward(
        self,
        batch: Batch | Tensor,
        target: Int[Tensor, "B T"] | None = None,
        *,
        keep: Bool[Tensor, "B S"] | None = None,
        target_keep: Bool[Tensor, "B T"] | None = None,
        n_steps: int | None = None,
        request: Collection[str] = (),
        execution: Execution | None = None,
    ) -> ModelOutput:
        """Run a teacher-forced pass.

        Raises:
            ConfigError: `n_steps` or `request`, which ask of steps of depth. DataError: a batch without sources.
        """
        _refuse(self.config, n_steps, request)
        batch, draws = as_batch(batch, keep, target, target_keep), self.checked(execution).dropout_draws
        source, words = source_of(batch), batch.target
        keep_BS = keep_or_none(source)
        memory_BSD, state = self.encoder(self.embed(source.ids_BT, self.source_embedding), keep_BS, draws=draws)
        embedded_BTD = self.embed(words.ids_BT, self.target_embedding)
        states_BTD, _ = self.decoder(embedded_BTD, keep_or_none(words), state, draws=draws)
        if self.attention is not None:
            states_BTD = self.attention(states_BTD, memory_BSD, keep_BS, self.attention.keys(memory_BSD))
        return ModelOutput(self.logits(states_BTD))

    def encode(self, batch: Batch, *, n_steps: int | None = None, execution: Execution | None = None) -> Cache:
        """Run the encoder and return the cache that decoding starts from: its last states, and what attention reads.

        Raises:
            ConfigError: `n_steps`. DataError: a batch without sources.
        """
        _refuse(self.config, n_steps, ())
        source = source_of(batch)
        keep_BS = keep_or_none(source)
        memory_BSD, state = self.encoder(self.embed(source.ids_BT, self.source_embedding), keep_BS)
        cache = Cache(recurrent={_STATE: RecurrentState(*state)}, device=source.ids_BT.device)
        if self.attention is not None:
            cache.memory_BSD, cache.memory_keep_BS = memory_BSD, keep_BS
            if (keys_BSD := self.attention.keys(memory_BSD)) is not None:
                cache.cross_kv[_KEYS] = keys_BSD[None]
        return cache

    def step(
        self, ids_BT: Int[Tensor, "B T"], cache: Cache, keep_BT: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B V"]:
        """Add T target columns to the cache and return the logits after the last one.

        Args:
            ids_BT: ids, one row a hypothesis. keep_BT: real tokens among them; None where all are.
        """
        h_BTD = _advance(self.decoder, self.embed(ids_BT, self.target_embedding), cache, keep_BT)
        states_B1D = h_BTD[:, -1:]
        if self.attention is not None:
            assert cache.memory_BSD is not None  # not user input: `encode` has put it there
            keys = cache.cross_kv.get(_KEYS)
            states_B1D = self.attention(
                states_B1D, cache.memory_BSD, cache.memory_keep_BS, None if keys is None else keys[0]
            )
        return self.logits(states_B1D[:, 0])


class LstmLanguageModel(TokenModel):
    """LSTM layers over one sequence: logits = decoder(E[tokens]) O^T.

    Args:
        config: with the vocabulary size set. `tie_embeddings`: "output": O = E.
    """

    config: LstmLanguageModelConfig

    def __init__(self, config: LstmLanguageModelConfig, execution: Execution | None = None) -> None:
        super().__init__(config, execution)
        self.decoder = _lstm(config, "decoder")
        self.make_embeddings()

    def forward(
        self,
        batch: Batch | Tensor,
        *,
        keep: Bool[Tensor, "B T"] | None = None,
        n_steps: int | None = None,
        request: Collection[str] = (),
        execution: Execution | None = None,
    ) -> ModelOutput:
        """Run a teacher-forced pass over `batch.target`.

        Raises:
            ConfigError: `n_steps` or `request`, which ask of steps of depth. DataError: a batch with sources.
        """
        _refuse(self.config, n_steps, request)
        batch = as_batch(batch, keep)
        check_no_source(batch)
        target = batch.target
        draws = self.checked(execution).dropout_draws
        embedded_BTD = self.embed(target.ids_BT, self.target_embedding)
        states_BTD, _ = self.decoder(embedded_BTD, keep_or_none(target), draws=draws)
        return ModelOutput(self.logits(states_BTD))

    def encode(self, batch: Batch, *, n_steps: int | None = None, execution: Execution | None = None) -> Cache:
        """Return an empty cache; the prompt is the first `step`.

        Raises:
            ConfigError: `n_steps`. DataError: a batch with sources.
        """
        _refuse(self.config, n_steps, ())
        check_no_source(batch)
        return Cache(device=batch.target.ids_BT.device)

    def step(
        self, ids_BT: Int[Tensor, "B T"], cache: Cache, keep_BT: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B V"]:
        """Add T columns to the cache and return the logits after the last one; see `LstmSeq2Seq.step`."""
        h_BTD = _advance(self.decoder, self.embed(ids_BT, self.target_embedding), cache, keep_BT)
        return self.logits(h_BTD[:, -1])


def _lstm(config: LstmSeq2SeqConfig | LstmLanguageModelConfig, name: str) -> Lstm:
    layers = config.recurrences()[name]
    module = Lstm(config.d_model, layers.n_layers, n_directions=layers.n_directions, dropout=config.dropout)
    init_lstm(module, config.init)
    return module


def _advance(decoder: Lstm, x_BTD: Float[Tensor, "B T D"], cache: Cache, keep_BT: Tensor | None) -> Tensor:
    """Return the outputs of new columns, and leave the state after them in the cache."""
    if keep_BT is not None and bool(keep_BT.all()):
        keep_BT = None
    before = cache.recurrent.get(_STATE)
    state: LstmState
    h_BTD: Tensor
    h_BTD, state = decoder(x_BTD, keep_BT, None if before is None else before.tensors)
    cache.recurrent[_STATE] = RecurrentState(*state)
    cache.length += x_BTD.shape[1]
    return h_BTD


def _refuse(config: ModelConfig, n_steps: int | None, request: Collection[str]) -> None:
    config.check_rounds(n_steps)
    if request:
        reason = "this model is a recurrence over positions: it has no sub-layers of steps to capture"
        raise ConfigError([Problem("request", sorted(request), reason)])
