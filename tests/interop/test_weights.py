"""Tables of names: both directions, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ostinato.errors import CheckpointError
from ostinato.interop import HalfSplit, Part, Reshaped, Rule, Table, Transposed, from_ours, rules_of_layers, to_ours

K, H = 4, 2


def table() -> Table:
    """Queries and keys of two layers (rows interleaved in theirs), a map stored transposed, a vector in two places."""
    turned = (HalfSplit(K),)
    of_layer = [
        Rule(
            "layer_{i}.qkv",
            Part("h.{i}.wqkv", turned, rows=(0, H * K), size=H * K),
            Part("h.{i}.wqkv", turned, rows=(H * K, 2 * H * K), size=H * K),
            Part("h.{i}.wqkv", rows=(2 * H * K, 3 * H * K), size=H * K),
        ),
        Rule("layer_{i}.bias", Part("h.{i}.bias", (Reshaped((1, H, K), (H * K,)), *turned))),
        Rule("layer_{i}.down", Part("h.{i}.proj", (Transposed(),))),
    ]
    rules = rules_of_layers([("a", 0), ("b", 1)], of_layer)
    rules += [Rule("first", "norm"), Rule("last", "norm"), Rule("embedding", "wte")]
    return Table(rules, tied={"lm_head": "wte"}, ignored=("h.*.mask",))


def theirs() -> dict[str, Tensor]:
    torch.manual_seed(0)
    found = {"norm": torch.randn(3), "wte": torch.randn(5, 3)}
    for name in "ab":
        found |= {f"h.{name}.wqkv": torch.randn(3 * H * K, 3), f"h.{name}.bias": torch.randn(1, H, K)}
        found |= {f"h.{name}.proj": torch.randn(3, 7)}
    return found


def test_there_and_back_every_number_is_the_same() -> None:
    given = theirs()
    ours = to_ours(table(), given)
    assert torch.equal(ours["layer_1.down"], given["h.b.proj"].T)
    # Of every head the even rows first; values stay.
    order = [0, 2, 1, 3, 4, 6, 5, 7]
    assert torch.equal(ours["layer_0.qkv"][: H * K], given["h.a.wqkv"][order])
    assert torch.equal(ours["layer_0.qkv"][2 * H * K :], given["h.a.wqkv"][2 * H * K :])
    assert torch.equal(ours["layer_0.bias"], given["h.a.bias"].flatten()[order])
    back = from_ours(table(), ours)
    assert back.keys() == given.keys()
    assert all(torch.equal(back[name], x) for name, x in given.items())


def test_rows_that_are_not_turned_stay_where_they_are() -> None:
    rows = torch.arange(12.0)[:, None]
    found = HalfSplit(6, 4).to_ours(rows)
    assert found.flatten().tolist() == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]
    assert torch.equal(HalfSplit(6, 4).to_theirs(found), rows)


def test_gradients_of_a_tensor_in_two_places_are_added_up_and_weights_must_agree() -> None:
    ours = to_ours(table(), theirs())
    ours["last"] = ours["first"] + 1
    assert torch.equal(from_ours(table(), ours, shared="sum")["norm"], 2 * ours["first"] + 1)
    with pytest.raises(CheckpointError, match="norm: parameters of ours that should be this one tensor differ"):
        from_ours(table(), ours)


def test_all_that_is_wrong_with_a_file_is_said_at_once() -> None:
    given = theirs() | {"lm_head": torch.zeros(5, 3), "h.a.mask": torch.zeros(1), "h.c.proj": torch.zeros(1)}
    del given["h.b.bias"]
    given["h.a.proj"] = torch.zeros(4)
    shapes = {name: x.shape for name, x in to_ours(table(), theirs()).items()} | {"more": torch.Size([2])}
    shapes["embedding"] = torch.Size([6, 3])
    with pytest.raises(CheckpointError) as caught:
        to_ours(table(), given, shapes)
    lines = str(caught.value).splitlines()
    for wanted in (
        "h.b.bias is missing",
        "h.c.proj is not known: nothing of the model is made of it",
        "lm_head should be the same tensor as wte, but differs",
        "h.a.proj [4] cannot become layer_0.down",
        "wte [5, 3] would make [5, 3], but embedding is [6, 3]",
        "no rule makes more of the model",
    ):
        assert any(line.startswith(wanted) for line in lines), wanted
    assert len(lines) == 6


def test_a_tied_tensor_may_be_there_or_not() -> None:
    given = theirs()
    for more in ({}, {"lm_head": given["wte"].clone()}):
        assert torch.equal(to_ours(table(), given | more)["embedding"], given["wte"])


def test_what_is_wrong_with_a_model_is_said_at_once() -> None:
    ours = to_ours(table(), theirs())
    del ours["first"], ours["last"]
    with pytest.raises(CheckpointError) as caught:
        from_ours(table(), ours | {"other": torch.zeros(1), "layer_0.qkv": torch.zeros(5, 3)})
    lines = str(caught.value).splitlines()
    assert [line for line in lines if "layer_0.qkv [5, 3] cannot be taken apart" in line]
    assert {"first is missing", "last is missing", "other is not known: no rule takes it"} <= set(lines)


def test_rows_must_make_up_a_whole_tensor() -> None:
    rules = [Rule("a", Part("x", rows=(0, 2))), Rule("b", Part("x", rows=(3, 4)))]
    with pytest.raises(CheckpointError, match=r"x: rows \[\(0, 2\), \(3, 4\)\] do not make up a whole tensor"):
        from_ours(Table(rules), {"a": torch.zeros(2), "b": torch.zeros(1)})


def test_a_rule_of_several_parts_needs_their_sizes() -> None:
    with pytest.raises(ValueError, match="every one needs its size"):
        Rule("a", "x", "y")
    with pytest.raises(CheckpointError, match="x should give 3 along dimension 0, not 2"):
        to_ours(Table([Rule("a", Part("x", size=3), Part("y", size=1))]), {"x": torch.zeros(2), "y": torch.zeros(1)})
