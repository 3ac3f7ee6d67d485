"""No setting asks for more than a machine can hold or loop over: such numbers are refused before anything is made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from ostinato.config.base import MOST, Config
from ostinato.config.recipe import Recipe
from ostinato.errors import ConfigError
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.registry import TASKS

SEEDS = {"seed", "dev_seed"}
UPDATES = {"off_updates", "warmup", "capacity_warmup", "ramp"}
"""What updates are compared with."""
VALUES = {"by", "word_column", "tag_column"}
"""Found among those that are there, or not."""
EXAMPLES = {"n_train", "n_eval", "n_pairs", "augmentations"}
"""Made one after the other, as long as they are wanted."""
LIMITS = {"bucket", "max_words", "max_facts", "max_functions", "least_path", "stage_length", "stage_nesting", "givens"}
"""Of what is drawn from or read elsewhere: a larger one changes nothing or is refused."""


def most(schema: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield name and highest value of every integer in a JSON schema; of a choice there is none."""
    if isinstance(schema, list):
        for part in schema:
            yield from most(part, name)
    elif isinstance(schema, dict) and "enum" not in schema and "const" not in schema:
        if schema.get("type") == "integer":
            yield name, schema.get("maximum", float("inf"))
        for key, part in schema.items():
            properties = part.items() if key in ("properties", "$defs") else [(name, part)]
            for inner, its in properties:
                yield from most(its, inner)


def test_every_integer_of_a_recipe_is_bounded() -> None:
    configs: list[type[Config]] = [Recipe, *(task.config_type for task in TASKS.values())]
    found = [one for config in configs for one in most(config.model_json_schema())]
    assert len(found) > 120
    assert {name for name, highest in found if highest > 2**31 - 1} == SEEDS | UPDATES | VALUES


def test_what_tasks_make_texts_of_is_bounded_lower() -> None:
    found = [one for task in TASKS.values() for one in most(task.config_type.model_json_schema())]
    assert {name for name, highest in found if highest > MOST} == SEEDS | EXAMPLES | LIMITS | VALUES - {"by"}


@pytest.mark.parametrize(
    ("recipe", "key", "value"),
    [
        *(("agreement/transformer", f"task.{name}", "1000000000000") for name in ("train_nouns", "max_attractors")),
        ("relay/act", "task.n_rest", "1000000000000"),
        ("algorithmic/copy-transformer", "task.max_length", "10000000000"),
        ("algorithmic/copy-transformer", "task.long_max_length", "20000000000"),
        ("classification/small", "model.n_token_types", str(2**63 - 1)),
        *(("scan/transformer", f"decoding.{name}_length_ratio", "1e300") for name in ("max", "min")),
        *(("scan/transformer", f"decoding.{name}_length", str(2**63 - 1)) for name in ("max", "min")),
    ],
)
def test_a_number_beyond_its_bound_is_refused_before_anything_is_made(recipe: str, key: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe(recipe, [f"{key}={value}"])
    (problem,) = caught.value.problems
    assert (problem.key, str(problem.value)) == (key, value.replace("1e300", "1e+300"))
    assert re.fullmatch(r"must be an? (integer|number) in \[\d, \S.*\].*", problem.reason)
