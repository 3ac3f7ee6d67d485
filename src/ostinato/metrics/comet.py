"""COMET (Rei et al. 2020, arXiv 2009.09025, 2022): a trained model's opinion of a translation.

    comet = mean over examples of model(source, output, reference)

The model, Unbabel/wmt22-comet-da, was trained on people's judgements to give numbers of about 0 to 1; they mean nothing
across models. It is Unbabel's library that computes it, on a GPU where there is one; the model is looked for where the
Hugging Face libraries keep theirs, and never downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ostinato.errors import ConfigError, DataError, Problem
from ostinato.metrics.base import Metric

_MODEL = "Unbabel/wmt22-comet-da"


@cache
def _model() -> Any:
    """Return the model, ready to score; it is loaded once and shared by all accumulators.

    Raises:
        ConfigError: the library or the model is not there.
    """
    try:
        import torch
        from comet import load_from_checkpoint
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise _lacking(f"pip install 'ostinato[comet]' ({error})") from error
    try:
        snapshot = Path(snapshot_download(_MODEL, local_files_only=True))
        model = load_from_checkpoint(str(snapshot / "checkpoints" / "model.ckpt"), local_files_only=True)
    except Exception as error:  # Each library between here and the file raises its own.
        hint = f"the model {_MODEL} and its encoder, which `comet-score --model {_MODEL}` downloads"
        raise _lacking(f"{hint} ({type(error).__name__})") from error
    return model.eval().requires_grad_(False).to("cuda" if torch.cuda.is_available() else "cpu")


def _lacking(what: str) -> ConfigError:
    return ConfigError([Problem("evaluation.metrics", "comet", f"needs {what}")])


class Comet(Metric):
    """Mean over the examples of COMET's score, about 0 to 1; it reads the source too.

    Examples are scored one at a time: about as slow as decoding them with a large model. Needs the extra `comet` and
    the model in the cache of Hugging Face's libraries; ConfigError where one is not there.
    """

    name = "comet"

    def counts(self, prediction: str, reference: str, source: str = "") -> list[float]:
        """Return the score of one output, and 1.

        Raises:
            ConfigError: the library or the model is not there. DataError: the source is not known.
        """
        if reference and not source:
            raise DataError("comet needs the source of every example, which a file of predictions holds as 'source'")
        model = _model()
        batch = model.prepare_for_inference([{"src": source, "mt": prediction, "ref": reference}])
        score_1 = model(**{name: tensor.to(model.device) for name, tensor in batch.items()}).score
        return [float(score_1), 1.0]

    def score(self, totals: Sequence[float]) -> float:
        """Return the mean."""
        total, n = totals
        return total / n

    def signature(self) -> str:
        """Return the model and the library's version."""
        return f"{_MODEL}|unbabel-comet:{version('unbabel-comet')}"
