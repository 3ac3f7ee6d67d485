"""A model as graphs: what their modules compute is what the model computes, before anything is exported."""

from __future__ import annotations

import pytest
import torch
from graphs import decoder_logits, expected_logits, of_sentences, pieces_of
from hypothesis import given
from hypothesis import strategies as st

from architectures import any_architecture, draws, random_model, sentences
from contract import assert_equal
from ostinato.onnx.graphs import graphs_of


@pytest.mark.parametrize("fully_shared", [False, True])
@draws(30)
@given(data=st.data())
def test_graphs_of_any_model_are_the_model_whole_and_in_cached_pieces(fully_shared: bool, data: st.DataObject) -> None:
    config = data.draw(any_architecture(fully_shared=fully_shared, has_values=False))
    model, drawn = random_model(config), data.draw(sentences(config))
    batch, graphs = of_sentences(drawn), graphs_of(model)
    keep, width = batch.target.keep_BT, batch.target.ids_BT.shape[1]
    runs = [graph.module for graph in graphs]
    numbers = [None, 1, 4] if all(graph.rounds is not None for graph in graphs) else [None]
    for n_rounds in numbers:
        expected = expected_logits(model, batch, n_rounds)[keep]
        for pieces in ([width], pieces_of(config, drawn, width)):
            with torch.no_grad():
                found = decoder_logits(graphs, runs, batch, pieces, n_rounds)
            assert_equal(found[keep], expected, f"{n_rounds} rounds, columns {pieces}")
