"""Small claims for tests, and what their tests do with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ostinato.cli.app import main
from ostinato.experiments.claims import files as claims
from ostinato.experiments.claims.design import named_by

ARMS = [
    {"name": "two", "recipe": "algorithmic/copy-universal"},
    {"name": "four", "recipe": "algorithmic/copy-universal", "overrides": ["model.encoder.n_steps=8"]},
]


def claim_file(folder: Path, band=(0.99, 1.01), **changes) -> Path:
    expect = {
        "what": "parameters",
        "unit": "times",
        "statistic": {"kind": "ratio", "of": "four/parameters", "over": "two/parameters"},
    }
    content = {
        "paper": "universal-transformer",
        "where": "section 2",
        "statement": "More steps cost no parameters.",
        "source": {"kind": "count", "vocabulary": 32, "arms": ARMS},
        "minutes": 0.1,
        "expect": [expect | {"band": list(band)}],
    }
    path = folder / "steps.yaml"
    path.write_text(yaml.safe_dump(content | changes))
    return path


def named(claim: claims.Claim) -> set[str]:
    """Return every `arm/measure` that a claim's numbers and controls are computed from."""
    return {f"{arm}/{measure}" for arm, measure in named_by([*claim.config.expect, *claim.config.controls])}


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main([*arguments])
    return int(end.value.code or 0)


TINY = {
    "name": "tiny",
    "recipe": "digits/universal",
    "overrides": [
        "task.n_train=60", "task.n_eval=24", "training.n_updates=4", "training.evaluate_every=4", "model.d_model=16",
        "training.save_every=4", "evaluation.splits=[test]", "training.selection.max_examples=8",
    ],
    "seeds": [1, 2],
    "arms": [{"name": "two"}, {"name": "three", "seeds": [1], "set": {"model.encoder.n_steps": 3}}],
    "measures": [
        {"name": "loss", "kind": "result", "split": "test", "path": "loss"},
        {"name": "dev loss", "kind": "evaluate", "split": "dev", "path": "loss", "metrics": []},
        {
            "name": "entropy",
            "kind": "analysis",
            "study": "attention",
            "max_examples": 8,
            "table": {"where": {"stack": "encoder"}, "column": "entropy, nats", "take": "first"},
            "arms": ["two"],
        },
    ],
}  # fmt: skip
ALIKE = {
    "name": "alike",
    "study": "similarity",
    "arm": "two",
    "others": ["three"],
    "over": "all",
    "max_examples": 24,
    "table": {"where": {"run": "three", "stack": "encoder"}, "column": "CKA"},
}


DESIGN = {"differ_in": ["model.encoder.n_steps"]}
DIFFERENCE = {"what": "it", "unit": "nats a label", "band": [-9.0, 9.0]}


def swept_claim(
    folder: Path, term: str, controls=None, expect=None, design=None, inputs=None, **source
) -> claims.Claim:
    mean = {"what": "it", "unit": "nats a label", "statistic": {"kind": "mean", "of": term}, "band": [0.0, None]}
    swept = {"kind": "sweep", "sweep": TINY} | source
    expect = expect or [mean]
    controls = controls or [one | {"what": "as it is"} for one in expect]
    changes = {"expect": expect, "controls": controls, "design": design or DESIGN, "inputs": inputs or {}}
    return claims.load_claim(claim_file(folder, source=swept, **changes))


TIMING = {
    "kind": "timing",
    "vocabulary": 16,
    "rounds": 6,
    "n_threads": 1,
    "device": "cpu",
    "arms": [
        {"name": name, "recipe": "digits/universal", "overrides": [f"model.decoder.n_steps={n_steps}"]}
        for name, n_steps in (("a", 1), ("b", 24))
    ],
    "work": [{"name": "pass", "kind": "forward", "batch_size": 1, "source_length": 4, "target_length": 4}],
}
SLOWER = {
    "what": "slower",
    "unit": "times",
    "statistic": {"kind": "ratio", "of": "b/pass", "over": "a/pass"},
    "band": [1.2, None],
}
