"""Metrics of which some need what is not installed everywhere."""

from __future__ import annotations

import pytest

from ostinato.errors import ConfigError
from ostinato.metrics import Metric, make_metric


def usable_metric(name: str) -> Metric:
    """Return a fresh accumulator; skip the test where an extra or a file is missing."""
    try:
        return make_metric(name)
    except ConfigError as error:
        if "needs" in str(error):
            pytest.skip(str(error))
        raise
