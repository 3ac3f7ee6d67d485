"""The claims of One Wide FFN: what they train is alike, what they compare is one state, and every total is checked."""

from __future__ import annotations

import pytest
import yaml

from ostinato.config.claim import CountSource, MeanStatistic, SweepSource
from ostinato.config.files import shipped_files
from ostinato.experiments.claims import files as claims
from ostinato.experiments.claims.design import check_alike, named_by, named_part, source_sweep
from ostinato.experiments.claims.reproduce import Resources, reproduce

OWN = [claims.load_claim(name) for name in shipped_files("claims") if name.startswith("one-wide-ffn/")]
SWEPT = [claim for claim in OWN if isinstance(claim.config.source, SweepSource)]
TINY = {
    "name": "tiny",
    "recipe": "digits/transformer",
    "overrides": [
        *("task.n_train=60", "task.n_eval=24", "training.n_updates=4", "training.evaluate_every=4"),
        *("training.save_every=4", "training.selection.max_examples=8", "evaluation.splits=[test]"),
        *("model.d_model=16", "model.encoder.n_steps=1", "model.decoder.n_steps=1", "evaluation.metrics=[]"),
    ],
    "seeds": [1, 2],
    "arms": [
        {"name": "baseline"},
        {"name": "other-seed", "seed_shift": 10},
        {"name": "no-enc", "set": {"model.encoder.ffn.share": "none"}},
    ],
    "measures": [{"name": "loss", "kind": "result", "split": "test", "path": "loss"}],
}


@pytest.mark.sampled
@pytest.mark.parametrize("claim", SWEPT, ids=lambda claim: claim.name)
@pytest.mark.parametrize("name", [None, "gpu"])
def test_the_arms_that_a_claim_names_differ_in_what_its_design_says(claim, name):
    config = (claim if name is None else claims.variant(claim, name)).config
    part, _ = named_part(source_sweep(config.source, {}), config.source, named_by([*config.expect, *config.controls]))
    assert len(part.arms) >= 2
    check_alike(part, config.design)


@pytest.mark.parametrize("claim", SWEPT, ids=lambda claim: claim.name)
def test_the_similarity_of_a_claim_is_of_one_state_and_of_every_seed(claim):
    for measure in claim.config.source.compared:
        assert {"run", "residual", "stack"} <= measure.table.where.keys()
        assert measure.over == "each"
        assert "other-seed" in measure.others


@pytest.mark.slow
def test_similarity_is_in_units_of_an_arm_from_other_seeds(tmp_path):
    of = {run: f"CKA, {run}" for run in ("other-seed", "no-enc")}
    compared = [
        {
            "name": name,
            "study": "similarity",
            "arm": "baseline",
            "others": list(of),
            "max_examples": 24,
            "table": {
                "where": {"run": run, "residual": "after", "stack": "encoder"},
                "column": "CKA / other seeds",
            },
        }
        for run, name in of.items()
    ]
    numbers = [
        {"what": run, "unit": "ratio", "statistic": {"kind": "mean", "of": f"baseline/{name}"}, "band": [0.0, 9.0]}
        for run, name in of.items()
    ]
    path = tmp_path / "alike.yaml"
    content = {
        "paper": "one-wide-ffn",
        "where": "table 5",
        "statement": "States are alike.",
        "source": {"kind": "sweep", "sweep": TINY, "compared": compared},
        "design": {"differ_in": ["model.encoder.ffn"]},
        "minutes": 0.1,
        "expect": numbers,
        "controls": [numbers[0] | {"what": "another seed", "band": [1.0, 1.0]}],
    }
    path.write_text(yaml.safe_dump(content))
    head = reproduce(claims.load_claim(path), Resources(tmp_path / "store")).head
    another, without = (number["by_seed"] for number in head["numbers"])
    assert another == {"1": 1.0, "2": 1.0}
    assert without["1"] != without["2"]
    assert head["controls"][0]["is_so"]


@pytest.mark.slow
def test_every_printed_total_is_counted_once_for_each_table_it_is_in(tmp_path):
    (claim,) = (claim for claim in OWN if isinstance(claim.config.source, CountSource))
    totals = [one for one in claim.config.expect if isinstance(one.statistic, MeanStatistic)]
    by_table = [one.what.partition(":")[0] for one in totals]
    assert {table: by_table.count(table) for table in by_table} == {
        "table 2": 5, "table 3": 5, "table 4": 4, "table 6": 15, "table 7": 6, "table 8": 6,
    }  # fmt: skip
    named = {arm for arm, _ in named_by(claim.config.expect)}
    assert named == {arm.name for arm in claim.config.source.arms}
    assert reproduce(claim, Resources(tmp_path)).verdict == "supported"
