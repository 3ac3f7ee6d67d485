"""What tests of kernels in sub-layers have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def every_thread() -> Iterator[None]:
    """Let all threads share products, small as they are here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ostinato.kernels.native.calls._WORTH_A_THREAD", 0)
        yield
