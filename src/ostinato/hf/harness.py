"""Runs scored by lm-eval, the evaluation harness of EleutherAI, which knows no entry points for models.

A run's model is given to the harness as one of the Hugging Face library that is loaded already. A text is encoded as
`ostinato evaluate` does it, the begin symbol before it, whatever the post-processing of the tokenizer says, so that
log-likelihoods are those of `evaluate`. Only names of special symbols in it are read as these, which documents of pairs
end with. It needs the extra `lm-eval`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, cast

import yaml
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from torch import Tensor

from ostinato.config.files import YAML_SUFFIXES
from ostinato.errors import ConfigError, on_one_line
from ostinato.evaluation.loading import LoadedRun
from ostinato.hf.export import longest_sequence, wrapped
from ostinato.hf.fast_tokenizer import fast_tokenizer


@contextmanager
def _without_processes() -> Iterator[None]:
    """Let lm-eval estimate standard errors in this process."""
    before = os.environ.get("DISABLE_MULTIPROC")
    os.environ["DISABLE_MULTIPROC"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["DISABLE_MULTIPROC"]
        else:
            os.environ["DISABLE_MULTIPROC"] = before


class RunInHarness(HFLM):  # type: ignore[misc, unused-ignore]
    """A run as a model of lm-eval.

    Args:
        run: whose execution (halting threshold, criterion) holds. n_steps: rounds to run in place of the plans' own.
        batch_size: sentences scored at a time.
    """

    def __init__(self, run: LoadedRun, n_steps: int | None = None, batch_size: int = 16) -> None:
        run.check_exportable()
        model = wrapped(run)
        model.config.n_steps = n_steps
        config = run.model.config
        if config.generates:  # the task says how long outputs are; limits of the recipe would come first
            model.generation_config.max_new_tokens = model.generation_config.min_new_tokens = None
        # Sources and targets in one sequence have their symbols in the documents.
        self._begins = config.reads == "sequence" and run.reads_prompts
        self._longest_source = run.recipe.data.max_source_length
        super().__init__(
            pretrained=model.to(run.model.device),
            backend="seq2seq" if config.has_two_sides else "causal",
            tokenizer=fast_tokenizer(run),
            max_length=longest_sequence(run),
            batch_size=batch_size,
        )

    @property
    def max_gen_toks(self) -> int:
        """Tokens of an output where the task does not say: as with lm-eval, but with room for what is before it."""
        return int(min(256, self.max_length // 2))

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, left_truncate_len: int | None = None, **_: Any
    ) -> list[int]:
        """Return the ids of a text, with what this library puts around it unless `add_special_tokens` is False."""
        ids: list[int] = self.tokenizer.encode(string, add_special_tokens=False)
        if add_special_tokens is not False and self.backend == "seq2seq":
            # lm-eval cuts to what the longer of both sides may be.
            ids = [*ids, self.tokenizer.eos_token_id][-self._longest_source :]
        elif add_special_tokens is not False and self._begins and ids[:1] != [self.prefix_token_id]:
            ids.insert(0, self.prefix_token_id)
        return ids[-left_truncate_len:] if left_truncate_len else ids

    def tok_batch_encode(
        self, strings: list[str], padding_side: str = "left", left_truncate_len: int | None = None, **options: Any
    ) -> tuple[Tensor, Tensor]:
        """Return the ids of texts, padded, and a mask; sources are cut as by `tok_encode`."""
        if self.backend == "seq2seq":
            left_truncate_len = min(self._longest_source, left_truncate_len or self._longest_source)
        found = super().tok_batch_encode(strings, padding_side, left_truncate_len, **options)
        return cast(tuple[Tensor, Tensor], found)

    def loglikelihood_rolling(self, *args: Any, **kwargs: Any) -> list[float]:
        """Return log p of whole texts, whose windows lm-eval itself puts a begin symbol before."""
        begins, self._begins = self._begins, False
        try:
            return cast(list[float], super().loglikelihood_rolling(*args, **kwargs))
        finally:
            self._begins = begins


def score(
    run: LoadedRun,
    tasks: Sequence[str],
    *,
    n_steps: int | None = None,
    batch_size: int = 16,
    limit: int | float | None = None,
    num_fewshot: int | None = None,
) -> dict[str, Any]:
    """Return what `lm_eval.simple_evaluate` finds, documents with their log-likelihoods included.

    Args:
        tasks: YAML files, which are code: lm-eval imports what they name, and fetches their data; or names of tasks
            that come with lm-eval, which it downloads.
        n_steps: rounds to run in place of the plans' own. limit, num_fewshot: as lm-eval has them.

    Raises:
        ConfigError: the model gives no probabilities of texts, or a task that lm-eval does not know, cannot read or
            fetch, or that this model cannot do, or a metric that is no finite number.
    """
    if not run.model.config.generates:
        raise ConfigError("lm-eval scores models that write text; this run's model has another head")
    names = [str(Path(task).absolute()) if task.endswith(YAML_SUFFIXES) else task for task in tasks]
    # The index of what comes with lm-eval takes seconds to make.
    manager = TaskManager(include_defaults=any(not name.endswith(YAML_SUFFIXES) for name in names))
    try:
        # It prints what it is doing. Its processes for bootstraps are forked from this one, which has threads and takes
        # SIGTERM as Ctrl-C: they may wait for ever when they are told to end.
        with redirect_stdout(sys.stderr), _without_processes():
            found = simple_evaluate(
                RunInHarness(run, n_steps, batch_size),
                tasks=names,
                task_manager=manager,
                limit=limit,
                num_fewshot=num_fewshot,
                bootstrap_iters=1000,
            )
    except (KeyError, OSError, ValueError, ArithmeticError, AssertionError, yaml.YAMLError) as error:
        reason = on_one_line(error.args[0] if isinstance(error, KeyError) and error.args else error)
        # Its assertions about lengths say nothing.
        reason = reason or "a text is empty, or longer than the run's limit (data.max_target_length)"
        raise ConfigError(f"lm-eval cannot score {', '.join(tasks)}: {reason}") from error
    return dict(found or {})
