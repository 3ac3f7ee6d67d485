"""Set-up of the whole suite, before anything imports torch.

Being here puts `tests` on the import path: `architectures`, `contract` and `reference` are imported by name.
"""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from jaxtyping import config as shape_checks

# The tensors are tiny: a second thread costs a hundred times what it saves, and workers run side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A power failure in the middle of the suite may cost it its files; to wait for the disk is a tenth of training's tests.
os.fsync = lambda handle: None  # type: ignore[assignment]

# The same examples in every run, however busy the machine is; nothing is kept for the next one.
settings.register_profile("ostinato", deadline=None, derandomize=True, database=None)
settings.load_profile("ostinato")

TESTS = Path(__file__).parent
SAMPLED = 7
"""`make test` runs one in so many sets of parameters of a test marked `sampled`; `make test-all` all of them.

Seven, since most parameters have two, three or four values, of which every fourth set would have the same."""


SHAPES_CHECKED = {"decoding", "families", "models", "nn"}
"""Folders in whose tests `make test` checks annotated shapes at every call; it is a tenth of the time of the others,
which run the same models for another reason. `make test-all` checks everywhere."""


def pytest_configure() -> None:
    """Take Ctrl-C as Python does on its own: what is started in the background may have been told to ignore it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before slow tests are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the parameters of a test marked `sampled` make all but every seventh slow."""
    n_seen: Counter[str] = Counter()
    for item in items:
        if item.get_closest_marker("sampled") is not None and item.get_closest_marker("slow") is None:
            name = item.nodeid.split("[")[0]
            if n_seen[name] % SAMPLED:
                item.add_marker(pytest.mark.slow)
            n_seen[name] += 1


def pytest_collection_finish() -> None:
    """Take what is there by now from the collector of garbage, which would look through it again in every test."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before fixtures are made
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out tests of a CPU where others of their file are run elsewhere, and shapes where models are only used."""
    folders = item.path.relative_to(TESTS).parts
    checked = "OSTINATO_ALL_DRAWS" in os.environ or not SHAPES_CHECKED.isdisjoint(folders)
    # A pass that is traced for ONNX has symbols for its sizes, which are no `int`.
    is_untyped = "onnx" in item.nodeid or item.get_closest_marker("untyped") is not None
    shape_checks.update("jaxtyping_disable", not checked or is_untyped)
    mark = item.get_closest_marker("device")
    if "OSTINATO_DEVICE" in os.environ and mark is not None and mark.args == (False,):
        pytest.skip("is about a CPU")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Run tests marked `device` where OSTINATO_DEVICE says."""
    name = os.environ.get("OSTINATO_DEVICE")
    if name is None or item.get_closest_marker("device") is None:
        return (yield)
    from elsewhere import elsewhere

    with elsewhere(name):
        return (yield)
