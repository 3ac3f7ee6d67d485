"""What a run is, as the page shows it: its model, what may be changed of it, and its plan with what cells cost."""

from __future__ import annotations

from dataclasses import asdict

from ostinato.analysis.studies.trade_offs import variable_stacks
from ostinato.budget.products import Product, use_products
from ostinato.config.model import ModelConfig
from ostinato.models import Model
from ostinato.version import __version__
from ostinato.viewer.opened import OpenRun
from ostinato.viewer.schema import Cell, PlanStep, RunInfo, Runs, StackInfo

LENGTHS = (32, 32)
"""Source and target tokens of the sentence whose cost the cells of a plan show."""


def describe(opened: dict[str, OpenRun]) -> Runs:
    """Return the runs, and what a request may cost."""
    limits = asdict(next(iter(opened.values())).limits)
    return Runs(version=__version__, runs=[describe_run(one) for one in opened.values()], limits=limits)


def describe_run(opened: OpenRun) -> RunInfo:
    """Return what a run is."""
    run, model = opened.run, opened.run.model
    recipe = run.recipe
    return RunInfo(
        name=opened.name,
        description=recipe.description or recipe.name,
        task=str(recipe.task.settings()["kind"]),
        reads=str(model.config.reads),
        checkpoint=run.checkpoint.name,
        parameters=model.n_parameters(),
        macs_lengths=list(LENGTHS),
        generates=model.config.generates,
        prompts=run.reads_prompts,
        splits=opened.splits,
        stacks=_stacks(opened),
        exits=model.possible_criteria(),
        threshold_from=run.halting_threshold_from,
        beam=recipe.decoding.beam,
        temperature=recipe.decoding.temperature if recipe.decoding.strategy == "sample" else 0.0,
        metrics=list(opened.metrics),
    )


def _stacks(opened: OpenRun) -> list[StackInfo]:
    """Return the stacks with their plans."""
    model = opened.run.model
    varying, thresholds = variable_stacks(model), model.halting_thresholds()
    cells = _cells(model)
    found = []
    for name, stack in model.stacks.items():
        plan = [
            PlanStep(index=step.index, round=step.round, loop=segment.is_loop, cells=cells.get((name, step.index), []))
            for segment in stack.plan.segments
            for step in segment.steps
        ]
        rounds = model.n_rounds()[name]
        found.append(
            StackInfo(
                name=name,
                rounds=rounds,
                most_rounds=min(2 * stack.plan.n_rounds, opened.limits.rounds * stack.plan.n_rounds),
                varies=name in varying,
                halting=model.config.stacks()[name].halting.kind,
                threshold=thresholds.get(name),
                plan=plan,
            )
        )
    return found


def _cells(model: Model) -> dict[tuple[str, int], list[Cell]]:
    """Return the sub-layers of every step by stack and step."""
    config, banks = model.config, model.banks
    found: dict[tuple[str, int], list[Cell]] = {}
    for planned, own in use_products(config):
        use = planned.use
        module = banks.set_of(use)
        cell = Cell(
            kind=use.kind,
            set=use.weights,
            parameters=sum(p.numel() for p in module.parameters()),
            macs=sum(_macs(product, config) for product in own),
        )
        found.setdefault((planned.stack, planned.step), []).append(cell)
    return found


def _macs(product: Product, config: ModelConfig) -> int:
    """Return what a product costs for all tokens of a sentence."""
    lengths = dict(zip(("source", "target"), LENGTHS, strict=True))
    return lengths[product.side] * (product.macs + product.per_key * lengths[product.seen])
