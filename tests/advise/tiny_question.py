"""A question that is answered in seconds; as a program it can be killed: `python tiny_question.py FOLDER HOURS`.

With a third word the trainings of its first stage are so long that no time is enough.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from ostinato.advise import pace
from ostinato.advise.advise import Question, advise
from ostinato.config.space import AxisConfig, LevelConfig, SpaceConfig

PLAN = AxisConfig(
    name="plan",
    levels=[
        LevelConfig(name="individual", set={"model.*.*.share": "individual"}),
        LevelConfig(name="shared", set={"model.*.*.share": "all"}),
        LevelConfig(name="deep", set={"model.*.n_steps": 4}),
    ],
)
TINY = (
    *("task.n_train=200", "task.n_eval=40", "task.max_length=4", "task.long_max_length=5", "data.tokens_per_batch=96"),
    *("model.d_model=16", "model.encoder.ffn.d_ff=64", "model.decoder.ffn.d_ff=64"),
    *("training.n_updates=45", "training.schedule.warmup=9", "training.optimizer.lr=1e-2"),
)


def question(folder: Path, **changes: Any) -> Question:
    """Return the question, with its answer and its runs in a folder."""
    space = SpaceConfig(name="tiny", axes=[PLAN], rates=[1.0], n_candidates=3)
    given: dict[str, Any] = {"hours": 1.0, "overrides": TINY, "space": space} | changes
    return Question("digits/transformer", folder / "answer", folder / "store", **given)


if __name__ == "__main__":
    if sys.argv[3:]:
        pace.LEAST_UPDATES = 0
        pace.Pace.size_of = lambda self, *_: 10_000_000  # type: ignore[method-assign]
    asked = question(Path(sys.argv[1]), hours=float(sys.argv[2]))
    advise(asked, say=lambda line: print(line, flush=True), began=time.monotonic() - time.process_time())
