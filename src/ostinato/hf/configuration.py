"""What config.json of an exported model holds: our configuration, and what the Hugging Face library asks for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter, ValidationError
from transformers import PreTrainedConfig

from ostinato.config.model import EncoderConfig, LanguageModelConfig, ModelConfig, Seq2SeqConfig
from ostinato.config.training import BalanceConfig, DepthCostConfig, RoundLossConfig
from ostinato.data.disk import write_text
from ostinato.errors import CheckpointError
from ostinato.hf.cache import CACHE

Exported = LanguageModelConfig | Seq2SeqConfig | EncoderConfig
CODE = "modeling_ostinato"
"""Module beside the weights, which imports ours for `trust_remote_code`."""


class OstinatoConfig(PreTrainedConfig):
    """Configuration of a model of ours.

    Args:
        model: what `ostinato.config.model` says of it, as plain values, vocabulary sizes set.
        balance, halting: weights of the auxiliary losses, as `training` of a recipe has them; None: no such loss.
        round_loss, label_smoothing: as `training` of a recipe has them, for the loss in training: that of an evaluation
            is of the last round, unsmoothed, as ours is.
        left_out: settings of that recipe's training that change what a pass of training computes, and that the Hugging
            Face library has no place for; said once when the model is trained.
        max_position_embeddings: the most tokens of a sequence, by the lengths of the run's data and by learned
            positions.
        use_cache: whether calls that do not say return a cache.
        n_steps: rounds to run where a call does not say; None: the plan's own.
        halting_threshold, exit, exit_scope: at which tokens halt where a call does not say, and by which criterion, but
            in training (`ostinato.nn.Execution`).

    `n_steps` and those after it are arguments of `from_pretrained`, too, and so of what passes its arguments on, such
    as lm-eval.
    """

    model_type = "ostinato"
    keys_to_ignore_at_inference: ClassVar[list[str]] = [CACHE]

    model: dict[str, Any] | None = None
    balance: dict[str, Any] | None = None
    halting: dict[str, Any] | None = None
    round_loss: dict[str, Any] | None = None
    label_smoothing: float = 0.0
    left_out: list[str] | None = None
    vocab_size: int | None = None
    hidden_size: int | None = None
    num_hidden_layers: int | None = None
    max_position_embeddings: int | None = None
    use_cache: bool = False
    n_steps: int | None = None
    halting_threshold: float | None = None
    exit: str | None = None
    exit_scope: str = "token"

    def __post_init__(self, **kwargs: Any) -> None:
        """Fill in what follows from the model."""
        if self.model is not None:
            given = self.settings()
            self.hidden_size = given.d_model
            self.num_hidden_layers = sum(len(list(plan.steps)) for plan in given.plans().values())
            self.is_encoder_decoder = given.kind == "seq2seq"
            self.vocab_size = given.target_vocab_size if isinstance(given, Seq2SeqConfig) else given.vocab_size
            special = given.special_ids
            self.pad_token_id, self.bos_token_id, self.eos_token_id = special.pad, special.bos, special.eos
            self.decoder_start_token_id = special.bos if self.is_encoder_decoder else None
            n_labels = given.n_labels if isinstance(given, EncoderConfig) else None
            if n_labels is not None and self.id2label is None:
                kwargs.setdefault("num_labels", n_labels)
        # A matrix with two tasks is one parameter with one name: there is nothing to tie.
        self.tie_word_embeddings = False
        super().__post_init__(**kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Write config.json, and the code that its `auto_map` names: all that saves a model comes through here."""
        super().save_pretrained(save_directory, *args, **kwargs)
        named = [str(name).split(".") for name in (getattr(self, "auto_map", None) or {}).values()]
        if classes := {name for module, name in named if module == CODE}:
            write_text(Path(save_directory) / f"{CODE}.py", code_of(sorted(classes - {"OstinatoConfig"})))

    def settings(self) -> Exported:
        """Return the configuration of the model.

        Raises:
            CheckpointError: there is none, or it is not one of stacks.
        """
        if self.model is None:
            raise CheckpointError("config.json: has no model: it is not what ostinato export hf writes")
        try:
            found = TypeAdapter[Any](ModelConfig).validate_python(self.model)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, ("model", *first["loc"])))
            raise CheckpointError(f"config.json: {where} is {first['input']!r}: {first['msg']}") from error
        if not isinstance(found, LanguageModelConfig | Seq2SeqConfig | EncoderConfig):
            raise CheckpointError(f"config.json: model.kind is {found.kind!r}: recurrences are not exported")
        return found

    def losses(self) -> tuple[BalanceConfig, DepthCostConfig]:
        """Return the weights of the auxiliary losses."""
        return BalanceConfig.model_validate(self.balance or {}), DepthCostConfig.model_validate(self.halting or {})

    def loss_of_rounds(self) -> RoundLossConfig:
        """Return of which rounds the loss is in training."""
        return RoundLossConfig.model_validate(self.round_loss or {})


def code_of(models: list[str]) -> str:
    """Return the source of a module with subclasses of our configuration and of our models of these names."""
    imported = "".join(f", {name} as _{name}" for name in models)
    defined = "".join(f"\n\nclass {name}(_{name}):\n    config_class = OstinatoConfig\n" for name in models)
    return (
        '"""Classes of this model: they are those of the package ostinato."""\n\n'
        "try:\n"
        f"    from ostinato.hf import OstinatoConfig as _Config{imported}\n"
        "except ImportError as error:\n"
        "    raise ImportError(\"this model needs ostinato: pip install 'ostinato[hf]'\") from error\n\n\n"
        f"class OstinatoConfig(_Config):\n    pass\n{defined}"
    )
