from __future__ import annotations

from documents import DOCUMENTS, commands

from ostinato.tasks.recipes import load_recipe
from ostinato.training.changes import Done, changes_between


def test_runs_that_pages_make_longer_have_schedules_that_allow_it() -> None:
    # Pages are run with a few updates, within the warm-up, where every schedule does.
    n_longer = 0
    for page in DOCUMENTS:
        trained: dict[str, list[str]] = {}
        for words in (one.arguments for one in commands(page) if one.arguments[0] == "train"):
            settings = [word for word in words[2:] if "=" in word]
            if "--resume" not in words and "--run-dir" in words:
                trained[words[words.index("--run-dir") + 1]] = [words[1], *settings]
            elif "--resume" in words and settings and words[1] in trained:
                name, *given = trained[words[1]]
                old, new = load_recipe(name, given), load_recipe(name, [*given, *settings])
                n_longer += new.training.n_updates > old.training.n_updates
                done = Done(old.training.n_updates, old.training.n_updates, n_checkpoints=1, n_ranked=1)
                assert changes_between(old, new, lambda done=done: done, words[1])
    assert n_longer
