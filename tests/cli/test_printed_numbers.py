from __future__ import annotations

import pytest

from ostinato.cli.output import number
from ostinato.data.disk import as_json


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.12345, "0.1235"),
        (999.94, "999.9"),
        (1234.56, "1,234.6"),
        (-1234.56, "-1,234.6"),
        (4.7802e80, "4.78e+80"),
        (-1e15, "-1e+15"),
        (1_388_544, "1,388,544"),
        (10**16, "10,000,000,000,000,000"),
        (True, "True"),
        (None, ""),
        (float("inf"), "inf"),
    ],
)
def test_numbers_are_short_enough_to_read(value: object, text: str) -> None:
    assert number(value) == text


def test_a_line_of_json_has_no_number_that_json_has_not() -> None:
    assert as_json({"weight": float("nan"), "kept": [1.5, float("inf")]}) == '{"weight": null, "kept": [1.5, null]}'
