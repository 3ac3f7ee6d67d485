"""Outcomes count where their claim was committed before their runs: with repositories made for it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from ostinato.errors import ConfigError
from ostinato.experiments.claims.files import Outcome, claims_directory, load_claim, outcome_path, write_outcome
from ostinato.experiments.claims.registration import check_outcomes, why_not_registered

HOUR = 3600
NINE = 1_800_000_000  # any moment: "nine o'clock"
CONTENT = {
    "paper": "universal-transformer",
    "where": "section 2",
    "statement": "More steps cost no parameters.",
    "source": {
        "kind": "count",
        "vocabulary": 32,
        "arms": [{"name": "two", "recipe": "algorithmic/copy-universal"}],
    },
    "minutes": 0.1,
    "expect": [
        {
            "what": "parameters",
            "unit": "times",
            "statistic": {"kind": "ratio", "of": "two/parameters", "over": "two/macs"},
            "band": [0.9, 1.1],
        }
    ],
}


class Repository:
    """A repository of one claim and its outcome, whose commits have stated times."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "-q")

    def git(self, *arguments: str, at: int = NINE) -> None:
        time = f"{at} +0000"
        who = {f"GIT_{role}_{part}": "x" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
        environment = os.environ | who | {"GIT_AUTHOR_DATE": time, "GIT_COMMITTER_DATE": time}
        subprocess.run(["git", "-C", str(self.folder), *arguments], check=True, env=environment)

    def commit_claim(self, at: int, **changes: object) -> None:
        path = self.folder / "universal-transformer/steps.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(CONTENT | changes))
        self.commit(at)

    def commit(self, at: int) -> None:
        self.git("add", "-A")
        self.git("commit", "-qm", "Change", at=at)

    @property
    def claim(self):
        return load_claim(self.folder / "universal-transformer/steps.yaml")

    def outcome(self, began: int, seeds: tuple[int, ...] = (), settings: str = "alike") -> Outcome:
        """Write an outcome of the claim as it stands, with runs of their own address every time."""
        moment = subprocess.run(["date", "-u", "-d", f"@{began}", "+%Y-%m-%dT%H:%M:%S+00:00"], capture_output=True)
        head = {
            "registered": self.claim.registered,
            "settings": settings,
            "verdict": "supported",
            "began": moment.stdout.decode().strip(),
        }
        rows = [{"arm": "two", "seed": seed, "key": f"{began} {seed}", "values": {}} for seed in seeds]
        outcome = Outcome(head, rows)
        write_outcome(self.claim, outcome, self.folder)
        return outcome

    def why(self, outcome: Outcome) -> str | None:
        return why_not_registered(self.claim, outcome, self.folder)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


OTHER_BAND = [CONTENT["expect"][0] | {"band": [0.5, 1.5]}]


def test_a_claim_that_was_committed_before_its_runs_counts(repository):
    repository.commit_claim(NINE)
    outcome = repository.outcome(NINE + HOUR, (1, 2))
    assert repository.why(outcome) is None
    repository.commit(NINE + 2 * HOUR)
    assert repository.why(outcome) is None


def test_rewording_it_later_changes_nothing(repository):
    repository.commit_claim(NINE)
    outcome = repository.outcome(NINE + HOUR)
    repository.commit_claim(NINE + 2 * HOUR, statement="In other words.", limits="Small.", minutes=3)
    assert repository.why(outcome) is None


def test_a_claim_that_was_committed_after_its_runs_began_is_refused(repository):
    repository.commit_claim(NINE)
    assert "before the claim was committed" in repository.why(repository.outcome(NINE - 1))


def test_a_band_that_was_changed_after_the_runs_is_refused(repository):
    repository.commit_claim(NINE)
    outcome = repository.outcome(NINE + HOUR)
    repository.commit_claim(NINE + 2 * HOUR, expect=OTHER_BAND)
    assert repository.why(outcome) == "the claim has changed since its runs"
    # Writing the outcome anew with the new hash does not help: the runs began under the old one.
    assert "when the claim said otherwise" in repository.why(repository.outcome(NINE + HOUR))


def test_a_band_that_was_changed_and_changed_back_counts_as_what_it_was_when_the_runs_began(repository):
    repository.commit_claim(NINE)
    repository.commit_claim(NINE + HOUR, expect=OTHER_BAND)
    repository.commit_claim(NINE + 3 * HOUR)
    assert "when the claim said otherwise" in repository.why(repository.outcome(NINE + 2 * HOUR))
    assert repository.why(repository.outcome(NINE + 4 * HOUR)) is None


def test_seeds_that_another_band_has_judged_are_refused_also_where_they_are_trained_anew(repository):
    repository.commit_claim(NINE)
    repository.outcome(NINE + HOUR, (1, 2))
    repository.commit(NINE + HOUR)
    repository.commit_claim(NINE + 2 * HOUR, expect=OTHER_BAND)
    why = repository.why(repository.outcome(NINE + 3 * HOUR, (2, 3)))
    assert why.startswith("two with seed 2 was judged by another claim or settings before")
    assert repository.why(repository.outcome(NINE + 3 * HOUR, (3, 4))) is None


def test_seeds_that_were_judged_with_other_settings_of_the_arms_are_refused(repository):
    repository.commit_claim(NINE)
    repository.outcome(NINE + HOUR, (1, 2), settings="before")
    repository.commit(NINE + HOUR)
    assert "seed 1 was judged by another" in repository.why(repository.outcome(NINE + 3 * HOUR, (1, 2)))
    assert repository.why(repository.outcome(NINE + 3 * HOUR, (1, 2), settings="before")) is None


def test_an_outcome_of_before_registration_is_refused(repository):
    repository.commit_claim(NINE)
    assert "does not say when" in repository.why(Outcome({"registered": "", "verdict": "supported"}, []))


def test_a_measure_or_an_arm_of_its_sweep_that_changed_after_the_runs_is_refused_and_another_is_not(repository):
    path = repository.folder / "sweep.yaml"
    loss = {"name": "loss", "kind": "result", "split": "dev", "path": "loss"}
    arms = [{"name": "one"}, {"name": "two", "set": {"model.d_model": 32}}, {"name": "three"}]
    sweep = {"recipe": "digits/universal", "seeds": [1, 2], "arms": arms, "measures": [loss]}
    number = {
        "what": "loss",
        "unit": "nats",
        "statistic": {"kind": "difference", "of": "two/loss", "minus": "one/loss"},
    }
    trained = {
        "source": {"kind": "sweep", "sweep": str(path)},
        "design": {"differ_in": ["model.d_model"]},
        "expect": [number | {"band": [0.1, None]}],
        "controls": [number | {"band": [None, 9.0]}],
    }

    def commit(at: int, **changes: object) -> None:
        path.write_text(yaml.safe_dump(sweep | changes))
        repository.commit(at)

    path.write_text(yaml.safe_dump(sweep))
    repository.commit_claim(NINE, **trained)
    outcome = repository.outcome(NINE + HOUR)
    assert repository.why(outcome) is None
    commit(NINE + 2 * HOUR, arms=[*arms[:2], {"name": "three", "set": {"model.d_model": 64}}, {"name": "four"}])
    assert repository.why(outcome) is None
    commit(NINE + 3 * HOUR, measures=[loss | {"path": "perplexity"}])
    assert "of the sweep" in repository.why(outcome)
    commit(NINE + 4 * HOUR, arms=[arms[0], {"name": "two", "set": {"model.d_model": 64}}])
    assert "has changed since its runs" in repository.why(outcome)
    assert repository.why(repository.outcome(NINE + 5 * HOUR)) is None


def test_without_a_history_the_check_says_so(tmp_path):
    with pytest.raises(ConfigError, match="the history of the claims cannot be read"):
        check_outcomes(tmp_path)


def test_inside_the_repository_of_another_project_the_check_says_so(repository):
    repository.commit_claim(NINE)
    packages = repository.folder / ".venv/lib"
    packages.mkdir(parents=True)
    (packages / "steps.yaml").write_text(yaml.safe_dump(CONTENT))
    with pytest.raises(ConfigError, match=r"does not have this folder: run the check in a checkout of the library$"):
        check_outcomes(packages)


def test_every_outcome_of_the_library_was_registered():
    command = ["git", "-C", str(claims_directory()), "rev-parse", "--is-shallow-repository"]
    if subprocess.run(command, capture_output=True, text=True).stdout.strip() != "false":
        pytest.skip("the library does not lie in a repository with its history")
    found = check_outcomes(claims_directory())
    assert {name: why for name, why in found.items() if why} == {}
    for name in found:
        path = outcome_path(load_claim(name), claims_directory())
        assert json.loads(path.read_text().splitlines()[0])["began"]
