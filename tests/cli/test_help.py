from __future__ import annotations

import subprocess
import sys
import time

import pytest

from ostinato import __version__

COMMANDS = [
    *("train", "evaluate", "analyze", "compare", "generate", "tune-threshold", "plan", "family", "solve"),
    *("recipes", "sweep", "table", "plot", "transfer", "match", "claims", "reproduce", "data", "doctor", "demo"),
]

_EVERY_HELP = """
import sys
from ostinato.cli import main
for arguments in {calls}:
    try:
        main(arguments)
    except SystemExit as end:
        assert end.code in (0, None), (arguments, end.code)
heavy = {{"torch", "numpy", "omegaconf", "tokenizers"}} & set(sys.modules)
assert not heavy, heavy
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)


def best_of_five(*arguments: str) -> float:
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        assert python(*arguments).returncode == 0
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def test_help_takes_less_than_three_tenths_of_a_second() -> None:
    assert best_of_five("-m", "ostinato", "--help") < 0.3


def test_importing_the_package_takes_less_than_three_tenths_of_a_second_and_no_torch() -> None:
    check = "import ostinato, sys; assert not {'torch', 'numpy', 'pydantic', 'typer'} & set(sys.modules)"
    assert best_of_five("-c", check) < 0.3


def test_every_help_shows_an_example_and_imports_nothing_heavy() -> None:
    calls = [
        [name, "--help"]
        for name in [
            *COMMANDS,
            "data list",
            "data fetch",
            "data show",
            "data baselines",
            "match perplexity",
            "match loss",
        ]
    ]
    split = [[*name.split(), flag] for name, flag in calls]
    done = python("-c", _EVERY_HELP.format(calls=[["--help"], ["--version"], *split]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n  Example: ") == len(calls)


def test_the_overview_lists_every_command() -> None:
    overview = python("-m", "ostinato", "--help").stdout
    assert [name for name in COMMANDS if f"\n  {name} " not in overview] == []
    assert "..." not in overview.partition("Commands:")[2]


@pytest.mark.parametrize("flag", ["--version"])
def test_the_version_is_the_packages(flag: str) -> None:
    done = python("-m", "ostinato", flag)
    assert (done.returncode, done.stdout) == (0, f"ostinato {__version__}\n")


def test_a_recipe_imports_its_own_task_only() -> None:
    code = (
        "import sys; from ostinato.tasks.recipes import load_recipe; load_recipe('scan/universal'); "
        "print(*sorted(m for m in sys.modules if m in ('ostinato.tasks.scan', 'ostinato.tasks.listops')))"
    )
    assert python("-c", code).stdout.split() == ["ostinato.tasks.scan"]
