"""What a shell may complete."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ostinato.cli import completion
from ostinato.tasks.registry import TASKS


def test_names_and_keys_that_begin_so_are_completed() -> None:
    assert completion.recipe_names("parity/") == ["parity/deep", "parity/fixed", "parity/looped", "parity/transformer"]
    assert completion.sweep_names("parity-") == ["parity-exits", "parity-input", "parity-rates"]
    assert completion.claim_names("x-moe/coll") == ["x-moe/collapse"]
    assert completion.setting_keys("training.n_u") == ["training.n_updates=", "training.n_updates=2000"]
    kinds = [f"task.kind={kind}" for kind in TASKS]
    assert completion.setting_keys("task.k") == ["task.kind=", *kinds]
    assert {"model.d_model=", "model.dropout="} < set(completion.setting_keys("model.d"))
    assert completion.recipe_names_and_setting_keys("digits/u") == ["digits/universal"]


@pytest.mark.slow
def test_a_shell_is_told_the_recipes_of_a_command() -> None:
    line = "ostinato plan scan/u"
    words = {"_OSTINATO_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": "2"}
    code = "import sys; sys.argv = ['ostinato']; from ostinato.cli import main; main()"
    called = subprocess.run([sys.executable, "-c", code], env=os.environ | words, capture_output=True, text=True)
    assert called.stdout.split() == ["scan/universal"]


BASH = """
eval "$(ostinato --show-completion)"
complete -p ostinato
for word in "tra" "train parity/lo" "evaluate --checkp" "train parity/looped training.n_u"; do
    COMP_WORDS=(ostinato $word)
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _ostinato_completion ostinato
    echo "${COMPREPLY[@]}"
done
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_recipes_options_and_settings() -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    called = subprocess.run(["bash", "-c", BASH], env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert called.stderr == ""
    assert called.stdout.splitlines() == [
        "complete -o default -F _ostinato_completion ostinato",
        "train",
        "parity/looped",
        "--checkpoint",
        # Two words, so that bash puts no space behind the first one, where the value goes.
        "training.n_updates= training.n_updates=2000",
    ]
