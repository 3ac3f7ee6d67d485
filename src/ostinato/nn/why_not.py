"""What a stack is not able to do, and why: asked before anything runs, so that it is said in one line.

Each is a question about the plan, the signal and the halting rule of a stack; none of them runs it.
"""

from __future__ import annotations

from ostinato.nn.execution import Execution
from ostinato.nn.halting import NoHalting
from ostinato.nn.loops import NoiseState
from ostinato.nn.stack import Stack


def repeats_one_round(stack: Stack) -> bool:
    """Return whether all rounds do the same, so that a graph may run them in a loop (`Execution.as_graph`)."""
    plan = stack.plan
    is_alike = plan.is_fully_shared and not plan.loop.tells_rounds_apart and plan.loop.keys == "own"
    return is_alike and bool(plan.loop.steps) and not stack.halting.chooses_tokens


def why_not_static(stack: Stack, execution: Execution) -> str | None:
    """Return why a step of decoding cannot be recorded and replayed (`decoding.static_cache`); None: it can."""
    name = stack.plan.stack
    if not all(isinstance(segment.rule, NoHalting) for segment in stack.program(None, execution)):
        return f"tokens of the {name} may halt, and the host is asked in every round whether any is left"
    modules = [stack.banks.start[s.start] for s in stack.plan.segments if s.start is not None]
    if any(isinstance(one, NoiseState) for start in modules for one in start.modules()):
        return f"the loop of the {name} starts from noise, of which the host makes as much as there are positions"
    return None


def why_not_by_length(stack: Stack) -> str | None:
    """Return why lengths of sources cannot say how many rounds this stack runs; None: they can."""
    if stack.halting.chooses_tokens:
        return f"a router chooses the tokens of every round of the {stack.plan.stack}; must be a number"
    if stack.plan.loop.time is not None:
        return f"the rounds of the {stack.plan.stack} have times, which follow from their number for the whole batch"
    return None


def why_not_by_sentence(stack: Stack) -> str | None:
    """Return why sentences of a batch cannot have rounds of their own (`RoundsBySentence`); None: they can."""
    if not isinstance(stack.halting, NoHalting):
        return f"the tokens of the {stack.plan.stack} halt by a rule of their own"
    if stack.signal.acts_on_rounds:
        return f"the signal of the {stack.plan.stack} tells rounds apart, and sentences with fewer begin later"
    if stack.plan.loop.tells_rounds_apart:
        return f"the rounds of the {stack.plan.stack} have something of their own, and sentences with fewer begin later"
    if stack.plan.loop.keys != "own":
        return f"the rounds of the {stack.plan.stack} read keys of earlier ones, in which some sentences wait"
    return None
