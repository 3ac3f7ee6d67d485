"""Graphs of drawn models in onnxruntime give what the models give: of every kind of model, with every head."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("onnx", reason="needs the extra onnx")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")
pytest.importorskip("onnxscript", reason="needs the extra onnx")

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

from architectures import HEADS, any_architecture, draws, random_model, sentences, texts
from contract import real_logits, real_ones
from ostinato.config.model import HeadConfig, LanguageModelConfig, Seq2SeqConfig
from ostinato.onnx.export import write_onnx
from ostinato.onnx.graphs import Graph, graphs_of
from ostinato.onnx.session import GraphSession

pytestmark = pytest.mark.slow
TOLERANCE = 1e-4


def sessions_of(graphs: list[Graph], folder: Path) -> list[GraphSession]:
    for graph in graphs:
        write_onnx(graph, graph.exported(), folder / f"{graph.name}.onnx", {})
    return [GraphSession(folder / f"{graph.name}.onnx") for graph in graphs]


def assert_close(found: Tensor, expected: Tensor, what: str) -> None:
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(
        found, expected, rtol=0.0, atol=TOLERANCE * scale, msg=lambda difference: f"{what}: {difference}"
    )


def check_what_writes(config: LanguageModelConfig | Seq2SeqConfig, data: st.DataObject, folder: Path) -> list[Graph]:
    """Compare a model that writes with its graphs, whole and in cached pieces; return these."""
    model, drawn = random_model(config).float(), data.draw(sentences(config))
    batch, graphs = of_sentences(drawn), graphs_of(model)
    sessions = sessions_of(graphs, folder)
    keep, width = batch.target.keep_BT, batch.target.ids_BT.shape[1]
    for n_rounds in numbers_of_rounds(graphs):
        expected = expected_logits(model, batch, n_rounds)[keep]
        for pieces in ([width], pieces_of(config, drawn, width)):
            found = decoder_logits(graphs, sessions, batch, pieces, n_rounds)[keep]
            assert_close(found, expected, f"{n_rounds} rounds, columns {pieces}")
    return graphs


@pytest.mark.parametrize("fully_shared", [False, True])
@pytest.mark.parametrize("kind", ["language_model", "seq2seq"])
@draws(4)
@given(data=st.data())
def test_what_writes_does_so_whole_and_in_cached_pieces(
    kind: str, fully_shared: bool, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    config = data.draw(any_architecture(kind=kind, fully_shared=fully_shared).filter(knows_its_rounds))
    check_what_writes(config, data, tmp_path_factory.mktemp("drawn"))


@draws(3)
@given(data=st.data())
def test_a_pair_without_cross_attention_is_one_file(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    config = without_cross_attention(data.draw(any_architecture(kind="seq2seq")))
    assert len(check_what_writes(config, data, tmp_path_factory.mktemp("drawn"))) == 1


@pytest.mark.parametrize("fully_shared", [False, True])
@pytest.mark.parametrize("head", HEADS, ids=lambda head: f"{head.kind}-{getattr(head, 'pooling', '')}")
@draws(2)
@given(data=st.data())
def test_encoders_with_every_head(
    head: HeadConfig, fully_shared: bool, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    config = data.draw(any_architecture(kind="encoder", fully_shared=fully_shared, heads=[head]))
    model, batch = random_model(config).float(), of_sentences(data.draw(texts(config)))
    graphs = graphs_of(model)
    [session] = sessions_of(graphs, tmp_path_factory.mktemp("drawn"))
    for n_rounds in numbers_of_rounds(graphs):
        with torch.no_grad():
            expected = real_logits(model, batch, n_rounds)
        found = real_ones(encoder_logits(graphs[0], session, batch, n_rounds), batch, config.reads)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other, f"{n_rounds} rounds")
