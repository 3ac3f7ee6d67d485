"""Tensors of several processes on disk: a safetensors file of every process's parts, read again by any number of them.

    folder/shard-00001-model-00001-of-00001.safetensors     parts of rank 0, and where in the whole they begin
           shard-00002-model-00001-of-00001.safetensors     parts of rank 1, ...

Planners, writer and reader are those of `torch.distributed.checkpoint`. Its `save` and `load` are not used, nor its own
files: between processes the former send pickles, and the latter are some. Nothing has to be agreed on: what is divided
is written by whoever has it, and what is whole by rank 0.
"""

from __future__ import annotations

import glob
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor

from ostinato.errors import CheckpointError


def write_parts(tensors: Mapping[str, Tensor], folder: Path, rank: int) -> None:
    """Write this process's parts of divided tensors, and in rank 0 whole ones, into an existing folder."""
    own = {
        name: tensor.detach()
        for name, tensor in tensors.items()
        if (tensor.to_local().numel() if isinstance(tensor, DTensor) else not rank)
    }
    if not own:
        return
    planner, writer = DefaultSavePlanner(), HuggingFaceStorageWriter(str(folder), save_distributed=True)
    planner.set_up_planner(own, writer.storage_meta(), is_coordinator=True)
    writer.set_up_storage_writer(is_coordinator=True)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    plan = planner.finish_plan(replace(plan, storage_data={"shard_index": rank + 1}))
    writer.write_data(plan, planner).wait()


def read_parts(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Fill tensors, divided or whole, from all safetensors files of a folder, whoever wrote them.

    Raises:
        CheckpointError: one is missing, or of another shape.
    """
    wanted = {
        name: tensor.detach()
        for name, tensor in tensors.items()
        if not isinstance(tensor, DTensor) or tensor.to_local().numel()
    }
    planner, reader = DefaultLoadPlanner(), HuggingFaceStorageReader(str(folder))
    try:
        metadata = reader.read_metadata()
        planner.set_up_planner(dict(wanted), metadata, is_coordinator=True)
        reader.set_up_storage_reader(metadata, is_coordinator=True)
        plan = planner.finish_plan(reader.prepare_local_plan(planner.create_local_plan()))
        reader.read_data(plan, planner).wait()
    except (RuntimeError, ValueError, OSError) as error:
        raise CheckpointError(f"{folder}: does not hold what the model and its optimiser need: {error}") from error


def stored_sizes(folder: Path) -> dict[str, torch.Size]:
    """Return the whole sizes of all tensors that the safetensors files of a folder hold, or hold parts of."""
    found = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return {name: one.size for name, one in found.items() if isinstance(one, TensorStorageMetadata)}


def read_whole(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of a folder, float32, put together from their parts."""
    tensors = {name: torch.empty(size) for name, size in stored_sizes(folder).items()}
    read_parts(tensors, folder)
    return tensors


def join_parts(parts: Path, path: Path, scalars: Mapping[str, Tensor]) -> None:
    """Put all parts of a folder together in one safetensors file of whole tensors, and delete the folder.

    Args:
        scalars: those of the tensors that have no dimensions: torch makes room for them, but leaves it 0.
    """
    names = dict.fromkeys(stored_sizes(parts), 1)
    joined = parts.with_name(f"{parts.name}-joined")
    writer = HuggingFaceStorageWriter(str(joined), names, save_distributed=True, enable_consolidation=True)
    joined.mkdir()
    parts.rename(writer.path)
    writer.path = glob.escape(str(writer.path))  # torch takes it for a pattern, and a folder may be named runs/lr[0.1]
    writer.finish(Metadata({}), [])
    next(joined.glob("*.safetensors")).replace(path)
    shutil.rmtree(joined)
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        for name, scalar in scalars.items():
            file.seek(8 + length + header[name]["data_offsets"][0])
            file.write(scalar.detach().cpu().numpy().tobytes())
