"""Tensors in the files of several processes: whole ones here, divided ones in `test_parallel`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ostinato.errors import CheckpointError
from ostinato.training.shards import join_parts, read_parts, read_whole, stored_sizes, write_parts


def test_what_is_written_is_read_and_joined_also_without_dimensions(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {"a/b.c": torch.randn(5, 3), "one": torch.randn(()), "row": torch.randn(1, 4)}
    parts = tmp_path / "parts"
    parts.mkdir()
    write_parts(tensors, parts, 0)
    write_parts(tensors, parts, 1)  # what is whole is written once
    assert [path.name for path in parts.iterdir()] == ["shard-00001-model-00001-of-00001.safetensors"]
    assert stored_sizes(parts) == {name: tensor.shape for name, tensor in tensors.items()}
    for found in (read_whole(parts), {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}):
        read_parts(found, parts)
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    with pytest.raises(CheckpointError, match="does not hold what the model and its optimiser need"):
        read_parts({"another": torch.zeros(2)}, parts)
    join_parts(parts, tmp_path / "whole.safetensors", {"one": tensors["one"]})
    joined = load_file(tmp_path / "whole.safetensors")
    assert joined.keys() == tensors.keys()
    assert all(torch.equal(joined[name], tensor) for name, tensor in tensors.items())
    assert [path.name for path in tmp_path.iterdir()] == ["whole.safetensors"]


def test_parts_are_joined_in_a_folder_whose_name_looks_like_a_pattern(tmp_path: Path) -> None:
    parts = tmp_path / "lr[0.1]" / "parts"
    parts.mkdir(parents=True)
    tensors = {"a": torch.randn(5, 3), "one": torch.randn(())}
    write_parts(tensors, parts, 0)
    join_parts(parts, parts.parent / "whole.safetensors", {"one": tensors["one"]})
    joined = load_file(parts.parent / "whole.safetensors")
    assert joined.keys() == tensors.keys()
    assert all(torch.equal(joined[name], tensor) for name, tensor in tensors.items())
