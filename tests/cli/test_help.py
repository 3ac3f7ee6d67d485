from __future__ import annotations

import re
import subprocess
import sys

import pytest

from ostinato import __version__

GROUPS = {
    "Run": ["demo", "advise", "train", "generate"],
    "Look inside": ["evaluate", "analyze", "tune-threshold", "view", "watch", "lm-eval"],
    "Compare": ["compare", "table", "plot"],
    "Count": ["plan", "family", "solve"],
    "Experiments": ["sweep", "claims", "reproduce"],
    "Data and settings": ["recipes", "settings", "doctor", "data"],
    "Exchange": ["convert", "import", "export"],
}
COMMANDS = [name for names in GROUPS.values() for name in names]

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


def test_importing_the_package_imports_nothing_heavy() -> None:
    # How long it takes is measured by benchmarks/startup.py.
    check = "import ostinato, sys; assert not {'torch', 'numpy', 'pydantic', 'typer'} & set(sys.modules)"
    done = python("-c", check)
    assert done.returncode == 0, done.stderr


def test_every_help_shows_an_example_and_imports_nothing_heavy() -> None:
    calls = [
        [name, "--help"]
        for name in [
            *COMMANDS,
            "data list",
            "data fetch",
            "data show",
            "data baselines",
            "import hf",
            "export hf",
            "export lm-eval",
        ]
    ]
    split = [[*name.split(), flag] for name, flag in calls]
    done = python("-c", _EVERY_HELP.format(calls=[["--help"], ["--version"], *split]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n  Example: ") == len(calls)


def groups(text: str) -> dict[str, list[str]]:
    """Return the first words of the lines below each title of a help."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            rows = found.setdefault(line.removesuffix(":"), [])
        elif found and line[:2] == "  " and line[2:3].strip():
            rows.append(line.split()[0])
    return found


def test_the_overview_lists_every_command_in_its_group() -> None:
    overview = python("-m", "ostinato", "--help").stdout
    found = groups(overview.partition("Start with")[0])
    assert found.pop("Options") == ["--version", "--debug", "--install-completion", "--show-completion", "-h,"]
    assert found == GROUPS
    assert "..." not in overview.partition("Run:")[2]
    assert not {"average", "transfer", "match"} & set(overview.split())


def test_the_help_of_lm_eval_says_that_task_files_are_code(run) -> None:
    words = re.findall(r"\w+", run("lm-eval", "--help").out)
    assert "which can run code and fetch data give only those that you trust" in " ".join(words)


def test_the_options_of_generate_are_in_named_groups() -> None:
    found = groups(python("-m", "ostinato", "generate", "--help").stdout.partition("Example")[0])
    assert found.pop("Arguments") == ["RUN", "FILES"]
    assert found.pop("Options") == ["-h,"]
    assert list(found) == ["Model", "Search", "Sampling", "Input", "Output", "Where the work is done"]
    assert sum(map(len, found.values())) == 30
    assert found["Sampling"] == ["--sample", "--temperature", "--top-k", "--seed"]


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


@pytest.mark.parametrize(
    "words",
    [
        ["train", "nowhere", "--run-dir", ""],
        ["train", "nowhere", "--run-dir="],
        ["sweep", "nowhere", "--store", ""],
        ["table", "x", ""],
    ],
)
def test_an_empty_path_is_not_the_folder_in_which_one_is(run, words: list[str]) -> None:
    outcome = run(*words)
    assert outcome.code == 2
    assert "is empty: name a file or folder" in " ".join(outcome.err.split())


def test_the_overview_is_written_without_settings() -> None:
    # The library of the command line imports pydantic for the help of a single command.
    done = python("-c", f"{_EVERY_HELP.format(calls=[['--help']])}assert 'pydantic' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_what_commands_import_is_not_searched_for_garbage_again_and_again() -> None:
    # `doctor` imports torch. By the limits of Python itself there are three full collections.
    at_exit = "atexit.register(lambda: print('full', gc.get_stats()[2]['collections']))"
    done = python("-c", f"import atexit, gc, ostinato.cli; {at_exit}; ostinato.cli.main(['doctor'])")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.rpartition("full ")[2]) == 0, done.stdout
