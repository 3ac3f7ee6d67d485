from __future__ import annotations

import pytest
from usable import usable_metric

from ostinato.metrics import METRICS


@pytest.mark.parametrize("name", [name for name in METRICS if name != "comet"])  # a trained model's opinion
def test_outputs_that_are_their_references_have_the_perfect_score(name: str) -> None:
    metric = usable_metric(name)
    for text in ("the quick brown fox jumps over it", "a b c d e f g"):
        metric.update(text, text)
    assert metric.compute()[name] == pytest.approx(METRICS[name].perfect)
