"""What loops have beside their steps (`ostinato.nn.loops`): parameters, products and saved bytes by segment.

With D = d_model, N tokens, R rounds, w bytes of a number that a product reads:

    injection   add       no parameters
                linear    2 D^2: D^2 MACs a token once, and D^2 a round; saves e and every h, w N D each, of which
                          the first h is e where the loop starts from its input
                decay     D^2 + 2 D: D^2 MACs once; saves e w N D, B e and every h N D *, and 4 D * a round
    start       learned   D, of every state that is
    end map               D^2:          D^2 once; saves w N D
    norms                 as others: one a round, or every time that one of several states was changed; one after the
                          last
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ostinato.budget.sizes import Rounds, Weights, plans
from ostinato.budget.training_pass import FLOAT
from ostinato.config.loops import SegmentConfig
from ostinato.config.model import ModelConfig
from ostinato.config.norm import NormalisationConfig
from ostinato.config.stack import StackConfig
from ostinato.plan import Segment

_NONE = Weights(0, 0)


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """One segment of a stack, with its settings.

    Args:
        of_input: parameters that read what enters the segment, once a pass. of_rounds: those of every round.
        start, end_map: the others.
    """

    stack: str
    stack_config: StackConfig
    segment: Segment
    settings: SegmentConfig
    of_input: Weights
    of_rounds: Weights
    start: Weights
    end_map: Weights
    is_after_loop: bool = False

    @property
    def is_loop(self) -> bool:
        """Whether it is the segment whose rounds the step signal and halting count."""
        return self.segment.is_loop

    @property
    def part(self) -> str:
        """What its costs are shown under."""
        return f"{self.stack}.loop"

    @property
    def changes_states(self) -> bool:
        """Whether a round starts from other states than those that left the round before."""
        return self.settings.inject.kind != "none"

    @property
    def n_rounds(self) -> int:
        """How often its steps run."""
        return self.segment.n_rounds

    @property
    def norms(self) -> tuple[str, ...]:
        """The norms that are made beside those of sub-layers, each as often as it is made."""
        of_round = (*(phase.norm for phase in self.segment.phases), self.segment.round_norm)
        return tuple(name for name in (*(of_round * self.n_rounds), self.segment.end_norm) if name is not None)

    def norm_of(self, name: str) -> NormalisationConfig:
        """Return what one of them computes: the stack's final norm, or one like the others."""
        is_final = self.settings.end_norm == "final" and name == self.segment.end_norm
        return self.stack_config.norm.of_final if is_final else self.stack_config.norm

    @property
    def n_vectors(self) -> int:
        """Rounds that have a vector of their own."""
        return self.settings.repeats or 1

    def saved_at_end(self, tokens: int, d_model: int, width: int) -> int:
        """Return the bytes that the end map saves."""
        return width * tokens * d_model if self.settings.end_map else 0

    def saved_of_injection(self, tokens: int, d_model: int, width: int) -> int:
        """Return the bytes that injection and end map save; `width`: of a number that a product reads."""
        found, read = self.saved_at_end(tokens, d_model, width), width * tokens * d_model
        of_input = 0 if self.settings.state.kind == "input" and width == FLOAT else read
        match self.settings.inject.kind:
            case "linear":
                return found + of_input + read * self.n_rounds
            case "decay":
                of_rounds = FLOAT * d_model * (tokens * (1 + self.n_rounds) + 4 * self.n_rounds + 1)
                return found + of_input + of_rounds
        return found

    def saves_states(self, width: int) -> bool:
        """Return whether injection saves the states that a round starts from, as they are."""
        kind = self.settings.inject.kind
        return kind == "decay" or (kind == "linear" and width == FLOAT)


def planned_segments(config: ModelConfig, n_steps: Rounds = None) -> Iterator[PlannedSegment]:
    """Yield the segments of every stack that is made of some."""
    stacks, d_model = config.stacks(), config.d_model
    for name, plan in plans(config, n_steps).items():
        loop = plan.segments.index(plan.loop)
        for number, (segment, settings) in enumerate(zip(plan.segments, stacks[name].segments, strict=False)):
            of_input = of_rounds = _NONE
            match settings.inject.kind:
                case "linear":
                    of_input = of_rounds = Weights(d_model**2, 0)
                case "decay":
                    of_input, of_rounds = Weights(d_model**2, 0), Weights(0, 2 * d_model)
            states = [one.state for one in settings.states] or [settings.state]
            start = Weights(0, d_model * sum(state.kind == "learned" for state in states))
            end_map = Weights(d_model**2, 0) if settings.end_map else _NONE
            weights = of_input, of_rounds, start, end_map
            yield PlannedSegment(name, stacks[name], segment, settings, *weights, is_after_loop=number > loop)
