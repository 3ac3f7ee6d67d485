"""Which steps of a stack are alike, so that they may share weights (`ostinato convert --alike`).

States after every step are compared with those after the next one by local neighbourhood similarity of the means of
sentences (Pessoa Pires et al. 2023, One Wide FFN, section 3.3); a stack is cut into n stretches of steps at the n - 1
places where it is least. That alike steps can share weights is a guess, which training on from the result tests: the
paper compares models that share differently, and chooses nothing by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ostinato.analysis.capture import stream
from ostinato.analysis.collectors import SentenceVectors
from ostinato.analysis.similarity import local_neighbourhood_similarity
from ostinato.analysis.studies.base import Subject
from ostinato.errors import ConfigError, Problem

FEWEST = 20
"""Fewest sentences for which the measure means something."""


def stretches(similarities: Sequence[float], n: int) -> list[int]:
    """Return the number of the stretch of every step, from 0.

    Args:
        similarities: of every step with the next one; of L steps L - 1. n: stretches, 1 to L. Of equal similarities the
            first is cut.
    """
    cuts = sorted(range(len(similarities)), key=lambda step: similarities[step])[: n - 1]
    return [sum(cut < step for cut in cuts) for step in range(len(similarities) + 1)]


def similarities_of_neighbours(subject: Subject) -> dict[str, list[float]]:
    """Return, of every stack, the similarity of the states after every step with those after the next one."""
    vectors = SentenceVectors(len(subject.examples))
    stream(subject.run, subject.examples, [vectors])
    found = {}
    for name in subject.model.stacks:
        # The last sub-layer of a step stands for it.
        after = {module.step: rows for module, rows in vectors.after.items() if module.stack == name}
        states = [after[step] for step in sorted(after)]
        found[name] = [local_neighbourhood_similarity(x, y) for x, y in pairwise(states)]
    return found


def shared_by_likeness(subject: Subject, n: int) -> tuple[list[str], dict[str, list[float]]]:
    """Return settings by which alike steps of every stack share their sub-layers, and the similarities.

    Args:
        n: sets of weights for the steps of every stack; one that has fewer steps shares nothing.

    Raises:
        ConfigError: more sets than any stack has steps, or too few examples.
    """
    if len(subject.examples) < FEWEST:
        raise ConfigError([Problem("alike", n, f"{len(subject.examples)} examples are too few: it needs {FEWEST}")])
    if not 1 <= n <= (most := max((len(stack.plan.steps) for stack in subject.model.stacks.values()), default=0)):
        raise ConfigError([Problem("alike", n, f"must be from 1 to {most}, the steps of the deepest stack")])
    found = similarities_of_neighbours(subject)
    settings = []
    for name, stack in subject.model.stacks.items():
        kinds = dict.fromkeys(use.kind for step in stack.plan.steps for use in step.uses)
        settings += [f"model.{name}.{kind}.share={stretches(found[name], n)}" for kind in kinds]
    return settings, found
