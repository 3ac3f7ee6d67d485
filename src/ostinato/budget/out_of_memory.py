"""What the plan says that a model takes, noted on the error of a machine that has not so much memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ostinato.budget.memory import Precision, count_bytes
from ostinato.config.model import ModelConfig
from ostinato.system_errors import is_out_of_memory

_MIB = 2**20


@contextmanager
def noting_plan(
    config: ModelConfig,
    shape: tuple[int, int, int],
    *,
    state_bytes: Callable[[], int] | None = None,
    beam: int = 1,
    precision: Precision = "float32",
    checkpoint_activations: bool = False,
    n_predictions: int = 1,
) -> Iterator[None]:
    """Add to an error of memory a note of the bytes that the plan counts for the pass that is run meanwhile.

    Training: weights, gradients and state of the optimiser, activations. Otherwise: weights and the cache of decoding.
    The innermost of several notes is kept.

    Args:
        config: with its vocabulary sizes. shape: sentences, source tokens and target tokens of its batch.
        state_bytes: of training, gives the bytes of gradients, the optimiser's state and what else is kept of every
            trained weight; None: nothing is trained.
        beam, precision, checkpoint_activations, n_predictions: as of `count_bytes`.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error) or hasattr(error, "__notes__"):
            raise
        batch_size, source_length, target_length = shape
        found = count_bytes(
            config,
            source_length,
            target_length,
            batch_size=batch_size,
            beam=beam,
            precision=precision,
            checkpoint_activations=checkpoint_activations,
            n_predictions=n_predictions,
        )
        tokens = f"{target_length:,} tokens"
        if config.has_two_sides:
            tokens = f"{source_length:,} source and {target_length:,} target tokens"
        taken = f"weights {_size(found.weights)}"
        if state_bytes is not None:
            taken += f", gradients and optimiser {_size(state_bytes())}, activations {_size(found.activations)}"
        elif config.generates:
            taken += f", cache of decoding {_size(found.cache)} at beam {beam}"
        error.add_note(f"the plan says for {batch_size:,} sentences of {tokens}: {taken}")
        raise


def _size(n_bytes: int) -> str:
    return f"{n_bytes / _MIB:,.1f} MiB"
