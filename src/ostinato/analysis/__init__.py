"""Looking inside: measures on arrays, studies of runs, figures and one report.

The measures (`cka`, `neighbours`, `normalised`, `collapse`, `spectrum`, `routes`, `tokens`, `halting`, `attention`) are
pure functions on arrays, in float64 throughout. `studies` applies them to runs.
"""

from ostinato.analysis.attention import attention_entropy, mass_on
from ostinato.analysis.cka import CrossCovariance, checkerboard, cka_matrix, linear_cka
from ostinato.analysis.collapse import ClassMoments, representation_collapse
from ostinato.analysis.halting import halting_map, ponder_times
from ostinato.analysis.neighbours import chance_level, local_neighbourhood_similarity, nearest_neighbours
from ostinato.analysis.normalised import Normalised, normalise
from ostinato.analysis.routes import inter_run_consistency, routing_fluctuation
from ostinato.analysis.spectrum import cumulative_share, effective_rank, excess_area, singular_values
from ostinato.analysis.tokens import expert_token_pmi, top_tokens

__all__ = [
    "ClassMoments",
    "CrossCovariance",
    "Normalised",
    "attention_entropy",
    "chance_level",
    "checkerboard",
    "cka_matrix",
    "cumulative_share",
    "effective_rank",
    "excess_area",
    "expert_token_pmi",
    "halting_map",
    "inter_run_consistency",
    "linear_cka",
    "local_neighbourhood_similarity",
    "mass_on",
    "nearest_neighbours",
    "normalise",
    "ponder_times",
    "representation_collapse",
    "routing_fluctuation",
    "singular_values",
    "top_tokens",
]
