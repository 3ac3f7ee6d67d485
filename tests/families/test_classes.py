"""All gradients of families whose public class is in transformers, against the class itself.

The stored numbers hold three gradients of a model, for the sake of size. Here the class is built and given the stored
weights and ids, and runs in float64.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import pytest
import torch
from family import FIXTURES, Family, families, numbers
from torch import Tensor

TOLD: dict[str, dict[str, Any]] = {
    name: json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8")) for name in families()
}
IN_TRANSFORMERS = [name for name, told in TOLD.items() if told["source"].get("package") == "transformers"]


def built(name: str, family: Family) -> Any:
    """Return the class with the stored settings and weights."""
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, TOLD[name]["source"]["class"], None)
    if kind is None:
        pytest.skip(f"transformers {transformers.__version__} has no {TOLD[name]['source']['class']}")
    settings = dict(TOLD[name]["settings"])
    ways = {"attn_implementation": settings.pop("attention"), "experts_implementation": "eager"}
    if settings.pop("experts") == "none":
        del ways["experts_implementation"]
    config = kind.config_class(**settings, **ways)
    # Constructors change some: T5's ties the matrices and scales what is read off them, whatever it is given.
    for key in ("tie_word_embeddings", "scale_decoder_outputs"):
        if key in settings:
            setattr(config, key, settings[key])
    model = kind(config)
    weights, tied = family.weights(), family.table(family.config()).tied
    found = model.load_state_dict({**weights, **{key: weights[other] for key, other in tied.items()}}, strict=False)
    assert not found.unexpected_keys
    assert set(found.missing_keys) <= {key for key, _ in model.named_buffers()}
    return model.double().eval()


@pytest.mark.parametrize("name", IN_TRANSFORMERS)
def test_all_gradients_are_those_of_the_class(name: str, record_property: Callable[[str, object], None]) -> None:
    family = families()[name]
    record_property("family", f"{name} (class)")
    record_property("check", "all gradients")
    theirs, held, table = built(name, family), numbers(name), family.table(family.config())
    # HRM-Text's gradient goes through its last cycles only, as published.
    variant = next(one for one in family.with_check("gradients") if one.name == "plain")
    # A constant bias (BART's, Marian's) is no parameter of theirs, but one of ours.
    known = {key: x.requires_grad_() for key, x in theirs.named_buffers() if key in table.names()}
    known |= dict(theirs.named_parameters())
    target = {"decoder_input_ids": held["dec_ids"].long()} if "dec_ids" in held else {}
    logits = theirs(input_ids=held["ids"].long(), **target).logits
    # Tables of rotary angles are in float32 in the classes.
    torch.testing.assert_close(logits, held["float64/plain/logits"], rtol=0, atol=1e-4)
    logits.square().sum().backward()
    expected: dict[str, Tensor] = {}
    for key, x in known.items():
        if not any(fnmatchcase(key, pattern) for pattern in table.ignored):
            # T5 1.1 holds its tied table three times.
            expected[table.tied.get(key, key)] = expected.get(table.tied.get(key, key), 0) + (
                torch.zeros_like(x) if x.grad is None else x.grad
            )
    found = family.gradients(variant)
    assert found.keys() == expected.keys()
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    for key, gradient in expected.items():
        # Of a bias of keys it is zero but for rounding: the softmax does not see what all scores have in common.
        scale = max(float(gradient.abs().max()), 1e-9 * largest)
        gap = float((found[key] - gradient).abs().max()) / scale
        assert gap <= family.gradients_within, f"{key}: {gap:.1e}"
