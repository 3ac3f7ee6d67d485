"""On untrained models the numbers of no claim support it, and what its controls say of untrained models is so.

Every arm of every claim is built, evaluated and judged without an update, on a few examples: what a measure shows then
comes from the architecture alone.
"""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path

import pytest

from ostinato.config.claim import ClaimConfig, SweepSource
from ostinato.config.files import parse_value, shipped_files
from ostinato.data.registry import DataAccess
from ostinato.errors import DataError
from ostinato.experiments.claims.design import named_by, source_sweep
from ostinato.experiments.claims.files import Claim, load_claim
from ostinato.experiments.claims.reproduce import Resources, reproduce
from ostinato.experiments.sweep.files import first_recipe
from ostinato.experiments.sweep.schedule import SweepError

SHARED = Path(__file__).parents[4] / "shared/data"
UNTRAINED = "training.n_updates=0"
FEW = [UNTRAINED, "evaluation.max_examples=16", "training.selection.max_examples=16"]
SHORT = ["decoding.max_length=8", "decoding.max_length_ratio=0", "decoding.min_length=0"]
"""Of models that write: on untrained ones outputs are as long as they may be."""
OF_A_COURSE = ("x-moe/collapse", "x-moe/consistency", "x-moe/expert-norm", "x-moe/fluctuation")
"""Claims whose numbers untrained models do not have: they are of the course of training."""


def swept() -> list[str]:
    return [name for name in shipped_files("claims") if isinstance(load_claim(name).config.source, SweepSource)]


@pytest.mark.slow
@pytest.mark.parametrize("name", swept())
def test_no_claim_is_supported_by_untrained_models(name: str, tmp_path: Path) -> None:
    if not (SHARED / "upstream").is_dir():
        pytest.skip("the data are not here")
    claim = untrained(load_claim(name))
    access = DataAccess(tmp_path / "cache", str(SHARED / "upstream"))
    means = Resources(tmp_path / "store", access=access, inputs=inputs_of(claim.config, tmp_path))
    if name in OF_A_COURSE:
        with pytest.raises((DataError, SweepError), match="it needs two checkpoints, and 1 is kept"):
            reproduce(claim, means)
        return
    outcome = reproduce(claim, means)
    # The verdict alone would say little: a control of what is learnt makes any outcome of untrained models void.
    assert {number["verdict"] for number in outcome.head["numbers"]} != {"supported"}, outcome.head["numbers"]
    assert outcome.verdict != "supported", outcome.head["controls"]
    of_untrained = controls_of_untrained(load_claim(name).config)
    for control in outcome.head["controls"]:
        if control["what"] in of_untrained:
            assert control["is_so"], control


@pytest.mark.parametrize(
    ("name", "n_controls"),
    [
        ("depth/generalisation", 1),  # an arm is untrained
        ("depth/spectra", 0),  # one of two arms is
        ("one-wide-ffn/similarity-order", 0),  # what is trained is held against an untrained model
        ("sparse-universal-transformer/depth-by-hops", 1),  # runs of the control's own
        ("universal-transformer/halting-follows-difficulty", 2),
    ],
)
def test_controls_of_untrained_models_are_found_whichever_way_they_name_them(name: str, n_controls: int) -> None:
    assert len(controls_of_untrained(load_claim(name).config)) == n_controls


def controls_of_untrained(config: ClaimConfig) -> set[str]:
    """Return the controls all of whose terms are of untrained models, by their changes or by their arms."""
    source = config.source
    assert isinstance(source, SweepSource)
    sweep = source_sweep(source, None)
    arms = {arm.name for arm in sweep.arms if first_recipe(sweep, arm).training.n_updates == 0}
    return {
        control.what
        for control in config.controls
        if UNTRAINED in control.overrides or all(arm in arms for arm, _ in named_by([control]))
    }


def untrained(claim: Claim) -> Claim:
    """Return a claim whose arms are not trained, and choose nothing; three seeds are enough for a verdict."""
    config, source = claim.config, claim.config.source
    assert isinstance(source, SweepSource)
    sweep = source_sweep(source, None)
    seeds = [1, 2, 3] if source.seeds is None and any(arm.seeds for arm in sweep.arms) else sweep.seeds[:3]
    writes = all(first_recipe(sweep, arm).model.generates for arm in sweep.arms)
    # Of every arm itself: as changes of the claim they would be refused where one arm is untrained anyway.
    split = (text.partition("=") for text in (*FEW, *(SHORT if writes else [])))
    changes = {key: parse_value(value) for key, _, value in split}
    arms = [arm.model_copy(update={"set": {**arm.set, **changes}}) for arm in sweep.arms]
    overrides = [text for text in source.overrides if text.partition("=")[0] not in changes]
    quick = sweep.model_copy(update={"arms": arms}).model_dump(mode="json")
    source = source.model_copy(update={"sweep": quick, "overrides": overrides, "seeds": seeds})
    design = None if config.design is None else config.design.model_copy(update={"tuning": None})
    controls = [one for one in config.controls if not one.overrides or UNTRAINED in one.overrides]
    return Claim(config.model_copy(update={"source": source, "design": design, "controls": controls}), claim.path)


def inputs_of(config: ClaimConfig, folder: Path) -> dict[str, str]:
    """Return small files of the kinds that claims ask for: lines of text, or of text with a label.

    Texts are real where they are asked for, so that vocabularies have the sizes that budgets and chance follow from.
    """
    labelled = [{"source": f"the {a} {b} of the {c}", "target": a} for a in WORDS for b in WORDS for c in WORDS]
    found = {}
    for name in config.inputs:
        language = next((one for one in ("english", "german") if name.startswith(one)), None)
        if name.startswith(("labelled", "part")):
            lines = labelled
        elif language is not None:
            key = {"english": "source", "german": "target"}[language]
            lines = [{"text": line[key]} for line in real("multi30k_en_de/train.jsonl.gz")]
        else:
            lines = real("brown/train.jsonl.gz")
        # What is evaluated is less.
        part = lines[:200] if name.endswith(("_dev", "_test")) or name in ("held_out", "test") else lines
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in part))
        found[name] = str(path)
    return found


def real(name: str) -> list[dict[str, str]]:
    with gzip.open(SHARED / name, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in islice(file, N_REAL)]


N_REAL = 4000
WORDS = ("old", "house", "river", "song", "green", "stone", "winter", "market")
