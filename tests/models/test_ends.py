"""What stands before the first step and behind the last one: positions, types, maps and norms of embeddings, logits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from architectures import random_model
from ostinato.config.load import check_recipe
from ostinato.config.model import EncoderConfig, LanguageModelConfig, Seq2SeqConfig
from ostinato.errors import ConfigError, DataError
from ostinato.models import Encoder, LanguageModel, build_model
from ostinato.models.base import as_batch
from ostinato.nn.layers import OffsetRMSNorm, build_norm
from ostinato.nn.positions import sinusoids

STACK: dict[str, Any] = {"n_steps": 1, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 6}}
LEARNED: dict[str, Any] = {"positions": {"kind": "learned", "max_length": 5, "offset": 2}}


def language_model(stack: dict[str, Any] | None = None, **settings: Any) -> LanguageModel:
    """Return a random tiny model."""
    given = {"d_model": 8, "vocab_size": 9, "dropout": 0.0, "decoder": STACK | (stack or {})}
    model = random_model(LanguageModelConfig.model_validate(given | settings))
    assert isinstance(model, LanguageModel)
    return model


def with_the_same_weights(model: LanguageModel, **settings: Any) -> LanguageModel:
    """Return a model with other settings of its ends and the weights of one that has them all."""
    other = language_model(**settings)
    other.load_state_dict({name: x for name, x in model.state_dict().items() if name in other.state_dict()})
    return other


IDS = torch.tensor([[1, 4, 5, 6], [1, 7, 2, 3]])


def test_scale_bias_and_soft_cap_are_what_their_equation_says() -> None:
    plain = language_model()
    z = plain(IDS).logits_BTV
    scaled = with_the_same_weights(plain, output={"scale": 0.25})
    torch.testing.assert_close(scaled(IDS).logits_BTV, 0.25 * z)
    as_t5 = with_the_same_weights(plain, output={"scale": True})
    torch.testing.assert_close(as_t5(IDS).logits_BTV, z / math.sqrt(8))
    capped = with_the_same_weights(plain, output={"soft_cap": 1.5})
    torch.testing.assert_close(capped(IDS).logits_BTV, 1.5 * torch.tanh(z / 1.5))
    assert bool((capped(IDS).logits_BTV.abs() < 1.5).all())
    assert bool((z.abs() > 1.5).any())
    biased = language_model(output={"bias": True, "scale": 0.25})
    assert biased.output_bias is not None
    bias_V = biased.output_bias.detach().clone()
    biased.load_state_dict({**plain.state_dict(), "output_bias": bias_V})
    torch.testing.assert_close(biased(IDS).logits_BTV, 0.25 * z + bias_V)


def test_embeddings_are_scaled_by_a_number_or_by_the_root_of_the_width() -> None:
    weight = torch.randn(9, 8, dtype=torch.float64)
    for given, factor in ((True, math.sqrt(8)), (False, 1.0), (50, 50.0), (0.5, 0.5)):
        model = language_model(embedding_scale=given)
        torch.testing.assert_close(model.embed(IDS, weight), factor * weight[IDS])


def test_a_learned_position_is_a_row_of_the_table_behind_its_offset() -> None:
    model = language_model(LEARNED)
    table = model.banks.positions["decoder"]
    assert table.weight.shape == (7, 8)
    with torch.no_grad():
        before = model(IDS).logits_BTV
        table.weight[:2] += 1.0  # rows that no position has
        assert torch.equal(model(IDS).logits_BTV, before)
        table.weight[4] += 1.0  # of position 2
        after = model(IDS).logits_BTV
    assert torch.equal(after[:, :2], before[:, :2])
    assert not torch.allclose(after[:, 2], before[:, 2])


def test_a_sequence_without_a_learned_position_is_a_named_error() -> None:
    model = language_model(LEARNED, output={"bias": True})
    reason = r"a sequence of 6 tokens in the decoder, which has learned positions for 5 \(model.decoder.positions"
    with pytest.raises(DataError, match=reason):
        model(torch.ones(1, 6, dtype=torch.long))
    with pytest.raises(DataError, match=reason):
        model.train()(torch.ones(1, 6, dtype=torch.long))
    model.eval()
    with torch.no_grad():
        model.output_bias[2] = -1e4  # type: ignore[index]  # never ends
    # A search ends where the positions do: the last token is not read again.
    assert len(model.float().generate(torch.tensor([[1, 4]]), max_length=20)[0]) == 4
    assert len(model.generate(torch.tensor([[1, 4]]), max_length=4, min_length=4)[0]) == 4
    # Padding on the left has no position.
    keep = torch.tensor([[False, True, True, True, True, True]])
    cache = model.encode(as_batch(IDS[:1], None))
    assert model.step(torch.ones(1, 6, dtype=torch.long), cache, keep).shape == (1, 9)


def test_lengths_without_a_learned_position_are_errors_of_a_recipe() -> None:
    encoder = {"positions": {"kind": "learned", "max_length": 100}}
    with pytest.raises(ConfigError) as caught:
        check_recipe({"model": {"encoder": encoder, "decoder": encoder}, "data": {"max_target_length": 64}})
    assert [(one.key, one.value) for one in caught.value.problems] == [
        ("data.max_source_length", 1024),
        ("decoding.max_length", 256),
    ]
    assert "has no position beyond model.encoder.positions.max_length = 100" in str(caught.value)
    masked = {"kind": "encoder", "encoder": encoder}
    with pytest.raises(ConfigError, match=r"data\.block_length is 128: has no position"):
        check_recipe({"model": masked, "data": {"block_length": 128}})
    labels = {"kind": "encoder", "encoder": encoder, "head": {"kind": "classification"}}
    with pytest.raises(ConfigError, match=r"data\.max_source_length is 1024: has no position"):
        check_recipe({"model": labels})


def test_sinusoids_in_halves_are_the_same_numbers_in_another_order() -> None:
    positions = torch.arange(300)
    interleaved, halves = sinusoids(positions, 6), sinusoids(positions, 6, in_halves=True)
    assert torch.equal(halves[:, :3], interleaved[:, 0::2])
    assert torch.equal(halves[:, 3:], interleaved[:, 1::2])


def encoder(**settings: Any) -> Encoder:
    """Return a random tiny encoder."""
    given = {"d_model": 8, "vocab_size": 9, "dropout": 0.0, "encoder": STACK} | settings
    model = random_model(EncoderConfig.model_validate(given))
    assert isinstance(model, Encoder)
    return model


def test_token_types_are_rows_of_their_table_and_row_0_where_none_are_given() -> None:
    model = encoder(n_token_types=2)
    zeros = torch.zeros_like(IDS)
    plain = model(IDS).logits_BTV
    assert torch.equal(plain, model(IDS, token_types=zeros).logits_BTV)
    types = zeros.clone()
    types[0, 2:] = 1
    other = model(IDS, token_types=types).logits_BTV
    assert not torch.allclose(other[0], plain[0])
    torch.testing.assert_close(other[1], plain[1])
    with torch.no_grad():
        model.type_weight[1] = model.type_weight[0]  # type: ignore[index]
    torch.testing.assert_close(model(IDS, token_types=types).logits_BTV, plain)
    with pytest.raises(DataError, match="this model has no token types"):
        encoder()(IDS, token_types=zeros)


def test_a_factorised_embedding_needs_a_way_back_where_logits_are_over_the_vocabulary() -> None:
    with pytest.raises(ConfigError, match=r"d_embedding is 4: the output projection is as wide as the embeddings: set"):
        language_model(d_embedding=4)
    model = language_model(d_embedding=4, output={"transform": {"activation": "none", "norm": None}})
    assert model.target_weight.shape == (9, 4)
    assert model(IDS).logits_BTV.shape == (2, 4, 9)
    labels = encoder(d_embedding=4, n_labels=3, head={"kind": "classification"})
    assert labels.output_transform is None
    with pytest.raises(ConfigError, match=r"output\.bias is True: has no effect: model\.head\.kind=classification"):
        check_recipe({"model": {"kind": "encoder", "head": {"kind": "classification"}, "output": {"bias": True}}})
    with pytest.raises(ConfigError, match=r"model\.embedding_bias is False: has no effect without model\.d_embedding"):
        check_recipe({"model": {"embedding_bias": False}})


def test_source_and_target_may_have_one_embedding_and_the_output_projection_another() -> None:
    sizes = {"d_model": 8, "source_vocab_size": 9, "target_vocab_size": 9, "tie_embeddings": "input"}
    model = build_model(Seq2SeqConfig.model_validate(sizes | {"encoder": STACK, "decoder": STACK}))
    assert model.source_embedding is model.target_embedding
    assert model.output_projection is model.output_weight
    with pytest.raises(ConfigError, match="needs one joint vocabulary"):
        Seq2SeqConfig.model_validate(sizes | {"source_vocab_size": 8})


def test_a_norm_has_the_parameters_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 8, dtype=torch.float64)
    rms = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    offset = build_norm("rms", 8, 1e-6, unit_offset=True).double()
    assert isinstance(offset, OffsetRMSNorm)
    torch.testing.assert_close(offset(x), rms)
    weight = torch.randn(8, dtype=torch.float64)
    offset.weight.data = weight
    torch.testing.assert_close(offset(x), rms * (1 + weight))
    assert_no_parameters(build_norm("rms", 8, 1e-6, weight=False), x, rms)
    layer = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()
    assert_no_parameters(build_norm("layer", 8, 1e-6, weight=False), x, layer)
    assert [name for name, _ in build_norm("layer", 8, 1e-6, bias=False).named_parameters()] == ["weight"]


def assert_no_parameters(norm: torch.nn.Module, x: Tensor, expected: Tensor) -> None:
    """Compare what a norm without parameters gives."""
    assert not list(norm.parameters())
    torch.testing.assert_close(norm(x), expected)


@pytest.mark.parametrize(
    ("norm", "reason"),
    [
        ({"kind": "rms", "bias": False}, r"norm\.bias is False: has no effect: rms has no bias"),
        ({"weight": False, "bias": False}, r"norm\.bias is False: has no effect: model\.encoder\.norm\.weight=false"),
        ({"unit_offset": True}, r"norm\.unit_offset is True: needs model\.encoder\.norm\.kind=rms"),
        ({"first": False}, r"norm\.first is False: needs model\.encoder\.norm\.placement pre, peri or sandwich"),
    ],
)
def test_settings_of_norms_that_say_nothing_are_refused(norm: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_recipe({"model": {"encoder": {"norm": norm}}})
