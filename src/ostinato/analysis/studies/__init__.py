"""Analyses of runs: each says what it needs, whether it applies, and what it found, with its figure."""

from ostinato.analysis.studies.attention import ATTENTION, ATTENTION_EXAMPLE, QUESTION_ATTENTION
from ostinato.analysis.studies.base import Finding, Study, Subject
from ostinato.analysis.studies.costs import COSTS
from ostinato.analysis.studies.depth import DEPTH, HALTING_MAP
from ostinato.analysis.studies.experts import COLLAPSE, EXPERT_TOKENS, EXPERTS
from ostinato.analysis.studies.outcomes import CATEGORIES, LEARNING
from ostinato.analysis.studies.pareto import PARETO
from ostinato.analysis.studies.rounds import ROUNDS
from ostinato.analysis.studies.routing_stability import CONSISTENCY, FLUCTUATION, OVER_TIME
from ostinato.analysis.studies.similarity import BETWEEN_RUNS, SELF_SIMILARITY
from ostinato.analysis.studies.spectra import SPECTRA
from ostinato.analysis.studies.token_map import TOKEN_MAP
from ostinato.analysis.studies.trade_offs import TEST_DEPTH, THRESHOLDS

STUDIES: tuple[Study, ...] = (
    COSTS,
    LEARNING,
    CATEGORIES,
    PARETO,
    DEPTH,
    HALTING_MAP,
    THRESHOLDS,
    TEST_DEPTH,
    ROUNDS,
    ATTENTION,
    ATTENTION_EXAMPLE,
    QUESTION_ATTENTION,
    EXPERTS,
    EXPERT_TOKENS,
    TOKEN_MAP,
    COLLAPSE,
    FLUCTUATION,
    CONSISTENCY,
    OVER_TIME,
    SELF_SIMILARITY,
    BETWEEN_RUNS,
    SPECTRA,
)
"""In the order of the report."""

__all__ = ["STUDIES", "Finding", "Study", "Subject"]
