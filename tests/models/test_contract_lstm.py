"""The contract on LSTM baselines: one search loop, one cache, padding, batches, the past, exact counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from architectures import BOS, EOS, Sentence, draws, left_padded, outputs, random_model, right_padded
from contract import assert_all_equal, assert_equal, gradients, real_logits, weights_of
from ostinato.budget import MacCounter, count_budget, count_bytes, count_macs, expected_depths
from ostinato.config.decoding import DecodingConfig
from ostinato.config.lstm import LstmLanguageModelConfig, LstmSeq2SeqConfig
from ostinato.data.batch import Batch
from ostinato.decoding import search
from ostinato.errors import ConfigError
from ostinato.models import LstmSeq2Seq, build_model, load_model, save_model
from running import run_as

Config = LstmSeq2SeqConfig | LstmLanguageModelConfig
SCORES = ("general", "dot", "additive", "none")


def seq2seq(**settings: Any) -> LstmSeq2SeqConfig:
    """Return a tiny encoder-decoder."""
    given = {"d_model": 8, "dropout": 0.0, "source_vocab_size": 7, "target_vocab_size": 9} | settings
    return LstmSeq2SeqConfig.model_validate(given)


@st.composite
def lstms(draw: st.DrawFn) -> Config:
    """Draw any LSTM model the configuration can express."""
    layers, tie = draw(st.integers(1, 3)), draw(st.sampled_from(["none", "output", "input", "all"]))
    common: dict[str, Any] = {"n_layers": layers, "embedding_scale": draw(st.sampled_from([True, False, 3.0]))}
    common["output"] = draw(outputs()).model_dump()
    if draw(st.integers(0, 3)) == 0:
        tied = tie if tie in ("none", "output") else "none"
        return LstmLanguageModelConfig(d_model=8, dropout=0.0, vocab_size=9, tie_embeddings=tied, **common)
    rows = 9 if tie in ("input", "all") else 7
    both_ways, score = draw(st.booleans()), draw(st.sampled_from(SCORES))
    return seq2seq(source_vocab_size=rows, tie_embeddings=tie, bidirectional=both_ways, attention=score, **common)


@st.composite
def sentences_for(draw: st.DrawFn, config: Config) -> list[Sentence]:
    """Draw up to three ragged sentences; of a language model texts, or pairs as one sequence."""

    def ids(rows: int) -> list[int]:
        return draw(st.lists(st.integers(EOS, rows - 1), max_size=5))

    is_joined = draw(st.booleans())
    found = []
    for _ in range(draw(st.integers(1, 3))):
        if isinstance(config, LstmSeq2SeqConfig):
            found.append(Sentence([*ids(7), EOS], [BOS, *ids(9)]))
        elif is_joined:
            prefix = [*ids(9), EOS]
            found.append(Sentence(None, [*prefix, BOS, *ids(9)], len(prefix)))
        else:
            found.append(Sentence(None, [BOS, *ids(9)]))
    return found


@draws(40)
@given(st.data())
def test_padding_anywhere_changes_no_logit_and_no_gradient(data: st.DataObject) -> None:
    config = data.draw(lstms())
    batch = data.draw(sentences_for(config))
    extra, fill = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 4))
    model = random_model(config)
    alone = [real_logits(model, right_padded([sentence]))[0] for sentence in batch]
    weights = weights_of(batch, 9)
    expected = gradients(model, alone, weights)
    for name, padded in {"right": right_padded(batch, extra, fill), "left": left_padded(batch, extra, fill)}.items():
        logits = real_logits(model, padded)
        for found, wanted in zip(logits, alone, strict=True):
            assert_equal(found, wanted, f"padding on the {name}")
        assert_all_equal(gradients(model, logits, weights), expected)


def test_a_row_of_padding_only_harms_nobody() -> None:
    model = random_model(seq2seq(attention="additive"))
    plain = right_padded([Sentence([4, 5, EOS], [BOS, 4])])
    (expected,) = real_logits(model, plain)
    both = right_padded([Sentence([4, 5, EOS], [BOS, 4]), Sentence([], [])])
    logits_BTV = model(both).logits_BTV
    assert bool(logits_BTV.isfinite().all())
    assert_equal(logits_BTV[0], expected, "beside an empty row")
    empty = [weights_of([Sentence(None, [BOS, 4])], 9)[0]]
    assert all(bool(g.isfinite().all()) for g in gradients(model, [logits_BTV[0]], empty).values())


@draws(40)
@given(st.data())
def test_decoding_with_a_cache_equals_the_full_pass(data: st.DataObject) -> None:
    config = data.draw(lstms())
    batch = data.draw(st.sampled_from([right_padded, left_padded]))(data.draw(sentences_for(config)))
    model = random_model(config)
    full_BTV = model(batch).logits_BTV
    width = full_BTV.shape[1]
    ends = sorted({*data.draw(st.sets(st.integers(1, width))), width})
    with torch.no_grad():
        cache = model.encode(batch)
        for start, end in zip([0, *ends], ends, strict=False):
            keep = batch.target.keep_BT[:, start:end]
            logits_BV = model.step(batch.target.ids_BT[:, start:end], cache, keep)
            real = batch.target.keep_BT[:, end - 1]
            assert_equal(logits_BV[real], full_BTV[real, end - 1], f"columns {start} to {end}")
    assert cache.length == width


@pytest.mark.parametrize("score", SCORES)
def test_hypotheses_that_are_expanded_reordered_and_dropped_stay_themselves(score: str) -> None:
    model = random_model(seq2seq(attention=score))
    batch = [Sentence([4, 5, 6, EOS], [BOS]), Sentence([3, EOS], [BOS]), Sentence([6, 6, EOS], [BOS])]
    start = right_padded(batch)

    def expect(logits_BV: Tensor, texts: list[tuple[int, list[int]]]) -> None:
        for row, (sentence, text) in enumerate(texts):
            (wanted,) = real_logits(model, right_padded([batch[sentence].with_target(text)]))
            assert_equal(logits_BV[row], wanted[-1], f"row {row}")

    with torch.no_grad():
        cache = model.encode(start)
        model.step(start.target.ids_BT, cache)
        cache.expand(2, 3)
        ids = [3, 4, 5, 6, 7, 8]
        expect(model.step(torch.tensor([[i] for i in ids]), cache), [(i // 2, [BOS, t]) for i, t in enumerate(ids)])
        cache.reorder(torch.tensor([1, 1, 2, 3, 5, 4]))
        cache.keep(torch.tensor([0, 2]))
        expect(
            model.step(torch.tensor([[3], [4], [5], [6]]), cache),
            [(0, [BOS, 4, 3]), (0, [BOS, 4, 4]), (2, [BOS, 8, 5]), (2, [BOS, 7, 6])],
        )


@pytest.mark.parametrize("config", [seq2seq(), LstmLanguageModelConfig(d_model=8, vocab_size=9)])
def test_the_one_search_loop_runs_them_whatever_their_batch(config: Config) -> None:
    model = random_model(config)
    sources = [[4, 5, EOS], [3, EOS], [6, 6, 5, EOS]]
    batch = right_padded([Sentence(s, [BOS]) for s in sources])
    if isinstance(config, LstmLanguageModelConfig):
        batch = right_padded([Sentence(None, [*s, BOS], len(s)) for s in sources])
    greedy = search(model, batch, DecodingConfig(strategy="greedy", max_length=6))
    wide = search(model, batch, DecodingConfig(strategy="beam", beam=4, max_length=6))
    for found, narrow in zip(wide, greedy, strict=True):
        assert found.score >= narrow.score - 1e-6
    for i, sentence in enumerate(sources):
        one = Sentence(sentence, [BOS])
        if isinstance(config, LstmLanguageModelConfig):
            one = Sentence(None, [*sentence, BOS], len(sentence))
        (alone,) = search(model, right_padded([one]), DecodingConfig(strategy="greedy", max_length=6))
        assert alone.ids == greedy[i].ids


@draws(20)
@given(st.data())
def test_the_past_never_depends_on_the_future(data: st.DataObject) -> None:
    config = data.draw(lstms())
    sentence = data.draw(sentences_for(config))[0]
    model = random_model(config)
    (before,) = real_logits(model, right_padded([sentence]))
    (after,) = real_logits(model, right_padded([sentence.with_target([*sentence.target, 5, 8])]))
    assert_equal(after[: len(sentence.target)], before, "what was there")


# --- equations -------------------------------------------------------------------------------------------------------


def _cells(lstm: nn.LSTM, layer: int, x_TD: Tensor, h: Tensor, c: Tensor, suffix: str = "") -> tuple[Tensor, Tensor]:
    """Return outputs and the last cell of one layer and direction, token by token."""
    get = {name: getattr(lstm, f"{name}_l{layer}{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    outputs = []
    for x in x_TD:
        gates = get["weight_ih"] @ x + get["bias_ih"] + get["weight_hh"] @ h + get["bias_hh"]
        i, f, g, o = gates.chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs), c


@pytest.mark.parametrize("score", SCORES)
def test_the_encoder_decoder_is_its_equations(score: str) -> None:
    model = random_model(seq2seq(attention=score, n_layers=2, embedding_scale=False))
    assert isinstance(model, LstmSeq2Seq)
    source, target = [4, 5, 3, EOS], [BOS, 4, 8]
    memory, states = model.source_embedding[source], []
    for layer in range(2):
        zero = torch.zeros(4, dtype=torch.float64)
        there, cell = _cells(model.encoder.lstm, layer, memory, zero, zero)
        back, cell_back = _cells(model.encoder.lstm, layer, memory.flip(0), zero, zero, "_reverse")
        states.append((torch.cat([there[-1], back[-1]]), torch.cat([cell, cell_back])))
        memory = torch.cat([there, back.flip(0)], dim=1)
    h_TD = model.target_embedding[target]
    for layer, (h, c) in enumerate(states):
        h_TD, _ = _cells(model.decoder.lstm, layer, h_TD, h, c)
    if model.attention is not None:
        a = model.attention
        match score:
            case "dot":
                scores_TS = h_TD @ memory.T
            case "general":
                scores_TS = h_TD @ a.query.weight.T @ memory.T
            case _:
                queries, keys = h_TD @ a.query.weight.T, memory @ a.key.weight.T
                scores_TS = torch.stack([torch.tanh(q + keys) @ a.score_D for q in queries])
        context_TD = scores_TS.softmax(-1) @ memory
        h_TD = torch.tanh(torch.cat([context_TD, h_TD], dim=1) @ a.out.weight.T)
    (found,) = real_logits(model, right_padded([Sentence(source, target)]))
    assert_equal(found, h_TD @ model.output_projection.T, "logits")


def test_forget_gates_begin_open() -> None:
    model = build_model(seq2seq())
    assert isinstance(model, LstmSeq2Seq)
    for lstm in (model.encoder.lstm, model.decoder.lstm):
        for name, bias in lstm.named_parameters():
            if name.startswith("bias"):
                expected = torch.zeros(4, bias.shape[0] // 4)
                expected[1] = float(name.startswith("bias_ih"))
                assert torch.equal(bias.view(4, -1), expected)


@pytest.mark.parametrize("has_padding", [True, False])
def test_recurrences_are_exact_under_autocast_and_logits_float32(has_padding: bool) -> None:
    model = build_model(seq2seq(d_model=16, n_layers=2, attention="additive"))
    assert isinstance(model, LstmSeq2Seq)
    x_BTD = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))
    keep_BT = torch.tensor([[True] * 3, [False, True, True]]) if has_padding else None

    def run() -> list[Tensor]:
        memory_BSD, state = model.encoder(x_BTD, keep_BT)
        h_BTD, last = model.decoder(memory_BSD, keep_BT, state)
        return [memory_BSD, *state, h_BTD, *last]

    plain = run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lowered = run()
        logits_BTV = model(right_padded([Sentence([4, 5, EOS], [BOS, 4]), Sentence([3, EOS], [BOS])])).logits_BTV
    for found, wanted in zip(lowered, plain, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert logits_BTV.dtype == torch.float32
    logits_BTV.sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


# --- counts ----------------------------------------------------------------------------------------------------------


@draws(40)
@given(lstms())
def test_parameters_counted_are_the_models(config: Config) -> None:
    budget = count_budget(config)
    assert budget.parameters.stored == build_model(config).n_parameters() == sum(budget.parameters.by_part.values())
    assert budget.bytes.weights == 4 * budget.parameters.stored
    assert sum(budget.macs.by_part.values()) == budget.macs.total
    assert budget.depth == {}


def test_macs_are_those_of_the_matrix_products_done_by_hand() -> None:
    count = count_macs(seq2seq(attention="additive", n_layers=2), source_length=5, target_length=3)
    # A layer of two directions: 2 maps of 4 x 4 gates from 8 + 4 numbers; of one direction 4 x 8 gates from 8 + 8.
    encoder, decoder = 2 * 2 * (16 * 12), 2 * (32 * 16)
    assert count.by_part == {
        "encoder.lstm": 5 * encoder,
        "decoder.lstm": 3 * decoder,
        "decoder.attention.projections": 5 * 64 + 3 * (64 + 128),
        "decoder.attention.scores": 3 * 5 * 2 * 8,
        "output": 3 * 8 * 9,
    }
    assert count.per_source_token == encoder + 64
    assert count.per_generated_token == decoder + 192 + 5 * 16 + 72


def entries(module: nn.Module) -> int:
    """Count the multiply-accumulates of a token that passes every matrix of a module once."""
    return sum(p.numel() for p in module.parameters() if p.dim() == 2)


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("score", SCORES)
def test_macs_are_the_entries_of_the_matrices_a_token_passes_and_its_products_with_the_memory(
    score: str, both_ways: bool
) -> None:
    config = seq2seq(attention=score, bidirectional=both_ways, n_layers=2)
    model = build_model(config)
    assert isinstance(model, LstmSeq2Seq)
    count = count_macs(config, source_length=5, target_length=3)
    of_source, of_target = entries(model.encoder), entries(model.decoder) + 8 * 9
    expected = {"encoder.lstm": 5 * of_source, "decoder.lstm": 3 * entries(model.decoder), "output": 3 * 8 * 9}
    if model.attention is not None:
        of_memory = 0 if model.attention.key is None else entries(model.attention.key)
        of_query = entries(model.attention) - of_memory
        # A score and its part of the sum for every token of the source.
        expected |= {"decoder.attention.projections": 5 * of_memory + 3 * of_query}
        expected |= {"decoder.attention.scores": 3 * 5 * 2 * 8}
        of_source, of_target = of_source + of_memory, of_target + of_query + 5 * 2 * 8
    assert count.by_part == expected
    assert count.per_source_token == of_source
    assert count.per_target_token == count.per_generated_token == of_target


def test_macs_of_a_recurrent_language_model_are_the_entries_of_its_matrices() -> None:
    config = LstmLanguageModelConfig(d_model=8, vocab_size=9, n_layers=2)
    count, of_layers = count_macs(config, source_length=1, target_length=3), entries(build_model(config).decoder)
    assert of_layers == 2 * (32 * 16)
    assert count.by_part == {"decoder.lstm": 3 * of_layers, "output": 3 * 8 * 9}
    assert count.per_target_token == count.per_generated_token == of_layers + 8 * 9
    assert count.per_source_token == 0


def test_a_sentences_macs_are_those_of_its_own_tokens() -> None:
    config = seq2seq()
    found = MacCounter(config).count({"encoder": [5], "decoder": [3]})
    assert found.full == found.realised == count_macs(config, 5, 3).total


@pytest.mark.parametrize("score", SCORES)
def test_the_cache_holds_the_bytes_counted(score: str) -> None:
    config = seq2seq(attention=score, n_layers=3)
    batch = right_padded([Sentence([4, 5, 3, 6, EOS], [BOS])] * 2)
    model = build_model(config)
    with torch.no_grad():
        cache = model.encode(batch)
        model.step(batch.target.ids_BT, cache)
        cache.expand(3, 2)
        model.step(torch.full((6, 1), 4), cache)
    held = [*cache.recurrent["decoder"].tensors, *cache.cross_kv.values()]
    held += [] if cache.memory_BSD is None else [cache.memory_BSD]
    assert count_bytes(config, 5, 7, batch_size=2, beam=3).cache == sum(4 * tensor.numel() for tensor in held)


@pytest.mark.parametrize("score", SCORES)
def test_the_estimate_of_activations_is_within_a_fifth_of_what_autograd_keeps(score: str) -> None:
    config = seq2seq(d_model=128, attention=score, dropout=0.1)
    batch = right_padded([Sentence([4] * 29 + [EOS], [BOS] + [5] * 23)] * 4)
    model = build_model(config).train()
    parameters, kept = {p.untyped_storage().data_ptr() for p in model.parameters()}, dict[int, int]()

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logits_BTV = model(batch).logits_BTV
        torch.log_softmax(logits_BTV, -1).sum()
    assert count_bytes(config, 30, 24, batch_size=4).activations == pytest.approx(sum(kept.values()), rel=0.2)


# --- what they have not ----------------------------------------------------------------------------------------------


def test_rounds_halting_and_captures_are_refused_with_a_reason() -> None:
    config = seq2seq()
    model, batch = build_model(config), right_padded([Sentence([EOS], [BOS])])
    for call in (
        lambda: model(batch, n_steps=2),
        lambda: model.encode(batch, n_steps=2),
        lambda: count_macs(config, 3, 3, n_steps=2),
        lambda: model(batch, request=["weights"]),
    ):
        with pytest.raises(ConfigError, match="recurrence over positions"):
            call()
    with pytest.raises(ConfigError, match="it has no rounds"):
        run_as(model, halting_threshold=0.5)
    with pytest.raises(ConfigError, match="no stacks"):
        expected_depths(config, {"encoder": 2.0})


def test_two_directions_need_an_even_width() -> None:
    with pytest.raises(ConfigError, match="must be even"):
        LstmSeq2SeqConfig(d_model=7)
    LstmSeq2SeqConfig(d_model=7, bidirectional=False)


# --- operations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [seq2seq(tie_embeddings="none"), LstmLanguageModelConfig(d_model=8, vocab_size=9)])
def test_weights_come_back_from_a_checkpoint(config: Config, tmp_path: Path) -> None:
    model = build_model(config)
    save_model(model, tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.config == config
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name])


def test_dropout_acts_in_training_only_and_follows_the_seed() -> None:
    model = build_model(seq2seq(dropout=0.5, n_layers=2))
    batch: Batch = right_padded([Sentence([4, 5, EOS], [BOS, 4])])
    model.train()
    torch.manual_seed(3)
    first = model(batch).logits_BTV
    torch.manual_seed(3)
    assert torch.equal(first, model(batch).logits_BTV)
    assert not torch.equal(first, model(batch).logits_BTV)
    model.eval()
    assert torch.equal(model(batch).logits_BTV, model(batch).logits_BTV)
