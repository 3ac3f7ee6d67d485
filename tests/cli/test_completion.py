"""What a shell may complete."""

from __future__ import annotations

import os
import subprocess
import sys

from ostinato.cli import completion


def test_names_and_keys_that_begin_so_are_completed() -> None:
    assert completion.recipe_names("parity/") == ["parity/deep", "parity/fixed", "parity/looped", "parity/transformer"]
    assert completion.sweep_names("parity-") == ["parity-rates"]
    assert completion.claim_names("x-moe/coll") == ["x-moe/collapse"]
    assert completion.setting_keys("training.n_up") == ["training.n_updates="]
    assert completion.recipe_names_and_setting_keys("digits/u") == ["digits/universal"]


def test_a_shell_is_told_the_recipes_of_a_command() -> None:
    line = "ostinato plan scan/u"
    words = {"_OSTINATO_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": "2"}
    code = "import sys; sys.argv = ['ostinato']; from ostinato.cli import main; main()"
    called = subprocess.run([sys.executable, "-c", code], env=os.environ | words, capture_output=True, text=True)
    assert called.stdout.split() == ["scan/universal"]
