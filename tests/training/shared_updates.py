"""Updates that several processes do together, or one alone: cases without anything random in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from routed_models import tiny_batches, tiny_model
from tiny_runs import BALANCE, HALTING, tiny_recipe
from torch import Tensor

from architectures import Sentence, right_padded
from ostinato.config.experts import HeadExpertAttentionConfig
from ostinato.config.loops import SegmentConfig
from ostinato.config.model import EncoderConfig
from ostinato.config.recipe import Recipe
from ostinato.config.training import BalanceConfig, DepthCostConfig, TrainingConfig, UniformRoundsConfig
from ostinato.data.batch import Batch
from ostinato.models import Model
from ostinato.training.freeze import freeze
from ostinato.training.optim import build_optimizer
from ostinato.training.parallel import Parallel
from ostinato.training.processes import SINGLE_PROCESS, Processes
from ostinato.training.update import Gradient, Updater
from running import run_as

N_UPDATES = 2
NO_BALANCE = dict.fromkeys(BALANCE, 0.0)
ALL_BALANCE = {"switch": 0.5, "hypersphere": 0.5, "mutual_information": 0.5, "z": 0.1, "importance": 0.5}
ALL_BALANCE |= {"sequence_entropy": 0.5, "attention_factor": 0.5}
GATE_ALONE: dict[str, Any] = {"label_smoothing": 0.0, "freeze": ["*"], "freeze_except": ["banks.halting.*"]}
Case = tuple[Recipe, list[Batch]]


def _without_chance(settings: Any) -> Any:
    if isinstance(settings, dict):
        nothing = {"dropout": 0.0, "n_sampled": 0}
        return {key: nothing.get(key, _without_chance(value)) for key, value in settings.items()}
    return [_without_chance(value) for value in settings] if isinstance(settings, list) else settings


def still(recipe: Recipe) -> Recipe:
    """Return a recipe without dropout and sampled experts."""
    settings = _without_chance(recipe.model.model_dump(mode="json"))
    return recipe.model_copy(update={"model": type(recipe.model).model_validate(settings)})


def _recipe(folder: Path, *, balance: dict[str, float] = NO_BALANCE, off_updates: int = 0, **settings: Any) -> Recipe:
    recipe = still(tiny_recipe(folder, **{"clip_norm": 0.5, "n_updates": N_UPDATES} | settings))
    # Gradients that are nothing but rounding would else move their parameters as far as others do.
    optimizer = recipe.training.optimizer.model_copy(update={"eps": 1e-2})
    halting = DepthCostConfig(**HALTING | {"off_updates": off_updates, "warmup": 0, "weight": 0.3})
    update = {"optimizer": optimizer, "balance": BalanceConfig(**balance), "halting": halting}
    return recipe.model_copy(update={"training": recipe.training.model_copy(update=update)})


def _universal(folder: Path, **settings: Any) -> Recipe:
    recipe = _recipe(folder, **settings)
    steps = {"n_steps": 3, "share": "all"}
    stacks = {name: stack.model_copy(update=steps) for name, stack in recipe.model.stacks().items()}
    return recipe.model_copy(update={"model": recipe.model.model_copy(update=stacks)})


def _consistent(folder: Path) -> Recipe:
    """Two loops, each with a second pass of fewer rounds."""
    recipe = _recipe(folder, consistency={"loss": 0.5, "states": 0.5})
    loop = {"n_steps": 1, "segments": [SegmentConfig(repeats=4, vectors=True)]}
    stacks = {name: stack.model_copy(update=loop) for name, stack in recipe.model.stacks().items()}
    return recipe.model_copy(update={"model": recipe.model.model_copy(update=stacks)})


def _of_shared_steps(recipe: Recipe, **stack: Any) -> Recipe:
    """Return a recipe whose stacks may run any number of rounds."""
    settings = recipe.model.model_dump(mode="json")
    for name in recipe.model.stacks():
        shared = {
            kind: sub | {"share": "all"}
            for kind, sub in settings[name].items()
            if isinstance(sub, dict) and "share" in sub
        }
        settings[name] |= shared | {"positions": {"kind": "sinusoidal"}} | stack
    return recipe.model_copy(update={"model": type(recipe.model).model_validate(settings)})


def _by_sentence(folder: Path) -> Recipe:
    """Sentences have rounds of their own, in the first of which some have no gradient."""
    recipe = _of_shared_steps(_recipe(folder), n_steps=2)
    rounds = UniformRoundsConfig(least=1, most=5, per="sentence", gradient_rounds=2)
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"rounds": rounds})})


def _experts_in_drawn_rounds(folder: Path) -> Recipe:
    """Experts choose in other numbers of rounds than the plan has, more and fewer."""
    recipe = _of_shared_steps(_recipe(folder, experts=True, balance=ALL_BALANCE), n_steps=3)
    training = recipe.training.model_copy(update={"rounds": UniformRoundsConfig(least=1, most=8)})
    return recipe.model_copy(update={"training": training})


def _by_length(folder: Path) -> Recipe:
    """A source has as many rounds as tokens."""
    return _of_shared_steps(_recipe(folder), n_steps=8, halting={"kind": "length", "per_token": 1.0, "extra": 0.0})


def _injected(folder: Path) -> Recipe:
    """A prelude, a loop that reads what entered it in every round, in fewer of which there is a gradient, a coda."""
    rounds = UniformRoundsConfig(least=2, most=4, gradient_rounds=2)
    recipe = _recipe(folder)
    loop = {"repeats": 3, "inject": {"kind": "linear"}, "delta_rank": 2, "round_norm": True}
    segments = [SegmentConfig(), SegmentConfig.model_validate(loop), SegmentConfig()]
    stacks = {
        name: stack.model_copy(update={"n_steps": 3, "segments": segments})
        for name, stack in recipe.model.stacks().items()
    }
    training = recipe.training.model_copy(update={"rounds": rounds})
    return recipe.model_copy(update={"model": recipe.model.model_copy(update=stacks), "training": training})


def _with_tables(folder: Path) -> Recipe:
    """A loop in which tables of relative positions and of tokens' values serve rounds with a gradient and without."""
    recipe = _recipe(folder, checkpoint_activations=True)
    settings = recipe.model.model_dump(mode="json")
    loop = SegmentConfig(repeats=4, inject={"kind": "add"}).model_dump(mode="json")
    for name in recipe.model.stacks():
        tables = {"relative": {"kind": "buckets"}, "value_embeddings": {"gate_width": 4}}
        settings[name] |= {"n_steps": 1, "segments": [loop]} | tables
    rounds = UniformRoundsConfig(least=3, most=4, gradient_rounds=2)
    training = recipe.training.model_copy(update={"rounds": rounds})
    return recipe.model_copy(update={"model": type(recipe.model).model_validate(settings), "training": training})


def _everything(folder: Path, **settings: Any) -> Recipe:
    return _recipe(folder, experts=True, halting=True, balance=ALL_BALANCE, **settings)


def _of_heads(folder: Path) -> Recipe:
    recipe = _recipe(folder, halting=True, balance=ALL_BALANCE)
    attention = HeadExpertAttentionConfig(n_heads=2, n_experts=3, share="all")
    stacks = {
        name: stack.model_copy(update={"n_steps": 2, "self_attention": attention})
        for name, stack in recipe.model.stacks().items()
    }
    return recipe.model_copy(update={"model": recipe.model.model_copy(update=stacks)})


def _in_loops(folder: Path, loop: dict[str, Any], stack: dict[str, Any], **settings: Any) -> Recipe:
    """A prelude, a loop of three rounds, and a coda, with more that a loop and a stack may have."""
    recipe = _recipe(folder, **settings)
    model = recipe.model.model_dump(mode="json")
    segments = [SegmentConfig(), SegmentConfig(repeats=3, **loop), SegmentConfig()]
    whole = {"n_steps": 3, "segments": [segment.model_dump(mode="json") for segment in segments]} | stack
    for name in recipe.model.stacks():
        model[name] |= whole
    return recipe.model_copy(update={"model": type(recipe.model).model_validate(model)})


def _exit(folder: Path, loss: str, **settings: Any) -> Recipe:
    """The coda and the output read every round, for a loss that a learned exit weighs."""
    settings |= {"round_loss": {"kind": loss}}
    return _in_loops(folder, {"round_norm": True}, {"halting": {"kind": "exit"}}, **settings)


def _select(folder: Path) -> Recipe:
    """Rounds of the encoder choose among all its tokens, those of the decoder among those chosen before."""
    recipe = _in_loops(folder, {}, {"halting": {"kind": "select", "z": 0.1}}, compaction="always")
    model = recipe.model.model_dump(mode="json")
    model["encoder"]["halting"] |= {"among": "all", "capacities": [None, 0.4, 0.6]}
    return recipe.model_copy(update={"model": type(recipe.model).model_validate(model)})


def _token_choice(folder: Path) -> Recipe:
    return _in_loops(folder, {}, {"halting": {"kind": "token_choice", "z": 0.1}}, compaction="always")


def _window(folder: Path) -> Recipe:
    """The loss is a mean over the last two rounds of three, each of which is read."""
    return _universal(folder, kind="language_model", round_loss={"kind": "window", "n_rounds": 2})


def _tagging(folder: Path) -> Recipe:
    """An encoder with a head that labels its tokens, which halt."""
    recipe = _recipe(folder, halting=True, compaction="always")
    encoder = recipe.model.stacks()["encoder"].model_dump(mode="json")
    model = {"d_model": 8, "dropout": 0.0, "head": {"kind": "tagging"}, "encoder": encoder}
    return recipe.model_copy(update={"model": EncoderConfig.model_validate(model)})


FIRST, SECOND = tiny_batches()
LONELY = FIRST.rows(slice(1, 2))
"""One row: a second process has none."""
FIVE = right_padded(
    [Sentence([*row, 2], [1, *row[::-1]]) for row in ([5, 8, 4], [7], [4, 6, 6, 8, 5], [8, 7], [6, 4, 7, 5])]
)
"""Five rows: two processes have three and two of them, and of four the first has two."""
TEXTS = [replace(batch, source=None) for batch in (FIVE, SECOND, LONELY)]
"""What a language model reads."""


def _balanced(name: str) -> Callable[[Path], Case]:
    return lambda folder: (_recipe(folder, experts=True, balance=NO_BALANCE | {name: 1.0}), [SECOND, LONELY])


CASES: dict[str, Callable[[Path], Case]] = {
    "universal": lambda folder: (_universal(folder), [FIRST]),
    "universal, recomputed": lambda folder: (_universal(folder, checkpoint_activations=True), [FIRST, SECOND]),
    "rounds by sentence": lambda folder: (_by_sentence(folder), [FIRST, SECOND, LONELY]),
    "rounds by length": lambda folder: (_by_length(folder), [FIRST, SECOND, LONELY]),
    **{f"experts, {name}": _balanced(name) for name in BALANCE},
    "experts, sequence_entropy": _balanced("sequence_entropy"),
    "experts, drawn rounds": lambda folder: (_experts_in_drawn_rounds(folder), [SECOND, LONELY]),
    "experts of heads": lambda folder: (_of_heads(folder), [SECOND, LONELY]),
    "halting": lambda folder: (_recipe(folder, halting=True, compaction="always"), [FIRST]),
    "not halting yet": lambda folder: (_recipe(folder, halting=True, off_updates=N_UPDATES), [FIRST]),
    "everything": lambda folder: (_everything(folder), [FIRST, SECOND, LONELY]),
    "recomputed": lambda folder: (_everything(folder, checkpoint_activations=True), [FIRST, SECOND, LONELY]),
    "consistent": lambda folder: (_consistent(folder), [FIRST, LONELY]),
    "injected": lambda folder: (_injected(folder), [FIRST, SECOND]),
    "tables": lambda folder: (_with_tables(folder), [FIRST, SECOND]),
    "one row": lambda folder: (_everything(folder), [LONELY]),
    "five rows": lambda folder: (_everything(folder), [FIVE]),
    "language model": lambda folder: (_universal(folder, kind="language_model"), TEXTS),
    "exit": lambda folder: (_exit(folder, "exit", checkpoint_activations=True), [FIRST, SECOND, LONELY]),
    "gate alone": lambda folder: (_exit(folder, "improvement", **GATE_ALONE), [FIRST, SECOND, LONELY]),
    "select": lambda folder: (_select(folder), [FIRST, SECOND, LONELY]),
    "token choice": lambda folder: (_token_choice(folder), [FIRST, SECOND, LONELY]),
    "window": lambda folder: (_window(folder), TEXTS),
    "tagging": lambda folder: (_tagging(folder), TEXTS),
}
QUICK = ("rounds by sentence", "experts, drawn rounds", "everything", "one row", "language model")
"""Cases in every run of the tests."""


def shared_model(recipe: Recipe) -> Model:
    """Return the model of a case as it starts."""
    model = tiny_model(recipe).train()
    freeze(model, recipe.training.freeze, recipe.training.freeze_except)
    _spread_depths(model)
    run_as(model, recompute=recipe.training.checkpoint_activations)
    run_as(model, compaction=recipe.training.compaction)
    return model


def lowered(case: Case) -> Case:
    """Return a case in bfloat16."""
    recipe, batches = case
    training = recipe.training.model_copy(update={"precision": "bfloat16"})
    return recipe.model_copy(update={"training": training}), batches


def rounds_alone(case: Case, processes: Processes) -> dict[str, int]:
    """Return how many rounds the share of a process runs in every stack whose tokens halt, if it runs alone."""
    recipe, batches = case
    share = processes.shard(batches[0])
    if not share.n_sentences:
        return {}
    stacks = shared_model(recipe)(share).stacks
    return {name: found.halting.probs_BTR.shape[-1] for name, found in stacks.items() if found.halting is not None}


def updates(
    case: Case,
    processes: Processes = SINGLE_PROCESS,
    hold: Callable[[Model, TrainingConfig], Parallel] | None = None,
    n_updates: int = N_UPDATES,
) -> tuple[dict[str, Tensor], list[Gradient]]:
    """Do some updates; return the gradients of the first one and the weights after the last, and what was said.

    Args:
        hold: how processes hold the model; None: all of it in each.
    """
    recipe, batches = case
    model = shared_model(recipe)
    parallel = Parallel(model, processes) if hold is None else hold(model, recipe.training)
    optimizer = build_optimizer(model, recipe.training.optimizer)
    updater = Updater(model, optimizer, recipe.training, parallel=parallel)
    found: dict[str, Tensor] = {}
    said = []
    for update in range(1, n_updates + 1):
        said.append(updater.accumulate(batches, update, observed=update == 1))
        if update == 1:
            gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
            found |= {f"gradient/{name}": _kept(gradient) for name, gradient in gradients.items()}
        updater.apply(said[-1], update)
    found |= {f"weight/{name}": _kept(p.detach()) for name, p in model.named_parameters()}
    return found, said


def _kept(tensor: Tensor) -> Tensor:
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.clone(memory_format=torch.contiguous_format)


@torch.no_grad()
def _spread_depths(model: Model) -> None:
    """Draw gates with which all tokens of one process halt at once, and some of the other's late."""
    generator = torch.Generator().manual_seed(1)
    for unit in model.banks.halting.values():
        for name, parameter in unit.named_parameters():
            if name.endswith("weight"):
                parameter.copy_(4 * torch.randn(parameter.shape, generator=generator))
