"""Models of which every process holds a part: torch's `fully_shard` (FSDP2) on the parameter sets of the banks.

One group for every parameter set that sub-layers use, by its kind and name: never one for an expert, whose parameters
are stacked, nor for a round. A group is gathered for a use: before a sub-layer computes, and again before its backward
pass. A set that several steps share may stay gathered (`FsdpConfig.keep_shared`). What is small or used everywhere
(norms, gates, positions, embeddings, the output projection) is one group of its own, gathered from the beginning of the
forward pass to the end of the backward pass. Parameters without dimensions stay whole in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from ostinato.budget.ranks import set_uses, shard_dimension
from ostinato.config.training import TrainingConfig
from ostinato.data.disk import new_folder
from ostinato.models import Model, build_model
from ostinato.models.checkpoint import WEIGHTS, write_description
from ostinato.nn.context import Pass, Round
from ostinato.nn.sub_layer import Runnable, SubLayer
from ostinato.system_errors import naming
from ostinato.training.gradients import all_reduce_gradients
from ostinato.training.optim import OPTIMIZER, OPTIMIZER_PARTS, load_optimizer_tensors, optimizer_tensors
from ostinato.training.parallel import Call, Computed, Parallel, run_through
from ostinato.training.processes import Processes, all_reduce, communicating
from ostinato.training.rng import preserved_randomness
from ostinato.training.shards import join_parts, read_parts, stored_sizes, write_parts


class _GatheredSubLayer:
    """A sub-layer whose parameter set is gathered for it.

    Args:
        keeps: it stays gathered until the backward pass is over.
    """

    def __init__(self, sub_layer: SubLayer, group: Call, keeps: bool) -> None:
        self._sub_layer, self._group, self._keeps = sub_layer, group, keeps

    def __call__(self, states_ND: Tensor, run: Pass, here: Round, sum_ND: Tensor | None = None) -> Tensor:
        """See `SubLayer`."""
        return self._gathered(lambda x_ND, onto_ND: self._sub_layer(x_ND, run, here, onto_ND), states_ND, sum_ND)

    def prepare(self, run: Pass) -> None:
        """See `SubLayer`: keys and values of the memory, of which the group sees that they leave it."""
        use = self._sub_layer.use
        if use.kind == "self_attention":  # its tables are of the group that stays gathered
            self._sub_layer.prepare(run)
        if use.kind == "cross_attention" and use.weights not in run.cross_kv:

            def made(memory_BSD: Tensor | None) -> Tensor:
                self._sub_layer.prepare(run)
                # No view: the hook that gathers the set in the backward pass sits on what is returned.
                run.cross_kv[use.weights] = run.cross_kv[use.weights].clone()
                return run.cross_kv[use.weights]

            self._gathered(made, run.memory_BSD)

    def fill_cache(self, states_0D: Tensor, run: Pass, here: Round) -> None:
        """See `SubLayer`: decoding is done with whole models."""
        raise NotImplementedError("a sharded model does not decode")

    def _gathered(self, compute: Callable[..., Tensor], *tensors: Tensor | None) -> Tensor:
        if not self._keeps:
            return self._group(compute, *tensors)  # type: ignore[no-any-return]
        # The hooks of a use are passed by: the gradients wait in the gathered set, and are added up over the processes
        # once, when the backward pass is over.
        self._group.unshard()  # type: ignore[operator]
        return compute(*tensors)


class Sharded(Parallel):
    """Kind fsdp. The model's parameters become this process's parts of them, tensors that know the whole (`DTensor`).

    Args:
        model: all of the model, with weights or (on the meta device) without; what is frozen is frozen before.
        config: of the run. device: where the parts are. keep_shared: see `FsdpConfig`.
    """

    runs_alike, saves_alone = True, False

    def __init__(
        self, model: Model, processes: Processes, config: TrainingConfig, device: torch.device, *, keep_shared: bool
    ) -> None:
        super().__init__(model, processes)
        with communicating(computes=True):
            self._mesh = init_device_mesh(device.type, (processes.world_size,))
        self.device = device
        plans = (stack.plan for stack in model.stacks.values())
        uses = set_uses(plans, is_drawn=config.draws_rounds)
        groups = {(kind, name): Call(parameter_set=getattr(model.banks, kind)[name]) for kind, name in uses}
        self._root = Call(sets=nn.ModuleList(groups.values()), model=model)
        whole = {p for p in model.parameters() if not p.ndim}
        with communicating(computes=True):
            for group in groups.values():
                self._shard(group, whole)
            # What the groups have now are parts.
            self._shard(self._root, whole.union(*(group.parameters() for group in groups.values())))

        def around(sub_layer: SubLayer) -> Runnable:
            name = sub_layer.use.kind, sub_layer.use.weights
            return _GatheredSubLayer(sub_layer, groups[name], keeps=keep_shared and uses[name] > 1)

        for stack in model.stacks.values():
            stack.surround(around)

    def _shard(self, module: nn.Module, ignored: set[nn.Parameter]) -> None:
        n = self.processes.world_size
        fully_shard(
            module,
            mesh=self._mesh,
            shard_placement_fn=lambda parameter: Shard(shard_dimension(tuple(parameter.shape), n)),
            ignored_params=ignored,
        )
        if isinstance(module, FSDPModule):
            # The loss is a mean over the labels of all processes: gradients are sums.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)

    def run(self, compute: Callable[[], Computed]) -> Computed:
        """See `Parallel`."""
        with communicating(computes=True):
            return run_through(self._root, compute)

    def backward(self, loss: Tensor) -> None:
        """See `Parallel`: sets are gathered again, and their gradients added up and cut into parts."""
        with communicating(computes=True):
            super().backward(loss)

    def add_up(self, numbers_V: Tensor) -> Tensor:
        """See `Parallel`; parameters without dimensions are added up as kind none does it."""
        return all_reduce_gradients((p for p in self.model.parameters() if not isinstance(p, DTensor)), numbers_V)

    def norm(self) -> Tensor:
        """See `Parallel`: the root of the sum over all parts of their squares."""
        parts, whole = self._gradients()
        norms = torch._foreach_norm(parts) if parts else ()
        squares = [torch.zeros((), device=self.device), *(norm.square() for norm in norms)]
        total = torch.stack(squares).sum()
        all_reduce(total)
        return torch.stack([total, *(gradient.square() for gradient in whole)]).sum().sqrt()

    def clip(self, norm: Tensor, most: float) -> None:
        """See `Parallel`."""
        parts, whole = self._gradients()
        torch._foreach_mul_(parts + whole, (most / (norm + 1e-6)).clamp(max=1.0))  # as torch's clipping does it

    def _gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return this process's parts of gradients, and the gradients that are whole in every process."""
        found = [p.grad for p in self.model.parameters() if p.grad is not None]
        parts = [gradient.to_local() for gradient in found if isinstance(gradient, DTensor)]
        return parts, [gradient for gradient in found if not isinstance(gradient, DTensor)]

    def whole_model(self) -> Model | None:
        """Return in rank 0 a copy of the model with all weights; None in the others. All processes call this."""
        with preserved_randomness(), torch.device("meta"):  # no weights are drawn, all of which are replaced
            copy = build_model(self.model.config, self.model.current_execution) if self.processes.is_main else None
        if copy is not None:
            copy.to_empty(device=self.device)
        weights = dict(copy.named_parameters()) if copy is not None else {}
        with torch.no_grad(), communicating(computes=True):
            for name, parameter in self.model.named_parameters():
                gathered = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
                if copy is not None:
                    weights[name].copy_(gathered)
        return copy

    def scatter(self, model: Model | None) -> None:
        """Give every process its part of the weights of a model that rank 0 has; None in the others."""
        self._root.to_empty(device=self.device)
        weights = {} if model is None else dict(model.named_parameters())
        with torch.no_grad(), communicating(computes=True):
            for name, parameter in self.model.named_parameters():
                whole = weights[name].to(self.device) if name in weights else self._like(parameter)
                if isinstance(parameter, DTensor):
                    part = distribute_tensor(whole, self._mesh, parameter.placements, src_data_rank=0)
                    parameter.to_local().copy_(part.to_local())
                else:
                    torch.distributed.broadcast(whole, src=0)
                    parameter.copy_(whole)

    def _like(self, parameter: Tensor) -> Tensor:
        return torch.empty(parameter.shape, dtype=parameter.dtype, device=self.device)

    @contextmanager
    def new_folder(self, path: Path) -> Iterator[Path]:
        """See `Parallel`: the same folder for all processes, which leave it when it has its name."""
        with new_folder(path) if self.processes.is_main else naming(path) as made:
            folder = Path(self.processes.broadcast(lambda: str(made)))
            yield folder
            self.processes.barrier()
        self.processes.barrier()

    def save(self, folder: Path, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """See `Parallel`: every process writes its parts; those of the weights are put together as in every run."""
        processes, parts, states = self.processes, folder / "weights", folder / OPTIMIZER_PARTS
        if processes.is_main:
            parts.mkdir()
            states.mkdir()
        processes.barrier()
        tensors = optimizer_tensors(self.model, optimizer)
        divided = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, DTensor)}
        weights = self.model.state_dict()
        write_parts(weights, parts, processes.rank)
        write_parts({f"{OPTIMIZER}{name}": tensor for name, tensor in divided.items()}, states, processes.rank)
        processes.barrier()
        if processes.is_main:
            join_parts(parts, folder / WEIGHTS, {name: x for name, x in weights.items() if not x.ndim})
            write_description(self.model, folder)
        return {name: tensor for name, tensor in tensors.items() if name not in divided}

    def load(self, folder: Path) -> None:
        """Read this process's parts of the weights of a checkpoint."""
        self._root.to_empty(device=self.device)
        read_parts(self.model.state_dict(), folder)

    def load_optimizer(self, folder: Path, optimizer: torch.optim.Optimizer) -> None:
        """Read this process's parts of the optimiser's state from a checkpoint, whatever processes wrote it.

        Raises:
            CheckpointError: it is that of another model.
        """
        parameters, tensors = dict(self.model.named_parameters()), dict[str, Tensor]()
        for place in (place for place in (folder, folder / OPTIMIZER_PARTS) if place.is_dir()):
            found = {}
            for key, size in stored_sizes(place).items():
                like = parameters.get(key.removeprefix(OPTIMIZER).partition("/")[2])
                if key.startswith(OPTIMIZER):
                    found[key] = torch.zeros(size) if like is None or like.shape != size else torch.zeros_like(like)
            read_parts(found, place)
            tensors |= {key.removeprefix(OPTIMIZER): tensor.detach() for key, tensor in found.items()}
        load_optimizer_tensors(self.model, optimizer, tensors)
