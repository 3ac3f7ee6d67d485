"""Running a claim: what is missing is run, every number is compared with its band, the outcome is a file."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from ostinato.config.claim import TimingSource
from ostinato.experiments.claims.files import Claim, Outcome, command
from ostinato.experiments.claims.rows import Resources, source_rows
from ostinato.experiments.claims.statistics import Centre, evaluate
from ostinato.training.rundir import versions


def reproduce(claim: Claim, resources: Resources) -> Outcome:
    """Run what is missing, and return the outcome.

    Raises:
        ConfigError: inputs that are missing, or arms that cannot be built. DataError: an expectation of a number that
            was not measured. TrainingError: runs that failed, by arm and seed.
    """
    began = time.monotonic()
    source = claim.config.source
    rows = source_rows(source, resources)
    # The seeds of a timing are its rounds: a disturbed round must not move the number.
    centre: Centre = "median" if isinstance(source, TimingSource) else "mean"
    found = [evaluate(expectation, rows, centre) for expectation in claim.config.expect]
    head = {
        "name": claim.name,
        "claim": claim.address,
        "holds": all(one.holds for one in found),
        "expectations": [one.as_dict() for one in found],
        "date": datetime.now(UTC).date().isoformat(),
        "command": command(claim),
        "seconds": round(time.monotonic() - began, 1),
        "versions": versions(),
    }
    return Outcome(head, rows)
