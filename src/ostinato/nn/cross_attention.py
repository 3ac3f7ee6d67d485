"""Cross-attention as a sub-layer: what the decoder reads in the encoder's output, the memory.

Keys and values of the memory are projected once per parameter set, whatever the number of steps that use it, and never
copied per beam: the hypotheses of a sentence are queries side by side. What a round adds to the maps of a set it adds
to queries and output.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ostinato.kernels import unbind
from ostinato.nn.context import Pass, Round
from ostinato.nn.experts import Decision
from ostinato.nn.shapes import Float, Tensor
from ostinato.nn.sub_layer import SubLayer, capture_weights


class CrossAttention(SubLayer):
    """One use of cross-attention, dense or of experts. Args: see `SubLayer`."""

    def transform(
        self,
        module: Any,
        read_ND: Tensor,
        scored_ND: Tensor,
        decision: Decision | None,
        states_ND: Tensor,
        run: Pass,
        here: Round,
    ) -> Float[Tensor, "N D"]:
        """Return what every row reads in its sentence's memory."""
        x_NI = self.read(module, module.queries(scored_ND, decision), run, here)
        return module.output(module.gated(x_NI, scored_ND), decision)  # type: ignore[no-any-return]

    def read(self, attention: Any, q_NI: Tensor, run: Pass, here: Round) -> Float[Tensor, "N I"]:
        """Return what the queries of the rows read, heads and choices side by side."""
        G, (k, v), visibility = run.n_beams, unbind(self.memory(run)), run.memory_visibility
        # Hypotheses share their sentence's memory: each has a place there, also where it has no query.
        rows = here.rows if G == 1 else here.rows.for_all_sentences()
        if rows.sentences_U is not None:
            k, v = rows.of_sentences(k), rows.of_sentences(v)
            visibility = visibility.of_sentences(rows.of_sentences)
        q_BAI = rows.queries(q_NI)
        B, A, _ = q_BAI.shape
        q = attention.query_heads(q_BAI.view(B // G, G * A, -1))
        if attention.q_norm is not None:
            q = attention.normed_and_turned(q, attention.q_norm, None)
        if "weights" in run.request:
            of_sentences = attention.weights(q, k, visibility)  # their queries are those of all hypotheses
            weights_BHQS = of_sentences.unflatten(2, (G, -1)).transpose(1, 2).flatten(0, 1)
            capture_weights(self, weights_BHQS, run, replace(here, rows=rows))
        draws, ranges = run.execution.dropout_draws, None if rows.occupied is None else rows.ranges(k, G)
        x = attention.attend(q, k, v, visibility, ranges=ranges, draws=draws)
        return rows.from_queries(x.reshape(B, A, -1))

    def memory(self, run: Pass) -> Float[Tensor, "2 B H S K"]:
        """Return keys and values of the memory.

        Raises:
            ValueError: the pass has none.
        """
        if self.use.weights not in run.cross_kv:
            if run.memory_BSD is None:
                raise ValueError(f"the {self.stack} has cross-attention but was given nothing to look at")
            attention: Any = self._bank[self.use.weights]
            made = attention.key_value_heads(attention.keys_values(run.memory_BSD))
            if attention.k_norm is not None:
                made = torch.stack([attention.normed_and_turned(made[0], attention.k_norm, None), made[1]])
            # Decoding reads them once a token: every head in one stretch of memory is read faster.
            run.cross_kv[self.use.weights] = made if run.cache is None else made.contiguous()
        return run.cross_kv[self.use.weights]

    def prepare(self, run: Pass) -> None:
        """Project the memory."""
        self.memory(run)
