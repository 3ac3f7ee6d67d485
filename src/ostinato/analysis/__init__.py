"""Looking inside: measures on arrays, studies of runs, figures and one report.

The measures (`similarity`, `collapse`, `spectrum`, `routing_measures`, `maps`, `accuracy`, `planar`, `curves`,
`round_map`) are pure functions on arrays, in float64 throughout. `studies` applies them to runs.
"""

from ostinato.analysis.accuracy import GroupAccuracy, accuracy_by_category, pareto_front, wilson_interval
from ostinato.analysis.collapse import ClassMoments, representation_collapse
from ostinato.analysis.curves import LearningCurves, learning_curves
from ostinato.analysis.maps import attention_entropy, halting_map, mass_on, ponder_times
from ostinato.analysis.planar import class_purity, pca_plane, poincare_disk, umap_plane
from ostinato.analysis.routing_measures import (
    ExpertUse,
    expert_information,
    expert_token_pmi,
    expert_use,
    inter_run_consistency,
    routing_fluctuation,
    top_tokens,
)
from ostinato.analysis.similarity import (
    CrossCovariance,
    Normalised,
    chance_level,
    checkerboard,
    cka_matrix,
    linear_cka,
    local_neighbourhood_similarity,
    nearest_neighbours,
    normalise,
)
from ostinato.analysis.spectrum import cumulative_share, effective_rank, excess_area, singular_values

__all__ = [
    "ClassMoments",
    "CrossCovariance",
    "ExpertUse",
    "GroupAccuracy",
    "LearningCurves",
    "Normalised",
    "accuracy_by_category",
    "attention_entropy",
    "chance_level",
    "checkerboard",
    "cka_matrix",
    "class_purity",
    "cumulative_share",
    "effective_rank",
    "excess_area",
    "expert_information",
    "expert_token_pmi",
    "expert_use",
    "halting_map",
    "inter_run_consistency",
    "learning_curves",
    "linear_cka",
    "local_neighbourhood_similarity",
    "mass_on",
    "nearest_neighbours",
    "normalise",
    "pareto_front",
    "pca_plane",
    "poincare_disk",
    "ponder_times",
    "representation_collapse",
    "routing_fluctuation",
    "singular_values",
    "top_tokens",
    "umap_plane",
    "wilson_interval",
]
