"""All gradients of families whose public class is in transformers, against the class itself.

The stored numbers hold three gradients of a model, for the sake of size. Here the class is built and given the stored
weights and ids, and runs in float64.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import pytest
import torch
from family import FIXTURES, FLOAT32, GRADIENTS, PLAIN, Family, Variant, families
from torch import Tensor
from twins import TWINS, V, drawn_ids, weights

from ostinato.data.batch import Batch
from ostinato.models import Model
from ostinato.nn.execution import Execution

TOLD: dict[str, dict[str, Any]] = {
    name: json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8")) for name in families()
}
IN_TRANSFORMERS = [name for name, told in TOLD.items() if told["source"].get("package") == "transformers"]


# Families whose class takes any number of rounds: its settings for r of them, ours where the recipe is no loop, and how
# close logits are in float64 (tables of rotary angles are in float32 in the classes).
LOOPS: dict[str, tuple[Callable[[int], dict[str, Any]], tuple[str, ...], float]] = {
    "albert": (
        lambda r: {"num_hidden_layers": r, "num_hidden_groups": 1},
        tuple(f"model.encoder.{part}={{share: all, n_unique: null}}" for part in ("self_attention", "ffn")),
        1e-10,
    ),
    "hrm-text": (lambda r: {"H_cycles": r, "num_hidden_layers": 8 * r}, (), 1e-5),
}


def built(name: str, family: Family, *, has_padding: bool = False, **changed: Any) -> Any:
    """Return the class with the stored settings, but for some, and the stored weights that it has."""
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, TOLD[name]["source"]["class"], None)
    if kind is None:
        pytest.skip(f"transformers {transformers.__version__} has no {TOLD[name]['source']['class']}")
    settings = TOLD[name]["settings"] | changed
    ways = {"attn_implementation": settings.pop("attention"), "experts_implementation": "eager"}
    if settings.pop("experts") == "none":
        del ways["experts_implementation"]
    if has_padding:
        ways["attn_implementation"] = "sdpa"  # in float64 "eager" gives nan for a token that sees padding only
    config = kind.config_class(**settings, **ways)
    # Constructors change some: T5's ties the matrices and scales what is read off them, whatever it is given.
    for key in ("tie_word_embeddings", "scale_decoder_outputs"):
        if key in settings:
            setattr(config, key, settings[key])
    model = kind(config)
    weights, tied = family.weights(), family.table(family.config()).tied
    found = model.load_state_dict({**weights, **{key: weights[other] for key, other in tied.items()}}, strict=False)
    assert changed or not found.unexpected_keys
    assert set(found.missing_keys) <= {key for key, _ in model.named_buffers()}
    return model.double().eval()


def of_class(theirs: Any, batch: Batch, *, is_numbered: bool) -> Tensor:
    """Return the logits of the class, whose mask is that of what is read: the source, where there is one."""
    read = batch.source or batch.target
    given = {} if batch.source is None else {"decoder_input_ids": batch.target.ids_BT}
    if is_numbered and read.positions_BT is not None:
        given["position_ids"] = read.positions_BT
    return theirs(input_ids=read.ids_BT, attention_mask=read.keep_BT.long(), **given).logits  # type: ignore[no-any-return]


def assert_all_gradients(family: Family, theirs: Any, variant: Variant, model: Model | None = None) -> Tensor:
    """Compare all gradients of real tokens' logits with those of the class; return its logits."""
    batch, table = family.batch(variant), family.table(family.config())
    # A constant bias (BART's, Marian's) is no parameter of theirs, but one of ours.
    known = {key: x.requires_grad_() for key, x in theirs.named_buffers() if key in table.names()}
    known |= dict(theirs.named_parameters())
    # GPT-2 with positions given is a variant of its own.
    logits = of_class(theirs, batch, is_numbered=variant.name == "left_positions")
    logits[batch.target.keep_BT].square().sum().backward()
    expected: dict[str, Tensor] = {}
    for key, x in known.items():
        if not any(fnmatchcase(key, pattern) for pattern in table.ignored):
            # T5 1.1 holds its tied table three times.
            expected[table.tied.get(key, key)] = expected.get(table.tied.get(key, key), 0) + (
                torch.zeros_like(x) if x.grad is None else x.grad
            )
    found = family.gradients(variant, model)
    assert found.keys() == expected.keys()
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    for key, gradient in expected.items():
        # Of a bias of keys it is zero but for rounding: the softmax does not see what all scores have in common.
        scale = max(float(gradient.abs().max()), 1e-9 * largest)
        gap = float((found[key] - gradient).abs().max()) / scale
        assert gap <= GRADIENTS, f"{key}: {gap:.1e}"
    return logits.detach()


def stored() -> list[Any]:
    """Return the stored batches of every family, those with padding as slow tests."""
    found = families()
    return [
        pytest.param(name, variant, id=f"{name}-{variant.name}", marks=pytest.mark.slow if variant.inputs else [])
        for name in IN_TRANSFORMERS
        for variant in found[name].with_check("numbers")
    ]


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "variant"), stored())
def test_all_gradients_are_those_of_the_class(
    name: str, variant: Variant, record_property: Callable[[str, object], None]
) -> None:
    family = families()[name]
    record_property("family", f"{name} (class)")
    record_property("check", "padded gradients" if variant.inputs else "all gradients")
    logits = assert_all_gradients(
        family, built(name, family, has_padding=bool(variant.inputs)), as_published(name, variant)
    )
    keep = family.batch(variant).target.keep_BT
    # Tables of rotary angles are in float32 in the classes.
    torch.testing.assert_close(logits[keep], family.expected(variant, "float64")[keep], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "rounds", [1, pytest.param(2, marks=pytest.mark.slow), 4, pytest.param(8, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", LOOPS)
def test_a_class_that_takes_any_number_of_rounds(
    name: str, rounds: int, record_property: Callable[[str, object], None]
) -> None:
    changed, settings, within = LOOPS[name]
    family = replace(families()[name], settings=settings)
    record_property("family", f"{name} (class)")
    record_property("check", "all gradients")
    record_property("rounds", rounds)
    theirs = built(name, family, **changed(rounds))
    weights = halved(theirs, family)
    variant = as_published(name, Variant("plain", call={"n_steps": rounds}))
    logits = assert_all_gradients(family, theirs, variant, family.model(weights=weights))
    for dtype, allowed in ((torch.float64, within), (torch.float32, 1e-5)):
        with torch.no_grad():
            ours = variant.logits(family.model(dtype, weights), family.batch(variant))
        torch.testing.assert_close(ours.double(), logits, rtol=0, atol=allowed)


def less_exact() -> list[str]:
    """Return the families of which some stored float32 logits are compared less closely than within 1e-5."""
    found = families()
    return [
        name
        for name in IN_TRANSFORMERS
        if any(found[name].within(one, torch.float32) > FLOAT32 for one in found[name].with_check("numbers"))
    ]


@pytest.mark.parametrize("name", less_exact())
def test_logits_in_float32_of_smaller_weights(name: str, record_property: Callable[[str, object], None]) -> None:
    family = families()[name]
    record_property("family", f"{name} (class)")
    record_property("check", "float32")
    theirs, batch = built(name, family), family.batch(PLAIN)
    weights = halved(theirs, family)
    with torch.no_grad():
        ours = PLAIN.logits(family.model(torch.float32, weights), batch)
        torch.testing.assert_close(ours.double(), of_class(theirs, batch, is_numbered=False), rtol=0, atol=FLOAT32)


def halved(theirs: Any, family: Family) -> dict[str, Tensor]:
    """Halve the matrices of a class, which as stored multiply a rounding error of float32 beyond 1e-5; return all."""
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.mul_(0.5 if parameter.ndim > 1 else 1.0)
    return {key: x for key, x in theirs.state_dict().items() if key in family.weights()}


def as_published(name: str, variant: Variant) -> Variant:
    """Return a call whose gradient goes where the class lets it: in HRM-Text, whose last cycles alone have one."""
    cut = {"execution": Execution(gradient_repeats=(1, 2))} if name == "hrm-text" else {}
    return replace(variant, call={**variant.call, **cut})


@pytest.mark.parametrize("rounds", [1, 4])
def test_the_looped_transformer_of_yang_is_gpt2s_body_run_on_its_output_and_the_embeddings(
    rounds: int, record_property: Callable[[str, object], None]
) -> None:
    record_property("family", "length generalisation (Yang) (class)")
    record_property("check", "float64")
    record_property("rounds", rounds)
    transformers = pytest.importorskip("transformers")
    model, ids = TWINS["length generalisation (Yang)"].model(), drawn_ids()
    sizes = {"n_embd": 32, "n_head": 4, "n_inner": 128, "n_positions": 64, "vocab_size": V, "n_layer": 1}
    body = transformers.GPT2Model(transformers.GPT2Config(**sizes, attn_implementation="eager")).double().eval()
    ours, names = weights(model), {"self_attention": ("ln_1", "attn"), "ffn": ("ln_2", "mlp")}
    with torch.no_grad():
        body.wpe.weight.copy_(ours["banks.positions.decoder.weight"])
        body.ln_f.load_state_dict({part: ours[f"banks.norm.round_decoder_0.{part}"] for part in ("weight", "bias")})
        for kind, (norm, layer) in names.items():
            for part in ("weight", "bias"):
                getattr(getattr(body.h[0], norm), part).copy_(ours[f"banks.norm.{kind}_decoder_0.{part}"])
                maps = {"qkv": "c_attn", "out": "c_proj"} if layer == "attn" else {"up": "c_fc", "down": "c_proj"}
                for mine, theirs in maps.items():
                    # Theirs are stored the other way round.
                    getattr(getattr(getattr(body.h[0], layer), theirs), part).copy_(
                        ours[f"banks.{kind}.decoder_0.{mine}.{part}"].t()
                    )
        e = torch.nn.functional.embedding(ids, ours["target_weight"])
        z = torch.zeros_like(e)
        for _ in range(rounds):
            z = body(inputs_embeds=z + e).last_hidden_state
        logits = z @ ours["output_weight"].T + ours["output_bias"]
        torch.testing.assert_close(model(ids, n_steps=rounds).logits_BTV, logits, rtol=0, atol=1e-10)
