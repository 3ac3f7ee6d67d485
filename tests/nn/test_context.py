"""What one pass through a stack knows can be made inside a graph that torch.compile traces."""

from __future__ import annotations

from dataclasses import MISSING, fields

from ostinato.nn.context import Pass, Round


def test_what_a_traced_pass_makes_has_no_default_that_torch_cannot_trace() -> None:
    # Torch 2.11 traces every default of a constructor, given or not, and knows no objects that it did not see made.
    defaults = [field.default for cls in (Pass, Round) for field in fields(cls) if field.default is not MISSING]
    assert defaults
    assert all(default in (None, False, True, (), "") for default in defaults)
