from __future__ import annotations

import json
import subprocess
import sys


def test_a_setting_is_shown_with_type_default_unit_and_meaning(run) -> None:
    lines = run("settings", "training.schedule.warmup").out.splitlines()
    assert lines == [
        "training.schedule.warmup = 400",
        "    an integer in [0, 2^63 - 1]; unit: updates",
        "    W: updates over which the learning rate grows linearly from 0.",
    ]
    kinds = run("settings", "model.encoder.halting.kind").out
    assert "only with model.kind=seq2seq or encoder" in " ".join(kinds.split())
    assert "\n    none: Every token takes part in every round.\n" in kinds
    assert "    inverse_sqrt:      lr * min(u / W, sqrt(W / u)) " in run("settings", "training.schedule").out


def test_all_settings_are_listed_as_lines_and_as_json(run) -> None:
    listed = json.loads(run("settings", "--json").out)
    heads = [line.partition(" ")[0] for line in run("settings").out.splitlines() if not line.startswith(" ")]
    assert [setting["key"] for setting in listed] == heads
    assert set(listed[0]) == {"key", "accepts", "default", "unit", "meaning", "kinds", "only_with"}


def test_an_unknown_key_is_one_line_with_the_nearest(run) -> None:
    outcome = run("settings", "d_modle")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert "nearest: model.d_model" in outcome.err


def test_listing_settings_imports_no_torch() -> None:
    check = (
        "import sys; from ostinato.cli import main\n"
        "try: main(['settings'])\n"
        "except SystemExit as end: assert not end.code\n"
        "assert not {'torch', 'numpy', 'tokenizers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
