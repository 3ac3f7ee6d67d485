"""The model card of an exported run, README.md: how to load it, what it scored, and the recipe."""

from __future__ import annotations

import json
from typing import Any

from ostinato.config.load import recipe_text
from ostinato.evaluation.loading import LoadedRun
from ostinato.evaluation.threshold import TRAINED
from ostinato.training.rundir import RunDirectory

_NO_SCORES = ("n", "seconds", "decoding_seconds", "n_steps", "n_generated", "n_unfinished")
"""Numbers of an evaluation that say how it ran."""


def model_card(run: LoadedRun, auto: str, *, is_plain: bool = False) -> str:
    """Return the text of README.md.

    Args:
        auto: the Auto class that finds the model. is_plain: it needs no code of ours.
    """
    recipe = run.recipe
    ours = "" if is_plain else "import ostinato.hf  # pip install 'ostinato[hf]'\n"
    directory = RunDirectory(run.directory)
    is_untrained = run.checkpoint.name == "update-000000" and not directory.data_hashes()
    made = "imported or converted" if is_untrained else "trained"
    unrolled = ", its shared weights repeated" if is_plain else ""
    return (
        f"---\nlibrary_name: transformers\ntags: [ostinato]\n---\n\n# {recipe.name}\n\n{recipe.description}\n\n"
        f"{run.model.n_parameters():,} parameters, {made} with Ostinato{unrolled}.\n\n"
        f"```python\n{ours}from transformers import AutoTokenizer, {auto}\n\n"
        f'model = {auto}.from_pretrained("FOLDER")\ntokenizer = AutoTokenizer.from_pretrained("FOLDER")\n```\n'
        f"{_results(run)}\n## Recipe\n\n```yaml\n{recipe_text(recipe)}```\n"
    )


def _results(run: LoadedRun) -> str:
    """Return what the run's results.json says of what is exported; nothing where it is of other weights, or of another
    threshold or criterion by which tokens halt."""
    results = RunDirectory(run.directory).results()
    is_as_trained = run.halting_threshold_from == TRAINED
    if results is None or not is_as_trained:
        return ""
    # That of 0.1.0, which did not write it, is the best one, or the last where none was chosen.
    scored = results.get("checkpoint") or f"update-{results.get('best_update') or results['n_updates']:06d}"
    if scored != run.checkpoint.name:
        return ""
    table = _table({name: _scores(found) for name, found in results.get("splits", {}).items()})
    return f"\n## Results\n\n{table}```json\n{json.dumps(results, indent=1)}\n```\n"


def _scores(found: dict[str, Any]) -> dict[str, str]:
    """Return the scores of a split, as they are shown, and on how many examples."""
    scores = {name: f"{value:.4g}" for name, value in found.items()
              if isinstance(value, float) and name not in _NO_SCORES}  # fmt: skip
    return {"examples": f"{found['n']:,}"} | scores if scores else {}


def _table(splits: dict[str, dict[str, str]]) -> str:
    """Return scores as a table with a column a split."""
    scored = {name: scores for name, scores in splits.items() if scores}
    if not scored:
        return ""
    rows = list(dict.fromkeys(name for scores in scored.values() for name in scores))
    lines = [["", *scored], ["---"] * (1 + len(scored))]
    lines += [[row, *(scores.get(row, "") for scores in scored.values())] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"
