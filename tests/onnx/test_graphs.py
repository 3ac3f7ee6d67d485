"""A model as graphs: what their modules compute is what the model computes, before anything is exported."""

from __future__ import annotations

from typing import Any

import kinds
import pytest
import torch
from graphs import (
    decoder_logits,
    encoder_logits,
    expected_logits,
    knows_its_rounds,
    numbers_of_rounds,
    of_sentences,
    pieces_of,
    without_cross_attention,
)
from hypothesis import given
from hypothesis import strategies as st

from architectures import Sentence, any_architecture, draws, random_model, sentences, texts
from contract import assert_equal, real_logits, real_ones
from ostinato.config.model import Seq2SeqConfig
from ostinato.errors import CheckpointError
from ostinato.models import Model
from ostinato.nn.cache import Cache
from ostinato.nn.execution import CRITERIA_AT_TEST
from ostinato.nn.exits import OF_STATES
from ostinato.onnx.graphs import graphs_of


@pytest.mark.sampled
@pytest.mark.parametrize("fully_shared", [False, True])
@draws(30)
@given(data=st.data())
def test_graphs_of_any_model_are_the_model_whole_and_in_cached_pieces(fully_shared: bool, data: st.DataObject) -> None:
    config = data.draw(any_architecture(fully_shared=fully_shared).filter(knows_its_rounds))
    model, drawn = random_model(config), data.draw(sentences(config))
    batch, graphs = of_sentences(drawn), graphs_of(model)
    keep, width = batch.target.keep_BT, batch.target.ids_BT.shape[1]
    runs = [graph.module for graph in graphs]
    for n_rounds in numbers_of_rounds(graphs):
        expected = expected_logits(model, batch, n_rounds)[keep]
        for pieces in ([width], pieces_of(config, drawn, width)):
            with torch.no_grad():
                found = decoder_logits(graphs, runs, batch, pieces, n_rounds)
            assert_equal(found[keep], expected, f"{n_rounds} rounds, columns {pieces}")


@pytest.mark.parametrize("fully_shared", [False, True])
@draws(20)
@given(data=st.data())
def test_the_graph_of_any_encoder_is_the_encoder(fully_shared: bool, data: st.DataObject) -> None:
    config = data.draw(any_architecture(kind="encoder", fully_shared=fully_shared))
    model, batch = random_model(config), of_sentences(data.draw(texts(config)))
    [graph] = graphs_of(model)
    for n_rounds in numbers_of_rounds([graph]):
        with torch.no_grad():
            found = real_ones(encoder_logits(graph, graph.module, batch, n_rounds), batch, config.reads)
            expected = real_logits(model, batch, n_rounds)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other, f"{n_rounds} rounds")


@draws(10)
@given(data=st.data())
def test_a_pair_without_cross_attention_is_one_graph_which_reads_no_source(data: st.DataObject) -> None:
    config = without_cross_attention(data.draw(any_architecture(kind="seq2seq")))
    model, drawn = random_model(config), data.draw(sentences(config))
    batch = of_sentences(drawn)
    [graph] = graphs_of(model)
    assert graph.name == "model"
    keep, width = batch.target.keep_BT, batch.target.ids_BT.shape[1]
    for pieces in ([width], pieces_of(config, drawn, width)):
        with torch.no_grad():
            found = decoder_logits([graph], [graph.module], batch, pieces)
        assert_equal(found[keep], expected_logits(model, batch)[keep], f"columns {pieces}")


def test_a_decoder_that_does_not_know_the_length_of_its_source_is_refused() -> None:
    stack = {"n_steps": 2, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}
    decoder = stack | {"cross_attention": {"share": "none"}, "halting": {"kind": "length"}}
    sizes = {"d_model": 8, "source_vocab_size": 9, "target_vocab_size": 9}
    model = random_model(Seq2SeqConfig.model_validate(sizes | {"encoder": stack, "decoder": decoder}))
    with pytest.raises(CheckpointError, match="its graph has no source, whose length gives its rounds"):
        graphs_of(model)
    with model.execution(halting=False):
        assert len(graphs_of(model)) == 1


SENTENCES = [Sentence(None, [1, 7, 9, 4, 12, 5, 8]), Sentence(None, [1, 6, 5])]


def assert_graph_is(model: Model) -> None:
    """Compare the graph of a language model with the model, over the sentences whole and in pieces."""
    model = model.double()
    batch, graphs = of_sentences(SENTENCES), graphs_of(model)
    keep, expected = batch.target.keep_BT, expected_logits(model, batch)
    for pieces in ([7], [4, 1, 2]):
        with torch.no_grad():
            found = decoder_logits(graphs, [graph.module for graph in graphs], batch, pieces)
        assert_equal(found[keep], expected[keep], f"columns {pieces}")


@pytest.mark.parametrize("stack", [name for name in kinds.STACKS if "values by token" in name])
def test_graphs_know_what_tokens_add_to_values(stack: str) -> None:
    assert_graph_is(kinds.language_model(stack))


@pytest.mark.parametrize("criterion", [name for name in CRITERIA_AT_TEST if name not in OF_STATES])
def test_graphs_stop_tokens_by_what_is_predicted(criterion: str) -> None:
    model = kinds.language_model("shared, coordinates, ACT").double()
    ids = of_sentences(SENTENCES).target.ids_BT
    with torch.no_grad():
        whole = model(ids, n_steps=4).logits_BTV
    with model.execution(exit=criterion, halting_threshold=0.5):
        assert_graph_is(model)
        with torch.no_grad():
            assert not torch.allclose(model(ids).logits_BTV, whole)


def test_graphs_predict_by_the_steps_behind_the_loop_as_cached_steps_do() -> None:
    """There a token may stop after another round than in a whole pass (`ostinato.nn.exits`)."""
    model: Any = kinds.language_model("loop, add, reach").double()
    target, pieces = of_sentences(SENTENCES).target, [4, 1, 2]
    with model.execution(exit="agreement", halting_threshold=0.5), torch.no_grad():
        graphs, cache = graphs_of(model), Cache(execution=model.current_execution)
        assert graphs[0].rounds == 3
        parts = zip(target.ids_BT.split(pieces, 1), target.keep_BT.split(pieces, 1), strict=True)
        expected = torch.cat([model.logits(model.extended(ids, cache, keep).states_BTD) for ids, keep in parts], dim=1)
        found = decoder_logits(graphs, [graph.module for graph in graphs], of_sentences(SENTENCES), pieces)
    keep = target.keep_BT
    assert_equal(found[keep], expected[keep], "cached steps")


FIRST = "classification by the first"
OTHER_HEADS = [pytest.param(head, marks=pytest.mark.slow) for head in kinds.HEADS if head != FIRST]


@pytest.mark.slow
@pytest.mark.parametrize("head", [FIRST, *OTHER_HEADS])
def test_exported_encoders_read_any_number_of_texts_of_any_length(head: str) -> None:
    (graph,) = graphs_of(kinds.encoder_model("dense, sinusoidal", head))
    program = graph.exported().module()
    for sizes in ({"batch": 1, "columns": 5}, {"batch": 3, "columns": 2}):
        given = graph.example(**sizes)
        with torch.no_grad():
            torch.testing.assert_close(program(given)["logits"], graph.module(given)["logits"])


@pytest.mark.slow
def test_a_graph_that_would_hold_for_one_number_of_texts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    (graph,) = graphs_of(kinds.encoder_model("dense, sinusoidal", "tagging"))
    compute = graph.module.compute

    def of_a_number(given: dict[str, Any]) -> dict[str, Any]:
        return {name: one + torch.zeros(len(given["ids"]), 1, 1) for name, one in compute(given).items()}

    monkeypatch.setattr(graph.module, "compute", of_a_number)
    with pytest.raises(CheckpointError, match=r"model: its graph would hold for batch = 2 only \(input ids\)"):
        graph.exported()
